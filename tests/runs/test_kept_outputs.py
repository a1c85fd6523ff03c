"""Earlier runs' outputs, as programs read them."""

from __future__ import annotations

import pytest

from bridge.model import RunRequest, RunResult
from bridge.runs import Engine
from bridge.runs.guest_requests import found_lines, part

TEXT = b"one\ntwo\nthree two\n\nlast"


@pytest.mark.parametrize(
    ("first", "last", "lines"),
    [
        (1, None, TEXT),
        (2, 3, b"two\nthree two\n"),
        (5, 9, b"last"),
        (3, 2, b""),
        (99, None, b""),
        (4, 4, b"\n"),
    ],
)
def test_lines_count_from_one_and_include_the_last(
    first: int, last: int | None, lines: bytes
) -> None:
    assert part(TEXT, first, last) == lines


def test_found_lines_come_with_their_numbers_once_each() -> None:
    assert found_lines(TEXT, "two") == [[2, "two"], [3, "three two"]]
    assert found_lines(TEXT, "t", limit=1) == [[2, "two"]]
    assert found_lines(TEXT, "two", first=3, last=4) == [[3, "three two"]]
    assert found_lines(TEXT, "nowhere") == []
    [[number, line]] = found_lines(b"x" * 1_000_000, "xx")
    assert (number, len(str(line))) == (1, 2048)


@pytest.mark.parametrize("before", [0, 100, 500_000, 999_990])
def test_of_a_long_line_that_is_found_what_is_near_is_returned(before: int) -> None:
    long = b"first\n" + b"x" * before + b"NEEDLE" + b"y" * (1_000_000 - before) + b"\nlast\n"
    [[number, line]] = found_lines(long, "NEEDLE")
    assert (number, len(str(line))) == (2, 2048)
    assert "NEEDLE" in str(line)
    assert set(str(line)) <= set("xyNEDL")


LONG = "import sys\nfor n in range(1, 30001): print('line', n)\nprint('oops', file=sys.stderr)"


async def run(engine: Engine, code: str, owner: str = "") -> RunResult:
    result = await engine.run(RunRequest(code=code, owner=owner))
    assert result.status == "success", result.error
    return result


async def test_a_program_reads_what_an_earlier_run_wrote(engine: Engine) -> None:
    made = await run(engine, LONG, owner="me")
    assert made.truncated["stdout"] > 200_000
    assert [artifact.kind for artifact in made.artifacts] == ["stdout"]
    assert made.stdout.endswith("line 30000\n")

    code = f"""
read, run = runtime.read_output, {made.run_id!r}
whole = await read(run)
assert whole == "".join(f"line {{n}}\\n" for n in range(1, 30001)), whole[:100]
assert await read(run, offset=5, length=3) == "1\\nl"
assert await read(run, offset=-6) == "30000\\n"
assert await read("bridge://runs/" + run + "/stdout", lines=(9, 10)) == "line 9\\nline 10\\n"
assert await read(run, find="999", limit=2) == [(999, "line 999"), (1999, "line 1999")]
for wrong in (
    lambda: read(run, "stdin"), lambda: read(run, "stderr"), lambda: read("0" * 32),
    lambda: read(run, find=""), lambda: read(run, lines=(0, 3)), lambda: read(run, lines="ab"),
    lambda: read(run, lines=(3, 1)), lambda: read(run, lines=(1, 2), offset=7), lambda: read(7),
):
    try:
        await wrong()
    except (MCPError, TypeError, ValueError) as error:
        print(error)
"""
    said = (await run(engine, code, owner="me")).stdout.splitlines()
    assert len(said) == 9
    assert said[4] == said[5] == said[6]
    assert "counted from 1, such as (100, 200); offset=-1000 is the end" in said[4]
    assert "Of this run there is stdout (318,894 bytes)" in said[1]
    assert f"stdout (318,894 bytes) of {made.run_id}" in said[2]

    stranger = f"""
try:
    await runtime.read_output({made.run_id!r})
except MCPError as error:
    print(error)
"""
    assert "No output is kept at all." in (await run(engine, stranger, owner="you")).stdout


async def test_a_value_of_megabytes_is_kept_as_a_whole_and_its_ends_are_shown(
    engine: Engine,
) -> None:
    made = await run(engine, "[{'id': n, 'name': 'x' * 50} for n in range(40_000)]")
    assert (made.has_result, made.result_repr) == (
        False,
        "list of 40,000, printed to stdout as JSON, an item a line",
    )
    assert made.stdout.startswith('[\n{"id": 0, "name": "xx')
    assert made.stdout.endswith('"}\n]\n')
    assert len(made.stdout) < 60_000
    [artifact] = made.artifacts
    assert artifact.size > 2_500_000
    assert made.missing == ()
    code = f"""
import json
rows = json.loads(await runtime.read_output({made.run_id!r}))
len(rows), rows[20_000]["id"], await runtime.read_output({made.run_id!r}, find='"id": 33333,')
"""
    [count, number, [[line, _]]] = (await run(engine, code)).result
    assert (count, number, line) == (40_000, 20_000, 33_335)
