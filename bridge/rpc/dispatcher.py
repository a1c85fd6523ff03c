"""Serves a guest's calls concurrently.

It bounds pending calls, and turns errors into replies. Handlers do the methods' work. A task serves
many calls in a row, since starting a task costs more than a small call.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

import anyio.lowlevel
from anyio.abc import TaskGroup

from bridge.errors import (
    BridgeError,
    CallTimeoutError,
    ChannelClosedError,
    RefusedError,
    ServerStartError,
    ToolCallError,
    UpstreamError,
)
from bridge.event_loop import offload
from bridge.guest.protocol.wire import Call, Reply, WireError, encode
from bridge.model import Json
from bridge.rpc.channel import Redact, encode_reply

logger = logging.getLogger(__name__)

Handler = Callable[[str, Mapping[str, Json]], Awaitable[Json]]


@dataclass(eq=False)
class CallFailedError(Exception):
    """Raised by a handler to answer a call with an error."""

    message: str
    _: KW_ONLY
    kind: str  # "tool", "usage", "limit", "policy", "upstream", "timeout" or "internal".
    server: str = ""
    tool: str = ""
    data: Json = None  # Passed to the program as `MCPError.data`.
    code: str = ""  # The `BridgeError`'s code, if one is the cause.
    # The tool's own result, if it is an error.
    result: Mapping[str, Json] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__(self.message)
        if self.data is None:
            self.data = self.result.get("structuredContent")


@dataclass(frozen=True, kw_only=True)
class DispatchLimits:
    """Limits on a run's calls. `reply_bytes` is the longest reply frame."""

    concurrent: int
    reply_bytes: int
    # Beyond these, nothing more is read from the guest until a call is answered.
    pending: int = 1024
    pending_cost: int = 128 * 1024 * 1024


@dataclass(eq=False)
class _Accepted:
    """An accepted call without a reply; `scope` cancels it while a task serves it."""

    call: Call
    cost: int
    scope: anyio.CancelScope | None = None
    cancelled: bool = False


