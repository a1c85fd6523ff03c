"""The weaker tier as a backend: runs programs beside the bridge, shut in by Landlock and seccomp.

Owns what it needs of the machine and how one sandbox is put together. It is used only when it is
named: no ladder has it, and each of its results calls it weaker. What it puts in force was decided
in `landlock_tier`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import EngineNotFoundError, LaunchError, SandboxError, WrongSystemError
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.process import (
    command,
    host,
    landlock,
    landlock_tier,
    libseccomp,
    plain,
    rundir,
)
from bridge.sandbox.process.command import Surroundings
from bridge.sandbox.process.compiling import compiled_for, loader_command
from bridge.sandbox.process.group import Group, find_shelf
from bridge.sandbox.process.groups import lacking
from bridge.sandbox.process.interpreter import find
from bridge.sandbox.process.plain_backend import Ground, PlainBackend
from bridge.sandbox.process.rundir import RunDirectory
from bridge.sandbox.process.sandbox import Start
from bridge.sandbox.reaper import current_owner

KERNEL_REMEDY = (
    "Use a kernel since 5.13 with Landlock on (`lsm=landlock,...` on its command line), or leave "
    "MCP_BRIDGE_RUNTIME at auto."
)


@dataclass(frozen=True, kw_only=True)
class Found(Ground):
    """What was found out about this machine."""

    filters: tuple[bytes, ...]
    around: Surroundings


class LandlockBackend(PlainBackend[Found]):
    """Runs programs without namespaces.

    Args:
        environ: The bridge's environment: tells where temporary files go.
        interpreter: The one Python to run; None finds one.
        packages: A virtual environment, or its directory of packages, to import from.
        limits: What the probe runs under.
        version: Asks the kernel for its version of Landlock.
        seccomp: The library that makes filters, as the loader finds it.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        interpreter: str | None = None,
        packages: Path | None = None,
        limits: Limits | None = None,
        version: Callable[[], int] = landlock.version,
        seccomp: str = libseccomp.LIBRARY,
    ) -> None:
        super().__init__(environ=environ, interpreter=interpreter, packages=packages, limits=limits)
        self._version = version
        self._seccomp = seccomp

    @property
    def name(self) -> str:
        """ "landlock"."""
        return landlock_tier.NAME

    def _look(self) -> Found:
        if sys.platform != "linux":
            message = "Only Linux has Landlock."
            raise WrongSystemError(message)
        abi = self._version()
        if abi < 1:
            message = f"This kernel ({os.uname().release}) has no Landlock, or has it turned off."
            raise EngineNotFoundError(message, remedy=KERNEL_REMEDY)
        root = os.getuid() == 0
        stranger = root and host.is_mapped(command.UID, host.text("/proc/self/uid_map"))
        filters = (
            *libseccomp.filters(self._seccomp),
            libseccomp.refusing(landlock_tier.refusals(abi), self._seccomp),
        )
        owner = current_owner()
        shelf = find_shelf(host.text("/proc/self/cgroup"), host.text("/proc/self/mountinfo"), owner)
        around = Surroundings(
            landlock_abi=abi,
            cpus=host.usable_cpus(),
            controllers=shelf.controllers,
            limits_elsewhere=lacking(sorted(shelf.controllers), root=stranger),
            # Without a namespace they are counted over all that this user runs.
            processes_per_namespace=False,
        )
        interpreter = find(packages=self._packages, only=self._interpreter, as_stranger=stranger)
        return Found(
            interpreter=interpreter,
            stage=compiled_for(interpreter),
            base=rundir.base_directory(self._environ.get("TMPDIR"), as_stranger=stranger),
            uid=command.UID if stranger else None,
            owner=owner,
            shelf=shelf,
            filters=filters,
            around=around,
        )

    def _start(
        self, found: Found, spec: LaunchSpec, place: RunDirectory, group: Group | None
    ) -> Start:
        steps = landlock_tier.steps(
            spec, found.interpreter, place, found.around, found.filters, _entries
        )
        stranger = found.uid is not None
        return Start(
            command=loader_command(found.interpreter),
            data=(plain.keeper(),),
            inside=lambda descriptors: plain.stage_command(found.interpreter, place, descriptors),
            stage=lambda descriptors: plain.stage_input(
                spec, found.interpreter, place, descriptors, steps, found.stage
            ),
            options=lambda descriptors: plain.order(spec, place, descriptors, adopts=True),
            environ={},
            uid=found.uid,
            group=group,
            isolation=landlock_tier.isolation(
                spec, found.around, stranger=stranger, root=os.getuid() == 0 and not stranger
            ),
            bwrap_failed=_failed,
            stage_failed=_failed,
            keeps=True,
        )

    def _success(self, sandbox: Sandbox) -> Probe:
        found = self._found
        assert found is not None  # a sandbox runs
        who = "as root, programs as nobody" if found.uid is not None else "as an ordinary user"
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"landlock (the weaker tier) {who}, Python {found.interpreter.version}",
            isolation=sandbox.isolation,
            details={
                "interpreter": f"{found.interpreter.executable} ({found.interpreter.version})",
                "landlock": f"version {found.around.landlock_abi}",
                "control groups": plain.described(sorted(found.around.controllers)),
                "packages": ", ".join(found.interpreter.packages) or "none",
                "directories": str(found.base),
            },
        )


def _failed(said: str) -> SandboxError:
    said = said.strip()[:600]
    return LaunchError(f"The sandbox could not be finished: {said or 'it ended without a word'}.")


def _entries(directory: str) -> Iterable[tuple[str, bool]]:
    with os.scandir(directory) as found:
        return [(entry.name, not entry.is_dir()) for entry in found]
