"""The parts that judge and record the calls of one run.

Owns which parts there are, and the defaults: no policy, no person to ask, nothing recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from bridge.gate.approval import Approver
from bridge.gate.audit import RunAudit
from bridge.gate.budget import RunBudget
from bridge.gate.flow import Flow, FlowState
from bridge.gate.held_calls import HeldCalls
from bridge.gate.journal import Replay, RunJournal
from bridge.gate.marks import Marks
from bridge.gate.pins import Pins
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault
from bridge.model import Json, Tool
from bridge.tasks import background_tasks

Result = TypeVar("Result")

Define = Callable[[str, str], Awaitable[Tool | None]]
"""Returns the definition of a server's tool, and asks the server for it if need be."""


async def undefined(server: str, tool: str) -> Tool | None:
    return None


class OngoingCalls:
    """The calls that outlive who waits for them; use `open` around all of them.

    A server notices which of its calls are cancelled, and when. After a program has read what a
    flow rule keeps from that server, these are messages that no rule judges. So the program stops
    waiting, and the call runs to its end or its time limit.
    """

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Take calls while this is open; leaving cancels what is left."""
        async with background_tasks() as self._tasks:
            yield

    async def finish(
        self, call: Callable[[], Awaitable[Result]], may_cancel: Callable[[], bool]
    ) -> Result:
        """Return a call's result.

        Args:
            may_cancel: Asked when the waiting is cancelled: whether the call is cancelled, too.
        """
        if self._tasks is None:
            return await call()
        answer: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        scope, ended = anyio.CancelScope(), anyio.Event()

        async def run() -> None:
            try:
                with scope:
                    result = await call()
                    if not answer.done():
                        answer.set_result(result)
            except Exception as error:
                if not answer.done():
                    answer.set_exception(error)
            finally:
                # Of a call that was cancelled from elsewhere no one shall wait.
                answer.cancel()
                ended.set()

        self._tasks.start_soon(run)
        try:
            return await answer
        except anyio.get_cancelled_exc_class():
            if answer.done() and not answer.cancelled():
                answer.exception()  # or asyncio says that no one has taken it
            if may_cancel():
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await ended.wait()
            raise


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
