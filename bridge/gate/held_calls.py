"""Holds back the calls of a run in plan mode, and resolves placeholders for their results.

In a text, a result is inserted as Python's `str` writes it. Alone, it keeps its type. A text with a
quoted mark is refused, so that the policy judges the arguments that are sent.
"""

from __future__ import annotations

import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bridge.errors import InvalidRequestError, RefusedError
from bridge.gate.journal import arguments_digest
from bridge.gate.pins import tool_digests
from bridge.gate.policy import CallFacts, Decision, FlowState, Mask, no_mask
from bridge.guest.protocol.placeholders import (
    EDGE,
    LABEL,
    MAX_PATH,
    PREFIX,
    SEAL,
    WHOLE,
    checksum,
    label,
    shown_path,
)
from bridge.model import Effect, HeldCall, Json
from bridge.text import cut_middle, distinct_key, readable_json

# Limits on a program's plan.
MAX_CALLS = 1_000  # A person has to read them.
MAX_CHARACTERS = 8 * 1024 * 1024  # Of all arguments, as JSON.
MAX_DEPTH = 100  # Levels of arguments, which recursive code walks; frames allow more.
MAX_RESOLVED = 16 * 1024 * 1024
"""Characters of results in the arguments of one call. A text can have one result many times."""

Step = str | int

Shape = Mapping[str, Json]

_CORE = (
    f"{PREFIX}(?P<core>(?P<plan>[0-9a-f]{{16}})n(?P<number>[0-9]{{1,6}})"
    f"p(?P<path>(?:[0-9a-f]{{2}}){{0,{MAX_PATH}}}))k(?P<check>[0-9a-f]{{8}})"
)
_MARK = re.compile(f"{EDGE}{_CORE}{re.escape(SEAL)}{PREFIX}{EDGE}")

_EDGES = rf"(?:{EDGE}|\\x1f|\\u001f|%1F)?"

_QUOTED = re.compile(
    rf"{_EDGES}{_CORE}(?:(?!{PREFIX}).){{0,600}}{PREFIX}{_EDGES}", re.IGNORECASE | re.DOTALL
)
"""Matches a mark in a text for readers, whose seal may be quoted or in another case."""

_TRACE = re.compile(rf"{PREFIX}|{LABEL}|\\u2039{LABEL[1:]}", re.IGNORECASE)
"""Matches a part of a mark or a label. Outside of a whole mark, the text was changed."""

_CHANGED = (
    "An argument holds a placeholder that was cut or changed. The result of a held call is not "
    "known yet: pass it, a field of it or a text made with it on as it is, and not quoted (as "
    "JSON, for an address, a shell or HTML), split, stripped or in another case."
)
_READ = (
    "An argument holds what is only to be read: the repr of a held call's result, the text of a "
    "container with one, or what call_tool_raw gave. Put fields into f-strings, pass containers as "
    "they are, use call_tool."
)
_KEY = (
    "A result that is held back cannot be a key of a dict, for it is not known yet. Use it as a "
    "value; or use what a read has returned as the key."
)


class Mark(NamedTuple):
    """A placeholder for the value at `path` in the result of held call `number` of run `plan`."""

    plan: str
    number: int
    path: tuple[Step, ...]


class CallResult(NamedTuple):
    """The result of a call, with the name of the call for errors ("#3 github.create_issue")."""

    call: str
    shape: Shape


def find_referred(arguments: Json, plan: str, held: int) -> frozenset[int]:
    """Return the numbers of the calls whose results the arguments use.

    `plan` has the run's 16 digits; it holds `held` calls now.
    """
    found: set[int] = set()

    def check(mark: Mark) -> str:
        if mark.plan != plan:
            message = "An argument has the placeholder of another run."
            raise InvalidRequestError(message, code="held_result")
        if not 1 <= mark.number <= held:
            message = f"There is no held call #{mark.number} yet: this plan holds {held}."
            raise InvalidRequestError(message, code="held_result")
        found.add(mark.number)
        return " "

    if mentions(_replace_marks(arguments, check), plan):
        raise InvalidRequestError(_CHANGED, code="held_result")
    return frozenset(found)


