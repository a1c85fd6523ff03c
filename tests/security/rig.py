"""Whole engines on real backends, and the check after every attack on them (`Arena.attack`).

It wants a typed result in time, nothing left of the sandbox, and a clean next run.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import anyio

from bridge.errors import BridgeError
from bridge.model import RunRequest, RunResult
from bridge.runs import Engine, open_engine
from bridge.runs.program import GRACE_SECONDS
from bridge.sandbox.backend import Backend, LaunchSpec, Sandbox
from bridge.sandbox.container.api import THREADS
from bridge.sandbox.ownership import OWNER_LABEL
from bridge.sandbox.selection import select_backend
from bridge.settings import Settings, load
from tests.contract.rig import Engine as Outside
from tests.contract.rig import EngineSet
from tests.engine_rig import ListFinder, workshop
from tests.sandbox.process.rig import exists, left_groups, processes_below
from tests.waiting import LOOK_SECONDS, until

BACKENDS = ("bubblewrap", "podman", "docker", "gvisor", "ssh")

PATIENCE_SECONDS = 300.0
"""For one attack and all its checks, on a busy machine."""

STILL_SECONDS = 0.1
"""Between two looks at a footprint that stays."""

LATE_SECONDS = 30.0
"""Tolerance for a result after its deadline and the documented grace, on a busy machine."""

MEMORY = 192
"""MiB that a sandbox has here: little, so that filling it takes little time."""

PIDS = 64

SPARE_SOCKETS = THREADS + 4
"""Spare connections of a bridge to its engine, and those of one more sandbox.

Their number varies. A leak of each sandbox would soon exceed it."""

WRITTEN_ONCE = ("oom",)
"""What podman's monitor writes where its service was started, at most once."""

REMEMBERED = "store.db"
"""The database. The bridge stores facts on tools seconds after a run, so during another attack."""

AUDITED = re.compile(r"(state/audit/)\d{4}-\d\d-\d\d-\d{6}(\.jsonl)")
"""A file of the audit log. Another begins at midnight and when one is full, during any attack."""

CGROUPS = Path("/sys/fs/cgroup")

CANARY = "canary-in-the-hosts-environment"

LOOK = """
import os, sys
def listed(path):
    return sorted(os.listdir(path)) if os.path.isdir(path) else []
found = {path: listed(path) for path in ("/tmp", "/workspace", "/dev/shm", "/var/tmp", "/run")}
found["processes"] = sum(name.isdigit() for name in os.listdir("/proc"))
found["environment"] = dict(os.environ)
# How much of the library is imported depends on how long the sandbox waited.
found["modules"] = sorted(
    name
    for name in sys.modules
    if name.partition(".")[0] not in (*sys.stdlib_module_names, "bridge")
)
found["path"] = sys.path
found["globals"] = sorted(globals())
found["loads"] = __import__("json").loads is __import__("json.decoder").loads
found
"""
"""What a run sees of what others could have left. The same for every run on a backend."""


