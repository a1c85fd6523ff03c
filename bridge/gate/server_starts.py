"""Decides on the start of servers, or connections to them, and records the decisions.

An approval applies to a server's definition, not to its name.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import anyio

from bridge.errors import (
    ApprovalNeededError,
    ApprovalRefusedError,
    CallDeniedError,
    CannotAskError,
    RefusedError,
)
from bridge.gate.approval import DO_NOT_EVADE, Approval, Ask
from bridge.gate.audit.log import AuditLog, Record, without_empty
from bridge.gate.pins import Pins
from bridge.gate.policy import REDEFINED, Decision, Policy
from bridge.gate.question import because, read_answer, safe_name, start_question, was_asked
from bridge.model import ServerSpec


@dataclass(kw_only=True)
class StartApprover:
    """Asks about the starts of servers in one run."""

    run: str
    ask: Ask
    for_all: bool = False  # Whether the person may approve for all runs.
    # Names and definitions that the person refused, or approved for this run.
    refused: set[tuple[str, str]] = field(default_factory=set)
    given: dict[tuple[str, str], Approval] = field(default_factory=dict)
    turn: anyio.Lock = field(default_factory=anyio.Lock)  # Held during a question.


@dataclass(eq=False)
class Starts:
    """Decides on starts, asks about them, and records them."""

    policy: Callable[[], Policy]  # Raises `SettingsError`.
    audit: AuditLog
    pins: Pins
    asker: Callable[[], StartApprover | None] = lambda: None  # Returns None outside of runs.
    _recorded: OrderedDict[tuple[str, ...], None] = field(default_factory=OrderedDict, init=False)

    def decide(self, spec: ServerSpec) -> Decision:
        policy = self.policy()
        decision = policy.start(spec.name)
        if decision.action == "ask" and self.pins.is_approved(spec.name, spec.definition):
            decision = Decision(action="allow", rule=decision.rule, reason="a person allowed it")
        if decision.action == "deny" or not (policy.spec.present and policy.spec.pin):
            return decision
        change = self.pins.server_change(spec.name, spec.definition)
        # The question must name the change, even if the policy asks about every start.
        return Decision(action="ask", rule=REDEFINED, reason=change) if change else decision

    async def permit(self, spec: ServerSpec) -> None:
        """Get a person's approval for the next start, if it needs one."""
        decision = await self._check_denial(spec)
        if decision.action == "allow":
            return
        asker = self.asker()
        if asker is None:
            why = "No one is asked about servers that no program names."
            raise await self._approval_needed(spec, decision, why)
        if _key(spec) in asker.given:
            return
        async with asker.turn:
            await self._ask(spec, decision, asker)

    async def start(self, spec: ServerSpec, *, asked_for: bool = False) -> None:
        """Decide on the next start and record it. If this raises, the server must not start.

        A command of a person is `asked_for` and needs no further approval.
        """
        decision = await self._check_denial(spec)
        asker = self.asker()
        approval = None if asker is None else asker.given.pop(_key(spec), None)
        if decision.action == "ask" and asked_for and decision.rule != REDEFINED:
            approval = Approval()
        if decision.action == "ask" and approval is None:
            raise await self._approval_needed(spec, decision)
        policy = self.policy()
        if policy.spec.present and policy.spec.pin and approval is None:
            await self.pins.keep_server(spec.name, spec.definition)
            # Another bridge may have stored another definition first.
            if change := self.pins.server_change(spec.name, spec.definition):
                decision = Decision(action="ask", rule=REDEFINED, reason=change)
                raise await self._approval_needed(spec, decision)
        await self._record(spec, decision, approval)

    async def _check_denial(self, spec: ServerSpec) -> Decision:
        await self.pins.refresh()
        decision = self.decide(spec)
        if decision.action != "deny":
            return decision
        message = f"The server {safe_name(spec.name)} is not started: denied by the policy"
        error = CallDeniedError(f"{message} ({because(decision)}).")
        raise await self._record_refusal(spec, decision, error)

    async def approve(self, spec: ServerSpec, how: Literal["client", "terminal"]) -> None:
        """Record and store a person's permanent approval of a definition."""
        await self.audit.append(approved_record(spec, how, "always", self._run))
        await self.pins.keep_server(spec.name, spec.definition, always=True)

    @property
    def _run(self) -> str:
        asker = self.asker()
        return "" if asker is None else asker.run

    async def _ask(self, spec: ServerSpec, decision: Decision, asker: StartApprover) -> None:
        if _key(spec) in asker.refused:
            message = f"A person did not allow {safe_name(spec.name)} to start earlier in this run."
            raise ApprovalRefusedError(message, remedy=DO_NOT_EVADE)
        choices = ["once", "always"] if asker.for_all else ["once"]
        question = start_question(spec, decision, choices)
        try:
            if question is None:
                raise CannotAskError("Its definition is too long for a question.")
            answer = await asker.ask(question)
        except CannotAskError as error:
            raise await self._approval_needed(spec, decision, error.why) from None
        said = read_answer(answer, choices, "once")
        if said == "always":
            await self.approve(spec, "client")
        if said in choices:
            asker.given[_key(spec)] = Approval(holds="always" if said == "always" else "call")
        else:
            asker.refused.add(_key(spec))
            message = was_asked(f"{safe_name(spec.name)} may start ({because(decision)})", said)
            refusal = ApprovalRefusedError(message, remedy=f"It was not started. {DO_NOT_EVADE}")
            raise await self._record_refusal(spec, decision, refusal)

    async def _record_refusal(
        self, spec: ServerSpec, decision: Decision, error: RefusedError
    ) -> RefusedError:
        """Record a refused start, once for each run and reason, and return the reason."""
        key = (*_key(spec), decision.rule, error.code, self._run)
        if key not in self._recorded:
            self._recorded[key] = None
            if len(self._recorded) > 1000:  # A model may search any number of times.
                self._recorded.popitem(last=False)
            await self._record(spec, decision, why=error.code)
        return error

    async def _approval_needed(
        self, spec: ServerSpec, decision: Decision, why: str = ""
    ) -> ApprovalNeededError:
        name = safe_name(spec.name)
        message = f"The server {name} is not started: that needs a person's approval"
        message = f"{message} ({because(decision)}). {why}".rstrip()
        remedy = f"Only the user can allow it: they run `mcp-code-bridge servers approve {name}`."
        error = ApprovalNeededError(message, remedy=remedy)
        await self._record_refusal(spec, decision, error)
        return error

    async def _record(
        self, spec: ServerSpec, decision: Decision, approval: Approval | None = None, why: str = ""
    ) -> None:
        record = {
            "kind": "start",
            "server": spec.name,
            "definition": spec.definition,
            "transport": spec.transport,
            "decision": decision.action,
            "rule": decision.rule,
            "run": self._run,
            "reason": decision.reason,
            "approval": approval and approval.fields,
            "why": why,
        }
        await self.audit.append(without_empty(record))


def approved_record(
    spec: ServerSpec, how: Literal["client", "terminal"], holds: str, run: str = ""
) -> Record:
    """Return the record of a person's approval of a server's definition."""
    found = {"kind": "approved", "server": spec.name, "definition": spec.definition, "run": run}
    return without_empty({**found, "file": spec.source.path, "how": how, "holds": holds})


def _key(spec: ServerSpec) -> tuple[str, str]:
    return spec.name, spec.definition
