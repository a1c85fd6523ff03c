"""The value of a program's last expression as text for a model."""

from __future__ import annotations

import json

from bridge.model import Json
from bridge.render.structured import to_json
from bridge.settings import OutputMode

TOON_SHARE = 0.8
"""Of the bytes of JSON. TOON that takes more costs a model more: to tokenizers JSON's rows of marks
are one token. Tables cost 15 to 40 % less as TOON, pairs and nested values up to 80 % more."""


def value_text(value: Json, mode: OutputMode = "compact") -> str:
    """Return a value as text that has a UTF-8 form.

    Args:
        mode: "json" and "toon" always write it so; "compact" is JSON but for a text of several
            lines, which reads better as it is; "auto" is "compact", or TOON where that costs less.
    """
    plain = to_json(value)
    if isinstance(plain, str) and "\n" in plain and mode in ("compact", "auto"):
        return plain
    as_json = json.dumps(plain, ensure_ascii=False, separators=(",", ":"))
    if mode in ("compact", "json") or (mode == "auto" and not isinstance(plain, dict | list)):
        return as_json
    as_toon = _toon(plain)
    if as_toon is None:
        return as_json
    share = len(as_toon.encode()) / len(as_json.encode())
    return as_toon if mode == "toon" or share <= TOON_SHARE else as_json


def _toon(value: Json) -> str | None:
    # Only the modes that ask for it pay for its import: 5 ms of the bridge's first answer.
    import toon_format

    try:
        return toon_format.dumps(value)
    except (TypeError, ValueError, RecursionError):
        # `to_json` leaves nothing that it refuses, but this must not fail.
        return None
