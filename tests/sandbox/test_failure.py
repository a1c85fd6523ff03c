"""How a run's end is classified."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import BridgeError
from bridge.guest.protocol.wire import Done, Exited
from bridge.model import Limits
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.container import faults as engines
from bridge.sandbox.container.command_runner import CompletedCommand
from bridge.sandbox.container.endpoints import SshTarget
from bridge.sandbox.container.image import build_failure, script_failure
from bridge.sandbox.failure import Ending, classify
from bridge.sandbox.process import host
from bridge.sandbox.process.host import KernelSettings
from tests.sandbox.golden import is_golden

OK = Done(outcome="ok")
RAISED = partial(Done, outcome="exception", exit_code=1)
EXIT = ("error", "exit")
LIMITS = Limits(timeout=5)


@pytest.mark.parametrize(
    ("ending", "status", "reason", "code"),
    [
        (Ending(done=OK, exited=Exited(code=0)), "success", None, 0),
        (Ending(done=Done(outcome="exit", exit_code=0), exited=Exited(code=0)), "success", None, 0),
        (Ending(done=Done(outcome="exit", exit_code=3), exited=Exited(code=3)), *EXIT, 3),
        # The kernel's word beats the program's own: an atexit handler that fails still fails.
        (Ending(done=OK, exited=Exited(code=4)), *EXIT, 4),
        # os._exit(0) before the end is no success.
        (Ending(exited=Exited(code=0)), *EXIT, 0),
        (Ending(done=RAISED(error="E: x", error_type="E")), "error", "exception", 1),
        (Ending(done=RAISED(out_of_memory=True)), "error", "oom", None),
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


def test_a_crash_tells_what_the_sandbox_said_and_the_likely_cause_of_its_signal() -> None:
    ending = Ending(diagnostics="Fatal Python error\n", report=ExitReport(detail="exec failed"))
    error = classify(ending, LIMITS).error
    assert "Fatal Python error" in error
    assert "exec failed" in error
    summary = classify(Ending(exited=Exited(signal=11)), LIMITS).summary
    assert "SIGSEGV (a crash in native code" in summary


def test_a_timeout_says_the_limit_and_what_to_do() -> None:
    verdict = classify(Ending(deadline_passed=True), LIMITS)
    assert verdict.summary == "Timed out after 5 s."
    assert "raise `timeout` (max 600 s)." in verdict.error
    longest = classify(Ending(deadline_passed=True), replace(LIMITS, longest_timeout=5))
    assert "there is no longer time limit to ask for" in longest.error


def test_a_hint_is_not_taken_for_what_was_raised() -> None:
    done = RAISED(error="Traceback\nSyntaxError: bad\nHint: try harder.")
    assert classify(Ending(done=done), LIMITS).summary == "The program raised SyntaxError: bad"


def test_what_was_done_to_a_sandbox_from_outside_is_told() -> None:
    killed = classify(Ending(report=ExitReport(signal=9)), LIMITS)
    assert "from outside" in killed.summary
    assert "The engine is gone." in classify(Ending(lost="The engine is gone."), LIMITS).summary
    assert "paused" in classify(Ending(deadline_passed=True), LIMITS).error
    stopped_itself = Ending(deadline_passed=True, exited=Exited(signal=9, timed_out=True))
    assert "paused" not in classify(stopped_itself, LIMITS).error


SAID: dict[str, list[Any]] = json.loads(
    (Path(__file__).parent / "testdata/said.json").read_text(encoding="utf-8")
)

ERRORS: Mapping[str, Callable[[Any], BridgeError]] = {
    "an engine": lambda said: engines.from_text(said, doing="start it", engine="podman"),
    "a build": lambda said: build_failure("docker", "build x", said),
    "the Debian recipe": lambda said: script_failure(CompletedCommand(exit_code=1, stderr=said)),
    "OpenSSH": SshTarget(destination="me@big", port="22", socket="/s").failure,
    "bubblewrap": lambda row: host.bubblewrap_failed(row[0], KernelSettings(**row[1])),
    "the stage": lambda row: host.stage_failed(row[0], KernelSettings(**row[1])),
}


@pytest.mark.parametrize("who", SAID)
def test_each_cause_has_its_code_and_remedy(who: str) -> None:
    made = [ERRORS[who](said) for said in SAID[who]]
    assert is_golden(f"remedies for {who}", [[error.code, error.remedy] for error in made])


@pytest.mark.parametrize("who", ["an engine", "a build", "the Debian recipe"])
def test_long_words_are_cut_and_the_cause_is_kept(who: str) -> None:
    told = SAID[who][0]
    assert told.split(":")[-1].strip() in ERRORS[who](told).message
    assert len(ERRORS[who]("x" * 100_000).message) < 3000


def test_the_words_of_bubblewrap_are_cut() -> None:
    assert len(host.bubblewrap_failed("x" * 100_000, KernelSettings()).message) < 1000
    assert "apt install bubblewrap" in host.INSTALL_REMEDY


def test_words_never_heard_before_are_passed_on() -> None:
    found = engines.from_text("frobnication\n  failed. ", doing="attach", engine="docker")
    assert found.message == "docker could not attach: frobnication failed."
    assert "doctor" in found.remedy


def test_a_recipe_that_takes_too_long_says_so() -> None:
    late = CompletedCommand(exit_code=None, stderr="Get: 1 ...", timed_out=True)
    assert "not built in time" in script_failure(late).message
