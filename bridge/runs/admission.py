"""Admits programs: reads and checks them, chooses their servers, and adds findings to results.

A request ends here if it names an unknown server, breaks a rule of the guard in mode "enforce",
contains a certain mistake, or uses a saved function that the user has not approved. A program is
checked against the known tools first, and again only if its servers have others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any, TypeVar

import anyio.to_thread

from bridge.artifacts.store import ArtifactStore
from bridge.callers.client import RunCaller
from bridge.catalog.program.advice import SIGNATURE, explain_syntax
from bridge.catalog.program.checks import check_program, find_lost_value
from bridge.catalog.program.guard import NOTHING, Verdict
from bridge.catalog.program.guard import check as check_guard
from bridge.catalog.program.parsing import SYNTAX, apply_edits, lines_of, read_program
from bridge.catalog.program.references import NameTable, References, references
from bridge.catalog.program.survey import Survey
from bridge.errors import InvalidRequestError, UnknownError
from bridge.gate.services import GateServices, RunContext
from bridge.inventory.guide import GuestGuide
from bridge.inventory.project_approval import ProjectApproval
from bridge.inventory.servers import Servers
from bridge.model import Finding, Limits, RunRequest, RunResult, Tool
from bridge.packages.packages import NOTHING as NO_PACKAGES
from bridge.packages.packages import Packages, PackageSet
from bridge.plans.plan_store import Plans
from bridge.runs.input_files import resolve_files
from bridge.runs.sandboxes import Sandboxes
from bridge.sandbox.backend import limits_for
from bridge.sandbox.probe import recall
from bridge.saved_functions.skills import Skills, SkillUse
from bridge.saved_functions.source import PACKAGE
from bridge.sessions.table import Sessions
from bridge.settings import GuardMode, Settings, narrow
from bridge.text import clip

logger = logging.getLogger(__name__)

MAX_CODE_BYTES = 1024 * 1024  # A client may send megabytes, and the program is parsed.

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a program's text shows."""

    code: str  # The text that runs: the original or the repaired one.
    read_as: str  # The repairs in words; empty if there are none.
    # The survey of the syntax tree, or why the text does not parse.
    survey: Survey | Finding = field(compare=False, repr=False)
    scan: Verdict = NOTHING  # The guard's verdict.
    references: References = References()
    # The undefined names that certainly mean a server or tool, with that meaning.
    names: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()  # The packages that its notebook commands install.


def read(
    code: str,
    table: NameTable,
    mode: GuardMode,
    denied: Sequence[str] = (),
    session: bool = False,
    python: Callable[[], str] = str,
) -> Reading:
    """Read a program before it runs; one syntax tree serves all checks.

    Args:
        table: The names of the servers that the program may use.
        denied: The guard's rules of the configuration.
        session: Whether it runs in a session, where names may come from earlier runs.
        python: Returns the sandbox's Python version, as "3.11"; empty if it is unknown.
    """
    program, guarded = read_program(code, python), mode != "off"
    code, read_as, tree = program.code, program.read_as, program.tree
    if isinstance(tree, Finding):
        unread = Verdict(findings=(tree,)) if guarded else NOTHING
        return Reading(code=code, read_as=read_as, survey=tree, scan=unread)
    survey = Survey(tree)
    names = table.resolve(survey)
    if not session:
        # In a session an earlier program may have defined them, which only the guest knows.
        survey.given = names
    return Reading(
        code=code,
        read_as=read_as,
        scan=check_guard(survey, denied=denied) if guarded else NOTHING,
        references=references(survey, table.aliases, more_names=session),
        names=names,
        survey=survey,
        packages=program.packages,
    )


async def by_size(code: str, work: Callable[..., Found], *args: Any) -> Found:
    """Return the result of work on a program; a thread does the work if the program is long.

    A long program's tree takes a second to walk.
    """
    # Most programs of models are this short. They take 20 ms at most, a thread's start 0.2 ms.
    if len(code) <= 2048:
        return work(*args)
    return await anyio.to_thread.run_sync(work, *args, abandon_on_cancel=True)


