"""Requests over stdio that bypass the SDK's session: from the caller to the pipe and back.

Differs from the SDK for speed: no hand-over between tasks and no models for a plain response. The
sender writes its message itself. A task that outlives the sender writes the part that a full pipe
does not take, because a truncated message would corrupt all later ones. docs/design.md says when
this module can go.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

import anyio.lowlevel
from mcp import MCPError, types
from opentelemetry.propagate import inject

from bridge.model import Json
from bridge.upstream.client_features import (
    ServerCaller,
    current_caller,
    progress_callback,
    time_limit,
)
from bridge.upstream.framing import Response

MAX_QUEUED = 16
"""Messages queued for a server that does not read, before the next one has to wait. Cancellations
do not wait, because there is at most one for each queued request."""

_WRITE_BYTES = 256 * 1024  # Bytes of one `write`, so that a large message is not copied repeatedly.


class LineWriter:
    """Writes messages to one non-blocking descriptor, while a task runs `write_queued`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: deque[memoryview] = deque()
        self._work = anyio.Event()
        self._changed = anyio.Event()
        self._broken = False

    @property
    def full(self) -> bool:
        return len(self._queue) >= MAX_QUEUED and not self._broken

    async def room(self) -> None:
        while self.full:
            await self._changed.wait()

    def put(self, data: bytes) -> None:
        """Write a message, or queue the part that the pipe does not take.

        Call it right after `room`, without an await in between; cancellations need no room.
        """
        if self._broken:
            return
        written = 0
        if not self._queue:
            # If the pipe is closed, `write_queued` gets the same error and raises it.
            with suppress(OSError):
                part = data if len(data) <= _WRITE_BYTES else data[:_WRITE_BYTES]
                written = os.write(self._fd, part)
        if written < len(data):
            self._queue.append(memoryview(data)[written:])
            self._work.set()

    async def drain(self) -> None:
        while self._queue and not self._broken:
            await self._changed.wait()

    async def write_queued(self) -> None:
        try:
            while True:
                await self._work.wait()
                self._work = anyio.Event()
                while self._queue:
                    await self._write_first()
        finally:
            self._broken = True
            self._queue.clear()
            self._notify()

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
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


_CANCELLATION = (
    b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":'
    b'{"requestId":%d,"reason":"the caller does not wait any more"}}\n'
)

FIRST_ID = 1_000_000_000  # The SDK counts from 1. A billion ids below 2**31 remain.

_CLOSED = types.ErrorData(code=types.CONNECTION_CLOSED, message="Connection closed")
"""The SDK's text, by which `failure.is_lost` recognizes it."""

NEVER_SENT = object()  # `data` of the error for an unsent request; no server can send this object.


Outcome = dict[str, Json] | types.ErrorData | None  # None after the timeout.


