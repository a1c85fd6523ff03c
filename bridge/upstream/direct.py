"""Requests that go from their caller straight to a server's pipe, and answers straight back.

Owns the correlation of these requests, and what the SDK's session would put into their `_meta`. The
session keeps the handshake, notifications and whatever the server asks; a tool call over a pipe
needs none of what lies between, which would be four hand-overs from task to task and two models
made and taken apart again. Without this file (`Pool(direct=False)`) all goes through the session;
docs/design.md says what would let it go.

Answers are read by the same JSON reader as the SDK's, and what is not plainly an answer to one of
these requests is left alone, to be judged by the SDK's models.

A message is written by whoever sends it, without a hand-over to another task; only the rest of one,
when the pipe is full, is left to a task that outlives the sender, since a message cut short would
garble all that follow.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections import deque
from collections.abc import Mapping
from typing import Any

import anyio
import anyio.lowlevel
from mcp import MCPError
from mcp.types import (
    LOG_LEVEL_META_KEY,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    ProgressNotificationParams,
)
from mcp_types.jsonrpc import CONNECTION_CLOSED
from opentelemetry.propagate import inject
from pydantic_core import from_json

from bridge.model import Json
from bridge.offload import LARGE
from bridge.upstream.asking import Caller, current_caller

MAX_QUEUED = 16
"""Messages waiting for a reader that does not read, before the next has to wait. Cancellations do
not: there are no more of them than of the calls that had room."""

TOGETHER_BYTES = 16 * 1024
"""Longest message that waits for others; a longer one is worth a write of its own."""

_WRITE_BYTES = 256 * 1024
"""Offered to the kernel at once, so that a large message is not copied over and over."""


class LineWriter:
    """Messages to one non-blocking descriptor. `run` has to run meanwhile."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: deque[memoryview] = deque()
        self._together: list[bytes] = []
        self._left_over = anyio.Event()
        self._changed = anyio.Event()
        self._turns: deque[anyio.Event] = deque()
        self._broken = False

    @property
    def broken(self) -> bool:
        """Whether nobody reads any more, or `run` has ended."""
        return self._broken

    @property
    def full(self) -> bool:
        """Whether a message has to wait for `room`."""
        return len(self._queue) >= MAX_QUEUED and not self._broken

    async def room(self) -> None:
        """Wait until a message may be put."""
        while self.full:
            turn = anyio.Event()
            self._turns.append(turn)
            try:
                await turn.wait()
            except anyio.get_cancelled_exc_class():
                if turn in self._turns:
                    self._turns.remove(turn)
                else:
                    # It was this one's turn, which it leaves to the next.
                    self._give_turns()
                raise

    def put(self, data: bytes) -> None:
        """Write a message, or queue what the pipe does not take.

        Wait for `room` first, without anything in between; a cancellation, of which there is one
        for a request that had room, need not.
        """
        if self._broken:
            return
        if self._together:
            data = b"".join((*self._together, data))
            self._together.clear()
        if self._queue:
            self._queue.append(memoryview(data))
            return
        try:
            written = os.write(self._fd, data if len(data) <= _WRITE_BYTES else data[:_WRITE_BYTES])
        except BlockingIOError:
            written = 0
        except OSError:
            # `run` meets the same error, and says so to whom it concerns.
            written = 0
        if written < len(data):
            self._queue.append(memoryview(data)[written:])
            self._left_over.set()

    def put_together(self, data: bytes) -> None:
        """Like `put`, but in one go with what others put at the same moment.

        Costs a turn of the event loop, and saves the reader being woken for each.
        """
        if self._broken or self._queue or len(data) > TOGETHER_BYTES:
            self.put(data)
            return
        self._together.append(data)
        self._left_over.set()

    async def drained(self) -> None:
        """Wait until nothing is queued."""
        while (self._queue or self._together) and not self._broken:
            await self._changed.wait()

    async def run(self) -> None:
        """Write what was left over, for as long as messages may come.

        Raises:
            OSError: Nobody reads any more.
        """
        try:
            while True:
                await self._left_over.wait()
                self._left_over = anyio.Event()
                if self._together:
                    self.put(b"")
                    self._tell()
                while self._queue:
                    await self._write_first()
        finally:
            self._broken = True
            self._queue.clear()
            self._together.clear()
            self._tell()

    async def _write_first(self) -> None:
        view = self._queue[0]
        try:
            written = os.write(self._fd, view[:_WRITE_BYTES])
        except BlockingIOError:
            await anyio.wait_writable(self._fd)
            return
        if written < len(view):
            self._queue[0] = view[written:]
            return
        self._queue.popleft()
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
        self._give_turns()

    def _give_turns(self) -> None:
        """Wake as many as there is room for: were all woken, most would only wait again."""
        room = len(self._turns) if self._broken else MAX_QUEUED - len(self._queue)
        for _ in range(min(room, len(self._turns))):
            self._turns.popleft().set()


