"""A scripted hostile guest and a difficult server around the real host side of a program.

The channel, the dispatcher, `Program`, `GuestRequests` and the gate are real. The sandbox and the
pool of servers are fakes.
"""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from bridge.errors import BridgeError, ChannelClosedError, ToolCallError, UpstreamError
from bridge.gate.pipeline import Gate, Grant
from bridge.guest.protocol.wire import Reply, Stop, decode_host_frame
from bridge.inventory.guide import GuestGuide
from bridge.inventory.inventory import ToolCache
from bridge.inventory.servers import Servers
from bridge.model import Isolation, Json, Limits, RunResult, ServerSpec, Source, Tool
from bridge.model.runs import catch
from bridge.rpc.channel import Channel
from bridge.runs.guest_requests import GuestRequests
from bridge.runs.program import Program, ProgramEnd, ReadySandbox
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.failure import classify
from bridge.settings import load
from bridge.store import Store
from bridge.upstream.pool import Pool
from tests.engine_rig import ListFinder
from tests.fuzz.clock import loop

GRANT = Grant(servers=frozenset(("alpha",)), calls=12)

LIMITS = Limits(
    timeout=10, output_bytes=2000, result_bytes=1000, frame_bytes=4000, concurrent_calls=3
)

ANSWERS: Sequence[Mapping[str, Json]] = (
    {"content": [{"type": "text", "text": "fine"}]},
    {"content": [{"type": "text", "text": '{"a": 1e999}'}]},
    {"structuredContent": {"a": math.nan}},
    {"structuredContent": {"a": -math.inf}, "content": [{"type": "text", "text": "x"}]},
    {"structuredContent": "\ud800", "content": [{"type": "text", "text": "\udfff"}]},
    {"content": [{"type": "text", "text": "é" * 10_000}]},
    {"content": [{"type": "text", "text": "\\" * 3000}]},
    {"content": None},
    {"content": [None, 7, {"type": 7}, {"type": "resource", "resource": None}]},
    {"isError": True},
    {"isError": True, "content": "x", "structuredContent": {"a": math.nan}},
    {"isError": True, "content": [{"type": "text", "text": "x" * 50_000}]},
    {},
)


def _server(name: str) -> ServerSpec:
    source = Source(client="t", scope="user", path="/t", key="")
    return ServerSpec(name=name, transport="stdio", source=source, command="none")


class DifficultPool(Pool):
    """A pool whose tools behave as their names say, and which counts calls."""

    def __init__(self) -> None:
        super().__init__((), log_dir=Path("/nonexistent"), environ={})
        self.asked: list[str] = []
        self.running = 0
        self.most = 0
        self.release = anyio.Event()

    async def tools(self, server: str, **how: bool) -> tuple[Tool, ...]:
        await anyio.lowlevel.checkpoint()
        raise UpstreamError("gone", server=server, code="server_lost")

    async def call_tool(
        self, server: str, tool: str, arguments: Mapping[str, Json], **options: Any
    ) -> dict[str, Json]:
        self.asked.append(server)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await anyio.lowlevel.checkpoint()
            if tool == "hang":
                await anyio.sleep_forever()
            if tool == "late":
                await self.release.wait()
            if tool == "stubborn":
                # Cancellation takes effect late, as during a write to a server.
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1)
        finally:
            self.running -= 1
        if tool == "fail":
            raise ToolCallError("no " * 3000, server=server, rpc_code=-1, data=[math.nan])
        if tool == "defect":
            raise KeyError(tool)
        number = arguments.get("n", 0)
        return dict(ANSWERS[number % len(ANSWERS) if isinstance(number, int) else 0])


