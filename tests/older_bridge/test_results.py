"""What a client gets back, through a real client and a real bridge process over stdio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from tests.older_bridge.rig import PATIENCE_SECONDS, Place, call, run, text_of, value_of
from tests.record import record_of
from tests.waiting import until_exists

SHOWN_BYTES = 22_500
"""Of letters, for 5,000 tokens."""

ANSWER_BYTES = 3 * 1024 * 1024
"""More than any answer needs: text and record together, with JSON's escapes."""

LOOKALIKES = [
    "42",
    "null",
    '"text"',
    "[]",
    "{}",
    '{"type": "exited", "code": 0}',
    '{"type": "done", "outcome": "ok"}',
    '{"type": "call", "id": 1, "method": "call_tool", "params": {}}',
    '{"type": "rpc_response", "id": 1, "success": true}',
    "{broken",
]
"""Lines that a reader of JSON lines could take for something else than output."""

TWO_SERVERS = "[(await mcp_work_shop.add(a=1, b=2)).sum, (await mcp_raw.echo(n=4)).n]"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_runs_that_name_servers_are_answered_one_after_the_other(
    place: Place, mode: str
) -> None:
    """The sessions that one request opened serve the next, even when that request was given up."""
    place.configure({"one": place.raw(), "two": place.raw()})
    started = place.home / "started"
    code = "[(await mcp_one.echo(n=3)).n, (await mcp_two.echo(n=4)).n]"
    async with place.client(mode) as client:
        with anyio.fail_after(PATIENCE_SECONDS):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, client, f"await mcp_one.never(started={str(started)!r})")
                await until_exists(started)
                tasks.cancel_scope.cancel()
        for _ in range(3):
            document = await run(client, code, servers=["one", "two"])
            assert document["result"] == [3, 4]
            assert document["servers"] == ["one", "two"]
        with anyio.fail_after(PATIENCE_SECONDS):
            assert (await client.list_tools()).tools
        assert len(place.pids()) == 2


async def test_a_line_of_any_length_is_printed_whole(bridge: Client) -> None:
    """Whatever buffers lie on the way; what is too long to be shown is kept."""
    document = await run(bridge, "print('x' * 20_000); print('end')")
    assert document["stdout"] == ["x" * 20_000, "end"]
    assert "truncated" not in document
    for size, character in ((65_535, "x"), (65_536, "x"), (200_000, "x"), (70_000, "é")):
        document = await run(bridge, f"print({character!r} * {size}); print('end')")
        assert document["stdout"][-1] == "end"
        read = f"await runtime.read_output({document['runId']!r})"
        assert await value_of(bridge, f"{read} == {character!r} * {size} + '\\nend\\n'") is True


async def test_tool_results_of_any_size_arrive_and_calls_go_on(bridge: Client) -> None:
    """As text, and as text and record both; arguments as large as results."""
    code = """
sizes = []
for size in (50_000, 70_000, 3_000_000):
    sizes.append(len(await mcp_raw.big(size=size)))
    sizes.append(len((await mcp_raw.echo(text="x" * size)).text))
    sizes.append((await mcp_work_shop.add(a=size, b=0)).sum)
sizes
"""
    expected = [size for size in (50_000, 70_000, 3_000_000) for _ in range(3)]
    assert await value_of(bridge, code) == expected
    assert await value_of(bridge, TWO_SERVERS) == [3, 4]


async def test_embedded_resources_and_links_are_plain_data(bridge: Client) -> None:
    """Their addresses are text in the value and in the raw result, and the next call works."""
    code = """
import json
link, embedded = await mcp_raw.resource()
raw = await runtime.call_tool_raw("raw", "resource")
note, picture, resource, other = await mcp_work_shop.mixed()
json.dumps([raw, link, other])
[link.uri, embedded, raw["content"][1]["resource"]["uri"], other["uri"], resource.mime_type,
 (await mcp_raw.echo(n=1)).n]
"""
    assert await value_of(bridge, code) == [
        "file:///a%20b.txt",
        "hi",
        "memo://1",
        "https://example.org/x",
        "application/x-a",
        1,
    ]


