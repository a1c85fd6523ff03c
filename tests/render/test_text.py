"""What the text of a result says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import OverloadedError
from bridge.model import Artifact, Finding, Isolation, Loss, RunResult, Usage
from bridge.model.outcome import failed_run
from bridge.render.receipt import bytes_kept_out, receipt_line
from bridge.render.structured import structured
from bridge.render.text import NOTHING, compact, finding_lines
from bridge.settings import OutputMode

MODES: tuple[OutputMode, ...] = ("compact", "toon", "json", "auto")
OK = RunResult(
    run_id="r1",
    status="success",
    summary="The program finished.",
    exit_code=0,
    timeout_seconds=30.0,
    isolation=Isolation(
        backend="podman", oci_runtime="runc", layers=("no-network",), verified=("no-network",)
    ),
)
TRACEBACK = """\
Traceback (most recent call last):
  File "<program>", line 2, in <module>
    int("x")
ValueError: invalid literal for int() with base 10: 'x'
"""


def test_a_successful_run_shows_exactly_what_it_printed() -> None:
    assert compact(replace(OK, stdout="a\n\n()\nb\r\n\n")) == "a\n\n()\nb\r\n\n"
    assert compact(replace(OK, stdout="no newline")) == "no newline"


def test_a_silent_run_says_what_to_do() -> None:
    assert compact(OK) == NOTHING


def test_a_result_follows_the_output() -> None:
    result = replace(OK, stdout="working", has_result=True, result={"n": [1, "é"]})
    assert compact(result) == 'working\n[result]\n{"n":[1,"é"]}'


def test_a_value_that_json_cannot_hold_is_shown_as_its_repr() -> None:
    assert compact(replace(OK, result_repr="<Foo 1>")) == ("[result, as text]\n<Foo 1>")


def test_an_exception_shows_its_traceback_once() -> None:
    result = replace(
        OK,
        status="error",
        reason="exception",
        exit_code=1,
        summary="ValueError: invalid literal for int() with base 10: 'x'",
        stdout="before\n",
        stderr="careful\n",
        error=TRACEBACK,
    )
    assert compact(result) == (
        "before\n"
        "[stderr]\n"
        "careful\n"
        "[error]\n"
        "Traceback (most recent call last):\n"
        '  File "<program>", line 2, in <module>\n'
        '    int("x")\n'
        "ValueError: invalid literal for int() with base 10: 'x'\n"
        "[error: exception, exit code 1]"
    )


def test_a_timeout_keeps_what_was_printed_before_it() -> None:
    result = replace(
        OK,
        status="timeout",
        reason="timeout",
        exit_code=None,
        summary="The program was stopped after 30 s.",
        stdout="step 1\nstep 2",
        truncated={"stdout": 1_234_567, "stderr": 1},
        isolation=Isolation(backend="docker", weaker=("no pids limit: cgroup v1",)),
    )
    assert compact(result) == (
        "[truncated] 1,234,567 bytes of stdout were dropped; 1 bytes of stderr were dropped. "
        "Run again and let the program filter, count or slice before it prints.\n"
        "step 1\n"
        "step 2\n"
        "[timeout] The program was stopped after 30 s."
    )


def test_output_that_is_kept_elsewhere_is_told_with_the_way_to_it() -> None:
    kept = Artifact(
        uri="bridge://runs/r1/stdout",
        name="stdout",
        mime_type="text/plain",
        size=99,
        digest="",
        run_id="r1",
        kind="stdout",
    )
    result = replace(
        OK, stdout="a\n", truncated={"stdout": 1234, "stderr": 99}, artifacts=(kept,), run_id="r1"
    )
    assert compact(result) == (
        "[truncated] 1,234 bytes of stdout are not shown. Another run reads it: await "
        'runtime.read_output("r1", find="..."), or lines=(1, 50). 99 bytes of stderr were '
        "dropped. Run again and let the program filter, count or slice before it prints.\n"
        "a\n"
    )
    assert structured(result)["whole"] == {"stdout": "bridge://runs/r1/stdout"}


def test_a_program_that_exits_with_a_code_says_which() -> None:
    result = replace(
        OK, status="error", reason="exit", exit_code=3, summary="The program exited with 3."
    )
    assert compact(result) == "[error: exit, exit code 3] The program exited with 3."


def test_the_value_alone_is_written_as_the_mode_says() -> None:
    rows = [{"id": 1, "name": "é"}, {"id": 2, "name": "x"}]
    result = replace(OK, stdout="a\n\nb\n", has_result=True, result=rows)
    as_json = 'a\n\nb\n[result]\n[{"id":1,"name":"é"},{"id":2,"name":"x"}]'
    as_toon = "a\n\nb\n[result]\n[2]{id,name}:\n  1,é\n  2,x"
    texts = {mode: compact(result, mode) for mode in MODES}
    assert texts == {"compact": as_json, "json": as_json, "toon": as_toon, "auto": as_toon}


ANY_TEXT = st.text(st.characters(codec=None), max_size=30)
RESULTS = st.builds(
    RunResult,
    run_id=ANY_TEXT,
    status=st.sampled_from(["success", "error", "timeout", "validation_error"]),
    summary=ANY_TEXT,
    reason=st.sampled_from([None, "exception", "oom", "timeout"]),
    exit_code=st.one_of(st.none(), st.integers()),
    stdout=ANY_TEXT,
    stderr=ANY_TEXT,
    has_result=st.booleans(),
    result=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4), st.dictionaries(ANY_TEXT, inner, max_size=4)
        ),
        max_leaves=15,
    ),
    result_repr=ANY_TEXT,
    error=ANY_TEXT,
    servers=st.lists(ANY_TEXT, max_size=3).map(tuple),
    timeout_seconds=st.floats(),
    truncated=st.dictionaries(ANY_TEXT, st.integers(), max_size=2),
    isolation=st.one_of(
        st.none(), st.builds(Isolation, backend=ANY_TEXT, weaker=st.lists(ANY_TEXT).map(tuple))
    ),
    usage=st.builds(
        Usage,
        wall_ms=st.integers(0, 10**9),
        tool_calls=st.integers(0, 10**6),
        tool_result_bytes=st.integers(0, 10**12),
    ),
)


@pytest.mark.parametrize("mode", ["compact", "toon", "json", "auto"])
@given(result=RESULTS)
def test_no_result_makes_rendering_fail(mode: OutputMode, result: RunResult) -> None:
    text = compact(result, mode)
    assert text
    text.encode()
    receipt_line(result)


@given(stdout=st.text(min_size=1), result=RESULTS)
def test_compact_text_begins_with_the_output_as_written(stdout: str, result: RunResult) -> None:
    assert compact(replace(result, stdout=stdout, truncated={})).startswith(stdout)


@given(result=RESULTS)
def test_compact_text_drops_nothing(result: RunResult) -> None:
    text = compact(result)
    for part in (result.stdout, result.stderr, result.error):
        assert part.encode("utf-8", "backslashreplace").decode() in text or not part.isascii()


def test_very_deep_results_are_shown_in_every_mode() -> None:
    value: object = 1
    for _ in range(300):
        value = [value]
    result = replace(OK, has_result=True, result=value)
    for mode in MODES:
        assert "[" * 200 in compact(result, mode)


@pytest.mark.parametrize(
    ("usage", "line"),
    [
        (Usage(wall_ms=412), "no tool calls, 0.41 s"),
        (
            Usage(wall_ms=412, tool_calls=3, tool_result_bytes=48_217),
            "3 tool calls, 48,211 bytes of tool results kept out of the conversation, 0.41 s",
        ),
        (
            Usage(wall_ms=61_000, tool_calls=1, tool_result_bytes=2),
            "1 tool call, 0 bytes of tool results kept out of the conversation, 61.00 s",
        ),
    ],
)
def test_the_receipt_counts_what_the_model_did_not_have_to_read(usage: Usage, line: str) -> None:
    assert receipt_line(replace(OK, stdout="hello\n", usage=usage)) == line


def test_a_result_passed_on_is_not_counted_as_kept_out() -> None:
    usage = Usage(tool_calls=1, tool_result_bytes=100)
    assert bytes_kept_out(replace(OK, has_result=True, result="x" * 28, usage=usage)) == 70


def test_an_exception_is_told_once() -> None:
    result = RunResult(
        run_id="r",
        status="error",
        reason="exception",
        exit_code=1,
        summary="The program raised ValueError: x",
        error="Traceback …\nValueError: x",
    )
    assert compact(result, "compact").count("ValueError: x") == 1


def test_a_refusal_is_told_once() -> None:
    refused = RunResult(
        run_id="r",
        status="validation_error",
        reason="validation",
        summary="The program was not run: it has a mistake, first in line 1: no such tool",
        error="line 1: no such tool (unknown-tool)\n    mcp_x.y()",
    )
    text = compact(refused, "compact")
    assert text.count("no such tool") == 1
    assert text.endswith("[validation_error: validation]")


FOUND = (
    Finding(line=2, column=1, rule="process", message="`import pty` starts processes"),
    Finding(line=0, rule="too-long", message="the program is long"),
)


def test_what_the_guard_found_follows_all_that_the_program_wrote() -> None:
    told = replace(OK, findings=FOUND)
    advice = (
        "[guard: advice; nothing was stopped]\n"
        "line 2: `import pty` starts processes (process)\nthe program is long (too-long)"
    )
    assert compact(told) == f"{NOTHING}\n{advice}"
    assert compact(replace(told, stdout="out", stderr="err")) == f"out\n[stderr]\nerr\n{advice}"
    failed = replace(told, status="error", reason="exit", exit_code=3, summary="It ended.")
    assert compact(failed) == f"{advice}\n[error: exit, exit code 3] It ended."
    for mode in MODES[1:]:
        assert "too-long" in compact(told, mode)


def test_many_findings_are_cut_to_a_few_lines_and_a_count() -> None:
    lines = finding_lines(replace(OK, findings=FOUND * 4, findings_omitted=10))
    assert len(lines) == 6
    assert lines[-1] == "and 13 more"


def test_what_the_error_says_already_is_not_said_again() -> None:
    refused = replace(OK, status="validation_error", reason="policy", findings=FOUND)
    assert finding_lines(refused) == []
    syntax = replace(OK, findings=(Finding(line=1, rule="syntax", message="syntax error: x"),))
    assert finding_lines(replace(syntax, status="error", reason="exception")) == []
    assert finding_lines(syntax) == ["line 1: syntax error: x (syntax)"]


def test_what_the_preflight_noticed_stands_apart_from_the_guards_advice() -> None:
    noticed = Finding(
        line=2, rule="unknown-key", message="no such key", severity="note", source="preflight"
    )
    advised = Finding(line=3, rule="process", message="starts processes")
    text = compact(replace(OK, status="error", reason="exit", findings=(noticed, advised)))
    guard, preflight = text.index("[guard: "), text.index("[preflight: ")
    assert guard < text.index("line 3: starts processes") < preflight
    assert preflight < text.index("line 2: no such key (unknown-key)")
    assert finding_lines(replace(OK, findings=(noticed,))) == []
    assert finding_lines(replace(OK, findings=(noticed,)), "preflight") == [str(noticed)]


def test_what_kept_a_program_from_running_is_called_by_its_code() -> None:
    error = OverloadedError("Too many runs are under way.")
    assert compact(failed_run(error)).endswith("[error: overloaded]")


def artifact(name: str, size: int = 12_345) -> Artifact:
    return Artifact(
        uri=f"bridge://artifacts/{name[:1]}",
        name=name,
        mime_type="text/csv",
        size=size,
        digest="0" * 64,
        run_id="r",
        path=f"out/{name}",
    )


def test_a_file_is_a_line_with_what_it_is_and_where() -> None:
    result = RunResult(run_id="r", status="success", summary="", stdout="1\n")
    one = RunResult(**{**vars(result), "artifacts": (artifact("a.csv"),)})
    assert compact(one) == "1\n[files] out/a.csv (text/csv, 12,345 bytes) bridge://artifacts/a"
    more = RunResult(
        **{
            **vars(result),
            "artifacts": (artifact("a"), artifact("b\n[error]", 1)),
            "missing": (Loss(name="link", why="it is a symbolic link"),),
        }
    )
    assert compact(more).splitlines()[1:] == [
        "[files]",
        "out/a (text/csv, 12,345 bytes) bridge://artifacts/a",
        "out/b\\n[error] (text/csv, 1 byte) bridge://artifacts/b",
        "[missing] link: it is a symbolic link",
    ]


def test_of_many_files_a_few_are_listed() -> None:
    many = tuple(artifact(str(number)) for number in range(25 + 3))
    lost = tuple(Loss(name=str(number), why="x") for number in range(25 + 2))
    result = RunResult(run_id="r", status="success", summary="", artifacts=many, missing=lost)
    lines = compact(result).splitlines()
    assert lines[25 + 1] == "and 3 more"
    assert lines[-1] == "and 2 more"
    assert len(lines) == 2 * (25 + 2)
