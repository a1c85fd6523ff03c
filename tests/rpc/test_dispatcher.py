"""Calls are served concurrently, bounded, and always answered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from bridge.errors import (
    CallDeniedError,
    CallTimeoutError,
    ChannelClosedError,
    RefusedError,
    ToolCallError,
    UnknownError,
)
from bridge.guest.protocol.wire import Call, Reply, decode_host_frame
from bridge.rpc.dispatcher import CallFailedError, Dispatcher, DispatchLimits
from tests.waiting import PATIENCE_SECONDS


class _Host:
    """Collects replies and serves calls as its methods say."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.release = anyio.Event()
        self.running = 0
        self.most_running = 0
        self.cancelled = 0
        self.gone = False

    async def send(self, pieces: Sequence[bytes], *, batched: bool) -> None:
        if self.gone:
            message = "gone"
            raise ChannelClosedError(message)
        frame = decode_host_frame(b"".join(pieces))
        assert isinstance(frame, Reply)
        self.replies.append(frame)

    async def handle(self, method: str, params: Mapping[str, Any]) -> Any:
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if method == "wait":
                await self.release.wait()
            if method == "raise":
                raise params["error"]
            return params.get("value")
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise
        finally:
            self.running -= 1

    def error(self) -> dict[str, Any]:
        [reply] = self.replies
        assert reply.error is not None
        return reply.error


class _Halves:
    """A channel that is in the middle of a reply until it may go on."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.begun, self.going_on = anyio.Event(), anyio.Event()

    async def send(self, pieces: Sequence[bytes], *, batched: bool) -> None:
        [line] = pieces
        self.written += line[:5]
        self.begun.set()
        await self.going_on.wait()
        self.written += line[5:]


def _call(number: int, method: str = "echo", **params: Any) -> Call:
    return Call(id=number, method=method, params=params)


LIMITS = DispatchLimits(concurrent=4, reply_bytes=10_000, pending=8)


@asynccontextmanager
async def dispatching(host: _Host, limits: DispatchLimits = LIMITS) -> AsyncIterator[Dispatcher]:
    """Dispatch calls to a host, until all are answered."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            dispatcher = Dispatcher(tasks, host.send, host.handle, limits)
            yield dispatcher
            dispatcher.close()


async def _serve(host: _Host, *calls: Call) -> None:
    async with dispatching(host) as dispatcher:
        for call in calls:
            await dispatcher.accept(call)


async def test_calls_run_at_the_same_time_up_to_the_limit() -> None:
    host = _Host()
    async with dispatching(host) as dispatcher:
        for number in range(8):
            await dispatcher.accept(_call(number, "wait"))
        while host.running < 4:
            await anyio.lowlevel.checkpoint()
        host.release.set()
    assert host.most_running == 4
    assert len(host.replies) == 8


async def test_calls_that_are_sent_and_cancelled_again_fill_no_queue() -> None:
    host = _Host()
    async with dispatching(host) as dispatcher:
        for number in range(8):
            await dispatcher.accept(_call(number, "wait"))
        for number in range(4, 8):
            dispatcher.cancel(number)
        with anyio.move_on_after(0.01) as scope:
            await dispatcher.accept(_call(99))
        assert scope.cancelled_caught
        host.release.set()
    assert sorted(reply.id for reply in host.replies) == [0, 1, 2, 3]


async def test_a_cancelled_call_ends_and_gets_no_reply() -> None:
    host = _Host()
    async with dispatching(host) as dispatcher:
        await dispatcher.accept(_call(1, "wait"))
        while not host.running:
            await anyio.lowlevel.checkpoint()
        dispatcher.cancel(1)
        dispatcher.cancel(2)
        while dispatcher.under_way:
            await anyio.lowlevel.checkpoint()
    assert (host.cancelled, host.replies) == (1, [])


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (CallFailedError("m", kind="tool", server="s", tool="t", data=[1]), "tool", ""),
        (CallTimeoutError("m", server="s"), "timeout", "call_timeout"),
        (ToolCallError("m", server="s", rpc_code=-1, data=[1]), "upstream", "tool_call_refused"),
        (UnknownError("m", code="unknown_server"), "usage", "unknown_server"),
        (CallDeniedError("m"), "policy", "call_denied"),
        (RefusedError("m", code="call_budget"), "limit", "call_budget"),
    ],
)
async def test_an_error_reaches_the_program_with_its_kind(
    error: Exception, kind: str, code: str
) -> None:
    host = _Host()
    await _serve(host, _call(1, "raise", error=error))
    assert host.error()["kind"] == kind
    assert host.error()["code"] == code
    assert host.error()["message"] == "m"


