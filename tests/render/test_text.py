"""What the text of a result, and of the value of its last expression, says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model import Isolation, RunResult, Usage
from bridge.render.text import compact, receipt_line, value_text
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


@pytest.mark.parametrize("mode", MODES)
@given(result=RESULTS)
def test_no_result_makes_rendering_fail(mode: OutputMode, result: RunResult) -> None:
    text = compact(result, mode)
    assert text
    text.encode()
    receipt_line(result)
    value_text(result.result, mode).encode()


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
        assert r"\ud800" in value_text(["\ud800"], mode)


def test_a_result_passed_on_is_not_counted_as_kept_out() -> None:
    usage = Usage(tool_calls=1, tool_result_bytes=100)
    result = replace(OK, has_result=True, result="x" * 28, usage=usage)
    assert "70 bytes of tool results kept out" in receipt_line(result)


ROWS = [{"name": "ann", "age": 31}, {"name": "ben", "age": 27}, {"name": "eve", "age": 45}]
NESTED = {"server": {"host": "localhost", "port": 8080, "tls": {"cert": "/etc/a", "key": "/b"}}}


@pytest.mark.parametrize(
    ("value", "mode", "text"),
    [
        (None, "compact", "null"),
        ("a", "compact", '"a"'),
        ("a\nb", "compact", "a\nb"),
        ("a\nb", "auto", "a\nb"),
        ("a\nb", "json", r'"a\nb"'),
        (42, "auto", "42"),
        ([], "auto", "[]"),
        (ROWS, "auto", "[3]{name,age}:\n  ann,31\n  ben,27\n  eve,45"),
    ],
)
def test_a_value_is_json_or_a_text_of_lines_or_a_table_in_toon(
    value: Any, mode: OutputMode, text: str
) -> None:
    assert value_text(value, mode) == text


@pytest.mark.parametrize(
    "value",
    [
        [1, 2, 3],
        [["words", 132], ["tool", 77], ["server", 60]],
        ["Work of Eve", "Work of Ada", "Fix the bug, now"],
        {"open": [1, 2, 3, 4, 5], "closed": [6, 7, 8]},
        NESTED,
    ],
)
def test_auto_writes_what_costs_more_as_toon_as_json(value: Any) -> None:
    assert value_text(value, "auto") == value_text(value, "json")
    assert value_text(NESTED, "toon").startswith("server:\n  host: localhost\n")
