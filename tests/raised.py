"""What tests expect of an error that has a code and no class of its own."""

from __future__ import annotations

import pytest

from bridge.errors import CODES, BridgeError


def raises_code(code: str, match: str | None = None) -> pytest.RaisesExc[BridgeError]:
    """Expect an error with this code, of the class that its row in `CODES` names."""
    family = CODES[code].family
    return pytest.raises(family, match=match, check=lambda error: error.code == code)
