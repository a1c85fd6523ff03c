"""The static guard: what a program says it will do, read before it runs. Pure.

Owns the verdict on a program's text: whether it is Python, and what in it the rules name, with the
line. It is advice in depth and no boundary: whoever wants to hide something from it can, and the
sandbox holds without it. Nothing is executed, imported or compiled to bytecode, and any text at all
is an answer, never an exception.

The program is parsed as the guest parses it, with this interpreter's grammar, which may be older or
newer than the sandbox's. What only compiling would find (`return` outside a function) is left to
the guest: compiling takes quadratic time over some small programs, parsing does not.
"""

from __future__ import annotations

import ast
import re
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from bridge.catalog.guard_names import IMPORTERS, Node, Reader, Scope
from bridge.catalog.guard_rules import (
    COMPUTED_IMPORT,
    DEFAULT,
    NOT_BACK,
    SAVERS,
    SENSITIVE_PATH,
    Rule,
    Rules,
    is_left,
)
from bridge.catalog.prose import clip
from bridge.model import Finding

MAX_SCANNED_CHARS = 128 * 1024
"""A tree of so much text takes a second and 130 MB to build. For the longest program that a run
accepts, ten seconds and 900 MB were measured."""

MAX_BRACES = 10_000
"""Opened in a program with f-strings. Python 3.11 parses each of their fields by itself: 20,000
take a third of a second."""

_F_STRING = re.compile("[fF][rR]?['\"]")

MAX_FINDINGS = 50
"""Reported; the rest is counted. Whoever mends fifty places runs the program again."""

MAX_PATH_ARGUMENTS = 4
"""Arguments of a call looked at for paths; no function in the table takes more."""

_MAX_SHOWN_CHARS = 80
_MAX_REASON_CHARS = 200

SYNTAX = "syntax"
TOO_DEEP = "too-deep"
TOO_LONG = "too-long"

_FILENAME = "<program>"
_PARSE_FLAGS = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
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

    @property
    def reason(self) -> str:
        """Why the program is not allowed; empty if it is."""
        return "" if self.denial is None else self.denial.message

    @property
    def line(self) -> int | None:
        """Where the reason is; None if there is none."""
        return None if self.denial is None else self.denial.line


def scan(code: str, rules: Rules = DEFAULT) -> Scan:
    """Return what `rules` make of a program."""
    tree = parse(code)
    return tree if isinstance(tree, Scan) else check(tree, rules)


def parse(code: str) -> ast.Module | Scan:
    """Return a program's tree, or the verdict on what has none.

    Belongs in the event loop's thread: it holds the interpreter's lock throughout, and turning
    warnings off is a matter of the whole process.
    """
    if len(code) > MAX_SCANNED_CHARS:
        message = (
            f"the program has {len(code):,} characters, and only {MAX_SCANNED_CHARS:,} can be "
            "checked; load data with tool calls instead of writing it into the program"
        )
        return _unread(Finding(line=0, rule=TOO_LONG, message=message))
    braces = code.count("{")
    if braces > MAX_BRACES and _F_STRING.search(code):
        message = f'the program has f-strings and "{{" {braces:,} times, more than {MAX_BRACES:,}'
        return _unread(Finding(line=0, rule=TOO_LONG, message=message))
    source = code.removeprefix("\ufeff")
    try:
        with warnings.catch_warnings():
            # Doubtful escapes in the user's strings are the user's affair.
            warnings.simplefilter("ignore")
            return _parse(source)
    except SyntaxError as error:
        return _unread(_syntax(error.msg, error.lineno, error.offset))
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        return _unread(_syntax(f"{source[error.start]!r} is no character", line, 0))
    except (ValueError, OverflowError, SystemError) as error:
        # Null bytes, in some releases; numbers of lines and columns past what a tree can hold.
        return _unread(_syntax(str(error), 0, 0))
    except (RecursionError, MemoryError):
        message = "the program is nested too deeply to be checked; split up its expressions"
        return _unread(Finding(line=0, rule=TOO_DEEP, message=message))


def check(tree: ast.Module, rules: Rules = DEFAULT, *, files_stay: bool = False) -> Scan:
    """Return what `rules` make of a program's tree. Belongs in any thread.

    Args:
        files_stay: Whether the next program finds what this one writes, as in a session.
    """
    checker = _Checker(rules, files_stay)
    checker.check(tree)
    return checker.verdict()


def _parse(source: str) -> ast.Module:
    try:
        return _compile(source)
    except IndentationError:
        # The guest takes a program that is indented as a whole for its inside.
        dedented = textwrap.dedent(source)
        if dedented == source:
            raise
        try:
            return _compile(dedented)
        except SyntaxError:
            pass
        # The first error has the author's own lines.
        raise