async def test_a_defect_in_the_bridge_is_answered_without_its_text() -> None:
    """Internal messages may hold what the program must not see."""
    host = _Host()
    await _serve(host, _call(1, "raise", error=KeyError("secret")))
    assert host.error()["kind"] == "internal"
    assert "secret" not in host.error()["message"]


async def test_an_answer_beyond_the_limit_says_its_size() -> None:
    host = _Host()
    await _serve(host, _call(1, value="x" * 20_000))
    assert host.error()["kind"] == "limit"
    assert "20,0" in host.error()["message"]


async def test_an_answer_that_is_not_json_is_an_error_not_a_hang() -> None:
    host = _Host()
    value: list[object] = []
    value.append(value)
    await _serve(host, _call(1, value=value))
    assert "cannot be passed on as JSON" in host.error()["message"]


async def test_an_error_too_large_to_send_is_cut() -> None:
    host = _Host()
    error = CallFailedError("m" * 5000, kind="tool", data="x" * 20_000)
    await _serve(host, _call(1, "raise", error=error))
    assert host.error()["data"] is None
    assert host.error()["message"] == "m" * 1000


async def test_a_reply_to_a_sandbox_that_is_gone_is_dropped() -> None:
    host = _Host()
    host.gone = True
    await _serve(host, _call(1))
    assert host.replies == []


async def test_the_guest_is_not_read_while_large_calls_are_pending() -> None:
    host = _Host()
    limits = DispatchLimits(concurrent=1, reply_bytes=10_000, pending=8, pending_cost=100)
    async with dispatching(host, limits) as dispatcher:
        await dispatcher.accept(_call(1, "wait"), 1_000)
        with anyio.move_on_after(0.01) as scope:
            await dispatcher.accept(_call(2, "wait"), 1)
        assert scope.cancelled_caught
        host.release.set()
        await dispatcher.accept(_call(3), 99)
    assert len(host.replies) == 2


async def test_a_call_cancelled_before_it_began_is_never_made() -> None:
    host = _Host()
    async with dispatching(host) as dispatcher:
        await dispatcher.accept(_call(1))
        dispatcher.cancel(1)
        for number in range(2, 8):
            await dispatcher.accept(_call(number, "wait"))
        # No task is free for the last of them.
        dispatcher.cancel(7)
        host.release.set()
    assert sorted(reply.id for reply in host.replies) == [2, 3, 4, 5, 6]
    assert host.cancelled == 0


async def test_calls_that_wait_are_served_after_those_under_way_were_cancelled() -> None:
    host = _Host()
    async with dispatching(host) as dispatcher:
        for number in range(4):
            await dispatcher.accept(_call(number, "wait"))
        while host.running < 4:
            await anyio.lowlevel.checkpoint()
        for number in range(4, 8):
            await dispatcher.accept(_call(number))
        for number in range(4):
            dispatcher.cancel(number)
    assert host.cancelled == 4
    assert sorted(reply.id for reply in host.replies) == [4, 5, 6, 7]


async def test_a_cancellation_meant_for_one_call_spares_the_next_of_the_same_task() -> None:
    host = _Host()
    async with dispatching(host) as dispatcher:
        await dispatcher.accept(_call(1, "wait"))
        while not host.running:
            await anyio.lowlevel.checkpoint()
        host.release.set()
        dispatcher.cancel(1)
        while dispatcher.under_way:
            await anyio.lowlevel.checkpoint()
        await dispatcher.accept(_call(1))
        await dispatcher.accept(_call(2))
    assert [reply.id for reply in host.replies] == [1, 2]


async def test_winding_up_ends_what_is_under_way_and_lets_replies_go_out_whole() -> None:
    host, stream = _Host(), _Halves()
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            dispatcher = Dispatcher(tasks, stream.send, host.handle, LIMITS)
            await dispatcher.accept(_call(1))
            for number in range(2, 8):
                await dispatcher.accept(_call(number, "wait"))
            await stream.begun.wait()
            await anyio.wait_all_tasks_blocked()
            async with anyio.create_task_group() as ending:
                ending.start_soon(dispatcher.cancel_all)
                await anyio.wait_all_tasks_blocked()
                assert host.cancelled == 3
                assert host.running == 0
                stream.going_on.set()
            assert decode_host_frame(bytes(stream.written)) == Reply(id=1)
            assert dispatcher.under_way == 0
            # Nothing to wait for any more.
            await dispatcher.cancel_all()
