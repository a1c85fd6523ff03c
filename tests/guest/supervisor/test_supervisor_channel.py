"""What holds when much is under way on the channel, or its other end does not behave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.guest.protocol.wire import Call, Output
from tests.guest.supervised import FIND_CHANNEL, gone


async def test_a_host_that_does_not_read_stops_nothing_for_good(guest: Any) -> None:
    guest.hello()
    guest.start(
        "import sys\nfor n in range(40):\n"
        "    sys.stdout.write('x' * 100_000)\n    sys.stdout.flush()",
        limits={"output_bytes": 100 << 20},
    )
    await guest.backed_up()
    finished = guest.finish()
    assert len(finished.stdout) == 4_000_000
    assert finished.skipped == {}


async def test_a_flood_of_calls_waits_in_the_program_not_in_the_supervisor(guest: Any) -> None:
    peaks: list[int] = []

    def answer(guest: Any, call: Call) -> None:
        if call.method != "flood":
            status = Path(f"/proc/{guest.pid}/status").read_text()
            peaks.append(int(status.partition("VmHWM:")[2].split()[0]))
            guest.reply(call.id, {"json": "done"})

    guest.hello()
    guest.start(
        FIND_CHANNEL
        + """
line = b'{"type":"call","id":7,"method":"flood","params":{"x":"' + b"x" * 10_000 + b'"}}\\n'
for _ in range(6000):
    view = memoryview(line)
    while view:
        view = view[os.write(fd, view):]
await mcp_git_hub.echo("x")
"""
    )
    await guest.backed_up()
    finished = guest.finish(answer)
    assert finished.value == "done"
    assert len(finished.calls) == 6001
    assert peaks[0] < 48 << 10


async def test_the_deadline_holds_while_the_host_does_not_read(guest: Any) -> None:
    guest.hello()
    guest.start(
        "import os\nprint(os.getpid(), flush=True)\nwhile True: print('x' * 10_000)",
        limits={"timeout": 1.0, "output_bytes": 100 << 20},
    )
    output = guest.receive()
    assert isinstance(output, Output)
    await gone(int(output.data.split()[0]))
    assert guest.finish().exit.timed_out


def test_a_program_that_reads_no_replies_is_ended_by_its_deadline(guest: Any) -> None:
    guest.hello()
    guest.start(
        FIND_CHANNEL + "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        limits={"timeout": 0.5},
    )
    for n in range(64):
        guest.reply(n, {"json": "x" * 1_000_000})
    finished = guest.finish()
    assert finished.exit.timed_out


@pytest.mark.parametrize("size", [10_000_000])
def test_a_large_reply_and_a_large_argument_arrive_whole(guest_on: Any, size: int) -> None:
    finished = guest_on.run(
        f"""
r = await mcp_git_hub.echo("x" * {size})
[len(r.text), len((await runtime.call_tool("git-hub", "rows")))]
""",
        lambda guest, call: guest.reply(
            call.id,
            {
                "json": call.params["arguments"]
                if call.params["tool"] == "echo"
                else [{"id": n, "name": "n" * 80} for n in range(100_000)]
            },
        ),
    )
    assert finished.value == [size, 100_000]


def test_a_thousand_calls_may_be_under_way(guest_on: Any) -> None:
    held: list[Call] = []

    def answer(guest: Any, call: Call) -> None:
        held.append(call)
        if len(held) == 1000:
            for waiting in reversed(held):
                guest.reply(waiting.id, {"json": int(waiting.params["arguments"]["text"])})

    finished = guest_on.run(
        """
import asyncio
sum(await asyncio.gather(*[mcp_git_hub.echo(str(n)) for n in range(1000)]))
""",
        answer,
    )
    assert finished.value == 499_500


def test_replies_nobody_waits_for_are_dropped(guest_on: Any) -> None:
    def answer(guest: Any, call: Call) -> None:
        if call.params["arguments"]["text"] == "slow":
            return
        # An unknown id, a second answer, an id that was given up, something that is no reply.
        guest.reply(999_999, {"json": 1})
        guest.reply(call.id - 1, {"json": "late"})
        guest.write(b'[1]\n{"type":"run"}\n{"type":"reply"}\n')
        guest.reply(call.id, {"json": "right"})
        guest.reply(call.id, {"json": "twice"})

    finished = guest_on.run(
        """
import asyncio
try:
    await asyncio.wait_for(mcp_git_hub.echo("slow"), 0.05)
except asyncio.TimeoutError:
    pass
[await mcp_git_hub.echo("a"), await mcp_git_hub.echo("b")]
""",
        answer,
    )
    assert finished.value == ["right", "right"]
    assert [cancel.id for cancel in finished.cancels] == [finished.calls[0].id]


def test_a_host_that_sends_nonsense_ends_the_calls_not_the_program(guest_on: Any) -> None:
    finished = guest_on.run(
        """
try:
    await mcp_git_hub.echo("a")
except MCPError as e:
    print(e.kind)
""",
        lambda guest, call: guest.write(b"no json\n"),
    )
    assert finished.stdout == "channel\n"
    assert finished.exit.code == 0


def test_forked_children_are_told_that_calls_are_not_theirs(guest_on: Any) -> None:
    finished = guest_on.run(
        """
import asyncio, os
await mcp_git_hub.echo("connected")
pid = os.fork()
if pid == 0:
    code = 1
    try:
        asyncio.Runner  # absent before 3.11; either way below
    except AttributeError:
        pass
    try:
        coroutine = mcp_git_hub.echo("x")
        coroutine.send(None)
    except MCPError as e:
        print("child process" in str(e), flush=True)
        code = 0
    os._exit(code)
os.waitpid(pid, 0)[1]
"""
    )
    assert finished.value == 0
    assert finished.stdout == "True\n"
    assert len(finished.calls) == 1


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        ("await mcp_git_hub.echo('x' * 200_000)", ("git-hub.echo", "the limit is 100,000")),
        (
            "await runtime.call_tool_raw('git-hub', 'echo', {'rows': [0] * 300_000})",
            ("hold more than 250,000 values",),
        ),
    ],
)
def test_a_call_that_is_too_large_is_refused_before_it_is_sent(
    guest_on: Any, code: str, parts: tuple[str, ...]
) -> None:
    limit = 100_000 if "mcp_git_hub" in code else 64 << 20
    finished = guest_on.run(code, limits={"frame_bytes": limit})
    assert finished.outcome.error_type == "ValueError"
    assert all(part in finished.outcome.error for part in parts)
    assert finished.calls == []