@dataclass
class HostileSandbox:
    """Says what the script says, and reads when the script lets it."""

    id: str = "hostile"
    isolation: Isolation = field(default_factory=lambda: Isolation(backend="none"))
    sent: bytearray = field(default_factory=bytearray)
    reads: bool = True
    broken: bool = False
    mute: bool = False
    killed: bool = False
    _portions: deque[bytes] = field(default_factory=deque)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def change(self, *portions: bytes, **flags: bool) -> None:
        self._portions.extend(portions)
        for name, value in flags.items():
            setattr(self, name, value)
        self._changed.set()
        self._changed = anyio.Event()

    async def send(self, data: bytes) -> None:
        await anyio.lowlevel.checkpoint()
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            if self.broken:
                raise ChannelClosedError("broken")
            self.sent += part
            # A pipe accepts the first bytes, whether or not they are read.
            while not self.reads and not self.broken:
                await self._changed.wait()
            await anyio.lowlevel.checkpoint()

    def end_input(self) -> None:
        """Let its input end."""

    async def end_output(self) -> None:
        await self.kill()

    async def receive(self) -> bytes:
        await anyio.lowlevel.checkpoint()
        while not self._portions:
            if self.broken:
                raise ChannelClosedError("broken")
            await self._changed.wait()
        if not self._portions[0]:
            return b""
        return self._portions.popleft()

    def diagnostics(self) -> str:
        return "said nothing"

    async def kill(self) -> None:
        self.killed = True
        await anyio.lowlevel.checkpoint()

    async def wait(self) -> ExitReport:
        if self.mute:
            await anyio.sleep_forever()
        await anyio.lowlevel.checkpoint()
        if self.broken:
            raise ChannelClosedError("broken")
        return ExitReport(exit_code=0)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One event: the guest's bytes, the sandbox's flags, the passed seconds, a cancellation.

    `settles`: all tasks wait before the next step.
    """

    says: bytes = b""
    flags: Mapping[str, bool] = field(default_factory=dict)
    ends: bool = False
    releases: bool = False
    cancels: bool = False
    passes: float = 0.0
    settles: bool = True


class Play:
    """One run, from the script's first step to the run's end."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self.facts: ProgramEnd | None = None
        self.outcome: RunResult | BridgeError | None = None
        self.pool, self.sandbox = DifficultPool(), HostileSandbox()
        self.calls = 0
        self.tasks_left: list[str] = []

    async def play(self) -> Play:
        pool, sandbox = self.pool, self.sandbox
        settings = load({}, {"HOME": "/nonexistent"})
        finder = ListFinder(_server("alpha"), _server("beta"))
        async with Servers(finder, pool, ToolCache(Store(Path("/nonexistent")))) as servers:
            gate = Gate(GRANT, pool.call_tool)
            questions = GuestRequests(servers, GuestGuide(servers, settings), gate)
            session = ReadySandbox(
                sandbox=sandbox, channel=Channel(sandbox), facts={}, isolation=sandbox.isolation
            )
            await loop().idle()
            before = {task.id for task in anyio.get_running_tasks()}
            # The engine does this once, before its first run.
            await servers.load_unknown(())
            while not {task.id for task in anyio.get_running_tasks()} <= before:
                await anyio.lowlevel.checkpoint()  # in a thread: no time passes meanwhile
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run, Program(session, questions.handle, LIMITS))
                for step in self._steps:
                    await self._perform(step, sandbox, pool, tasks.cancel_scope)
            await loop().idle()
            self.calls = gate.calls
            tasks_now = anyio.get_running_tasks()
            self.tasks_left = [str(task) for task in tasks_now if task.id not in before]
            return self

    async def _run(self, program: Program) -> None:
        self.outcome = await catch(self._result(program))

    async def _result(self, program: Program) -> RunResult:
        self.facts = await program.finish()
        verdict = classify(self.facts.ending, LIMITS)
        how = {"status": verdict.status, "summary": verdict.summary, "reason": verdict.reason}
        return RunResult(run_id="", timeout_seconds=LIMITS.timeout, **how)  # type: ignore[arg-type]

    async def _perform(
        self, step: Step, sandbox: HostileSandbox, pool: DifficultPool, run: anyio.CancelScope
    ) -> None:
        says = (step.says,) if step.says else ()
        sandbox.change(*says, *((b"",) if step.ends else ()), **step.flags)
        if step.releases:
            pool.release.set()
            pool.release = anyio.Event()
        if step.cancels:
            run.cancel()
        if step.passes:
            loop().advance(step.passes)
        if step.settles:
            with anyio.CancelScope(shield=True):
                await loop().idle()


def replies(sent: bytes) -> tuple[Counter[int], bytes]:
    *lines, rest = sent.split(b"\n")
    counted: Counter[int] = Counter()
    for line in lines:
        assert len(line) < LIMITS.frame_bytes
        document = json.loads(line)
        if document["type"] == "reply":
            # Its value may have a NaN, which only replies have.
            assert document.keys() == {"type", *Reply._fields}
            counted[document["id"]] += 1
        else:
            assert isinstance(decode_host_frame(line), Stop)
    return counted, rest