FIRST_ID = 1_000_000_000
"""The SDK counts from 1. Below 2**31 there is room for a billion calls over one connection."""

Answer = tuple[object, dict[str, Json]]
"""The id of a request, as it came, and what it is answered with."""

_CLOSED = ErrorData(code=CONNECTION_CLOSED, message="Connection closed")
"""In the SDK's words, which `failure.is_lost` knows."""

NEVER_SENT = object()
"""Data of the error for a request that found the connection closed. Nobody else has this object."""


RESUMED_SECONDS = 1.0
"""How late it may be noticed that time, which stood still for a question, goes on."""


class _Waiter:
    """One request under way. Its outcome is None if its time was up.

    Attributes:
        deadline: By its caller's clock, if it has a caller.
        label: What is called, for those who want to know how it gets on.
    """

    __slots__ = ("answered", "caller", "deadline", "label", "outcome")

    def __init__(self, seconds: float, caller: Caller | None, label: str) -> None:
        self.answered = anyio.Event()
        now = anyio.current_time() if caller is None else caller.clock.now()
        self.deadline = now + seconds
        self.caller = caller
        self.label = label
        self.outcome: dict[str, Json] | ErrorData | None = _CLOSED

    def settle(self, outcome: dict[str, Json] | ErrorData) -> None:
        """Take the answer, if none came before."""
        if not self.answered.is_set():
            self.outcome = outcome
            self.answered.set()

    def look_again(self, now: float) -> float:
        """Return when its time may be up; not later than `now` if it is."""
        if self.caller is None:
            return self.deadline
        clock = self.caller.clock
        left = self.deadline - clock.now()
        return now + (left if clock.running else max(left, RESUMED_SECONDS))