async def test_output_is_read_while_calls_are_under_way(bridge: Client) -> None:
    """The first call ends only with the second, between them lies more than a pipe holds."""
    code = """
import asyncio
first = asyncio.ensure_future(mcp_work_shop.meet(count=2, party="output"))
await asyncio.sleep(0)
print("x" * 1_000_000)
print("y" * 1_000_000, file=__import__("sys").stderr)
[await mcp_work_shop.meet(count=2, party="output"), await first]
"""
    assert await value_of(bridge, code) == ["met", "met"]


async def test_a_slow_call_holds_up_no_other(bridge: Client, tmp_path: Path) -> None:
    """Neither those of its own run nor those of another one."""
    started = tmp_path / "started"
    arguments = f"started={str(started)!r}, cancelled='/dev/null'"
    code = f"""
import asyncio
slow = asyncio.ensure_future(mcp_work_shop.slow({arguments}))
sums = [(await mcp_work_shop.add(a=n, b=n)).sum for n in range(3)]
await asyncio.gather(*(mcp_work_shop.meet(count=20, party="calls") for _ in range(20)))
await mcp_work_shop.meet(count=2, party="runs")
slow.cancel()
sums
"""
    values: list[Any] = []

    async def first() -> None:
        values.append(await value_of(bridge, code))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await until_exists(started)
        other = 'await mcp_work_shop.meet(count=2, party="runs")'
        assert await value_of(bridge, other) == "met"
    assert values == [[0, 2, 4]]


async def test_what_a_child_process_prints_is_only_text(bridge: Client) -> None:
    """Though it looks like part of a protocol; calls before and after it work."""
    code = f"""
import subprocess, sys
before = (await mcp_raw.echo(n=1)).n
write = "import os, sys; [os.write(to, sys.argv[1].encode() + b'\\\\n') for to in (1, 2)]"
for line in {LOOKALIKES!r}:
    subprocess.run([sys.executable, "-c", write, line], check=True)
[before, (await mcp_raw.echo(n=2)).n]
"""
    document = await run(bridge, code)
    assert document["result"] == [1, 2], document
    assert document["stdout"] == LOOKALIKES
    assert document["stderr"] == LOOKALIKES


async def test_bytes_that_are_no_text_cost_nothing_else(bridge: Client) -> None:
    """They come from children and from programs alike."""
    code = r"""
import os, subprocess, sys
subprocess.run([sys.executable, "-c", r"import os; os.write(1, b'\xff\xfe\x00\n')"], check=True)
os.write(1, b"caf\xe9 and more\n")
print("end")
"""
    document = await run(bridge, code)
    assert document["status"] == "success"
    assert document["stdout"][1:] == ["caf\ufffd and more", "end"]


async def test_no_line_of_the_output_is_dropped(bridge: Client) -> None:
    """Blank lines, empty tuples, and what an engine might have said while it fetched an image."""
    out = "\n\n()\n  \n\t\n( )\n[]\nNone\n\nend\n"
    err = (
        "Extracting [=====>]\nTrying to pull docker.io/library/python:3.14-slim...\n"
        "Getting image source signatures\nCopying blob 5f70bf18a086\nCopying config 1\n"
        "Writing manifest to image destination\nStoring signatures\nPulling fs layer\n\n()\nend\n"
    )
    code = f"import sys\nsys.stdout.write({out!r})\nsys.stderr.write({err!r})\nNone"
    result = await call(bridge, code)
    document = record_of(result)
    assert document["status"] == "success"
    assert document["stdout"] == out.split("\n")[:-1]
    assert document["stderr"] == err.split("\n")[:-1]
    assert text_of(result).startswith(out)
    assert err in text_of(result) + "\n"


