"""Where a user's background bridge listens, how its process is recognised, and how to ask it.

A bridge serves the clients of one machine, version, command line, set of settings and state
directory. This identity names its socket, lock and record. Imports little, because each client's
process does.
"""

from __future__ import annotations

import binascii
import fcntl
import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from bridge import __version__

TYPE_CHECKING = False  # Importing `typing` takes longer than the other imports.
if TYPE_CHECKING:
    from typing import Any

START_SECONDS = 30.0  # Most time for a bridge to start, or to end after its runs have ended.

ANSWER_SECONDS = 2.0  # A bridge hangs if it neither answers nor computes for this time.

MISSED_ANSWERS = 5  # Of a bridge that computes, until it counts as hung.

STOP_SECONDS = 3.0  # Between SIGTERM and SIGKILL of a bridge that hangs.

MAX_PATH_BYTES = 103  # Of a socket's path on macOS; 107 on Linux.

SETTINGS = (
    *("MCP_BRIDGE_", "MCP_SERVERS_CONFIG", "DOCKER_", "CONTAINER_", "KUBECONFIG"),
    *("XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"),
    # Of the bridge's own connections to servers.
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "SSL_CERT_"),
    *("NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
)
"""Prefixes of the variables that, with `HOME`, decide which clients have a bridge in common."""


class UnavailableError(Exception):
    """There is no background bridge to use; the text says why."""


class Instance:
    """A background bridge, running or not: its socket, lock and record in a private directory."""

    def __init__(self, directory: str, name: str, identity: str = "") -> None:
        # The files' names begin with `name`, which is a digest of the identity: JSON with what the
        # bridge's clients have in common.
        self.directory, self.name, self.identity = directory, name, identity
        stem = f"{directory}/{name}"
        self.socket, self.lock, self.record = f"{stem}.sock", f"{stem}.lock", f"{stem}.json"

    def hold_lock(self) -> int | None:
        """Return a descriptor that holds the lock; None if another process holds it."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.lock, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, BlockingIOError):
                return None
            raise
        return descriptor

    def process(self) -> int | None:
        """Return the id of the recorded process, if it is certainly the bridge that wrote it."""
        record = self.read_record()
        number, start = record.get("pid"), record.get("start")
        if not isinstance(number, int) or not start or start != process_start(number):
            return None
        return number

    def processor_time(self) -> str:
        """Return the recorded process's processor time, as two counts of ticks; "" if unknown."""
        return " ".join(_stat_fields(self.read_record().get("pid", 0))[11:13])

    def read_record(self) -> dict[str, Any]:
        """Return the bridge's record, as `Daemon` writes it; empty for none."""
        try:
            with open(self.record, encoding="utf-8") as file:  # noqa: PTH123 - pathlib is large
                record = json.load(file)
        except (OSError, ValueError):
            return {}
        return record if isinstance(record, dict) else {}


def directory_of(environ: Mapping[str, str]) -> str:
    """Return the directory of the background bridges' sockets, which need not exist."""
    state = os.path.expanduser(environ.get("MCP_BRIDGE_STATE_DIR", ""))  # noqa: PTH111
    state = os.path.abspath(state or xdg_directory(environ, "XDG_STATE_HOME", ".local/state"))  # noqa: PTH100
    return socket_directory(environ, state, MAX_PATH_BYTES - len("/12345678.sock"))


def socket_directory(
    environ: Mapping[str, str], state: str, most_bytes: int, temporary: str = "/tmp"
) -> str:
    """Return a directory for sockets: in `XDG_RUNTIME_DIR`, else in the state directory.

    It is in the temporary directory if the path would have more than `most_bytes`.
    """
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    is_usable = runtime.startswith("/") and os.access(f"{runtime}/", os.W_OK)
    # Root can write to another user's directory.
    if is_usable and os.stat(runtime).st_uid == os.geteuid():  # noqa: PTH116
        directory = f"{runtime}/mcp-code-bridge"
    else:
        directory = f"{state}/run"
    if len(os.fsencode(directory)) > most_bytes:
        directory = f"{temporary}/mcp-code-bridge-{os.getuid()}"
    return directory


def instance_for(words: Sequence[str], environ: Mapping[str, str]) -> Instance:
    """Return the bridge for a command line that serves, and make its directory.

    Raises:
        UnavailableError: The directory cannot be made or is not private. The text is empty if the
            settings file turns background bridges off.
    """
    directory = directory_of(environ)
    try:
        os.makedirs(directory, 0o700, exist_ok=True)  # noqa: PTH103
        private = is_private(directory)
        config = _read_config(environ)
    except OSError as error:
        raise UnavailableError(f"{error.filename}: {error.strerror}") from error
    if "background" in config and _turns_off(config):
        raise UnavailableError("")
    if not private:
        raise UnavailableError(f"{directory} must be a directory that only you can use (mode 0700)")
    names = sorted(name for name in environ if name == "HOME" or name.startswith(SETTINGS))
    # Machines and containers may share a home.
    code = [__version__, __file__, sys.executable, os.uname().nodename]
    flags = [word for word in words if word != "serve"]
    identity = json.dumps([code, flags, [(name, environ[name]) for name in names], config])
    return Instance(directory, f"{binascii.crc32(identity.encode()):08x}", identity)


def is_private(directory: str) -> bool:
    """Return whether only this user can use a directory. Raises `OSError`."""
    status = os.lstat(directory)
    is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    return is_own and not status.st_mode & 0o077


