"""The process that a client starts: connects the client to the user's background bridge.

It copies the client's input to the bridge. The bridge writes into the client's pipe itself, so a
large answer is copied once. The front keeps the input that the bridge has not taken, and what
another bridge must know to continue after a crash. Imports little, since each client has a front.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence

from bridge.background.place import Place, UnavailableError, place_for

TYPE_CHECKING = False  # `typing` takes longer than the rest.
if TYPE_CHECKING:
    from typing import Any

START_SECONDS = 30.0  # For the start of a bridge, as long as its process lives.

ANSWER_SECONDS = 2.0  # After which a bridge that listens counts as hung.

STOP_SECONDS = 3.0  # Between SIGTERM and SIGKILL of a bridge that hangs.

ATTEMPTS = 5  # Bridges that end within this many seconds, until a front serves alone.

ATTEMPT_SECONDS = 10.0

PIECE_BYTES = 64 * 1024  # The capacity of a pipe.

COMMANDS = ("run", "tools", "servers", "sessions", "runs", "policy")
"""Commands that a background bridge executes if it runs."""


def main() -> int:
    """Attach to the background bridge, or do the command in this process."""
    words, resumed = sys.argv[1:], None
    try:
        if serves(words) and os.environ.get("MCP_BRIDGE_BACKGROUND") != "off":
            front = Front(words)
            try:
                return front.serve()
            except UnavailableError as error:
                if str(error):
                    print(f"mcp-code-bridge serves alone: {error}.", file=sys.stderr)  # noqa: T201
                resumed = front.session(), front.pending
    except KeyboardInterrupt:
        return 130
    from bridge.cli.main import main as main_alone

    return main_alone(words, resumed)


def serves(words: Sequence[str]) -> bool:
    """Return whether a command line serves MCP on stdin and stdout."""
    names = {word.partition("=")[0] for word in words}
    if names & {"--http", "--help", "--version", "--no-token"} or sys.stdin is None:
        return False
    return (not words or words[0] == "serve" or words[0].startswith("--")) and not os.isatty(0)


class Front:
    """A client's connection to a background bridge, and to the next one after a crash."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        self._link: socket.socket | None = None
        self._unread = b""
        self._outgoing = bytearray()
        # The client's input that the bridge has not taken.
        self._pending = bytearray()
        self._ended = False
        # Lines of the client that set up its session, and open requests with their runs.
        self._lines: dict[str, str] = {}
        self._open: dict[str, str] = {}
        self._torn = False  # Whether the bridge writes a long message now.
        self._status: int | None = None

    def serve(self) -> int:
        """Copy until the bridge says that the client's session has ended; return its status."""
        place = place_for(self._words, os.environ)
        short, began = 0, -math.inf
        while self._status is None:
            if self._link is None:
                short = short + 1 if time.monotonic() - began < ATTEMPT_SECONDS else 0
                if short == ATTEMPTS:
                    raise UnavailableError(f"{ATTEMPTS} background bridges have ended at once")
                idle = not (self._open or self._pending)
                # The client needs no bridge until it sends something.
                if self._lines and idle and (self._ended or not self._take_input()):
                    return 0
                began = time.monotonic()
                hello = {"serve": self.session(), **described(place, self._words)}
                self._link = attach(place, hello, [1])
                self._unread, self._outgoing = b"", bytearray()
                self._put(b"L", self._pending)
                if self._ended:
                    self._put(b"E", b"")
            try:
                self._copy(self._link)
            except OSError:
                self._link.close()
                self._link = None
        return self._status

    def session(self) -> dict[str, Any]:
        """Return what another bridge must know to continue this client's session."""
        return {
            "lines": list(self._lines.values()),
            "open": list(self._open.items()),
            "torn": self._torn,
        }

    @property
    def pending(self) -> bytes:
        """The client's input that no bridge has taken."""
        return bytes(self._pending)

    def _put(self, kind: bytes, data: bytes | bytearray) -> None:
        self._outgoing += b"%s%d\n" % (kind, len(data)) + data

    def _copy(self, link: socket.socket) -> None:
        """Copy what is ready. Raises `OSError` when the bridge has gone."""
        reads = [link.fileno()]
        # A client that sends faster than the bridge reads has to wait.
        if not self._ended and len(self._outgoing) < PIECE_BYTES:
            reads.append(0)
        readable, writable, _ = select.select(reads, [link] if self._outgoing else [], [])
        if link.fileno() in readable:
            self._read(link)
        if writable:
            del self._outgoing[: link.send(self._outgoing, socket.MSG_DONTWAIT)]
        if 0 in readable:
            data = self._take_input()
            self._put(b"L" if data else b"E", data)

    def _take_input(self) -> bytes:
        data = os.read(0, PIECE_BYTES)
        self._pending += data
        self._ended = not data
        return data

    def _read(self, link: socket.socket) -> None:
        data = link.recv(PIECE_BYTES)
        if not data:
            raise ConnectionResetError
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._note(json.loads(line))

    def _note(self, said: Mapping[str, Any]) -> None:
        """Note what the bridge says of its progress with this client."""
        del self._pending[: said.get("taken", 0)]
        if "torn" in said:
            self._torn = said["torn"]
        if "line" in said:
            name, line = said["line"]
            self._lines[name] = line
        if "begun" in said:
            self._open[said["begun"]] = said.get("run", "")
        if "ended" in said:
            self._open.pop(said["ended"], None)
        self._status = said.get("status", self._status)


