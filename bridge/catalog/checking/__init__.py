"""The preflight: whether a program fits the tools it calls, read before it runs. Pure.

Owns the verdict on a program's tree: what is certain to go wrong, and what may. Certain is what
fails, or does not do what is meant, in whatever way the program is run: not what some `except`
around it catches, not what is never reached, not what only other data would tell. Only that stops a
run; everything else is a note. Nothing is executed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from bridge.catalog.checking.awaits import Awaits
from bridge.catalog.checking.calls import Calls
from bridge.catalog.checking.certainty import Certainty
from bridge.catalog.checking.meaning import Meanings
from bridge.catalog.checking.modules import check_modules
from bridge.catalog.checking.names import check_names
from bridge.catalog.checking.report import Report
from bridge.catalog.checking.results import check_results
from bridge.catalog.checking.skills import check_skills
from bridge.catalog.checking.survey import Survey
from bridge.catalog.entries import ServerEntry
from bridge.model import Finding


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was found.

    Attributes:
        findings: In the order of the lines.
        omitted: How many more there were.
    """

    findings: tuple[Finding, ...] = ()
    omitted: int = 0

    @property
    def certain(self) -> tuple[Finding, ...]:
        """What stops the run."""
        return tuple(found for found in self.findings if found.severity == "deny")

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What does not."""
        return tuple(found for found in self.findings if found.severity == "note")


def check_program(
    survey: Survey,
    servers: Sequence[ServerEntry],
    aliases: Mapping[str, str],
    more_names: bool = False,
    skills: Collection[str] | None = None,
) -> Verdict:
    """Return what is wrong with a program.

    Args:
        survey: Of the program, from whoever read it.
        servers: Those whose tools are known, as the run would have them.
        aliases: Name and alias of every server there is.
        more_names: Whether it may use names that it does not bind, as those of a session.
        skills: Names of those that are saved; None if that is not known.
    """
    report = Report()
    meanings = Meanings(survey, {server.alias: server for server in servers if server.known})
    certainty = Certainty(survey)
    Calls(survey, meanings, certainty, report).check()
    Awaits(survey, meanings, certainty, report).check(survey.tree)
    known = frozenset(aliases.values())
    if not more_names:
        # In a session most are an earlier program's; of the others the interpreter says enough.
        check_names(survey, certainty, report, known)
    check_modules(survey, certainty, report, known)
    if skills is not None:
        check_skills(survey, meanings, certainty, report, skills)
    check_results(survey, meanings, report)
    return Verdict(findings=report.findings(), omitted=report.omitted)