@dataclass(frozen=True, kw_only=True)
class Check:
    """The preflight's verdict on a program, with the revision of the inventory that it used."""

    verdict: Verdict
    servers: tuple[str, ...] = ()
    revision: int = -1  # The check is off.

    @property
    def may_be_outdated(self) -> bool:
        """Whether every certain mistake depends on a tool's known definition."""
        return all(found.rule in OF_TOOLS for found in self.verdict.certain)


class Services:
    """The services that all runs of an engine share."""

    settings: Settings
    sessions: Sessions
    gate: GateServices
    servers: Servers
    guide: GuestGuide
    skills: Skills
    artifacts: ArtifactStore
    packages: Packages
    sandboxes: Sandboxes
    plans: Plans


@dataclass(frozen=True, kw_only=True)
class PreparedRun:
    """An admitted run."""

    run_id: str
    request: RunRequest
    limits: Limits
    settings: Settings  # The bridge's settings, narrowed by the requested profile.
    servers: tuple[str, ...]  # The servers to connect before the program begins.
    tolerant: bool  # Whether the program begins without servers that fail or are slow.
    program: Reading
    skills: SkillUse | None
    check: Check  # The preflight's verdict.
    caller: RunCaller
    gate: RunContext
    packages: PackageSet = NO_PACKAGES
    refused: Mapping[str, str] = field(default_factory=dict)


