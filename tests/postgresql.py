"""A PostgreSQL server from the distribution's package, and stores of the tests on it."""

from __future__ import annotations

import hashlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from bridge.store import ServerUrl, Store
from bridge.store.postgresql import ServerStore

VARIABLE = "MCP_BRIDGE_TEST_STORE"
"""The address of the server for `store_at`, in this process and in those that a test starts."""

PASSWORD = "s3cret of nobody"
ROLE = "bridge"

_USER = "postgres"
"""Who runs the server where the tests are root: it refuses to be."""


class Server:
    """A server of its own data, with a socket and a port on loopback."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log: deque[str] = deque(maxlen=200)
        self.port = _free_port()
        self._process: subprocess.Popen[str] | None = None

    def url(self, schema: str = "", *, host: str = "", database: str = "postgres") -> str:
        """Return the address of a schema, through the socket, or by TCP with the password."""
        login, said = ROLE, {}
        if host:
            login, host = f"{ROLE}:{quote(PASSWORD, safe='')}", f"{host}:{self.port}"
        else:
            said = {"host": str(self.directory), "port": str(self.port)}
        if schema:
            said["options"] = f"-csearch_path={schema}"
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in said.items())
        return f"postgresql://{login}@{host}/{database}?{query}"

    def make(self) -> None:
        """Make its data."""
        password = self.directory / "password"
        password.write_text(PASSWORD)
        words = ("-U", ROLE, "--auth-local=trust", "--auth-host=scram-sha-256", "--no-sync")
        told = ("-E", "UTF8", "--locale=C.UTF-8", f"--pwfile={password}")
        command = [*_as_user(), _program("initdb"), "-D", str(self._data), *words, *told]
        if os.geteuid() == 0:
            for path in (self.directory, password):
                shutil.chown(path, _USER)
        subprocess.run(command, check=True, capture_output=True, cwd="/")

    def start(self) -> None:
        """Start it, and return when it accepts connections."""
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.directory,
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": 60,
            "log_statement": "none",
        }
        said = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        command = [*_as_user(), _program("postgres"), "-D", str(self._data), *said]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/")
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            if "ready to accept connections" in line:
                break
        else:
            raise AssertionError("".join(self.log))
        self._reading = threading.Thread(target=self.log.extend, args=(process.stderr,))
        self._reading.start()
        self._process = process

    def stop(self) -> None:
        """End it as a power cut would, but for what is on the disk."""
        process, self._process = self._process, None
        if process is not None and process.stderr is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait()
            self._reading.join()
            process.stderr.close()

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        """Connect as the server's owner, each statement for itself."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            yield connection

    def drop(self) -> None:
        """Drop the schemas that `store_at` made."""
        with self.connected() as connection:
            found = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname LIKE 't\\_%'"
            )
            for (name,) in found.fetchall():
                connection.execute(f"DROP SCHEMA {name} CASCADE".encode())

    @property
    def _data(self) -> Path:
        return self.directory / "data"


@contextmanager
def server() -> Iterator[Server]:
    """Start a server for as long as the context lasts."""
    with tempfile.TemporaryDirectory(prefix="bridge-pg-") as place:
        made = Server(Path(place))
        made.make()
        made.start()
        try:
            yield made
        finally:
            made.stop()


def store_at(directory: Path) -> Store:
    """Return a directory's store: its file, or its schema on the server of the test."""
    url = url_for(directory)
    return ServerStore(directory, url) if url else Store(directory)


def url_for(directory: Path) -> ServerUrl | None:
    """Return the address of a directory's schema on the server of the test, if there is one."""
    url = os.environ.get(VARIABLE)
    if not url:
        return None
    name = f"t_{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}"
    with psycopg.connect(url, autocommit=True) as connection:
        # Two that make one at the same moment fail, whether it exists or not.
        connection.execute("SELECT pg_advisory_lock(1)")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}".encode())
    return ServerUrl(f"{url}&options=-csearch_path%3D{name}")


def _program(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    program = str(found[-1]) if found else shutil.which(name)
    assert program, f"{name} is not installed: `make packages` installs PostgreSQL"
    return program


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(_USER)
    ids = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    return ["setpriv", *ids, "--pdeathsig=SIGQUIT"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
