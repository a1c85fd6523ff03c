"""The errors that the bridge reports, each with a stable code.

The bridge, its configuration, a container engine or a server could not do its part. A program that
fails is no error of the bridge, but a `RunResult`. The command line exits with 2 for what the
caller got wrong, 3 for sandboxes, 4 for servers and 1 for the rest.
"""

# A class says in the first line what went wrong, and then what to do: docs/reference has both.

from __future__ import annotations

from typing import ClassVar


class BridgeError(Exception):
    """The bridge failed; also the base of all its errors. Read its log.

    Attributes:
        code: Stable identifier, for scripts and for tests.
        exit_status: What the command line exits with.
        message: What went wrong, in words that a sandboxed program may see as well.
        host_detail: What only the user may see: paths of the host, the end of a server's stderr.
        remedy: What the reader can do about it; may be empty.
    """

    code: ClassVar[str] = "bridge"
    exit_status: ClassVar[int] = 1
    default_remedy: ClassVar[str] = ""

    def __init__(self, message: str, *, remedy: str | None = None, host_detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.host_detail = host_detail
        self.remedy = self.default_remedy if remedy is None else remedy

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.host_detail, self.remedy) if part)


class UsageError(BridgeError):
    """The caller asked for something that the bridge cannot do. Do what the message says."""

    code = "usage"
    exit_status = 2


class SettingsError(UsageError):
    """A flag, a variable or a key of `config.toml` does not parse; the message names it."""

    code = "settings"


class InvalidRequestError(UsageError):
    """The arguments of a tool call are wrong; the message says what to pass instead."""

    code = "invalid_request"


class HeldResultError(InvalidRequestError):
    """A call in a plan uses the result of a held call where that is not possible."""

    code = "held_result"


class UnknownServerError(UsageError):
    """A server was named that no configuration defines. List them with `servers`."""

    code = "unknown_server"


class UnknownPlanError(UsageError):
    """This caller has no such plan, or it was used or has expired. Make the plan again."""

    code = "unknown_plan"


class UnknownRunError(UsageError):
    """This caller has no journal of such a run. Run the program without `retry_of`."""

    code = "unknown_run"


class UnknownArtifactError(UsageError):
    """Nothing is kept by that name for this caller. List what is kept with `artifacts list`."""

    code = "unknown_artifact"


class UnknownSessionError(UsageError):
    """This caller has no such session. Start one by running with its name."""

    code = "unknown_session"


class UnknownSkillError(UsageError):
    """No skill of that name is saved. List them with `skills list`."""

    code = "unknown_skill"


class UneditableError(UsageError):
    """A client's file cannot be changed exactly; it is unchanged. Do what the message says.

    Attributes:
        reason: Why not, as a clause.
        line, column: Where in the file, from 1; 0 if it is about the file as a whole.
        path: The file.
    """

    code = "uneditable_file"

    def __init__(
        self, reason: str, *, line: int = 0, column: int = 0, path: str = "", placed: bool = False
    ) -> None:
        where = f" (line {line}, column {column})" if line and not placed else ""
        super().__init__(f"{path or 'The file'} is left as it is: {reason}{where}.")
        self.reason, self.line, self.column, self.path = reason, line, column, path


class PackageRefusedError(UsageError):
    """A package may not be used here, or does not fit. Allow it in `[dependencies]`."""

    code = "package_refused"


class SandboxError(BridgeError):
    """The bridge could not start a sandbox, or lost it."""

    code = "sandbox"
    exit_status = 3


class NoSandboxError(SandboxError):
    """Nothing on this machine can run code in isolation."""

    code = "no_sandbox"
    default_remedy = "Install bubblewrap, podman or docker; `mcp-code-bridge doctor` says how."


class EngineNotFoundError(SandboxError):
    """The container engine is not installed. Install it, or choose another runtime."""

    code = "engine_not_found"


class EngineDownError(SandboxError):
    """The container engine is installed but does not answer. Start it."""

    code = "engine_down"


class EnginePermissionError(SandboxError):
    """The container engine's socket refuses this user. Use an account that may use the engine."""

    code = "engine_permission"


class ImageMissingError(SandboxError):
    """The runtime image is not present on the engine."""

    code = "image_missing"
    default_remedy = "Run `mcp-code-bridge image build`."


class ImagePullError(SandboxError):
    """The runtime image could not be fetched."""

    code = "image_pull_failed"
    default_remedy = "Run `mcp-code-bridge image build --offline` to build it without a registry."


class ImageBuildError(SandboxError):
    """The runtime image could not be built. Read the engine's output in the message."""

    code = "image_build_failed"


