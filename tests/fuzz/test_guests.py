"""Whole runs with hostile guests: whatever they send, and whenever, the run ends as it should."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import anyio
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.errors import BridgeError
from bridge.guest.protocol import wire
from bridge.guest.protocol.wire import Call, Cancel, Done, Exited, encode
from bridge.model import RunResult
from bridge.rpc.dispatcher import Dispatcher, DispatchLimits
from tests.fuzz.clock import loop, run
from tests.fuzz.frames import lines, searched
from tests.fuzz.hostile import GRANT, LIMITS, Play, Step, replies

ids = st.integers(0, 5)
tools = st.sampled_from(
    ("answer", "answer", "hang", "late", "late", "stubborn", "fail", "defect", "", 7)
)
servers = st.sampled_from(("alpha", "alpha", "mcp_alpha", "beta", "gamma", "", None))

arguments = st.fixed_dictionaries({"n": st.integers(0, 20)})
tool_params = {"server": servers, "tool": tools, "arguments": arguments, "raw": st.booleans()}
tool_calls = st.builds(
    Call, id=ids, method=st.just("call_tool"), params=st.fixed_dictionaries(tool_params)
)
METHODS = ("list_servers", "list_tools", "query_tool_docs", "search_tool_docs", "__init__", "")
PARAMS: tuple[dict[str, Any], ...] = (
    *({}, {"server": "alpha"}, {"server": "beta", "detail": 1}),
    *({"query": "x", "limit": True}, {"query": "x"}, {"arguments": []}),
)
other_calls = st.builds(
    Call, id=ids, method=st.sampled_from(METHODS), params=st.sampled_from(PARAMS)
)
frames: st.SearchStrategy[wire.GuestFrame] = st.one_of(
    tool_calls,
    tool_calls,
    tool_calls,
    other_calls,
    st.builds(Cancel, id=ids),
    st.builds(wire.Output, stream=st.just("stdout"), data=st.just("é".encode() * 900), skipped=ids),
)
endings: st.SearchStrategy[wire.GuestFrame] = st.one_of(
    st.builds(Done, outcome=st.sampled_from(("ok", "exception"))),
    st.builds(Exited, code=st.sampled_from((None, 0, 3)), signal=st.sampled_from((None, 9, 99))),
)
whole_lines = frames.map(encode)
bursts = st.lists(whole_lines, max_size=12).map(b"".join)

steps = st.one_of(
    st.builds(Step, says=whole_lines, settles=st.booleans()),
    st.builds(Step, says=bursts, settles=st.booleans()),
    st.builds(Step, flags=st.fixed_dictionaries({"reads": st.booleans()}), settles=st.booleans()),
    st.builds(Step, releases=st.just(True), settles=st.booleans()),
    st.builds(Step, passes=st.sampled_from((0.5, 3.0))),
)
"""Steps after which the run continues."""

last_steps = st.one_of(
    st.builds(Step, says=endings.map(encode), settles=st.booleans()),
    st.builds(Step, says=lines.map(lambda line: line + b"\n"), settles=st.booleans()),
    st.builds(Step, says=whole_lines.map(lambda line: line[: len(line) // 2])),
    st.builds(Step, says=whole_lines.map(lambda line: line * 3)),
    st.builds(Step, flags=st.just({"broken": True}), settles=st.booleans()),
    st.builds(Step, flags=st.just({"mute": True}), settles=st.booleans()),
    st.builds(Step, ends=st.just(True), settles=st.booleans()),
    st.builds(Step, cancels=st.just(True), settles=st.booleans()),
    st.builds(Step, passes=st.just(LIMITS.timeout + 3)),
)
"""Steps that may end the run."""

scripts = st.tuples(st.lists(steps, max_size=12), st.lists(last_steps | steps, max_size=5)).map(
    lambda parts: [*parts[0], *parts[1]]
)


def _count_calls(script: Sequence[Step]) -> Counter[int]:
    found: Counter[int] = Counter()
    for line in wire.LineDecoder().feed(b"".join(step.says for step in script)):
        try:
            frame = wire.decode_guest_frame(line)
        except wire.WireError:
            continue
        if isinstance(frame, Call):
            found[frame.id] += 1
    return found


def _answer(number: int) -> bytes:
    params = {"server": "alpha", "tool": "answer", "arguments": {}}
    return encode(Call(id=number, method="call_tool", params=params))


HALF_A_REPLY = [
    Step(flags={"reads": False}),
    Step(says=_answer(0)),
    Step(says=encode(Cancel(id=0))),
    Step(flags={"reads": True}),
    Step(says=_answer(1)),
]
"""The call is given up while its answer is being written."""


CANCELLED_BETWEEN_CALLS = [
    Step(says=_answer(0)),
    Step(says=encode(Done(outcome="ok")), settles=True),
    Step(says=encode(Done(outcome="ok"))),
    Step(cancels=True),
]
"""The tasks that serve calls are cancelled, and the run ends, in one turn of the event loop."""


@searched
@example(HALF_A_REPLY)
@example(CANCELLED_BETWEEN_CALLS)
@given(scripts)
def test_a_run_with_a_hostile_guest_ends_and_leaves_nothing(script: list[Step]) -> None:
    after = run(Play(script).play)

    if after.outcome is None:
        assert any(step.cancels for step in script)
    else:
        assert isinstance(after.outcome, (RunResult, BridgeError))
    pool = after.pool
    assert (pool.running, after.tasks_left) == (0, [])
    assert pool.most <= LIMITS.concurrent_calls
    assert set(pool.asked) <= (GRANT.servers or set())
    assert len(pool.asked) == after.calls <= GRANT.calls

    answered, _ = replies(bytes(after.sandbox.sent))
    asked = _count_calls(script)
    assert all(answered[number] <= asked[number] for number in answered)

    if after.facts is not None:
        # A line of text announces each gap, and an undecodable byte becomes three.
        assert all(
            len(text.encode()) <= 3 * LIMITS.output_bytes + 16 * 60
            for text in (after.facts.collected.stdout, after.facts.collected.stderr)
        )


moves = st.one_of(
    st.tuples(st.just("accept"), ids, st.integers(0, 60)),
    st.tuples(st.just("cancel"), ids, st.just(0)),
    st.tuples(st.just("release"), st.just(0), st.just(0)),
    st.tuples(st.just("settle"), st.just(0), st.just(0)),
)
DISPATCH = DispatchLimits(concurrent=2, reply_bytes=1000, pending=4, pending_cost=100)


class _Host:
    """Serves calls that wait for `release`, and counts the replies."""

    def __init__(self) -> None:
        self.release = anyio.Event()
        self.running = 0
        self.most = 0
        self.sent: Counter[int] = Counter()

    async def send(self, pieces: Sequence[bytes], *, batched: bool) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent[json.loads(b"".join(pieces))["id"]] += 1

    async def handle(self, method: str, params: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await self.release.wait()
        finally:
            self.running -= 1


async def _dispatch(script: Sequence[tuple[str, int, int]]) -> None:
    host = _Host()
    accepted: Counter[int] = Counter()
    async with anyio.create_task_group() as tasks:
        dispatcher = Dispatcher(tasks, host.send, host.handle, DISPATCH)
        for move, number, cost in script:
            if move == "accept":
                with anyio.move_on_after(1):  # full: the guest would not be read
                    try:
                        await dispatcher.accept(Call(id=number, method="", params={}), cost)
                        accepted[number] += 1
                    except wire.WireError:
                        assert dispatcher.under_way > 0
            elif move == "cancel":
                dispatcher.cancel(number)
            elif move == "release":
                host.release.set()
                host.release = anyio.Event()
            else:
                await loop().idle()
            assert dispatcher.under_way <= DISPATCH.pending
        await loop().idle()
        while dispatcher.under_way:
            host.release.set()
            host.release = anyio.Event()
            await loop().idle()
        assert host.running == 0
        assert host.most <= DISPATCH.concurrent
        assert all(host.sent[number] <= accepted[number] for number in host.sent)
        # All room is there again: a cost that was never given back would keep one of these out.
        for number, cost in enumerate((1, DISPATCH.pending_cost - 3, 1, 1)):
            with anyio.fail_after(1):
                await dispatcher.accept(Call(id=number, method="", params={}), cost)
        tasks.cancel_scope.cancel()


@searched
@given(st.lists(moves, max_size=30))
def test_a_dispatcher_forgets_no_call_and_no_cost(script: list[tuple[str, int, int]]) -> None:
    run(partial(_dispatch, script))
