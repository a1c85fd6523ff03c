"""Starts a podman service, or OpenSSH's client as a forward, with a private socket.

A process ends with the bridge: at `aclose`, by a signal if the bridge is killed (on Linux), or by
the next bridge.
"""

from __future__ import annotations

import errno
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
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from anyio.abc import Process

from bridge.errors import EngineDownError, LaunchError, SandboxError
from bridge.private_files import exposure, make_directory
from bridge.sandbox.container import faults
from bridge.sandbox.container.command_runner import end_group, open_group
from bridge.sandbox.container.endpoints import EngineEndpoint
from bridge.sandbox.container.remote import SshTarget
from bridge.sandbox.ownership import Owner, current_owner, is_dead

logger = logging.getLogger(__name__)

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
        unique = f"{self.prefix}-{os.getpid()}-{secrets.token_hex(3)}"
        self._directory = self.runtime_dir / unique

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
            make_owned(self._directory)
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


def make_owned(directory: Path) -> None:
    make_private(directory.parent)
    directory.mkdir(mode=0o700)
    (directory / _OWNER_FILE).write_text(str(current_owner()), encoding="utf-8")


def make_private(directory: Path) -> Path:
    """Make a directory, unless it exists; return it.

    Raises:
        PermissionError: It is a link, or another user owns it or may write to or replace it.
    """
    make_directory(directory)
    status = directory.lstat()
    others, _ = exposure(directory)
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
