"""Hosts for the tests: real SSH servers on loopback, with the engines that the tests have."""

from __future__ import annotations

import gc
import getpass
import os
import re
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

from bridge.settings import Settings
from bridge.settings.ssh import HostEngine, SshHost
from tests.ports import reserved_port

START_SECONDS = 20.0

_CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {directory}/host_key
PidFile none
AuthorizedKeysFile {directory}/authorized_keys
UsePAM no
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
X11Forwarding no
SetEnv {environment}
"""

_CLIENT = """
Host *
  UserKnownHostsFile {directory}/known_hosts
  GlobalKnownHostsFile /dev/null
  IdentityFile {directory}/key
  IdentitiesOnly yes
"""


@dataclass(kw_only=True)
class TestHost:
    """One host: its SSH server, and the settings by which the bridge reaches it.

    Attributes:
        environ: What its podman is configured by.
        user: Whose account there the bridge has.
        become: The words before a command that make it that user's.
    """

    __test__ = False

    directory: Path
    port: int
    environ: dict[str, str]
    user: str = field(default_factory=getpass.getuser)
    become: tuple[str, ...] = ()
    server: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        """Start its SSH server."""
        sshd = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        assert sshd is not None, "openssh-server is wanted, and not installed"
        if os.getuid() == 0:
            # sshd refuses to start as root without it; distributions make it at boot.
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        with (self.directory / "sshd.log").open("ab") as log:
            self.server = subprocess.Popen(
                [*self.become, sshd, "-D", "-e", "-f", str(self.directory / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            said = (self.directory / "sshd.log").read_text()
            assert self.server.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.02)

    def connections(self) -> list[int]:
        """Return the processes that serve its connections."""
        if self.server is None:
            return []
        found = [self.server.pid]
        for pid in found:
            # One for its login, and one more with the login's rights, which may outlive the first.
            with suppress(OSError):
                below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
                found += [int(one) for one in below if _is_server(one)]
        return found[1:]

    def signal_connections(self, number: int) -> None:
        """Send a signal to what serves its connections, as a broken or silent network would."""
        for pid in self.connections():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def go_down(self) -> None:
        """End the server and its connections, as a host that is switched off."""
        assert self.server is not None
        connections = self.connections()
        self.server.kill()
        self.server.wait()
        self.server = None
        for pid in connections:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the server and remove what is left of its storage."""
        if self.server is not None:
            self.go_down()
        if "CONTAINERS_STORAGE_CONF" in self.environ:
            self.podman("rm", "--all", "--force", "--time", "0", check=False)
        subprocess.run(
            ["umount", "--lazy", str(self.directory / "s" / "overlay")],
            check=False,
            capture_output=True,
        )

    def podman(self, *words: str, check: bool = True) -> str:
        """Run podman as the host has it."""
        done = subprocess.run(
            ["podman", *words],
            env={**os.environ, **self.environ},
            check=check,
            capture_output=True,
            text=True,
        )
        return done.stdout

    def containers(self) -> list[str]:
        """Return the names of all containers on it."""
        return self.podman("ps", "--all", "--format", "{{.Names}}").split()

    def new_key(self) -> None:
        """Give it another host key, as a host has that was installed anew."""
        for path in self.directory.glob("host_key*"):
            path.unlink()
        _keygen(self.directory / "host_key")

    def trust(self, known_hosts: Path) -> None:
        """Add its key to a file of known hosts."""
        public = (self.directory / "host_key.pub").read_text()
        with known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{self.port} {public}")

    def spec(self, name: str, client: Path, **more: object) -> SshHost:
        """Return its entry in the settings."""
        given = {"slots": 4, "engine": "podman", **more}
        return SshHost(
            name=name,
            destination=f"{self.user}@127.0.0.1",
            port=self.port,
            config_file=client,
            **given,  # type: ignore[arg-type]
        )


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """Hosts, and what the bridge needs to reach them.

    Attributes:
        engine: What they run containers with.
        oci_runtime: What that starts them with; empty for its own choice.
    """

    hosts: tuple[TestHost, ...]
    directory: Path
    engine: HostEngine = "podman"
    oci_runtime: str = ""

    @property
    def client(self) -> Path:
        """The configuration of OpenSSH's client."""
        return self.directory / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The keys that the client knows."""
        return self.directory / "known_hosts"

    @property
    def socket(self) -> str:
        """Where docker listens there; empty for podman, which the bridge starts."""
        return os.environ["DOCKER_HOST"].removeprefix("unix://") if self.engine == "docker" else ""

    @property
    def image(self) -> str:
        """What they have the runtime image as."""
        return os.environ.get(f"MCP_TEST_IMAGE_{self.engine.upper()}", "")

    def settings(self, home: Path, *, slots: int = 4) -> Settings:
        """Return settings with all hosts, called a, b, ..."""
        engine = {"slots": slots, "engine": self.engine, "socket": self.socket}
        specs = tuple(
            host.spec(chr(ord("a") + index), self.client, **engine)
            for index, host in enumerate(self.hosts)
        )
        return Settings(
            runtime="ssh",
            image=self.image,
            oci_runtime=self.oci_runtime,
            ssh_hosts=specs,
            state_dir=home / "state",
            environ={"HOME": str(home), "PATH": os.environ["PATH"]},
            warm=0,
        )

    def config(self, home: Path, *, slots: int = 4) -> Path:
        """Write a settings file with all hosts, for a bridge that reads its own."""
        socket = f'socket = "{self.socket}"\n' if self.socket else ""
        tables = [
            f'[[ssh.hosts]]\nname = "{chr(ord("a") + index)}"\n'
            f'destination = "{host.user}@127.0.0.1"\nport = {host.port}\nslots = {slots}\n'
            f'config_file = "{self.client}"\nengine = "{self.engine}"\n{socket}'
            for index, host in enumerate(self.hosts)
        ]
        path = home / "config.toml"
        path.write_text(f'runtime = "ssh"\nimage = "{self.image}"\n' + "".join(tables))
        path.chmod(0o600)
        return path


def _is_server(pid: str) -> bool:
    return Path(f"/proc/{pid}/comm").read_text() == "sshd\n"


def _keygen(path: Path) -> None:
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(path)]
    subprocess.run(argv, check=True)


def _own_storage(directory: Path) -> dict[str, str]:
    """Configure podman with storage of its own that has the images of the tests' engine."""
    shared, conf = os.environ.get("CONTAINERS_STORAGE_CONF"), os.environ.get("CONTAINERS_CONF")
    if not shared or not conf:
        return {}
    text = Path(shared).read_text()
    graph = re.search(r'graphroot = "([^"]*)"', text)
    driver = re.search(r'driver = "([^"]*)"', text)
    assert graph is not None
    assert driver is not None
    (directory / "storage.conf").write_text(
        f'[storage]\ndriver = "{driver[1]}"\ngraphroot = "{directory}/s"\n'
        f'runroot = "{directory}/r"\n[storage.options]\nadditionalimagestores = ["{graph[1]}"]\n'
    )
    own = re.sub(r'tmp_dir = "[^"]*"', f'tmp_dir = "{directory}/t"', Path(conf).read_text())
    (directory / "containers.conf").write_text(own)
    return {
        "CONTAINERS_STORAGE_CONF": str(directory / "storage.conf"),
        "CONTAINERS_CONF": str(directory / "containers.conf"),
    }


