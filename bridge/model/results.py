"""The result of a run, and the values in it.

What a new field needs in addition to a line here is in CONTRIBUTING.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from bridge.errors import BridgeError, UsageError
from bridge.model.kept import Artifact, Loss, SessionReport, ShownContent
from bridge.model.names import Action, Effect, FindingSource, Json, Reason, Severity, Status


@dataclass(frozen=True, kw_only=True)
class HostKernel:
    """An engine's kernel; unknown fields are empty.

    Attributes:
        release, version: As in `uname`.
        boot_id: The random id of the kernel's start.
    """

    release: str = ""
    version: str = ""
    boot_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """The isolation of a program from the host.

    Attributes:
        backend: "podman", "docker", ...
        oci_runtime: "runc", "crun", "runsc", ...; empty if there is none.
        layers: The layers in force, such as "no-network" or "read-only-root".
        weaker: The requested layers that are not in force, with their causes.
        verified: The layers that the guest confirmed before the program ran.
        host_kernel: The host's kernel, which a guest with "own-kernel" must not see.
    """

    backend: str
    oci_runtime: str = ""
    layers: tuple[str, ...] = ()
    weaker: tuple[str, ...] = ()
    verified: tuple[str, ...] = ()
    host_kernel: HostKernel | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The resources that a run used.

    Attributes:
        wall_ms: From the program's start to its end.
        cpu_ms, peak_memory_bytes: As reported by the sandbox.
        tool_calls: The number of calls.
        tool_result_bytes: The size of all tool results.
    """

    wall_ms: int = 0
    cpu_ms: int | None = None
    peak_memory_bytes: int | None = None
    tool_calls: int = 0
    tool_result_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding in a program's text.

    Attributes:
        line, column: From 1; 0 for the whole program.
        rule: A short, stable name ("native-code", "syntax").
        message: The finding as a sentence.
        severity: "deny" if the enforcing guard or the preflight refuses the program for it.
        source: The part that found it.
    """

    line: int
    rule: str
    message: str
    column: int = 0
    severity: Severity = "deny"
    source: FindingSource = "guard"

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        return f"{where}{self.message} ({self.rule})"


@dataclass(frozen=True, kw_only=True)
class CallCount:
    """Calls of one tool with the same outcome.

    Attributes:
        server, tool: The server's own names.
        count: The number of calls.
        why: The decision and its rule, if the outcome depends on them.
    """

    server: str
    tool: str
    count: int
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class HeldCall:
    """A call that a plan holds back.

    Attributes:
        number: From 1, in the order of the plan.
        server, tool: The server's own names.
        effect: The effect that the call would have.
        arguments: Shown arguments: without secrets, and with names for other calls' results.
        unlisted: The arguments that the tool's schema lacks.
        cut: Whether `arguments` is incomplete.
        digest: The digest of all arguments as canonical JSON, with names for other results.
        action: The policy's decision; "ask" if the user must approve it in any case.
        rule: The rule behind `action`.
    """

    number: int
    server: str
    tool: str
    arguments: Mapping[str, Json]
    effect: Effect = "write"
    action: Action = "allow"
    rule: str = ""
    unlisted: tuple[str, ...] = ()
    cut: bool = False
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run in plan mode.

    Attributes:
        plan_id: Empty if there is nothing to apply.
        seconds: How long it can be applied.
        calls: The held calls.
        stopped: Why the program ended early; empty if it did not.
        stale: Reads, in words, that held calls before them would have changed.
        askable: Whether its caller's answer counts as an approval.
    """

    plan_id: str
    seconds: float
    calls: tuple[HeldCall, ...] = ()
    stopped: str = ""
    stale: str = ""
    askable: bool = True


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The counts of a run: its calls, and how much data did not reach the model.

    Attributes:
        calls: Server to the number of calls sent to it.
        changing: The sent calls that may have changed something: not reads, not failed calls.
        replayed: Calls answered from a journal.
        held: Calls held back for a plan.
        refused: Calls that were not allowed.
        unknown: Calls that were sent without an answer.
        result_bytes: Bytes that servers returned.
        returned_bytes: Bytes in the run's result.
        tokens_kept: Approximate tokens that stayed out of the conversation.
        code_ms: Time in the program itself.
        calls_ms: Time in calls.
        waiting_ms: Time waiting for the user.
        audit: Hash of the last audit record; empty without a log.
        masked: Names of the redacted secrets.
        unsent: Tasks that were cancelled and coroutines that were not awaited, by name.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
    changing: int = 0
    replayed: int = 0
    held: int = 0
    refused: int = 0
    unknown: int = 0
    result_bytes: int = 0
    returned_bytes: int = 0
    tokens_kept: int = 0
    code_ms: int = 0
    calls_ms: int = 0
    waiting_ms: int = 0
    audit: str = ""
    masked: tuple[str, ...] = ()
    unsent: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of a run.

    Attributes:
        run_id: The id for `retry_of`, `read_output` and the audit log.
        status: How the run ended.
        summary: The status as a sentence.
        reason: Why it did not succeed; None exactly if `status` is "success".
        code: The code of the error that prevented it.
        exit_code: The exit code of the program's process; None if none ran.
        stdout, stderr: Its output, cut as `truncated` says.
        has_result: Whether the last expression has a value that JSON can hold.
        result: That value.
        result_repr: `repr` of a value that JSON cannot hold; for a large one, its printed form.
        error: The traceback or the bridge's error, for the model.
        servers: The loaded servers.
        timeout_seconds: The program's time limit.
        truncated: Stream name to the number of dropped bytes.
        isolation: The program's isolation from the host.
        usage: The resources that it used.
        findings: The findings in its text, in the order of its lines.
        findings_omitted: The number of further findings.
        plan: The plan of a run in plan mode.
        replayed: Calls that a retry answered from records.
        unused: Changing calls of the earlier run that a retry did not repeat.
        refused: Calls that were not allowed.
        unknown: Calls that were sent without an answer, so they may have happened.
        unsent: Tasks that were cancelled and coroutines that were not awaited, by name.
        receipt: The counts of the run; None if no program ran.
        shown: The displayed pictures and texts, in order.
        artifacts: The stored outputs.
        missing: Outputs that could not be stored or read.
        session: The report on its session; None without one.
        recorded: Whether `runs show` has a record of it.
    """

    run_id: str
    status: Status
    summary: str
    reason: Reason | None = None
    code: str = ""
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    has_result: bool = False
    result: Json = None
    result_repr: str = ""
    error: str = ""
    servers: tuple[str, ...] = ()
    timeout_seconds: float = 0.0
    truncated: Mapping[str, int] = field(default_factory=dict)
    isolation: Isolation | None = None
    usage: Usage = field(default_factory=Usage)
    findings: tuple[Finding, ...] = ()
    findings_omitted: int = 0
    plan: Plan | None = None
    replayed: tuple[CallCount, ...] = ()
    unused: tuple[CallCount, ...] = ()
    refused: tuple[CallCount, ...] = ()
    unknown: tuple[CallCount, ...] = ()
    unsent: tuple[str, ...] = ()
    receipt: Receipt | None = None
    shown: tuple[ShownContent, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[Loss, ...] = ()
    session: SessionReport | None = None
    recorded: bool = False

    @property
    def silent(self) -> bool:
        """Whether a run without a session made calls, succeeded, and shows nothing."""
        shown = self.stdout or self.stderr or self.has_result or self.result_repr or self.artifacts
        apart = self.session or self.plan or self.replayed
        called = self.receipt and self.receipt.calls
        return self.status == "success" and bool(called) and not (apart or shown)


Result = TypeVar("Result", bound=RunResult)


def error_result(error: BridgeError, kind: type[Result], *, run_id: str = "") -> Result:
    usage = isinstance(error, UsageError)
    return kind(
        run_id=run_id or error.run_id or uuid.uuid4().hex,
        status="validation_error" if usage else "error",
        reason="validation" if usage else "engine",
        code=error.code,
        summary=error.message,
        error=f"{error} [{error.code}]",
    )


def error_run(error: BridgeError, *, run_id: str = "") -> RunResult:
    result = error_result(error, RunResult, run_id=run_id)
    return replace(result, recorded=bool(error.run_id))


def first_error(group: ExceptionGroup[Exception]) -> Exception:
    """Return the bridge's error in a group, which is what callers know; else the group."""
    matched, rest = group.split(BridgeError)
    if matched is None or rest is not None:
        return group
    leaf: Exception = matched
    while isinstance(leaf, ExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf


async def catch(work: Awaitable[RunResult]) -> RunResult | BridgeError:
    """Return a bridge error instead of raising it through a task group, which would wrap it."""
    try:
        return await work
    except BridgeError as error:
        return error
    except ExceptionGroup as group:
        # A program's own task group wraps what its receive loop raised.
        found = first_error(group)
        if not isinstance(found, BridgeError):
            raise
        return found
