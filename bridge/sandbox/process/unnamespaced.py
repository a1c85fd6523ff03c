"""The base of the backends without namespaces, Landlock and Seatbelt.

Owns launching, probing and reaping what dead bridges left. A `monitor` process stands outside in
place of bubblewrap; the stage inside has nothing to mount. Programs write to a directory of their
run on the host's disk. Each backend makes its own findings about the machine and puts its own
sandboxes together; see there for what they enforce.
"""

from __future__ import annotations

import json
import pwd
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from bridge.errors import LaunchError, SandboxError
from bridge.model import Isolation, Json, Limits
from bridge.sandbox.backend import Backend, LaunchSpec, Probe, Sandbox
from bridge.sandbox.binds import reject_binds
from bridge.sandbox.ownership import Owner
from bridge.sandbox.probe import run_probe
from bridge.sandbox.process import run_directory as rundir
from bridge.sandbox.process.cgroups import CgroupManager, CgroupParents, SandboxCgroups, reap
from bridge.sandbox.process.command import PYTHON, TMP, WORKSPACE, Descriptors
from bridge.sandbox.process.interpreter import Interpreter
from bridge.sandbox.process.run_directory import RunDirectory
from bridge.sandbox.process.sandbox import LaunchPlan, run_sandbox
from bridge.sandbox.process.stage_loader import loader_command, stage_payload

WEAKER_DISK = (
    "disk: best effort; each file a program writes is bounded, all of them together are not, and "
    "they lie on the host's disk until the run ends"
)

_UNASKED = ("LC_CTYPE", "PWD", "__CF_USER_TEXT_ENCODING")
"""Variables that Python, shells and macOS add to an environment."""


@cache
def monitor_source() -> bytes:
    """Return the payload for the monitor's command: its source."""
    return stage_payload(
        resources.files(__package__).joinpath("monitor.py").read_text(encoding="utf-8")
    )


def environment(env: Mapping[str, str], directory: RunDirectory) -> dict[str, str]:
    """Return the environment, with the run's own directories in place of /workspace and /tmp."""
    here = {WORKSPACE: str(directory.workspace), TMP: str(directory.tmp)}
    return {name: here.get(value, value) for name, value in env.items()}


def monitor_instructions(
    spec: LaunchSpec, directory: RunDirectory, descriptors: Descriptors, *, adopts: bool
) -> bytes:
    """Return the monitor's instructions, a line of JSON."""
    document = {
        "info": descriptors.info,
        "status": descriptors.status,
        "env": environment(spec.env, directory),
        "mark": directory.path.name,
        "adopts": adopts,
    }
    return json.dumps(document).encode("ascii") + b"\n"


def stage_command(
    interpreter: Interpreter, directory: RunDirectory, descriptors: Descriptors
) -> list[str]:
    """Return the command that the monitor starts; its last word marks the run's processes."""
    return loader_command(interpreter, str(descriptors.stage), directory.path.name)


def stage_input(
    spec: LaunchSpec,
    interpreter: Interpreter,
    directory: RunDirectory,
    descriptors: Descriptors,
    steps: Mapping[str, Json],
    stage: str | bytes,
) -> bytes:
    """Return the payload for that command: the stage and its plan.

    Args:
        steps: This backend's part of the plan: limits, Landlock, filters.
    """
    in_process = spec.argv[:4] == PYTHON and len(spec.argv) == len(PYTHON) + 1
    argv = list(spec.argv)
    if argv[0] == PYTHON[0]:
        argv[0] = interpreter.executable
    plan = {
        "argv": argv,
        "text": argv[len(PYTHON)] if in_process else None,
        "packages": list(interpreter.packages),
        "cwd": str(directory.workspace),
        "unset": [name for name in _UNASKED if name not in spec.env],
        "mounts": [],
        "rlimits": [],
        "landlock": None,
        "filters": [],
        "status": descriptors.status,
        **steps,
    }
    return stage_payload(stage, json.dumps(plan))


def weaker_processes(*, adopts: bool) -> str:
    """Return what is weaker about ending a sandbox without a pid namespace."""
    if adopts:
        return (
            "processes: no namespace of their own; they are ended by a process of the bridge that "
            "adopts what the program leaves, and not by the kernel"
        )
    return (
        "processes: no namespace of their own; what detaches itself twice can outlive the run, "
        "confined, until its CPU time is used up"
    )


@dataclass(frozen=True, kw_only=True)
class BaseFindings:
    """Facts about this machine that every such backend finds once.

    Attributes:
        uid: The programs' user; None for the bridge's own.
        cgroup_parents: Where cgroups are made; may be empty.
    """

    interpreter: Interpreter
    stage: bytes
    base: Path
    uid: int | None
    owner: Owner
    cgroup_parents: CgroupParents


F = TypeVar("F", bound=BaseFindings)


