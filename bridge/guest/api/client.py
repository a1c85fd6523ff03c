"""The worker's end of the channel: sends calls and delivers replies.

Owns correlation. Callers in any event loop and thread write under a lock and wait in their own
loop, so calls never wait for each other. The loop that made the first call reads the replies, so
that a program with one loop stays single-threaded and may fork. A thread takes over permanently
when that loop may be blocked: when a second loop calls, or when the socket is done.
"""

from __future__ import annotations

import _queue  # `queue` without `threading`, whose import is slow
import _socket
import _thread
import itertools
import os
import select
import sys
from contextlib import suppress

from bridge.guest.api.values import MCPError, Result, error_from_wire
from bridge.guest.protocol import json_text, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    import threading
    from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

RECEIVE_BYTES = 256 * 1024  # Most bytes read from the socket at once.
HELD_RESULT = "held_result"  # The error code of a call refused because of the placeholders in it.
CLOSED = "the bridge closed the connection"

clients: List[ChannelClient] = []  # This process's client.
earlier_threads: Any = ()  # Threads of a session's earlier runs; their calls are refused.


if TYPE_CHECKING:
    Waiter = Union[Tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]"], _queue.SimpleQueue[Any]]


class ChannelClient:
    def __init__(self, fd: int, frame_bytes: int = wire.MAX_FRAME_BYTES) -> None:
        self._socket = _socket.socket(fileno=fd)
        self._frame_bytes = frame_bytes
        self._ids = itertools.count(1)
        self._begun = 0
        clients[:] = [self]
        self._pid = os.getpid()
        self._writing = _thread.allocate_lock()
        self._reading = _thread.allocate_lock()
        self._lock = _thread.allocate_lock()
        self._waiting: Dict[int, Waiter] = {}
        self._frames = wire.LineDecoder(sys.maxsize)
        self.loop: Optional[asyncio.AbstractEventLoop] = None
        self._thread: Optional[threading.Thread] = None
        self._closed = ""
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    async def call(self, method: str, params: Mapping[str, Any], subject: str) -> Any:
        """Call the host and return the value. `subject` names the call in errors.

        Raises:
            MCPError: The host refused, or is gone.
            ValueError: The call is too large to send.
        """
        call_id, line = self._encode_call(method, params, subject)
        # A program that awaits a call has imported it; other programs skip the import.
        import asyncio

        loop = asyncio.get_running_loop()
        future: "asyncio.Future[Any]" = loop.create_future()
        held = sys.modules.get("bridge.guest.api.held_results")
        # Loaded in plans only: a program that a placeholder stopped makes no more calls.
        place = 0 if held is None else held.check()
        self._expect(call_id, (loop, future))
        if self.loop is not loop:
            with self._reading:
                if self._thread is None and (self.loop is None or self.loop.is_closed()):
                    self.loop = None
                    # The loop may have no `add_reader`, or be closed.
                    with suppress(NotImplementedError, OSError, RuntimeError, ValueError):
                        loop.add_reader(self._socket.fileno(), self._read_in_loop, loop)
                        self.loop = loop
            if self.loop is not loop:
                # With two loops, one may block the other.
                self._start_thread()
        try:
            self.write(line)
            return await future
        except MCPError as error:
            if held is None or error.code != HELD_RESULT:
                raise
            raise held.record_stop(str(error), place) from None
        finally:
            self._forget(call_id, cancel=future.cancelled())

    def call_and_wait(self, method: str, params: Mapping[str, Any], subject: str) -> Any:
        """Call the host as `call` does, and block this thread until the reply."""
        call_id, line = self._encode_call(method, params, subject)
        held = sys.modules.get("bridge.guest.api.held_results")
        if held is not None:
            held.check()
        reply: _queue.SimpleQueue[Any] = _queue.SimpleQueue()
        others = any(not isinstance(waiter, tuple) for waiter in [*self._waiting.values()])
        self._expect(call_id, reply)
        try:
            self.write(line)
            loop = self.loop
            if self._thread is None and loop is not None and loop.is_running():
                others |= sys.modules["asyncio"]._get_running_loop() is not loop
            if others:
                # With several blocked readers, one could hold up another's reply.
                self._start_thread()
            while reply.empty() and self._thread is None:
                reason = CLOSED
                try:
                    if self.drain():
                        poller = select.poll()
                        poller.register(self._socket.fileno(), select.POLLIN)
                        # Briefly: another thread may have read the reply.
                        poller.poll(50 if reply.empty() else 0)
                        continue
                except Exception as error:
                    reason = read_failure(error)
                if self._thread is None:
                    self._close(reason)
            outcome = reply.get()
            if isinstance(outcome, MCPError):
                raise outcome
            return outcome
        finally:
            # Something else, such as the run's deadline, may have ended the wait.
            self._forget(call_id, cancel=True)

    def _expect(self, call_id: int, waiter: Waiter) -> None:
        with self._lock:
            if self._closed:
                raise MCPError(self._closed, kind="channel")
            self._waiting[call_id] = waiter

    def _forget(self, call_id: int, *, cancel: bool) -> None:
        """Drop a late reply; if there was none, cancel the call, which the host may stop."""
        with self._lock:
            unanswered = self._waiting.pop(call_id, None)
        if unanswered is not None and cancel:
            with suppress(MCPError):
                self.write(wire.encode(wire.Cancel(id=call_id)))

    def _encode_call(
        self, method: str, params: Mapping[str, Any], subject: str
    ) -> Tuple[int, bytes]:
        if os.getpid() != self._pid:
            message = "%s was called in a child process; only the program's first process is "
            message += "connected. Make the call there and pass the value on."
            raise MCPError(message % subject, kind="channel")
        if earlier_threads and sys.modules["threading"].current_thread() in earlier_threads:
            raise MCPError("the run that made this call has ended", kind="channel")
        call_id = self._begun = next(self._ids)
        what = "the arguments of %s take" % subject
        line = self._encode(wire.Call(id=call_id, method=method, params=params), what)
        if wire.count_values(line) > wire.MAX_VALUES:
            message = "the arguments of %s hold more than %s values; pass them in several calls"
            raise ValueError(message % (subject, f"{wire.MAX_VALUES:,}"))
        return call_id, line

    def tell(self, frame: Any) -> None:
        """Send a frame without a reply, from any thread; in a child process do nothing."""
        line = self._encode(frame, "what is sent takes")
        if os.getpid() == self._pid:
            self.write(line)

    def _encode(self, frame: Any, what: str) -> bytes:
        line = wire.encode(frame)
        if len(line) > self._frame_bytes:
            message = "%s %s bytes as JSON; the limit is %s"
            raise ValueError(message % (what, f"{len(line):,}", f"{self._frame_bytes:,}"))
        return line

    def activity(self) -> Tuple[int, bool]:
        """Return how many calls the program has begun, and whether one is running."""
        return self._begun, bool(self._waiting)

    def fileno(self) -> int:
        """Return the channel's descriptor, or -1 if a thread reads it, or it is closed."""
        return -1 if self._thread is not None or self._closed else self._socket.fileno()

    def drain(self, here: Optional[asyncio.AbstractEventLoop] = None) -> bool:
        """Deliver the replies that have arrived, without blocking; return whether more may come."""
        with self._reading:
            if self._thread is not None:
                return False
            try:
                data = self._socket.recv(RECEIVE_BYTES, _socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            except OSError:
                return False
            frames = list(self._frames.feed(data))
        for frame in frames:
            self._deliver(frame, here)
        return bool(data)

    def _start_thread(self) -> None:
        import threading
        import warnings

        with self._reading:
            if self._thread is not None:
                return
            # Newer Pythons warn about a fork with threads; this thread is safe.
            warnings.filterwarnings(
                "ignore", message=r".*multi-threaded, use of fork", category=DeprecationWarning
            )
            thread = threading.Thread(target=self._read, name="mcp-replies", daemon=True)
            self._thread = thread
            try:
                thread.start()
            except RuntimeError:
                # The thread limit is reached; the loop continues to read.
                self._thread = None
                raise

    def write(self, line: bytes) -> None:
        """Send lines to the supervisor, from any thread; raise MCPError if the host is gone."""
        try:
            with self._writing:
                sent = 0
                if self._thread is None:
                    with suppress(BlockingIOError):
                        sent = self._socket.send(line, _socket.MSG_DONTWAIT)
                    if sent == len(line):
                        return
                    # The bridge may be waiting for its replies to be read: while this thread
                    # blocks, another must read.
                    with suppress(RuntimeError):
                        self._start_thread()
                self._socket.sendall(line[sent:] if sent else line)
        except OSError as error:
            self._close("the connection to the bridge is closed (%s)" % error)
            raise MCPError(self._closed, kind="channel") from None

    def _read_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        reason = CLOSED
        try:
            if self.loop is loop and self.drain(loop):
                return
        except Exception as error:
            reason = read_failure(error)
        loop.remove_reader(self._socket.fileno())
        if self._thread is None and self.loop is loop:
            self._close(reason)

    def _read(self) -> None:
        reason = CLOSED
        try:
            while data := self._socket.recv(RECEIVE_BYTES):
                for frame in self._frames.feed(data):
                    self._deliver(frame)
        except Exception as error:
            reason = read_failure(error)
        self._close(reason)

    def _deliver(self, frame: bytes, here: Optional[asyncio.AbstractEventLoop] = None) -> None:
        try:
            reply = read_reply(frame)
        except (RecursionError, MemoryError) as problem:
            import re  # takes long, and most programs get no such reply

            start = max((text.stop for text in text_spans(frame)), default=0)
            head = re.compile(rb'{"type":"reply","id":(\d+),').match(frame, start)
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
        resolve(waiter, outcome, here)

    def _close(self, reason: str) -> None:
        with self._lock:
            self._closed = self._closed or reason
            waiters = list(self._waiting.values())
            self._waiting.clear()
        for waiter in waiters:
            resolve(waiter, MCPError(reason, kind="channel"))

    def _after_fork_in_child(self) -> None:
        """In a forked child: close the channel, which is the parent's."""
        # New locks: a thread that the child does not have may hold the old ones.
        self._writing = _thread.allocate_lock()
        self._reading = _thread.allocate_lock()
        self._lock = _thread.allocate_lock()
        self._waiting = {}
        self.loop = self._thread = None
        if self._socket.fileno() >= 0:
            self._socket.close()


parse_json = json_text.decoder(object_hook=Result)
# Decoded straight into `Result`: converting a large value afterwards would be slow.


def text_spans(frame: bytes) -> List[slice]:
    """Return where the texts in front of a frame's line are, each after its "+" line."""
    spans: List[slice] = []
    start = 0
    while frame.startswith(b"+", start):
        end = frame.index(b"\n", start) + 1
        start = end + int(frame[start:end])
        spans.append(slice(end, start))
    return spans


def read_reply(frame: bytes) -> Any:
    """Return the reply that a frame holds: a line of JSON, and the texts in front of it."""
    texts = text_spans(frame)
    reply = parse_json(frame[texts[-1].stop if texts else 0 :].decode("utf-8", "surrogatepass"))
    if texts:
        value = reply["value"]
        for path, text in zip(value["texts"], texts):  # noqa: B905 - not in 3.9
            target = value
            for name in ["rest", *path[:-1]]:
                target = target[name]
            target[path[-1]] = frame[text].decode()
        reply["value"] = value["rest"]
    return reply


def read_failure(error: Exception) -> str:
    # Any error ends every pending call: none may wait forever.
    return "the connection to the bridge broke: %s" % (str(error) or type(error).__name__)


def resolve(waiter: Waiter, outcome: Any, here: Optional[asyncio.AbstractEventLoop] = None) -> None:
    if not isinstance(waiter, tuple):
        waiter.put(outcome)
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
    # A closed loop has no waiting call.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(settle)