class _Pending:
    """A request without a response yet, and its timeout by the caller's clock.

    A timer of the loop costs a third of a cancel scope. It is not moved when the clock stops or
    progress moves the limit: when it fires, it checks the remaining time.
    """

    def __init__(self, server: str, tool: str, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        # An event takes several times as long to make and to set.
        self.answered: asyncio.Future[Outcome] = loop.create_future()
        caller = current_caller()
        self._now = loop.time if caller is None else caller.clock.now
        self.report = progress_callback(server, tool, seconds, self.move_limit) if tool else None
        self.move_limit(seconds)
        self._timer = None if seconds == math.inf else loop.call_later(seconds, self._check_time)

    def move_limit(self, seconds: float) -> None:
        self._end = self._now() + seconds

    def _check_time(self) -> None:
        left = self._end - self._now()
        if left <= 0:
            self.resolve(None)
        else:
            # While the clock is stopped, the remaining time does not change.
            self._timer = asyncio.get_running_loop().call_later(max(left, 0.01), self._check_time)

    def resolve(self, outcome: Outcome) -> None:
        if not self.answered.done():
            self.answered.set_result(outcome)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class DirectDispatcher:
    """Sends requests over one connection from any task. They may be cancelled at any time."""

    def __init__(self, writer: LineWriter, server: str = "") -> None:
        self.request_meta: Mapping[str, Json] = {}  # 2026-07-28 requires it in each request.
        self._writer = writer
        self._server = server
        self._ids = itertools.count(FIRST_ID)
        self._pending: dict[int, _Pending] = {}
        self._closed = False
        self._notifications_received = 0
        self._notifications_started = 0
        # By request: the count of notifications before its response, and the outcome.
        self._deferred: dict[int, tuple[int, Outcome]] = {}

    async def request(
        self, method: str, params: bytes, seconds: float = math.inf, *, label: str = ""
    ) -> dict[str, Json]:
        """Send a request and return its result as received, or raise MCPError or TimeoutError.

        `params` is a JSON object without newlines and without `_meta`. `label` is the tool's name
        in progress reports; without it there are none.
        """
        # A cancelled task must send nothing.
        await anyio.lowlevel.checkpoint_if_cancelled()
        number = next(self._ids)
        outcome: Outcome = None
        pending = _Pending(self._server, label, seconds)
        try:
            if self._writer.full:
                with time_limit(seconds) as limit:
                    await self._writer.room()
                if limit.cancelled_caught:
                    raise TimeoutError
            if self._closed:
                raise MCPError(code=_CLOSED.code, message=_CLOSED.message, data=NEVER_SENT)
            if meta := self._meta(number, current_caller() if label else None):
                comma = b"" if params == b"{}" else b","
                params = b'{"_meta":%b%b%b' % (json.dumps(meta).encode(), comma, params[1:])
            head = b'{"jsonrpc":"2.0","id":%d,"method":"%s","params":' % (number, method.encode())
            self._pending[number] = pending
            self._writer.put(b"%b%b}\n" % (head, params))
            outcome = await pending.answered
        finally:
            # A late response is ignored.
            sent = self._pending.pop(number, None)
            self._deferred.pop(number, None)
            pending.close()
            if sent and outcome is None and not self._closed:
                self._writer.put(_CANCELLATION % number)
        if outcome is None:
            raise TimeoutError
        if isinstance(outcome, types.ErrorData):
            raise MCPError(code=outcome.code, message=outcome.message, data=outcome.data)
        return outcome

    def _meta(self, number: int, caller: ServerCaller | None) -> dict[str, Json]:
        meta = dict(self.request_meta)
        # The trace context of the current span, perhaps the client's.
        inject(meta)
        if caller is not None:
            meta["progressToken"] = number
        if caller is not None and caller.log_level and self.request_meta:
            meta[types.LOG_LEVEL_META_KEY] = caller.log_level
        return meta

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)

    def deliver(self, response: Response | None) -> bool:
        return response is not None and self._resolve(*response)

    def deliver_message(self, message: types.JSONRPCMessage) -> bool:
        """Deliver a decoded response or error; return False if no request here waits for it."""
        if isinstance(message, types.JSONRPCResponse):
            return self._resolve(message.id, message.result)
        if isinstance(message, types.JSONRPCError):
            # A server that could not read the request does not know its id.
            last = max(self._pending, default=None)
            return self._resolve(last if message.id is None else message.id, message.error)
        return False

    async def report_progress(self, params: types.ProgressNotificationParams) -> None:
        pending = self._pending.get(_number(params.progress_token))
        if pending is not None and pending.report is not None:
            await pending.report(params.progress, params.total, params.message)

    def count_notification(self) -> None:
        """Count a notification handed to the SDK's session; later responses wait for its start."""
        self._notifications_received += 1

    def start_notification(self) -> None:
        """Note that the session handles the next notification; deliver the responses up to it."""
        self._notifications_started += 1
        for number, (before, outcome) in list(self._deferred.items()):
            if before > self._notifications_started:
                break
            del self._deferred[number]
            self._pending[number].resolve(outcome)

    def close(self) -> None:
        self._closed = True
        for pending in self._pending.values():
            pending.resolve(_CLOSED)

    def _resolve(self, number: object, outcome: Outcome) -> bool:
        number = _number(number)
        pending = self._pending.get(number)
        if pending is None:
            return False
        if self._notifications_received > self._notifications_started:
            self._deferred.setdefault(number, (self._notifications_received, outcome))
        else:
            pending.resolve(outcome)
        return True


def _number(number: object) -> int:
    """Return a request's id, which some servers return as a string; -1 if it is not ours."""
    if isinstance(number, str) and number.isdecimal() and len(number) < 20:
        return int(number)
    return number if type(number) is int else -1
