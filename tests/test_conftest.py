"""What the suite does to itself."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.matrix import BEGUN_FIRST


def test_a_test_whose_coverage_nobody_judges_is_not_traced() -> None:
    """Tracing makes what runs up to four times as slow, the event loop's turns among it."""
    assert sys.gettrace() is None


def test_what_is_begun_first_exists() -> None:
    root = Path(__file__).parents[1]
    assert [name for name in BEGUN_FIRST if not (root / name).exists()] == []
