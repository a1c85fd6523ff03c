"""A podman service of the bridge's own where none listens, and OpenSSH's client as a forward.

The service ends with the bridge: at `aclose`; when the bridge is killed, by a signal from the
kernel (on Linux); failing that, by the next bridge.
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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL

import anyio
import anyio.to_thread
from anyio.abc import Process

from bridge.errors import EngineDownError, LaunchError, SandboxError
from bridge.private_files import exposure, make_directory
from bridge.sandbox.container import faults
from bridge.sandbox.container.command_runner import end_group
from bridge.sandbox.container.endpoints import EngineEndpoint
from bridge.sandbox.container.remote import SshTarget
from bridge.sandbox.ownership import Owner, current_owner, is_dead

logger = logging.getLogger(__name__)

START_SECONDS = 30.0
"""Until the socket accepts: 0.2 s usually; a first start lays out storage, and maps ids."""


_PODMAN = "podman"
_OWNER_FILE = "owner"
_SOCKET = "engine.sock"
_LOG = "service.log"

_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Requests SIGTERM at the parent's death, checks that the parent still lives, becomes podman."""


def service_argv(podman: str, socket: Path, oci_runtime: str | None) -> list[str]:
    argv = [podman]
    if oci_runtime:
        argv += ["--runtime", oci_runtime]
        if Path(oci_runtime).name == "runsc":
            # Without it gVisor wants to take over a network that is not there.
            argv += ["--runtime-flag", "network=none"]
    return [*argv, "system", "service", "--time=0", f"unix://{socket}"]


