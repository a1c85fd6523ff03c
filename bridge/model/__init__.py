"""The values that the bridge's parts hand to each other.

Owns shapes only: frozen, keyword-only dataclasses and the literal types of their fields. No I/O,
no parsing, no behaviour beyond what a value can say about itself and read back of that.
"""

from bridge.model.commands import CommandRequest, CommandResult, StageResult
from bridge.model.kept import (
    Artifact,
    ArtifactKind,
    Directory,
    InputFile,
    Loss,
    SessionReport,
    SessionState,
    Shown,
    Variable,
)
from bridge.model.names import (
    MEBIBYTE,
    OWN_SERVER,
    Action,
    Effect,
    FindingSource,
    Json,
    Reason,
    RetriedReads,
    RunMode,
    Severity,
    Status,
    Transport,
)
from bridge.model.provenance import Provenance
from bridge.model.requests import PERSON_OWNERS, ApplyRequest, Limits, RunRequest
from bridge.model.results import (
    CallCount,
    Finding,
    HeldCall,
    HostKernel,
    Isolation,
    Plan,
    Receipt,
    RunResult,
    Usage,
)
from bridge.model.servers import OAuthHints, ServerSpec, Source, Tool, ToolFilter, short_digest

__all__ = [
    "Action",
    "ApplyRequest",
    "Artifact",
    "ArtifactKind",
    "CallCount",
    "CommandRequest",
    "CommandResult",
    "Directory",
    "Effect",
    "Finding",
    "FindingSource",
    "HeldCall",
    "HostKernel",
    "InputFile",
    "Isolation",
    "Json",
    "Limits",
    "Loss",
    "MEBIBYTE",
    "OWN_SERVER",
    "PERSON_OWNERS",
    "OAuthHints",
    "Plan",
    "Provenance",
    "Reason",
    "Receipt",
    "RetriedReads",
    "RunMode",
    "RunRequest",
    "RunResult",
    "ServerSpec",
    "SessionReport",
    "SessionState",
    "Severity",
    "Shown",
    "Source",
    "StageResult",
    "Status",
    "Tool",
    "ToolFilter",
    "short_digest",
    "Transport",
    "Usage",
    "Variable",
]
