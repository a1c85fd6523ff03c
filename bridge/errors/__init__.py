"""Every fault the bridge can report, one class per fault.

Owns the error tree, the stable codes and the exit statuses; decides nothing about when to raise.
The user's program failing is not here: that is a `RunResult`. What is here means that the bridge,
its configuration, an engine or a server could not do its part. Imported from here, whichever file
of this package a class is in.

    BridgeError
    ├── UsageError                       exit 2
    │   ├── SettingsError                a setting does not parse
    │   ├── InvalidRequestError          arguments of `run_python` are unusable
    │   │   └── HeldResultError          a call in a plan wants a result that there is not yet
    │   ├── UnknownServerError           no such server; names the nearest
    │   ├── UnknownPlanError             no such plan, or it was used or expired
    │   ├── UnknownRunError              no such run to retry, or its journal is gone
    │   ├── UnknownArtifactError         nothing is kept by that name
    │   ├── UnknownSessionError          no such session, or somebody else's
    │   ├── UnknownSkillError            no such skill
    │   └── PackageRefusedError          a package may not be used here, or does not fit
    ├── SandboxError                     exit 3
    │   ├── NoSandboxError               nothing on this machine can run code safely
    │   ├── EngineNotFoundError          no podman, no docker
    │   ├── EngineDownError              installed, but nobody answers
    │   ├── EnginePermissionError        the engine's socket refuses this user
    │   ├── ImageMissingError            the runtime image is not there
    │   ├── ImagePullError               ... and could not be fetched
    │   ├── ImageBuildError              ... and could not be built
    │   ├── OciRuntimeError              crun, runc, runsc ... cannot start a container
    │   ├── CgroupError                  limits cannot be applied
    │   ├── LaunchError                  a sandbox did not come up
    │   ├── BrokenIsolationError         it came up without a layer it must have
    │   ├── WrongSystemError             a backend of another operating system was asked for
    │   └── ChannelClosedError           the byte stream to a sandbox ended
    ├── RefusedError                     exit 1
    │   ├── CallDeniedError              a run may not make this call
    │   ├── CallBudgetError              it has made all it may make
    │   ├── ApprovalNeededError          a person has to allow it, and nobody can be asked
    │   ├── ApprovalRefusedError         a person was asked and did not allow it
    │   ├── OutcomeUnknownError          it was sent before, and nobody knows what became of it
    │   └── AuditError                   it could not be recorded, and so is not made
    │       └── AuditBudgetError         the run's calls have filled what the log has for one
    ├── UpstreamError                    exit 4
    │   ├── ServerStartError             a server could not be started or reached
    │   │   └── LoginRequiredError       the user has to log in to it first
    │   ├── LoginFailedError             logging in to a server did not work
    │   ├── ServerLostError              it went away during a call
    │   ├── CallTimeoutError             it did not answer in time
    │   ├── MessageTooLargeError         it sent more than the cap
    │   ├── ToolCallError                it refused the call at protocol level
    │   └── CannotAskError               it has a question that nobody can be asked
    ├── SearchUnavailableError           exit 1: this Python's SQLite has no full-text search
    ├── ArtifactStoreError               exit 1: what a run left cannot be kept
    │   └── ArtifactQuotaError           it has left as much as it may
    ├── SessionLimitError                exit 1: no further session can be opened
    ├── OverloadedError                  exit 1: too many runs are under way and wait
    ├── PackageUnavailableError          exit 1: a package that is allowed could not be had
    └── LibraryError                     exit 1: a skill or a memory cannot be kept or read
"""

from bridge.errors.base import BridgeError
from bridge.errors.own import (
    ArtifactQuotaError,
    ArtifactStoreError,
    LibraryError,
    OverloadedError,
    PackageUnavailableError,
    SearchUnavailableError,
    SessionLimitError,
)
from bridge.errors.refused import (
    ApprovalNeededError,
    ApprovalRefusedError,
    AuditBudgetError,
    AuditError,
    CallBudgetError,
    CallDeniedError,
    OutcomeUnknownError,
    RefusedError,
)
from bridge.errors.sandbox import (
    BrokenIsolationError,
    CgroupError,
    ChannelClosedError,
    EngineDownError,
    EngineNotFoundError,
    EnginePermissionError,
    ImageBuildError,
    ImageMissingError,
    ImagePullError,
    LaunchError,
    NoSandboxError,
    OciRuntimeError,
    SandboxError,
    WrongSystemError,
)
from bridge.errors.upstream import (
    CallTimeoutError,
    CannotAskError,
    LoginFailedError,
    LoginRequiredError,
    MessageTooLargeError,
    ServerLostError,
    ServerStartError,
    ToolCallError,
    UpstreamError,
)
from bridge.errors.usage import (
    HeldResultError,
    InvalidRequestError,
    PackageRefusedError,
    SettingsError,
    UnknownArtifactError,
    UnknownPlanError,
    UnknownRunError,
    UnknownServerError,
    UnknownSessionError,
    UnknownSkillError,
    UsageError,
)

__all__ = [
    "ApprovalNeededError",
    "ApprovalRefusedError",
    "ArtifactQuotaError",
    "ArtifactStoreError",
    "AuditBudgetError",
    "AuditError",
    "BridgeError",
    "BrokenIsolationError",
    "CallBudgetError",
    "CallDeniedError",
    "CallTimeoutError",
    "CannotAskError",
    "CgroupError",
    "ChannelClosedError",
    "EngineDownError",
    "EngineNotFoundError",
    "EnginePermissionError",
    "HeldResultError",
    "ImageBuildError",
    "ImageMissingError",
    "ImagePullError",
    "InvalidRequestError",
    "LaunchError",
    "LibraryError",
    "LoginFailedError",
    "LoginRequiredError",
    "MessageTooLargeError",
    "NoSandboxError",
    "OciRuntimeError",
    "OutcomeUnknownError",
    "OverloadedError",
    "PackageRefusedError",
    "PackageUnavailableError",
    "RefusedError",
    "SandboxError",
    "SearchUnavailableError",
    "ServerLostError",
    "ServerStartError",
    "SessionLimitError",
    "SettingsError",
    "ToolCallError",
    "UnknownArtifactError",
    "UnknownPlanError",
    "UnknownRunError",
    "UnknownServerError",
    "UnknownSessionError",
    "UnknownSkillError",
    "UpstreamError",
    "UsageError",
    "WrongSystemError",
]
