"""bubblewrap: sandboxes in namespaces of this machine's kernel.

Owns launching. The layers are described in `command`; the life of one sandbox is in `sandbox`.

There is one way to put a sandbox together. Where an optional kernel feature is missing (Landlock,
cgroups) the isolation says so; where anything else is missing, nothing runs.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.errors import SandboxError
from bridge.model import Limits
from bridge.sandbox import proc_entries, syscalls
from bridge.sandbox.backend import LaunchSpec, Sandbox
from bridge.sandbox.ownership import current_owner
from bridge.sandbox.process import command, faults, host, landlock, libseccomp
from bridge.sandbox.process.base import BaseFindings, ProcessBackend
from bridge.sandbox.process.cgroups import (
    PREFIX,
    SandboxCgroups,
    find_cgroup_parents,
    limited_by,
    missing_controllers,
    scope_command,
)
from bridge.sandbox.process.command import Descriptors, ProcessSurroundings
from bridge.sandbox.process.examination import compiled, judged
from bridge.sandbox.process.interpreter import closed_file, find
from bridge.sandbox.process.sandbox import LaunchPlan, ProcessLaunch, joined, run_sandbox
from bridge.sandbox.process.stage_loader import compiled_stage, loader_command
from bridge.sandbox.process.watchdog import LaunchWatchdog

_SCOPE_ENVIRONMENT = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""What `systemd-run --user` needs; bubblewrap clears it for the sandbox."""


@dataclass(frozen=True, kw_only=True)
class Findings(BaseFindings):
    """Facts about this machine, found once per backend.

    Attributes:
        systemd_run: Path of the command that makes scopes; empty if cgroups are made directly, or
            not at all.
        ids: What programs run as outside; None for the bridge's user, or nobody for root's.
    """

    bwrap: str
    filters: tuple[bytes, ...]
    systemd_run: str = ""
    ids: host.SubordinateIds | None = None


