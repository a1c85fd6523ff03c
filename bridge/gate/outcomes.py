"""What became of a call that went out. Pure.

A retry makes a call again unless it may have happened, so the question here is not what went wrong
but whether anything could have been done: an outcome is "unknown" unless an answer says otherwise.
An answer that is an error counts like a tool's own error, whatever its code. The server says that
it failed, and many servers let every exception of a tool become such a code; that it did half of
the work first is possible for both, and the program's author is told of both. What is not the
server's answer (a gateway's, the client library's word on a stream that broke, an error that stands
for a time limit) carries `doubtful`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bridge.errors import (
    CannotAskError,
    RefusedError,
    ToolCallError,
    UpstreamError,
    UsageError,
)
from bridge.model import Json

Outcome = Literal["ok", "tool-error", "refused", "not-sent", "unknown"]
"""Answered; answered that it failed; refused by the server at protocol level; never sent; or sent,
and nobody knows."""

REFUSALS = frozenset({-32600, -32601, -32602, -32020, -32021, -32022, -32042})
"""Codes of requests that were not acted on: malformed, no such method, wrong parameters; wrong
headers, a capability or a version that is missing; and an address that the user has to visit
first."""


def outcome_of(result: Mapping[str, Json]) -> Outcome:
    """Return what an answer says."""
    return "tool-error" if result.get("isError") is True else "ok"


def outcome_after(error: BaseException) -> Outcome:
    """Return what is known of a call that ended so; of anything unforeseen nothing is."""
    if isinstance(error, UsageError | RefusedError):
        # Of the bridge's own: there is no such server, or its configuration leaves the tool out.
        return "not-sent"
    if not isinstance(error, UpstreamError) or error.doubtful:
        return "unknown"
    if isinstance(error, ToolCallError):
        return "refused" if error.rpc_code in REFUSALS else "tool-error"
    if isinstance(error, CannotAskError):
        # It answered with a question instead of a result.
        return "refused"
    return "not-sent"
