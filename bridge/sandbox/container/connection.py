"""Finds or starts an engine, and keeps one connection to it.

No other OCI runtime replaces the one that the user names.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import get_args

import anyio
import anyio.to_thread

from bridge.atomic_files import replace_file
from bridge.errors import EngineDownError, LaunchError, SandboxError
from bridge.model import HostKernel
from bridge.sandbox.container import endpoints as engines
from bridge.sandbox.container import faults
from bridge.sandbox.container.api import EngineApi, EngineFacts, connect, runtime_name
from bridge.sandbox.container.command_runner import SystemRunner
from bridge.sandbox.container.endpoints import EngineEndpoint, EngineKind
from bridge.sandbox.container.machine import MachineContext, PodmanMachine, ensure_machine
from bridge.sandbox.container.sandbox import Examinations
from bridge.sandbox.container.service import (
    SocketService,
    make_private,
    podman_service,
    ssh_forward,
)
from bridge.sandbox.layers import brings_own_kernel, this_kernel
from bridge.sandbox.syscalls import Purpose, oci_profile

logger = logging.getLogger(__name__)

OWN_SECCOMP = "own-seccomp"
USER_NAMESPACE = "user-namespace"

PURPOSES: tuple[Purpose, ...] = get_args(Purpose)

NAMESPACE_IDS = 65_536  # Enough for all of an image's files and users.
AUTO_NAMESPACE = f"auto:size={NAMESPACE_IDS}"

_DECLINED = (
    (OWN_SECCOMP, re.compile(r"seccomp", re.IGNORECASE)),
    (
        USER_NAMESPACE,
        re.compile(r"available [UG]?IDs|sub[ug]id|user ?ns|user namespace|mappings", re.IGNORECASE),
    ),
)


@cache
def profile_text(purpose: Purpose) -> str:
    return json.dumps(oci_profile(purpose), separators=(",", ":"))


@dataclass(kw_only=True)
class ExtraLayers:
    """The layers that the bridge requests beyond an engine's defaults; it only removes some."""

    # The value of "seccomp=" for each purpose: the profile, or a path.
    seccomp: dict[Purpose, str] = field(default_factory=dict)
    user_namespace: str = ""  # podman's mode; empty for the engine's default.
    lacking: list[str] = field(default_factory=list)

    def drop_declined(self, error: SandboxError, *, proven: bool) -> bool:
        """Remove the layer that caused `error`; return whether there was one.

        If containers have started with these layers (`proven`), the filter is not the cause, and
        an error about ids means that they have run out.
        """
        for layer, about in _DECLINED:
            if not about.search(error.message):
                continue
            cause = f"the engine declined ({faults.one_line(error.message)})"
            if layer == OWN_SECCOMP and self.seccomp and not proven:
                self.seccomp = {}
                self.lacking.append(f"{layer}: {cause}")
                return True
            if layer == USER_NAMESPACE and self.user_namespace:
                self.user_namespace = ""
                if proven:
                    self.lacking.append(f"{layer}: {cause}")
                return True
        return False


def choose_extra_layers(
    facts: EngineFacts, *, oci_runtime: str, runtime_dir: Path, local: bool, owner: int = 0
) -> ExtraLayers:
    """Return the layers to request of an engine of the user `owner`; write podman's file."""
    made = ExtraLayers()
    if brings_own_kernel(oci_runtime):
        # gVisor loads no profile; in a virtual machine it would protect the machine's kernel.
        return made
    if facts.kind == "docker":
        made.seccomp = {purpose: profile_text(purpose) for purpose in PURPOSES}
    elif not facts.seccomp:
        # podman would accept the profile and not apply it.
        made.lacking.append(f"{OWN_SECCOMP}: podman finds no seccomp here")
    elif local and owner not in (0, os.getuid()):
        made.lacking.append(f"{OWN_SECCOMP}: podman is another user's, who cannot read our file")
    elif local:
        try:
            made.seccomp = {on: str(write_profile(runtime_dir, on)) for on in PURPOSES}
        except OSError as error:
            made.lacking.append(f"{OWN_SECCOMP}: its file cannot be written ({error})")
    else:
        made.lacking.append(f"{OWN_SECCOMP}: podman needs a file on its own machine")
    if local and maps_cheaply(facts):
        made.user_namespace = AUTO_NAMESPACE
    return made


