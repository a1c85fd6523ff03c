"""One run, from the request to its result: nine steps, each a call to the part that owns it.

A session's run takes the same steps, in a sandbox that stays. Owns their order, and nothing else.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable
from dataclasses import replace

import anyio

from bridge.callers.client import Client, RunCaller
from bridge.clock import Clock
from bridge.gate.result_redaction import cleared
from bridge.model import ApplyRequest, RunRequest, RunResult
from bridge.model.outcome import caught
from bridge.runs.admission import Admission
from bridge.runs.checks import add_findings, refused
from bridge.runs.execution import Executions
from bridge.runs.places import Place, Places
from bridge.runs.prepared_run import PreparedRun
from bridge.runs.records import RunRecord, RunRecords
from bridge.servers.servers import Servers
from bridge.upstream.client_features import on_behalf_of


class Runner:
    """Runs programs."""

    def __init__(
        self,
        servers: Servers,
        admission: Admission,
        places: Places,
        executions: Executions,
        records: RunRecords,
    ) -> None:
        self._servers = servers
        self._admission = admission
        self._places = places
        self._executions = executions
        self._records = records

    async def run(self, request: RunRequest, client: Client | None = None) -> RunResult:
        """Run a program and return its result.

        Args:
            client: Who asked for it: hears of its progress, and answers what servers ask.

        Raises:
            UsageError: The request is unusable, or names a server that does not exist.
            SandboxError: There is no sandbox, or it was lost.
            UpstreamError: A server that the program needs cannot be reached.
        """
        caller = caller_of(request, client)
        request = replace(request, run_id=request.run_id or uuid.uuid4().hex)
        async with self._records.recording(request) as record:
            work = attended(caller, self._run(request, caller, record))
            return record.ended(await cleared(work, self._servers.secrets.redactor))

    async def _run(self, request: RunRequest, caller: RunCaller, record: RunRecord) -> RunResult:
        """Take the nine steps; what is certainly wrong ends before the sandbox is used."""
        await self._servers.refresh()
        if not request.ends_session_only:
            await record.begin()
        # 1. Parse: `server/` made the request; here it is held against this bridge's limits.
        request, limits = await self._admission.parse(request)
        if request.ends_session_only:
            return await self._places.end_session(request)
        # 2. Read the program once: its syntax tree, the servers it names, the guard's findings.
        request, program = await self._admission.read(request, caller)
        # 3. Admit: the guard's mode, certain mistakes, skills; which servers the run may have.
        run = await self._admission.admit(request, limits, program, caller)
        if isinstance(run, RunResult):
            return run
        verdict = run.check.verdict

        async def in_place(run: PreparedRun, place: Place) -> RunResult:
            nonlocal program, verdict
            # 4. Prepare: the servers connect while the sandbox starts.
            run, tools = await self._admission.connect(run)
            # 5. Check the program against the tools as they are now.
            run = await self._admission.check(run, tools)
            program, verdict = run.program, run.check.verdict
            if verdict.certain:
                return refused(run.run_id, program, verdict, limits.timeout)
            # 6. Start: one `run` frame.
            async with self._executions.start(run, tools, place) as execution:
                # 7. Serve its calls through the gate; collect what it writes.
                facts = await execution.serve()
                # 8. Conclude: the verdict, the result, the audit log's last record.
                await execution.conclude(facts)
            return await execution.result()

        # 9. Release: the place ends its sandbox, or the session keeps it.
        result = await self._places.run(run, in_place)
        return add_findings(result, program, verdict, caller.restarted)


def caller_of(request: RunRequest | ApplyRequest, client: Client | None) -> RunCaller:
    """Return who asked for a run, for as long as it goes on."""
    return RunCaller(client, Clock(), identified=request.is_identified)


async def attended(caller: RunCaller, work: Awaitable[RunResult]) -> RunResult:
    """Do a run's work while its client hears of its progress."""
    with on_behalf_of(caller):
        if not (caller.is_followed or caller.is_shown):
            # Without a task for progress, whose start and end take a tenth of a millisecond.
            outcome = await caught(work)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(caller.tick)
                outcome = await caught(work)
                tasks.cancel_scope.cancel()
            await caller.conclude()
    if isinstance(outcome, RunResult):
        return outcome
    raise outcome