class Admission:
    """Admits runs."""

    def __init__(self, services: Services) -> None:
        self._settings = services.settings
        self._servers = services.servers
        self._artifacts = services.artifacts
        self._skills = services.skills
        self._sessions = services.sessions
        self._gate = services.gate
        self._proposals = ProjectApproval(
            services.servers, services.gate.audit, services.gate.starts
        )

    async def parse(self, request: RunRequest) -> tuple[RunRequest, Limits]:
        """Return a request with its input files, and the limits of its run."""
        size = len(request.code.encode("utf-8", "replace"))
        if size > MAX_CODE_BYTES:
            message = f"The program is {size:,} bytes; the limit is {MAX_CODE_BYTES:,}."
            raise InvalidRequestError(message, remedy="Load data with tool calls instead.")
        timeout, settings = request.timeout, self._in_force(request)
        limits = limits_for(settings, timeout)
        if timeout is not None and not 1 <= timeout <= limits.longest_timeout:
            message = (
                f"timeout must be between 1 and {limits.longest_timeout:g} seconds, "
                f"not {timeout:g}."
            )
            sets = "The strict profile" if settings.strict else "MCP_BRIDGE_MAX_TIMEOUT"
            raise InvalidRequestError(message, remedy=f"{sets} sets the largest.")
        if settings is not self._settings:
            self._check_narrowed(request, settings)
        if request.session:
            self._sessions.check(request)
        if request.files:
            request = await resolve_files(request, limits, self._artifacts)
        return request, limits

    async def read(self, request: RunRequest, caller: RunCaller) -> tuple[RunRequest, Reading]:
        """Return the request with the repaired program, and what the program's text shows."""
        table = self._table(request)
        program = await self._read(request, table)
        if isinstance(program.survey, Survey) and await by_size(
            request.code, table.depends_on_tools, program.survey
        ):
            await self._servers.load_unknown(self._usable(request))
            program = await self._read(request)
        unknown = program.references.unknown
        # The program may name servers of the project that the user has not approved yet.
        named = (*(request.servers or ()), *unknown)
        proposed = self._servers.discovery.proposed
        if proposed and await self._proposals.ensure_approved(named, caller):
            program = await self._read(request)
            unknown = program.references.unknown
        if unknown:
            check = await self._check(request, program, program.references.servers)
            problems = [*unknown.values(), *map(str, check.verdict.certain)]
            raise UnknownError(
                self._servers.unknown_server_text("; ".join(problems)),
                host_detail=self._servers.skip_reasons([*unknown]),
                code="unknown_server",
            )
        packages = request.packages
        if program.packages and self._in_force(request).allowed_packages:
            packages += program.packages
            words = f"{program.read_as}, with {', '.join(program.packages)} as `packages`"
            program = replace(program, read_as=words)
        return replace(request, code=program.code, packages=packages), program

    async def admit(
        self, request: RunRequest, limits: Limits, program: Reading, caller: RunCaller
    ) -> PreparedRun | RunResult:
        """Return the run, or the result of a program that must not run."""
        skills, references = None, program.references
        if PACKAGE in request.code and isinstance(program.survey, Survey):
            skills = await self._skills.of_program(request, program.survey, caller)
            references = references if skills is None else skills.extend(references)
        servers, tolerant = self._servers_to_load(request, references)
        check = await self._check(request, program, servers)
        request, program, check = await self._apply_fixes(request, program, check)
        run_id = request.run_id
        if (settings := self._in_force(request)).guard == "enforce" and program.scan.certain:
            return add_findings(refusal_result(run_id, program, program.scan, limits), program)
        if caller.is_shown:
            # The client shows all output, so none is stored.
            limits = replace(limits, output_bytes=1 << 50)  # more than a run has time to write
        run = PreparedRun(
            run_id=run_id,
            caller=caller,
            gate=await self._gate.begin(run_id, request, caller),
            request=request,
            limits=limits,
            settings=settings,
            servers=servers,
            tolerant=tolerant,
            program=program,
            skills=skills,
            check=check,
        )
        if check.verdict.certain and servers:
            # Other mistakes are reported together, and wait for no server that is silent.
            patient = not tolerant and check.may_be_outdated
            tools, _ = await self._servers.load(servers, tolerant=not patient)
            run = await self.check(run, tools)
            if run.check.verdict.certain and run.check.may_be_outdated:
                await self._servers.ask_again(tools)
                run = await self.check(run, tools)
        if run.check.verdict.certain:
            result = refusal_result(run_id, run.program, run.check.verdict, limits)
            return add_findings(result, run.program, run.check.verdict)
        if skills is None:
            return run
        refusal = await self._skills.refusal(skills, run_id, limits.timeout)
        return run if refusal is None else add_findings(refusal, program)

    async def connect(self, run: PreparedRun) -> tuple[PreparedRun, dict[str, tuple[Tool, ...]]]:
        """Connect a run's servers in parallel; return the run and the tools of each server.

        A refused server does not stop the run; its use raises the reason.
        """
        tools, errors = await self._servers.load(run.servers, tolerant=run.tolerant)
        for name, error in errors.items():
            logger.warning("server %s is left out of this run: %s", name, error)
        more = [name for name in run.program.references.mentioned if name not in tools]
        if more and not run.settings.listed_servers_only:
            tools |= (await self._servers.load(more, tolerant=True, patient=True))[0]
        if not run.tolerant:
            run = replace(
                run,
                refused={name: f"{e.message} {e.remedy}".rstrip() for name, e in errors.items()},
            )
        return run, {**dict.fromkeys(run.refused, ()), **tools}

    async def check(self, run: PreparedRun, tools: Mapping[str, tuple[Tool, ...]]) -> PreparedRun:
        """Return the run, checked against the tools that its servers have now."""
        loaded = tuple(name for name in run.servers if name in tools)
        if loaded == run.servers and run.check.revision in (-1, self._servers.inventory.revision):
            return run
        check = await self._check(run.request, run.program, loaded)
        request, program, check = await self._apply_fixes(run.request, run.program, check)
        return replace(run, request=request, program=program, check=check)

    async def _apply_fixes(
        self, request: RunRequest, program: Reading, check: Check
    ) -> tuple[RunRequest, Reading, Check]:
        """Fix the program's certain mistakes if each has one certain fix."""
        edits = check.verdict.edits
        code = request.code.removeprefix("\ufeff")
        new = await by_size(code, apply_edits, code, edits) if edits else None
        if new is None:
            return request, program, check
        fixed = replace(request, code=new[0])
        reading = await self._read(fixed)
        words = "; ".join(filter(None, (program.read_as, new[1])))
        again = await self._check(fixed, reading, check.servers)
        if again.verdict.certain or isinstance(reading.survey, Finding):
            return request, program, check
        return fixed, replace(reading, read_as=words), again

    async def _check(
        self, request: RunRequest, program: Reading, servers: tuple[str, ...]
    ) -> Check:
        known, survey = self._servers.inventory, program.survey
        if self._settings.preflight != "check":
            return Check(verdict=NOTHING)
        if isinstance(survey, Finding):
            return Check(verdict=explain_syntax(request.code, survey), revision=known.revision)
        entries = [known.entry(name) for name in servers if name in known.aliases]
        revision, session = known.revision, bool(request.session)
        verdict = await by_size(
            request.code, check_program, survey, entries, known.aliases, session
        )
        return Check(verdict=verdict, servers=servers, revision=revision)

    async def _read(self, request: RunRequest, table: NameTable | None = None) -> Reading:
        settings = self._in_force(request)
        return await by_size(
            request.code,
            read,
            request.code,
            table or self._table(request),
            settings.guard,
            settings.guard_denies,
            bool(request.session),
            lambda: recall(self._settings).python,
        )

    def _table(self, request: RunRequest) -> NameTable:
        usable = frozenset(self._usable(request))
        entries = [
            entry if entry.name in usable else replace(entry, tools=(), known=True)
            for entry in self._servers.inventory.entries()
        ]
        return NameTable(entries, request.servers or ())

    def _in_force(self, request: RunRequest) -> Settings:
        return narrow(self._settings, request.profile) if request.profile else self._settings

    def _check_narrowed(self, request: RunRequest, settings: Settings) -> None:
        problem = ""
        if request.session:
            problem = "a session's sandbox has the profile of the bridge"
        elif request.may_need_packages and not settings.packages_allowed:
            problem = "that profile allows no packages"
        elif settings.project_servers == "none":
            scopes = {each.name: each.source.scope for each in self._servers.discovery.servers}
            for name in request.servers or ():
                if scopes.get(self._servers.resolve(name)) == "project":
                    problem = f"that profile uses no servers of the project, such as {name!r:.100}"
        if problem:
            message = f"This run cannot have the profile {request.profile!r:.100}: {problem}."
            raise InvalidRequestError(message, remedy="Leave out `profile`, or what it forbids.")

    def _usable(self, request: RunRequest) -> tuple[str, ...]:
        if self._in_force(request).listed_servers_only:
            return tuple(self._servers.resolve(name) for name in request.servers or ())
        return self._servers.names()

    def _servers_to_load(
        self, request: RunRequest, references: References
    ) -> tuple[tuple[str, ...], bool]:
        """Return the servers to load, and whether the run tolerates failures to start."""
        named = dict.fromkeys(self._servers.resolve(name) for name in request.servers or ())
        if self._in_force(request).listed_servers_only:
            missing = [name for name in references.servers if name not in named]
            if missing:
                message = f"The program uses servers that are not listed: {', '.join(missing)}."
                remedy = "Only those named in `servers` (--servers) are loaded here."
                raise InvalidRequestError(message, remedy=remedy)
            return tuple(named), False
        if request.servers is not None:
            # A server that only the code names would raise a NameError half-way through.
            return tuple({**named, **dict.fromkeys(references.servers)}), False
        if references.dynamic:
            # The program chooses at run time, so the run gets all servers that start.
            return self._servers.names(), True
        return references.servers, False


