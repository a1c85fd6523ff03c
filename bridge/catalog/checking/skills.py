"""Saved skills that a program names and that there are not."""

from __future__ import annotations

import ast
from collections.abc import Collection

from bridge.catalog.checking.certainty import Certainty
from bridge.catalog.checking.meaning import MEMBER, Meanings
from bridge.catalog.checking.report import Report, did_you_mean, listed, quoted
from bridge.catalog.checking.survey import Survey

RULE = "unknown-skill"
PACKAGE = "skills"


def check_skills(
    survey: Survey,
    meanings: Meanings,
    certainty: Certainty,
    report: Report,
    skills: Collection[str],
) -> None:
    """Report imports and uses of skills that nobody has saved."""
    for node, place in survey.each(ast.ImportFrom):
        assert isinstance(node, ast.ImportFrom)
        if node.module != PACKAGE or node.level:
            continue
        for item in node.names:
            if item.name not in skills and item.name != "*" and not item.name.startswith("_"):
                report.add(
                    node, RULE, certainty.raises(place, "ImportError"), _told(item.name, skills)
                )
    for node, place in survey.each(ast.Attribute):
        assert isinstance(node, ast.Attribute)
        if node.attr in skills or node.attr.startswith("_") or not isinstance(node.ctx, ast.Load):
            continue
        base = meanings.of(node.value, place)
        if base is not None and base.kind == MEMBER and base.name == PACKAGE:
            severity = certainty.raises(place, "AttributeError")
            report.add(node, RULE, severity, _told(node.attr, skills))


def _told(name: str, skills: Collection[str]) -> str:
    near = did_you_mean(name, sorted(skills))
    if not near:
        near = f" Saved: {listed(sorted(skills))}." if skills else " None is saved yet."
    return f"no skill is called {quoted(name)}.{near}"
