"""The process that a client starts: connects the client to the user's background bridge.

It copies the client's input to the bridge. The bridge writes into the client's pipe itself, so a
large answer is copied once. The front keeps the input that the bridge has not taken, and what
another bridge must know to continue after a crash. Imports little, since each client has a front.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from bridge.background.place import Place, UnavailableError, directory_of, place_for

TYPE_CHECKING = False  # `typing` takes longer than the rest.
if TYPE_CHECKING:
    from typing import Any

START_SECONDS = 30.0  # For the start of a bridge, and for its end after that of its runs.

ANSWER_SECONDS = 2.0  # After which a bridge that listens and does nothing counts as hung.

SILENCES = 5  # After which a bridge that works counts as hung, too.

STOP_SECONDS = 3.0  # Between SIGTERM and SIGKILL of a bridge that hangs.

ATTEMPTS = 5  # Bridges that end before they answer a request, until a front serves alone.

PIECE_BYTES = 64 * 1024  # The capacity of a pipe.

COMMANDS = ("run", "tools", "servers", "sessions", "runs", "policy")
"""Commands that a background bridge executes if it runs."""


def main() -> int:
    """Attach to the background bridge, or do the command in this process."""
    words, resumed = sys.argv[1:], None
    if os.access(usual := f"/run/user/{os.getuid()}", os.W_OK):
        # Codex passes only a few variables on.
        os.environ.setdefault("XDG_RUNTIME_DIR", usual)
    try:
        if os.environ.get("MCP_BRIDGE_BACKGROUND") == "off":
            pass
        elif serves(words):
            front = Front(words)
            try:
                return front.serve()
            except UnavailableError as error:
                if str(error):
                    print(f"mcp-code-bridge serves alone: {error}.", file=sys.stderr)  # noqa: T201
                resumed = front.session(), front.pending
        elif words[:1] and words[0] in COMMANDS and (status := execute(words)) is not None:
            return status
    except KeyboardInterrupt:
        return 130
    from bridge.cli.main import main as main_alone

    return main_alone(words, resumed)


def serves(words: Sequence[str]) -> bool:
    """Return whether a command line serves MCP on stdin and stdout."""
    names = {word.partition("=")[0] for word in words}
    if names & {"--http", "--no-token", "--help", "-h", "--version", "-V"}:
        return False
    if None in (sys.stdin, sys.stdout) or "_MCP_CODE_BRIDGE_COMPLETE" in os.environ:
        # A client closed them, or a shell completes a command line.
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
        self._lost = 0  # Bridges in sequence that ended before they answered a request.
        self._status: int | None = None

    def serve(self) -> int:
        """Copy until the bridge says that the client's session has ended; return its status."""
        place = place_for(self._words, os.environ)
        while self._status is None:
            if self._link is None:
                if self._lost == ATTEMPTS:
                    raise UnavailableError(f"{ATTEMPTS} background bridges have ended at once")
                idle = not (self._open or self._pending)
                # The client needs no bridge until it sends something.
                if self._lines and idle and (self._ended or not self._take_input()):
                    return 0
                hello = {"serve": self.session(), **described(place, self._words)}
                self._link = attach(place, hello, [1])
                self._unread, self._outgoing = b"", bytearray()
                self._put(b"L", self._pending)
                if self._ended:
                    self._put(b"E", b"")
            try:
                self._copy(place, self._link)
            except OSError:
                with suppress(OSError):
                    while True:
                        # What it said before it went, so that nothing is done twice.
                        self._read(self._link)
                self._link.close()
                self._link = None
                self._lost += 1
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

    def _copy(self, place: Place, link: socket.socket) -> None:
        """Copy what is ready. Raises `OSError` when the bridge has gone."""
        reads = [link.fileno()]
        # A client that sends faster than the bridge reads has to wait.
        if not self._ended and len(self._outgoing) < PIECE_BYTES:
            reads.append(0)
        # A bridge that has something to do may hang.
        patience = SILENCES * ANSWER_SECONDS if self._open or self._pending else None
        writes = [link] if self._outgoing else []
        readable, writable, _ = select.select(reads, writes, [], patience)
        if not (readable or writable):
            try:
                ask(place)
            except TimeoutError:
                replace_hung(place)
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
        data = link.recv(PIECE_BYTES, socket.MSG_DONTWAIT)
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
            self._lost = 0
        self._status = said.get("status", self._status)


