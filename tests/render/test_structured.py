from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.model import Finding, Isolation, RunResult, Usage
from bridge.render.structured import (
    MAX_DEPTH,
    TOO_DEEP,
    stream_lines,
    structured,
    to_json,
)
from bridge.text import valid_text

ANY_TEXT = st.text(st.characters(codec=None))


def nested(levels: int) -> Any:
    value: Any = "core"
    for level in range(levels):
        value = {"a": value, "b": level} if level % 2 else [value, level]
    return value


def test_every_field_of_a_full_result_has_its_contract_name() -> None:
    result = RunResult(
        run_id="r1",
        status="error",
        summary="The program raised ValueError.",
        reason="exception",
        exit_code=1,
        stdout="a\n\nb\n",
        stderr="warn",
        has_result=True,
        result={"n": 1},
        result_repr="x",
        error="Traceback",
        servers=("git-hub", "time"),
        timeout_seconds=30.0,
        truncated={"stdout": 12},
        isolation=Isolation(
            backend="podman",
            oci_runtime="runc",
            layers=("no-network", "pids-limit"),
            weaker=("no cpus",),
            verified=("no-network",),
        ),
        usage=Usage(
            wall_ms=410, cpu_ms=0, peak_memory_bytes=9, tool_calls=3, tool_result_bytes=48211
        ),
    )
    assert structured(result) == {
        "runId": "r1",
        "status": "error",
        "summary": "The program raised ValueError.",
        "reason": "exception",
        "exitCode": 1,
        "stdout": ["a", "", "b"],
        "stderr": ["warn"],
        "noFinalNewline": ["stderr"],
        "result": {"n": 1},
        "resultRepr": "x",
        "error": "Traceback",
        "servers": ["git-hub", "time"],
        "timeoutSeconds": 30,
        "truncated": {"stdout": 12},
        "isolation": {
            "backend": "podman",
            "ociRuntime": "runc",
            "layers": ["no-network", "pids-limit"],
            "unverified": ["pids-limit"],
            "weaker": ["no cpus"],
        },
        "usage": {
            "wallMs": 410,
            "cpuMs": 0,
            "peakMemoryBytes": 9,
            "toolCalls": 3,
            "toolResultBytes": 48211,
        },
    }


def test_findings_have_their_contract_names() -> None:
    result = RunResult(
        run_id="r1",
        status="success",
        summary="Done.",
        findings=(
            Finding(line=3, column=5, rule="process", message="starts"),
            Finding(line=0, rule="no-network", message="needs", severity="note"),
        ),
        findings_omitted=2,
    )
    document = structured(result)
    assert document["findings"] == [
        {"line": 3, "column": 5, "rule": "process", "severity": "deny", "message": "starts"},
        {"rule": "no-network", "severity": "note", "message": "needs"},
    ]
    assert document["findingsOmitted"] == 2


def test_empty_fields_are_left_out() -> None:
    result = RunResult(
        run_id="r1",
        status="success",
        summary="Done.",
        exit_code=0,
        isolation=Isolation(backend="docker"),
    )
    assert structured(result) == {
        "runId": "r1",
        "status": "success",
        "summary": "Done.",
        "exitCode": 0,
        "isolation": {"backend": "docker"},
        "usage": {"wallMs": 0, "toolCalls": 0, "toolResultBytes": 0},
    }


@pytest.mark.parametrize("value", [None, "", [], {}, 0, False])
def test_an_empty_result_is_still_a_result(value: Any) -> None:
    result = RunResult(run_id="r", status="success", summary="s", has_result=True, result=value)
    assert structured(result)["result"] == value


def test_a_timeout_keeps_its_fraction() -> None:
    result = RunResult(run_id="r", status="success", summary="s", timeout_seconds=1.5)
    assert structured(result)["timeoutSeconds"] == 1.5


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("\n", [""]),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("\n\na", ["", "", "a"]),
        ("()\n", ["()"]),
        ("a\r\nb\rc\x0b\x85\u2028d", ["a\r", "b\rc\x0b\x85\u2028d"]),
    ],
)
def test_a_stream_is_parted_at_newlines_only(text: str, lines: list[str]) -> None:
    assert stream_lines(text) == lines


def stream_text(lines: list[str], *, final_newline: bool = True) -> str:
    return "\n".join(lines) + ("\n" if lines and final_newline else "")


@given(text=ANY_TEXT)
def test_the_lines_give_back_the_stream(text: str) -> None:
    assert stream_text(stream_lines(text), final_newline=text.endswith("\n")) == text


@given(stdout=st.text(), stderr=st.text())
def test_structured_content_gives_back_both_streams(stdout: str, stderr: str) -> None:
    made = structured(
        RunResult(run_id="r", status="success", summary="s", stdout=stdout, stderr=stderr)
    )
    for name, text in (("stdout", stdout), ("stderr", stderr)):
        ended = name not in made.get("noFinalNewline", [])
        assert stream_text(made.get(name, []), final_newline=ended) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb 🙂", "a\nb 🙂"),
        ("\ud83d\ude42", "🙂"),
        ("a\udc80b\ud83d", "a\\udc80b\\ud83d"),
        ("\x00\u2028", "\x00\u2028"),
    ],
)
def test_a_lone_surrogate_is_written_out(text: str, shown: str) -> None:
    assert valid_text(text) == shown


def test_two_keys_that_differ_only_in_a_lone_surrogate_stay_two() -> None:
    keys = ("\ud800", "\ud801")
    assert to_json({key: number for number, key in enumerate(keys, 1)}) == {
        "\\ud800": 1,
        "\\ud801": 2,
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ((1, 2), [1, 2]),
        ({2: "a", None: "b", True: "c"}, {"2": "a", "null": "b", "true": "c"}),
        ({2.5: 1, float("inf"): 2}, {"2.5": 1, "inf": 2}),
        (b"x", "b'x'"),
        (2**70, 2**70),
    ],
)
def test_what_is_not_quite_json_is_made_so(value: Any, expected: Any) -> None:
    assert to_json(value) == expected


def test_a_number_past_the_interpreters_digit_limit_becomes_hexadecimal() -> None:
    assert to_json(10**5_000) == hex(10**5_000)


@pytest.mark.parametrize("levels", [MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2, 300])
def test_deep_nesting_becomes_a_string_of_json_and_loses_nothing(levels: int) -> None:
    value = to_json(nested(levels))
    depth = 0
    probe = value
    while not isinstance(probe, str):
        probe = probe["a"] if isinstance(probe, dict) else probe[0]
        depth += 1
    assert depth == min(levels, MAX_DEPTH)
    rest = levels - MAX_DEPTH
    assert probe == "core" if rest <= 0 else json.loads(probe) == nested(rest)


def test_of_nesting_past_any_recursion_limit_it_is_told_that_it_is_not_there() -> None:
    assert TOO_DEEP in json.dumps(to_json(nested(50_000)))


@given(
    value=st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), ANY_TEXT, st.binary()),
        lambda inner: st.one_of(
            st.lists(inner), st.dictionaries(st.one_of(ANY_TEXT, st.integers()), inner)
        ),
    )
)
def test_any_value_becomes_strict_json(value: Any) -> None:
    text = json.dumps(to_json(value), ensure_ascii=False, allow_nan=False)
    json.loads(text.encode())
