"""Expectations for errors with a code of `CODES`."""

from __future__ import annotations

import pytest

from bridge.errors import CODES, BridgeError


def raises_code(code: str, match: str | None = None) -> pytest.RaisesExc[BridgeError]:
    """Expect an error with this code, of its row's class."""
    family = CODES[code].family
    return pytest.raises(family, match=match, check=lambda error: error.code == code)
