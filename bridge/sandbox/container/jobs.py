"""Jobs of `run_command` in containers: what differs from a program's container.

Owns the changes to the create call's body and to the account of layers, both pure, and the stream
of a running job. Images are the profile's, so nothing is known of what is in them: executables are
looked up there, and only their names are checked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from bridge.model import Isolation, Json
from bridge.sandbox.backend import ExitReport, LaunchSpec
from bridge.sandbox.binds import has_directories
from bridge.sandbox.container.facts import EngineFacts
from bridge.sandbox.container.hardening import WORKSPACE, Placement
from bridge.sandbox.container.sandbox import ContainerSandbox
from bridge.sandbox.job import STRANGER, JobSpec, group_of
from bridge.sandbox.syscalls import Purpose


def job_user(spec: JobSpec) -> str:
    """Return "uid:gid" for a job: the bridge's own user, or the workspace's owner. Blocks.

    Never root: for a bridge that is root and a workspace of root's it is nobody.
    """
    if os.getuid() != 0:
        return f"{os.getuid()}:{os.getgid()}"
    for mount in spec.mounts:
        if mount.inside == WORKSPACE:
            found = Path(mount.source).stat()
            if found.st_uid != 0:
                return f"{found.st_uid}:{group_of(found.st_uid)}"
    return f"{STRANGER}:{STRANGER}"


def among_directories(placement: Placement, spec: LaunchSpec, facts: EngineFacts) -> Placement:
    """Return where and as whom a program runs that is given directories of the user's. Blocks.

    As with jobs: files there shall belong to whom they belong outside, and be open to no more.
    """
    if not has_directories(spec.binds) or placement.user != f"{STRANGER}:{STRANGER}":
        return placement
    keeps_ids = facts.kind == "podman" and facts.rootless
    user = placement.user
    if os.getuid() != 0:
        user = f"{os.getuid()}:{os.getgid()}"
    else:
        owners = {Path(bind.source).stat().st_uid for bind in spec.binds if bind.writable} - {0}
        if len(owners) == 1:
            uid = owners.pop()
            user = f"{uid}:{group_of(uid)}"
    return replace(placement, user=user, user_namespace="keep-id" if keeps_ids else "")


def placed(
    placement: Placement, spec: JobSpec, facts: EngineFacts, seccomp: Mapping[Purpose, str]
) -> Placement:
    """Return where and as whom a job runs.

    Args:
        seccomp: Our filters, as far as the engine takes them.
    """
    keeps_ids = facts.kind == "podman" and facts.rootless
    return replace(
        placement,
        image=spec.image,
        user=spec.user,
        # Files of the workspace shall belong to whom they belong outside.
        user_namespace="keep-id" if keeps_ids else "",
        seccomp=seccomp.get("networked" if spec.network else "command", ""),
    )


def job_config(config: dict[str, Json], spec: JobSpec) -> dict[str, Json]:
    """Return the body of the create call for a job, made from a program's."""
    host = dict(config["HostConfig"])
    size = spec.limits.tmp_bytes
    tmpfs = {place: text for place, text in host["Tmpfs"].items() if place != WORKSPACE}
    options = next(text for place, text in tmpfs.items() if place == "/tmp")
    host["Tmpfs"] = tmpfs | {place: options for place in spec.writable if size}
    mounts = [(mount.source, mount.inside, mount.writable) for mount in spec.mounts]
    mounts += [(file.source, file.inside, False) for file in spec.files]
    host["Mounts"] = [
        {"Type": "bind", "Source": source, "Target": target, "ReadOnly": not writable}
        for source, target, writable in mounts
    ]
    host["Ulimits"] = [
        *host["Ulimits"],
        {"Name": "cpu", "Soft": spec.cpu_seconds, "Hard": spec.cpu_seconds},
        {"Name": "fsize", "Soft": spec.file_bytes, "Hard": spec.file_bytes},
    ]
    if spec.network:
        host["NetworkMode"] = "default"
        host["Binds"] = []
    return {
        **config,
        "WorkingDir": spec.cwd,
        "NetworkDisabled": not spec.network,
        "HostConfig": host,
    }


def job_isolation(made: Isolation, spec: JobSpec) -> Isolation:
    """Return the account of layers for a job, made from a program's."""
    if not spec.network:
        return made
    layers = tuple(layer for layer in made.layers if layer != "no-network")
    return replace(
        made,
        layers=layers,
        weaker=(*made.weaker, "no network: the profile grants the engine's default network"),
    )


class ContainerJob:
    """A command in a container; see `bridge.sandbox.job.Job`."""

    def __init__(self, sandbox: ContainerSandbox, on_error: Callable[[bytes], None]) -> None:
        self._sandbox = sandbox
        self._stopped = False
        sandbox.stream.on_error(on_error)

    @property
    def isolation(self) -> Isolation:
        """What was put in force."""
        return self._sandbox.isolation

    async def send(self, data: bytes) -> None:
        """Write to stdin; see `Job.send`."""
        await self._sandbox.send(data)

    def end_input(self) -> None:
        """Let stdin end."""
        self._sandbox.stream.end_input()

    async def receive(self) -> bytes:
        """Read from stdout; see `Job.receive`."""
        return b"" if self._stopped else await self._sandbox.receive()

    async def stop_output(self) -> None:
        """End the command: both outputs come on one connection, so none can be refused alone.

        The connection goes first: podman waits for its monitor, which waits for whoever reads.
        """
        self._stopped = True
        self._sandbox.stream.close()
        await self._sandbox.kill()

    async def drain(self) -> None:
        """Take in the rest of stderr; see `Job.drain`."""
        while await self.receive():
            pass

    async def kill(self) -> None:
        """Kill everything in the container."""
        await self._sandbox.kill()

    async def wait(self) -> ExitReport:
        """Wait for the command's end."""
        return await self._sandbox.wait()
