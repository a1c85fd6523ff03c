"""Reading a program before it runs, and the modes of the static guard.

Owns the modes. "off" reads nothing. "advise" lets every program run and puts what was found into
its result. "enforce" refuses what is denied, and what cannot be read, before anything is started
for it; an error while reading stops the run as well.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import anyio.to_thread

from bridge.catalog.program.guard import Scan, check, unread
from bridge.catalog.program.names import NameTable
from bridge.catalog.program.parsing import SYNTAX, Unread
from bridge.catalog.program.repairs import read_program
from bridge.catalog.program.server_references import Reach, References, reach, references
from bridge.catalog.program.survey import Survey
from bridge.model import Finding, RunResult
from bridge.settings import GuardMode

Found = TypeVar("Found")

MAX_TOLD = 10
"""Findings in the text of a refusal; the record has more."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a program's text shows.

    Attributes:
        code: The text that runs: as it was given, or repaired.
        read_as: The repairs in words; empty if there are none.
        packages: What its notebook commands install.
        scan: What the guard makes of it; nothing if it is off.
        references: The servers that it names.
        names: What it uses and does not define, with what that certainly means.
        reach: What of them it can get at; None if that does not show.
        survey: Of what was parsed, or why it could not be.
    """

    code: str
    read_as: str
    scan: Scan
    references: References
    reach: Reach | None
    survey: Survey | Unread = field(compare=False, repr=False)
    names: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


async def read(
    code: str,
    table: NameTable,
    mode: GuardMode,
    *,
    session: bool = False,
    python: Callable[[], str] = str,
) -> Reading:
    """Read a program before it runs: it is parsed once, for all that is asked of its tree.

    Args:
        table: The names of the servers that it may use.
        session: Whether it runs in one: then it may use names that it does not bind.
        python: Returns the sandbox's Python version, as "3.11"; empty if it is unknown.
    """
    return await by_size(code, _reading, code, python, table, mode, session)


async def by_size(code: str, work: Callable[..., Found], *args: Any) -> Found:
    """Return what work on a program gives; in a thread if the program is long.

    A long program's tree takes a second to walk, in which other runs continue.
    """
    # What models mostly write. It takes 20 ms at worst; to ask a thread takes 0.2 ms.
    if len(code) <= 2048:
        return work(*args)
    return await anyio.to_thread.run_sync(work, *args, abandon_on_cancel=True)


def _reading(
    code: str, python: Callable[[], str], table: NameTable, mode: GuardMode, session: bool
) -> Reading:
    program = read_program(code, python)
    code, read_as, tree = program.code, program.read_as, program.tree
    if isinstance(tree, Unread):
        scan = Scan() if mode == "off" else unread(tree)
        nothing = References()
        return Reading(
            code=code, read_as=read_as, scan=scan, references=nothing, reach=None, survey=tree
        )
    survey = Survey(tree)
    names = table.resolve(survey)
    if not session:
        # In a session an earlier program may have defined them; the guest finds out.
        survey.given = names
    named = references(survey, table.aliases, more_names=session)
    return Reading(
        code=code,
        read_as=read_as,
        scan=Scan() if mode == "off" else check(survey),
        references=named,
        names=names,
        reach=reach(survey, {name: table.aliases[name] for name in named.servers}),
        survey=survey,
        packages=program.packages,
    )


def refused(run_id: str, scan: Scan, timeout: float) -> RunResult:
    """Return the result of a program that was not started."""
    denials = [found for found in scan.findings if found.severity == "deny"]
    told = [str(found) for found in denials[:MAX_TOLD]]
    untold = len(denials) - len(told) + scan.omitted
    if untold:
        told.append(f"... and {untold} more")
    if scan.read:
        summary = f"The static guard does not allow the program: {denials[0]}."
        remedy = (
            "Nothing was started. Change what is named here and run the program again. The guard "
            "is enforced by the user's settings (MCP_BRIDGE_GUARD, or a strict profile)."
        )
    else:
        summary = f"The program cannot be read: {denials[0]}."
        remedy = "Nothing was started. Mend the program and run it again."
    return RunResult(
        run_id=run_id,
        status="validation_error",
        reason="policy" if scan.read else "validation",
        summary=summary,
        error="\n".join((*told, remedy)),
        timeout_seconds=timeout,
        findings=scan.findings,
        findings_omitted=scan.omitted,
    )


def add_findings(result: RunResult, program: Reading) -> RunResult:
    """Return a result with the program's repairs and the guard's findings."""
    scan, told = program.scan, {found.rule for found in result.findings}
    # A syntax error is reported once.
    own = [found for found in scan.findings if found.rule != SYNTAX or SYNTAX not in told]
    if program.read_as:
        message = f"read as: {program.read_as}"
        read_as = Finding(line=0, rule="read-as", message=message, severity="note", source="reader")
        own.append(read_as)
    found = sorted((*own, *result.findings), key=lambda finding: (finding.line, finding.column))
    return dataclasses.replace(
        result,
        findings=tuple(found),
        findings_omitted=scan.omitted + result.findings_omitted,
    )
