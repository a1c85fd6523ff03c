"""Classifies the end of a run from frames, the engine's exit report and the host's clock. Pure.

Checks run in order of trust: the host's own actions, the reports of kernel and engine, the guest's
claims. A guest can only lie about its own run.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass

from bridge.errors import SandboxLostError
from bridge.guest.protocol.wire import Done, Exited
from bridge.model import Limits, Reason, Status
from bridge.sandbox.backend import SIGNAL_BASE, ExitReport

RAISED = "The program raised "
"""Start of an exception's summary; its type and the first line of its message follow."""

_HINTS = {
    "SIGSEGV": "a crash in native code, or a recursion too deep for the C stack",
    "SIGABRT": "the interpreter or a library aborted",
    "SIGKILL": "something in the sandbox killed it",
    "SIGSYS": "a forbidden system call",
    "SIGXCPU": "out of CPU time",
    "SIGBUS": "a write beyond what the memory-backed directories hold",
}


@dataclass(frozen=True, kw_only=True)
class Ending:
    # The guest's last frames, if they arrived.
    done: Done | None = None
    exited: Exited | None = None
    report: ExitReport | None = None
    deadline_passed: bool = False  # The host's deadline passed and it killed the sandbox.
    ran_longest: bool = False  # The run took the longest allowed time, its calls included.
    protocol_error: str = ""
    lost: str = ""  # The error of the engine or its connection, if one broke.
    lost_code: str = ""  # That error's code, if it is more specific than a lost sandbox.
    diagnostics: str = ""


@dataclass(frozen=True)
class Verdict:
    """Status and reason of a run, one sentence about it, its exit code and the error's code."""

    status: Status
    reason: Reason | None
    summary: str
    exit_code: int | None = None
    error: str = ""
    code: str = ""


def classify(ending: Ending, limits: Limits) -> Verdict:
    done, exited = ending.done, ending.exited
    if ending.deadline_passed or (exited is not None and exited.timed_out):
        seconds = limits.longest_timeout if ending.ran_longest else limits.timeout
        message = f"Timed out after {seconds:g} s."
        error = f"{message} {_after_a_timeout(ending, limits)}"
        if done is not None and done.error:
            # A session's program is interrupted first and sends its traceback.
            error = f"{done.error.rstrip()}\n{error}"
        return Verdict("timeout", "timeout", message, error=error)
    if ending.lost:
        message = f"The sandbox was lost while the program ran. {ending.lost}"
        error = f"{message} Output up to then is kept. `mcp-code-bridge doctor` tries again."
        lost = ending.lost_code or SandboxLostError.code
        return Verdict("error", "engine", message, error=error, code=lost)
    if ending.protocol_error:
        return _crash(f"The sandbox broke its protocol: {ending.protocol_error}", ending)
    if _out_of_memory(ending):
        code = None if exited is None or exited.signal is None else SIGNAL_BASE + exited.signal
        megabytes = limits.memory_bytes // (1024 * 1024)
        message = f"The program ran out of memory (limit {megabytes} MiB, files in /tmp included)."
        error = f"{done.error if done is not None else ''}\n{message}".strip()
        error += " Work on less data at a time."
        return Verdict("error", "oom", message, code, error)
    if done is not None and done.outcome == "exception":
        lines = [line for line in done.error.splitlines() if not line.startswith("Hint: ")]
        # A message may have more lines; those of code are indented.
        named = [each for each in lines if each.partition(":")[0].endswith(done.error_type)]
        last = (named or lines or [""])[-1].strip()
        summary = f"{RAISED}{(last or done.error_type)[:300]}"
        return Verdict("error", "exception", summary, done.exit_code or 1, done.error)
    code = _exit_code(done, exited)
    if code is not None:
        if done is not None and code == 0:
            return Verdict("success", None, "Success.", exit_code=0)
        if done is not None:
            # The program has reported the reason itself, if there is one.
            summary = f"The program exited with status {code}."
            return Verdict("error", "exit", summary, code, done.error)
        message = f"The program ended abruptly with status {code}, before it was through."
        return Verdict("error", "exit", message, code, message)
    if exited is not None and exited.signal is not None:
        names = (known.name for known in signals.Signals if known == exited.signal)
        name = next(names, f"signal {exited.signal}")
        hint = f" ({_HINTS[name]})" if name in _HINTS else ""
        code = SIGNAL_BASE + exited.signal
        return _crash(f"The program was killed by {name}{hint}.", ending, code)
    message = "The sandbox ended before the program did."
    if ending.report is not None and ending.report.signal == signals.SIGKILL:
        message += " It was killed from outside: by the engine, by hand, or for memory."
    return _crash(message, ending)


def _after_a_timeout(ending: Ending, limits: Limits) -> str:
    kept = "Output until then is kept. Do less per run"
    if ending.ran_longest:
        kept += ": no run takes longer with its tools (`max_timeout` in the settings)."
    elif limits.timeout < limits.longest_timeout:
        kept += f", or raise `timeout` (max {limits.longest_timeout:g} s)."
    else:
        kept += "; there is no longer time limit to ask for."
    if ending.exited is not None:
        return kept
    # A guest that still works stops itself a little earlier and reports it.
    return f"{kept} The sandbox did not answer any more: it may be paused, or the machine too busy."


def _exit_code(done: Done | None, exited: Exited | None) -> int | None:
    """Return the program's exit code; the kernel's outranks the program's own claim."""
    if done is not None and (exited is None or not exited.code):
        return done.exit_code
    return exited.code if exited is not None else None


def _out_of_memory(ending: Ending) -> bool:
    done, exited, report = ending.done, ending.exited, ending.report
    if done is not None:
        return done.out_of_memory
    if exited is not None and exited.signal != signals.SIGKILL:
        return False
    seen = exited is not None and exited.oom_kills > 0
    return seen or (report is not None and report.oom_killed is True)


def _crash(message: str, ending: Ending, code: int | None = None) -> Verdict:
    detail = f"{ending.diagnostics.strip()}\n{ending.report.detail if ending.report else ''}"
    return Verdict("error", "crash", message, code, f"{message}\n{detail}".strip())