@dataclass(eq=False, repr=False)
class Dispatcher:
    """Serves the calls of one run inside the run's own task group.

    The group's tasks last until `close`, or until the group is cancelled.
    """

    _tasks: TaskGroup
    _write: Callable[..., Awaitable[None]]  # `Channel.write`.
    _handler: Handler
    _limits: DispatchLimits
    clear: Redact | None = None  # Removes secrets from every error.
    # Returns what removes secrets from the answer to a call, if that is not `clear`.
    clear_for: Callable[[Call], Redact | None] | None = None

    def __post_init__(self) -> None:
        self._freed = anyio.Event()
        self._cost = 0
        self._accepted = 0
        self._under_way: dict[int, _Accepted] = {}
        self._queue: asyncio.Queue[_Accepted | None] = asyncio.Queue()
        self._workers = 0
        self._over = anyio.Event()

    @property
    def under_way(self) -> int:
        return len(self._under_way)

    async def accept(self, call: Call, cost: int = 0) -> None:
        """Start serving `call`; wait while too many or too large calls are pending.

        `cost` is the approximate memory of its arguments in bytes. Raises WireError if a pending
        call has the same id.
        """
        if call.id in self._under_way:
            raise WireError(f"call id {call.id} is in use")
        # A flood of calls must not starve other tasks.
        self._accepted += 1
        if self._accepted % 64 == 0:
            await anyio.lowlevel.checkpoint()
        # A single call may have any size, which its frame bounds.
        while self._under_way and (
            len(self._under_way) >= self._limits.pending
            or self._cost + cost > self._limits.pending_cost
        ):
            if self._freed.is_set():
                self._freed = anyio.Event()
            await self._freed.wait()
        accepted = self._under_way[call.id] = _Accepted(call, cost)
        self._cost += cost
        self._queue.put_nowait(accepted)
        if self._workers < min(self._limits.concurrent, self.under_way):
            self._workers += 1
            self._tasks.start_soon(self._serve)

    def cancel(self, call_id: int) -> None:
        """Cancel a pending call; it gets no reply unless the reply is being sent."""
        if accepted := self._under_way.get(call_id):
            # A queued call keeps its room until its turn, so the queue stays bounded.
            accepted.cancelled = True
            if accepted.scope is not None:
                accepted.scope.cancel()

    def close(self) -> None:
        """Accept no more calls; the tasks end after the pending ones."""
        for _ in range(self._workers):
            self._queue.put_nowait(None)

    async def cancel_all(self) -> None:
        """Cancel pending calls and accept no more; replies that are being sent are completed."""
        for call_id in tuple(self._under_way):
            self.cancel(call_id)
        self.close()
        if self._workers:
            await self._over.wait()

    async def _serve(self) -> None:
        try:
            while (accepted := await self._queue.get()) is not None:
                try:
                    if not accepted.cancelled:
                        await self._serve_one(accepted)
                finally:
                    del self._under_way[accepted.call.id]
                    self._cost -= accepted.cost
                    self._freed.set()
                if not self._queue.empty():
                    # Many short calls in a row must not starve other tasks.
                    await anyio.lowlevel.checkpoint()
        finally:
            self._workers -= 1
            if not self._workers:
                self._over.set()

    async def _serve_one(self, accepted: _Accepted) -> None:
        with anyio.CancelScope() as accepted.scope:
            reply = await self._answer(accepted.call)
        # Outside of the scope nothing cancels the write: half a reply would corrupt the channel.
        if accepted.cancelled:
            return
        try:
            # With several pending calls other replies may be ready at the same time.
            await self._write(reply, batched=len(self._under_way) > 1)
        except ChannelClosedError:
            logger.debug("reply to call %d dropped: the sandbox is gone", accepted.call.id)

    async def _answer(self, call: Call) -> Sequence[bytes]:
        try:
            return await self._reply(call, await self._handler(call.method, call.params))
        except CallFailedError as error:
            failed = error
        except BridgeError as error:
            failed = as_failed_call(error)
        except Exception:
            # A named per-request boundary: a defect in one handler must not end other calls.
            logger.exception("call %d (%s) failed inside the bridge", call.id, call.method)
            message = "The bridge failed to serve this call; see its log."
            failed = CallFailedError(message, kind="internal")
        told = [failed.message, failed.data, failed.result]
        return (await offload(told, partial(self._encode_error, call.id, failed)),)

    async def _reply(self, call: Call, value: Json) -> Sequence[bytes]:
        clear = self.clear_for(call) if self.clear_for is not None else self.clear
        work = partial(encode_reply, call.id, value, clear)
        try:
            # Without redaction encoding is cheap and needs no thread.
            reply = work() if clear is None else await offload(value, work)
        except (ValueError, TypeError) as error:
            message = f"The answer cannot be passed on as JSON: {error}."
            raise CallFailedError(message, kind="upstream") from None
        size = sum(map(len, reply))
        if size > self._limits.reply_bytes:
            message = (
                f"The answer is {size:,} bytes; the limit is {self._limits.reply_bytes:,}. "
                "Ask the tool for less at a time (a page, a filter, a range)."
            )
            raise CallFailedError(message, kind="limit")
        return reply

    def _encode_error(self, call_id: int, error: CallFailedError) -> bytes:
        # Redacted before it is cut, since half a secret would not be recognised.
        message = error.message if self.clear is None else self.clear.text(error.message)
        document = {
            "kind": error.kind,
            "message": message,
            "server": error.server,
            "tool": error.tool,
            "data": error.data,
            "code": error.code,
            "content": error.result.get("content"),
            "meta": error.result.get("_meta"),
        }
        # An error that is too large or is not JSON is sent without its data.
        cut = {**document, "data": None, "content": None, "meta": None, "message": message[:1000]}
        for each in (document, cut):
            with suppress(ValueError, TypeError):
                line = encode(Reply(id=call_id, error=each))
                if each is cut or len(line) <= self._limits.reply_bytes:
                    return line if self.clear is None else self.clear.frame(line)
        raise AssertionError("an error without data is always JSON")


_KINDS = {CallTimeoutError.code: "timeout", "call_budget": "limit"}


def as_failed_call(error: BridgeError, *, server: str = "", tool: str = "") -> CallFailedError:
    """Return an error of the bridge as the error for the program."""
    if isinstance(error, UpstreamError):
        kind = "tool" if isinstance(error, ToolCallError) and error.by_tool else "upstream"
    else:
        kind = "policy" if isinstance(error, RefusedError) else "usage"
    # `str(error)` has details for the user only. A start's remedy names host files.
    told = [error.message] if isinstance(error, ServerStartError) else [error.message, error.remedy]
    return CallFailedError(
        " ".join(part for part in told if part),
        kind=_KINDS.get(error.code, kind),
        server=error.server if isinstance(error, UpstreamError) else server,
        tool=tool,
        data=error.data if isinstance(error, ToolCallError) else None,
        code=error.code,
    )


Answer = Callable[[Mapping[str, Json]], Awaitable[Json]]
"""Answers a call of one method, or raises `CallFailedError` or `BridgeError`."""
