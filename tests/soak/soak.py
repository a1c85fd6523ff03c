"""One engine under many adversarial runs, and whether the host stays as it was.

Owns the order of the runs, the moments at which the host is looked at, and the report.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
from anyio.abc import ObjectReceiveStream

from bridge.errors import BridgeError
from bridge.model import RunRequest, ServerSpec, Source
from bridge.runs import Engine, open_engine
from bridge.settings import load
from tests.engine_rig import ListFinder
from tests.soak import host
from tests.soak.host import Sample, sample, table
from tests.soak.programs import ATTACKS, DAY, HONEST, Case, case, day_case
from tests.waiting import until_exists

WORKSHOP = Path(__file__).parents[1] / "fakes" / "servers" / "workshop.py"

SAMPLES = 20
"""Samples of the host in a soak."""

SETTLE_SECONDS = 30.0
"""Time for the last runs' remains to be removed, and for the next sandbox to start."""

LOOK_SECONDS = 0.1

CALM_LOOKS = 20
"""Looks that have to agree before the first sample is taken."""

WATCHDOG_SECONDS = 120.0
"""A run that takes longer has hung, whatever its deadline was."""

OPEN_SESSIONS = 3

SETTINGS: Mapping[str, str] = {
    "memory": "128m",
    "pids": "64",
    "warm": "1",
    "log_level": "ERROR",
    "max_timeout": "60",
    "sessions": str(OPEN_SESSIONS),
    # So little that it is used up soon, and growth would show.
    "artifact_bytes": "2m",
}

SESSIONS = 5
"""Sessions of a day; more than may be open, so that some are saved and restored."""

OWNER = "stdio"


def _server(name: str) -> ServerSpec:
    source = Source(client="soak", scope="user", path=str(WORKSHOP), key="")
    command = {"command": sys.executable, "args": (str(WORKSHOP),)}
    return ServerSpec(name=name, transport="stdio", source=source, **command)  # type: ignore[arg-type]


@dataclass(kw_only=True)
class Report:
    samples: list[Sample] = field(default_factory=list)
    endings: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    def text(self) -> str:
        ends = "\n".join(f"  {count:6} {name}" for name, count in sorted(self.endings.items()))
        problems = "\n".join(f"  {text}" for text in self.complaints) or "  none"
        seen = f"{table(self.samples)}\n{host.growth(self.samples)}"
        return f"{seen}\nendings\n{ends}\ncomplaints\n{problems}"


