"""The errors that the bridge reports, each with a stable code.

They mean that the bridge, its configuration, a sandbox or a server failed. A program's failure is a
`RunResult`. The command line exits with 2 for usage errors, 3 for sandboxes, 4 for servers and 1
for others.
"""

# A class's first line has the problem, then the next step: docs/reference shows both.
# An error has a class if code catches it by class, else a row in `CODES`.

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple


class BridgeError(Exception):
    """The bridge failed. Read its log.

    Attributes:
        code: Stable identifier for scripts and tests.
        exit_status: Exit status of the command line.
        message: The problem, in words that a sandboxed program may see.
        host_detail: Details for the user only, such as host paths or a server's stderr.
        remedy: The reader's next step; may be empty.
        run_id: The run that failed; empty for a run without a record.
    """

    run_id: str = ""
    code: str = "bridge"
    exit_status: ClassVar[int] = 1
    default_remedy: ClassVar[str] = ""

    def __init_subclass__(cls, *, code: str = "", exit_status: int = 0) -> None:
        if code:
            cls.code = code
        cls.exit_status = exit_status or cls.exit_status

    def __init__(
        self, message: str, *, code: str = "", remedy: str | None = None, host_detail: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code or self.code
        self.message = message
        self.host_detail = host_detail
        known = code in ("", type(self).code)
        default = (not known and CODES[code].remedy) or self.default_remedy
        self.remedy = default if remedy is None else remedy

    def __str__(self) -> str:
        return " ".join(part for part in (self.message, self.host_detail, self.remedy) if part)


class UsageError(BridgeError, code="usage", exit_status=2):
    """The bridge cannot do what the caller requested. Follow the message."""


class SettingsError(UsageError, code="settings"):
    """A flag, variable or key of `config.toml` is invalid; the message names it."""


class InvalidRequestError(UsageError, code="invalid_request"):
    """The arguments of a tool call are invalid. Pass what the message names."""


class UnknownError(UsageError, code="unknown"):
    """A name is unknown for this caller. The message lists the known names."""


class UneditableError(UsageError, code="uneditable_file"):
    """A client's file cannot be edited exactly and is unchanged. Follow the message.

    Attributes:
        reason: The reason, as a clause.
    """

    def __init__(self, reason: str, *, path: str = "") -> None:
        super().__init__(f"{path or 'The file'} is left as it is: {reason}.")
        self.reason = reason


class PackageRefusedError(UsageError, code="package_refused"):
    """A package is not allowed here, or does not fit. Allow it in `[dependencies]`."""


class SandboxError(BridgeError, code="sandbox", exit_status=3):
    """The bridge could not start a sandbox, or lost it."""


class EngineDownError(SandboxError, code="engine_down"):
    """The container engine is installed but does not answer. Start it."""


class LaunchError(SandboxError, code="launch_failed"):
    """A sandbox started but never became usable. Run `mcp-code-bridge doctor`."""


class ChannelClosedError(SandboxError, code="channel_closed"):
    """The channel to a sandbox closed during a run. Run the program again."""


class SandboxLostError(ChannelClosedError, code="sandbox_lost"):
    """A sandbox on another machine was lost, and not by its program. Run the program again."""

    default_remedy = (
        "Run this again, unchanged, with `retry_of`: calls that were answered are not repeated."
    )


class NotStartedError(ChannelClosedError):
    """A sandbox was lost before its program started.

    The program had no effect, so it can start in another sandbox.
    """


class RefusedError(BridgeError, code="refused"):
    """A run requested more than its grant."""

    waited_ms = 0  # How long the call waited for the user's answer.


class CallDeniedError(RefusedError, code="call_denied"):
    """A run may not make this call. Ask `policy explain` for the rule."""


class ApprovalNeededError(RefusedError, code="approval_needed"):
    """A call needs approval, and no user can be asked. Allow it in the policy."""


class ApprovalRefusedError(RefusedError, code="approval_refused"):
    """The user refused a call."""


class AuditError(RefusedError, code="audit_unavailable"):
    """A call was refused because the audit log, or the shared store, could not record it."""


class UpstreamError(BridgeError, code="upstream", exit_status=4):
    """An MCP server of the user failed.

    Attributes:
        server: The server's own name.
        doubtful: Whether the request may have had an effect. True unless the bridge knows that
            it was never sent or was answered.
    """

    doubtful_unless_said: ClassVar[bool] = True

    def __init__(
        self,
        message: str,
        *,
        server: str,
        code: str = "",
        remedy: str | None = None,
        host_detail: str = "",
        doubtful: bool | None = None,
    ) -> None:
        super().__init__(message, code=code, remedy=remedy, host_detail=host_detail)
        self.server = server
        self.doubtful = self.doubtful_unless_said if doubtful is None else doubtful


class ServerStartError(UpstreamError, code="server_start_failed"):
    """A server could not be started or reached. Its remedy names host files."""

    doubtful_unless_said = False


class LoginRequiredError(ServerStartError, code="login_required"):
    """A server requires a login: `mcp-code-bridge login SERVER`."""


class LoginFailedError(UpstreamError, code="login_failed"):
    """A login to a server failed."""

    doubtful_unless_said = False


class CallTimeoutError(UpstreamError, code="call_timeout"):
    """A server did not answer within the call's time limit. Raise `call_timeout`."""


class ToolCallError(UpstreamError, code="tool_call_refused"):
    """A server answered a request with a protocol error.

    Attributes:
        rpc_code: The JSON-RPC error code.
        data: The JSON-RPC error's data, if any.
        by_tool: Whether the error reports a failure of the tool itself.
    """

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


class CannotAskError(UpstreamError, code="cannot_ask"):
    """A server has a question, and no user can be asked.

    Attributes:
        why: The message without quotes from the question or from the client's answer.
        automatic: Whether the client answered without its user.
    """

    doubtful_unless_said = False

    def __init__(
        self,
        message: str,
        *,
        server: str = "",
        remedy: str | None = None,
        quoted: str = "",
        automatic: bool = False,
    ) -> None:
        super().__init__(f"{message} {quoted}".rstrip(), server=server, remedy=remedy)
        self.why = message
        self.automatic = automatic


class ArtifactStoreError(BridgeError, code="artifact_store"):
    """An artifact cannot be stored: the disk is full or not writable. Free space."""


class PackageUnavailableError(BridgeError, code="package_unavailable"):
    """A package is allowed, but could not be found or downloaded."""


class LibraryError(BridgeError, code="library"):
    """A saved function or a memory cannot be saved or read."""


class Kind(NamedTuple):
    """The description of an error code without a class."""

    family: type[BridgeError]  # The class that is raised.
    meaning: str  # The problem.
    advice: str = ""  # The next step, for the reference.
    remedy: str = ""  # The default remedy of such an error; empty for the class's.


CODES: Mapping[str, Kind] = {
    "held_result": Kind(
        InvalidRequestError,
        "A call in a plan uses the result of a held call where that is not possible.",
    ),
    "elsewhere": Kind(
        InvalidRequestError,
        "Another replica has this session, question or task.",
        "Send the request to that one.",
    ),
    "unknown_server": Kind(
        UnknownError,
        "A server was named that no configuration defines.",
        "List them with `servers`.",
    ),
    "unknown_plan": Kind(
        UnknownError,
        "This caller has no such plan, or it was used or has expired.",
        "Make the plan again.",
    ),
    "unknown_run": Kind(
        UnknownError,
        "This caller has no such run, or its journal is gone.",
        "Run the program without `retry_of`.",
    ),
    "unknown_artifact": Kind(
        UnknownError,
        "This caller has no artifact of that name.",
        "List the artifacts with `artifacts list`.",
    ),
    "unknown_session": Kind(
        UnknownError, "This caller has no such session.", "Start one by running with its name."
    ),
    "unknown_skill": Kind(
        UnknownError, "No saved function has that name.", "List them with `skills list`."
    ),
    "no_sandbox": Kind(
        SandboxError,
        "No backend on this machine can run code in isolation.",
        remedy="Install bubblewrap, podman or docker; `mcp-code-bridge doctor` explains how.",
    ),
    "engine_not_found": Kind(
        SandboxError,
        "The container engine is not installed.",
        "Install it, or choose another runtime.",
    ),
    "engine_permission": Kind(
        SandboxError,
        "The container engine's socket refuses this user.",
        "Use an account that may use the engine.",
    ),
    "image_missing": Kind(
        SandboxError,
        "The runtime image is not present on the engine.",
        remedy="Run `mcp-code-bridge image build`.",
    ),
    "image_pull_failed": Kind(
        SandboxError,
        "The runtime image could not be fetched.",
        remedy="Run `mcp-code-bridge image build --offline` to build it without a registry.",
    ),
    "image_build_failed": Kind(
        SandboxError,
        "The runtime image could not be built.",
        "Read the engine's output in the message.",
    ),
    "oci_runtime_broken": Kind(
        LaunchError,
        "The OCI runtime (such as crun) cannot start a container.",
        "Set `oci_runtime` to another.",
    ),
    "cgroup": Kind(
        LaunchError, "The engine could not apply resource limits.", "Run `mcp-code-bridge doctor`."
    ),
    "isolation_broken": Kind(
        SandboxError,
        "A sandbox started, but its check from inside shows that a protection is missing.",
        remedy="Its launcher is broken: reinstall it, or set MCP_BRIDGE_RUNTIME to "
        "another backend.",
    ),
    "wrong_system": Kind(
        SandboxError,
        "The backend is for another operating system.",
        remedy="Set MCP_BRIDGE_RUNTIME to auto, which selects a backend that works here.",
    ),
    "cluster_down": Kind(
        EngineDownError,
        "A cluster's API server does not answer.",
        remedy="Check whether the cluster is up, and `context` in [kubernetes].",
    ),
    "cluster_refused": Kind(
        SandboxError,
        "A cluster refuses the bridge's account.",
        remedy="Log in again, or give the account create, get, list, patch and delete of pods and "
        "leases, get and create of pods/attach, and list of resourcequotas.",
    ),
    "quota": Kind(
        SandboxError,
        "A namespace's quota leaves no pod.",
        remedy="Try again later, or raise the namespace's ResourceQuota.",
    ),
    "no_room": Kind(
        SandboxError,
        "A cluster or the hosts have no room for a sandbox.",
        remedy="Try again later; or add nodes, hosts or slots, or ask for less memory per run.",
    ),
    "pod_deadline": Kind(SandboxLostError, "A pod exceeded its deadline."),
    "call_budget": Kind(
        RefusedError,
        "A run has used up its budget of calls.",
        "Make fewer calls, or raise the budget.",
    ),
    "outcome_unknown": Kind(
        RefusedError,
        "A retry would repeat a call that may have happened.",
        "See on the server whether it did.",
    ),
    "answered_automatically": Kind(
        ApprovalNeededError,
        "A client answered a question itself, so no user was asked.",
        "Allow the call in the policy.",
    ),
    "audit_budget": Kind(
        AuditError,
        "The calls filled the audit log's space for one run.",
        remedy="Make the remaining calls in another run, or with smaller arguments.",
    ),
    "server_lost": Kind(
        UpstreamError,
        "A server went away during a request.",
        "See on the server whether the call happened.",
    ),
    "message_too_large": Kind(UpstreamError, "A server sent a message above the size limit."),
    "artifact_quota": Kind(
        ArtifactStoreError,
        "A run or a caller has reached its limit of artifacts.",
        "Use `artifacts rm`.",
    ),
    "search_unavailable": Kind(
        BridgeError,
        "This Python has no SQLite, or one without full-text search.",
        remedy="Use a Python whose sqlite3 module has FTS5, as those of Debian, Homebrew, uv and "
        "python.org do; or list a server's tools instead.",
    ),
    "session_limit": Kind(
        BridgeError, "The limit of open sessions is reached.", "End one, or raise `sessions`."
    ),
    "overloaded": Kind(
        BridgeError,
        "Too many runs are active, and the queue is full.",
        "Try again later, or raise `runs`.",
    ),
    "draining": Kind(
        BridgeError,
        "This bridge is stopping and starts no more runs.",
        remedy="Repeat the request: another replica, or this one after its restart, accepts it.",
    ),
    "changed_meanwhile": Kind(
        BridgeError,
        "Another program kept changing a client's file.",
        "Close the client, then try again.",
    ),
    "store_unavailable": Kind(
        BridgeError,
        "The database that `MCP_BRIDGE_STORE` names cannot be used.",
        remedy="Try again soon; `mcp-code-bridge doctor` checks the store.",
    ),
}
"""The error codes without their own class."""
