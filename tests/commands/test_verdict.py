"""How a pipeline ended, told from how its stages did."""

from __future__ import annotations

import signal

import pytest

from bridge.commands.runner import judge
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
