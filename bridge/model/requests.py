"""Requests to run a program or apply a plan, and their limits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from bridge.model.kept import InputFile
from bridge.model.names import MEBIBYTE, RetriedReads, RunMode

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
        files: Input files for the workspace.
        packages: Requirements in addition to the program's own.
        loses_state: Whether new packages may cost state that the session cannot restore.
        ends_bridge: Whether the bridge ends with this run.
        run_id: The id of the run; empty for a new one.
        profile: The profile that narrows its settings; empty for none.
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
        """Whether the program may need packages."""
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
        """Whether its caller is known; see `RunRequest`."""
        return bool(self.principal)


def owner_of(request: RunRequest) -> str:
    """Return the owner of a run's memories; empty for an HTTP caller without an identity."""
    known = request.owner or request.principal
    return PERSON if known in PERSON_OWNERS else known


def principal_of(request: RunRequest) -> str:
    """Return the principal that may list and review saved functions; empty means any."""
    return PERSON if request.principal in PERSON_OWNERS else request.principal
