"""A real SSH server on loopback with its own host keys and configuration."""

from __future__ import annotations

import gc
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import reserved_port
from tests.waiting import LOOK_SECONDS, PATIENCE_SECONDS

_SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
PidFile none
AuthorizedKeysFile {directory}/key.pub
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
"""

_CLIENT = """
Host there
  HostName 127.0.0.1
  Port {port}
  User {user}
  UserKnownHostsFile {directory}/known_hosts
  GlobalKnownHostsFile /dev/null
  IdentityFile {directory}/key
  IdentitiesOnly yes
"""


@dataclass(kw_only=True)
class SshServer:
    """A server that a client with its `environ` reaches as `there`."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its client, with a wrapper of OpenSSH on PATH."""
        path = f"{self.directory / 'bin'}:{os.environ.get('PATH', '')}"
        return {"HOME": str(self.directory), "PATH": path}

    def start(self) -> None:
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert sshd is not None, "openssh-server is wanted, and not installed"
        if os.getuid() == 0:
            # sshd refuses to start as root without it; distributions make it at boot.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        argv = [sshd, "-D", "-e", "-f", str(self.directory / "sshd_config")]
        with (self.directory / "sshd.log").open("ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self._accepts():
            assert time.monotonic() < deadline
            time.sleep(LOOK_SECONDS)

    def _accepts(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.directory / "sshd.log").read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def connections(self) -> list[int]:
        found = [] if self.process is None else [self.process.pid]
        for pid in found:
            # A process for the login, and its child with the login's rights, which may live longer.
            with suppress(OSError):
                below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                found += [int(one) for one in below]
        return found[1:]

    def cut(self) -> None:
        for pid in self.connections():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill the server and its connections, like a power cut."""
        if self.process is not None:
            pids = self.connections()
            self.process.kill()
            self.process.wait()
            self.process = None
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def new_host_key(self) -> None:
        """Replace the host key; effective after a restart."""
        for path in self.directory.glob("host_key*"):
            path.unlink()
        _make_key(self.directory / "host_key")


def _make_key(path: Path) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True)


@contextmanager
def ssh_server() -> Iterator[SshServer]:
    # Short, since paths of sockets have a limit.
    directory = Path(tempfile.mkdtemp(prefix="mcb-ssh-", dir="/tmp"))
    with reserved_port() as port:
        server = SshServer(directory=directory, port=port)
        for name in ("host_key", "key"):
            _make_key(directory / name)
        public = (directory / "host_key.pub").read_text()
        (directory / "known_hosts").write_text(f"[127.0.0.1]:{port} {public}")
        for name, text in (("sshd_config", _SERVER), ("ssh_config", _CLIENT)):
            given = {"port": port, "directory": directory, "user": getpass.getuser()}
            (directory / name).write_text(text.format(**given))
        (directory / "bin").mkdir()
        ssh = directory / "bin" / "ssh"
        # OpenSSH ignores HOME and reads the home of the password database.
        ssh.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {directory}/ssh_config "$@"\n')
        ssh.chmod(0o755)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
        with warnings.catch_warnings():
            # The SDK does not close sockets that could not connect.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