def execute(words: Sequence[str]) -> int | None:
    """Let a running bridge execute a command, and return its exit status; None if it does not."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if any(each is None or each.encoding != "utf-8" for each in streams):
        return None
    # Such a path means something else in each process.
    if any("/dev/" in word or "/proc/" in word for word in words):
        return None
    try:
        # A command in the background must not use its terminal.
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None
        if not os.path.exists(directory_of(os.environ)):  # noqa: PTH110
            return None
        place = place_for((), os.environ)
        link = connect(place, {"command": True, **described(place, words)}, (0, 1, 2))
    except (UnavailableError, OSError):
        return None
    return None if link is None else follow(link)


def follow(link: socket.socket) -> int:
    """Wait until a command has ended; a signal cancels it. Return its exit status."""
    received: list[int] = []

    def cancel(number: int, _: object) -> None:
        if received:
            os._exit(128 + number)
        received.append(number)
        link.shutdown(socket.SHUT_WR)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, cancel)
    # The bridge would use the terminal while this process is stopped.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    said = b""
    try:
        link.sendall(b"L1\n.")
        while not said.endswith(b"\n") and (data := link.recv(PIECE_BYTES)):
            said += data
    except OSError:
        pass
    if received:
        return 128 + received[0]
    if said:
        return int(json.loads(said)["status"])
    text = "error: The background bridge has ended before the command.\n"
    sys.stderr.write(f"{text}hint: `mcp-code-bridge runs` shows what a run had called.\n")
    return 1


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
    started, silences = False, 0
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        worked = place.processor_time()
        try:
            if (link := connect(place, hello, streams)) is not None:
                return link
            lock = place.hold_lock()
            if lock is None:
                # A bridge starts.
                time.sleep(0.02)
            elif started:
                os.close(lock)
                raise UnavailableError("it could not be started")
            else:
                started = True
                start(place, hello["words"], lock)
        except TimeoutError:
            silences += 1
            if silences < SILENCES and worked != place.processor_time():
                # It works, and is slow on a machine that does other things too.
                continue
            if not replace_hung(place) and silences > 1:
                message = "a process that is not known holds its place and does not answer"
                raise UnavailableError(message) from None
        except OSError as error:
            raise UnavailableError(f"{place.directory}: {error.strerror or error}") from error
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
    except (FileNotFoundError, ConnectionError, BlockingIOError):
        # The last one: more clients than the kernel lets wait.
        link.close()
        return None
    except BaseException:
        link.close()
        raise
    take(said)
    link.settimeout(None)
    return link


def ask(place: Place, **wish: bool) -> dict[str, Any]:
    """Return a bridge's report; empty if none listens there. Blocks for 2 s at most."""
    said: dict[str, Any] = {}
    if (link := connect(place, wish, [], said.update)) is not None:
        link.close()
    return said


def require_own_peer(link: socket.socket) -> None:
    """Raise if another user's process is at the other end. Root may connect to anyone's."""
    if sys.platform == "linux":
        credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        user = int.from_bytes(credentials[4:8], sys.byteorder)
        if user != os.geteuid():
            raise UnavailableError(f"user {user} is at the other end of the bridge's socket")


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
        # The limit is a billion on some machines, and takes minutes.
        os.closerange(lock + 1, 65_536)
        os.chdir("/")
        flags = [word for word in words if word != "serve"]
        command = [sys.executable, "-m", "bridge.background", str(lock), *flags]
        os.execv(sys.executable, command)
    finally:
        os._exit(1)


def replace_hung(place: Place) -> bool:
    """End a bridge that does not answer; return False if the recorded process is not certainly it.

    Another front may have just ended it.
    """
    number = place.process()
    if number is None:
        return False
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(number, kind)
        except ProcessLookupError:
            return True
        until = time.monotonic() + STOP_SECONDS
        while time.monotonic() < until:
            if place.process() != number:
                return True
            time.sleep(0.02)
    raise UnavailableError(f"process {number} hangs and cannot be ended")