def _rootless() -> tuple[str, tuple[str, ...], dict[str, str]]:
    """Return the ordinary user of scripts/with-engines, how to become it, and its environment."""
    given = {"HOME": "HOME", "XDG_RUNTIME_DIR": "RUNTIME_DIR", "CONTAINERS_CONF": "CONF"}
    environ = {name: os.environ[f"MCP_TEST_ROOTLESS_{key}"] for name, key in given.items()}
    # An SSH server that is not root's lets nobody in but the user whose it is.
    become = (os.environ["MCP_TEST_ROOTLESS_RUN"],)
    return os.environ["MCP_TEST_ROOTLESS_USER"], become, environ


def _prepared(root: Path, index: int, *, own_storage: bool, rootless: bool) -> TestHost:
    """Make a host's directory, with its keys and its server's configuration."""
    directory = root / str(index)
    directory.mkdir()
    _keygen(directory / "host_key")
    shutil.copy(root / "key.pub", directory / "authorized_keys")
    with reserved_port() as port:
        podman = _own_storage(directory) if own_storage else {}
        host = TestHost(directory=directory, port=port, environ=podman)
        names = ("CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF", "DOCKER_HOST")
        passed = {**{name: os.environ.get(name, "") for name in names}, **podman}
        if rootless:
            host.user, host.become, passed = _rootless()
        words = " ".join(f'"{name}={value}"' for name, value in passed.items() if value)
        config = _CONFIG.format(port=port, directory=directory, environment=words or '"LC_ALL=C"')
        (directory / "sshd_config").write_text(config)
    if rootless and os.getuid() == 0:
        root.chmod(0o711)
        for path in (directory, *directory.iterdir()):
            shutil.chown(path, host.user)
    return host


@contextmanager
def fleet(
    count: int = 2,
    *,
    own_storage: bool = True,
    engine: HostEngine = "podman",
    oci_runtime: str = "",
    rootless: bool = False,
) -> Iterator[Fleet]:
    """Start hosts; at the end nothing of them is left.

    Args:
        own_storage: Whether each has containers of its own; else they share the tests' podman.
        engine, oci_runtime: As in `Fleet`.
        rootless: Whether the bridge is an ordinary user there, with that user's podman.
    """
    # Short, since podman's sockets live in it.
    root = Path(tempfile.mkdtemp(prefix="mcb-ssh-", dir="/tmp"))
    made: list[TestHost] = []
    try:
        _keygen(root / "key")
        (root / "ssh_config").write_text(_CLIENT.format(directory=root))
        for index in range(count):
            host = _prepared(root, index, own_storage=own_storage, rootless=rootless)
            host.trust(root / "known_hosts")
            made.append(host)
            host.start()
        yield Fleet(hosts=tuple(made), directory=root, engine=engine, oci_runtime=oci_runtime)
    finally:
        for host in made:
            host.stop()
        shutil.rmtree(root, ignore_errors=True)
        with warnings.catch_warnings():
            # The SDK forgets sockets that could not connect, until they are collected.
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
