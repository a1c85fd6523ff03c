"""The parts that judge and record the calls of one run.

Owns which parts there are, and the defaults: no policy, no person to ask, nothing recorded.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.gate.approval import Approver
from bridge.gate.audit import RunAudit
from bridge.gate.budget import RunBudget
from bridge.gate.flow import Flow, FlowState
from bridge.gate.held_calls import HeldCalls
from bridge.gate.journal import Replay, RunJournal
from bridge.gate.marks import Marks
from bridge.gate.ongoing_calls import OngoingCalls
from bridge.gate.pins import Pins
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault
from bridge.model import Json, Tool

Define = Callable[[str, str], Awaitable[Tool | None]]
"""Returns the definition of a server's tool, and asks the server for it if need be."""


async def undefined(server: str, tool: str) -> Tool | None:
    """Return None: no tool is known."""
    return None


@dataclass(frozen=True, kw_only=True)
class GateContext:
    """The parts that judge and record the calls of one run.

    Attributes:
        identify: Returns the digest of a server's definition as it is now.
        is_own: Returns whether a file of the user's, not of a project, defines a server.
        lists: Returns whether the list of a server's tools is known.
        now: The run's time in seconds, which stops while a person is asked.
        flow_state: What was called so far; in a session, also by its earlier runs.
        replay: The recorded calls that a retry need not repeat; None if the run is none.
        held_calls: Holds calls back for a plan; None unless the run is in plan mode.
    """

    define: Define = undefined
    identify: Callable[[str], str] = lambda server: ""
    is_own: Callable[[str], bool] = lambda server: False
    lists: Callable[[str], bool] = lambda server: False
    now: Callable[[], float] = time.monotonic
    policy: Policy = field(default_factory=Policy)
    flow: Flow = field(default_factory=Flow)
    flow_state: FlowState = field(default_factory=FlowState)
    budget: RunBudget = field(default_factory=RunBudget)
    pins: Pins = field(default_factory=Pins)
    approver: Approver = field(default_factory=Approver)
    audit: RunAudit = field(default_factory=RunAudit)
    journal: RunJournal = field(default_factory=RunJournal)
    marks: Marks = field(default_factory=Marks)
    vault: Vault = field(default_factory=Vault)
    ongoing_calls: OngoingCalls = field(default_factory=OngoingCalls)
    replay: Replay | None = None
    held_calls: HeldCalls | None = None

    async def send(
        self, call: Callable[[], Awaitable[dict[str, Json]]], server: str, labels: frozenset[str]
    ) -> dict[str, Json]:
        """Make a call; called off, it is cancelled unless a flow rule would stop it now."""
        if not self.flow.judges(server, labels):
            return await call()
        return await self.ongoing_calls.finish(
            call, lambda: self.flow.decide(self.flow_state, server, labels) is None
        )
