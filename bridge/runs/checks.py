"""Reads and checks a program before it runs, and adds the findings to results.

A program is checked against the known tools first, and again only if its servers have others. The
static guard has three modes: "off" finds nothing, "advise" lets every program run, and "enforce"
refuses what the guard denies. A syntax error in the sandbox is reported like one found here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Any, TypeVar

import anyio.to_thread

from bridge.catalog.program.advice import SIGNATURE
from bridge.catalog.program.checks import find_lost_value
from bridge.catalog.program.guard import NOTHING, Verdict, check
from bridge.catalog.program.parsing import SYNTAX, lines_of, read_program
from bridge.catalog.program.references import NameTable, References, references
from bridge.catalog.program.survey import Survey
from bridge.model import Finding, Limits, RunResult
from bridge.settings import GuardMode
from bridge.text import clip

Found = TypeVar("Found")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What a program's text shows.

    Attributes:
        code: The text that runs: the original or the repaired one.
        read_as: The repairs in words; empty if there are none.
        packages: The packages that its notebook commands install.
        scan: The guard's verdict.
        names: The undefined names that certainly mean a server or tool, with that meaning.
        survey: The survey of the syntax tree, or why the text does not parse.
    """

    code: str
    read_as: str
    survey: Survey | Finding = field(compare=False, repr=False)
    scan: Verdict = NOTHING
    references: References = References()
    names: Mapping[str, str] = field(default_factory=dict)
    packages: tuple[str, ...] = ()


async def read(
    code: str,
    table: NameTable,
    mode: GuardMode,
    *,
    denied: Sequence[str] = (),
    session: bool = False,
    python: Callable[[], str] = str,
) -> Reading:
    """Read a program before it runs; one syntax tree serves all checks.

    Args:
        table: The names of the servers that the program may use.
        session: Whether it runs in a session, where names may come from earlier runs.
        python: Returns the sandbox's Python version, as "3.11"; empty if it is unknown.
    """
    scan = None if mode == "off" else partial(check, denied=denied)
    return await by_size(code, _read_program, code, python, table, scan, session)


async def by_size(code: str, work: Callable[..., Found], *args: Any) -> Found:
    """Return the result of work on a program; a thread does the work if the program is long.

    A long program's tree takes a second to walk.
    """
    # Most programs of models are this short. They take 20 ms at most, a thread's start 0.2 ms.
    if len(code) <= 2048:
        return work(*args)
    return await anyio.to_thread.run_sync(work, *args, abandon_on_cancel=True)


def _read_program(
    code: str,
    python: Callable[[], str],
    table: NameTable,
    scan: Callable[[Survey], Verdict] | None,
    session: bool,
) -> Reading:
    program = read_program(code, python)
    code, read_as, tree = program.code, program.read_as, program.tree
    if isinstance(tree, Finding):
        unread = NOTHING if scan is None else Verdict(findings=(tree,))
        return Reading(code=code, read_as=read_as, survey=tree, scan=unread)
    survey = Survey(tree)
    names = table.resolve(survey)
    if not session:
        # In a session an earlier program may have defined them, which only the guest knows.
        survey.given = names
    return Reading(
        code=code,
        read_as=read_as,
        scan=NOTHING if scan is None else scan(survey),
        references=references(survey, table.aliases, more_names=session),
        names=names,
        survey=survey,
        packages=program.packages,
    )


TOLD_ON_SUCCESS = frozenset({"missing-await", "not-called", "alias"})
"""Rules whose mistakes leave no trace; the other notes are shown after a failure only."""

OF_TOOLS = frozenset(
    """
    missing-argument repeated-argument too-many-arguments unknown-argument unknown-tool wrong-value
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Rules whose mistakes may be none if the server has changed its tools."""

_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True, kw_only=True)
class Check:
    """The preflight's verdict on a program.

    Attributes:
        revision: The revision of the inventory that was used; negative if the check is off.
    """

    verdict: Verdict
    servers: tuple[str, ...] = ()
    revision: int = -1

    @property
    def may_be_outdated(self) -> bool:
        """Whether every certain mistake depends on a tool's known definition."""
        return all(found.rule in OF_TOOLS for found in self.verdict.certain)


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
    result: RunResult,
    program: Reading,
    verdict: Verdict = NOTHING,
    restarted: Collection[str] = (),
) -> RunResult:
    """Return a result with its program's repairs and findings.

    Args:
        verdict: The preflight's verdict; notes that do not help the reader are left out.
        restarted: The servers that restarted during the run.
    """
    scan, found = program.scan, list(verdict.certain)
    syntax = next((one for one in verdict.findings if one.rule == SYNTAX), None)
    if syntax is not None and _is_syntax_error(result):
        result = _unreadable(result, syntax)
        found.append(dataclasses.replace(syntax, severity="deny"))
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
    return dataclasses.replace(
        result,
        findings=tuple(sorted(found, key=lambda one: (one.line, one.column))),
        findings_omitted=scan.omitted + (verdict.omitted if verdict.certain else 0),
    )


def _is_syntax_error(result: RunResult) -> bool:
    if result.reason != "exception" or result.stdout or result.usage.tool_calls:
        return False
    lines = [line for line in result.error.splitlines() if not line.startswith("Hint: ")]
    return bool(lines) and lines[-1].startswith(_SYNTAX_ERRORS)


def _unreadable(result: RunResult, syntax: Finding) -> RunResult:
    advice = syntax.message.partition(" reads it. ")[2]
    hint = "" if not advice or "\nHint: " in result.error else f"\nHint: {advice}"
    return dataclasses.replace(
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
            told.append(_message(found, lines))
            continue
        said, mark, signature = found.message.partition(SIGNATURE)
        if mark and following.message.endswith(mark + signature):
            found = dataclasses.replace(found, message=said)
        told.append(str(found))
    return told


def _message(found: Finding, lines: Sequence[str]) -> str:
    if not 0 < found.line <= len(lines):
        return str(found)
    return f"{found}\n    {clip(lines[found.line - 1].strip(), 160)}"


def _short(found: Finding) -> str:
    where = f"line {found.line}: " if found.line else ""
    return f"{where}{clip(found.message, 160)}"
