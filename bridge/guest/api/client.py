"""The worker's end of the channel: calls out, replies in.

Owns correlation. Callers in any event loop and any thread write under a lock and wait in their own
loop, so calls never wait for each other. Replies are read by the loop that made the first call: a
program with one loop, which is nearly every one, stays single-threaded and may fork as it likes.
A thread takes over for good where that loop may be kept from reading: when a second one calls, or
when there is no room to write.
"""

from __future__ import annotations

import _socket
import _thread
import contextlib
import itertools
import json
import os
import re
import select
import sys

from bridge.guest.api.values import MCPError, Result, error_from_wire
from bridge.guest.protocol.wire import (
    MAX_FRAME_BYTES,
    MAX_VALUES,
    Call,
    Cancel,
    count_values,
    encode,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import threading
    from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple, Union


RECEIVE_BYTES = 256 * 1024
"""Bytes taken from the socket at a time."""

HELD_RESULT = "held_result"
"""The code with which the host refuses a call for the placeholders in it."""

_REPLY_HEAD = re.compile(rb'{"type":"reply","id":(\d+),')
"""How the host's replies begin: enough to tell whose they are when the rest cannot be read."""

LOOK_MILLISECONDS = 50
"""How long a thread that reads for itself looks at the channel; others may have read its answer."""


class Box:
    """Takes one answer, from any thread.

    Attributes:
        full: Whether it has.
    """

    def __init__(self) -> None:
        self.full = False
        self._answer: Any = None
        self._lock = _thread.allocate_lock()
        self._lock.acquire()

    def fill(self, answer: Any) -> None:
        """Put the answer in; there is one only."""
        self._answer = answer
        self.full = True
        self._lock.release()

    def look_out(self, fd: int) -> None:
        """Wait until there is something to read, or the answer may have come otherwise."""
        if self.full:
            return
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        poller.poll(LOOK_MILLISECONDS)

    def value(self) -> Any:
        """Wait for the answer and return it, or raise it."""
        self._lock.acquire()
        if isinstance(self._answer, MCPError):
            raise self._answer
        return self._answer


if TYPE_CHECKING:
    Waiter = Union[Tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]"], Box]


class Client:
    """Sends calls and hands each its reply."""

    def __init__(self, fd: int, frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._socket = _socket.socket(fileno=fd)
        self._frame_bytes = frame_bytes
        self._ids = itertools.count(1)
        self._pid = os.getpid()
        self._writing = _thread.allocate_lock()
        self._reading = _thread.allocate_lock()
        self._lock = _thread.allocate_lock()
        self._waiting: Dict[int, Waiter] = {}
        self._replies = Replies()
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._parted: Optional[asyncio.AbstractEventLoop] = None
        self._closed = ""
        os.register_at_fork(
            before=self._part, after_in_parent=self._rejoin, after_in_child=self._leave
        )

    async def call(self, method: str, params: Mapping[str, Any], subject: str) -> Any:
        """Ask the host and return its value. `subject` names the call in errors.

        Raises:
            MCPError: The host refused, or is gone.
            ValueError: The call is too large to send.
        """
        call_id, line = self._line_of(method, params, subject)
        # Whoever is awaited has it; a program that calls nothing does without.
        import asyncio

        loop = asyncio.get_running_loop()
        future: "asyncio.Future[Any]" = loop.create_future()
        held = sys.modules.get("bridge.guest.api.held_results")
        # Only a plan has it; there a call may be one that must not be made any more.
        place = 0 if held is None else held.check()
        self._register(call_id, loop, future)
        try:
            self._write(line)
            return await future
        except MCPError as error:
            if held is None or error.code != HELD_RESULT:
                raise
            raise held.stopping(str(error), place) from None
        finally:
            with self._lock:
                unanswered = self._waiting.pop(call_id, None)
            if unanswered is not None and future.cancelled():
                # The host may stop the call; a reply on its way will find nobody waiting.
                with contextlib.suppress(MCPError):
                    self._write(encode(Cancel(id=call_id)))

    def call_and_wait(self, method: str, params: Mapping[str, Any], subject: str) -> Any:
        """Ask the host as `call` does, and keep this thread waiting for the value.

        An event loop of this thread stands still meanwhile; others go on.

        Raises:
            MCPError: The host refused, or is gone.
            ValueError: The call is too large to send.
        """
        call_id, line = self._line_of(method, params, subject)
        held = sys.modules.get("bridge.guest.api.held_results")
        if held is not None:
            held.check()
        box = Box()
        with self._lock:
            if self._closed:
                raise MCPError(self._closed, kind="channel")
            others = any(not isinstance(waiter, tuple) for waiter in self._waiting.values())
            self._waiting[call_id] = box
        try:
            self._write(line)
            if others or self._others_read():
                # Who reads for himself alone may have another's answer, which then waits for him.
                self._start_thread()
            self._read_for(box)
            return box.value()
        finally:
            with self._lock:
                unanswered = self._waiting.pop(call_id, None)
            if unanswered is not None:
                # Something else, such as the run's deadline, ended the wait.
                with contextlib.suppress(MCPError):
                    self._write(encode(Cancel(id=call_id)))

    def _read_for(self, box: Box) -> None:
        """Read in this thread, as long as no other does and the answer is not there."""
        while not box.full and self._thread is None:
            reason = "the bridge closed the connection"
            try:
                if self.drain():
                    box.look_out(self._socket.fileno())
                    continue
            except Exception as error:
                reason = broken(error)
            if self._thread is None:
                self._close(reason)

    def _others_read(self) -> bool:
        """Tell whether a loop of another thread reads, which may itself be kept waiting."""
        loop = self._loop
        if self._thread is not None or loop is None or not loop.is_running():
            return False
        return sys.modules["asyncio"]._get_running_loop() is not loop

    def _line_of(self, method: str, params: Mapping[str, Any], subject: str) -> Tuple[int, bytes]:
        """Return a call's number and its line.

        Raises:
            MCPError: It cannot be made from here.
            ValueError: It is too large to send.
        """
        if os.getpid() != self._pid:
            message = (
                "%s was called in a child process; only the program's first process is connected. "
                "Make the call there and pass the value on." % subject
            )
            raise MCPError(message, kind="channel")
        call_id = next(self._ids)
        line = encode(Call(id=call_id, method=method, params=params))
        if len(line) > self._frame_bytes:
            message = "the arguments of %s take %s bytes as JSON; the limit is %s"
            raise ValueError(message % (subject, f"{len(line):,}", f"{self._frame_bytes:,}"))
        if count_values(line) > MAX_VALUES:
            message = "the arguments of %s hold more than %s values; pass them in several calls"
            raise ValueError(message % (subject, f"{MAX_VALUES:,}"))
        return call_id, line

    def tell(self, frame: Any) -> None:
        """Send a frame that has no answer. Safe in any thread; in a child process it goes nowhere.

        Raises:
            ValueError: It is too large, or no JSON.
            MCPError: The host is gone.
        """
        line = encode(frame)
        if len(line) > self._frame_bytes:
            message = "what is sent takes %s bytes as JSON; the limit is %s"
            raise ValueError(message % (f"{len(line):,}", f"{self._frame_bytes:,}"))
        if os.getpid() == self._pid:
            self._write(line)

    def fileno(self) -> int:
        """Return the channel's descriptor, or -1 if a thread reads it, or it is closed."""
        return -1 if self._thread is not None or self._closed else self._socket.fileno()

    def drain(self, here: Optional[asyncio.AbstractEventLoop] = None) -> bool:
        """Take the replies that have come, without waiting; return whether more may.

        Args:
            here: The loop in which this is called, if it is called in one.
        """
        with self._reading:
            if self._thread is not None:
                return False
            try:
                data = self._socket.recv(RECEIVE_BYTES, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            replies = list(self._replies.feed(data))
        for line, texts in replies:
            self._deliver(line, texts, here)
        return bool(data)

    def send_last(self, frame: Any, notice: bytes) -> None:
        """Send the frame that ends the program, even after a line that the program tore.

        Args:
            notice: A line for the supervisor that comes with it.
        """
        self._write(b"\n" + encode(frame) + notice)

    def _register(
        self, call_id: int, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]"
    ) -> None:
        with self._lock:
            if self._closed:
                raise MCPError(self._closed, kind="channel")
            self._waiting[call_id] = (loop, future)
        if self._loop is loop or self._thread is not None:
            return
        if not self._adopted_by(loop):
            # Two loops, of which one may be kept waiting by the other.
            self._start_thread()

    def _adopted_by(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Have `loop` read if no other does; return whether anybody reads whom it need not fear."""
        with self._reading:
            if self._thread is not None:
                return True
            if self._loop is None or self._loop.is_closed():
                self._loop = None
                self._join(loop)
            return self._loop is loop

    def _join(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have `loop` read the replies."""
        try:
            loop.add_reader(self._socket.fileno(), self._read_in_loop, loop)
        except (NotImplementedError, OSError, RuntimeError, ValueError):
            # A loop of some other make, or one that has just been closed.
            return
        self._loop = loop

    def _start_thread(self) -> None:
        """Have a thread read the replies from now on."""
        import threading
        import warnings

        with self._reading:
            if self._thread is not None:
                return
            # From here on a fork makes newer Pythons warn, about a thread that is ours.
            warnings.filterwarnings(
                "ignore", message=r".*multi-threaded, use of fork", category=DeprecationWarning
            )
            thread = threading.Thread(target=self._read, name="mcp-replies", daemon=True)
            self._thread = thread
            try:
                thread.start()
            except RuntimeError:
                # No more threads are allowed; whoever reads goes on.
                self._thread = None
                raise

    def _write(self, line: bytes) -> None:
        try:
            with self._writing:
                sent = 0
                if self._thread is None:
                    with contextlib.suppress(BlockingIOError):
                        sent = self._socket.send(line, _socket.MSG_DONTWAIT)
                    if sent == len(line):
                        return
                    # To wait here for the bridge, which may wait for its replies to be read, takes
                    # somebody else who reads.
                    with contextlib.suppress(RuntimeError):
                        self._start_thread()
                self._socket.sendall(line[sent:] if sent else line)
        except OSError as error:
            self._close("the connection to the bridge is closed (%s)" % error)
            raise MCPError(self._closed, kind="channel") from None

    def _read_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take the replies that are there, in the loop that waits for them."""
        reason = "the bridge closed the connection"
        try:
            if self._loop is loop and self.drain(loop):
                return
        except Exception as error:
            reason = broken(error)
        loop.remove_reader(self._socket.fileno())
        if self._thread is None and self._loop is loop:
            self._close(reason)

    def _read(self) -> None:
        reason = "the bridge closed the connection"
        try:
            while True:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    break
                for line, texts in self._replies.feed(data):
                    self._deliver(line, texts)
        except Exception as error:
            reason = broken(error)
        self._close(reason)

    def _deliver(
        self,
        line: bytes,
        texts: List[bytearray],
        here: Optional[asyncio.AbstractEventLoop] = None,
    ) -> None:
        try:
            reply = read_reply(line, texts)
        except (RecursionError, MemoryError) as problem:
            head = _REPLY_HEAD.match(line)
            if head is None:
                raise
            text = "the answer cannot be held here: %s" % (str(problem) or type(problem).__name__)
            reply = {"type": "reply", "id": int(head.group(1)), "error": {"message": text}}
        if not isinstance(reply, dict) or reply.get("type") != "reply":
            return
        with self._lock:
            waiter = self._waiting.pop(reply.get("id", -1), None)
        if waiter is None:
            return
        error = reply.get("error")
        outcome = reply.get("value") if error is None else error_from_wire(error)
        settle(waiter, outcome, here)

    def _close(self, reason: str) -> None:
        with self._lock:
            self._closed = self._closed or reason
            waiters = list(self._waiting.values())
            self._waiting.clear()
        for waiter in waiters:
            settle(waiter, MCPError(reason, kind="channel"))

    def _part(self) -> None:
        """Before a fork: leave the loop, whose copy in the child would share what it watches."""
        loop = self._loop
        if loop is None or os.getpid() != self._pid or loop.is_closed():
            return
        if loop.is_running() and sys.modules["asyncio"]._get_running_loop() is not loop:
            # It runs in another thread, which the child will not have.
            return
        loop.remove_reader(self._socket.fileno())
        self._loop, self._parted = None, loop

    def _rejoin(self) -> None:
        """After a fork, in the parent: read on."""
        loop, self._parted = self._parted, None
        if loop is not None and self._thread is None:
            self._join(loop)

    def _leave(self) -> None:
        """In a forked child: let go of the channel, which is the parent's."""
        # The fork may have come while a thread held them that the child does not have.
        self._writing = _thread.allocate_lock()
        self._reading = _thread.allocate_lock()
        self._lock = _thread.allocate_lock()
        self._waiting = {}
        self._loop = self._parted = self._thread = None
        if self._socket.fileno() >= 0:
            self._socket.close()


# --- replies ------------------------------------------------------------------------------------

_BESIDE = b"+"

_DECODER = json.JSONDecoder(object_hook=Result)
# Straight into `Result`: a walk over a large value afterwards would take long.


class Replies:
    """Bytes in any portions to replies. Each byte of a long one is moved once or twice."""

    def __init__(self) -> None:
        self._parts: List[bytes] = []
        self._texts: List[bytearray] = []
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[Tuple[bytes, List[bytearray]]]:
        """Yield each line that `data` completes, with the texts that belong to it.

        Exhaust the iterator before feeding again.
        """
        start = 0
        while start < len(data):
            if self._missing:
                part = data[start : start + self._missing]
                self._texts[-1] += part
                self._missing -= len(part)
                start += len(part)
                continue
            end = data.find(b"\n", start)
            stop = len(data) if end < 0 else end
            if stop > start:
                self._parts.append(data[start:stop])
            start = stop + 1
            if end < 0:
                return
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            if line.startswith(_BESIDE):
                self._missing = int(line)
                self._texts.append(bytearray())
            elif line:
                texts, self._texts = self._texts, []
                yield line, texts


def read_reply(line: bytes, texts: List[bytearray]) -> Any:
    """Return the reply that a line and its texts hold.

    Raises:
        RecursionError, MemoryError: It cannot be held here.
    """
    reply = _DECODER.decode(line.decode("utf-8", "surrogatepass"))
    if texts:
        value = reply["value"]
        for path in value["texts"]:
            target = value
            for name in ["rest", *path[:-1]]:
                target = target[name]
            target[path[-1]] = texts.pop(0).decode()
        reply["value"] = value["rest"]
    return reply


def broken(error: Exception) -> str:
    """Say why nothing more can be read."""
    # Whatever it is (no memory for a reply, say), nobody may wait for ever.
    return "the connection to the bridge broke: %s" % (str(error) or type(error).__name__)


def settle(waiter: Waiter, outcome: Any, here: Optional[asyncio.AbstractEventLoop] = None) -> None:
    """Give whoever waits what came, or have it raised there.

    Args:
        here: The loop in which this is called, if it is called in one.
    """
    if not isinstance(waiter, tuple):
        waiter.fill(outcome)
        return
    loop, future = waiter

    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, MCPError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    if loop is here:
        settle()
        return
    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop has ended, and whoever waited in it.
        return
