"""Collects findings: bounded, each once, in the order of the lines; and words their messages."""

from __future__ import annotations

import ast
import difflib
import heapq
import io
from collections.abc import Iterable, Sequence
from itertools import islice

from bridge.catalog.prose import clip, one_line
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

MAX_NAME_CHARS = 80
MAX_LISTED = 12
"""Names listed in one message."""

_MAX_COMPARED = 1000
"""Names compared when looking for the nearest."""

_USUAL_CUTOFF = 0.6
"""From this ratio on, two names look alike to a reader."""

_LIKELY = 12
"""Names compared letter by letter, after a quick choice by pairs of letters."""


class Report:
    """Collects findings."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str, str], Finding] = {}
        self._counts = {"deny": 0, "note": 0}
        self.omitted = 0
        self._tried = 0

    @property
    def exhausted(self) -> bool:
        """Whether `MAX_TRIED` is used up: callers skip writing further messages."""
        return self._tried >= MAX_TRIED

    def add(self, node: ast.AST, rule: str, severity: Severity, message: str) -> None:
        """Report a mistake at a node."""
        line = getattr(node, "lineno", 0)
        key = (line, rule, message)
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
    return f"`{one_line(name, MAX_NAME_CHARS)}`"


def nearest(name: str, names: Iterable[str], *, cutoff: float = _USUAL_CUTOFF) -> str:
    """Return the name most similar to `name`; empty if none is similar enough.

    Args:
        cutoff: The least ratio. Above the usual one, names that only share a part do not count.
    """
    by_lower: dict[str, str] = {}
    for other in islice(names, _MAX_COMPARED):
        by_lower.setdefault(_plain(other), other)
    wanted = _plain(name)
    pairs = _pairs(wanted)
    # `difflib` takes fifty times as long as counting shared pairs of letters.
    likely = heapq.nlargest(_LIKELY, by_lower, key=lambda other: _shared(pairs, other))
    close = difflib.get_close_matches(wanted, likely, n=1, cutoff=cutoff)
    if not close and cutoff <= _USUAL_CUTOFF:
        # `createIssue` for `create_issue`, `search` for `search_issues`.
        bare = wanted.replace("_", "")
        close = [one for one in likely if one.replace("_", "") == bare]
        if not close and len(bare) > 3:
            # A single letter is part of many names.
            close = [o for o in likely if bare in o or (len(o) > 2 and o in wanted)][:1]
    return by_lower[close[0]] if close else ""


def _plain(name: str) -> str:
    return name[:MAX_NAME_CHARS].lower().replace("-", "_")


def _pairs(name: str) -> set[str]:
    return {name[start : start + 2] for start in range(len(name))}


def _shared(pairs: set[str], other: str) -> float:
    """Return the share of letter pairs that two names have in common, 0 to 1."""
    own = _pairs(other)
    return len(pairs & own) / (len(pairs) + len(own) + 1)


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return " Did you mean ...?" with the most similar name, or an empty string."""
    near = nearest(name, names)
    return f" Did you mean {quoted(near)}?" if near else ""


def lines_of(code: str) -> list[str]:
    """Return a program's lines as Python counts them; `str.splitlines` would find more."""
    return [line.rstrip("\n") for line in io.StringIO(code, newline=None)]


def listed(names: Sequence[str]) -> str:
    """Return names, separated by commas, at most `MAX_LISTED` of them."""
    shown = ", ".join(clip(name, MAX_NAME_CHARS) for name in names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{shown} and {more} more" if more > 0 else shown or "none"
