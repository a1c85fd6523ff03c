"""How a run ended, and all that is to be said of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.model.kept import Artifact, Loss, SessionReport, Shown
from bridge.model.names import Action, Effect, FindingSource, Json, Reason, Severity, Status


@dataclass(frozen=True, kw_only=True)
class HostKernel:
    """The kernel under an engine, by what of it a program would see; empty where unknown.

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
    """What a run used. CPU time and peak memory are the guest's own account of itself."""

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
    """Calls of one tool of which the same is to be said.

    Attributes:
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
        stopped: Why the program did not get to its end; empty if it did.
        stale: What it read without the changes that calls held by then will make, in words.
        askable: Whether an answer of whoever it was made for would count as an approval.
    """

    plan_id: str
    seconds: float
    calls: tuple[HeldCall, ...] = ()
    stopped: str = ""
    stale: str = ""
    askable: bool = True


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a run did, and what of it did not reach the model.

    Attributes:
        calls: Server to the calls that went out to it.
        changing: How many of them may have changed something: reads and calls that failed did not.
        replayed, held, refused, unknown: Calls answered from a journal, held back for a plan, not
            allowed, and sent without anybody knowing what became of them.
        result_bytes: Of what servers returned.
        returned_bytes: Of what the run passed on.
        tokens_kept: Of the former, about, that stayed out of the conversation.
        code_ms, calls_ms, waiting_ms: Time in the program itself, in calls, and waiting for people.
        audit: Hash of the last record of the audit log; empty without one.
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


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended, with all that is to be shown of it.

    Attributes:
        reason: None exactly when `status` is "success".
        code: Of the error that kept it from running, for its text.
        stdout, stderr: Text as written, cut only as `truncated` says.
        has_result: Whether the last expression had a value that JSON can hold.
        result: That value.
        result_repr: `repr` of a value that JSON cannot hold; of a large one, what was printed.
        truncated: Stream name to the number of bytes dropped.
        findings: What the static guard has to say, in the order of the program's lines.
        findings_omitted: How many more there were.
        plan: What a run in plan mode holds back.
        replayed: Calls that a retry did not make again.
        unused: Calls that change something which the run before made, and a retry did not want.
        refused: Calls that were not allowed.
        unknown: Calls of which nobody knows whether they happened.
        receipt: What it did and cost; None where no program ran.
        shown: Pictures and texts that it showed, in that order.
        artifacts: What it left that the bridge keeps.
        missing: What of that could not be kept or read, and why.
        session: What became of its session; None where it had none.
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
    receipt: Receipt | None = None
    shown: tuple[Shown, ...] = ()
    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[Loss, ...] = ()
    session: SessionReport | None = None
