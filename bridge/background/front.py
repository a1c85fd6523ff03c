"""The process that a client starts: connects the client to the user's background bridge.

It copies the client's input to the bridge. The bridge writes into the client's pipe itself, so a
large answer is copied once. The front keeps the input that the bridge has not taken, and the state
from which another bridge continues after a crash. Imports little: each client has a front.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from bridge.background_instance import (
    ANSWER_SECONDS,
    MISSED_ANSWERS,
    START_SECONDS,
    Instance,
    UnavailableError,
    ask_or_end,
    connect,
    directory_of,
    end_hung,
    instance_for,
)

TYPE_CHECKING = False  # Importing `typing` takes longer than the other imports.
if TYPE_CHECKING:
    from typing import Any

ATTEMPTS = 5  # Bridges that end before an answer, until the front uses none.

PIECE_BYTES = 64 * 1024  # The capacity of a pipe.

COMMANDS = ("run", "tools", "servers", "sessions", "runs", "policy")
"""Commands that a running bridge may execute; `execution.HANDLERS` has their functions."""


def main() -> int:
    """Attach the client to a bridge, or execute the command there or here; return the status."""
    words, resumed = sys.argv[1:], None
    if os.access(usual := f"/run/user/{os.getuid()}", os.W_OK):
        # Codex passes only a few variables to its servers.
        os.environ.setdefault("XDG_RUNTIME_DIR", usual)
    try:
        if os.environ.get("MCP_BRIDGE_BACKGROUND", "").strip().lower() == "off":
            pass
        elif serves(words):
            front = Front(words)
            try:
                return front.serve()
            except UnavailableError as error:
                if str(error):
                    print(f"mcp-code-bridge uses no background bridge: {error}.", file=sys.stderr)  # noqa: T201
                resumed = {**front.session(), "unread": bytes(front.pending)}
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
    """A client's connection to a background bridge, and to the next one after a crash.

    It sends `hello` on one line, then the client's unchanged input, and closes its half of the
    connection at the end. `_note` reads the bridge's reports.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.pending = bytearray()  # The client's input that no bridge has taken.
        self._omitted = 0  # Bytes that `pending` lacks of its first line.
        self._words = words
        self._link: socket.socket | None = None
        self._unread = b""
        self._outgoing = bytearray()
        self._ended = False
        self._heard = 0.0  # When the bridge has last reported, or the client begun to wait for it.
        self._end_is_due = False  # Whether the bridge does not know yet that the input has ended.
        # The client's lines that set up its session, and the ids of open requests with their runs.
        self._lines: dict[str, str] = {}
        self._open: dict[str, str] = {}
        self._torn = False  # Whether the bridge writes a long message now.
        self._lost = 0  # Bridges in sequence that ended before they answered a request.
        self._status: int | None = None

    def serve(self) -> int:
        """Copy until the bridge reports the end of the client's session; return the exit status.

        Raises:
            UnavailableError: No bridge is usable; `session` has the state of the client.
        """
        while self._status is None:
            if self._link is None:
                if self._lost == ATTEMPTS:
                    raise UnavailableError(f"{ATTEMPTS} in a row ended before an answer")
                idle = not (self._open or self.pending)
                # After a loss the client needs no bridge until it sends something.
                if self._lost and idle and (self._ended or not self._take_input()):
                    return 0
                # The settings may have changed since the last bridge began.
                self._instance = own = instance_for(self._words, os.environ)
                self._link = attach(own, hello(own, self._words, serve=self.session()))
                self._unread, self._outgoing, self._omitted = b"", self.pending[:], 0
                self._heard = time.monotonic()
                self._end_is_due = self._ended
            try:
                self._copy(self._link)
            except OSError:
                with suppress(OSError):
                    # Its last reports show which requests must not be repeated.
                    while True:
                        self._read(self._link)
                self._link.close()
                self._link = None
                self._lost += 1
        return self._status

    def session(self) -> dict[str, Any]:
        """Return the state from which another bridge continues this client's session.

        `open` has pairs of a request's id, as JSON, and its run's id, which may be empty.
        """
        lines, requests = list(self._lines.values()), list(self._open.items())
        return {"lines": lines, "open": requests, "torn": self._torn}

    def _copy(self, link: socket.socket) -> None:
        """Copy what is ready. Raises `OSError` when the bridge has gone."""
        reads = [link.fileno()]
        # A client that sends faster than the bridge reads has to wait.
        if not self._ended and len(self._outgoing) < PIECE_BYTES:
            reads.append(0)
        # Without an open request, the front expects no answer.
        waits = self._open or self.pending
        patience = self._heard + MISSED_ANSWERS * ANSWER_SECONDS - time.monotonic()
        if waits and patience <= 0:
            ask_or_end(self._instance)
            self._heard = time.monotonic()
            return
        writes = [link] if self._outgoing or self._end_is_due else []
        readable, writable, _ = select.select(reads, writes, [], patience if waits else None)
        if link.fileno() in readable:
            self._read(link)
        if writable and self._outgoing:
            del self._outgoing[: link.send(self._outgoing, socket.MSG_DONTWAIT)]
        elif writable:
            link.shutdown(socket.SHUT_WR)
            self._end_is_due = False
        if 0 in readable:
            self._outgoing += self._take_input()
            self._end_is_due = self._ended

    def _take_input(self) -> bytes:
        select.select([0], [], [])  # It may not block.
        data = os.read(0, PIECE_BYTES)
        if not (self._open or self.pending):
            self._heard = time.monotonic()
        self.pending += data
        self._ended = not data
        if len(self.pending) > 80 << 20 and self.pending.find(b"\n", 0, 64 << 20) < 0:
            # Bridges refuse a line of more than 48 MiB, and the next bridge refuses the rest too.
            del self.pending[49 << 20 : 64 << 20]
            self._omitted += 15 << 20
        return data

    def _read(self, link: socket.socket) -> None:
        data = link.recv(PIECE_BYTES, socket.MSG_DONTWAIT)
        if not data:
            raise ConnectionResetError
        self._heard = time.monotonic()
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            self._note(json.loads(line))

    def _note(self, report: Mapping[str, Any]) -> None:
        """Note a bridge's report on its progress.

        Args:
            report: `taken`, a count of bytes of the input; `torn`, whether it writes a long
                message; `line`, a key and its set-up line, which may be empty for none; `begun`
                and `ended`, a request's id as JSON, with `run`, its run's id; `status`, the exit
                status.
        """
        if "taken" in report:
            del self.pending[: report["taken"] - self._omitted]
            self._omitted = 0
        self._torn = report.get("torn", self._torn)
        if "line" in report:
            name, line = report["line"]
            self._lines[name] = line
            if not line:
                del self._lines[name]
        if "begun" in report:
            self._open[report["begun"]] = report.get("run", "")
        if "ended" in report:
            self._open.pop(report["ended"], None)
            self._lost = 0
        self._status = report.get("status", self._status)