class OciRuntimeError(SandboxError):
    """The OCI runtime (such as crun) cannot start a container. Set `oci_runtime` to another."""

    code = "oci_runtime_broken"


class CgroupError(SandboxError):
    """The engine could not apply resource limits. Run `mcp-code-bridge doctor`."""

    code = "cgroup"


class LaunchError(SandboxError):
    """A sandbox was started but never became usable. Run `mcp-code-bridge doctor`."""

    code = "launch_failed"


class BrokenIsolationError(SandboxError):
    """A sandbox started, but its check from inside shows that a protection is missing."""

    code = "isolation_broken"
    default_remedy = (
        "Its launcher does not do what it must: reinstall it, or set MCP_BRIDGE_RUNTIME to "
        "another backend."
    )


class WrongSystemError(SandboxError):
    """The backend is for another operating system."""

    code = "wrong_system"
    default_remedy = "Leave MCP_BRIDGE_RUNTIME at auto, which takes what works here."


class ChannelClosedError(SandboxError):
    """The byte stream to a sandbox ended while it was still needed. Run the program again."""

    code = "channel_closed"


class ClusterDownError(EngineDownError):
    """A cluster's API server does not answer. See whether it is up, and which context is used."""

    code = "cluster_down"
    default_remedy = "See whether the cluster is up, and `context` in [kubernetes]."


class ClusterRefusedError(EnginePermissionError):
    """A cluster refuses the bridge's account. Log in again, or give it the rights it needs."""

    code = "cluster_refused"
    default_remedy = (
        "Log in again, or give the account create, get, list, watch, patch and delete of pods, and "
        "get and create of pods/attach."
    )


class CapacityError(SandboxError):
    """A cluster or the hosts have no room for a sandbox. Try again later, or make room."""

    code = "no_room"
    default_remedy = (
        "Try again later; or add nodes, hosts or slots, or ask for less memory per run."
    )


class QuotaError(CapacityError):
    """A namespace's quota leaves no pod. Try again later, or raise the quota."""

    code = "quota"
    default_remedy = "Try again later, or raise the namespace's ResourceQuota."


class SandboxLostError(ChannelClosedError):
    """A sandbox on another machine was lost. See on the servers which calls were made."""

    code = "sandbox_lost"
    default_remedy = (
        "What it had called may have happened: see the receipt before running it again."
    )


class NodeLostError(SandboxLostError):
    """A sandbox's machine does not answer, or was shut down. See on the servers what was called."""

    code = "node_lost"


class PodEvictedError(SandboxLostError):
    """A cluster took a pod's place from it. See on the servers what was called."""

    code = "pod_evicted"


class PodDeadlineError(SandboxLostError):
    """A pod lived longer than it may. Use a shorter session; see what was called."""

    code = "pod_deadline"


class NotStartedError(ChannelClosedError):
    """A sandbox was gone or took nothing in, and nothing was heard of the program given to it.

    Nothing that it did has left the sandbox: it can be started in another one.
    """


class RefusedError(BridgeError):
    """A run asked for more than it was given."""

    code = "refused"


class CallDeniedError(RefusedError):
    """A run may not make this call. Ask `policy explain` why."""

    code = "call_denied"


class CallBudgetError(RefusedError):
    """A run has made all the calls it may make. Make fewer calls, or raise the budget."""

    code = "call_budget"


class ApprovalNeededError(RefusedError):
    """A person has to allow a call, and no person can be asked. Allow it in the policy."""

    code = "approval_needed"


class ApprovalRefusedError(RefusedError):
    """A person was asked to allow a call, and refused."""

    code = "approval_refused"


class OutcomeUnknownError(RefusedError):
    """A retry would repeat a call that may have happened. See on the server whether it did."""

    code = "outcome_unknown"


class AuditError(RefusedError):
    """A call was not made because it could not be written to the audit log."""

    code = "audit_unavailable"


class AuditBudgetError(AuditError):
    """The calls filled what the audit log has for one run. Make the rest in another run."""

    code = "audit_budget"

    def __init__(self, budget: int) -> None:
        message = (
            f"The calls of this run have filled the {budget:,} bytes that the audit log has for "
            "one run, and no call is made unrecorded."
        )
        super().__init__(message, remedy="Make the others in another run, or with less arguments.")