class Watched:
    """A backend that tells which sandboxes there are."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.live: dict[str, Sandbox] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        name = ""
        try:
            async with self._backend.launch(spec) as sandbox:
                name = sandbox.id
                self.live[name] = sandbox
                yield sandbox
        finally:
            self.live.pop(name, None)


@dataclass(frozen=True, kw_only=True)
class Attack:
    outcome: RunResult | BridgeError
    sandbox: str

    @property
    def result(self) -> RunResult:
        assert isinstance(self.outcome, RunResult), self.outcome
        return self.outcome


@dataclass(kw_only=True)
class Arena:
    name: str
    engine: Engine
    backend: Watched
    outside: Outside | None
    home: Path
    sockets: int
    listed: Callable[[], list[str]] | None = None
    clean: dict[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "docker" if self.name == "ssh" else self.name

    def best_effort(self, limit: str, result: RunResult) -> bool:
        """Return whether the engine applies no limits; the result then has to say so of this."""
        if self.outside is None or self.outside.applies_limits:
            return False
        assert result.isolation is not None
        said = f"{limit} limit: best effort"
        assert any(text.startswith(said) for text in result.isolation.weaker), result.isolation
        return True

    async def attack(
        self, code: str, *, timeout: float = 60.0, argv: tuple[str, ...] = (), is_kept: bool = False
    ) -> Attack:
        """Run hostile code and check that it leaves nothing, but its output if that `is_kept`."""
        # Without servers unless it names some: none is to be started while things are counted.
        request = RunRequest(code=code, timeout=timeout, argv=argv, servers=())
        async with self.unharmed() as victims:
            outcome: RunResult | BridgeError
            try:
                outcome = await self.engine.run(request)
            except BridgeError as error:
                outcome = error
            else:
                allowed = timeout + GRACE_SECONDS + LATE_SECONDS
                assert outcome.usage.wall_ms <= allowed * 1000, outcome
            if is_kept:
                shutil.rmtree(self.home / "state" / "blobs")
        return Attack(outcome=outcome, sandbox=victims[0])

    @asynccontextmanager
    async def unharmed(self, *, counted: bool = True) -> AsyncIterator[list[str]]:
        """Yield the sandbox of the next run, and check that nothing of it is left.

        Args:
            counted: Whether this process must also hold no more than before.
        """
        with anyio.fail_after(PATIENCE_SECONDS):
            await self.settle()
            before = await self.still()
            victims = list(self.backend.live)
            yield victims
            await self.next_run_is_clean()
            await self.settle()
            assert not set(victims) & set(self.backend.live)
            if counted:
                await self.same(before)
            for victim in victims:
                await _wait_gone(victim, may_stay=_empty if self.kind == "gvisor" else None)

    async def still(self) -> Mapping[str, Any]:
        """Return the footprint once it stays: a bridge that starts ends what a dead one left."""
        found = self.footprint()
        while True:
            await anyio.sleep(STILL_SECONDS)
            before, found = found, self.footprint()
            if before == found:
                return found

    async def same(self, before: Mapping[str, Any]) -> None:
        """Wait until nothing is more than it was; some things take a moment to go."""
        with anyio.move_on_after(PATIENCE_SECONDS / 3):
            while changes(before, self.footprint()):  # noqa: ASYNC110 - nothing announces it
                await anyio.sleep(LOOK_SECONDS)
        changed = changes(before, self.footprint())
        assert not changed, changed

    async def settle(self) -> None:
        sandboxes, live = self.engine.sandboxes, self.backend.live
        await until(lambda: (sandboxes.report.waiting, len(live)) == (1, 1))
        # A host whose connection broke removes what it had by itself.
        await until(lambda: not self.listed or set(self.listed()) == set(self.backend.live))

    async def next_run_is_clean(self) -> None:
        found = await self.engine.run(RunRequest(code=LOOK, servers=()))
        assert found.status == "success", found
        if not self.clean:
            self.clean = found.result
            assert not any(found.result[path] for path in ("/tmp", "/dev/shm"))
            # Empty too: what is left in there would have come back, and changed the footprint.
            assert found.result["/workspace"] == ["out"]
        assert found.result == self.clean, (found.result, self.clean)

    async def with_server(self) -> None:
        found = await self.engine.run(RunRequest(code="await mcp_work_shop.add(a=1, b=1)"))
        assert found.result == {"sum": 2}, found

    def footprint(self) -> Mapping[str, Any]:
        """Return what this process holds and has started, by number, and its files by name."""
        held = descriptors()
        return {
            # What is read in `/proc`, to look for what dead bridges left, is open for a moment.
            "descriptors": {
                kind: n
                for kind, n in held.items()
                if kind != "socket" and not kind.startswith("/proc/") and REMEMBERED not in kind
            },
            "too many sockets": held.get("socket", 0) > self.sockets + SPARE_SOCKETS,
            "children": len(processes_below()),
            "groups": len(groups(f"mcp-code-bridge_{os.getpid()}_")),
            "files": sorted(
                {
                    # A day's files count as one.
                    AUDITED.sub(r"\1DAY\2", str(path.relative_to(self.home)))
                    for path in self.home.rglob("*")
                    if not path.name.endswith(".log")
                    and path.name not in WRITTEN_ONCE
                    and not path.name.startswith(REMEMBERED)
                }
            ),
        }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what has changed between two footprints. Fewer descriptors are no change."""
    return {
        key: (before[key], now[key])
        for key in before
        if (
            any(n > before[key].get(kind, 0) for kind, n in now[key].items())
            if key == "descriptors"
            else now[key] != before[key]
        )
    }


def descriptors() -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            kind = str(entry.readlink()).partition(":")[0]
        except OSError:
            continue
        found[kind] = found.get(kind, 0) + 1
    return found


def remains(sandbox: str) -> list[str]:
    """Return the processes and control groups that are left of a sandbox."""
    if sandbox.isdecimal():
        return [sandbox] if exists(int(sandbox)) else []
    found = []
    for place in Path("/proc").iterdir():
        if not place.name.isdigit():
            continue
        try:
            about = (place / "cmdline").read_bytes() + (place / "cgroup").read_bytes()
        except OSError:
            continue
        if sandbox.encode() in about:
            found.append(str(place))
    return found + groups(sandbox)


