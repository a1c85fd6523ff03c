"""Collects findings: bounded, each once, in the order of the lines; and words their messages."""

from __future__ import annotations

import ast
import io
from collections.abc import Sequence

from bridge.catalog.program.edits import Edit
from bridge.catalog.prose import clip, one_line
from bridge.guest.schema.names import NAME_CHARS, nearest
from bridge.model import Finding, Severity
from bridge.text import valid_text

MAX_FINDINGS = 25
"""Findings reported of each severity; after fixing so many, the program is checked again."""

MAX_MESSAGE_CHARS = 1000
"""Length of one message: a problem and a signature."""

SIGNATURE = " Signature: "
"""Separates the problem with a call from the call's signature."""

MAX_TRIED = 4 * MAX_FINDINGS
"""Mistakes for which a message is written: finding the nearest name takes a millisecond each."""

MAX_LISTED = 12
"""Names listed in one message."""


class Report:
    """Collects findings."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str, str], Finding] = {}
        self._counts = {"deny": 0, "note": 0}
        self.omitted = 0
        self._tried = 0
        self._fixable = True
        self._edits: list[Edit] = []

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The edits that fix every certain mistake; empty if one has none."""
        return tuple(self._edits) if self._fixable else ()

    @property
    def exhausted(self) -> bool:
        """Whether `MAX_TRIED` is used up: callers skip writing further messages."""
        return self._tried >= MAX_TRIED

    def add(
        self,
        node: ast.AST,
        rule: str,
        severity: Severity,
        message: str,
        edits: Sequence[Edit] = (),
    ) -> None:
        """Report a mistake at a node, with the edits of the text that certainly fix it."""
        line = getattr(node, "lineno", 0)
        key = (line, rule, message)
        self._fixable &= bool(edits) or severity != "deny"
        self._edits += edits if severity == "deny" else ()
        self._tried += 1
        if key in self._found:
            return
        if self._counts[severity] >= MAX_FINDINGS:
            self.omitted += 1
            return
        self._counts[severity] += 1
        self._found[key] = Finding(
            line=line,
            column=getattr(node, "col_offset", -1) + 1,
            rule=rule,
            severity=severity,
            message=valid_text(clip(message, MAX_MESSAGE_CHARS)),
            source="preflight",
        )

    def findings(self) -> tuple[Finding, ...]:
        """Return what was found, in the order of the lines."""
        return tuple(sorted(self._found.values(), key=lambda found: (found.line, found.column)))


def plainly(text: str, size: int) -> str:
    """Return a text of the program, cut, with invisible characters as escapes."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in clip(text, size)
    )


def quoted(name: str) -> str:
    """Return a name from the program or from a server, cut, in backquotes."""
    return f"`{one_line(name, NAME_CHARS)}`"


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return " Did you mean ...?" with the most similar name, or an empty string."""
    near = nearest(name, names)
    return f" Did you mean {quoted(near)}?" if near else ""


def lines_of(code: str) -> list[str]:
    """Return a program's lines as Python counts them; `str.splitlines` would find more."""
    return [line.rstrip("\n") for line in io.StringIO(code, newline=None)]


def listed(names: Sequence[str]) -> str:
    """Return names, separated by commas, at most `MAX_LISTED` of them."""
    shown = ", ".join(clip(name, NAME_CHARS) for name in names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{shown} and {more} more" if more > 0 else shown or "none"
