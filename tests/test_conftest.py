"""What the suite does to itself."""

from __future__ import annotations

import sys


def test_a_test_whose_coverage_nobody_judges_is_not_traced() -> None:
    """Tracing makes what runs up to four times as slow, the event loop's turns among it."""
    assert sys.gettrace() is None
