"""A hostile guest and a difficult server, driven by a script, around a real program's host side.

What is real: the channel, the dispatcher, `Program` and `GuestRequests`, the gate. What is not:
the sandbox, whose bytes the script makes up, and the pool of servers behind the gate.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from bridge.discovery.finder import Discovery
from bridge.errors import BridgeError, ChannelClosedError, ToolCallError, UpstreamError
from bridge.gate.pipeline import Gate, Grant
from bridge.guest.protocol.wire import Reply, Stop, decode_host_frame
from bridge.inventory.guide import GuestGuide
from bridge.inventory.servers import Servers
from bridge.inventory.tool_cache import ToolCache
from bridge.model import Isolation, Json, Limits, RunResult, ServerSpec, Source, Tool
from bridge.model.results import catch
from bridge.rpc.channel import Channel
from bridge.runs.guest_requests import GuestRequests
from bridge.runs.program import Facts, Program
from bridge.runs.ready_sandbox import ReadySandbox
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.failure import classify
from bridge.settings import load
from bridge.store import Store
from bridge.upstream.pool import Pool
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
"""What servers have answered, or could."""


class _Finder:
    """Finds two servers, of which the run is given one."""

    def stamp(self) -> object:
        return 0

    def find(self) -> Discovery:
        source = Source(client="t", scope="user", path="/t", key="")
        servers = tuple(
            ServerSpec(name=name, transport="stdio", source=source, command="none")
            for name in ("alpha", "beta")
        )
        return Discovery(servers=servers, skipped=(), warnings=(), stamp=())


class DifficultPool(Pool):
    """Answers as the tool's name says, and keeps account."""

    def __init__(self) -> None:
        super().__init__((), log_dir=Path("/nonexistent"), environ={})
        self.asked: list[str] = []
        self.under_way = 0
        self.most = 0
        self.release = anyio.Event()

    async def tools(self, server: str, **how: bool) -> tuple[Tool, ...]:
        await anyio.lowlevel.checkpoint()
        raise UpstreamError("gone", server=server, code="server_lost")

    async def call_tool(
        self,
        server: str,
        tool: str,
        arguments: Mapping[str, Json],
        *,
        timeout: float | None = None,
    ) -> dict[str, Json]:
        self.asked.append(server)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            return await self._answer(server, tool, arguments)
        finally:
            self.under_way -= 1

    async def _answer(
        self, server: str, tool: str, arguments: Mapping[str, Json]
    ) -> dict[str, Json]:
        await anyio.lowlevel.checkpoint()
        if tool == "hang":
            await anyio.sleep_forever()
        if tool == "late":
            await self.release.wait()
        if tool == "stubborn":
            # It cannot be interrupted at once, as when it writes a message to a server.
            with anyio.CancelScope(shield=True):
                await anyio.sleep(1)
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
            # What fits into a pipe is taken from who writes, whether or not anybody reads it.
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
    """One thing that happens.

    Attributes:
        says: Bytes from the guest; empty for none.
        flags: How the sandbox behaves from now on.
        passes: Seconds that pass.
        settles: Whether everything comes to rest before the next step.
    """

    says: bytes = b""
    flags: Mapping[str, bool] = field(default_factory=dict)
    ends: bool = False
    releases: bool = False
    cancels: bool = False
    passes: float = 0.0
    settles: bool = True


@dataclass(kw_only=True)
class Aftermath:
    """What is left to look at once a run has ended."""

    outcome: RunResult | BridgeError | None
    facts: Facts | None
    sent: bytes
    asked: Sequence[str]
    counted: int
    most: int
    under_way: int
    tasks_left: Sequence[str]


class Play:
    """One run, from the script's first step to the run's end."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        self._facts: Facts | None = None
        self._outcome: RunResult | BridgeError | None = None

    async def play(self) -> Aftermath:
        pool, sandbox = DifficultPool(), HostileSandbox()
        settings = load({}, {"HOME": "/nonexistent"})
        servers = Servers(_Finder(), pool, ToolCache(Store(Path("/nonexistent"))))
        async with servers:
            gate = Gate(GRANT, pool.call_tool)
            questions = GuestRequests(servers, GuestGuide(servers, settings), gate)
            session = ReadySandbox(
                sandbox=sandbox, channel=Channel(sandbox), facts={}, isolation=sandbox.isolation
            )
            await loop().idle()
            before = {task.id for task in anyio.get_running_tasks()}
            # What the engine does once, for whichever run is the first, is not that run's.
            await servers.load_unknown(())
            while not {task.id for task in anyio.get_running_tasks()} <= before:
                await anyio.lowlevel.checkpoint()  # in a thread: no time passes meanwhile
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._run, Program(session, questions.handle, LIMITS))
                for step in self._steps:
                    await self._perform(step, sandbox, pool, tasks.cancel_scope)
            await loop().idle()
            return Aftermath(
                outcome=self._outcome,
                facts=self._facts,
                sent=bytes(sandbox.sent),
                asked=pool.asked,
                counted=gate.calls,
                most=pool.most,
                under_way=pool.under_way,
                tasks_left=[
                    str(task) for task in anyio.get_running_tasks() if task.id not in before
                ],
            )

    async def _run(self, program: Program) -> None:
        self._outcome = await catch(self._result(program))

    async def _result(self, program: Program) -> RunResult:
        self._facts = await program.finish()
        verdict = classify(self._facts.ending, LIMITS)
        return RunResult(
            run_id="",
            status=verdict.status,
            summary=verdict.summary,
            reason=verdict.reason,
            timeout_seconds=LIMITS.timeout,
        )

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
        frame = decode_host_frame(line)
        assert isinstance(frame, Reply | Stop)
        if isinstance(frame, Reply):
            counted[frame.id] += 1
    return counted, rest