def mentions(arguments: Json, plan: str) -> bool:
    stack = [arguments]
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            if WHOLE in value:
                return True
            stack += [*value, *value.values()]
        elif isinstance(value, list | tuple):
            stack += value
        elif isinstance(value, str) and (_TRACE.search(value) or plan in value.lower()):
            return True
    return False


def resolve(arguments: Mapping[str, Json], results: Mapping[int, CallResult]) -> dict[str, Json]:
    """Return arguments with results in place of placeholders."""
    left = MAX_RESOLVED

    def of(mark: Mark) -> Json:
        nonlocal left
        known = results.get(mark.number)
        if known is None:
            raise InvalidRequestError(f"The result of #{mark.number} is not known.")
        value = part(known, mark.path)
        left -= len(str(value))
        if left < 0:
            raise InvalidRequestError(
                "With the results of earlier calls, the arguments are longer than "
                f"{MAX_RESOLVED:,} characters."
            )
        return value

    resolved: dict[str, Json] = _replace_marks(arguments, of)
    return resolved


def readable(value: Json, names: Mapping[int, str]) -> Json:
    """Return checked arguments with labels in place of placeholders."""
    return _replace_marks(
        value, lambda mark: label(mark.number, names.get(mark.number, ""), mark.path)
    )


def add_labels(value: Json, plan: str, names: Mapping[int, str], depth: int = 0) -> Json:
    def replace_mark(match: re.Match[str]) -> str:
        mark = _read(match)
        known = mark is not None and mark.plan == plan and mark.number in names
        return label(mark.number, names[mark.number], mark.path) if mark and known else match[0]

    if isinstance(value, str):
        return _QUOTED.sub(replace_mark, value)
    if depth > 200:
        return value
    if isinstance(value, list):
        return [add_labels(item, plan, names, depth + 1) for item in value]
    if isinstance(value, dict):
        if value.keys() == {WHOLE}:
            return add_labels(value[WHOLE], plan, names, depth + 1)
        return {
            _QUOTED.sub(replace_mark, key): add_labels(item, plan, names, depth + 1)
            for key, item in value.items()
        }
    return value


def part(known: CallResult, path: Sequence[Step]) -> Json:
    blocks = known.shape.get("blocks")
    value: Json = [*map(_plain, blocks)] if isinstance(blocks, list) else _plain(known.shape)
    for place, step in enumerate(path):
        if value is _BINARY:
            break
        if isinstance(value, Mapping):
            fits, instead = type(step) is str and step in value, _keys(value)
        elif isinstance(value, list):
            fits = type(step) is int and -len(value) <= step < len(value)
            instead = f"is a list of {len(value)} items"
        else:
            fits, instead = False, f"is {_NAMES[type(value)]}"
        if not fits:
            what = f"its {shown_path(path[:place])}" if place else "it"
            missed = shown_path(path[: place + 1])
            message = f"The result of {known.call} has no {missed}: {what} {instead}."
            raise InvalidRequestError(message)
        value = value[step]
    if value is _BINARY or (isinstance(value, list) and _BINARY in value):
        message = f"The result of {known.call} is binary, which cannot be passed on in a plan."
        raise InvalidRequestError(message)
    return value


