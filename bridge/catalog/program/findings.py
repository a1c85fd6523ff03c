"""Parses a program's text into a syntax tree, or into a finding; no text raises. Pure.

The grammar is this interpreter's, so a syntax error is certain only once the sandbox confirms it.
The guest compiles: for some small programs that takes quadratic time, and parsing does not.
"""

from __future__ import annotations

import ast
import contextlib
import io
import re
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bridge.catalog.prose import clip
from bridge.model import Finding, FindingSource, Severity
from bridge.text import valid_text

MAX_SCANNED_CHARS = 128 * 1024
"""Longest program that is parsed: a program chooses its length, and this one takes a second."""

MAX_BRACES = 10_000
"""Braces of a program with f-strings: Python 3.11 takes a third of a second for 20,000 fields."""

_F_STRING = re.compile("[fF][rR]?['\"]")

SYNTAX = "syntax"
TOO_DEEP = "too-deep"
TOO_LONG = "too-long"


@dataclass(frozen=True, kw_only=True)
class Unread:
    finding: Finding


def parse(code: str) -> ast.Module | Unread:
    """Return a program's tree, or why there is none.

    Call it in the event loop's thread: it turns warnings off for the whole process.
    """
    if len(code) > MAX_SCANNED_CHARS:
        message = (
            f"the program has {len(code):,} characters, and only {MAX_SCANNED_CHARS:,} can be "
            "checked; load data with tool calls instead of writing it into the program"
        )
        return _unread(TOO_LONG, message)
    braces = code.count("{")
    if braces > MAX_BRACES and _F_STRING.search(code):
        message = f'the program has f-strings and "{{" {braces:,} times, more than {MAX_BRACES:,}'
        return _unread(TOO_LONG, message)
    source = code.removeprefix("\ufeff")
    try:
        with warnings.catch_warnings():
            # Invalid escapes in a program's strings are not reported.
            warnings.simplefilter("ignore")
            try:
                return _compile(source)
            except IndentationError:
                # The guest dedents a program that is indented as a whole.
                with contextlib.suppress(SyntaxError):
                    return _compile(textwrap.dedent(source))
                # The first error has the original columns.
                raise
    except SyntaxError as error:
        return _syntax(error.msg, error.lineno, error.offset)
    except UnicodeEncodeError as error:
        line = source.count("\n", 0, error.start) + 1
        return _syntax(f"{source[error.start]!r} is no character", line, 0)
    except (ValueError, OverflowError, SystemError) as error:
        # Null bytes, in some releases; more lines or columns than a tree can hold.
        return _syntax(str(error), 0, 0)
    except (RecursionError, MemoryError):
        message = "the program is nested too deeply to be checked; split up its expressions"
        return _unread(TOO_DEEP, message)


def _compile(source: str) -> ast.Module:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, "<program>", "exec", flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def _unread(rule: str, message: str, line: int = 0, column: int = 0) -> Unread:
    return Unread(finding=Finding(line=line, column=column, rule=rule, message=message))


def _syntax(message: str | None, line: int | None, column: int | None) -> Unread:
    reason = plainly(message or "not Python", 200)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = f"syntax error: {reason}, as Python {version} reads it"
    return _unread(SYNTAX, text, max(line or 0, 0), max(column or 0, 0))


MAX_FINDINGS = 25
"""Findings of each severity; a program may have any number of mistakes."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The findings of the guard, or of the preflight, in the order of the lines.

    Attributes:
        omitted: Number of findings left out.
        edits: The fixes of all that stops the program; empty if one has no known fix.
    """

    findings: tuple[Finding, ...] = ()
    omitted: int = 0
    edits: tuple[Edit, ...] = ()

    @property
    def certain(self) -> tuple[Finding, ...]:
        """The findings that stop the program: certain mistakes, and what the guard denies."""
        return tuple(found for found in self.findings if found.severity == "deny")

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(found for found in self.findings if found.severity == "note")


