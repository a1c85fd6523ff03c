"""Every fault the bridge can report, one class per fault that is caught apart or seen by its code.

The user's program failing is not here: that is a `RunResult`. What is here means that the bridge,
its configuration, an engine or a server could not do its part. Owns the stable codes and the exit
statuses: 2 for what the caller got wrong, 3 for sandboxes, 4 for servers, 1 for the rest.
"""

from __future__ import annotations

from typing import ClassVar


class BridgeError(Exception):
    """Base of all the bridge's own errors.

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
    """The caller asked for something that cannot be."""

    code = "usage"
    exit_status = 2


class SettingsError(UsageError):
    """A flag, a variable or a configuration key does not parse."""

    code = "settings"


class InvalidRequestError(UsageError):
    """The arguments of a run are unusable."""

    code = "invalid_request"


class HeldResultError(InvalidRequestError):
    """A call in a plan is made with what a held call is going to return, where that cannot be."""

    code = "held_result"


class UnknownServerError(UsageError):
    """A server was named that no configuration defines."""

    code = "unknown_server"


class UnknownPlanError(UsageError):
    """There is no such plan for this caller: it was used, has expired, or never was."""

    code = "unknown_plan"


class UnknownRunError(UsageError):
    """There is no journal of such a run for this caller."""

    code = "unknown_run"


class UnknownArtifactError(UsageError):
    """Nothing is kept by that name, or not for whoever asks."""

    code = "unknown_artifact"


class UnknownSessionError(UsageError):
    """There is no such session, or it is somebody else's."""

    code = "unknown_session"


class UnknownSkillError(UsageError):
    """No skill of that name is saved."""

    code = "unknown_skill"


class PackageRefusedError(UsageError):
    """A package may not be used here, or does not fit."""

    code = "package_refused"


class SandboxError(BridgeError):
    """The bridge could not give the code a sandbox, or lost it."""

    code = "sandbox"
    exit_status = 3


class NoSandboxError(SandboxError):
    """Nothing on this machine can run code in isolation."""

    code = "no_sandbox"
    default_remedy = "Install podman or docker, then run `mcp-code-bridge doctor`."


class EngineNotFoundError(SandboxError):
    """The container engine is not installed."""

    code = "engine_not_found"


class EngineDownError(SandboxError):
    """The container engine is installed but does not answer."""

    code = "engine_down"


class EnginePermissionError(SandboxError):
    """The container engine's socket refuses this user."""

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
    """The runtime image could not be built."""

    code = "image_build_failed"


class OciRuntimeError(SandboxError):
    """The OCI runtime (crun, runc, runsc, ...) cannot start a container."""

    code = "oci_runtime_broken"


class CgroupError(SandboxError):
    """The engine could not apply resource limits."""

    code = "cgroup"


class LaunchError(SandboxError):
    """A sandbox was started but never became usable."""

    code = "launch_failed"


class BrokenIsolationError(SandboxError):
    """A sandbox came up, and is seen from inside to lack what keeps programs in."""

    code = "isolation_broken"
    default_remedy = (
        "What started it does not do what it was told: reinstall it, or set MCP_BRIDGE_RUNTIME to "
        "another backend."
    )


class WrongSystemError(SandboxError):
    """The backend is for another operating system."""

    code = "wrong_system"
    default_remedy = "Leave MCP_BRIDGE_RUNTIME at auto, which takes what works here."


class ChannelClosedError(SandboxError):
    """The byte stream to a sandbox ended while it was still needed."""

    code = "channel_closed"


class NotStartedError(ChannelClosedError):
    """A sandbox was gone or took nothing in, and nothing was heard of the program given to it.

    Whatever that may have done, nothing of it has left the sandbox: it can be started elsewhere.
    """


class RefusedError(BridgeError):
    """A run asked for more than it was given."""

    code = "refused"


class CallDeniedError(RefusedError):
    """A run may not make this call."""

    code = "call_denied"


class CallBudgetError(RefusedError):
    """A run has made all the calls it may make."""

    code = "call_budget"


class ApprovalNeededError(RefusedError):
    """A person has to allow a call, and there is nobody who could be asked."""

    code = "approval_needed"


class ApprovalRefusedError(RefusedError):
    """A person was asked whether a call is allowed, and did not allow it."""

    code = "approval_refused"


class OutcomeUnknownError(RefusedError):
    """A retry wants a call again that may have happened: its answer never came."""

    code = "outcome_unknown"


class AuditError(RefusedError):
    """A call could not be written to the audit log, and is not made therefore."""

    code = "audit_unavailable"


class AuditBudgetError(AuditError):
    """A run's calls have filled what the audit log has for one run."""

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
    """A server wants the user to log in first, which only the user can do, at a terminal."""

    code = "login_required"


class LoginFailedError(UpstreamError):
    """The user tried to log in to a server, and it did not work."""

    code = "login_failed"
    doubtful_unless_said = False


class ServerLostError(UpstreamError):
    """A server went away while a request was under way."""

    code = "server_lost"


class CallTimeoutError(UpstreamError):
    """A server did not answer within the call's time."""

    code = "call_timeout"


class MessageTooLargeError(UpstreamError):
    """A server sent a message beyond the size cap."""

    code = "message_too_large"


class ToolCallError(UpstreamError):
    """A server answered a request with a protocol error.

    Attributes:
        rpc_code: The JSON-RPC error code.
        data: The JSON-RPC error's data, if any.
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
    ) -> None:
        super().__init__(message, server=server, remedy=remedy, doubtful=doubtful)
        self.rpc_code = rpc_code
        self.data = data


class CannotAskError(UpstreamError):
    """A server has a question, and there is nobody who could be asked it.

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
    """What a run left cannot be kept: the disk is full, the directory cannot be written to."""

    code = "artifact_store"


class ArtifactQuotaError(ArtifactStoreError):
    """A run has left as much as it may, or its caller has more than a share of what there is."""

    code = "artifact_quota"


class SessionLimitError(BridgeError):
    """No further session can be opened."""

    code = "session_limit"


class OverloadedError(BridgeError):
    """As many runs as may be at once are under way, and no more may wait."""

    code = "overloaded"


class PackageUnavailableError(BridgeError):
    """A package that is allowed could not be had."""

    code = "package_unavailable"


class LibraryError(BridgeError):
    """A skill or a memory cannot be kept or read."""

    code = "library"
