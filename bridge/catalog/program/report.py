"""Collects findings: bounded, each once, in the order of the lines."""

from __future__ import annotations

import ast
import io
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from bridge.catalog.prose import clip
from bridge.model import Finding, FindingSource, Severity
from bridge.text import valid_text

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
        """Report a mistake at a node, with the edits of the text that certainly fix it."""
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
