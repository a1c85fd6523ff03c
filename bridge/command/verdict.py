"""How a command or pipeline ended, told from how its stages did. Pure.

Owns the rule of which stage failed. A stage succeeds with status 0. One that is not the last also
succeeds when it could not write on because the stage after it had ended (`yes | head -1`): if
SIGPIPE ended it, or if what it wrote was refused, whatever it then exited with. The first stage
that did not succeed is the one that failed.
"""

from __future__ import annotations

import shlex
import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.model import MEBIBYTE, Reason, StageResult, Status
from bridge.settings.commands import CommandProfile

MAX_SHOWN = 200
"""Characters of a command in a sentence about it."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Status and reason, one sentence, and what to do about it."""

    status: Status
    summary: str
    reason: Reason | None = None
    exit_code: int | None = None
    remedy: str = ""


def judge(
    stages: Sequence[StageResult], profile: CommandProfile, *, timed_out: bool, timeout: float
) -> Verdict:
    """Return the verdict on all stages."""
    if timed_out:
        running = [n for n, stage in enumerate(stages, 1) if not _ended(stage)]
        which = f"; still running: {', '.join(_named(stages, n) for n in running)}"
        return Verdict(
            status="timeout",
            reason="timeout",
            summary=f"The time limit of {timeout:g} s passed{which if running else ''}.",
            remedy=(
                f"Ask for less at once, or for more time (`timeout`, at most "
                f"{profile.max_timeout:g})."
            ),
        )
    for number, stage in enumerate(stages, 1):
        if not _succeeded(stage, last=number == len(stages)):
            return _failed(stages, number, profile)
    many = f"All {len(stages)} stages" if len(stages) > 1 else "The command"
    return Verdict(status="success", summary=f"{many} succeeded.", exit_code=0)


def _ended(stage: StageResult) -> bool:
    return stage.exit_code is not None or stage.signal is not None


def _succeeded(stage: StageResult, *, last: bool) -> bool:
    if stage.exit_code == 0 and not stage.oom_killed:
        return True
    return (
        not last and not stage.oom_killed and (stage.cut_short or stage.signal == signals.SIGPIPE)
    )


def _failed(stages: Sequence[StageResult], number: int, profile: CommandProfile) -> Verdict:
    stage = stages[number - 1]
    name = _named(stages, number)
    if stage.oom_killed:
        limit = profile.memory_bytes // MEBIBYTE
        summary = f"{name} ran out of memory (limit {limit} MiB, files in /tmp included)."
        return Verdict(
            status="error", reason="oom", summary=summary, remedy="Work on less data at a time."
        )
    if stage.signal is None:
        if stage.exit_code is None:
            summary = f"{name} was lost: nothing is known of its end."
            return Verdict(status="error", reason="crash", summary=summary)
        summary = f"{name} exited with status {stage.exit_code}."
        return Verdict(status="error", reason="exit", summary=summary, exit_code=stage.exit_code)
    hint = {
        signals.SIGXCPU: f" (its limit of {profile.cpu_seconds} s of CPU time)",
        signals.SIGXFSZ: f" (its limit of {profile.file_bytes:,} bytes for a file)",
        signals.SIGSYS: " (a forbidden system call)",
        signals.SIGKILL: " (killed, by a limit or from outside)",
    }.get(signals.Signals(stage.signal), "")
    summary = f"{name} was ended by {signals.Signals(stage.signal).name}{hint}."
    return Verdict(status="error", reason="crash", summary=summary)


def _named(stages: Sequence[StageResult], number: int) -> str:
    command = shlex.join(stages[number - 1].words)
    if len(command) > MAX_SHOWN:
        command = command[:MAX_SHOWN] + "..."
    if len(stages) == 1:
        return f"`{command}`"
    return f"stage {number} of {len(stages)} (`{command}`)"
