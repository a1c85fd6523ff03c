"""What became of a call that went out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bridge.errors import (
    CallTimeoutError,
    LoginRequiredError,
    ServerStartError,
    ToolCallError,
    UpstreamError,
)
from bridge.model import Json

Outcome = Literal["ok", "tool-error", "refused", "not-sent", "unknown"]
"""Answered; answered that it failed; refused by the server at protocol level; never sent; or sent,
and nobody knows."""


def outcome_of(result: Mapping[str, Json]) -> Outcome:
    """Return what an answer says."""
    return "tool-error" if result.get("isError") is True else "ok"


def outcome_after(error: BaseException) -> Outcome:
    """Return what is known of a call that ended so; of anything unforeseen nothing is."""
    if isinstance(error, ToolCallError):
        return "refused"
    if isinstance(error, ServerStartError | LoginRequiredError):
        return "not-sent"
    if isinstance(error, CallTimeoutError | UpstreamError):
        return "unknown"
    return "unknown"
