"""The values that the bridge's parts hand to each other.

Owns shapes only: frozen, keyword-only dataclasses and the literal types of their fields. No I/O,
no parsing, no behaviour beyond what a value can say about itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Json = Any
"""A value that `json.dumps` accepts; checked where it enters, not by the type checker."""

Transport = Literal["stdio", "http", "sse"]

Status = Literal["success", "error", "timeout", "validation_error"]

Reason = Literal[
    "exception",
    "exit",
    "oom",
    "crash",
    "timeout",
    "cancelled",
    "validation",
    "policy",
    "engine",
]

Severity = Literal["deny", "note"]

FindingSource = Literal["guard", "preflight"]

Effect = Literal["read", "write", "destructive"]
"""What a call does to the world, as far as anybody vouches for it; a write unless somebody does."""

Action = Literal["allow", "ask", "deny"]
"""What a policy says of a call, from the mildest to the strictest."""

RunMode = Literal["run", "plan"]

RetriedReads = Literal["replay", "refresh"]

MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a server's definition was found.

    Attributes:
        client: The client whose configuration it is, as shown to the user ("Claude Code").
        scope: Which of the client's scopes ("user", "local", "project", "managed", ...).
        path: The file, absolute.
        key: The place in the file, dotted ("mcpServers.github").
    """

    client: str
    scope: str
    path: str
    key: str

    def __str__(self) -> str:
        return f"{self.path} ({self.key})" if self.key else self.path


@dataclass(frozen=True, kw_only=True)
class OAuthHints:
    """What a configuration says about logging in to a remote server; all of it may be empty.

    Attributes:
        client_id: Of a client registered beforehand; without one the bridge registers itself.
        client_secret: Of that client.
        scopes: To ask for; those that the server names if empty.
        callback_port: Of the loopback redirect; any free one if None.
    """

    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    scopes: tuple[str, ...] = ()
    callback_port: int | None = None


@dataclass(frozen=True, kw_only=True)
class ToolFilter:
    """Which of a server's tools its configuration lets through.

    Attributes:
        only: Names of those that are; None for all.
        without: Names of those that are not, whatever `only` says.
    """

    only: frozenset[str] | None = None
    without: frozenset[str] = frozenset()

    def admits(self, tool: str) -> bool:
        """Whether a tool of this name is let through."""
        return tool not in self.without and (self.only is None or tool in self.only)


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """One MCP server, ready to be connected to: variables expanded, dialect forgotten.

    Attributes:
        command, args, env, cwd: For `stdio`. `env` holds only what the entry adds.
        url, headers: For `http` and `sse`.
        start_timeout, call_timeout: Seconds; None leaves the bridge's default.
        tools: Which of its tools may be seen and called.
        oauth: How to log in to it; None if the configuration says nothing of that.
        also: Where else the same server was found; what differs there is in `differences`. Both
            are for people to read: a server is the same whatever they say.
    """

    name: str
    transport: Transport
    source: Source
    # Out of the repr: arguments, addresses and headers carry secrets as often as `env` does.
    command: str = field(default="", repr=False)
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    description: str = ""
    start_timeout: float | None = None
    call_timeout: float | None = None
    tools: ToolFilter = field(default_factory=ToolFilter)
    oauth: OAuthHints | None = None
    also: tuple[Source, ...] = field(default=(), compare=False)
    differences: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool of one server, as its server describes it."""

    server: str
    name: str
    title: str = ""
    description: str = ""
    input_schema: Mapping[str, Json] = field(default_factory=dict)
    output_schema: Mapping[str, Json] | None = None
    annotations: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run may use. Every field is enforced on the host or by the kernel.

    Attributes:
        timeout: Seconds of wall time for the program.
        longest_timeout: What may be asked for instead.
        memory_bytes: RAM and swap together; tmpfs contents count towards it.
        pids: Processes and threads.
        cpus: CPUs' worth of time; None leaves it to the engine.
        tmp_bytes, workspace_bytes: Sizes of the two writable directories.
        open_files: Descriptors per process.
        output_bytes: Kept of stdout, and as much again of stderr.
        result_bytes: Largest value of the last expression, as JSON.
        frame_bytes: Longest line on the channel in either direction.
        tool_calls: Calls a run may make in all.
        concurrent_calls: Calls that may be under way at once; more wait.
    """

    timeout: float = 30.0
    longest_timeout: float = 120.0
    memory_bytes: int = 512 * MEBIBYTE
    pids: int = 128
    cpus: float | None = None
    tmp_bytes: int = 64 * MEBIBYTE
    workspace_bytes: int = 128 * MEBIBYTE
    open_files: int = 1024
    output_bytes: int = 256 * 1024
    result_bytes: int = 1 * MEBIBYTE
    frame_bytes: int = 64 * MEBIBYTE
    tool_calls: int = 10_000
    concurrent_calls: int = 256


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """One validated wish to run a program.

    Attributes:
        servers: Names to load; None means those that the code refers to.
        timeout: Seconds; None means the default.
        argv: What the program finds in `sys.argv[1:]`.
        principal: On whose behalf it runs, as far as that is known; runs may share a sandbox only
            with those of the same. Empty when several callers cannot be told apart.
        owner: Who alone may apply its plan or retry it: the principal, and over HTTP a digest of
            what the caller authorised itself with. Callers without either share one.
        mode: In a "plan" calls that change something are held back; see `Plan`.
        retry_of: Run whose recorded results answer the calls that it made already; empty for none.
        reads: Whether a retry's reads are answered so too, or made again.
    """

    code: str
    servers: tuple[str, ...] | None = None
    timeout: float | None = None
    argv: tuple[str, ...] = ()
    principal: str = ""
    owner: str = ""
    mode: RunMode = "run"
    retry_of: str = ""
    reads: RetriedReads = "replay"


