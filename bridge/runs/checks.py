"""The verdict on a program before it runs, and what results show of it.

Owns the order: a program is checked against the tools that are known before anything is started
for it, and again only if its servers turn out to have others. Owns the modes of the static guard:
"off" finds nothing, "advise" lets every program run, "enforce" refuses what the guard denies and
what cannot be read. A syntax error that the sandbox confirms is reported as one found here is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from bridge.catalog.program.advice import SIGNATURE
from bridge.catalog.program.checks import find_lost_value
from bridge.catalog.program.findings import NOTHING, SYNTAX, Unread, Verdict, lines_of
from bridge.catalog.program.survey import Survey
from bridge.catalog.prose import clip
from bridge.model import Finding, RunResult
from bridge.runs.reading import Reading

TOLD_ON_SUCCESS = frozenset({"missing-await", "not-called", "alias"})
"""Notes on what leaves no trace when it goes wrong; the others explain a failure."""

OF_TOOLS = frozenset(
    """
    missing-argument repeated-argument too-many-arguments unknown-argument unknown-tool wrong-value
    """.split()  # noqa: SIM905 - as words they can be read
)
"""What other tools than the known ones might fix."""

_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True, kw_only=True)
class Check:
    """The preflight's verdict on a program.

    Attributes:
        revision: Of the inventory of servers that it was checked against; negative if it is off.
    """

    verdict: Verdict
    servers: tuple[str, ...] = ()
    revision: int = -1

    @property
    def may_be_mended(self) -> bool:
        """Whether every certain mistake depends on a tool's definition, which may be outdated."""
        return all(found.rule in OF_TOOLS for found in self.verdict.certain)


def refused(run_id: str, program: Reading, verdict: Verdict, timeout: float) -> RunResult:
    """Return the result of a program that the guard, or the preflight, keeps from starting."""
    certain, lines = verdict.certain, lines_of(program.code)
    by_guard = certain[0].source == "guard"
    told = _all_told(certain[:12], lines)
    if untold := len(certain) - len(told) + verdict.omitted:
        told.append(f"... and {untold} more")
    remedy = "The program didn't run and no tool was called. Fix it and try again."
    if not by_guard:
        count = "a mistake" if len(certain) == 1 else f"{len(certain)} mistakes"
        summary = f"The program was not run: it has {count}, first in {_short(certain[0])}"
        notes = _all_told(verdict.notes[:4], lines)
        told += ["Not certain:", *notes] if notes else []
    elif isinstance(program.survey, Unread):
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
        timeout_seconds=timeout,
    )


def add_findings(
    result: RunResult,
    program: Reading,
    verdict: Verdict = NOTHING,
    restarted: Collection[str] = (),
) -> RunResult:
    """Return a result with what was found in its program: repairs, and the guard's findings.

    Args:
        verdict: The preflight's. Of its notes, those are added that help the result's reader.
        restarted: The servers that were restarted during the run.
    """
    scan, found = program.scan, list(verdict.certain)
    syntax = next((one for one in verdict.findings if one.rule == SYNTAX), None)
    if syntax is not None and _refused_there(result):
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


def _refused_there(result: RunResult) -> bool:
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


def _all_told(findings: Sequence[Finding], lines: Sequence[str]) -> list[str]:
    """Return findings with their lines; a line, and a signature, once for those that share it."""
    told = []
    for found, following in zip_longest(findings, findings[1:]):
        if following is None or following.line != found.line:
            told.append(_told(found, lines))
            continue
        said, mark, signature = found.message.partition(SIGNATURE)
        if mark and following.message.endswith(mark + signature):
            found = dataclasses.replace(found, message=said)
        told.append(str(found))
    return told


def _told(found: Finding, lines: Sequence[str]) -> str:
    if not 0 < found.line <= len(lines):
        return str(found)
    return f"{found}\n    {clip(lines[found.line - 1].strip(), 160)}"


def _short(found: Finding) -> str:
    where = f"line {found.line}: " if found.line else ""
    return f"{where}{clip(found.message, 160)}"