class UnnamespacedBackend(Backend, Generic[F]):
    """Runs programs without namespaces. Enter before use; examines the machine at first use.

    Attributes:
        title: What the probe's summary calls it.
        linux: Whether the monitor can adopt orphans, and signal by pidfd.
    """

    title: str
    linux = True

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        interpreter: str | None,
        packages: Path | None,
        limits: Limits | None,
    ) -> None:
        self._environ = environ
        self._interpreter = interpreter
        self._packages = packages
        self._limits = limits or Limits()
        self._lock = anyio.Lock()
        self._found: F | None = None
        self._groups = CgroupManager()
        self._unremoved: set[Path] = set()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} unremoved={len(self._groups) + len(self._unremoved)}>"

    @abstractmethod
    def _look(self) -> F:
        """Return the findings about this machine. Blocks."""

    @abstractmethod
    def _steps(self, found: F, spec: LaunchSpec, directory: RunDirectory) -> Mapping[str, Json]:
        """Return this backend's part of the stage's plan."""

    @abstractmethod
    def _isolation(self, found: F, spec: LaunchSpec) -> Isolation:
        """Return the layers that a launch puts in force, and what is weaker."""

    @abstractmethod
    def _details(self, found: F) -> Mapping[str, str]:
        """Return what `doctor` shows beyond the interpreter, packages and directories."""

    def _confined(self, found: F, directory: RunDirectory, words: list[str]) -> list[str]:
        """Return the command line that runs a command confined from outside."""
        return words

    def _watched_memory(self, found: F, spec: LaunchSpec) -> int | None:
        return None

    def _failed(self, said: str) -> SandboxError:
        said = said.strip()[:600] or "it wrote nothing"
        return LaunchError(f"{self.name} did not start the sandbox: {said}.")

    def _start(
        self, found: F, spec: LaunchSpec, directory: RunDirectory, group: SandboxCgroups | None
    ) -> LaunchPlan:
        python, steps = found.interpreter, self._steps(found, spec, directory)
        return LaunchPlan(
            command=loader_command(python),
            data=(monitor_source(),),
            inside=lambda descriptors: self._confined(
                found, directory, stage_command(python, directory, descriptors)
            ),
            stage=lambda descriptors: stage_input(
                spec, python, directory, descriptors, steps, found.stage
            ),
            options=lambda descriptors: monitor_instructions(
                spec, directory, descriptors, adopts=self.linux
            ),
            environ={},
            uid=found.uid,
            group=group,
            isolation=self._isolation(found, spec),
            monitor_failed=self._failed,
            stage_failed=self._failed,
            own_monitor=True,
            use_pidfds=self.linux,
            memory_bytes=self._watched_memory(found, spec),
        )

    def _success(self, sandbox: Sandbox) -> Probe:
        found = self._found
        assert found is not None  # a sandbox runs
        python = found.interpreter
        who = "as root, programs as nobody" if found.uid is not None else "as an ordinary user"
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"{self.title} {who}, Python {python.version}",
            isolation=sandbox.isolation,
            details={
                "interpreter": f"{python.executable} ({python.version})",
                **self._details(found),
                "packages": ", ".join(python.packages) or "none",
                "directories": str(found.base),
            },
        )

    async def aclose(self) -> None:
        await self._groups.aclose()
        with anyio.CancelScope(shield=True):
            for path in list(self._unremoved):
                await self._remove(path)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        reject_binds(self.name, spec.binds)
        found = await self._look_around()
        async with (
            # Removed last, when no process is left that could write there.
            self._directory(found) as directory,
            self._groups.group(found.cgroup_parents, found.owner, spec.limits) as group,
            run_sandbox(self._start(found, spec, directory, group)) as sandbox,
        ):
            yield sandbox

    async def probe(self) -> Probe:
        return await run_probe(self.name, self.launch, self._success, self._limits)

    async def reap(self) -> int:
        """Remove what dead bridges left.

        Their monitors ended the processes; only cgroups and directories can be left.
        """
        found = await self._look_around()
        count = await anyio.to_thread.run_sync(reap, found.cgroup_parents, found.owner)
        return max(count, await anyio.to_thread.run_sync(rundir.reap, found.base, found.owner))

    async def _look_around(self) -> F:
        async with self._lock:
            if self._found is None:
                self._found = await anyio.to_thread.run_sync(self._look)
            return self._found

    @asynccontextmanager
    async def _directory(self, found: F) -> AsyncIterator[RunDirectory]:
        for left in list(self._unremoved):
            await self._remove(left)
        # A thread cannot be interrupted, so a cancelled call still returns what it made.
        directory = await anyio.to_thread.run_sync(rundir.make, found.base, found.owner, found.uid)
        try:
            yield directory
        finally:
            with anyio.CancelScope(shield=True):
                await self._remove(directory.path)

    async def _remove(self, path: Path) -> None:
        self._unremoved.discard(path)
        gone = await anyio.to_thread.run_sync(rundir.remove, path)
        if not gone:
            self._unremoved.add(path)


def nobody_uid() -> int:
    return pwd.getpwnam("nobody").pw_uid