def _compile(source: str) -> ast.Module:
    tree = compile(source, _FILENAME, "exec", _PARSE_FLAGS, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def _unread(finding: Finding) -> Scan:
    return Scan(allowed=False, findings=(finding,), read=False)


def _syntax(message: str | None, line: int | None, column: int | None) -> Finding:
    said = _one_line(message or "not Python", _MAX_REASON_CHARS)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Finding(
        line=max(line or 0, 0),
        column=max(column or 0, 0),
        rule=SYNTAX,
        message=f"syntax error: {said}, as Python {version} reads it",
    )


def _one_line(text: str, size: int) -> str:
    """Return the program's own words, cut, with all that is not plainly visible written out."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in clip(text, size)
    )


class _Checker:
    """Holds what one program's tree says against the rules."""

    def __init__(self, rules: Rules, files_stay: bool) -> None:
        self._rules = rules
        self._files_stay = files_stay
        self._reader = Reader()
        self._kept: dict[str, list[Finding]] = {"deny": [], "note": []}
        self._seen: set[tuple[int, str]] = set()
        self._omitted = 0
        self._tails = frozenset(name.rpartition(".")[2] for name in rules.references)
        self._checks: dict[type[ast.AST], Callable[[Node, Scope], None]] = {
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Subscript: self._subscript,
            ast.Call: self._call,
            ast.MatchClass: self._match_class,
        }
        self._saved: list[tuple[Node, str]] = []

    def check(self, tree: ast.Module) -> None:
        for node, scope in self._reader.read(tree):
            check = self._checks.get(type(node))
            if check is not None:
                check(node, scope)
        if self._saved and not self._files_stay:
            named = Counter(
                node.value
                for node in ast.walk(tree)
                if isinstance(node, ast.Constant) and isinstance(node.value, str)
            )
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

    def _report(self, node: Node, rule: Rule, subject: str) -> None:
        line = getattr(node, "lineno", 0)
        shown = _one_line(subject, _MAX_SHOWN_CHARS)
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

    def _module(self, node: Node, dotted: str) -> bool:
        """Report a module that is in the tables; return whether it is."""
        rule = self._rules.module(dotted)
        if rule is not None:
            self._report(node, rule, f"import {dotted}")
        return rule is not None

    def _import(self, node: Node, _: Scope) -> None:
        assert isinstance(node, ast.Import)
        for item in node.names:
            self._module(node, item.name)

    def _import_from(self, node: Node, _: Scope) -> None:
        assert isinstance(node, ast.ImportFrom)
        if node.level or not node.module or self._module(node, node.module):
            return
        for item in node.names:
            dotted = f"{node.module}.{item.name}"
            if not self._module(node, dotted):
                self._reference(node, (dotted,))

    def _reference(self, node: Node, meanings: Iterable[str]) -> None:
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

    def _name(self, node: Node, scope: Scope) -> None:
        assert isinstance(node, ast.Name)
        # A name that was imported or given is reported where that happened.
        if isinstance(node.ctx, ast.Load) and node.id in self._tails and not scope.owner(node.id):
            self._reference(node, scope.meanings(node.id))

    def _attribute(self, node: Node, scope: Scope) -> None:
        assert isinstance(node, ast.Attribute)
        rule = self._rules.attributes.get(node.attr)
        if rule is not None:
            self._report(node, rule, f".{node.attr}")
        elif node.attr in self._tails:
            self._reference(node, self._reader.meanings(node, scope))

    def _match_class(self, node: Node, _: Scope) -> None:
        assert isinstance(node, ast.MatchClass)
        for name in node.kwd_attrs:
            self._attribute_text(node, name)

    def _attribute_text(self, node: Node, text: str) -> None:
        rule = self._rules.attributes.get(text)
        if rule is not None:
            self._report(node, rule, f".{text}")

    def _subscript(self, node: Node, scope: Scope) -> None:
        assert isinstance(node, ast.Subscript)
        key = self._reader.text(node.slice, scope)
        if key is None:
            return
        if key.startswith("__"):
            self._attribute_text(node, key)
        self._reference(node, self._reader.meanings(node, scope))
        if "sys.modules" in self._reader.meanings(node.value, scope):
            self._module(node, key)

    def _call(self, node: Node, scope: Scope) -> None:
        assert isinstance(node, ast.Call)
        function = node.func
        if node.args:
            self._save(node)
        for dotted in self._reader.meanings(function, scope):
            rule = self._rules.calls.get(dotted)
            if rule is not None:
                self._report(node, rule, f"{dotted.removeprefix('builtins.')}()")
            elif dotted in IMPORTERS:
                self._import_call(node, scope, dotted)
            elif dotted in _ACCESSORS and len(node.args) > 1:
                self._accessor(node, scope)
            elif dotted in _GETTERS:
                self._named_attributes(node, node.args, scope)
            elif dotted in self._rules.openers:
                self._paths(node, scope)
        if isinstance(function, ast.Attribute):
            if function.attr in ("__getattribute__", "__getattr__"):
                self._named_attributes(node, node.args, scope)
            elif function.attr == "connect":
                # A socket of the host's is connected to by its path.
                self._paths(node, scope)
            elif function.attr in _PATH_METHODS:
                self._path(node, function.value, scope)

    def _import_call(self, node: ast.Call, scope: Scope, function: str) -> None:
        named = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
        for argument in (node.args or named)[:1]:
            name = self._reader.text(argument, scope)
            if name is not None:
                self._module(node, name)
            elif not self._reader.start(argument, scope).startswith(_OWN_MODULES):
                # Which server's module is chosen is the program's own affair.
                self._report(node, COMPUTED_IMPORT, f"{function.removeprefix('builtins.')}()")

    def _accessor(self, node: ast.Call, scope: Scope) -> None:
        self._named_attributes(node, node.args[1:2], scope)
        self._reference(node, self._reader.meanings(node, scope))

    def _named_attributes(self, node: ast.Call, given: list[ast.expr], scope: Scope) -> None:
        for argument in given[:MAX_PATH_ARGUMENTS]:
            text = self._reader.text(argument, scope)
            for part in text.split(".") if text else ():
                self._attribute_text(node, part)

    def _paths(self, node: ast.Call, scope: Scope) -> None:
        given = [*node.args[:MAX_PATH_ARGUMENTS], *(item.value for item in node.keywords)]
        for argument in given[: 2 * MAX_PATH_ARGUMENTS]:
            self._path(node, argument, scope)

    def _path(self, node: ast.Call, argument: ast.expr, scope: Scope) -> None:
        path = self._reader.text(argument, scope)
        if path is not None and self._rules.sensitive(path):
            self._report(node, SENSITIVE_PATH, path)
