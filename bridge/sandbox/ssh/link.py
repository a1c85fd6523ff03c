"""The connection to one host: OpenSSH's client, the engine's socket through it, and its heartbeat.

Owns the process, its private directory, and the thread that watches it. The thread beats also while
the event loop is busy, so that the host does not take a busy bridge for a lost one. The process
ends with the bridge: its stdin does, which ends the script on the host, and that it.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from bridge.errors import HostDownError
from bridge.sandbox.container.service import make_owned
from bridge.sandbox.ssh.script import ENGINE, READY, failure, ssh_argv
from bridge.settings.ssh import SshHost

logger = logging.getLogger(__name__)

BEAT_SECONDS = 5.0
"""Interval of the health check."""

ANSWER_SECONDS = 10.0
"""For the host's answer to a beat, and for its engine's."""

READY_SECONDS = 45.0
"""For the connection, the engine's start on a cold disk, and the removal of what was left."""

CLOSE_SECONDS = 10.0
"""For the script to end what it minds, and for OpenSSH after it."""

_ENVIRONMENT = ("HOME", "PATH", "USER", "LOGNAME", "SSH_AUTH_SOCK")
_CHUNK = 4096


class Link:
    """One connection; made by `open_link`. `close` ends it and all its sandboxes.

    Attributes:
        connection: Its id.
        directory: Where its sockets are, on this machine.
        latency: Seconds that the last beat took to the host and back.
        well: Whether the engine answered last time.
    """

    def __init__(
        self, host: SshHost, connection: str, directory: Path, process: subprocess.Popen[bytes]
    ) -> None:
        self.connection = connection
        self.directory = directory
        self.latency = 0.0
        self.well = True
        self._name = host.name
        self._process = process
        self._input, self._output = cast(
            "tuple[IO[bytes], IO[bytes]]", (process.stdin, process.stdout)
        )
        self._lost = threading.Event()
        self._closing = False
        self._watching = threading.Thread(target=self._watch, daemon=True)

    @property
    def socket(self) -> Path:
        """The engine's socket, on this machine."""
        return self.directory / ENGINE

    @property
    def alive(self) -> bool:
        """Whether it is not known to be lost."""
        return not self._lost.is_set()

    def begin(self) -> bool:
        """Wait until the host is ready, and begin to beat; return whether it became so. Blocks.

        What a login shell prints before is passed over.
        """
        heard, deadline = b"", time.monotonic() + READY_SECONDS
        while f"{READY}\n".encode() not in heard:
            data = self._hear(deadline - time.monotonic())
            if not data:
                return False
            heard = (heard + data)[-_CHUNK:]
        self._beat()
        self._watching.start()
        return True

    def close(self) -> int | None:
        """End it, and all sandboxes that it has; return OpenSSH's status. Blocks; idempotent."""
        self._closing = True
        self._lost.set()
        with suppress(OSError):
            self._input.close()
        try:
            self._process.wait(CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._watching.is_alive():
            self._watching.join()
        self._output.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        return self._process.returncode

    def _watch(self) -> None:
        # Until it is time for the next beat nothing comes but the connection's end.
        while self._hear(BEAT_SECONDS) is None and not self._closing and self._beat():
            self.well = answers(self.socket)
        if not self._closing:
            logger.warning("the connection to %s is lost", self._name)
        self._lost.set()
        # Also when it only seems to live: the host has given its sandboxes up by now, or will.
        self._process.kill()

    def _beat(self) -> bool:
        began = time.monotonic()
        try:
            self._input.write(b".")
        except (OSError, ValueError):
            return False
        heard = self._hear(ANSWER_SECONDS)
        self.latency = time.monotonic() - began
        return bool(heard)

    def _hear(self, seconds: float) -> bytes | None:
        """Return what comes; nothing at the connection's end, None when the time is over."""
        ready, _, _ = select.select([self._output], [], [], max(0.0, seconds))
        return os.read(self._output.fileno(), _CHUNK) if ready else None


def open_link(
    host: SshHost, *, runtime_dir: Path, environ: Mapping[str, str], oci_runtime: str, earlier: str
) -> Link:
    """Connect to a host; return once its engine listens. Blocks.

    Args:
        runtime_dir: This user's private directory.
        environ: The bridge's environment.
        oci_runtime: What podman starts containers with; empty for its own choice.
        earlier: Id of a lost connection, whose sandboxes are removed first; empty for none.

    Raises:
        SandboxError: The host cannot be used; it says why.
    """
    connection = secrets.token_hex(8)
    directory = runtime_dir / f"ssh-{os.getpid()}-{connection[:6]}"
    passed = {name: environ[name] for name in _ENVIRONMENT if name in environ}
    try:
        make_owned(directory)
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
                ssh_argv(host, directory, connection, oci_runtime, earlier),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Its messages are read.
                env={**passed, "LC_ALL": "C"},
                # Ctrl-C at the terminal is the bridge's.
                start_new_session=True,
            )
    except OSError as error:
        shutil.rmtree(directory, ignore_errors=True)
        remedy = "Install openssh-client; set XDG_RUNTIME_DIR to a directory of this user's."
        raise HostDownError(f"OpenSSH cannot be started: {error}.", remedy=remedy) from error
    link = Link(host, connection, directory, process)
    if not link.begin():
        said = (directory / "log").read_text(errors="replace")
        raise failure(host, link.close(), said)
    return link


def answers(path: Path) -> bool:
    """Return whether an engine answers at a socket. Blocks."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(str(path))
            connection.sendall(b"GET /_ping HTTP/1.0\r\nHost: engine\r\n\r\n")
            return connection.recv(_CHUNK).split(b" ")[1:2] == [b"200"]
    except OSError:
        return False
