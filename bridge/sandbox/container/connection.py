"""Finds or starts an engine, and keeps one connection to it.

No other OCI runtime replaces the one that the user names.

The bridge starts a podman service, or OpenSSH's client as a forward, with a private socket. Such a
process ends with the bridge: at `aclose`, by a signal if the bridge is killed (on Linux), or by the
next bridge.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import get_args

import anyio.to_thread
from anyio.abc import Process

from bridge.atomic_files import replace_file
from bridge.errors import EngineDownError, LaunchError, SandboxError
from bridge.model import HostKernel
from bridge.private_files import exposure, make_directory
from bridge.sandbox.container import endpoints as engines
from bridge.sandbox.container import faults
from bridge.sandbox.container.api import EngineApi, EngineFacts, connect, runtime_name
from bridge.sandbox.container.command_runner import SystemRunner, end_group, open_group
from bridge.sandbox.container.endpoints import EngineEndpoint, EngineKind, SshTarget
from bridge.sandbox.container.machine import MachineContext, PodmanMachine, ensure_machine
from bridge.sandbox.container.sandbox import Examinations
from bridge.sandbox.layers import brings_own_kernel, this_kernel
from bridge.sandbox.ownership import Owner, current_owner, is_dead
from bridge.sandbox.syscalls import Purpose, oci_profile

logger = logging.getLogger(__name__)

OWN_SECCOMP = "own-seccomp"
USER_NAMESPACE = "user-namespace"

PURPOSES: tuple[Purpose, ...] = get_args(Purpose)

NAMESPACE_IDS = 65_536  # Enough for all of an image's files and users.
AUTO_NAMESPACE = f"auto:size={NAMESPACE_IDS}"

_ABOUT_IDS = re.compile(r"available [UG]?IDs|sub[ug]id|user ?ns|user namespace|mappings", re.I)


@cache
def profile_text(purpose: Purpose) -> str:
    return json.dumps(oci_profile(purpose), separators=(",", ":"))


@dataclass(kw_only=True)
class ExtraLayers:
    """The isolation layers beyond an engine's defaults. `lacking` says why others are missing."""

    # The value of "seccomp=" for each purpose: the profile, or a path.
    seccomp: dict[Purpose, str] = field(default_factory=dict)
    user_namespace: str = ""  # podman's mode; empty for the engine's default.
    lacking: list[str] = field(default_factory=list)

    def drop_declined(self, error: SandboxError, *, proven: bool) -> bool:
        """Remove the layer that caused `error`; return whether there was one.

        If containers have started with these layers (`proven`), the filter is not the cause, and
        an error about ids means that they have run out.
        """
        cause = f"the engine declined ({faults.one_line(error.message)})"
        if self.seccomp and not proven and re.search("seccomp", error.message, re.IGNORECASE):
            self.seccomp = {}
            self.lacking.append(f"{OWN_SECCOMP}: {cause}")
            return True
        if self.user_namespace and _ABOUT_IDS.search(error.message):
            self.user_namespace = ""
            if proven:
                self.lacking.append(f"{USER_NAMESPACE}: {cause}")
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
    """A container engine's open API, with the facts that the bridge found about the engine."""

    api: EngineApi
    facts: EngineFacts
    endpoint: EngineEndpoint
    oci_runtime: str
    # The podman service or SSH forward that the bridge started.
    service: SocketService | None = None
    proven: bool = False  # Whether a container has run, so that the OCI runtime works.
    local: bool = False  # Whether the engine has this machine's files and limits.
    # Whether paths mean the same files; None until boot ids are compared.
    shares_files: bool | None = None
    host_kernel: HostKernel = HostKernel()
    extra_layers: ExtraLayers = field(default_factory=ExtraLayers)
    # Results of examining containers for commands.
    examinations: Examinations = field(default_factory=dict)

    async def aclose(self) -> None:
        self.api.close()
        if self.service is not None:
            await self.service.aclose()


async def kind_of(command: str, run: SystemRunner) -> EngineKind:
    if command == "docker" or command == "podman":
        return "docker" if command == "docker" else "podman"
    result = await run([command, "--version"], timeout=20.0)
    said = result.stdout.lower()
    if result.missing:
        raise faults.not_found(command)
    if "podman" in said:
        return "podman"
    if "docker" in said:
        return "docker"
    heard = faults.one_line(said or result.stderr)
    message = f"{command} is neither podman nor docker. It says: {heard}."
    remedy = "Set MCP_BRIDGE_RUNTIME to podman, docker, or the path of either."
    raise EngineDownError(message, remedy=remedy)


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
        kind = self._kind = self._kind or await kind_of(self.engine, self.run)
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
                remedy = faults.OWN_PODMAN_REMEDY
                raise LaunchError(message, remedy=remedy, code="oci_runtime_broken")
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
            facts = replace(facts, controllers=frozenset())
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


START_SECONDS = 30.0  # Until the socket accepts; a first start sets up storage.

_OWNER_FILE = "owner"
_SOCKET = "engine.sock"
_LOG = "service.log"

# Requests SIGTERM at the parent's death, checks that the parent lives, and becomes podman.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""


def service_argv(podman: str, socket: Path, oci_runtime: str | None) -> list[str]:
    argv = [podman, *(("--runtime", oci_runtime) if oci_runtime else ())]
    if oci_runtime and Path(oci_runtime).name == "runsc":
        # By default gVisor requires a network.
        argv += ["--runtime-flag", "network=none"]
    return [*argv, "system", "service", "--time=0", f"unix://{socket}"]


def service_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the bridge's environment without variables that make podman a remote client."""
    remote = ("CONTAINER_HOST", "CONTAINER_SSHKEY", "CONTAINER_CONNECTION")
    return {name: value for name, value in environ.items() if name not in remote}


