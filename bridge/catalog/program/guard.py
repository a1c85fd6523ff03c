"""The static guard: what a program says it will do, read before it runs. Pure.

Owns the verdict on a program: what in it the rules name, with the line. It is advice in depth and
no boundary: a program that wants to hide something from it can, and the sandbox holds without it.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from bridge.catalog.program.meaning import IMPORTERS, Meanings
from bridge.catalog.program.parsing import Unread, parse
from bridge.catalog.program.report import plainly
from bridge.catalog.program.rules import (
    COMPUTED_IMPORT,
    DEFAULT,
    NOT_BACK,
    SAVERS,
    SENSITIVE_PATH,
    Rule,
    Rules,
    is_left,
)
from bridge.catalog.program.survey import Place, Survey
from bridge.model import Finding

MAX_FINDINGS = 50
"""Reported; the rest is counted. Whoever mends fifty places runs the program again."""

MAX_PATH_ARGUMENTS = 4
"""Arguments of a call looked at for paths; no function in the table takes more."""

_MAX_SHOWN_CHARS = 80

_ACCESSORS = frozenset({"builtins.getattr", "builtins.setattr", "builtins.delattr"})
_GETTERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
_PATH_METHODS = frozenset(
    {"exists", "iterdir", "open", "read_bytes", "read_text", "write_bytes", "write_text"}
)
_OWN_MODULES = "mcp."


@dataclass(frozen=True, kw_only=True)
class Scan:
    """What the guard has to say.

    Attributes:
        allowed: Whether nothing was found that denies the program.
        findings: In the order of the lines; what denies is kept before what only notes.
        omitted: How many more there were.
        read: Whether the program could be read at all; if not, the one finding says why.
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
    """Return what `rules` make of a program's text."""
    tree = parse(code)
    return unread(tree) if isinstance(tree, Unread) else check(Survey(tree), rules)


def unread(why: Unread) -> Scan:
    """Return the verdict on a program that has no tree."""
    return Scan(allowed=False, findings=(why.finding,), read=False)


def check(survey: Survey, rules: Rules = DEFAULT, *, files_stay: bool = False) -> Scan:
    """Return what `rules` make of a program. Belongs in any thread.

    Args:
        files_stay: Whether the next program finds what this one writes, as in a session.
    """
    checker = _Checker(survey, rules, files_stay)
    checker.check()
    return checker.verdict()


