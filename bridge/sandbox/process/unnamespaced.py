"""The base of the backends without namespaces, Landlock and Seatbelt.

A `monitor` process stands outside in place of bubblewrap; the stage inside has nothing to mount.
Programs write to a directory of their run on the host's disk. See the backends for what they
enforce.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from bridge.errors import LaunchError, SandboxError
from bridge.model import Isolation, Json
from bridge.sandbox.backend import TMP, WORKSPACE, LaunchSpec, Sandbox
from bridge.sandbox.binds import reject_binds
from bridge.sandbox.process import run_directory as rundir
from bridge.sandbox.process.base import BaseFindings, ProcessBackend
from bridge.sandbox.process.cgroups import SandboxCgroups
from bridge.sandbox.process.command import PYTHON, Descriptors
from bridge.sandbox.process.run_directory import RunDirectory
from bridge.sandbox.process.sandbox import LaunchPlan, ProcessLaunch, run_sandbox
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


@dataclass(frozen=True, kw_only=True)
class DirectoryFindings(BaseFindings):
    """Facts about this machine, found once per backend.

    Attributes:
        base: Where runs' directories are made.
    """

    base: Path


D = TypeVar("D", bound=DirectoryFindings)


class UnnamespacedBackend(ProcessBackend[D]):
    """Runs programs without namespaces.

    Attributes:
        linux: Whether the monitor can adopt orphans, and signal by pidfd.
    """

    linux = True

    def __init__(self, **common: Any) -> None:
        super().__init__(**common)
        self._unremoved: set[Path] = set()

    @abstractmethod
    def _steps(self, found: D, directory: RunDirectory, spec: LaunchSpec) -> Mapping[str, Json]:
        """Return this backend's part of the stage's plan: limits, Landlock, filters."""

    @abstractmethod
    def _isolation(self, found: D, spec: LaunchSpec) -> Isolation:
        """Return the layers that a launch puts in force, and what is weaker."""

    def _confined(self, found: D, directory: RunDirectory, words: list[str]) -> list[str]:
        """Return the command line that runs a command confined from outside."""
        return words

    def _watched_memory(self, found: D, spec: LaunchSpec) -> int | None:
        return None

    def _failed(self, said: str) -> SandboxError:
        said = said.strip()[:600] or "it wrote nothing"
        return LaunchError(f"{self.name} did not start the sandbox: {said}.")

    def _start(
        self, found: D, spec: LaunchSpec, directory: RunDirectory, group: SandboxCgroups | None
    ) -> LaunchPlan:
        python, mark = found.interpreter, directory.path.name
        # The run's own directories in place of /workspace and /tmp.
        here = {WORKSPACE: str(directory.workspace), TMP: str(directory.tmp)}
        env = {name: here.get(value, value) for name, value in spec.env.items()}
        plan = {**self._stage_plan(found, spec, directory), **self._steps(found, directory, spec)}

        def prepare(descriptors: Descriptors) -> ProcessLaunch:
            # The last word marks the run's processes.
            words = loader_command(python, str(descriptors.stage), mark)
            given = json.dumps({**plan, "status": descriptors.status})
            instructions = {
                "info": descriptors.info,
                "status": descriptors.status,
                "env": env,
                "mark": mark,
                "adopts": self.linux,
            }
            return ProcessLaunch(
                inside=self._confined(found, directory, words),
                stage=stage_payload(found.stage, given),
                options=json.dumps(instructions).encode("ascii") + b"\n",
            )

        return LaunchPlan(
            command=[*found.become(found.uid, found.uid), *loader_command(python)],
            prepare=prepare,
            files=(monitor_source(),),
            group=group,
            isolation=self._isolation(found, spec),
            monitor_failed=self._failed,
            stage_failed=self._failed,
            own_monitor=True,
            use_pidfds=self.linux,
            memory_bytes=self._watched_memory(found, spec),
        )

    def _stage_plan(
        self, found: D, spec: LaunchSpec, directory: RunDirectory
    ) -> Mapping[str, Json]:
        in_process = spec.argv[:4] == PYTHON and len(spec.argv) == len(PYTHON) + 1
        argv = list(spec.argv)
        if argv[0] == PYTHON[0]:
            argv[0] = found.interpreter.executable
        return {
            "argv": argv,
            "text": argv[len(PYTHON)] if in_process else None,
            "packages": list(found.interpreter.packages),
            "cwd": str(directory.workspace),
            "unset": [name for name in _UNASKED if name not in spec.env],
            "mounts": [],
            "landlock": None,
            "filters": [],
        }

    async def aclose(self) -> None:
        await super().aclose()
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

    async def reap(self) -> int:
        count = await super().reap()
        found = await self._look_around()
        return max(count, await anyio.to_thread.run_sync(rundir.reap, found.base, found.owner))

    @asynccontextmanager
    async def _directory(self, found: D) -> AsyncIterator[RunDirectory]:
        for left in list(self._unremoved):
            await self._remove(left)
        # A thread cannot be interrupted, so a cancelled call still returns what it made.
        directory = await anyio.to_thread.run_sync(rundir.make, found.base, found.owner, found.uid)
        try:
            yield directory
        finally:
            await self._remove(directory.path)

    async def _remove(self, path: Path) -> None:
        self._unremoved.discard(path)
        with anyio.CancelScope(shield=True):
            if not await anyio.to_thread.run_sync(rundir.remove, path):
                self._unremoved.add(path)