class Soak:
    """Many runs on one engine."""

    def __init__(self, backend: str, directory: Path, *, at_once: int, day: bool) -> None:
        self._case = day_case if day else case
        self._programs = DAY if day else ()
        self._warm_up = 400 if day else 130
        self._backend = backend
        self._directory = directory
        self._at_once = at_once
        self._connections = 0 if backend == "bubblewrap" else host.CONNECTIONS
        self._started = 0
        self.report = Report()

    async def run(self, runs: int) -> Report:
        """Run so many programs, then close the engine and look at what is left."""
        environ = {
            **os.environ,
            "HOME": str(self._directory / "home"),
            "MCP_BRIDGE_STATE_DIR": str(self._directory / "state"),
            "MCP_BRIDGE_RUN_RECORDS": "off",
            "XDG_RUNTIME_DIR": str(self._directory / "run"),
        }
        for name in ("home", "run"):
            (self._directory / name).mkdir(mode=0o700)
        settings = load({**SETTINGS, "runtime": self._backend}, environ)
        # Programs crash one of the servers; the other one serves the calls of other runs.
        finder = ListFinder(_server("workshop"), _server("doomed"))
        async with open_engine(settings, finder=finder) as engine:
            # What stays up from now on is up before the first look.
            crash = next(what for what in ATTACKS if "mcp_doomed" in what.code)
            sessions = [what for what in self._programs if what.session] * OPEN_SESSIONS
            for number, what in enumerate((*HONEST, crash, *sessions)):
                await self._one(engine, -1 - number, what)
            step = max(1, runs // SAMPLES)
            # Every program about once: caches and allocators have then seen them all. On an
            # ordinary day also until what is kept is at its bound.
            await self._batch(engine, min(runs // 4, self._warm_up))
            await self._settle()
            while self._started < runs:
                await self._batch(engine, min(step, runs - self._started))
                await self._settle()
        self.report.complaints += host.trends(self.report.samples, self._connections)
        self.report.complaints += self._left()
        return self.report

    async def _batch(self, engine: Engine, count: int) -> None:
        send, receive = anyio.create_memory_object_stream[int](count)
        for number in range(self._started, self._started + count):
            send.send_nowait(number)
        send.close()
        self._started += count
        async with receive, anyio.create_task_group() as tasks:
            for _ in range(self._at_once):
                tasks.start_soon(self._work, engine, receive.clone())

    async def _work(self, engine: Engine, numbers: ObjectReceiveStream[int]) -> None:
        async with numbers:
            async for number in numbers:
                await self._one(engine, number, self._case(number))

    async def _one(self, engine: Engine, number: int, what: Case) -> None:
        end = "hung"
        try:
            with anyio.fail_after(WATCHDOG_SECONDS):
                if what.interrupt:
                    end = await self._cancel(engine, number, what)
                else:
                    request = RunRequest(
                        code=what.code,
                        timeout=what.timeout,
                        principal=OWNER,
                        owner=OWNER,
                        session=f"session-{number % SESSIONS}" if what.session else "",
                    )
                    result = await engine.run(request)
                    end = result.reason or result.status
                    complaint = what.complaint(result)
                    if complaint:
                        self.report.complaints.append(f"run {number}, {what.name}: {complaint}")
        except (BridgeError, TimeoutError) as error:
            # No program may bring the bridge to an error of its own.
            self.report.complaints.append(f"run {number}, {what.name}: {error!r}")
            end = type(error).__name__
        self.report.endings[f"{what.name}: {end}"] += 1

    async def _cancel(self, engine: Engine, number: int, what: Case) -> str:
        """Cancel a run half-way, as a client does that cancels its request."""
        started, cancelled = (
            self._directory / f"{name}-{number}" for name in ("started", "cancelled")
        )
        in_call = what.interrupt == "call"
        files = {"started": str(started), "cancelled": str(cancelled)}
        code = what.code.format(**files) if in_call else what.code
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(engine.run, RunRequest(code=code, timeout=what.timeout))
            await (until_exists(started) if in_call else anyio.sleep(number % 97 / 97))
            tasks.cancel_scope.cancel()
        if in_call:
            # The server receives the cancellation too.
            await until_exists(cancelled)
            started.unlink()
            cancelled.unlink()
        return "cancelled"

    async def _settle(self) -> None:
        """Take a sample once the host is as at the first one, or the time is over."""
        deadline = anyio.current_time() + SETTLE_SECONDS
        now, calm = sample(self._started, self._directory), 0
        while anyio.current_time() < deadline:
            await anyio.sleep(LOOK_SECONDS)
            before, now = now, sample(self._started, self._directory)
            if self.report.samples:
                if host.at_rest(now, self.report.samples[0], self._connections):
                    break
            elif all(getattr(now, name) == getattr(before, name) for name in host.EQUAL):
                # Nothing to compare with yet.
                calm += 1
                if calm == CALM_LOOKS:
                    break
            else:
                calm = 0
        self.report.samples.append(now)
        print(table([now]).splitlines()[-1], file=sys.stderr, flush=True)

    def _left(self) -> list[str]:
        left = {
            "processes": host.descendants(),
            "control groups": host.own_groups(),
            "containers": host.own_containers(self._backend),
            "files": host.files(self._directory),
        }
        return [f"{name} left: {found}" for name, found in left.items() if found]


@asynccontextmanager
async def own_directory() -> AsyncIterator[Path]:
    """Yield a directory for all files of the soak, temporary files included."""
    before = tempfile.tempdir
    with tempfile.TemporaryDirectory(prefix="mcb-soak-") as name:
        directory = Path(name)
        (directory / "tmp").mkdir()
        tempfile.tempdir = str(directory / "tmp")
        try:
            yield directory
        finally:
            tempfile.tempdir = before


async def soak(backend: str, runs: int, at_once: int, day: bool = False) -> Report:
    """Soak one backend with hostile programs, or with those of an ordinary day."""
    async with own_directory() as directory:
        return await Soak(backend, directory, at_once=at_once, day=day).run(runs)
