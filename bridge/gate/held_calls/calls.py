"""The calls that a run in plan mode holds back.

Owns what is kept of a held call: its arguments, the decisions on it, its tool's definition, and
what had been read before it. Makes no call. Plans that are kept are `bridge.plans.plan_store`'s.
"""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bridge.errors import CallBudgetError
from bridge.gate.canonical import arguments_digest
from bridge.gate.decision import CallFacts, Decision, Mask, unmasked
from bridge.gate.flow import FlowState
from bridge.gate.held_calls.placeholders import labelled, mentions, readable, referred, shown
from bridge.gate.pins import whole_digest
from bridge.model import Effect, HeldCall, Json

# A program can hold back calls without end.
MAX_CALLS = 1_000  # In one plan: as many as a person can approve in a list.
MAX_CHARACTERS = 8 * 1024 * 1024  # Of all their arguments, as JSON.


class HeldPlaceholder(dict[str, Json]):
    """The wire shape of a placeholder, which a program gets for a call that is held back."""


@dataclass(frozen=True, kw_only=True)
class HeldRequest:
    """One held call.

    Attributes:
        call: With placeholders, and tokens in place of personal data, in its arguments.
        decision: The strictest.
        effect: What the policy takes it to do.
        asked: The rules that want a person's approval of it.
        digest: Of its tool's definition; empty if its server lists no such tool.
        uses: Numbers of the calls whose results it is made with.
        flow: What had been called, and held, before it.
    """

    number: int
    call: CallFacts
    decision: Decision
    effect: Effect
    asked: frozenset[str]
    digest: str
    uses: frozenset[int]
    flow: FlowState

    def __str__(self) -> str:
        return f"#{self.number} {self.call}"


class HeldCalls:
    """The calls that one run in plan mode holds back.

    Attributes:
        plan: Random digits that mark the run's placeholders.
        spoiled: Why the plan must not be applied; empty if it may.
        requests: The calls, in their order.
        characters: Of all their arguments, as JSON.

    Args:
        mask: Takes secrets out of arguments.
    """

    def __init__(self, mask: Mask = unmasked) -> None:
        self.plan = secrets.token_hex(8)
        self.spoiled = ""
        self._mask = mask
        self.requests: list[HeldRequest] = []
        self.characters = 0
        self._shown: tuple[HeldCall, ...] = ()
        self._changing: set[str] = set()
        self._stale: Counter[str] = Counter()

    @property
    def stale(self) -> str:
        """Names and counts of the reads from servers for which a call was already held back."""
        parts = [f"{count:,} × {name}" for name, count in list(self._stale.items())[:5]]
        others = sum(list(self._stale.values())[5:])
        return ", ".join([*parts, f"{others:,} of other tools"] if others else parts)

    @property
    def count(self) -> int:
        return len(self.requests)

    def refers(self, arguments: Mapping[str, Json]) -> bool:
        """Return whether arguments hold a placeholder, of any run, whole or changed."""
        return mentions(dict(arguments), self.plan)

    def labelled(self, value: Json) -> Json:
        """Return what the program wrote, with labels in place of placeholders."""
        return labelled(value, self.plan, self._names())

    def hold(
        self,
        call: CallFacts,
        decision: Decision,
        asks: Sequence[Decision] = (),
        flow: FlowState | None = None,
    ) -> HeldPlaceholder:
        """Hold a call back and return `{"held": {"plan": ..., "number": ..., "call": ...}}`.

        Args:
            asks: Every decision on it, the policy's own first; `decision` is the strictest.
            flow: The calls before it; copied.

        Raises:
            CallBudgetError: The plan holds all that it may.
            InvalidRequestError: The arguments are nested too deep.
            InvalidRequestError: An argument holds a placeholder that the program has changed.
        """
        uses = referred([call.tool, dict(call.arguments)], self.plan, self.count)
        size = len(json.dumps([call.tool, call.arguments], ensure_ascii=False))
        if self.count >= MAX_CALLS or self.characters + size > MAX_CHARACTERS:
            raise CallBudgetError(
                f"A plan holds {MAX_CALLS:,} calls at most, with {MAX_CHARACTERS:,} characters of "
                "JSON in their arguments.",
                remedy="Make a plan for each part of the work.",
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
                digest="" if call.definition is None else whole_digest(call.definition),
                uses=uses,
                flow=before,
            )
        )
        return HeldPlaceholder(held={"plan": self.plan, "number": number, "call": str(call)})

    def reading(self, call: CallFacts) -> None:
        """Record a call that reads: held calls to its server might have changed what it finds."""
        if call.server in self._changing:
            self._stale[str(call)[:256]] += 1

    def spoil(self, why: str) -> None:
        """Forbid applying the plan: the program got an error for one of its calls."""
        self.spoiled = self.spoiled or why

    def shown(self) -> tuple[HeldCall, ...]:
        """Return the calls for people and models; slow the first time, so call it in a thread."""
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
            unlisted=call.unlisted(arguments),
            cut=cut,
            digest=arguments_digest(readable(call.arguments, names)).removeprefix("sha256:"),
        )
