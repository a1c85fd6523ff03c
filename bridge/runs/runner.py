"""One run, from the request to its result: nine steps, each a call to the part that owns it.

A run of a session takes the same steps, in the session's sandbox. If the first sandbox was dead
before the program began, the runner starts the program in a second one.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TypeVar

import anyio

from bridge.callers.client import Client, RunCaller
from bridge.clock import Clock
from bridge.errors import NotStartedError
from bridge.gate.result_redaction import redact_outcome
from bridge.model import ApplyRequest, RunRequest, RunResult
from bridge.model.results import catch
from bridge.runs.admission import Admission
from bridge.runs.checks import add_findings, refusal_result
from bridge.runs.execution import Parts, Place, PreparedRun, execute
from bridge.runs.records import RunRecord, RunRecords
from bridge.sandbox.pool import RunQueue
from bridge.sessions import Sessions, Turn
from bridge.upstream.client_features import on_behalf_of

logger = logging.getLogger(__name__)

Request = TypeVar("Request", RunRequest, ApplyRequest)

OpenSandbox = Callable[[bool], AbstractAsyncContextManager[tuple[PreparedRun, Place]]]
"""A context that holds a run's sandbox; its argument asks for a new one after a dead one."""


class Runner:
    """Runs programs."""

    def __init__(
        self,
        parts: Parts,
        admission: Admission,
        queue: RunQueue,
        sessions: Sessions,
        records: RunRecords,
    ) -> None:
        self._parts = parts
        self._admission = admission
        self._queue = queue
        self._sessions = sessions
        self._records = records

    async def run(self, request: RunRequest, client: Client | None = None) -> RunResult:
        """Run a program and return its result.

        Args:
            client: The MCP client; it receives progress and answers the questions of servers.

        Raises:
            UsageError: The request is invalid, or names a server that does not exist.
            SandboxError: There is no sandbox, or it was lost.
            UpstreamError: A server that the program needs cannot be reached.
        """
        return await self.with_record(request, client, self._run)

    async def with_record(
        self,
        request: Request,
        client: Client | None,
        work: Callable[[Request, RunCaller, RunRecord], Awaitable[RunResult]],
    ) -> RunResult:
        """Do the work of a request, record it, and redact its result."""
        caller = RunCaller(client, Clock(), identified=request.is_identified)
        request = replace(request, run_id=request.run_id or uuid.uuid4().hex)
        async with self._records.recording(request) as record:
            result = await redact_outcome(
                with_progress(caller, work(request, caller, record)),
                self._parts.servers.secrets.redactor,
            )
            return record.ended(result)

    async def _run(self, request: RunRequest, caller: RunCaller, record: RunRecord) -> RunResult:
        """Take the nine steps."""
        await self._parts.servers.refresh()
        if not request.ends_session_only:
            await record.begin()
        # 1. Parse: check the request that `server/` made against the limits of this bridge.
        request, limits = await self._admission.parse(request)
        if request.ends_session_only:
            return await self._sessions.end_session(request)
        # 2. Read the program once: its syntax tree, the servers it names, the guard's findings.
        request, program = await self._admission.read(request, caller)
        # 3. Admit: the guard's mode, certain mistakes, skills; which servers the run may have.
        run = await self._admission.admit(request, limits, program, caller)
        if isinstance(run, RunResult):
            return run
        session: Turn | None = None
        result: RunResult | None = None
        async with self._place(run) as open_sandbox:
            for again in (False, True):
                try:
                    async with open_sandbox(again) as (run, place):
                        session = place.session
                        # 4. Prepare: the servers connect while the sandbox starts.
                        run, tools = await self._admission.connect(run)
                        # 5. Check the program against the tools as they are now.
                        run = await self._admission.check(run, tools)
                        if run.check.verdict.certain:
                            result = refusal_result(
                                run.run_id, run.program, run.check.verdict, limits
                            )
                        else:
                            # 6. Start: one `run` frame. 7. Serve its calls through the gate;
                            # collect what it writes. 8. Conclude: the verdict, the audit log's
                            # last record, the result.
                            result = await execute(self._parts, run, tools, place)
                    break
                except NotStartedError as error:
                    if again:
                        raise
                    logger.warning("the program is started again in a new sandbox: %s", error)
        # 9. Release: the sandbox is gone, or the session has kept it and saved its state.
        assert result is not None
        if session is not None:
            result = session.with_losses(result)
        return add_findings(result, run.program, run.check.verdict, caller.restarted)

    def _place(self, run: PreparedRun) -> AbstractAsyncContextManager[OpenSandbox]:
        return self._in_session(run) if run.request.session else self._in_own_sandbox(run)

    @asynccontextmanager
    async def _in_own_sandbox(self, run: PreparedRun) -> AsyncIterator[OpenSandbox]:
        packages = self._parts.packages
        async with self._queue.slot(run.request.owner, run.caller.report_queue) as keep:
            if run.request.may_need_packages:
                run = replace(run, packages=await packages.resolve(run.request, run.caller))
                if run.request.ends_bridge:
                    # The bridge ends with this run, so nothing can be compiled after it.
                    packages.compile_later(run.packages)
            reserve = partial(self._parts.sandboxes.reserve, binds=run.packages.binds)

            @asynccontextmanager
            async def open_sandbox(again: bool) -> AsyncIterator[tuple[PreparedRun, Place]]:
                async with reserve(run.limits, fresh=again, keep=keep) as sandbox:
                    yield run, Place(sandbox=sandbox, waited=not again)
                packages.compile_later(run.packages)

            yield open_sandbox

    @asynccontextmanager
    async def _in_session(self, run: PreparedRun) -> AsyncIterator[OpenSandbox]:
        async with self._sessions.queued(run.request, run.limits, run.caller) as queued:

            @asynccontextmanager
            async def open_sandbox(_: bool) -> AsyncIterator[tuple[PreparedRun, Place]]:
                async with queued.turn() as turn:
                    turn.check(run.request)
                    # For flow rules this run has read what the session's earlier runs read.
                    gate = run.gate.in_session(turn.flow)
                    place = Place(sandbox=turn.sandbox, waited=turn.waited, session=turn)
                    # The turn comes first: a run with a slot never waits for its session.
                    async with self._queue.slot(run.request.owner, run.caller.report_queue):
                        yield replace(run, gate=gate, packages=turn.packages), place
                    self._parts.packages.compile_later(turn.packages)

            yield open_sandbox


async def with_progress(caller: RunCaller, work: Awaitable[RunResult]) -> RunResult:
    """Await the work of a run while its client receives progress."""
    with on_behalf_of(caller):
        if not (caller.is_followed or caller.is_shown):
            # A task for progress would cost a tenth of a millisecond.
            outcome = await catch(work)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(caller.tick)
                outcome = await catch(work)
                tasks.cancel_scope.cancel()
            await caller.conclude()
    if isinstance(outcome, RunResult):
        return outcome
    raise outcome
