"""The values that the bridge's parts hand to each other.

They are frozen, keyword-only dataclasses, and literal types of their fields. No I/O.
"""

from bridge.model.kept import STREAMS as STREAMS
from bridge.model.kept import Artifact as Artifact
from bridge.model.kept import ArtifactKind as ArtifactKind
from bridge.model.kept import Directory as Directory
from bridge.model.kept import InputFile as InputFile
from bridge.model.kept import Loss as Loss
from bridge.model.kept import Provenance as Provenance
from bridge.model.kept import SessionReport as SessionReport
from bridge.model.kept import SessionState as SessionState
from bridge.model.kept import ShownContent as ShownContent
from bridge.model.kept import Variable as Variable
from bridge.model.names import MEBIBYTE as MEBIBYTE
from bridge.model.names import OWN_SERVER as OWN_SERVER
from bridge.model.names import Action as Action
from bridge.model.names import Effect as Effect
from bridge.model.names import FindingSource as FindingSource
from bridge.model.names import Json as Json
from bridge.model.names import ProtocolMode as ProtocolMode
from bridge.model.names import Reason as Reason
from bridge.model.names import RetriedReads as RetriedReads
from bridge.model.names import RunMode as RunMode
from bridge.model.names import Severity as Severity
from bridge.model.names import Share as Share
from bridge.model.names import Status as Status
from bridge.model.names import Transport as Transport
from bridge.model.runs import PERSON_OWNERS as PERSON_OWNERS
from bridge.model.runs import ApplyRequest as ApplyRequest
from bridge.model.runs import CallCount as CallCount
from bridge.model.runs import CommandRequest as CommandRequest
from bridge.model.runs import CommandResult as CommandResult
from bridge.model.runs import Finding as Finding
from bridge.model.runs import HeldCall as HeldCall
from bridge.model.runs import HostKernel as HostKernel
from bridge.model.runs import Isolation as Isolation
from bridge.model.runs import Limits as Limits
from bridge.model.runs import Plan as Plan
from bridge.model.runs import Receipt as Receipt
from bridge.model.runs import RunRequest as RunRequest
from bridge.model.runs import RunResult as RunResult
from bridge.model.runs import StageResult as StageResult
from bridge.model.runs import Usage as Usage
from bridge.model.runs import owner_digest as owner_digest
from bridge.model.servers import OAuthHints as OAuthHints
from bridge.model.servers import ServerSettings as ServerSettings
from bridge.model.servers import ServerSpec as ServerSpec
from bridge.model.servers import Source as Source
from bridge.model.servers import Tool as Tool
from bridge.model.servers import ToolFilter as ToolFilter
from bridge.model.servers import short_digest as short_digest
