"""macOS's Seatbelt as a place to run code. Untested on macOS.

Owns what it needs of the machine and how one sandbox is put together; the profile is `seatbelt`'s.
What can be tried elsewhere is tested elsewhere: the profile as text, the command line, and the life
of a sandbox with a stand-in for `sandbox-exec`, which starts its command and confines nothing. That
the kernel of a Mac then does what the profile says, nobody has seen yet.

What it is weaker in: macOS bounds the memory of no group of processes and has no process
namespaces. So memory is not bounded, a keeper looks for what is left when a program ends (see
`keeper` for what can escape it), and what a program writes lies in a private directory on disk.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import EngineNotFoundError, LaunchError, SandboxError, WrongSystemError
from bridge.model import Isolation, Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.process import command, host, plain, rundir, seatbelt
from bridge.sandbox.process.command import Descriptors, Surroundings
from bridge.sandbox.process.compiling import compiled_for, loader_command
from bridge.sandbox.process.group import Group, Shelf
from bridge.sandbox.process.interpreter import find
from bridge.sandbox.process.plain_backend import Ground, PlainBackend, nobody
from bridge.sandbox.process.rundir import RunDirectory
from bridge.sandbox.process.sandbox import Start
from bridge.sandbox.reaper import current_owner

NAME = "seatbelt"
SYSTEM = "darwin"

UNTESTED = "seatbelt: nobody has tried this backend on macOS yet"

NO_MEMORY = (
    "memory limit: not in force; macOS bounds the memory of no group of processes and ignores that "
    "of one"
)

NO_PIDS = "pids limit: best effort, counted per user; macOS has no control groups"

NO_CPU = "cpu limit: best effort, CPU seconds only; macOS has no control groups"

_LIMITS = frozenset(("RLIMIT_CORE", "RLIMIT_CPU", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_NPROC"))
"""Those that macOS has and keeps to."""


@dataclass(frozen=True, kw_only=True)
class Found(Ground):
    """What was found out about this machine."""

    sandbox_exec: str
    around: Surroundings


class SeatbeltBackend(PlainBackend[Found]):
    """Runs programs under a Seatbelt profile.

    Args:
        environ: The bridge's environment: tells where temporary files go.
        sandbox_exec: The system's command that applies a profile.
        interpreter: The one Python to run; None finds one.
        packages: A virtual environment, or its directory of packages, to import from.
        limits: What the probe runs under.
        system: Which system this is, as `sys.platform` has it.
    """

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        sandbox_exec: str = seatbelt.SANDBOX_EXEC,
        interpreter: str | None = None,
        packages: Path | None = None,
        limits: Limits | None = None,
        system: str = sys.platform,
    ) -> None:
        super().__init__(environ=environ, interpreter=interpreter, packages=packages, limits=limits)
        self._sandbox_exec = sandbox_exec
        self._system = system

    @property
    def name(self) -> str:
        """ "seatbelt"."""
        return NAME

    def _look(self) -> Found:
        if self._system != SYSTEM:
            message = "Only macOS has Seatbelt."
            raise WrongSystemError(message)
        if not os.access(self._sandbox_exec, os.X_OK):
            message = f"{self._sandbox_exec} is not there."
            raise EngineNotFoundError(message, remedy="It is part of macOS; use podman or docker.")
        stranger = os.getuid() == 0
        around = Surroundings(
            landlock_abi=0, cpus=host.usable_cpus(), processes_per_namespace=False
        )
        interpreter = find(packages=self._packages, only=self._interpreter, as_stranger=stranger)
        return Found(
            interpreter=interpreter,
            stage=compiled_for(interpreter),
            base=rundir.base_directory(self._environ.get("TMPDIR"), as_stranger=stranger),
            uid=nobody() if stranger else None,
            owner=current_owner(),
            shelf=Shelf(),
            sandbox_exec=self._sandbox_exec,
            around=around,
        )

    def _start(
        self, found: Found, spec: LaunchSpec, place: RunDirectory, group: Group | None
    ) -> Start:
        paths = seatbelt.resolved(
            seatbelt.Paths(
                executable=found.interpreter.executable,
                readable=tuple(bind.source for bind in found.interpreter.binds),
                writable=str(place.path),
            ),
            os.path.realpath,
        )
        steps = {
            # Capabilities and "no_new_privs" are Linux's. Here nothing else can be executed.
            "privileges": False,
            "rlimits": [
                limit for limit in command.rlimits(spec.limits, found.around) if limit[0] in _LIMITS
            ],
        }

        def inside(descriptors: Descriptors) -> list[str]:
            words = plain.stage_command(found.interpreter, place, descriptors)
            return seatbelt.arguments(paths, words, sandbox_exec=found.sandbox_exec)

        return Start(
            command=loader_command(found.interpreter),
            data=(plain.keeper(),),
            inside=inside,
            stage=lambda descriptors: plain.stage_input(
                spec, found.interpreter, place, descriptors, steps, found.stage
            ),
            options=lambda descriptors: plain.order(spec, place, descriptors, adopts=False),
            environ={},
            uid=found.uid,
            group=group,
            isolation=isolation(spec),
            bwrap_failed=_failed,
            stage_failed=_failed,
            keeps=True,
            handles=False,
        )

    def _success(self, sandbox: Sandbox) -> Probe:
        found = self._found
        assert found is not None  # a sandbox runs
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"seatbelt, Python {found.interpreter.version}",
            isolation=sandbox.isolation,
            details={
                "sandbox-exec": found.sandbox_exec,
                "interpreter": f"{found.interpreter.executable} ({found.interpreter.version})",
                "packages": ", ".join(found.interpreter.packages) or "none",
                "directories": str(found.base),
            },
        )


def isolation(spec: LaunchSpec) -> Isolation:
    """Say which layers a launch puts in force, and what Seatbelt cannot."""
    weaker = [
        UNTESTED,
        NO_MEMORY,
        plain.lacking_processes(adopts=False),
        NO_PIDS,
        plain.NO_ROOM,
    ]
    if spec.limits.cpus is not None:
        weaker.append(NO_CPU)
    return Isolation(
        backend=NAME,
        layers=("seatbelt", "network-calls-refused", "unprivileged-user", "ulimits"),
        weaker=tuple(weaker),
    )


def _failed(said: str) -> SandboxError:
    said = said.strip()[:600]
    return LaunchError(f"Seatbelt did not start the sandbox: {said or 'it said nothing'}.")
