"""Canonical JSON, and digests of it. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping

from bridge.guest.protocol import json_text
from bridge.model import Json
from bridge.offload import LARGE, estimated_size

_encoded = json_text.encoder(ascii_only=True, sort_keys=True)

_PIECES = json.JSONEncoder(
    allow_nan=False, sort_keys=True, separators=(",", ":"), check_circular=False
)
"""Writes the same in pieces."""


def canonical(value: Json) -> str:
    """Return a value as canonical JSON; numbers that cannot be written become texts.

    Raises:
        RecursionError: It is nested too deeply.
    """
    try:
        return _encoded(value)
    except ValueError:
        return _encoded(_finite(value))


def _finite(value: Json, depth: int = 0) -> Json:
    if depth > 100:
        raise RecursionError("nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # Python refuses to write much larger ones as digits.
    if type(value) is int and value.bit_length() > 8192:
        return hex(value)
    if isinstance(value, Mapping):
        return {key: _finite(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, depth + 1) for item in value]
    return value


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def arguments_digest(arguments: Mapping[str, Json]) -> str:
    """Return the digest of all of a call's arguments; empty if they are nested too deeply."""
    value = dict(arguments)
    try:
        try:
            return _digest(value)
        except ValueError:
            return _digest(_finite(value))
    except RecursionError:
        return ""


def _digest(value: Json) -> str:
    if estimated_size(value, LARGE) <= LARGE:
        return digest(_encoded(value).encode("ascii"))
    # To encode a large value at once blocks all else: see `bridge.offload`.
    whole = hashlib.sha256()
    for piece in _PIECES.iterencode(value):
        whole.update(piece.encode("ascii"))
    return f"sha256:{whole.hexdigest()}"
