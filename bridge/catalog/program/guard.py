"""The static guard: finds what `guard_rules` names in a program's text. Pure.

It is defence in depth and no security boundary: a program can hide its intent from the guard, and
the sandbox does not rely on it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from bridge.catalog.program.guard_rules import (
    COMPUTED_IMPORT,
    DEFAULT,
    SENSITIVE_PATH,
    Rule,
    Rules,
)
from bridge.catalog.program.parsing import Unread, parse
from bridge.catalog.program.report import plainly
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import IMPORTERS, SymbolResolver
from bridge.model import Finding

MAX_FINDINGS = 50
"""Findings reported; the rest is counted. After fixing fifty, the program is checked again."""

MAX_PATH_ARGUMENTS = 4
"""Arguments of a call that may be paths; no function in the table takes more."""

_MAX_SHOWN_CHARS = 80

_ACCESSORS = frozenset({"builtins.getattr", "builtins.setattr", "builtins.delattr"})
_GETTERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
_PATH_METHODS = frozenset(
    {"exists", "iterdir", "open", "read_bytes", "read_text", "write_bytes", "write_text"}
)
_OWN_MODULES = "mcp."


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The guard's verdict.

    Attributes:
        allowed: Whether no finding denies the program.
        findings: In the order of the lines; if there are too many, denials are kept before notes.
        omitted: Number of findings left out.
        read: Whether the program could be parsed; if not, the one finding says why.
    """

    allowed: bool = True
    findings: tuple[Finding, ...] = ()
    omitted: int = 0
    read: bool = True

    @property
    def denial(self) -> Finding | None:
        """The first finding that denies the program."""
        return next((found for found in self.findings if found.severity == "deny"), None)


def scan(code: str, rules: Rules = DEFAULT) -> Scan:
    """Return the guard's verdict on a program's text."""
    tree = parse(code)
    return unread(tree) if isinstance(tree, Unread) else check(Survey(tree), rules)


def unread(why: Unread) -> Scan:
    """Return the verdict on a program that has no tree."""
    return Scan(allowed=False, findings=(why.finding,), read=False)


def check(survey: Survey, rules: Rules = DEFAULT) -> Scan:
    """Return the guard's verdict on a program. May run in any thread."""
    checker = _Checker(survey, rules)
    checker.check()
    return checker.verdict()