class BubblewrapBackend(ProcessBackend[Findings]):
    """Runs sandboxes in namespaces.

    Args:
        seccomp: File name of libseccomp, for the loader.
    """

    name = title = "bubblewrap"

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
        super().__init__(environ=environ, interpreter=interpreter, packages=packages, limits=limits)
        self._bwrap = bwrap
        self._seccomp = seccomp
        self._watchdog = LaunchWatchdog()
        self._examination = ""

    async def aclose(self) -> None:
        await super().aclose()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._watchdog.close)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        found = await self._look_around()
        uid = gid = found.uid
        if spec.binds:
            uid, gid = await anyio.to_thread.run_sync(host.outside_ids, spec, found.uid)
        code = await self._examining(found) if spec.command is not None else ""
        who = found.become(uid, gid)
        async with (
            self._groups.group(found.cgroup_parents, found.owner, spec.limits) as group,
            run_sandbox(self._plan(found, spec, group, who, code)) as sandbox,
        ):
            if found.systemd_run:
                await anyio.to_thread.run_sync(sandbox.find_group)
            yield sandbox

    async def _examining(self, found: Findings) -> str:
        async with self._lock:
            if not self._examination:
                executable = found.interpreter.executable
                self._examination = await anyio.to_thread.run_sync(compiled, executable)
            return self._examination

    def _look(self) -> Findings:
        if sys.platform != "linux":
            raise SandboxError("Only Linux has bubblewrap.", code="wrong_system")
        bwrap = host.find_command(self._bwrap, self._environ)
        if bwrap is None:
            raise faults.not_installed(self._bwrap)
        uid = host.nobody()
        interpreter = find(
            packages=self._packages, only=self._interpreter, as_nobody=uid is not None
        )
        self._watchdog.start()
        owner = current_owner()
        parents = find_cgroup_parents(owner)
        controllers = limited_by(parents)
        systemd_run = ""
        if not controllers and uid is None:
            systemd_run = self._find_scopes()
            controllers = frozenset(("memory", "pids", "cpu")) if systemd_run else controllers
        ids = None
        if uid is None and not closed_file(interpreter):
            ids = host.find_subordinate_ids(command.UID, self._environ)
        return Findings(
            bwrap=bwrap,
            interpreter=interpreter,
            stage=compiled_stage(interpreter),
            filters=libseccomp.filters(self._seccomp),
            around=ProcessSurroundings(
                landlock_abi=landlock.version(),
                cpus=host.usable_cpus(),
                masked=proc_entries.masked_here(),
                controllers=controllers,
                limits_elsewhere=missing_controllers(controllers, root=uid is not None),
                processes_per_namespace=host.counts_processes_per_namespace(os.uname().release),
            ),
            cgroup_parents=parents,
            owner=owner,
            uid=uid,
            systemd_run=systemd_run,
            setpriv="" if uid is None else host.find_setpriv(self._environ),
            ids=ids,
        )

    def _find_scopes(self) -> str:
        """Return the path of `systemd-run` if the user's systemd applies limits; else empty."""
        systemd_run = host.find_command("systemd-run", self._environ)
        if systemd_run is None or not self._environ.get("XDG_RUNTIME_DIR"):
            return ""
        unit = f"{PREFIX}-try-{secrets.token_hex(4)}"
        trial = [*scope_command(systemd_run, replace(Limits(), cpus=1.0), unit), "true"]
        return systemd_run if host.printed(trial, self._scope_environment()) is not None else ""

    def _scope_environment(self) -> dict[str, str]:
        return {k: v for k, v in self._environ.items() if k in _SCOPE_ENVIRONMENT}

    def _plan(
        self,
        found: Findings,
        spec: LaunchSpec,
        group: SandboxCgroups | None,
        who: list[str],
        code: str,
    ) -> LaunchPlan:
        words = [*who, found.bwrap]
        made, filters = command.isolation(spec, found.around), found.filters
        # What a sandbox is granted of the host belongs to the bridge's user.
        if found.ids is not None and not spec.binds and spec.command is None:
            words = [*found.ids.command(command.UID), *words]
        elif found.uid is None:
            shared = command.shared_counters(found.ids is not None)
            made = replace(made, weaker=(*made.weaker, shared))
        environ: dict[str, str] = {}
        if found.systemd_run:
            unit = f"{PREFIX}-{secrets.token_hex(8)}"
            words = [*scope_command(found.systemd_run, spec.limits, unit), *words]
            environ = self._scope_environment()
        settings = partial(host.kernel_settings, found.bwrap)
        asked, judge = spec.command, None
        if asked is not None:
            refused = syscalls.NETWORKED_COMMAND if asked.network else syscalls.LOCAL_COMMAND
            filters = (libseccomp.refusal_filter(refused, self._seccomp), *filters[1:])
            judge = partial(judged, made, places=command.places(spec, found.interpreter))

        def prepare(descriptors: Descriptors) -> ProcessLaunch:
            python, around = found.interpreter, found.around
            return ProcessLaunch(
                inside=loader_command(python, str(descriptors.stage)),
                stage=command.stage_input(
                    spec, python, around, descriptors, filters, found.stage, code
                ),
                options=joined(command.options(spec, python, around, descriptors)),
            )

        return LaunchPlan(
            command=words,
            prepare=prepare,
            files=command.copied_files(spec),
            on_error=asked.on_error if asked is not None else None,
            environ=environ,
            watchdog=self._watchdog,
            group=group,
            memory_bytes=command.watched_memory(spec, found.around),
            memory_directories=tuple(command.memory_directories(spec)),
            isolation=made,
            judge=judge,
            monitor_failed=lambda said: faults.classify(said, settings()),
            stage_failed=lambda said: faults.stage_failed(said, settings()),
        )

    def _details(self, found: Findings) -> Mapping[str, str]:
        groups = ", ".join(sorted(found.around.controllers)) or "none"
        return {
            "bwrap": found.bwrap,
            "landlock": f"version {found.around.landlock_abi}",
            "control groups": f"{groups}{' by systemd-run' if found.systemd_run else ''}",
        }
