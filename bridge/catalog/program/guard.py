"""The static guard: finds what `guard_rules` names in a program's text. Pure.

It is defence in depth and no security boundary: a program can hide its intent from the guard, and
the sandbox does not rely on it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from posixpath import normpath

from bridge.catalog.program.guard_rules import (
    ATTRIBUTES,
    CALLS,
    DENIED,
    NOTED,
    OPENERS,
    REFERENCES,
    is_sensitive,
    rule_of_module,
)
from bridge.catalog.program.report import Report, Verdict, plainly
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import IMPORTERS, SymbolResolver
from bridge.model import Severity

_ACCESSORS = frozenset({"builtins.getattr", "builtins.setattr", "builtins.delattr"})
_GETTERS = frozenset({"operator.attrgetter", "operator.methodcaller"})
_PATH_METHODS = frozenset(
    {"exists", "iterdir", "open", "read_bytes", "read_text", "write_bytes", "write_text"}
)
_TAILS = frozenset(name.rpartition(".")[2] for name in REFERENCES)


def check(survey: Survey, denied: Sequence[str] = ()) -> Verdict:
    """Return the guard's verdict on a program. May run in any thread.

    Args:
        denied: What the settings deny as well: modules, functions, attributes (".name") and paths.
    """
    checker = _Checker(survey, denied)
    checker.check()
    return checker.report.verdict()


class _Checker:
    def __init__(self, survey: Survey, denied: Sequence[str]) -> None:
        self._denied = denied
        self._tails = _TAILS | {name.rpartition(".")[2] for name in denied}
        self.report = Report("guard")
        self._survey = survey
        self._symbols = SymbolResolver(survey, {})

    def check(self) -> None:
        checks = (
            (ast.Import, self._import),
            (ast.ImportFrom, self._import),
            (ast.Name, self._name),
            (ast.Attribute, self._attribute),
            (ast.Subscript, self._subscript),
            (ast.Call, self._call),
            (ast.MatchClass, self._match_class),
        )
        for kind, check in checks:
            for node, context in self._survey.every(kind):
                check(node, context)

    def _add(self, node: ast.AST, rule: str | None, subject: str) -> bool:
        if rule is not None:
            severity: Severity = "deny" if rule in DENIED else "note"
            why = DENIED.get(rule) or NOTED[rule]
            self.report.add(node, rule, severity, f"`{plainly(subject, 80)}` {why}")
        return rule is not None

    def _import(self, node: ast.Import | ast.ImportFrom, _: Context) -> None:
        module = ""
        if isinstance(node, ast.ImportFrom):
            module = "" if node.level else node.module or ""
            if not module or self._module(node, module):
                return
        for item in node.names:
            dotted = f"{module}.{item.name}" if module else item.name
            if not self._module(node, dotted):
                self._reference(node, [dotted])

    def _module(self, node: ast.AST, dotted: str) -> bool:
        rule = rule_of_module(dotted) or self._listed(dotted)
        return self._add(node, rule, f"import {dotted}")

    def _listed(self, name: str) -> str | None:
        below = (name == each or name.startswith((f"{each}.", f"{each}/")) for each in self._denied)
        return "listed" if any(below) else None

    def _reference(self, node: ast.AST, symbols: Iterable[str]) -> None:
        for dotted in symbols:
            name = dotted.removeprefix("builtins.")
            self._add(node, REFERENCES.get(dotted) or self._listed(name), name)

    def _attribute_text(self, node: ast.AST, text: str) -> bool:
        return self._add(node, ATTRIBUTES.get(text) or self._listed(f".{text}"), f".{text}")

    def _name(self, node: ast.Name, context: Context) -> None:
        if not isinstance(node.ctx, ast.Load) or node.id not in self._tails:
            return
        # A name that the program binds is reported where it is bound.
        if self._survey.owner(node.id, context) is None:
            self._reference(node, self._symbols.dotted(node, context))

    def _attribute(self, node: ast.Attribute, context: Context) -> None:
        if not self._attribute_text(node, node.attr) and node.attr in self._tails:
            self._reference(node, self._symbols.dotted(node, context))

    def _match_class(self, node: ast.MatchClass, _: Context) -> None:
        for name in node.kwd_attrs:
            self._attribute_text(node, name)

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
            rule = CALLS.get(dotted)
            if rule is not None:
                self._add(node, rule, f"{dotted.removeprefix('builtins.')}()")
            elif dotted in IMPORTERS:
                self._import_call(node, context, dotted)
            elif dotted in _ACCESSORS and len(node.args) > 1:
                self._named_attributes(node, node.args[1:2], context)
                self._reference(node, self._symbols.dotted(node, context))
            elif dotted in _GETTERS:
                self._named_attributes(node, node.args, context)
            elif dotted in OPENERS:
                self._paths(node, _arguments(node), context)
        if isinstance(function, ast.Attribute):
            if function.attr in ("__getattribute__", "__getattr__"):
                self._named_attributes(node, node.args, context)
            elif function.attr == "connect":
                # A socket of the host's is connected to by its path.
                self._paths(node, _arguments(node), context)
            elif function.attr in _PATH_METHODS:
                self._paths(node, [function.value], context)

    def _import_call(self, node: ast.Call, context: Context, function: str) -> None:
        named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        for argument in (node.args or named)[:1]:
            name = self._symbols.text(argument, context)
            if name is not None:
                self._module(node, name)
            elif not self._symbols.start(argument, context).startswith("mcp."):
                # A computed name of a server's module is allowed.
                self._add(node, "computed-import", f"{function.removeprefix('builtins.')}()")

    def _named_attributes(self, node: ast.Call, given: list[ast.expr], context: Context) -> None:
        for argument in given:
            text = self._symbols.text(argument, context)
            for part in text.split(".") if text else ():
                self._attribute_text(node, part)

    def _paths(self, node: ast.Call, given: Iterable[ast.expr], context: Context) -> None:
        for argument in given:
            path = self._symbols.text(argument, context)
            if path is not None:
                rule = "sensitive-path" if is_sensitive(path) else self._listed(normpath(path))
                self._add(node, rule, path)


def _arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(item.value for item in node.keywords)]