def described(place: Place, words: Sequence[str]) -> dict[str, Any]:
    """Return what a bridge must know of this process."""
    try:
        directory = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        directory = "/"
    return {
        "identity": place.identity,
        "words": list(words),
        "environ": dict(os.environ),
        "cwd": directory,
    }


def attach(place: Place, hello: Mapping[str, Any], streams: Sequence[int]) -> socket.socket:
    """Return a connection to the place's bridge, which this starts if there is none.

    Raises:
        UnavailableError: There is no bridge, and none could be started.
    """
    started = False
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            if (link := connect(place, hello, streams)) is not None:
                return link
            lock = place.hold_lock()
        except TimeoutError:
            replace_hung(place)
            continue
        except OSError as error:
            raise UnavailableError(f"{place.directory}: {error.strerror or error}") from error
        if lock is None:
            # A bridge starts.
            time.sleep(0.02)
        elif started:
            os.close(lock)
            raise UnavailableError("it could not be started")
        else:
            started = True
            start(place, hello["words"], lock)
    raise UnavailableError(f"none was ready within {START_SECONDS:g} s")


def connect(
    place: Place,
    hello: Mapping[str, Any],
    streams: Sequence[int],
    take: Callable[[dict[str, Any]], object] = dict,
) -> socket.socket | None:
    """Return a connection that the bridge has accepted; None if no bridge listens.

    Args:
        take: Called with the bridge's answer.

    Raises:
        TimeoutError: What listens does not answer.
        UnavailableError: It refuses.
    """
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(ANSWER_SECONDS)
    try:
        link.connect(place.socket)
        require_own_peer(link)
        data = json.dumps(hello).encode() + b"\n"
        if rest := data[socket.send_fds(link, [data], streams) :]:
            link.sendall(rest)
        answer = b""
        while not answer.endswith(b"\n"):
            if not (byte := link.recv(1)):
                raise ConnectionResetError
            answer += byte
        said = json.loads(answer)
        if "refused" in said:
            raise UnavailableError(said["refused"])
    except (FileNotFoundError, ConnectionError):
        link.close()
        return None
    except BaseException:
        link.close()
        raise
    take(said)
    link.settimeout(None)
    return link


def require_own_peer(link: socket.socket) -> None:
    """Raise if another user's process listens. Root may connect to anyone's."""
    if sys.platform == "linux":
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        user = int.from_bytes(credentials[4:8], sys.byteorder)
        if user != os.geteuid():
            raise UnavailableError(f"user {user} listens in the background bridge's place")


def start(place: Place, words: Sequence[str], lock: int) -> None:
    """Start a bridge that holds the lock, in a session of its own."""
    os.set_inheritable(lock, True)
    child = os.fork()
    if child:
        os.close(lock)
        os.waitpid(child, 0)
        return
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, lock)
        os.closerange(lock + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir("/")
        flags = [word for word in words if word != "serve"]
        command = [sys.executable, "-m", "bridge.background", str(lock), *flags]
        os.execv(sys.executable, command)
    finally:
        os._exit(1)


def replace_hung(place: Place) -> None:
    """End a bridge that listens and does not answer, if the recorded process is certainly it."""
    number = place.process()
    if number is None:
        raise UnavailableError("a process that is not known holds its place and does not answer")
    for kind in (signal.SIGTERM, signal.SIGKILL):
        os.kill(number, kind)
        until = time.monotonic() + STOP_SECONDS
        while time.monotonic() < until:
            if place.process() != number:
                return
            time.sleep(0.02)
    raise UnavailableError(f"process {number} hangs and cannot be ended")
