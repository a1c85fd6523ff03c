"""Expectations for errors with a code of `CODES`."""

from __future__ import annotations

import pytest

from bridge.errors import CODES, BridgeError


def raises_code(code: str, match: str | None = None) -> pytest.RaisesExc[BridgeError]:
    """Expect an error with this code, of its row's class if it has one."""
    family = CODES[code].family if code in CODES else BridgeError
    return pytest.raises(family, match=match, check=lambda error: error.code == code)
