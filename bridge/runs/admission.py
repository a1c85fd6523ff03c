"""Admits requests: checks their limits, reads their program, and chooses its servers.

A request ends here if it names an unknown server, breaks a rule of the guard in mode "enforce",
contains a certain mistake, or uses a saved function that the user has not approved.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from bridge.callers.client import RunCaller
from bridge.catalog.program.advice import explain_syntax
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.guard import NOTHING
from bridge.catalog.program.parsing import Unread, apply_edits
from bridge.catalog.program.references import NameTable, References
from bridge.catalog.program.survey import Survey
from bridge.errors import InvalidRequestError, UnknownError
from bridge.gate.services import GateServices
from bridge.inventory.project_approval import ProjectApproval
from bridge.model import Limits, RunRequest, RunResult, Tool
from bridge.runs.checks import Check, Reading, add_findings, by_size, read, refusal_result
from bridge.runs.execution import Parts, PreparedRun
from bridge.runs.input_files import resolve_files
from bridge.sandbox.backend import limits_for
from bridge.sandbox.probe import recall
from bridge.sessions import Sessions
from bridge.settings import Settings, narrow

logger = logging.getLogger(__name__)

MAX_CODE_BYTES = 1024 * 1024  # A client may send megabytes, and the program is parsed.


class Admission:
    """Admits runs."""

    def __init__(
        self,
        settings: Settings,
        parts: Parts,
        sessions: Sessions,
        gate_services: GateServices,
    ) -> None:
        self._settings = settings
        self._servers = parts.servers
        self._artifacts = parts.artifacts
        self._skills = parts.skills
        self._sessions = sessions
        self._gate_services = gate_services
        self._proposals = ProjectApproval(parts.servers, gate_services.audit, gate_services.starts)

    async def parse(self, request: RunRequest) -> tuple[RunRequest, Limits]:
        """Return a request with its input files, and the limits of its run.

        Raises:
            InvalidRequestError: The program, its time limit or a file is not within the limits.
            BridgeError: Sessions are turned off.
        """
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
        """Return the request with the repaired program, and what the program's text shows.

        Raises:
            UnknownError: The program names a server that does not exist.
        """
        table = self._table(request)
        program = await self._read(request, table)
        if isinstance(program.survey, Survey) and await by_size(
            request.code, table.depends_on_tools, program.survey
        ):
            await self._servers.load_unknown(self._usable(request))
            program = await self._read(request)
        if await self._ask_approval(request, program, caller):
            program = await self._read(request)
        if program.references.unknown:
            raise await self._unknown_servers(request, program)
        packages, settings = request.packages, self._in_force(request)
        if program.packages and settings.packages_allowed and settings.dependencies.allow:
            packages += program.packages
            words = f"{program.read_as}, with {', '.join(program.packages)} as `packages`"
            program = replace(program, read_as=words)
        return replace(request, code=program.code, packages=packages), program

    async def admit(
        self, request: RunRequest, limits: Limits, program: Reading, caller: RunCaller
    ) -> PreparedRun | RunResult:
        """Return the run, or the result of a program that must not run.

        Raises:
            InvalidRequestError: The program uses servers that the request does not list.
            SettingsError: The policy does not parse.
            UnknownError: The run to retry does not exist.
        """
        skills = await self._skills.of_program(request, program.survey, caller)
        servers, tolerant = self._servers_to_load(request, skills.extend(program.references))
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
            gate=self._gate_services.begin(run_id, request, caller),
            request=request,
            limits=limits,
            settings=settings,
            servers=servers,
            tolerant=tolerant,
            program=program,
            skills=skills,
            check=check,
        )
        run = await self._with_servers_asked(run)
        if run.check.verdict.certain:
            result = refusal_result(run_id, run.program, run.check.verdict, limits)
            return add_findings(result, run.program, run.check.verdict)
        refusal = await self._skills.refusal(skills, run_id, limits.timeout)
        return run if refusal is None else add_findings(refusal, program)

    async def connect(self, run: PreparedRun) -> tuple[PreparedRun, dict[str, tuple[Tool, ...]]]:
        """Connect a run's servers in parallel; return the run and the tools of each server.

        A refused server does not stop the run; its use raises the reason.

        Raises:
            UpstreamError: A server that the program needs cannot be reached.
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
        if again.verdict.certain or isinstance(reading.survey, Unread):
            return request, program, check
        return fixed, replace(reading, read_as=words), again

    async def _with_servers_asked(self, run: PreparedRun) -> PreparedRun:
        """Ask servers again for their tools if a certain mistake depends on them.

        Other mistakes are reported together with it, and wait for no server that is silent.
        """
        if run.check.verdict.certain and run.servers:
            tolerant = run.tolerant or not run.check.may_be_outdated
            tools, _ = await self._servers.load(run.servers, tolerant=tolerant)
            run = await self.check(run, tools)
            if run.check.verdict.certain and run.check.may_be_outdated:
                await self._servers.ask_again(tools)
                run = await self.check(run, tools)
        return run

    async def _check(
        self, request: RunRequest, program: Reading, servers: tuple[str, ...]
    ) -> Check:
        known, survey = self._servers.inventory, program.survey
        if self._settings.preflight != "check":
            return Check(verdict=NOTHING)
        if isinstance(survey, Unread):
            return Check(verdict=explain_syntax(request.code, survey), revision=known.revision)
        entries = [known.entry(name) for name in servers if name in known.aliases]
        revision, session = known.revision, bool(request.session)
        verdict = await by_size(
            request.code, check_program, survey, entries, known.aliases, session
        )
        return Check(verdict=verdict, servers=servers, revision=revision)

    async def _read(self, request: RunRequest, table: NameTable | None = None) -> Reading:
        return await read(
            request.code,
            table or self._table(request),
            self._in_force(request).guard,
            denied=self._in_force(request).guard_denies,
            session=bool(request.session),
            python=lambda: recall(self._settings).python,
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

    async def _ask_approval(self, request: RunRequest, program: Reading, caller: RunCaller) -> bool:
        """Ask about the project servers that the program names; return whether one was approved."""
        if not self._servers.discovery.proposed:
            return False
        named = (*(request.servers or ()), *program.references.unknown)
        return await self._proposals.ensure_approved(named, caller)

    async def _unknown_servers(self, request: RunRequest, program: Reading) -> UnknownError:
        unknown = program.references.unknown
        check = await self._check(request, program, program.references.servers)
        problems = [*unknown.values(), *map(str, check.verdict.certain)]
        message = self._servers.unknown_server_text("; ".join(problems))
        return UnknownError(
            message, host_detail=self._servers.skip_reasons([*unknown]), code="unknown_server"
        )

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