class _Checker:
    """Holds what one program's tree says against the rules."""

    def __init__(self, survey: Survey, rules: Rules, files_stay: bool) -> None:
        self._survey = survey
        self._rules = rules
        self._files_stay = files_stay
        self._meanings = Meanings(survey, {})
        self._kept: dict[str, list[Finding]] = {"deny": [], "note": []}
        self._seen: set[tuple[int, str]] = set()
        self._omitted = 0
        self._tails = frozenset(name.rpartition(".")[2] for name in rules.references)
        self._saved: list[tuple[ast.AST, str]] = []

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
            (getattr(node, "lineno", 0), check, node, place)
            for kind, check in checks
            for node, place in self._survey.every(kind)
        ]
        # In the order of the text: what is beyond the bound is the end of the program.
        for _, check, node, place in sorted(found, key=lambda item: item[0]):
            check(node, place)
        if self._saved and not self._files_stay:
            constants = (node.value for node, _ in self._survey.every(ast.Constant))
            named = Counter(value for value in constants if isinstance(value, str))
            for node, path in self._saved:
                # What is named again may be read again.
                if named[path] == 1:
                    self._report(node, NOT_BACK, path)

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
                # The tree counts bytes from 0; everybody else counts from 1.
                column=getattr(node, "col_offset", -1) + 1,
                rule=rule.name,
                message=f"`{shown}` {rule.why}",
                severity=rule.severity,
            )
        )

    def _module(self, node: ast.AST, dotted: str) -> bool:
        """Report a module that is in the tables; return whether it is."""
        rule = self._rules.module(dotted)
        if rule is not None:
            self._report(node, rule, f"import {dotted}")
        return rule is not None

    def _import(self, node: ast.Import, _: Place) -> None:
        for item in node.names:
            self._module(node, item.name)

    def _import_from(self, node: ast.ImportFrom, _: Place) -> None:
        if node.level or not node.module or self._module(node, node.module):
            return
        for item in node.names:
            dotted = f"{node.module}.{item.name}"
            if not self._module(node, dotted):
                self._reference(node, (dotted,))

    def _reference(self, node: ast.AST, meanings: Iterable[str]) -> None:
        for dotted in meanings:
            rule = self._rules.references.get(dotted)
            if rule is not None:
                self._report(node, rule, dotted.removeprefix("builtins."))

    def _save(self, node: ast.Call) -> None:
        """Take note of a file that is written where nothing comes back from."""
        function, path = node.func, node.args[0]
        if not (isinstance(path, ast.Constant) and isinstance(path.value, str)):
            return
        if isinstance(function, ast.Attribute):
            writes = function.attr in SAVERS
        else:
            mode = node.args[1] if len(node.args) > 1 else None
            writes = isinstance(function, ast.Name) and function.id == "open"
            writes = writes and isinstance(mode, ast.Constant) and mode.value in ("w", "wb")
        if writes and is_left(path.value):
            self._saved.append((node, path.value))

    def _name(self, node: ast.Name, place: Place) -> None:
        if not isinstance(node.ctx, ast.Load) or node.id not in self._tails:
            return
        # A name that was imported or given is reported where that happened.
        if self._survey.owner(node.id, place) is None:
            self._reference(node, self._meanings.dotted(node, place))

    def _attribute(self, node: ast.Attribute, place: Place) -> None:
        rule = self._rules.attributes.get(node.attr)
        if rule is not None:
            self._report(node, rule, f".{node.attr}")
        elif node.attr in self._tails:
            self._reference(node, self._meanings.dotted(node, place))

    def _match_class(self, node: ast.MatchClass, _: Place) -> None:
        for name in node.kwd_attrs:
            self._attribute_text(node, name)

    def _attribute_text(self, node: ast.AST, text: str) -> None:
        rule = self._rules.attributes.get(text)
        if rule is not None:
            self._report(node, rule, f".{text}")

    def _subscript(self, node: ast.Subscript, place: Place) -> None:
        key = self._meanings.text(node.slice, place)
        if key is None:
            return
        if key.startswith("__"):
            self._attribute_text(node, key)
        self._reference(node, self._meanings.dotted(node, place))
        if "sys.modules" in self._meanings.dotted(node.value, place):
            self._module(node, key)

    def _call(self, node: ast.Call, place: Place) -> None:
        function = node.func
        if node.args:
            self._save(node)
        for dotted in self._meanings.dotted(function, place):
            rule = self._rules.calls.get(dotted)
            if rule is not None:
                self._report(node, rule, f"{dotted.removeprefix('builtins.')}()")
            elif dotted in IMPORTERS:
                self._import_call(node, place, dotted)
            elif dotted in _ACCESSORS and len(node.args) > 1:
                self._accessor(node, place)
            elif dotted in _GETTERS:
                self._named_attributes(node, node.args, place)
            elif dotted in self._rules.openers:
                self._paths(node, place)
        if isinstance(function, ast.Attribute):
            if function.attr in ("__getattribute__", "__getattr__"):
                self._named_attributes(node, node.args, place)
            elif function.attr == "connect":
                # A socket of the host's is connected to by its path.
                self._paths(node, place)
            elif function.attr in _PATH_METHODS:
                self._path(node, function.value, place)

    def _import_call(self, node: ast.Call, place: Place, function: str) -> None:
        named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        for argument in (node.args or named)[:1]:
            name = self._meanings.text(argument, place)
            if name is not None:
                self._module(node, name)
            elif not self._meanings.start(argument, place).startswith(_OWN_MODULES):
                # Which server's module is chosen is the program's own affair.
                self._report(node, COMPUTED_IMPORT, f"{function.removeprefix('builtins.')}()")

    def _accessor(self, node: ast.Call, place: Place) -> None:
        self._named_attributes(node, node.args[1:2], place)
        self._reference(node, self._meanings.dotted(node, place))

    def _named_attributes(self, node: ast.Call, given: list[ast.expr], place: Place) -> None:
        for argument in given[:MAX_PATH_ARGUMENTS]:
            text = self._meanings.text(argument, place)
            for part in text.split(".") if text else ():
                self._attribute_text(node, part)

    def _paths(self, node: ast.Call, place: Place) -> None:
        given = [*node.args[:MAX_PATH_ARGUMENTS], *(item.value for item in node.keywords)]
        for argument in given[: 2 * MAX_PATH_ARGUMENTS]:
            self._path(node, argument, place)

    def _path(self, node: ast.Call, argument: ast.expr, place: Place) -> None:
        path = self._meanings.text(argument, place)
        if path is not None and self._rules.sensitive(path):
            self._report(node, SENSITIVE_PATH, path)
