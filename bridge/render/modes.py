"""The output modes.

Owns the choice between compact text, TOON and JSON. Every mode says the same, and none ever fails:
what `structured` returns is encodable as JSON by construction, and where TOON still refuses, JSON
takes its place. Drops nothing.
"""

from __future__ import annotations

import json
from typing import Any, Literal

from bridge.model import RunResult
from bridge.render.structured import structured
from bridge.render.text import compact

OutputMode = Literal["compact", "toon", "json", "auto"]


def render(result: RunResult, mode: OutputMode = "compact") -> str:
    """Return `result` as text that has a UTF-8 form.

    Args:
        mode: "compact" for plain text, "toon" or "json" for the structured content in that format,
            "auto" for whichever of the two takes fewer bytes.
    """
    if mode == "compact":
        return compact(result)
    return document_text(structured(result), mode)


def document_text(document: dict[str, Any], mode: Literal["toon", "json", "auto"]) -> str:
    """Return structured content as text; where TOON cannot hold it, as JSON."""
    if mode == "json":
        return _json(document)
    as_toon = _toon(document)
    if mode == "auto":
        return shorter(_json(document), as_toon)
    return _json(document) if as_toon is None else as_toon


def shorter(as_json: str, as_toon: str | None) -> str:
    """Return the text with fewer bytes; JSON if they are equal or there is no TOON."""
    if as_toon is None or len(as_json.encode()) <= len(as_toon.encode()):
        return as_json
    return as_toon


def _json(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        # JSON can escape lone surrogates, which have no UTF-8 form of their own.
        return json.dumps(document, separators=(",", ":"), allow_nan=False)
    return text


def _toon(document: dict[str, Any]) -> str | None:
    # Only the modes that ask for it pay for its import: 5 ms of the bridge's first answer.
    import toon_format

    try:
        return toon_format.dumps(document)
    except (TypeError, ValueError, RecursionError):
        # Lone surrogates and deep nesting; `structured` leaves neither, but this must not fail.
        return None
