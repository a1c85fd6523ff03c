"""A PostgreSQL server from the distribution's package, and stores on it."""

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from bridge.store import ServerUrl, Store
from bridge.store.postgresql import ServerStore

VARIABLE = "MCP_BRIDGE_TEST_STORE"
"""The server's address for `store_at`, in this process and its children."""

PASSWORD = "s3cret of the tests"
ROLE = "bridge"
LOGIN = f"{ROLE}:{quote(PASSWORD, safe='')}"

_USER = "postgres"
"""The server's user if the tests run as root, which the server refuses."""


class Server:
    """A server with its own data, on a socket and a loopback port.

    Args:
        options: Further settings of the server.
    """

    def __init__(self, directory: Path, options: Mapping[str, object] | None = None) -> None:
        self.directory = directory
        self.options = dict(options or {})
        self.log: deque[str] = deque(maxlen=200)
        self.port = _free_port()
        self._process: subprocess.Popen[str] | None = None

    def url(self, schema: str = "", *, host: str = "", database: str = "postgres") -> str:
        """Return a schema's address through the socket, or by TCP with the password."""
        login, said = ROLE, {}
        if host:
            login, host = LOGIN, f"{host}:{self.port}"
        else:
            said = {"host": str(self.directory), "port": str(self.port)}
        if schema:
            said["options"] = f"-csearch_path={schema}"
        query = "&".join(f"{key}={quote(value, safe='')}" for key, value in said.items())
        return f"postgresql://{login}@{host}/{database}?{query}"

    def make(self) -> None:
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
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.directory,
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": 60,
            "log_statement": "none",
            **self.options,
        }
        said = [word for key, value in options.items() for word in ("-c", f"{key}={value}")]
        command = [*_as_user(), _program("postgres"), "-D", str(self._data), *said]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/")
        assert process.stderr is not None
        for line in process.stderr:
            self.log.append(line)
            if "ready to accept" in line:
                break
        else:
            raise AssertionError("".join(self.log))
        self._reading = threading.Thread(target=self.log.extend, args=(process.stderr,))
        self._reading.start()
        self._process = process

    def stop(self) -> None:
        """Stop the server like a power cut, except for data on the disk."""
        process, self._process = self._process, None
        if process is not None and process.stderr is not None:
            process.send_signal(signal.SIGQUIT)
            process.wait()
            self._reading.join()
            process.stderr.close()

    @contextmanager
    def connected(self) -> Iterator[psycopg.Connection[Any]]:
        """Connect as the server's owner, with autocommit."""
        with psycopg.connect(self.url(), autocommit=True) as connection:
            yield connection

    def drop(self) -> None:
        with self.connected() as connection:
            found = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname LIKE 't\\_%'"
            )
            for (name,) in found.fetchall():
                connection.execute(f"DROP SCHEMA {name} CASCADE".encode())

    @contextmanager
    def standby(self) -> Iterator[Server]:
        """Start a synchronous standby of this server."""
        with _place() as place:
            made = Server(place)
            given = ("-h", str(self.directory), "-p", str(self.port), "-U", ROLE)
            words = [_program("pg_basebackup"), "-D", str(made._data), *given, "-R", "--no-sync"]
            if os.geteuid() == 0:
                shutil.chown(place, _USER)
            words += ["--checkpoint=fast"]
            subprocess.run([*_as_user(), *words], check=True, capture_output=True, cwd="/")
            made.start()
            # After the copy, so that the promoted standby waits for no other server.
            with self.connected() as connection:
                connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
                connection.execute("SELECT pg_reload_conf()")
            try:
                yield made
            finally:
                made.stop()

    def promote(self) -> None:
        with self.connected() as connection:
            connection.execute("SELECT pg_promote()")

    @property
    def _data(self) -> Path:
        return self.directory / "data"


@contextmanager
def _place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="bridge-pg-") as place:
        yield Path(place)


@contextmanager
def server(**options: object) -> Iterator[Server]:
    with _place() as place:
        made = Server(place, options)
        made.make()
        made.start()
        try:
            yield made
        finally:
            made.stop()


@contextmanager
def pooler(behind: Server, *, connections: int) -> Iterator[str]:
    """Start pgbouncer in front of a server, in transaction mode; yield its address."""
    with _place() as place:
        port = _free_port()
        (place / "users").write_text(f'"{ROLE}" "{PASSWORD}"\n')
        target = f"host=127.0.0.1 port={behind.port} user={ROLE} password='{PASSWORD}'"
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "scram-sha-256",
            "auth_file": place / "users",
            "pool_mode": "transaction",
            "default_pool_size": connections,
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        text = "\n".join(["[databases]", f"postgres = {target}", "[pgbouncer]", *lines, ""])
        (place / "pgbouncer.ini").write_text(text)
        if os.geteuid() == 0:
            for path in (place, *place.iterdir()):
                shutil.chown(path, _USER)
        found = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        assert found, "pgbouncer is not installed: `make packages` installs it"
        command = [*_as_user(), found, str(place / "pgbouncer.ini")]
        with (place / "log").open("wb") as log:
            process = subprocess.Popen(command, stderr=log, cwd="/")
        try:
            while "process up" not in (place / "log").read_text():
                assert process.poll() is None, (place / "log").read_text()
            yield f"postgresql://{LOGIN}@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            process.wait()


def store_at(directory: Path) -> Store:
    """Return a directory's store: a file, or a schema on the test's server."""
    url = url_for(directory)
    return ServerStore(directory, url) if url else Store(directory)


def url_for(directory: Path) -> ServerUrl | None:
    """Return the address of a directory's schema on the test's server, if there is one."""
    url = os.environ.get(VARIABLE)
    if not url:
        return None
    name = f"t_{hashlib.sha256(str(directory).encode()).hexdigest()[:20]}"
    with psycopg.connect(url, autocommit=True) as connection:
        # Two concurrent CREATE SCHEMA fail, even with IF NOT EXISTS.
        connection.execute("SELECT pg_advisory_lock(1)")
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {name}".encode())
    return ServerUrl(f"{url}&options=-csearch_path%3D{name}")


def address(directory: Path, *, port: int = 0) -> ServerUrl:
    """Return what `url_for` does for a test that needs the server, or the way by a proxy's port."""
    url = url_for(directory)
    assert url is not None
    if not port:
        return url
    query = url.text.rpartition("&")[2]
    return ServerUrl(f"postgresql://{LOGIN}@127.0.0.1:{port}/postgres?{query}")


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