def instances(directory: str) -> Iterator[Instance]:
    """Yield all bridges of this machine that have left a record in a private directory."""
    try:
        # Another user's record could name any process.
        names = sorted(os.listdir(directory)) if is_private(directory) else []  # noqa: PTH208
    except OSError:
        return
    for name in names:
        if name.endswith(".json"):
            instance = Instance(directory, name.removesuffix(".json"))
            # Machines may share a home, and locks need not reach from one to the other. The name
            # of a machine may change.
            host = instance.read_record().get("host")
            if host == os.uname().nodename or instance.process():
                yield instance


def remove_dead(directory: str) -> None:
    """Remove the sockets and records of bridges that have died."""
    for instance in instances(directory):
        with suppress(OSError):
            # A front that starts a bridge there holds the lock.
            if instance.process() is None and (lock := instance.hold_lock()) is not None:
                for path in (instance.socket, instance.record):
                    with suppress(FileNotFoundError):
                        os.unlink(path)  # noqa: PTH108
                os.close(lock)


def process_start(number: int) -> str:
    """Return a process's start time as the system prints it; empty if no such process runs."""
    if fields := _stat_fields(number):
        # A process that has ended may wait for its parent for a long time.
        return "" if fields[0] in "ZX" else fields[19]
    if os.path.isdir("/proc/self"):  # noqa: PTH112
        return ""
    with os.popen(f"ps -o lstart= -p {number:d}") as output:
        return "-".join(output.read().split())


def connect(
    instance: Instance, message: Mapping[str, Any], streams: Sequence[int]
) -> tuple[socket.socket, dict[str, Any]] | None:
    """Return a connection that the bridge has accepted, and its answer; None if none listens.

    Raises:
        TimeoutError: The listening process does not answer within 2 s.
        UnavailableError: The bridge refuses, or belongs to another user.
    """
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(ANSWER_SECONDS)
    try:
        link.connect(instance.socket)
        require_own_peer(link)
        data = json.dumps(message).encode() + b"\n"
        if rest := data[socket.send_fds(link, [data], streams) :]:
            link.sendall(rest)
        answer = b""
        while not answer.endswith(b"\n"):
            if not (byte := link.recv(1)):
                raise ConnectionResetError
            answer += byte
        facts: dict[str, Any] = json.loads(answer)
        if "refused" in facts:
            raise UnavailableError(facts["refused"])
    except (FileNotFoundError, ConnectionError, BlockingIOError):
        # The last error means more clients than the kernel lets wait.
        link.close()
        return None
    except BaseException:
        link.close()
        raise
    link.settimeout(None)
    return link, facts


def ask(instance: Instance, *, stop: bool = False) -> dict[str, Any]:
    """Return a bridge's report, as `Daemon` makes it; empty if none listens. Raises as `connect`.

    With `stop` the bridge ends after its report.
    """
    if (accepted := connect(instance, {"stop": stop}, [])) is None:
        return {}
    accepted[0].close()
    return accepted[1]


def peer_user(link: socket.socket) -> int | None:
    """Return the id of the user at the other end of a Unix socket. Only Linux tells."""
    if sys.platform != "linux":
        return None
    credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder)


def require_own_peer(link: socket.socket) -> None:
    """Raise UnavailableError if the process of another user is known to be at the other end.

    The socket's mode does not keep root away.
    """
    if (user := peer_user(link)) not in (None, os.geteuid()):
        raise UnavailableError(f"user {user} is at the other end of the bridge's socket")


def ask_or_end(instance: Instance, *, stop: bool = False) -> None:
    """Ask a bridge, and end it if it hangs. Raises as `ask` and `end_hung` do."""
    worked = instance.processor_time()
    try:
        ask(instance, stop=stop)
    except TimeoutError:
        end_hung(instance, worked)


def end_hung(instance: Instance, worked: str) -> bool:
    """End a bridge that has not answered since its processor time was `worked`, if it hangs.

    Returns:
        False if it hangs and its process is not certainly known.

    Raises:
        UnavailableError: The process survives SIGKILL for 3 s.
    """
    for _ in range(MISSED_ANSWERS - 1):
        if "" != worked == (worked := instance.processor_time()):
            break
        with suppress(TimeoutError):
            ask(instance)
            return True
    number = instance.process()
    if number is None:
        return False
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(number, kind)
        except ProcessLookupError:
            return True
        until = time.monotonic() + STOP_SECONDS
        while time.monotonic() < until:
            if instance.process() != number:
                return True
            time.sleep(0.02)
    raise UnavailableError(f"process {number} hangs and cannot be ended")


def _stat_fields(number: int) -> list[str]:
    """Return the fields of a process after its name, as proc(5) lists them; none without /proc."""
    try:
        with open(f"/proc/{number}/stat", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def _read_config(environ: Mapping[str, str]) -> str:
    usual = f"{xdg_directory(environ, 'XDG_CONFIG_HOME', '.config')}/config.toml"
    path = os.path.expanduser(environ.get("MCP_BRIDGE_CONFIG") or usual)  # noqa: PTH111
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(4 * 1024 * 1024).decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _turns_off(config: str) -> bool:
    import tomllib  # Importing it takes as long as the rest, and is rarely needed.

    try:
        return str(tomllib.loads(config).get("background")).strip().lower() == "off"
    except ValueError:
        return False


def xdg_directory(environ: Mapping[str, str], variable: str, fallback: str) -> str:
    """Return the bridge's own directory below one of the user's base directories."""
    base = environ.get(variable, "")
    if not base.startswith("/"):
        home = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111
        base = f"{home}/{fallback}"
    return f"{base}/mcp-code-bridge"
