"""How a run's end is classified."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bridge.guest.protocol.wire import Done, Exited
from bridge.model import Limits
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.failure import Ending, classify

OK = Done(outcome="ok")
LIMITS = Limits(timeout=5)


@pytest.mark.parametrize(
    ("ending", "status", "reason", "code"),
    [
        (Ending(done=OK, exited=Exited(code=0)), "success", None, 0),
        (Ending(done=Done(outcome="exit", exit_code=0), exited=Exited(code=0)), "success", None, 0),
        (
            Ending(done=Done(outcome="exit", exit_code=3), exited=Exited(code=3)),
            "error",
            "exit",
            3,
        ),
        # The kernel's word beats the program's own: an atexit handler that fails still fails.
        (Ending(done=OK, exited=Exited(code=4)), "error", "exit", 4),
        # os._exit(0) before the end is no success.
        (Ending(exited=Exited(code=0)), "error", "exit", 0),
        (
            Ending(done=Done(outcome="exception", exit_code=1, error="E: x", error_type="E")),
            "error",
            "exception",
            1,
        ),
        (
            Ending(done=Done(outcome="exception", exit_code=1, out_of_memory=True)),
            "error",
            "oom",
            None,
        ),
        (Ending(exited=Exited(signal=9, oom_kills=1)), "error", "oom", 137),
        (Ending(exited=Exited(signal=9), report=ExitReport(oom_killed=True)), "error", "oom", 137),
        (Ending(report=ExitReport(oom_killed=True)), "error", "oom", None),
        # A child killed for memory does not make a program that went on an out-of-memory run.
        (Ending(done=OK, exited=Exited(code=0, oom_kills=1)), "success", None, 0),
        (Ending(exited=Exited(signal=11)), "error", "crash", 139),
        (Ending(exited=Exited(signal=9)), "error", "crash", 137),
        (Ending(exited=Exited(signal=250)), "error", "crash", 378),
        (Ending(), "error", "crash", None),
        (Ending(protocol_error="garbage", done=OK), "error", "crash", None),
        (Ending(exited=Exited(signal=9, timed_out=True)), "timeout", "timeout", None),
        (Ending(deadline_passed=True, done=OK), "timeout", "timeout", None),
        (Ending(lost="The engine is gone."), "error", "engine", None),
    ],
)
def test_an_ending_has_one_verdict(
    ending: Ending, status: str, reason: str | None, code: int | None
) -> None:
    verdict = classify(ending, LIMITS)
    assert (verdict.status, verdict.reason, verdict.exit_code) == (status, reason, code)
    assert verdict.summary
    assert status != "success" or not verdict.error


def test_a_crash_tells_what_the_sandbox_said() -> None:
    ending = Ending(diagnostics="Fatal Python error\n", report=ExitReport(detail="exec failed"))
    error = classify(ending, LIMITS).error
    assert "Fatal Python error" in error
    assert "exec failed" in error


def test_a_signal_is_named_with_its_likely_cause() -> None:
    assert (
        "SIGSEGV (a crash in native code"
        in classify(Ending(exited=Exited(signal=11)), LIMITS).summary
    )


def test_a_timeout_says_the_limit_and_what_to_do() -> None:
    """The limit in force is named, so that the next attempt can ask for more."""
    verdict = classify(Ending(deadline_passed=True), LIMITS)
    assert verdict.summary == "Timed out after 5 s."
    assert "raise `timeout` (max 600 s)." in verdict.error
    longest = classify(Ending(deadline_passed=True), replace(LIMITS, longest_timeout=5))
    assert "there is no longer time limit to ask for" in longest.error


def test_a_hint_is_not_taken_for_what_was_raised() -> None:
    done = Done(
        outcome="exception", exit_code=1, error="Traceback\nSyntaxError: bad\nHint: try harder."
    )
    assert classify(Ending(done=done), LIMITS).summary == "The program raised SyntaxError: bad"


def test_what_was_done_to_a_sandbox_from_outside_is_told() -> None:
    """Killed, lost or standing still: none of it is the program's doing, and each is said."""
    killed = classify(Ending(report=ExitReport(signal=9)), LIMITS)
    assert "from outside" in killed.summary
    assert "The engine is gone." in classify(Ending(lost="The engine is gone."), LIMITS).summary
    assert "paused" in classify(Ending(deadline_passed=True), LIMITS).error
    stopped_itself = Ending(deadline_passed=True, exited=Exited(signal=9, timed_out=True))
    assert "paused" not in classify(stopped_itself, LIMITS).error