def shown(call: CallFacts, names: Mapping[int, str], mask: Mask) -> tuple[dict[str, Json], bool]:
    """Return a call's arguments for a reader, without secrets, and whether they are cut.

    All calls of the plan, which have these `names`, share the room.
    """
    characters = max(64, min(8_000, 64 * 1024 // max(1, len(names))))
    masked = mask(readable(call.arguments, names), call.schema)
    if not isinstance(masked, Mapping):
        return {}, False
    if len(readable_json(masked)) <= characters:
        return dict(masked), False
    found: dict[str, Json] = {}
    for key, value in masked.items():
        if characters <= 0:
            found[distinct_key("…", found)] = f"({len(masked) - len(found):,} more keys)"
            break
        room = max(characters, 20)
        text = value if isinstance(value, str) else readable_json(value)
        found[distinct_key(cut_middle(key, room), found)] = (
            value if len(text) <= room else cut_middle(text, room)
        )
        characters -= min(len(key), room) + min(len(text), room)
    return found, True


def _replace_in_text(text: str, of: Callable[[Mark], Json]) -> str:
    parts: list[str] = []
    position = 0
    for match in _MARK.finditer(text):
        # A mark with a wrong checksum stays visible as text.
        if (mark := _read(match)) is not None:
            parts += [_check_plain(text[position : match.start()]), str(of(mark))]
            position = match.end()
    return "".join([*parts, _check_plain(text[position:])])


def _check_plain(text: str) -> str:
    if trace := _TRACE.search(text):
        why = _READ if trace[0].endswith("#") else _CHANGED
        raise InvalidRequestError(why, code="held_result")
    return text


def _read(match: re.Match[str]) -> Mark | None:
    if checksum(match["core"].lower()) != match["check"].lower():
        return None
    try:
        path = json.loads(bytes.fromhex(match["path"]).decode()) if match["path"] else []
    except (ValueError, RecursionError):
        return None
    if not isinstance(path, list) or not all(type(step) in (str, int) for step in path):
        return None
    return Mark(plan=match["plan"].lower(), number=int(match["number"]), path=tuple(path))


def _replace_marks(value: Json, of: Callable[[Mark], Json], depth: int = 0) -> Json:
    """Return arguments with each mark replaced. Refuse changed marks and marks in keys."""
    if depth > MAX_DEPTH:
        message = f"The arguments of a held call may be nested {MAX_DEPTH} levels deep."
        raise InvalidRequestError(message)
    if isinstance(value, str):
        return _replace_in_text(value, of)
    if isinstance(value, Mapping) and WHOLE in value:
        # An object with this key must be a placeholder.
        text = value[WHOLE]
        match = _MARK.fullmatch(text) if len(value) == 1 and isinstance(text, str) else None
        if match is None or (mark := _read(match)) is None:
            raise InvalidRequestError(_CHANGED, code="held_result")
        return of(mark)
    if isinstance(value, Mapping):
        if any(map(_TRACE.search, value)):
            raise InvalidRequestError(_KEY, code="held_result")
        return {key: _replace_marks(item, of, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_marks(item, of, depth + 1) for item in value]
    return value


_NAMES = {str: "a text", bool: "a boolean", int: "a number", float: "a number", type(None): "null"}

_BINARY = object()


def _plain(shape: Json) -> Json:
    return shape["json"] if isinstance(shape, Mapping) and "json" in shape else _BINARY


def _keys(value: Mapping[str, Json]) -> str:
    if not value:
        return "has no keys"
    named = ", ".join(cut_middle(str(key), 60) for key in list(value)[:20])
    more = f" and {len(value) - 20:,} more" if len(value) > 20 else ""
    return f"has the keys {named}{more}"


class HeldPlaceholder(dict[str, Json]):
    """The placeholder that a program gets for a held call."""


@dataclass(frozen=True, kw_only=True)
class HeldRequest:
    """A held call."""

    number: int
    call: CallFacts  # With placeholders, and with tokens for personal data.
    decision: Decision
    effect: Effect
    asked: frozenset[str]  # The rules that require a person's approval.
    digest: str  # Of the tool's definition; empty if the server lists no such tool.
    uses: frozenset[int]  # Numbers of the calls whose results it uses.
    flow: FlowState  # The calls before it, made or held.

    def __str__(self) -> str:
        return f"#{self.number} {self.call}"


class HeldCalls:
    """The held calls of one run in plan mode."""

    def __init__(self, mask: Mask = no_mask) -> None:
        self.plan = secrets.token_hex(8)  # In each placeholder of the run.
        self.spoiled = ""  # Why the plan is invalid.
        self._mask = mask
        self.requests: list[HeldRequest] = []
        self.characters = 0
        self._shown: tuple[HeldCall, ...] = ()
        self._changing: set[str] = set()
        self._stale: Counter[str] = Counter()

    @property
    def stale(self) -> str:
        """Counts of reads, by name, from servers for which an earlier call was held back."""
        parts = [f"{count:,} × {name}" for name, count in list(self._stale.items())[:5]]
        others = sum(list(self._stale.values())[5:])
        return ", ".join([*parts, f"{others:,} of other tools"] if others else parts)

    @property
    def count(self) -> int:
        return len(self.requests)

    def refers(self, arguments: Mapping[str, Json]) -> bool:
        return mentions(dict(arguments), self.plan)

    def add_labels(self, value: Json) -> Json:
        return add_labels(value, self.plan, self._names())

    def hold(
        self,
        call: CallFacts,
        decision: Decision,
        asks: Sequence[Decision] = (),  # All decisions, the policy's own first.
        flow: FlowState | None = None,  # The calls before it.
    ) -> HeldPlaceholder:
        """Hold a call back and return `{"held": {"plan": ..., "number": ..., "call": ...}}`.

        `decision` is the strictest decision on it.
        """
        uses = find_referred([call.tool, dict(call.arguments)], self.plan, self.count)
        size = len(json.dumps([call.tool, call.arguments], ensure_ascii=False))
        if self.count >= MAX_CALLS or self.characters + size > MAX_CHARACTERS:
            raise RefusedError(
                f"A plan holds {MAX_CALLS:,} calls at most, with {MAX_CHARACTERS:,} characters of "
                "JSON in their arguments.",
                remedy="Make a plan for each part of the work.",
                code="call_budget",
            )
        self.characters += size
        self._changing.add(call.server)
        number = self.count + 1
        rules = {ask.rule for ask in (decision, *asks) if ask.action == "ask"}
        before = FlowState()
        if flow is not None:
            before.absorb(flow)
        self.requests.append(
            HeldRequest(
                number=number,
                call=call,
                decision=decision,
                effect=asks[0].effect if asks else decision.effect,
                asked=frozenset(rules),
                digest="" if call.definition is None else tool_digests(call.definition).whole,
                uses=uses,
                flow=before,
            )
        )
        return HeldPlaceholder(held={"plan": self.plan, "number": number, "call": str(call)})

    def record_read(self, call: CallFacts) -> None:
        """Record a read: held calls to its server could have changed its result."""
        if call.server in self._changing:
            self._stale[str(call)[:256]] += 1

    def spoil(self, why: str) -> None:
        """Invalidate the plan, because the program got an error for one of its calls."""
        self.spoiled = self.spoiled or why

    def shown(self) -> tuple[HeldCall, ...]:
        """Return the calls for people and models. The first call is slow and needs a thread."""
        if len(self._shown) == self.count:
            return self._shown
        names = self._names()
        self._shown = tuple(self._held_call(request, names) for request in self.requests)
        return self._shown

    def _names(self) -> Mapping[int, str]:
        return {request.number: str(request.call) for request in self.requests}

    def _held_call(self, request: HeldRequest, names: Mapping[int, str]) -> HeldCall:
        call = request.call
        arguments, cut = shown(call, names, self._mask)
        return HeldCall(
            number=request.number,
            server=call.server,
            tool=call.tool,
            arguments=arguments,
            effect=request.effect,
            action=request.decision.action,
            rule=" and ".join(sorted(request.asked)) or request.decision.rule,
            unlisted=call.find_unlisted(arguments),
            cut=cut,
            digest=arguments_digest(readable(call.arguments, names)).removeprefix("sha256:"),
        )
