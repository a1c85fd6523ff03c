"""The values of the gate: calls, decisions, outcomes, canonical JSON and digests. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from bridge.errors import CannotAskError, RefusedError, ToolCallError, UpstreamError, UsageError
from bridge.event_loop import LARGE, estimated_size
from bridge.guest.protocol import json_text
from bridge.model import Action, Effect, Json, Tool
from bridge.settings.policy import STRICTNESS

Mask = Callable[[Json, Json], Json]
"""Takes arguments and their schema, and returns the arguments without secrets."""

UNLISTED = "unlisted tool"  # The rule that denies tools that their server does not list.

CHANGED = "changed tool"
"""The rule that asks about a tool that changed since it was allowed; see `gate.pins`."""

REDEFINED = "changed server"
"""The rule that asks about a server whose definition changed since it was allowed."""


@dataclass(frozen=True, kw_only=True)
class CallFacts:
    """A call to decide on, with the arguments that the server would get.

    `server_definition` is the digest of its server's definition, or empty. `own` tells whether the
    user's file, and not a project's, defines the server.
    """

    server: str
    tool: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    definition: Tool | None = None
    server_definition: str = ""
    own: bool = False

    def __str__(self) -> str:
        return f"{self.server}.{self.tool}"

    @property
    def schema(self) -> Mapping[str, Json]:
        """The schema of the tool's arguments, or an empty one."""
        return {} if self.definition is None else self.definition.input_schema

    @property
    def says_it_reads(self) -> bool:
        return self.own and self.definition is not None and self.definition.says_it_reads

    def find_unlisted(self, names: Iterable[str]) -> tuple[str, ...]:
        known = self.schema.get("properties")
        if not isinstance(known, Mapping):
            return ()
        return tuple(name for name in names if name not in known)


def no_mask(value: Json, schema: Json = None) -> Json:
    return value


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a call is allowed, asked about or denied, and why.

    `rule` is shown and recorded ("rule 'no force'"). `led` names the earlier calls that made a flow
    rule decide.
    """

    action: Action
    rule: str
    reason: str = ""
    effect: Effect = "write"
    labels: frozenset[str] = frozenset()
    led: tuple[str, ...] = ()


def strictest(first: Decision, *others: Decision | None) -> Decision:
    """Return the strictest decision, with the effect and labels of the first."""
    decisions = (first, *filter(None, others))
    found = max(decisions, key=lambda each: STRICTNESS.index(each.action))
    if found is first:
        return first
    return replace(found, effect=first.effect, labels=first.labels)


Outcome = Literal["ok", "tool-error", "refused", "not-sent", "unknown"]
"""Answered; failed in the tool; refused by the server at protocol level; never sent; or sent
without an answer."""

REFUSALS = frozenset({-32600, -32601, -32602, -32020, -32021, -32022, -32042})
"""Codes of requests that the server did not act on: malformed, unknown method, wrong parameters,
headers, capability or version, and an address that the user has to visit first."""


def outcome_of(result: Mapping[str, Json]) -> Outcome:
    return "tool-error" if result.get("isError") is True else "ok"


def outcome_after(error: BaseException) -> Outcome:
    """Return the outcome of a call that raised an error; "unknown" for unexpected ones."""
    if isinstance(error, UsageError | RefusedError):
        # An error of the bridge, before the call.
        return "not-sent"
    if not isinstance(error, UpstreamError) or error.doubtful:
        return "unknown"
    if isinstance(error, ToolCallError):
        return "refused" if error.rpc_code in REFUSALS else "tool-error"
    if isinstance(error, CannotAskError):
        # The server asked a question instead.
        return "refused"
    return "not-sent"


_encoded = json_text.encoder(ascii_only=True, sort_keys=True)

_PIECES = json.JSONEncoder(
    allow_nan=False, sort_keys=True, separators=(",", ":"), check_circular=False
)
"""Writes the JSON of `_encoded` in pieces."""


def canonical(value: Json) -> str:
    """Return a value as canonical JSON. Numbers that JSON does not have become texts."""
    try:
        return _encoded(value)
    except ValueError:
        return _encoded(_finite(value))


def _finite(value: Json, depth: int = 0) -> Json:
    if depth > 100:
        raise RecursionError("nested too deeply")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    # Python does not write much larger integers as digits.
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
    """Return the digest of a call's arguments; empty if they are nested too deeply."""
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
    # Encoding a large value at once blocks the event loop.
    whole = hashlib.sha256()
    for piece in _PIECES.iterencode(value):
        whole.update(piece.encode("ascii"))
    return f"sha256:{whole.hexdigest()}"