class Direct:
    """Requests over one connection. From any task; cancelled at any time.

    `run` has to run meanwhile, for those whose time is limited.

    Attributes:
        envelope: The `_meta` that the newer protocol wants in each request; empty in the older.
    """

    def __init__(self, writer: LineWriter) -> None:
        self.envelope: Mapping[str, Json] = {}
        self._writer = writer
        self._ids = itertools.count(FIRST_ID)
        self._waiting: dict[int, _Waiter] = {}
        self._next_look = math.inf
        self._look_sooner = anyio.Event()
        self._closed = False
        self._given = 0
        self._noticed = 0
        # Of a request that is answered: how many notifications came before, and the outcome.
        self._held: dict[int, tuple[int, dict[str, Json] | ErrorData]] = {}

    async def request(
        self, method: str, params: bytes, seconds: float = math.inf, *, label: str = ""
    ) -> dict[str, Json]:
        """Send a request and return its answer as it came.

        Args:
            params: A JSON object without newlines, and without `_meta`.
            label: What its caller is told of with its progress; without one it is told nothing.

        Raises:
            MCPError: The server refused, or the connection has ended.
            TimeoutError: No answer came within `seconds`; the server was told to stop.
        """
        # Once it is cancelled, nothing is sent any more.
        await anyio.lowlevel.checkpoint_if_cancelled()
        if self._closed:
            raise MCPError(code=_CLOSED.code, message=_CLOSED.message, data=NEVER_SENT)
        number = next(self._ids)
        caller = current_caller()
        waiter = self._waiting[number] = _Waiter(seconds, caller, label)
        if meta := self._meta(number, caller if label else None):
            comma = b"" if params == b"{}" else b","
            params = b'{"_meta":%b%b%b' % (json.dumps(meta).encode(), comma, params[1:])
        head = b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":' % (number, method.encode())
        issued = False
        try:
            if self._writer.full:
                with anyio.fail_after(seconds):
                    await self._writer.room()
            issued = True
            # Alone it goes out at once; otherwise others may be about to ask as well.
            put = self._writer.put if len(self._waiting) == 1 else self._writer.put_together
            put(b"%b%b}\n" % (head, params))
            end = anyio.current_time() + seconds
            if end < self._next_look:
                self._next_look = end
                self._look_sooner.set()
            await waiter.answered.wait()
        except anyio.get_cancelled_exc_class():
            if issued and not self._closed:
                self._writer.put(_cancellation(number))
            raise
        finally:
            # A late answer finds nobody.
            del self._waiting[number]
            self._held.pop(number, None)
        outcome = waiter.outcome
        if outcome is None:
            self._writer.put(_cancellation(number))
            raise TimeoutError
        if isinstance(outcome, ErrorData):
            raise _error(outcome)
        return outcome

    def _meta(self, number: int, caller: Caller | None) -> dict[str, Json]:
        """Return what the SDK's session would say of a request: era, trace, progress, messages."""
        meta = dict(self.envelope)
        # Of OpenTelemetry's current span, which may be the one that came with the run.
        inject(meta)
        if caller is not None and caller.wants_progress:
            meta["progressToken"] = number
        if caller is not None and caller.log_level and self.envelope:
            meta[LOG_LEVEL_META_KEY] = caller.log_level
        return meta

    async def run(self) -> None:
        """End the requests whose time is up.

        One look at all of them now and then costs less than a timer for each: nearly every request
        is answered long before.
        """
        while True:
            self._look_sooner = anyio.Event()
            now = anyio.current_time()
            self._next_look = math.inf
            for waiter in self._waiting.values():
                if waiter.answered.is_set():
                    continue
                end = waiter.look_again(now)
                if end <= now:
                    waiter.outcome = None
                    waiter.answered.set()
                else:
                    self._next_look = min(self._next_look, end)
            with anyio.CancelScope(deadline=self._next_look):
                await self._look_sooner.wait()

    @property
    def waits(self) -> bool:
        """Whether there is a request under way."""
        return bool(self._waiting)

    def take(self, answer: Answer | None) -> bool:
        """Give an answer to whom it is for; return False if that is nobody here, or there is none.

        Only whole and plain answers are read by `plain_answer`; all others have to be decoded first
        and offered to `take_message`.
        """
        return answer is not None and self._settle(*answer)

    def take_message(self, message: JSONRPCMessage) -> bool:
        """Give a decoded message to whom it answers; return False if that is nobody here."""
        if isinstance(message, JSONRPCResponse):
            return self._settle(message.id, message.result)
        if isinstance(message, JSONRPCError):
            return self._settle(message.id, message.error)
        return False

    async def report(self, server: str, params: ProgressNotificationParams) -> None:
        """Tell whose request it is how it gets on, if it is one of these."""
        token = params.progress_token
        if isinstance(token, str):
            token = int(token) if token.isdecimal() and len(token) < 20 else -1
        waiter = self._waiting.get(token)
        if waiter is not None and waiter.caller is not None:
            caller, label = waiter.caller, waiter.label
            await caller.report(server, label, params.progress, params.total, params.message or "")

    def give(self) -> None:
        """Count a notification that the SDK's session gets; answers after it wait for `notice`."""
        self._given += 1

    def notice(self) -> None:
        """Give the answers that came before the next notification: the session begins with one.

        Whoever waits goes on only after that: what a server wrote before its answer is its call's.
        """
        self._noticed += 1
        for number, (before, outcome) in list(self._held.items()):
            if before > self._noticed:
                break
            del self._held[number]
            self._waiting[number].settle(outcome)

    def close(self) -> None:
        """Fail what is under way and what comes: the connection has ended. Idempotent."""
        self._closed = True
        for waiter in self._waiting.values():
            waiter.answered.set()

    def _settle(self, number: object, outcome: dict[str, Json] | ErrorData) -> bool:
        # Some servers send the number back as text; the SDK understands that as well.
        if isinstance(number, str) and number.isdecimal() and len(number) < 20:
            number = int(number)
        if type(number) is not int:
            return False
        waiter = self._waiting.get(number)
        if waiter is None:
            return False
        if self._given > self._noticed:
            self._held.setdefault(number, (self._given, outcome))
        else:
            waiter.settle(outcome)
        return True


def plain_answer(line: bytes) -> Answer | None:
    """Return the id and the result of a line that is plainly the answer to a request. Pure."""
    try:
        # Remembering strings, to have each once, takes longest where no two are the same.
        document: Any = from_json(line, cache_strings=len(line) <= LARGE)
    except ValueError:
        return None
    if type(document) is not dict or document.get("jsonrpc") != "2.0":
        return None
    result = document.get("result")
    if type(result) is not dict or "error" in document or "method" in document:
        return None
    return document.get("id"), result


def _error(data: ErrorData) -> MCPError:
    return MCPError(code=data.code, message=data.message, data=data.data)


def _cancellation(number: int) -> bytes:
    params = {"requestId": number, "reason": "the caller does not wait any more"}
    message = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
