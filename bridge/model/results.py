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
    """The kernel under an engine, as a program would see it; empty where unknown.

    Attributes:
        release, version: As `uname` has them.
        boot_id: Drawn at random when the kernel started.
    """

    release: str = ""
    version: str = ""
    boot_id: str = ""


@dataclass(frozen=True, kw_only=True)
class Isolation:
    """What separated the program from the host.

    Attributes:
        backend: "podman", "docker", ...
        oci_runtime: "runc", "crun", "runsc", ...; empty when there is none.
        layers: What is in force, each a short name ("no-network", "read-only-root").
        weaker: What was asked for and is not in force, each with its cause.
        verified: Those of `layers` that were seen to hold from inside, before the program ran; the
            others were only asked for.
        host_kernel: What may not be seen inside where the layer is "own-kernel"; until that was
            looked at.
    """

    backend: str
    oci_runtime: str = ""
    layers: tuple[str, ...] = ()
    weaker: tuple[str, ...] = ()
    verified: tuple[str, ...] = ()
    host_kernel: HostKernel | None = None


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What a run used.

    Attributes:
        wall_ms: From the program's start to its end.
        cpu_ms, peak_memory_bytes: As the sandbox reports them.
        tool_calls: Calls that the program made.
        tool_result_bytes: What they returned.
    """

    wall_ms: int = 0
    cpu_ms: int | None = None
    peak_memory_bytes: int | None = None
    tool_calls: int = 0
    tool_result_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that reading a program without running it brought up.

    Attributes:
        line, column: From 1; 0 when it is about the program as a whole.
        rule: A short, stable name ("native-code", "syntax").
        message: What was found, in a sentence.
        severity: "deny" if a program is refused for it: by the guard if it enforces, by the
            preflight always.
        source: Who found it.
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
        server, tool: As the server names them.
        count: How many.
        why: What was decided, and by which rule, where that is part of it.
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
        server, tool: As the server names them.
        effect: What it would do.
        arguments: As they are shown: secrets left out, results of other held calls by name.
        unlisted: Names of arguments that the tool's schema does not have.
        cut: Whether the arguments are more than is shown here.
        digest: Of all the arguments as canonical JSON, with results of other held calls by name.
        action: What the policy says of it; "ask" if it wants a person's approval in any case.
        rule: Which rule says so.
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
    """What a run in plan mode would have done.

    Attributes:
        plan_id: What it is applied by; empty if there is nothing to apply.
        seconds: For which it can be applied.
        calls: What it holds back.
        stopped: Why the program did not get to its end; empty if it did.
        stale: What it read without the changes that calls held by then will make, in words.
        askable: Whether an answer of its caller would count as an approval.
    """

    plan_id: str
    seconds: float
    calls: tuple[HeldCall, ...] = ()
    stopped: str = ""
    stale: str = ""
    askable: bool = True


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a run did, and how much of that did not reach the model.

    Attributes:
        calls: Server to the number of calls that went out to it.
        changing: How many of them may have changed something: reads and calls that failed did not.
        replayed: Calls answered from a journal.
        held: Calls held back for a plan.
        refused: Calls that were not allowed.
        unknown: Calls whose outcome is unknown: they were sent, and no answer came.
        result_bytes: What servers returned.
        returned_bytes: What the run passed on.
        tokens_kept: Tokens of what servers returned that stayed out of the conversation, about.
        code_ms: Time in the program itself.
        calls_ms: Time in calls.
        waiting_ms: Time waiting for people.
        audit: Hash of the last record of the audit log; empty without one.
        masked: Names of the secrets that were taken out of what servers and the program said.
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
        run_id: What the run is called in `retry_of`, in `read_output` and in the audit log.
        status: How it ended, in short.
        summary: The same, in a sentence.
        reason: Why it did not succeed; None exactly when `status` is "success".
        code: Of the error that kept it from running, for its text.
        exit_code: Of the program's process; None if none ran.
        stdout, stderr: What it wrote, cut only as `truncated` says.
        has_result: Whether the last expression had a value that JSON can hold.
        result: The value of the last expression, if JSON can hold it.
        result_repr: `repr` of a value that JSON cannot hold; of a large one, what was printed.
        error: The traceback, or what the bridge has to say, for the model.
        servers: Those that the run loaded.
        timeout_seconds: What the program was allowed.
        truncated: Stream name to the number of bytes dropped.
        isolation: What separated it from the host.
        usage: What it used.
        findings: What the static guard has to say, in the order of the program's lines.
        findings_omitted: How many more there were.
        plan: What a run in plan mode holds back.
        replayed: Calls that a retry did not make again.
        unused: Calls that change something, which the run before made and a retry did not make.
        refused: Calls that were not allowed.
        unknown: Calls that were sent without an answer, so that they may have happened.
        unsent: Tasks that were cancelled and coroutines that were not awaited, by name.
        receipt: What it did and cost; None where no program ran.
        shown: Pictures and texts that it showed, in that order.
        artifacts: What it left that the bridge keeps.
        missing: What it left that could not be kept or read.
        session: The report on its session; None where it had none.
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
        """Whether a first run, in no session, made calls and succeeded with nothing to show."""
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
