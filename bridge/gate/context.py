"""What watches over the calls of one run: everything that a gate asks before and tells after.

Owns what the parts are together, and what a run is left with where nobody set them up: no policy,
no person to ask, nothing recorded.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from bridge.gate.approval import Approver
from bridge.gate.audit import RunAudit
from bridge.gate.budget import RunBudget
from bridge.gate.flow import Flow, FlowState
from bridge.gate.journal import Replay, RunJournal
from bridge.gate.pins import Pins
from bridge.gate.plans import Holding
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault
from bridge.model import Tool

Define = Callable[[str, str], Awaitable[Tool | None]]
"""Server and tool to the tool's definition, asking the server for it if need be."""


async def undefined(server: str, tool: str) -> Tool | None:
    """Know no tool."""
    return None


@dataclass(frozen=True, kw_only=True)
class GateContext:
    """What one run's calls go through.

    Attributes:
        identify: Returns the digest of a server's definition as it is now.
        lists: Whether it is known which tools a server has.
        now: The run's time in seconds, which stands still while somebody is asked something.
        flow_state: What was called so far; a session's own where there is one.
        replay: What a retry need not call again; None if the run is none.
        holding: What a plan holds back; None if the run is none.
    """

    define: Define = undefined
    identify: Callable[[str], str] = lambda server: ""
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
    vault: Vault = field(default_factory=Vault)
    replay: Replay | None = None
    holding: Holding | None = None