class _Checker:
    """Applies the rules to one program."""

    def __init__(self, survey: Survey, rules: Rules) -> None:
        self._survey = survey
        self._rules = rules
        self._symbols = SymbolResolver(survey, {})
        self._kept: dict[str, list[Finding]] = {"deny": [], "note": []}
        self._seen: set[tuple[int, str]] = set()
        self._omitted = 0
        self._tails = frozenset(name.rpartition(".")[2] for name in rules.references)

    def check(self) -> None:
        checks = (
            (ast.Import, self._import),
            (ast.ImportFrom, self._import_from),
            (ast.Name, self._name),
            (ast.Attribute, self._attribute),
            (ast.Subscript, self._subscript),
            (ast.Call, self._call),
            (ast.MatchClass, self._match_class),
        )
        found = [
            (getattr(node, "lineno", 0), check, node, context)
            for kind, check in checks
            for node, context in self._survey.every(kind)
        ]
        # In the order of the text, so that the bound cuts off the end of the program.
        for _, check, node, context in sorted(found, key=lambda item: item[0]):
            check(node, context)

    def verdict(self) -> Scan:
        denials, notes = self._kept["deny"], self._kept["note"]
        found = (denials + notes)[:MAX_FINDINGS]
        return Scan(
            allowed=not denials,
            findings=tuple(sorted(found, key=lambda finding: (finding.line, finding.column))),
            omitted=self._omitted + len(denials) + len(notes) - len(found),
        )

    def _report(self, node: ast.AST, rule: Rule, subject: str) -> None:
        line = getattr(node, "lineno", 0)
        shown = plainly(subject, _MAX_SHOWN_CHARS)
        if (line, shown) in self._seen:
            return
        kept = self._kept[rule.severity]
        if len(kept) >= MAX_FINDINGS:
            self._omitted += 1
            return
        self._seen.add((line, shown))
        kept.append(
            Finding(
                line=line,
                # The tree counts columns from 0, a finding from 1.
                column=getattr(node, "col_offset", -1) + 1,
                rule=rule.name,
                message=f"`{shown}` {rule.why}",
                severity=rule.severity,
            )
        )

    def _module(self, node: ast.AST, dotted: str) -> bool:
        """Report a module that is in the tables; return whether it was."""
        rule = self._rules.module(dotted)
        if rule is not None:
            self._report(node, rule, f"import {dotted}")
        return rule is not None

    def _import(self, node: ast.Import, _: Context) -> None:
        for item in node.names:
            self._module(node, item.name)

    def _import_from(self, node: ast.ImportFrom, _: Context) -> None:
        if node.level or not node.module or self._module(node, node.module):
            return
        for item in node.names:
            dotted = f"{node.module}.{item.name}"
            if not self._module(node, dotted):
                self._reference(node, (dotted,))

    def _reference(self, node: ast.AST, symbols: Iterable[str]) -> None:
        for dotted in symbols:
            rule = self._rules.references.get(dotted)
            if rule is not None:
                self._report(node, rule, dotted.removeprefix("builtins."))

    def _name(self, node: ast.Name, context: Context) -> None:
        if not isinstance(node.ctx, ast.Load) or node.id not in self._tails:
            return
        # A name that the program binds is reported where it is bound.
        if self._survey.owner(node.id, context) is None:
            self._reference(node, self._symbols.dotted(node, context))

    def _attribute(self, node: ast.Attribute, context: Context) -> None:
        rule = self._rules.attributes.get(node.attr)
        if rule is not None:
            self._report(node, rule, f".{node.attr}")
        elif node.attr in self._tails:
            self._reference(node, self._symbols.dotted(node, context))

    def _match_class(self, node: ast.MatchClass, _: Context) -> None:
        for name in node.kwd_attrs:
            self._attribute_text(node, name)

    def _attribute_text(self, node: ast.AST, text: str) -> None:
        rule = self._rules.attributes.get(text)
        if rule is not None:
            self._report(node, rule, f".{text}")

    def _subscript(self, node: ast.Subscript, context: Context) -> None:
        key = self._symbols.text(node.slice, context)
        if key is None:
            return
        if key.startswith("__"):
            self._attribute_text(node, key)
        self._reference(node, self._symbols.dotted(node, context))
        if "sys.modules" in self._symbols.dotted(node.value, context):
            self._module(node, key)

    def _call(self, node: ast.Call, context: Context) -> None:
        function = node.func
        for dotted in self._symbols.dotted(function, context):
            rule = self._rules.calls.get(dotted)
            if rule is not None:
                self._report(node, rule, f"{dotted.removeprefix('builtins.')}()")
            elif dotted in IMPORTERS:
                self._import_call(node, context, dotted)
            elif dotted in _ACCESSORS and len(node.args) > 1:
                self._accessor(node, context)
            elif dotted in _GETTERS:
                self._named_attributes(node, node.args, context)
            elif dotted in self._rules.openers:
                self._paths(node, context)
        if isinstance(function, ast.Attribute):
            if function.attr in ("__getattribute__", "__getattr__"):
                self._named_attributes(node, node.args, context)
            elif function.attr == "connect":
                # A socket of the host's is connected to by its path.
                self._paths(node, context)
            elif function.attr in _PATH_METHODS:
                self._path(node, function.value, context)

    def _import_call(self, node: ast.Call, context: Context, function: str) -> None:
        named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        for argument in (node.args or named)[:1]:
            name = self._symbols.text(argument, context)
            if name is not None:
                self._module(node, name)
            elif not self._symbols.start(argument, context).startswith(_OWN_MODULES):
                # A computed name of a server's module is allowed.
                self._report(node, COMPUTED_IMPORT, f"{function.removeprefix('builtins.')}()")

    def _accessor(self, node: ast.Call, context: Context) -> None:
        self._named_attributes(node, node.args[1:2], context)
        self._reference(node, self._symbols.dotted(node, context))

    def _named_attributes(self, node: ast.Call, given: list[ast.expr], context: Context) -> None:
        for argument in given[:MAX_PATH_ARGUMENTS]:
            text = self._symbols.text(argument, context)
            for part in text.split(".") if text else ():
                self._attribute_text(node, part)

    def _paths(self, node: ast.Call, context: Context) -> None:
        given = [*node.args[:MAX_PATH_ARGUMENTS], *(item.value for item in node.keywords)]
        for argument in given[: 2 * MAX_PATH_ARGUMENTS]:
            self._path(node, argument, context)

    def _path(self, node: ast.Call, argument: ast.expr, context: Context) -> None:
        path = self._symbols.text(argument, context)
        if path is not None and self._rules.sensitive(path):
            self._report(node, SENSITIVE_PATH, path)