@dataclass(frozen=True, kw_only=True)
class ApplyRequest:
    """One validated wish to perform a plan's held calls. See `RunRequest` for the fields."""

    plan_id: str
    principal: str = ""
    owner: str = ""


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


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run in plan mode would have done.

    Attributes:
        plan_id: What it is applied by; empty if there is nothing to apply.
        seconds: For which it can be applied.
        stopped: Why the program did not get to its end; empty if it did.
        stale: What it read without the changes that calls held by then will make, in words.
    """

    plan_id: str
    seconds: float
    calls: tuple[HeldCall, ...] = ()
    stopped: str = ""
    stale: str = ""


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What a run did, and what of it did not reach the model.

    Attributes:
        calls: Server to the calls that went out to it.
        replayed, held, refused, unknown: Calls answered from a journal, held back for a plan, not
            allowed, and sent without anybody knowing what became of them.
        result_bytes: Of what servers returned.
        returned_bytes: Of what the run passed on.
        tokens_kept: Of the former, about, that stayed out of the conversation.
        code_ms, calls_ms, waiting_ms: Time in the program itself, in calls, and waiting for people.
        audit: Hash of the last record of the audit log; empty without one.
    """

    calls: Mapping[str, int] = field(default_factory=dict)
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
        stdout, stderr: Text as written, cut only as `truncated` says.
        has_result: Whether the last expression had a value that JSON can hold.
        result: That value.
        result_repr: `repr` of a value that JSON cannot hold, cut to a bound.
        truncated: Stream name to the number of bytes dropped.
        findings: What the static guard has to say, in the order of the program's lines.
        findings_omitted: How many more there were.
        plan: What a run in plan mode holds back.
        replayed: Calls that a retry did not make again.
        unused: Calls that change something which the run before made, and a retry did not want.
        refused: Calls that were not allowed.
        unknown: Calls of which nobody knows whether they happened.
        receipt: What it did and cost; None where no program ran.
    """

    run_id: str
    status: Status
    summary: str
    reason: Reason | None = None
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


@dataclass(frozen=True, kw_only=True)
class CommandRequest:
    """One validated wish to run a command or a pipeline.

    Attributes:
        profile: Of the configuration's command profiles.
        stages: The words of each.
        workdir: Relative to the workspace's root.
        stdin: What the first stage reads.
        timeout: Seconds; None means the profile's.
    """

    profile: str
    stages: tuple[tuple[str, ...], ...]
    workdir: str = ""
    stdin: str = ""
    timeout: float | None = None


@dataclass(frozen=True, kw_only=True)
class StageResult:
    """How one stage of a pipeline ended.

    Attributes:
        words: As they were given, without secrets.
        exit_code, signal: Of which one is known, unless it was ended from here.
        stderr: Cut to a bound.
        cut_short: Whether the stage after it ended first, so that it could not write on.
        oom_killed: Whether the kernel ended something of it for memory.
    """

    words: tuple[str, ...]
    exit_code: int | None = None
    signal: int | None = None
    stderr: str = ""
    cut_short: bool = False
    oom_killed: bool = False


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command or a pipeline ended, with all that is to be shown of it.

    Attributes:
        reason: None exactly when `status` is "success".
        stdout: Of the last stage.
        truncated: Stream to the number of bytes dropped: "stdout", "stderr" or "stderr of stage 2".
    """

    run_id: str
    status: Status
    summary: str
    profile: str = ""
    reason: Reason | None = None
    exit_code: int | None = None
    stages: tuple[StageResult, ...] = ()
    stdout: str = ""
    error: str = ""
    timeout_seconds: float = 0.0
    truncated: Mapping[str, int] = field(default_factory=dict)
    isolation: Isolation | None = None
    usage: Usage = field(default_factory=Usage)
