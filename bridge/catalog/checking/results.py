"""Keys that a tool's result does not have, as far as it is known what the tool returns.

Never certain: servers return what their schemas do not name, and observed shapes are only what was
seen so far.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from bridge.catalog.checking.meaning import RESULT, Meaning, Meanings
from bridge.catalog.checking.places import Place
from bridge.catalog.checking.report import Report, listed, nearest, quoted
from bridge.catalog.checking.survey import Survey
from bridge.model import Json

RULE = "unknown-key"

_DICT_ATTRIBUTES = frozenset(dir(dict))
_LIST_ATTRIBUTES = frozenset(dir(list))


def check_results(survey: Survey, meanings: Meanings, report: Report) -> None:
    """Report keys that are not among those that are known."""
    for node, place in survey.each(ast.Subscript):
        assert isinstance(node, ast.Subscript)
        key = node.slice
        name = key.value if isinstance(key, ast.Constant) else None
        if isinstance(node.ctx, ast.Load) and isinstance(name, str):
            _check(node, node.value, name, place, meanings, report)
    for node, place in survey.each(ast.Attribute):
        assert isinstance(node, ast.Attribute)
        if isinstance(node.ctx, ast.Load) and not node.attr.startswith("_"):
            _check(node, node.value, node.attr, place, meanings, report)


def _check(
    node: ast.AST, value: ast.expr, key: str, place: Place, meanings: Meanings, report: Report
) -> None:
    meaning = meanings.of(value, place)
    if meaning is None or meaning.kind != RESULT or meaning.tool is None:
        return
    schema, observed = _schema(meaning)
    kind = schema.get("type")
    source = "as far as was observed" if observed else "by its output schema"
    if kind == "array":
        if isinstance(node, ast.Subscript) or key not in _LIST_ATTRIBUTES:
            message = (
                f"{quoted(meaning.name)} returns a list ({source}); take an item first, or loop "
                f"over it, before {quoted(key)}"
            )
            report.add(node, RULE, "note", message)
        return
    properties = schema.get("properties")
    if kind not in (None, "object") or not isinstance(properties, Mapping) or not properties:
        return
    if key in properties or (isinstance(node, ast.Attribute) and key in _DICT_ATTRIBUTES):
        return
    names = [str(name) for name in properties]
    near = nearest(key, names)
    hint = f" Did you mean {quoted(near)}?" if near else ""
    message = (
        f"the result of {quoted(meaning.name)} has no key {quoted(key)} ({source}).{hint} "
        f"Keys: {listed(names)}"
    )
    report.add(node, RULE, "note", message)


def _schema(meaning: Meaning) -> tuple[Mapping[str, Json], bool]:
    assert meaning.tool is not None
    declared = meaning.tool.tool.result_schema
    if declared is not None:
        return declared, False
    return meaning.tool.observed or {}, True