def maps_cheaply(facts: EngineFacts) -> bool:
    release = re.match(r"(\d+)\.(\d+)", facts.kernel)
    return (
        facts.kind == "podman"
        and not facts.rootless
        and facts.storage == "overlay"
        and release is not None
        # the kernel that maps owners on overlay mounts
        and tuple(map(int, release.groups())) >= (5, 19)
    )


def write_profile(directory: Path, purpose: Purpose) -> Path:
    text = profile_text(purpose).encode()
    path = directory / f"seccomp-{hashlib.sha256(text).hexdigest()[:16]}.json"
    make_private(directory)
    with suppress(OSError):
        if path.read_bytes() == text:
            return path
    replace_file(path, text)  # Another bridge's podman may be reading.
    return path


@dataclass(kw_only=True)
class EngineConnection:
    """A connected engine.

    Attributes:
        service: The podman service or SSH forward that the bridge started.
        proven: Whether a container has run, so that the OCI runtime works.
        local: Whether the engine has this machine's files and limits.
        shares_files: Whether paths mean the same files; None until boot ids are compared.
        examinations: Results of examining containers for commands.
    """

    api: EngineApi
    facts: EngineFacts
    endpoint: EngineEndpoint
    oci_runtime: str
    service: SocketService | None = None
    proven: bool = False
    local: bool = False
    shares_files: bool | None = None
    host_kernel: HostKernel = HostKernel()
    extra_layers: ExtraLayers = field(default_factory=ExtraLayers)
    examinations: Examinations = field(default_factory=dict)

    async def aclose(self) -> None:
        self.api.close()
        if self.service is not None:
            await self.service.aclose()


