"""What the backends of this machine's kernel have in common: findings, probing, reaping.

Each makes its own findings about the machine, once, and puts its own sandboxes together; see there
for what they enforce.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import anyio.to_thread

from bridge.model import Limits
from bridge.sandbox.backend import Backend, Probe, Sandbox
from bridge.sandbox.ownership import Owner
from bridge.sandbox.probe import run_probe
from bridge.sandbox.process import host
from bridge.sandbox.process.cgroups import CgroupManager, CgroupParents, reap
from bridge.sandbox.process.command import ProcessSurroundings
from bridge.sandbox.process.interpreter import Interpreter


@dataclass(frozen=True, kw_only=True)
class BaseFindings:
    """Facts about this machine, found once per backend.

    Attributes:
        uid: The programs' user outside; None for the bridge's own.
        setpriv: Path of the command that changes the user; empty if not needed or not installed.
        cgroup_parents: Where cgroups are made; may be empty.
    """

    interpreter: Interpreter
    stage: bytes
    owner: Owner
    uid: int | None
    around: ProcessSurroundings
    setpriv: str = ""
    cgroup_parents: CgroupParents = ()

    def become(self, uid: int | None, gid: int | None) -> list[str]:
        """Return the words that start a command as a user; None for the bridge's own."""
        python = self.interpreter.executable
        return host.become(uid, gid, setpriv=self.setpriv, python=python)


F = TypeVar("F", bound=BaseFindings)


class ProcessBackend(Backend, Generic[F]):
    """Runs sandboxes on this machine's kernel. Enter before use; examines it at first use.

    Attributes:
        title: What the probe's summary calls it.

    Args:
        environ: The bridge's environment.
        interpreter: The Python to run; None finds one.
        packages: A virtual environment, or its directory of packages, to import from, read-only.
    """

    title: str

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        interpreter: str | None = None,
        packages: Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._environ = environ
        self._interpreter = interpreter
        self._packages = packages
        self._limits = limits or Limits()
        self._lock = anyio.Lock()
        self._found: F | None = None
        self._groups = CgroupManager()

    @abstractmethod
    def _look(self) -> F:
        """Return the findings about this machine. Blocks."""

    @abstractmethod
    def _details(self, found: F) -> Mapping[str, str]:
        """Return what `doctor` shows beyond the interpreter and packages."""

    async def aclose(self) -> None:
        await self._groups.aclose()

    async def probe(self) -> Probe:
        return await run_probe(self.name, self.launch, self._success, self._limits)

    async def reap(self) -> int:
        """Remove what dead bridges left: their processes ended with them."""
        found = await self._look_around()
        return await anyio.to_thread.run_sync(reap, found.cgroup_parents, found.owner)

    async def _look_around(self) -> F:
        async with self._lock:
            if self._found is None:
                self._found = await anyio.to_thread.run_sync(self._look)
            return self._found

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
            },
        )