@dataclass
class SocketService:
    """A process that provides an engine's socket in a private directory."""

    prefix: str
    runtime_dir: Path
    environ: Mapping[str, str]
    endpoint: EngineEndpoint
    argv: Callable[[Path], list[str]]  # Returns the command line for a socket.
    # Returns the error of a failed process, from its output and whether it timed out.
    explain: Callable[[str, bool], SandboxError]
    _process: Process | None = None

    def __post_init__(self) -> None:
        self._directory = self.runtime_dir / f"{self.prefix}-{os.getpid()}-{secrets.token_hex(3)}"

    @property
    def socket(self) -> Path:
        return self._directory / _SOCKET

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> EngineEndpoint:
        # The kernel's limit is 108 on Linux and 104 on macOS.
        if len(os.fsencode(self.socket)) > 100:
            message = f"{self.socket} is too long a path for a socket."
            raise EngineDownError(message, remedy="Set XDG_RUNTIME_DIR to a shorter directory.")
        try:
            make_private(self.runtime_dir)
            self._directory.mkdir(mode=0o700)
            (self._directory / _OWNER_FILE).write_text(str(current_owner()), encoding="utf-8")
        except OSError as error:
            message = f"The bridge cannot make a directory for the engine's socket: {error}."
            remedy = "Set XDG_RUNTIME_DIR to a directory of this user."
            raise EngineDownError(message, remedy=remedy) from error
        try:
            self._process = await self._spawn()
            await self._wait_listening(self._process)
        except BaseException:
            await self.aclose()
            raise
        return replace(self.endpoint, url=f"unix://{self.socket}")

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            process, self._process = self._process, None
            if process is not None:
                await end_group(process)
            shutil.rmtree(self._directory, ignore_errors=True)

    def failure(self, *, timed_out: bool = False) -> SandboxError:
        said = ""
        with suppress(OSError):
            said = (self._directory / _LOG).read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
        return self.explain(said.strip(), timed_out)

    async def _spawn(self) -> Process:
        argv = self.argv(self.socket)
        if sys.platform == "linux":
            wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
            argv = [*wrapper, *argv]
        with (self._directory / _LOG).open("wb") as log:
            try:
                # conmon writes a file into its working directory after an out-of-memory kill.
                return await open_group(argv, log, log, self.environ, self._directory)
            except OSError as error:
                raise self.explain(str(error), False) from error

    async def _wait_listening(self, process: Process) -> None:
        with anyio.move_on_after(START_SECONDS):
            while process.returncode is None:
                with suppress(OSError):
                    await (await anyio.connect_unix(self.socket)).aclose()
                    return
                await anyio.sleep(0.02)  # podman does not signal its readiness
        raise self.failure(timed_out=process.returncode is None)


def podman_service(
    podman: str, runtime_dir: Path, environ: Mapping[str, str], oci_runtime: str | None = None
) -> SocketService:
    def explain(said: str, timed_out: bool) -> SandboxError:
        doing = f"listen within {START_SECONDS:g} s" if timed_out else "start its service"
        failure = faults.from_text(said or "it wrote nothing", doing=doing, engine="podman")
        if failure.code == LaunchError.code:
            return faults.down("podman", failure.message)
        return failure

    return SocketService(
        "podman",
        runtime_dir,
        service_environment(environ),
        EngineEndpoint(url="", origin="the bridge's own podman service"),
        lambda socket: service_argv(podman, socket, oci_runtime),
        explain,
    )


def ssh_forward(
    far: EngineEndpoint, target: SshTarget, runtime_dir: Path, environ: Mapping[str, str]
) -> SocketService:
    """Return a forward of another machine's engine socket, with the user's OpenSSH settings."""
    names = ("HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK")
    passed = {name: environ[name] for name in names if name in environ}
    origin = f"{far.origin}, over SSH to {target.destination}"
    return SocketService(
        "ssh",
        runtime_dir,
        {**passed, "LC_ALL": "C"},  # for messages in English
        replace(far, origin=origin, target=None, remote=True),
        # ssh writes a line for each failed connection; the log has at most a megabyte.
        lambda socket: ["sh", "-c", 'ulimit -f 2048; exec "$@"', "sh", *target.argv(socket)],
        lambda said, _: target.failure(said),
    )


def make_private(directory: Path) -> Path:
    """Make a directory, unless it exists; return it.

    Raises:
        PermissionError: It is a link, or another user owns it or may write to or replace it.
    """
    make_directory(directory)
    status, (others, _) = directory.lstat(), exposure(directory)
    if status.st_uid != os.getuid() or others or not stat.S_ISDIR(status.st_mode):
        reason = others or "it belongs to another user or is a link"
        raise PermissionError(errno.EPERM, reason, str(directory))
    return directory


def reap_services(runtime_dir: Path) -> int:
    """Remove dead bridges' directories and end their services; return their number. Blocks."""
    judge = current_owner()
    reaped = 0
    try:
        left = sorted(make_private(runtime_dir).glob("*-*"))
    except OSError:
        return 0
    for directory in left:
        owner = None
        with suppress(OSError, ValueError):
            owner = Owner.parse((directory / _OWNER_FILE).read_text(encoding="utf-8"))
        if owner is None or not is_dead(owner, judge=judge):
            continue
        for pid in _listeners(directory / _SOCKET):
            logger.info("ending process %d of a bridge that died", pid)
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
        reaped += 1
    return reaped


def _listeners(socket: Path) -> Sequence[int]:
    """Return the processes whose command line names a socket, which has a unique path."""
    served = re.compile(rb"(?:^|\0)(?:unix://%b\0|%b:)" % ((re.escape(os.fsencode(socket)),) * 2))
    pids = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if served.search(entry.read_bytes()):
                pids.append(int(entry.parent.name))
    return pids
