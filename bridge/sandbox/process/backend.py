"""bubblewrap: sandboxes in namespaces of this machine's kernel.

`command` describes the layers. If Landlock or cgroups are missing, the isolation says so; if
another feature is missing, nothing runs.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread

from bridge.errors import SandboxError
from bridge.model import Limits
from bridge.sandbox import proc_entries, syscalls
from bridge.sandbox.backend import LaunchSpec, Sandbox
from bridge.sandbox.ownership import output_of, read_text
from bridge.sandbox.process import command, host, landlock, libseccomp
from bridge.sandbox.process.base import Findings, ProcessBackend
from bridge.sandbox.process.cgroups import PREFIX, SandboxCgroups, scope_cgroups, scope_command
from bridge.sandbox.process.command import Descriptors, SandboxLayout
from bridge.sandbox.process.interpreter import closed_file, compiled_examination, loader_command
from bridge.sandbox.process.sandbox import (
    LaunchPlan,
    LaunchWatchdog,
    ProcessLaunch,
    join_options,
    run_sandbox,
)

_SCOPE_ENVIRONMENT = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
"""What `systemd-run --user` needs; bubblewrap clears it for the sandbox."""


class BubblewrapBackend(ProcessBackend):
    name = title = "bubblewrap"

    def __init__(
        self, *, bwrap: str = "bwrap", seccomp: str = libseccomp.LIBRARY, **common: Any
    ) -> None:
        super().__init__(**common)
        self._bwrap = bwrap
        self._seccomp = seccomp
        self._watchdog = LaunchWatchdog()

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
        code = ""
        if spec.command is not None:
            executable = found.interpreter.executable
            code = await anyio.to_thread.run_sync(compiled_examination, executable)
        async with (
            self._group(found, spec.limits) as group,
            run_sandbox(self._plan(found, spec, group, found.become(uid, gid), code)) as sandbox,
        ):
            if found.systemd_run:
                own, mounts = f"/proc/{sandbox.pid}/cgroup", "/proc/self/mountinfo"
                sandbox.group = scope_cgroups(read_text(own), read_text(mounts))
            yield sandbox

    def _look(self) -> Findings:
        if sys.platform != "linux":
            raise SandboxError("Only Linux has bubblewrap.", code="wrong_system")
        bwrap = host.find_command(self._bwrap, self._environ)
        if bwrap is None:
            message = f"bubblewrap ({self._bwrap}) is not installed."
            raise SandboxError(message, remedy=host.INSTALL_REMEDY, code="engine_not_found")
        found = self._look_at_host(
            host.unprivileged_uid(),
            landlock_abi=landlock.version(),
            masked=proc_entries.masked_here(),
            processes_per_namespace=host.counts_processes_per_namespace(os.uname().release),
            confiner=bwrap,
            filters=libseccomp.filters(self._seccomp),
        )
        self._watchdog.start()
        if found.uid is not None:
            return found
        if not found.around.controllers and (systemd_run := self._find_scopes()):
            controllers = frozenset(("memory", "pids", "cpu"))
            around = replace(found.around, controllers=controllers, limits_elsewhere="")
            found = replace(found, systemd_run=systemd_run, around=around)
        if not closed_file(found.interpreter):
            found = replace(found, ids=host.find_subordinate_ids(command.UID, self._environ))
        return found

    def _find_scopes(self) -> str:
        """Return the path of `systemd-run` if the user's systemd applies limits, else ""."""
        systemd_run = host.find_command("systemd-run", self._environ)
        if systemd_run is None or not self._environ.get("XDG_RUNTIME_DIR"):
            return ""
        unit = f"{PREFIX}-try-{secrets.token_hex(4)}"
        trial = [*scope_command(systemd_run, replace(Limits(), cpus=1.0), unit), "true"]
        return systemd_run if output_of(trial, self._scope_environment()) is not None else ""

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
        words = [*who, found.confiner]
        layout = SandboxLayout(spec, found.interpreter, found.around)
        made, filters = layout.isolation(), found.filters
        # Only the bridge's own user may read the host directories of a sandbox.
        if found.ids is not None and not spec.binds and spec.command is None:
            words = [*found.ids.command(command.UID), *words]
        elif found.uid is None:
            cause = "this user has no subordinate ids that unshare and newuidmap can use"
            if found.ids is not None:
                cause = "the user's directories and files belong to that user"
            made = replace(made, weaker=(*made.weaker, f"{command.SHARED_COUNTERS}; {cause}"))
        environ: dict[str, str] = {}
        if found.systemd_run:
            unit = f"{PREFIX}-{secrets.token_hex(8)}"
            words = [*scope_command(found.systemd_run, spec.limits, unit), *words]
            environ = self._scope_environment()
        settings = partial(host.kernel_settings, found.confiner)
        asked, judge = spec.command, None
        if asked is not None:
            refused = syscalls.NETWORKED_COMMAND if asked.network else syscalls.LOCAL_COMMAND
            filters = (libseccomp.refusal_filter(refused, self._seccomp), *filters[1:])
            judge = partial(command.verify_command, made, layout.places())

        def prepare(descriptors: Descriptors) -> ProcessLaunch:
            return ProcessLaunch(
                inside=loader_command(found.interpreter, str(descriptors.stage)),
                stage=layout.stage_input(descriptors, filters, found.stage, code),
                options=join_options(layout.options(descriptors)),
            )

        return LaunchPlan(
            command=words,
            prepare=prepare,
            files=command.copied_files(spec),
            on_error=asked.on_error if asked is not None else None,
            environ=environ,
            watchdog=self._watchdog,
            group=group,
            memory_bytes=self._watched_memory(found, spec.limits),
            memory_directories=tuple(command.memory_directories(spec)),
            isolation=made,
            judge=judge,
            monitor_failed=lambda said: host.bubblewrap_failed(said, settings()),
            stage_failed=lambda said: host.stage_failed(said, settings()),
        )

    def _details(self, found: Findings) -> Mapping[str, str]:
        groups = ", ".join(sorted(found.around.controllers)) or "none"
        return {
            "bwrap": found.confiner,
            "landlock": f"version {found.around.landlock_abi}",
            "control groups": f"{groups}{' by systemd-run' if found.systemd_run else ''}",
        }