TOLD_ON_SUCCESS = frozenset({"missing-await", "not-called", "alias"})
"""Rules whose mistakes leave no trace; the other notes are shown after a failure only."""

OF_TOOLS = frozenset(
    """
    missing-argument repeated-argument too-many-arguments unknown-argument unknown-tool wrong-value
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Rules whose mistakes may be none if the server has changed its tools."""

_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")


def refusal_result(run_id: str, program: Reading, verdict: Verdict, limits: Limits) -> RunResult:
    """Return the result of a program that the guard or the preflight refuses."""
    certain, lines = verdict.certain, lines_of(program.code)
    by_guard = certain[0].source == "guard"
    told = _messages(certain[:12], lines)
    if untold := len(certain) - len(told) + verdict.omitted:
        told.append(f"... and {untold} more")
    remedy = "The program didn't run and no tool was called. Fix it and try again."
    if not by_guard:
        count = "a mistake" if len(certain) == 1 else f"{len(certain)} mistakes"
        summary = f"The program was not run: it has {count}, first in {_short(certain[0])}"
        notes = _messages(verdict.notes[:4], lines)
        told += ["Not certain:", *notes] if notes else []
    elif isinstance(program.survey, Finding):
        summary = f"The program cannot be read: {certain[0]}."
    else:
        summary = f"The static guard does not allow the program: {certain[0]}."
        remedy += " The user's settings enforce the guard (MCP_BRIDGE_GUARD, or a strict profile)."
    denied = by_guard and isinstance(program.survey, Survey)
    return RunResult(
        run_id=run_id,
        status="validation_error",
        reason="policy" if denied else "validation",
        summary=summary,
        error="\n".join((*told, remedy)),
        timeout_seconds=limits.timeout,
    )


def add_findings(
    result: RunResult, program: Reading, verdict: Verdict = NOTHING, restarted: Collection[str] = ()
) -> RunResult:
    """Return a result with its program's repairs and findings.

    Args:
        verdict: The preflight's verdict; notes that do not help the reader are left out.
        restarted: The servers that restarted during the run.
    """
    scan, found = program.scan, list(verdict.certain)
    syntax = next((one for one in verdict.findings if one.rule == SYNTAX), None)
    if syntax is not None and (unreadable := _unreadable(result, syntax)) is not None:
        result = unreadable
        found.append(replace(syntax, severity="deny"))
    failed = result.status != "success"
    found += [
        note
        for note in verdict.notes
        if note.rule != SYNTAX and (failed or note.rule in TOLD_ON_SUCCESS)
    ]
    if result.silent and isinstance(program.survey, Survey):
        found += find_lost_value(program.survey)
    # A syntax error is reported once.
    told = {one.rule for one in found} & {SYNTAX}
    found += [one for one in scan.findings if one.rule not in told]
    notes = [("read-as", f"read as: {program.read_as}")] if program.read_as else []
    notes += [
        ("server-restarted", f"server {server!r} was restarted; what it held in memory is gone")
        for server in sorted(restarted)
    ]
    found += [
        Finding(line=0, rule=rule, message=message, severity="note", source="reader")
        for rule, message in notes
    ]
    return replace(
        result,
        findings=tuple(sorted(found, key=lambda one: (one.line, one.column))),
        findings_omitted=scan.omitted + (verdict.omitted if verdict.certain else 0),
    )


def _unreadable(result: RunResult, syntax: Finding) -> RunResult | None:
    """Return the result of a syntax error in the sandbox like one found here; None for others."""
    lines = [line for line in result.error.splitlines() if not line.startswith("Hint: ")]
    if result.reason != "exception" or result.stdout or result.usage.tool_calls:
        return None
    if not lines or not lines[-1].startswith(_SYNTAX_ERRORS):
        return None
    advice = syntax.message.partition(" reads it. ")[2]
    hint = "" if not advice or "\nHint: " in result.error else f"\nHint: {advice}"
    return replace(
        result,
        status="validation_error",
        reason="validation",
        summary=f"The program cannot be read: {_short(syntax)}",
        error=f"{result.error}{hint}",
    )


def _messages(findings: Sequence[Finding], lines: Sequence[str]) -> list[str]:
    """Return findings with their source lines; shared lines and signatures appear once."""
    told = []
    for found, following in zip_longest(findings, findings[1:]):
        if following is None or following.line != found.line:
            line = lines[found.line - 1] if 0 < found.line <= len(lines) else None
            source = "" if line is None else f"\n    {clip(line.strip(), 160)}"
            told.append(f"{found}{source}")
            continue
        said, mark, signature = found.message.partition(SIGNATURE)
        if mark and following.message.endswith(mark + signature):
            found = replace(found, message=said)
        told.append(str(found))
    return told


def _short(found: Finding) -> str:
    where = f"line {found.line}: " if found.line else ""
    return f"{where}{clip(found.message, 160)}"