def execute(words: Sequence[str]) -> int | None:
    """Let a running bridge execute a command; return the exit status; None if none executes it."""
    streams = (sys.stdin, sys.stdout, sys.stderr)
    if any(each is None or each.encoding != "utf-8" for each in streams):
        return None
    # Such a path names another file in each process.
    if any("/dev/" in word or "/proc/" in word for word in words):
        return None
    try:
        # A background job of a shell must not use the terminal.
        if os.isatty(0) and os.tcgetpgrp(0) != os.getpgrp():
            return None
        if not os.path.exists(directory_of(os.environ)):  # noqa: PTH110
            return None
        instance = instance_for((), os.environ)
        accepted = connect(instance, hello(instance, words, command=True), (0, 1, 2))
    except (UnavailableError, OSError):
        return None
    return None if accepted is None else follow(accepted[0])


def follow(link: socket.socket) -> int:
    """Wait for a command's end and return its exit status; a signal cancels the command."""
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
    answer = b""
    with suppress(OSError):
        link.sendall(b".")
        while not answer.endswith(b"\n") and (data := link.recv(PIECE_BYTES)):
            answer += data
    if received:
        return 128 + received[0]
    if answer:
        return int(json.loads(answer)["status"])
    text = "error: The background bridge ended before the command did.\n"
    sys.stderr.write(f"{text}hint: `mcp-code-bridge runs show RUN` shows the calls of a run.\n")
    return 1


def hello(instance: Instance, words: Sequence[str], **request: object) -> dict[str, Any]:
    """Return a front's first message: its request, and the facts of its process."""
    try:
        directory = os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        directory = "/"
    facts = {"identity": instance.identity, "words": list(words), "environ": dict(os.environ)}
    return {**request, **facts, "cwd": directory}


def attach(instance: Instance, message: Mapping[str, Any]) -> socket.socket:
    """Return a connection to a bridge, after starting it if it does not run.

    Raises:
        UnavailableError: No bridge accepts the client, and none could be started within 30 s.
    """
    started, unknown = False, 0
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        worked = instance.processor_time()
        try:
            if (accepted := connect(instance, message, [1])) is not None:
                return accepted[0]
            lock = instance.hold_lock()
            if lock is None:
                # Another front starts a bridge.
                time.sleep(0.02)
            elif started:
                os.close(lock)
                raise UnavailableError("a new one ended while it started, see `background logs`")
            else:
                started = True
                with os.fdopen(lock):
                    start(instance.name, message["words"], lock)
        except TimeoutError:
            unknown += not end_hung(instance, worked)
            if unknown > 1:
                reason = "an unknown process listens on its socket and does not answer"
                raise UnavailableError(reason) from None
        except OSError as error:
            raise UnavailableError(f"{instance.directory}: {error.strerror or error}") from error
    raise UnavailableError(f"none was ready within {START_SECONDS:g} s")


def start(name: str, words: Sequence[str], lock: int) -> None:
    """Start an instance in a session of its own, and give it the lock's descriptor."""
    os.set_inheritable(lock, True)
    if child := os.fork():
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
        # Some machines allow a billion descriptors, and closing them all takes minutes.
        os.closerange(lock + 1, 65_536)
        os.chdir("/")
        flags = [word for word in words if word != "serve"]
        command = [sys.executable, "-m", "bridge.background.daemon", str(lock), name, *flags]
        os.execv(sys.executable, command)
    finally:
        os._exit(1)
