"""Requests, limits and results of runs, plans and commands.

What a new field of a result needs in addition to a line here is in CONTRIBUTING.md.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from bridge.errors import BridgeError, UsageError
from bridge.model.kept import Artifact, InputFile, Loss, SessionReport, ShownContent
from bridge.model.names import (
    MEBIBYTE,
    Action,
    Effect,
    FindingSource,
    Json,
    Reason,
    RetriedReads,
    RunMode,
    Severity,
    Status,
)

PERSON = "user"

PERSON_OWNERS = frozenset({"stdio", "terminal"})
"""Owners and principals that are the local user, who has both stdio and the terminal. All other
owners came over HTTP."""


def owner_digest(owner: str) -> str:
    """Return an owner's name in stored data, which reveals no credential."""
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


SCRIPT_OPENING = "# /// script"
"""The start of a script's metadata (PEP 723), which may name packages."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one run. The host or the kernel enforces every field.

    Attributes:
        timeout: Seconds of wall time for the program, without the time of its calls.
        longest_timeout: Seconds for the run with its calls; also the largest allowed `timeout`.
        memory_bytes: RAM and swap together, including tmpfs contents.
        pids: Processes and threads.
        cpus: CPUs' worth of time; None leaves it to the engine.
        tmp_bytes: Size of /tmp.
        workspace_bytes: Size of /workspace, the working directory.
        open_files: Descriptors per process.
        output_bytes: Stored bytes of stdout, and of stderr.
        output_tokens: Approximate tokens of both in the result.
        result_bytes: Largest value of the last expression, as JSON; a larger one is printed.
        frame_bytes: Longest line on the channel in either direction.
        tool_calls: Calls of a run in total.
        concurrent_calls: Calls at one time; further calls wait.
        out_bytes, out_files: The bytes and files that it may leave in `out/`.
        shown_bytes: Pictures in the result, as base64.
        directories: Whether the sandbox mounts the offered directories of the host.
    """

    timeout: float = 30.0
    longest_timeout: float = 600.0
    memory_bytes: int = 512 * MEBIBYTE
    pids: int = 128
    cpus: float | None = None
    tmp_bytes: int = 64 * MEBIBYTE
    workspace_bytes: int = 128 * MEBIBYTE
    open_files: int = 512
    output_bytes: int = 32 * MEBIBYTE
    output_tokens: int = 5_000
    result_bytes: int = 1 * MEBIBYTE
    frame_bytes: int = 64 * MEBIBYTE
    tool_calls: int = 10_000
    concurrent_calls: int = 256
    out_bytes: int = 64 * MEBIBYTE
    out_files: int = 100
    shown_bytes: int = 1 * MEBIBYTE
    directories: bool = False


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """A validated request to run a program.

    Attributes:
        servers: The servers to load; None means the servers that the code names.
        timeout: Seconds; None means the default.
        argv: The program's `sys.argv[1:]`.
        name: The name of the program's file; empty for none.
        principal: The user on whose behalf it runs; empty if unknown. Only runs of one principal
            may share a sandbox.
        owner: The only caller that may apply its plan or retry it: the principal, or over HTTP a
            digest of the caller's credentials. Callers without credentials share one owner.
        client: The client's statement of its name, for records only.
        mode: A "plan" holds back calls that change something; see `Plan`.
        retry_of: The earlier run whose recorded results answer repeated calls; empty for none.
        reads: Whether a retry repeats reads or uses their recorded results.
        session: The session's name or id; empty for none.
        end_session: Whether the session ends with this run, or at once without `code`.
        named_sessions: Whether a known caller may use the session's name instead of its id.
        packages: Requirements in addition to the program's own.
        loses_state: Whether new packages may cost state that the session cannot restore.
        ends_bridge: Whether the bridge ends with this run.
        run_id: Empty for a new one.
    """

    code: str
    servers: tuple[str, ...] | None = None
    timeout: float | None = None
    argv: tuple[str, ...] = ()
    name: str = ""
    principal: str = ""
    owner: str = ""
    client: str = ""
    mode: RunMode = "run"
    retry_of: str = ""
    reads: RetriedReads = "replay"
    session: str = ""
    end_session: bool = False
    named_sessions: bool = True
    files: tuple[InputFile, ...] = ()
    packages: tuple[str, ...] = ()
    loses_state: bool = False
    ends_bridge: bool = False
    profile: str = ""
    run_id: str = ""

    @property
    def is_identified(self) -> bool:
        """Whether its caller is known, so that its answers count as approvals.

        An HTTP caller is not: `owner` separates callers but proves no identity, and the caller may
        be the program itself.
        """
        return bool(self.principal)

    @property
    def may_need_packages(self) -> bool:
        return bool(self.packages) or SCRIPT_OPENING in self.code

    @property
    def ends_session_only(self) -> bool:
        return bool(self.session) and self.end_session and not self.code


@dataclass(frozen=True, kw_only=True)
class ApplyRequest:
    """A validated request to make a plan's held calls; for the fields see `RunRequest`."""

    plan_id: str
    principal: str = ""
    owner: str = ""
    client: str = ""
    run_id: str = ""

    @property
    def is_identified(self) -> bool:
        return bool(self.principal)


def owner_of(request: RunRequest) -> str:
    """Return the owner of a run's memories; empty for an HTTP caller without an identity."""
    known = request.owner or request.principal
    return PERSON if known in PERSON_OWNERS else known


def principal_of(request: RunRequest) -> str:
    """Return the principal that may list and review saved functions; empty means any."""
    return PERSON if request.principal in PERSON_OWNERS else request.principal


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
    """A finding of the reader, the guard or the preflight in a program's text.

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

    def count_bytes(self) -> int:
        """Return the bytes of the output, value, error and shown texts."""
        texts = [self.stdout, self.stderr, self.error, self.result_repr]
        texts += [item.text for item in self.shown]
        if self.has_result:
            # A value that is nested too deep counts nothing.
            with suppress(ValueError, TypeError, RecursionError):
                texts.append(json.dumps(self.result, ensure_ascii=False))
        return sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """A validated request to run a command or a pipeline.

    Attributes:
        stages: The words of each stage.
        workdir: Relative to the workspace's root.
        stdin: The input of the first stage.
        timeout: Seconds; None means the profile's.
        env: Variables for all stages; the profile limits which a call may set.
    """

    profile: str
    stages: tuple[tuple[str, ...], ...]
    workdir: str = ""
    stdin: str = ""
    timeout: float | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """The result of one stage of a pipeline.

    Attributes:
        words: The stage's words, without secrets.
        exit_code, signal: One of them is set unless the bridge ended the stage.
        stderr: The bounded error output.
        cut_short: Whether the next stage ended first.
        oom_killed: Whether the kernel killed a process of it for memory.
        not_started: Whether an earlier stage failed first.
    """

    words: tuple[str, ...]
    exit_code: int | None = None
    signal: int | None = None
    stderr: str = ""
    cut_short: bool = False
    oom_killed: bool = False
    not_started: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandResult(RunResult):
    """The result of a command or a pipeline.

    `stdout` is the output of the last stage; each stage has its own stderr. The keys of `truncated`
    are "stdout", "stderr" or "stderr of stage 2".

    Attributes:
        profile: The command profile.
        stages: The result of each stage.
    """

    profile: str = ""
    stages: tuple[StageResult, ...] = ()


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
        recorded=bool(error.run_id),
    )


def error_run(error: BridgeError, *, run_id: str = "") -> RunResult:
    return error_result(error, RunResult, run_id=run_id)


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
