"""How a command or pipeline ended, by how its stages did. Pure.

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
        ended = [(s.exit_code, s.signal, s.not_started) != (None, None, False) for s in stages]
        running = [_named(stages, number) for number, over in enumerate(ended, 1) if not over]
        which = f"; still running: {', '.join(running)}" if running else ""
        more = f"for more time (`timeout`, at most {profile.max_timeout:g})"
        return Verdict(
            status="timeout",
            reason="timeout",
            summary=f"The time limit of {timeout:g} s passed{which}.",
            remedy=f"Ask for less at once, or {more}.",
        )
    for number, stage in enumerate(stages, 1):
        last = number == len(stages)
        unheard = not last and (stage.cut_short or stage.signal == signals.SIGPIPE)
        if stage.oom_killed or not (stage.exit_code == 0 or unheard):
            return _failed(stage, _named(stages, number), profile)
    many = f"All {len(stages)} stages" if len(stages) > 1 else "The command"
    return Verdict(status="success", summary=f"{many} succeeded.", exit_code=0)


def _failed(stage: StageResult, name: str, profile: CommandProfile) -> Verdict:
    reason: Reason = "crash"
    remedy = ""
    if stage.oom_killed:
        limit = profile.memory_bytes // MEBIBYTE
        summary = f"{name} ran out of memory (limit {limit} MiB, files in /tmp included)."
        reason, remedy = "oom", "Work on less data at a time."
    elif stage.signal is not None:
        signal = signals.Signals(stage.signal)
        hint = {
            signals.SIGXCPU: f" (its limit of {profile.cpu_seconds} s of CPU time)",
            signals.SIGXFSZ: f" (its limit of {profile.file_bytes:,} bytes for a file)",
            signals.SIGSYS: " (a forbidden system call)",
            signals.SIGKILL: " (killed, by a limit or from outside)",
        }.get(signal, "")
        summary = f"{name} was ended by {signal.name}{hint}."
    elif stage.exit_code is None:
        summary = f"{name} was lost: nothing is known of its end."
    else:
        summary, reason = f"{name} exited with status {stage.exit_code}.", "exit"
    exit_code = stage.exit_code if reason == "exit" else None
    return Verdict(
        status="error", reason=reason, summary=summary, exit_code=exit_code, remedy=remedy
    )


def _named(stages: Sequence[StageResult], number: int) -> str:
    command = shlex.join(stages[number - 1].words)
    command = command if len(command) <= 200 else f"{command[:200]}..."
    return f"`{command}`" if len(stages) == 1 else f"stage {number} of {len(stages)} (`{command}`)"