def family(ancestor: int) -> list[int]:
    found = [ancestor]
    for pid in found:
        with suppress(OSError):
            text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
            found += map(int, text.split())
    return found


async def _wait_gone(sandbox: str, *, may_stay: Callable[[str], bool] | None = None) -> None:
    def left() -> list[str]:
        return [what for what in remains(sandbox) if may_stay is None or not may_stay(what)]

    with anyio.move_on_after(PATIENCE_SECONDS / 3):
        while left():  # noqa: ASYNC110 - nothing announces it
            await anyio.sleep(LOOK_SECONDS)
    assert not left(), left()


def _empty(what: str) -> bool:
    """Return whether it is an empty control group: on a busy host runsc leaves its directory."""
    try:
        return not Path(what, "cgroup.procs").read_text(encoding="ascii").split()
    except OSError:
        return False


def groups(part: str) -> list[str]:
    found = []
    for root, directories, _ in os.walk(CGROUPS):
        found += [f"{root}/{name}" for name in directories if part in name]
    return found


def containers(engine: Outside, *, owner: int | None = None) -> list[str]:
    with engine.outside() as client:
        label = f"{OWNER_LABEL}={os.getpid() if owner is None else owner}"
        found = client.containers(all=True, filters={"label": label})
    return [str(container["Id"]) for container in found]


def settings_for(name: str, engine_set: EngineSet, home: Path, **more: str) -> Settings:
    environ = {**os.environ, "CANARY_TOKEN": CANARY}
    flags = {"runtime": name, "warm": "1", "memory": f"{MEMORY}m", "pids": str(PIDS), **more}
    if name == "gvisor":
        flags |= {"runtime": "podman", "oci_runtime": "runsc"}
    if name == "ssh":
        flags |= {"runtime": "docker"}
    if name in ("docker", "ssh"):
        environ |= engine_set.get(name).environ
    else:
        # As where no service of podman's listens: the bridge runs one of its own.
        environ.pop("CONTAINER_HOST", None)
    if name != "bubblewrap":
        flags["image"] = outside_of(name, engine_set).image
    run = home / "run"
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    environ |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(run)}
    environ |= {"MCP_BRIDGE_STATE_DIR": str(home / "state"), "MCP_BRIDGE_RUN_RECORDS": "off"}
    return load(flags, environ)


def outside_of(name: str, engine_set: EngineSet) -> Outside:
    return engine_set.get("podman" if name == "gvisor" else name)


@asynccontextmanager
async def arena(name: str, engine_set: EngineSet, home: Path, **more: str) -> AsyncIterator[Arena]:
    settings = settings_for(name, engine_set, home, **more)
    outside = None if name == "bubblewrap" else outside_of(name, engine_set)
    listed = None if outside is None else partial(containers, outside)
    async with arena_on(name, settings, home, outside=outside, listed=listed) as opened:
        yield opened


@asynccontextmanager
async def arena_on(
    name: str,
    settings: Settings,
    home: Path,
    *,
    outside: Outside | None = None,
    listed: Callable[[], list[str]] | None = None,
) -> AsyncIterator[Arena]:
    """Open an engine with these settings; see that nothing is left."""
    held = descriptors()
    watched: list[Watched] = []

    async def choose_watched(wanted: Settings) -> Backend:
        watched.append(Watched(await select_backend(wanted)))
        return cast("Backend", watched[-1])

    finder = ListFinder(workshop())
    async with open_engine(settings, finder=finder, choose_backend=choose_watched) as engine:
        await engine.sandboxes.backend()
        opened = Arena(
            name=name,
            engine=engine,
            backend=watched[0],
            outside=outside,
            home=home,
            sockets=descriptors().get("socket", 0),
            listed=listed,
        )
        await opened.next_run_is_clean()
        yield opened
    assert not watched[0].live
    with warnings.catch_warnings():
        # The SDK forgets sockets that could not connect, until they are collected.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    now = descriptors()
    assert now == held, (held, now)
    if listed is not None:
        assert listed() == []
    assert left_groups() == []


NAMESPACES = (
    *("--user", "--map-root-user", "--mount", "--uts", "--ipc", "--net"),
    *("--pid", "--fork", "--mount-proc"),
)
"""Options of `unshare` that give a control all capabilities, without harm to the host."""


@cache
def control(program: str, *, namespaces: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run the same program outside, in namespaces of its own where it would do harm."""
    argv = [sys.executable, "-I", "-S", "-c", program]
    if namespaces:
        argv = ["unshare", *namespaces, *argv]
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Measure by how many KiB this process grows at most; the list's one number, afterwards."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    grown = [0]
    yield grown
    grown[0] = _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
