"""How a pipeline ended, told from how its stages did."""

from __future__ import annotations

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.commands.runner import CommandOutput, judge
from bridge.gate.redaction import Redactor
from bridge.model import StageResult
from bridge.settings.commands import parse_commands

PROFILE = parse_commands({"p": {"executables": ["a"], "workspace": "/w"}}, "c")["p"]


def _stage(code: int | None = 0, *, killed: int | None = None, cut: bool = False) -> StageResult:
    return StageResult(words=("a", "b c"), exit_code=code, signal=killed, cut_short=cut)


@pytest.mark.parametrize(
    ("stages", "told"),
    [
        ([_stage()], ""),
        ([_stage(3)], "`a 'b c'` exited with status 3."),
        ([_stage(), _stage(2), _stage(1)], "stage 2 of 3 (`a 'b c'`) exited with status 2."),
        ([_stage(None, killed=signal.SIGPIPE), _stage()], ""),
        ([_stage(1, cut=True), _stage()], ""),
        ([_stage(1, cut=True), _stage(5)], "stage 2 of 2 (`a 'b c'`) exited with status 5."),
        ([_stage(None, killed=signal.SIGPIPE)], "`a 'b c'` was ended by SIGPIPE."),
        ([_stage(1), _stage()], "stage 1 of 2 (`a 'b c'`) exited with status 1."),
        (
            [_stage(None, killed=signal.SIGXCPU)],
            "`a 'b c'` was ended by SIGXCPU (its limit of 60 s of CPU time).",
        ),
        ([_stage(None)], "`a 'b c'` was lost: nothing is known of its end."),
    ],
)
def test_the_first_stage_that_did_not_succeed_is_named(
    stages: list[StageResult], told: str
) -> None:
    """One that could not write on, because its reader had ended, did succeed; the last cannot."""
    verdict = judge(stages, PROFILE, timed_out=False, timeout=1)
    assert verdict.status == ("error" if told else "success")
    assert verdict.summary == (told or verdict.summary)


def test_running_out_of_memory_is_no_success_even_with_status_0() -> None:
    stage = StageResult(words=("a",), exit_code=0, oom_killed=True)
    verdict = judge([stage, _stage()], PROFILE, timed_out=False, timeout=1)
    assert (verdict.status, verdict.reason) == ("error", "oom")
    assert "512 MiB" in verdict.summary


def test_a_deadline_names_what_still_ran() -> None:
    verdict = judge([_stage(), _stage(None)], PROFILE, timed_out=True, timeout=2)
    assert (verdict.status, verdict.reason) == ("timeout", "timeout")
    assert "stage 2 of 2" in verdict.summary
    assert "stage 1" not in verdict.summary
    assert "at most 300" in verdict.remedy


SECRET = "wJalrXUt/nFEMI+K7MDENG"


@given(st.binary(max_size=3000), st.lists(st.integers(0, 700), max_size=20))
def test_no_more_than_the_limit_is_kept_and_the_rest_is_counted(
    data: bytes, sizes: list[int]
) -> None:
    capture = CommandOutput(1000, Redactor())
    rest = data
    for size in sizes:
        capture.feed(rest[:size])
        rest = rest[size:]
    capture.feed(rest)
    capture.finish()
    assert capture.dropped == max(0, len(data) - 1000)
    if not capture.dropped:
        assert capture.text() == data.decode("utf-8", "backslashreplace")


def test_a_cut_stream_shows_its_ends_and_says_what_is_missing() -> None:
    capture = CommandOutput(10, Redactor())
    capture.feed(b"0123456789")
    capture.feed(b"abcdefghij")
    assert capture.text() == "01234\n[... 10 bytes dropped ...]\nfghij"


def test_a_secret_that_the_cut_goes_through_does_not_show_in_part() -> None:
    capture = CommandOutput(40, Redactor({SECRET: "KEY"}))
    capture.feed(b"x" * 10 + SECRET.encode() + b"y" * 100 + SECRET.encode()[:7])
    capture.feed(SECRET.encode()[7:])
    capture.finish()
    assert not any(part in capture.text() for part in (SECRET[:4], SECRET[-4:]))