class UpstreamError(BridgeError):
    """One of the user's MCP servers could not do its part.

    Attributes:
        server: The server's own name.
        doubtful: Whether what was asked of it may have been done all the same; so it is unless
            the class, or whoever raises it, knows that it was never sent or was answered.
    """

    code = "upstream"
    exit_status = 4
    doubtful_unless_said: ClassVar[bool] = True

    def __init__(
        self,
        message: str,
        *,
        server: str,
        remedy: str | None = None,
        host_detail: str = "",
        doubtful: bool | None = None,
    ) -> None:
        super().__init__(message, remedy=remedy, host_detail=host_detail)
        self.server = server
        self.doubtful = self.doubtful_unless_said if doubtful is None else doubtful


class ServerStartError(UpstreamError):
    """A server could not be started or reached. Its remedy names files of the host."""

    code = "server_start_failed"
    doubtful_unless_said = False


class LoginRequiredError(ServerStartError):
    """A server wants the user to log in first: `mcp-code-bridge login SERVER`."""

    code = "login_required"


class LoginFailedError(UpstreamError):
    """A login to a server failed."""

    code = "login_failed"
    doubtful_unless_said = False


class ServerLostError(UpstreamError):
    """A server went away during a request. See on the server whether the call happened."""

    code = "server_lost"


class CallTimeoutError(UpstreamError):
    """A server did not answer within the call's time. Raise `call_timeout`."""

    code = "call_timeout"


class MessageTooLargeError(UpstreamError):
    """A server sent a message beyond the size cap."""

    code = "message_too_large"


class ToolCallError(UpstreamError):
    """A server answered a request with a protocol error.

    Attributes:
        rpc_code: The JSON-RPC error code.
        data: The JSON-RPC error's data, if any.
        by_tool: Whether the tool itself failed, and its server said so by such an error.
    """

    code = "tool_call_refused"
    doubtful_unless_said = False

    def __init__(
        self,
        message: str,
        *,
        server: str,
        rpc_code: int,
        data: object = None,
        remedy: str | None = None,
        doubtful: bool | None = None,
        by_tool: bool = False,
    ) -> None:
        super().__init__(message, server=server, remedy=remedy, doubtful=doubtful)
        self.rpc_code = rpc_code
        self.data = data
        self.by_tool = by_tool


class CannotAskError(UpstreamError):
    """A server has a question, and no person can be asked.

    Attributes:
        why: The message without what is quoted in it of the question, or of what the client said.
    """

    code = "cannot_ask"
    doubtful_unless_said = False

    def __init__(
        self, message: str, *, server: str = "", remedy: str | None = None, quoted: str = ""
    ) -> None:
        super().__init__(f"{message} {quoted}".rstrip(), server=server, remedy=remedy)
        self.why = message


class SearchUnavailableError(BridgeError):
    """This Python has no SQLite, or one without full-text search."""

    code = "search_unavailable"
    default_remedy = (
        "Use a Python whose sqlite3 module has FTS5, as those of Debian, Homebrew, uv and "
        "python.org do; or list a server's tools instead."
    )

    def __init__(self) -> None:
        super().__init__("Tools cannot be searched: this Python's SQLite has no full-text search.")


class ArtifactStoreError(BridgeError):
    """What a run left cannot be kept: the disk is full, or not writable. Make room."""

    code = "artifact_store"


class ArtifactQuotaError(ArtifactStoreError):
    """The limit of what is kept, of a run or a caller, is reached. Use `artifacts rm`."""

    code = "artifact_quota"


class SessionLimitError(BridgeError):
    """The limit of open sessions is reached. End one, or raise `sessions`."""

    code = "session_limit"


class OverloadedError(BridgeError):
    """Too many runs are under way, and no more may wait. Try again later, or raise `runs`."""

    code = "overloaded"


class DrainingError(BridgeError):
    """This bridge is ending, and begins no more runs. Try again: another replica takes it."""

    code = "draining"
    default_remedy = "Make the request again: another replica takes it, or this one once it is up."


class ElsewhereError(InvalidRequestError):
    """Another replica has this session, question or task. Send the request to that one."""

    code = "elsewhere"


class ChangedMeanwhileError(BridgeError):
    """Another program kept writing a client's file. Close the client, then try again."""

    code = "changed_meanwhile"


class PackageUnavailableError(BridgeError):
    """A package is allowed, but could not be found or fetched."""

    code = "package_unavailable"


class LibraryError(BridgeError):
    """A skill or a memory cannot be saved or read."""

    code = "library"


class StoreUnavailableError(BridgeError):
    """The database that `MCP_BRIDGE_STORE` names cannot be used. See what `doctor` says of it."""

    code = "store_unavailable"
    default_remedy = "Try again soon; `mcp-code-bridge doctor` tries the store."