@dataclass(kw_only=True)
class Connector:
    """Keeps one connection to an engine. Sandboxes may still use retired connections."""

    engine: str
    runtime_dir: Path
    environ: Mapping[str, str]
    oci_runtime: str | None
    context: MachineContext | None
    run: SystemRunner
    machine: PodmanMachine | None = None
    connection: EngineConnection | None = None
    _kind: EngineKind | None = None
    _connecting: anyio.Lock = field(default_factory=anyio.Lock)
    _retired: list[EngineConnection] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The engine's kind, or its executable's name before the first answer."""
        return self._kind or Path(self.engine).name

    async def ensure_connection(self) -> EngineConnection:
        """Return the connection; connect if there is none or it is dead."""
        async with self._connecting:
            service = self.connection.service if self.connection is not None else None
            if service is not None and not service.running:
                self._give_up()
            if self.connection is None:
                self.connection = await self._connect_first()
            return self.connection

    async def retire(self, dead: EngineConnection) -> None:
        async with self._connecting:
            if self.connection is dead:
                self._give_up()
            if self.machine is not None:
                self.machine.lost()

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            self._give_up()
            while self._retired:
                await self._retired.pop().aclose()
            machine, self.machine = self.machine, None
            if machine is not None:
                await machine.aclose()

    def _give_up(self) -> None:
        if self.connection is not None:
            self._retired.append(self.connection)
            self.connection = None

    async def _connect_first(self) -> EngineConnection:
        kind = self._kind = self._kind or await engines.kind_of(self.engine, self.run)
        refused: SandboxError | None = None
        for endpoint in await self._endpoints(kind):
            try:
                connection = await self._connect_to(endpoint)
            except SandboxError as error:
                if error.code == "engine_permission":
                    # A later socket may admit this user, for example a rootless engine's.
                    refused = refused or error
                elif endpoint.explicit or not faults.is_absent(error):
                    raise
                continue
            # podman ignores the requested runtime and uses its service's.
            has, wanted = connection.facts.oci_runtime, self.oci_runtime
            if connection.facts.kind == "docker" or not wanted or runtime_name(wanted) == has:
                return connection
            await connection.aclose()
            if endpoint.explicit:
                message = f"podman at {endpoint.url} starts {has}, not {wanted}."
                raise LaunchError(
                    message, remedy=faults.OWN_PODMAN_REMEDY, code="oci_runtime_broken"
                )
            refused = None
            break
        if refused is not None:
            raise refused
        command = self._which(self.engine)
        if kind == "podman" and command is not None:
            own = podman_service(command, self.runtime_dir, self.environ, self.oci_runtime)
            return await self._connect_through(own)
        if command is None and (kind == "podman" or self._which("dockerd") is None):
            raise faults.not_found(kind)
        raise faults.down("docker", "docker is installed, but its daemon is not running.")

    def _which(self, command: str) -> str | None:
        return shutil.which(command, path=self.environ.get("PATH"))

    async def _endpoints(self, kind: EngineKind) -> Sequence[EngineEndpoint]:
        """Return the endpoint that the user names, or the usual ones."""
        if kind == "podman":
            if self.context is not None and self.machine is None:
                self.machine = await ensure_machine(self.context)
            if self.machine is not None:
                return [await self.machine.endpoint()]
            named = await engines.podman_connection(self.engine, self.environ, self.run)
            if named is not None:
                return [named]
        return engines.candidates(kind, self.environ)

    async def _connect_to(self, endpoint: EngineEndpoint) -> EngineConnection:
        """Connect to an endpoint, through a forward if it is behind SSH."""
        if endpoint.exposed:
            text = "%s (%s) has no TLS: anyone on the network can control it; use ssh:// or TLS"
            logger.warning(text, endpoint.url, endpoint.origin)
        if endpoint.target is None:
            return await self._connect(endpoint)
        if self._which("ssh") is None:
            message = f"{endpoint.origin} names an engine over SSH, and OpenSSH is not installed."
            raise EngineDownError(message, remedy="Install openssh-client.")
        return await self._connect_through(
            ssh_forward(endpoint, endpoint.target, self.runtime_dir, self.environ)
        )

    async def _connect_through(self, service: SocketService) -> EngineConnection:
        endpoint = await service.start()
        try:
            return await self._connect(endpoint, service)
        except BaseException as error:
            # Closing removes the log.
            reason = service.failure() if endpoint.remote else None
            await service.aclose()
            if reason is not None and isinstance(error, EngineDownError):
                raise reason from error
            raise

    async def _connect(
        self, endpoint: EngineEndpoint, service: SocketService | None = None
    ) -> EngineConnection:
        api = await connect(endpoint, asked=self._kind or "docker")
        try:
            facts = await api.facts()
        except BaseException:
            api.close()
            raise
        named = self.oci_runtime if facts.kind == "docker" else None
        wanted = named or facts.oci_runtime
        if wanted in facts.unlimited:
            facts = replace(facts, limits_memory=False, limits_pids=False, limits_cpu=False)
        here = this_kernel()
        local = not endpoint.elsewhere and self.machine is None
        # A socket of this machine may lead to a virtual machine.
        local = local and facts.kernel in ("", here.release)
        owner, path = 0, endpoint.socket_path
        with suppress(OSError):
            owner = path.stat().st_uid if path is not None else 0
        choose = partial(choose_extra_layers, facts, oci_runtime=wanted, local=local, owner=owner)
        extra = await anyio.to_thread.run_sync(partial(choose, runtime_dir=self.runtime_dir))
        # Without boot ids to compare, a local socket counts as this machine's engine.
        ours = service is not None or brings_own_kernel(wanted) or not here.boot_id
        return EngineConnection(
            api=api,
            facts=facts,
            endpoint=endpoint,
            oci_runtime=wanted,
            service=service,
            local=local,
            shares_files=False if endpoint.elsewhere else ours or None,
            host_kernel=here if local else HostKernel(release=facts.kernel),
            extra_layers=extra,
        )
