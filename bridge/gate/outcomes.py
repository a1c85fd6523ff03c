"""The outcome of a call that was sent. Pure.

A retry repeats a call unless it may have happened, so what counts is whether the server may have
acted: an outcome is "unknown" unless an answer says otherwise. A protocol error counts like a
tool's own error: many servers turn every exception of a tool into one, and in both cases the tool
may have done half of its work. An error that is not the server's answer (a gateway's, one of a
broken stream, a time limit) has `doubtful` set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bridge.errors import CannotAskError, RefusedError, ToolCallError, UpstreamError, UsageError
from bridge.model import Json

Outcome = Literal["ok", "tool-error", "refused", "not-sent", "unknown"]
"""Answered; answered that it failed; refused by the server at protocol level; never sent; or sent
without an answer."""

REFUSALS = frozenset({-32600, -32601, -32602, -32020, -32021, -32022, -32042})
"""Codes of requests that were not acted on: malformed, no such method, wrong parameters; wrong
headers, a capability or a version that is missing; and an address that the user has to visit
first."""


def outcome_of(result: Mapping[str, Json]) -> Outcome:
    return "tool-error" if result.get("isError") is True else "ok"


def outcome_after(error: BaseException) -> Outcome:
    """Return the outcome of a call that ended with an error; "unknown" for unforeseen ones."""
    if isinstance(error, UsageError | RefusedError):
        # The bridge's own: no such server, or a tool that the configuration leaves out.
        return "not-sent"
    if not isinstance(error, UpstreamError) or error.doubtful:
        return "unknown"
    if isinstance(error, ToolCallError):
        return "refused" if error.rpc_code in REFUSALS else "tool-error"
    if isinstance(error, CannotAskError):
        # It answered with a question instead of a result.
        return "refused"
    return "not-sent"
