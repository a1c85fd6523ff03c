"""What is asked for, and under which limits."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.model.kept import InputFile
from bridge.model.names import MEBIBYTE, RetriedReads, RunMode

PERSON = "user"


def owner_of(request: RunRequest) -> str:
    """Return whose memories a run has; empty for a caller that cannot be told from others.

    Over HTTP that is one who shows nothing to be known by.
    """
    known = request.owner or request.principal
    return PERSON if known in PERSON_OWNERS else known


def principal_of(request: RunRequest) -> str:
    """Return who may have to do with the user's skills, and review them; empty for anybody.

    What a caller over HTTP shows by itself says nothing of who that is.
    """
    return PERSON if request.principal in PERSON_OWNERS else request.principal


PERSON_OWNERS = frozenset({"stdio", "terminal"})
"""Owners and principals that are one person: who can start a bridge on stdio has the terminal
too. Any other came over HTTP, and is known only by what it shows."""


SCRIPT_OPENING = "# /// script"
"""How the metadata of a script begins (PEP 723), which may name packages."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one run may use. Every field is enforced on the host or by the kernel.

    Attributes:
        timeout: Seconds of wall time for the program, without the time that its calls take.
        longest_timeout: Seconds for the run with its calls; also the most that it may ask for.
        memory_bytes: RAM and swap together; tmpfs contents count towards it.
        pids: Processes and threads.
        cpus: CPUs' worth of time; None leaves it to the engine.
        tmp_bytes: Size of /tmp.
        workspace_bytes: Size of /workspace, the working directory.
        open_files: Descriptors per process.
        output_bytes: Kept of stdout, and as much again of stderr.
        output_tokens: What both may cost a model, about; the rest of it is only kept.
        result_bytes: Largest value of the last expression, as JSON, that is not printed instead.
        frame_bytes: Longest line on the channel in either direction.
        tool_calls: Calls a run may make in all.
        concurrent_calls: Calls that may be under way at once; more wait.
        out_bytes: What it may leave behind.
        out_files: Files that it may leave behind.
        shown_bytes: Of the pictures that its result holds, as base64.
        directories: Whether it gets the directories of the host that are offered.
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
    """One validated wish to run a program.

    Attributes:
        servers: Names to load; None means those that the code refers to.
        timeout: Seconds; None means the default.
        argv: What the program finds in `sys.argv[1:]`.
        name: Of the file that holds it, without its directory; empty for none.
        principal: On whose behalf it runs, as far as that is known; runs may share a sandbox only
            with those of the same. Empty when several callers cannot be told apart.
        owner: Who alone may apply its plan or retry it: the principal, and over HTTP a digest of
            what the caller authorised itself with. Callers without either share one.
        client: What the program that asks says it is; good for a record, and for no decision.
        mode: In a "plan" calls that change something are held back; see `Plan`.
        retry_of: Run whose recorded results answer the calls that it made already; empty for none.
        reads: Whether a retry's reads are answered so too, or made again.
        session: What keeps its state for the next run, by name or id; empty for none.
        end_session: Whether that ends with this run; without `code` it only ends.
        named_sessions: Whether a session may be asked for by its name alone, because its caller
            is known; otherwise only by the id that its first result had.
        files: Put into the workspace before it begins.
        packages: Requirements beside those that the program itself states.
        loses_state: Whether more packages may cost what its session cannot restore.
        ends_bridge: Whether the bridge ends with it, so that no answer of a person holds for more.
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

        Not over HTTP without authentication: what a caller shows there of itself (`owner`) tells it
        from others, and not who it is; it may be the very program that asks.
        """
        return bool(self.principal)

    @property
    def may_need_packages(self) -> bool:
        """Whether it may ask for packages; most do not."""
        return bool(self.packages) or SCRIPT_OPENING in self.code

    @property
    def ends_session_only(self) -> bool:
        return bool(self.session) and self.end_session and not self.code


@dataclass(frozen=True, kw_only=True)
class ApplyRequest:
    """One validated wish to perform a plan's held calls. See `RunRequest` for the fields."""

    plan_id: str
    principal: str = ""
    owner: str = ""
    client: str = ""
    run_id: str = ""

    @property
    def is_identified(self) -> bool:
        """Whether its caller is known; see `RunRequest`."""
        return bool(self.principal)
