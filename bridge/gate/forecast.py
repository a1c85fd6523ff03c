"""What a policy would decide about calls that are not fully known yet. Pure.

Owns the two questions that a program raises before it runs: which decisions a call may come to,
when some of its arguments only show while it runs; and which flow rules its other calls may bring
into play. What is decided then is `bridge.gate.pipeline`'s, as ever.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import Flow, FlowState
from bridge.gate.policy import Policy
from bridge.model import Effect
from bridge.settings.policy import Rule


@dataclass(frozen=True, kw_only=True)
class Possibility:
    """A decision that arguments which are not seen could lead to.

    Attributes:
        on: The arguments that it takes, as the rule's conditions name them.
    """

    decision: Decision
    on: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The forecast for one call.

    Attributes:
        decision: What is decided if none of `possible` comes true.
        possible: In the order of their rules.
    """

    decision: Decision
    possible: tuple[Possibility, ...] = ()

    @property
    def every(self) -> tuple[Decision, ...]:
        return (self.decision, *(found.decision for found in self.possible))


def outlook(
    policy: Policy,
    call: CallFacts,
    *,
    unseen: Collection[str] = (),
    open: bool = False,
    effect: Effect | None = None,
) -> Outlook:
    """Return what a policy may say of a call.

    Args:
        unseen: Names of arguments that it has and that are not among `call.arguments`.
        open: Whether it may have arguments of other names as well.
        effect: As for `Policy.decide`.
    """
    spec = policy.spec
    doubtful = [
        tuple(
            condition
            for condition in rule.when
            if open or (unseen if condition.path[0] == "*" else condition.path[0] in unseen)
        )
        for rule in spec.rules
    ]
    if not any(doubtful):
        return Outlook(decision=policy.decide(call, effect))
    certain = [rule for rule, doubts in zip(spec.rules, doubtful, strict=True) if not doubts]
    base = Policy(replace(spec, rules=tuple(certain))).decide(call, effect)
    possible: list[Possibility] = []
    before: list[Rule] = []
    for rule, doubts in zip(spec.rules, doubtful, strict=True):
        if not doubts:
            before.append(rule)
            continue
        # As if what is not seen were as the rule wants it, and the rules before it did not match.
        kept = tuple(condition for condition in rule.when if condition not in doubts)
        supposed = replace(rule, name=_SUPPOSED, when=kept)
        found = Policy(replace(spec, rules=(*before, supposed))).decide(call, effect)
        if _SUPPOSED in found.rule:
            decision = replace(found, rule=f"rule '{rule.name}'")
            on = dict.fromkeys(".".join(condition.path) for condition in doubts)
            possible.append(Possibility(decision=decision, on=tuple(on)))
    return Outlook(decision=base, possible=tuple(possible))


_SUPPOSED = "(supposed to match)"  # What a rule is called while it is tried.


def flow_decision(
    flow: Flow,
    call: CallFacts,
    labels: frozenset[str],
    before: Sequence[tuple[CallFacts, frozenset[str]]],
) -> Decision | None:
    """Return what the flow rules say of a call if all those others were made before it."""
    state = FlowState()
    for earlier, its in before:
        state.add_call(earlier.server, earlier.tool, its)
    return flow.decide(state, call.server, labels)
