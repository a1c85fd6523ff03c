"""The check of a program against its servers' tools, before it runs.

Owns the order: a program is checked against the tools that are known before anything is started
for it, and again only if its servers turn out to have others. What is certain stops the run; notes
are kept for a run that fails, where they may explain it. A syntax error that the
sandbox confirms is reported as one found here is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from bridge.catalog.program.checks import Verdict, check_program
from bridge.catalog.program.parsing import SYNTAX, Unread, explained
from bridge.catalog.program.report import SIGNATURE, lines_of
from bridge.catalog.program.survey import Survey
from bridge.catalog.prose import clip
from bridge.model import Finding, RunResult
from bridge.runs.reading import by_size
from bridge.servers.servers import Servers
from bridge.settings import Settings

MAX_TOLD = 12
"""Findings in the text of a refusal; the record has more."""

MAX_LINE_CHARS = 160
"""Of a program's line under a finding."""

TOLD_ON_SUCCESS = frozenset({"missing-await", "not-called", "alias"})
"""Notes on what leaves no trace when it goes wrong; the others explain a failure."""

OF_TOOLS = frozenset(
    {
        "arguments-in-dict",
        "missing-argument",
        "repeated-argument",
        "too-many-arguments",
        "unknown-argument",
        "unknown-tool",
        "wrong-value",
    }
)
"""What other tools than the known ones might mend."""

_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True, kw_only=True)
class Check:
    """The verdict on a program.

    Attributes:
        servers: Those that it was checked against.
        revision: Of the inventory of servers that it was checked against.
    """

    verdict: Verdict
    servers: tuple[str, ...] = ()
    revision: int = -1

    @property
    def may_be_mended(self) -> bool:
        """Whether every certain mistake depends on a tool's definition, which may be outdated."""
        return all(found.rule in OF_TOOLS for found in self.verdict.certain)


class ProgramChecks:
    """Checks programs against the servers' tools as they are known now."""

    def __init__(self, servers: Servers, settings: Settings) -> None:
        self._servers = servers
        self._on = settings.preflight == "check"

    async def check(
        self,
        code: str,
        survey: Survey | Unread,
        servers: tuple[str, ...],
        *,
        more_names: bool = False,
    ) -> Check:
        """Return what is wrong with a program.

        Args:
            survey: Why there is none if it could not be read.
            servers: Those that the run has.
            more_names: Whether it may use names that it does not bind, as those of a session.
        """
        known = self._servers.inventory
        if not self._on:
            return Check(verdict=Verdict(), revision=known.revision)
        if isinstance(survey, Unread):
            return Check(verdict=_unread(code, survey), revision=known.revision)
        entries = [known.entry(name) for name in servers if name in known.aliases]
        revision, aliases = known.revision, known.aliases
        verdict = await by_size(code, check_program, survey, entries, aliases, more_names)
        return Check(verdict=verdict, servers=servers, revision=revision)

    def stale(self, check: Check) -> bool:
        """Return whether something else is known of the servers since a check."""
        return self._on and check.revision != self._servers.inventory.revision


def stopped(run_id: str, code: str, verdict: Verdict, timeout: float) -> RunResult:
    """Return the result of a program that was not started."""
    certain = verdict.certain
    count = "a mistake" if len(certain) == 1 else f"{len(certain)} mistakes"
    lines = lines_of(code)
    told = _all_told(certain[:MAX_TOLD], lines)
    if len(certain) > MAX_TOLD:
        told.append(f"... and {len(certain) - MAX_TOLD} more")
    notes = _all_told(verdict.notes[: MAX_TOLD // 3], lines)
    if notes:
        told += ["Not certain:", *notes]
    remedy = "Nothing was started and no tool was called. Mend this and run the program again."
    return RunResult(
        run_id=run_id,
        status="validation_error",
        reason="validation",
        summary=f"The program was not run: it has {count}, first in {_short(certain[0])}",
        error="\n".join((*told, remedy)),
        timeout_seconds=timeout,
        findings=verdict.findings,
        findings_omitted=verdict.omitted,
    )


def with_notes(result: RunResult, code: str, verdict: Verdict) -> RunResult:
    """Return a run's result with those notes that help its reader."""
    syntax = next((found for found in verdict.findings if found.rule == SYNTAX), None)
    if syntax is not None and _refused_there(result):
        return _unreadable(result, code, syntax)
    failed = result.status != "success"
    notes = tuple(
        found
        for found in verdict.notes
        if found.rule != SYNTAX and (failed or found.rule in TOLD_ON_SUCCESS)
    )
    notes += verdict.lost if result.silent else ()
    if not notes:
        return result
    findings = sorted((*result.findings, *notes), key=lambda found: (found.line, found.column))
    return dataclasses.replace(result, findings=tuple(findings))


def _unread(code: str, why: Unread) -> Verdict:
    """Return the verdict on a program without a tree: only what is no Python is the author's."""
    if why.finding.rule != SYNTAX:
        return Verdict()
    return Verdict(findings=(explained(code, why.finding),))


def _refused_there(result: RunResult) -> bool:
    """Return whether the sandbox's Python could not read the program either."""
    if result.reason != "exception" or result.stdout or result.usage.tool_calls:
        return False
    lines = [line for line in result.error.splitlines() if not line.startswith("Hint: ")]
    return bool(lines) and lines[-1].startswith(_SYNTAX_ERRORS)


def _unreadable(result: RunResult, code: str, syntax: Finding) -> RunResult:
    advice = syntax.message.partition(" reads it. ")[2]
    hint = "" if not advice or "\nHint: " in result.error else f"\nHint: {advice}"
    return dataclasses.replace(
        result,
        status="validation_error",
        reason="validation",
        summary=f"The program cannot be read: {_short(syntax)}",
        error=f"{result.error}{hint}",
        findings=(dataclasses.replace(syntax, severity="deny"),),
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
    """Return a finding with the line that it is about."""
    if not 0 < found.line <= len(lines):
        return str(found)
    return f"{found}\n    {clip(lines[found.line - 1].strip(), MAX_LINE_CHARS)}"


def _short(found: Finding) -> str:
    where = f"line {found.line}: " if found.line else ""
    return f"{where}{clip(found.message, MAX_LINE_CHARS)}"