def service_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the bridge's environment without what would make podman a remote client.

    Proxies stay: images come through them, and podman's Docker-like API passes none on.
    """
    return {
        name: value
        for name, value in environ.items()
        if name not in ("CONTAINER_HOST", "CONTAINER_SSHKEY", "CONTAINER_CONNECTION")
    }


class SocketService:
    """A process that gives an engine a socket in a private directory of its own."""

    def __init__(
        self, prefix: str, runtime_dir: Path, environ: Mapping[str, str], endpoint: EngineEndpoint
    ) -> None:
        self._directory = runtime_dir / f"{prefix}-{os.getpid()}-{secrets.token_hex(3)}"
        self._environ = environ
        self._endpoint = endpoint
        self._process: Process | None = None

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
            remedy = "Set XDG_RUNTIME_DIR to a directory of this user's."
            raise EngineDownError(message, remedy=remedy) from error
        try:
            self._process = await self._spawn()
            await self._wait_listening(self._process)
        except BaseException:
            await self.aclose()
            raise
        return replace(self._endpoint, url=f"unix://{self.socket}")

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            process, self._process = self._process, None
            if process is not None:
                await end_group(process)
            shutil.rmtree(self._directory, ignore_errors=True)

    def failure(self) -> SandboxError:
        return self._failure(self._log_tail(), timed_out=False)

    def _argv(self) -> list[str]:
        raise NotImplementedError

    def _failure(self, said: str, *, timed_out: bool) -> SandboxError:
        """Return the error for a process that gave no socket, from what it wrote."""
        raise NotImplementedError

    async def _spawn(self) -> Process:
        argv = self._argv()
        if sys.platform == "linux":
            wrapper = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
            argv = [*wrapper, *argv]
        with (self._directory / _LOG).open("wb") as log:
            try:
                # A cancellation in between would leave a process that is never waited for.
                with anyio.CancelScope(shield=True):
                    process = await anyio.open_process(
                        argv,
                        stdin=DEVNULL,
                        stdout=log,
                        stderr=log,
                        # conmon notes an out-of-memory kill as a file in the directory it is in.
                        cwd=self._directory,
                        env=self._environ,
                        start_new_session=True,
                    )
            except OSError as error:
                raise self._failure(str(error), timed_out=False) from error
        return process

    async def _wait_listening(self, process: Process) -> None:
        with anyio.move_on_after(START_SECONDS):
            while process.returncode is None:
                if await _accepts(self.socket):
                    return
                await anyio.sleep(0.02)  # podman cannot signal that it is ready
        raise self._failure(self._log_tail(), timed_out=process.returncode is None)

    def _log_tail(self) -> str:
        try:
            data = (self._directory / _LOG).read_bytes()[-64 * 1024 :]
        except OSError:
            return ""
        return data.decode("utf-8", "replace").strip()


class PodmanService(SocketService):
    def __init__(
        self,
        *,
        podman: str,
        runtime_dir: Path,
        environ: Mapping[str, str],
        oci_runtime: str | None = None,
    ) -> None:
        endpoint = EngineEndpoint(url="", origin="the bridge's own podman service")
        super().__init__(_PODMAN, runtime_dir, service_environment(environ), endpoint)
        self._podman = podman
        self._oci_runtime = oci_runtime

    def _argv(self) -> list[str]:
        return service_argv(self._podman, self.socket, self._oci_runtime)

    def _failure(self, said: str, *, timed_out: bool) -> SandboxError:
        doing = f"listen within {START_SECONDS:g} s" if timed_out else "start its service"
        failure = faults.from_text(said or "it wrote nothing", doing=doing, engine=_PODMAN)
        if failure.code == LaunchError.code:
            return faults.down(_PODMAN, failure.message)
        return failure


class SshForward(SocketService):
    """OpenSSH's client, which forwards the socket of an engine on another machine.

    The user's configuration of OpenSSH applies: aliases, jump hosts, known hosts and keys.
    """

    def __init__(
        self, far: EngineEndpoint, target: SshTarget, runtime_dir: Path, environ: Mapping[str, str]
    ) -> None:
        names = ("HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK")
        passed = {name: environ[name] for name in names if name in environ}
        origin = f"{far.origin}, over SSH to {target.destination}"
        near = replace(far, origin=origin, target=None, remote=True)
        # Its messages are read.
        super().__init__("ssh", runtime_dir, {**passed, "LC_ALL": "C"}, near)
        self._target = target

    def _argv(self) -> list[str]:
        # A line is written for each connection that fails there: at most a megabyte.
        return ["sh", "-c", 'ulimit -f 2048; exec "$@"', "sh", *self._target.argv(self.socket)]

    def _failure(self, said: str, *, timed_out: bool) -> SandboxError:
        return self._target.failure(said)


def make_owned(directory: Path) -> None:
    """Make a private directory of this bridge, which `reap_services` removes once that is dead."""
    make_private(directory.parent)
    directory.mkdir(mode=0o700)
    (directory / _OWNER_FILE).write_text(str(current_owner()), encoding="utf-8")


def make_private(directory: Path) -> Path:
    """Make a directory of this user's, unless it exists; return it.

    Raises:
        PermissionError: Another user owns it, or may write to it or replace it, or it is a link.
    """
    make_directory(directory)
    found = directory.lstat()
    # Who may rename a directory above it could replace it.
    others, _ = exposure(directory)
    if found.st_uid != os.getuid() or others or not stat.S_ISDIR(found.st_mode):
        reason = others or "it belongs to another user or is a link"
        raise PermissionError(errno.EPERM, reason, str(directory))
    return directory


async def reap_services(runtime_dir: Path) -> int:
    """Remove the directories of dead bridges and end their services; return how many."""
    return await anyio.to_thread.run_sync(_reap_services, runtime_dir)


def _reap_services(runtime_dir: Path) -> int:
    judge = current_owner()
    reaped = 0
    try:
        left = sorted(make_private(runtime_dir).glob("*-*"))
    except OSError:
        return 0
    for directory in left:
        owner = _owner_of(directory)
        if owner is None or not is_dead(owner, judge=judge):
            continue
        for pid in _listeners(directory / _SOCKET):
            logger.info("ending process %d of a bridge that died", pid)
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
        reaped += 1
    return reaped


def _owner_of(directory: Path) -> Owner | None:
    try:
        return Owner.parse((directory / _OWNER_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _listeners(socket: Path) -> Sequence[int]:
    """Return the processes that serve a socket, whose directory's name is unique."""
    served = re.compile(rb"(?:^|\0)(?:unix://%b\0|%b:)" % ((re.escape(os.fsencode(socket)),) * 2))
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if served.search(entry.read_bytes()):
                found.append(int(entry.parent.name))
    return found


async def _accepts(socket: Path) -> bool:
    try:
        stream = await anyio.connect_unix(socket)
    except OSError:
        return False
    await stream.aclose()
    return True
