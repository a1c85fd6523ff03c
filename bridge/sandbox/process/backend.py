"""bubblewrap: sandboxes in namespaces of this machine's kernel.

Owns launching, probing, reaping what dead bridges left, and the findings made once per backend:
interpreter, filters, cgroups. The layers are described in `command`; the life of one sandbox is in
`sandbox`.

There is one way to put a sandbox together. Where an optional kernel feature is missing (Landlock,
cgroups) the isolation says so; where anything else is missing, nothing runs.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.errors import WrongSystemError
from bridge.model import Limits
from bridge.sandbox import proc_entries, syscalls
from bridge.sandbox.backend import Backend, LaunchSpec, Probe, Sandbox
from bridge.sandbox.ownership import Owner, current_owner
from bridge.sandbox.probe import run_probe
from bridge.sandbox.process import command, faults, host, landlock, libseccomp
from bridge.sandbox.process.cgroups import (
    PREFIX,
    SCOPE_SECONDS,
    CgroupManager,
    CgroupParents,
    SandboxCgroups,
    find_cgroup_parents,
    missing_controllers,
    reap,
    scope_command,
)
from bridge.sandbox.process.command import Surroundings
from bridge.sandbox.process.examination import compiled, judged
from bridge.sandbox.process.interpreter import Interpreter, closed_file, find
from bridge.sandbox.process.sandbox import LaunchPlan, joined, run_sandbox
from bridge.sandbox.process.stage_loader import compiled_stage, loader_command
from bridge.sandbox.process.watchdog import LaunchWatchdog

_SCOPE_ENVIRONMENT = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""What `systemd-run --user` needs; bubblewrap clears it for the sandbox."""


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Facts about this machine, found once per backend.

    Attributes:
        systemd_run: Path of the command that makes scopes; empty if cgroups are made directly, or
            not at all.
        setpriv: Path of the command that changes the user; empty if not needed or not installed.
        ids: What programs run as outside; None for the bridge's user, or nobody for root's.
    """

    bwrap: str
    interpreter: Interpreter
    stage: bytes
    filters: tuple[bytes, ...]
    around: Surroundings
    cgroup_parents: CgroupParents
    owner: Owner
    systemd_run: str = ""
    setpriv: str = ""
    ids: host.SubordinateIds | None = None


class BubblewrapBackend(Backend):
    """Runs sandboxes in namespaces. Enter it before use; it examines the machine at first use.

    Args:
        environ: The bridge's environment, for the search path and the user's systemd.
        interpreter: The Python to put inside; None finds one.
        packages: A directory of packages, such as a virtual environment's `site-packages`, that
            programs may import from, read-only.
        seccomp: File name of libseccomp, for the loader.
    """

    name = "bubblewrap"

    def __init__(
        self,
        *,
        environ: Mapping[str, str],
        bwrap: str = "bwrap",
        interpreter: str | None = None,
        packages: Path | None = None,
        limits: Limits | None = None,
        seccomp: str = libseccomp.LIBRARY,
    ) -> None:
        self._environ = environ
        self._bwrap = bwrap
        self._interpreter = interpreter
        self._packages = packages
        self._limits = limits or Limits()
        self._seccomp = seccomp
        # The user of sandboxes outside; None for the bridge's own. Set when the bridge is root.
        self._uid: int | None = None
        self._lock = anyio.Lock()
        self._found: Findings | None = None
        self._groups = CgroupManager()
        self._watchdog = LaunchWatchdog()
        self._examination = ""

    def __repr__(self) -> str:
        return f"<BubblewrapBackend {self._bwrap} unremoved={len(self._groups)}>"

    async def aclose(self) -> None:
        await self._groups.aclose()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._watchdog.close)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        found = await self._look_around()
        uid, gid, code = self._uid, self._uid, ""
        if spec.binds:
            uid, gid = await anyio.to_thread.run_sync(host.outside_ids, spec, self._uid)
        if spec.command is not None:
            code = await self._examining(found)
        async with self._groups.group(found.cgroup_parents, found.owner, spec.limits) as group:
            start = replace(self._start(found, spec, group, code), uid=uid, gid=gid)
            async with run_sandbox(start) as sandbox:
                if found.systemd_run:
                    await anyio.to_thread.run_sync(sandbox.find_group)
                yield sandbox

    async def probe(self) -> Probe:
        return await run_probe(self.name, self.launch, self._success, self._limits)

    async def reap(self) -> int:
        """Remove what dead bridges left.

        The kernel ended their processes with them; only cgroups can be left.
        """
        found = await self._look_around()
        return await anyio.to_thread.run_sync(reap, found.cgroup_parents, found.owner)

    async def _examining(self, found: Findings) -> str:
        async with self._lock:
            if not self._examination:
                executable = found.interpreter.executable
                self._examination = await anyio.to_thread.run_sync(compiled, executable)
            return self._examination

    async def _look_around(self) -> Findings:
        async with self._lock:
            if self._found is None:
                self._found = await anyio.to_thread.run_sync(self._look)
                await anyio.to_thread.run_sync(self._watchdog.start)
            return self._found

    def _look(self) -> Findings:
        if sys.platform != "linux":
            raise WrongSystemError("Only Linux has bubblewrap.")
        if os.getuid() == 0 and host.is_mapped(command.UID, host.text("/proc/self/uid_map")):
            self._uid = command.UID
        bwrap = host.find_command(self._bwrap, self._environ)
        if bwrap is None:
            raise faults.not_installed(self._bwrap)
        interpreter = find(
            packages=self._packages, only=self._interpreter, as_nobody=self._uid is not None
        )
        owner = current_owner()
        cgroup_parents = find_cgroup_parents(
            host.text("/proc/self/cgroup"), host.text("/proc/self/mountinfo"), owner
        )
        systemd_run = ""
        controllers = cgroup_parents.controllers
        if not controllers and self._uid is None:
            systemd_run = self._find_scopes()
            controllers = frozenset(("memory", "pids", "cpu")) if systemd_run else controllers
        ids = None
        if self._uid is None and not closed_file(interpreter):
            ids = host.find_subordinate_ids(command.UID, self._environ)
        around = Surroundings(
            landlock_abi=landlock.version(),
            cpus=host.usable_cpus(),
            masked=proc_entries.masked_here(),
            controllers=controllers,
            limits_elsewhere=missing_controllers(sorted(controllers), root=self._uid is not None),
            processes_per_namespace=host.counts_processes_per_namespace(os.uname().release),
        )
        return Findings(
            bwrap=bwrap,
            interpreter=interpreter,
            stage=compiled_stage(interpreter),
            filters=libseccomp.filters(self._seccomp),
            around=around,
            cgroup_parents=cgroup_parents,
            owner=owner,
            systemd_run=systemd_run,
            setpriv="" if self._uid is None else host.find_setpriv(self._uid, self._environ),
            ids=ids,
        )

    def _find_scopes(self) -> str:
        """Return the path of `systemd-run` if the user's systemd applies limits; else empty."""
        systemd_run = host.find_command("systemd-run", self._environ)
        if systemd_run is None or not self._environ.get("XDG_RUNTIME_DIR"):
            return ""
        unit = f"{PREFIX}-try-{secrets.token_hex(4)}"
        trial = [*scope_command(systemd_run, replace(Limits(), cpus=1.0), unit), "true"]
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(
                trial,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=self._scope_environment(),
                timeout=SCOPE_SECONDS,
                check=True,
            )
            return systemd_run
        return ""

    def _scope_environment(self) -> dict[str, str]:
        return {k: v for k, v in self._environ.items() if k in _SCOPE_ENVIRONMENT}

    def _start(
        self, found: Findings, spec: LaunchSpec, group: SandboxCgroups | None, code: str
    ) -> LaunchPlan:
        words = [found.bwrap]
        made, filters = command.isolation(spec, found.around), found.filters
        # What a sandbox is granted of the host belongs to the bridge's user.
        if found.ids is not None and not spec.binds and spec.command is None:
            words = [*found.ids.command(command.UID), *words]
        elif self._uid is None:
            shared = command.shared_counters(found.ids is not None)
            made = replace(made, weaker=(*made.weaker, shared))
        environ: dict[str, str] = {}
        if found.systemd_run:
            unit = f"{PREFIX}-{secrets.token_hex(8)}"
            words = [*scope_command(found.systemd_run, spec.limits, unit), *words]
            environ = self._scope_environment()
        settings = partial(host.kernel_settings, found.bwrap)
        asked = spec.command
        if asked is not None:
            refused = syscalls.NETWORKED_COMMAND if asked.network else syscalls.LOCAL_COMMAND
            filters = (libseccomp.refusal_filter(refused, self._seccomp), *filters[1:])
        return LaunchPlan(
            command=words,
            inside=lambda descriptors: loader_command(found.interpreter, str(descriptors.stage)),
            stage=lambda descriptors: command.stage_input(
                spec, found.interpreter, found.around, descriptors, filters, found.stage, code
            ),
            options=lambda descriptors: joined(
                command.options(spec, found.interpreter, found.around, descriptors)
            ),
            texts={"passwd": command.passwd(spec), "group": command.GROUP},
            data=tuple(file.data for file in asked.files) if asked is not None else (),
            on_error=asked.on_error if asked is not None else None,
            environ=environ,
            uid=self._uid,
            setpriv=found.setpriv,
            watchdog=self._watchdog,
            group=group,
            memory_bytes=command.watched_memory(spec, found.around),
            memory_directories=tuple(command.memory_directories(spec)),
            isolation=made,
            judge=None
            if asked is None
            else partial(judged, made, places=command.places(spec, found.interpreter)),
            monitor_failed=lambda said: faults.classify(said, settings()),
            stage_failed=lambda said: faults.stage_failed(said, settings()),
        )

    def _success(self, sandbox: Sandbox) -> Probe:
        found = self._found
        assert found is not None  # a sandbox runs
        who = "as root, sandboxes as nobody" if self._uid is not None else "as an ordinary user"
        groups = ", ".join(sorted(found.around.controllers)) or "none"
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"bubblewrap {who}, Python {found.interpreter.version}",
            isolation=sandbox.isolation,
            details={
                "bwrap": found.bwrap,
                "interpreter": f"{found.interpreter.executable} ({found.interpreter.version})",
                "landlock": f"version {found.around.landlock_abi}",
                "control groups": f"{groups}{' by systemd-run' if found.systemd_run else ''}",
                "packages": ", ".join(found.interpreter.packages) or "none",
            },
        )