NOTHING = Verdict()


class Report:
    def __init__(self, source: FindingSource = "preflight") -> None:
        self._source: FindingSource = source
        self._found: dict[tuple[int, str, str], Finding] = {}
        self._counts = {"deny": 0, "note": 0}
        self._omitted = 0
        self._tried = 0
        self._fixable = True
        self._edits: list[Edit] = []

    def add(
        self,
        node: ast.AST,
        rule: str,
        severity: Severity,
        message: str | Callable[[], str],
        edits: Sequence[Edit] = (),
    ) -> None:
        self._fixable &= bool(edits) or severity != "deny"
        self._edits += edits if severity == "deny" else ()
        self._tried += 1
        # Finding the nearest name takes a millisecond for each mistake.
        if self._tried > 4 * MAX_FINDINGS or self._counts[severity] >= MAX_FINDINGS:
            self._omitted += 1
            return
        text = message if isinstance(message, str) else message()
        finding = Finding(
            line=getattr(node, "lineno", 0),
            # The tree counts columns from 0, a finding from 1.
            column=getattr(node, "col_offset", -1) + 1,
            rule=rule,
            severity=severity,
            message=valid_text(clip(text, 1000)),
            source=self._source,
        )
        key = (finding.line, rule, finding.message)
        if key not in self._found:
            self._counts[severity] += 1
            self._found[key] = finding

    def verdict(self) -> Verdict:
        return Verdict(
            findings=tuple(sorted(self._found.values(), key=lambda one: (one.line, one.column))),
            omitted=self._omitted,
            edits=tuple(self._edits) if self._fixable else (),
        )


def plainly(text: str, size: int) -> str:
    """Return a text of the program, cut, with invisible characters as escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in clip(text, size)
    )


def lines_of(code: str) -> list[str]:
    """Return a program's lines as Python counts them; `str.splitlines` would find more."""
    return [line.rstrip("\n") for line in io.StringIO(code, newline=None)]


AWAIT = "the `await` that was missing"
_INSERTED = {"asynchronous": b"async ", "star": b"*"}
_WORDS = {
    "answer": "the value of `final_answer`",
    "bare": "no `await` before what is none",
    "star": "a `*` before the list of calls",
    "value": "the value of the last `return`",
}


@dataclass(frozen=True)
class Edit:
    """A change at one node.

    Attributes:
        kind: `AWAIT`: await a call; "plain", "bare": remove the node's `await` or `async`;
            "asynchronous": make a function asynchronous; "value", "answer": make a `return` or a
            `final_answer` its value; "star": unpack a list.
    """

    kind: str
    node: ast.stmt | ast.expr


def apply_edits(code: str, edits: Iterable[Edit]) -> tuple[str, str] | None:
    """Return the changed text, and the changes in words; None if a node is not found in it."""
    lines = code.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    text = code.encode()
    changes: set[tuple[int, int, bytes]] = set()
    for edit in edits:
        node = edit.node
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
        part = text[start:end]
        if edit.kind == AWAIT:
            if not _is_same(part, node):
                return None
            changes |= {(start, start, b"(await "), (end, end, b")")}
        elif edit.kind in _INSERTED:
            changes.add((start, start, _INSERTED[edit.kind]))
        else:
            match = re.match(rb"(?:await|async|return|final_answer)\b\s*", part)
            if match is None:
                return None
            empty = isinstance(node, ast.Return) and node.value is None
            changes.add((start, start + match.end(), b"pass" if empty else b""))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    words = dict.fromkeys(_WORDS.get(edit.kind, AWAIT) for edit in edits)
    return text.decode(), f"the program with {' and '.join(words)}"


def _is_same(part: bytes, node: ast.AST) -> bool:
    """Return whether a part of the text is a node: in f-strings, positions may be wrong."""
    try:
        return ast.dump(ast.parse(b"(%b)" % part, mode="eval").body) == ast.dump(node)
    except (SyntaxError, ValueError):
        return False