async def test_a_program_that_prints_one_empty_line_printed_one(bridge: Client) -> None:
    """A stream that holds only a blank line, or only "()", is not an empty stream."""
    assert (await run(bridge, "print()"))["stdout"] == [""]
    assert (await run(bridge, "print(())"))["stdout"] == ["()"]


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import sys\nsys.exit(3)", 3),
        ("import os\nos._exit(7)", 7),
        ("raise SystemExit('no')", 1),
        ("1/0", 1),
        ("await mcp_work_shop.fail()", 1),
    ],
)
async def test_a_failure_has_its_exit_code(bridge: Client, code: str, exit_code: int) -> None:
    """In the record, and in the text as well."""
    result = await call(bridge, code)
    document = record_of(result)
    assert result.is_error is True
    assert (document["status"], document["exitCode"]) == ("error", exit_code)
    assert f"exit code {exit_code}" in text_of(result)


@pytest.mark.parametrize("wait", ["", "import asyncio\nawait asyncio.sleep(0)\n"])
@pytest.mark.parametrize(
    "statement",
    [
        "raise ValueError('no')",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "import asyncio; raise asyncio.CancelledError",
        "class Mine(BaseException): pass\nraise Mine",
    ],
)
async def test_no_exception_is_a_success(bridge: Client, wait: str, statement: str) -> None:
    """Of whatever class, with and without an event loop around the program."""
    document = await run(bridge, f"{wait}{statement}")
    assert (document["status"], document["reason"]) == ("error", "exception"), document
    assert document["exitCode"] == 1


async def test_a_traceback_holds_the_programs_own_lines_and_no_others(bridge: Client) -> None:
    """With their numbers; nothing of the code that carries the program."""
    code = "def broken(n):\n    return 10 / n\n\nawait mcp_raw.echo(n=1)\nbroken(0)\n"
    error = (await run(bridge, code))["error"]
    assert "line 5" in error
    assert "broken(0)" in error
    assert "line 2, in broken" in error
    assert "return 10 / n" in error
    assert error.count("File ") == 2
    assert "ZeroDivisionError" in error


async def test_a_program_may_bring_its_own_event_loop(bridge: Client) -> None:
    """`asyncio.run` is how most programs are written, whether or not they await at top level."""
    code = "import asyncio\nasync def main():\n    return (await mcp_raw.echo(n=5)).n\n"
    assert await value_of(bridge, f"{code}asyncio.run(main())") == 5
    assert await value_of(bridge, f"{code}[await main(), asyncio.run(main())]") == [5, 5]


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("print('x' * 20_000_000)", "stdout"),
        ("import sys\nsys.stderr.write('x' * 20_000_000)", "stderr"),
        ("print('fifteen letters\\n' * 1_000_000)", "stdout"),
        ("print('\\0' * 20_000_000)", "stdout"),
        ("'x' * 20_000_000", "stdout"),
        ("class Big:\n    def __repr__(self): return 'x' * 20_000_000\nBig()", ""),
        ("raise ValueError('x' * 20_000_000)", ""),
        ("raise SystemExit('x' * 20_000_000)", "stderr"),
        ("await runtime.call_tool('x' * 1_000_000, 'y')", ""),
    ],
)
async def test_an_answer_is_bounded_whatever_the_program_writes(
    bridge: Client, code: str, part: str
) -> None:
    """Text and record both; what was dropped is counted."""
    result = await call(bridge, code)
    document = record_of(result)
    assert len(text_of(result).encode()) + len(json.dumps(document)) < ANSWER_BYTES
    if part:
        assert document["truncated"][part] > 2_000_000
        assert "dropped" in text_of(result) or "whole" in document


async def test_output_that_is_cut_keeps_both_ends(bridge: Client) -> None:
    """What is kept is as much as promised, and the program's end is in it."""
    code = "print('first')\nprint('x' * 20_000_000)\nprint('last')"
    stdout = (await run(bridge, code))["stdout"]
    assert (stdout[0], stdout[-1]) == ("first", "last")
    assert SHOWN_BYTES * 0.9 < sum(map(len, stdout)) < SHOWN_BYTES * 1.1


async def test_text_of_all_languages_passes_without_a_locale(bridge: Client) -> None:
    """In the program, in its output, in arguments and in results; the bridge has the C locale."""
    text = "é漢\U0001f600ß"
    code = f"# {text}\nprint({text!r})\n(await mcp_raw.echo(text={text!r}))"
    document = await run(bridge, code)
    assert document["stdout"] == [text]
    assert document["result"] == {"text": text}
