"""What the checks found, in words: bounded, each thing once, in the order of the lines."""

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
"""Of each severity; who mends so many runs the program again."""

MAX_MESSAGE_CHARS = 1000
"""Of one finding: a problem and a signature."""

SIGNATURE = " Signature: "
"""Parts what is wrong with a call from how it is made."""

MAX_TRIED = 4 * MAX_FINDINGS
"""Mistakes that are put into words: to find the nearest name takes a millisecond each."""

MAX_NAME_CHARS = 80
MAX_LISTED = 12
"""Names listed in one message."""

_MAX_COMPARED = 1000
"""Names among which the nearest is looked for: more takes longer than it helps."""

_USUAL_CUTOFF = 0.6
"""From here on, two names look alike to whoever reads both."""

_LIKELY = 12
"""Of these, how many are compared letter by letter."""


class Report:
    """Collects findings."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, str, str], Finding] = {}
        self._counts = {"deny": 0, "note": 0}
        self.omitted = 0
        self._tried = 0

    @property
    def exhausted(self) -> bool:
        """Whether so much was reported that looking for reasons of more is not worth it."""
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
    """Return the program's own words, cut, with all that is not plainly visible written out."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in clip(text, size)
    )


def quoted(name: str) -> str:
    """Return a name from the program or from a server, cut, in backquotes."""
    return f"`{one_line(name, MAX_NAME_CHARS)}`"


def nearest(name: str, names: Iterable[str], *, cutoff: float = _USUAL_CUTOFF) -> str:
    """Return the name that is most like another; empty if none is.

    Args:
        cutoff: How much has to be the same. Above the usual, a part of a name does not do either.
    """
    by_lower: dict[str, str] = {}
    for other in islice(names, _MAX_COMPARED):
        by_lower.setdefault(_plain(other), other)
    wanted = _plain(name)
    pairs = _pairs(wanted)
    # Comparing in earnest takes fifty times as long as counting what two names share.
    likely = heapq.nlargest(_LIKELY, by_lower, key=lambda other: _shared(pairs, other))
    close = difflib.get_close_matches(wanted, likely, n=1, cutoff=cutoff)
    if not close and cutoff <= _USUAL_CUTOFF:
        # `createIssue` for `create_issue`, `search` for `search_issues`.
        bare = wanted.replace("_", "")
        close = [one for one in likely if one.replace("_", "") == bare]
        if not close and len(bare) > 3:
            # A name of one letter is a part of many.
            close = [o for o in likely if bare in o or (len(o) > 2 and o in wanted)][:1]
    return by_lower[close[0]] if close else ""


def _plain(name: str) -> str:
    return name[:MAX_NAME_CHARS].lower().replace("-", "_")


def _pairs(name: str) -> set[str]:
    return {name[place : place + 2] for place in range(len(name))}


def _shared(pairs: set[str], other: str) -> float:
    """Return how much of two names is the same, by their pairs of letters."""
    own = _pairs(other)
    return len(pairs & own) / (len(pairs) + len(own) + 1)


def did_you_mean(name: str, names: Sequence[str]) -> str:
    """Return " Did you mean ...?" for the name that is most like another, or nothing."""
    near = nearest(name, names)
    return f" Did you mean {quoted(near)}?" if near else ""


def lines_of(code: str) -> list[str]:
    """Return a program's lines as Python counts them: `str.splitlines` knows ends that are none."""
    return [line.rstrip("\n") for line in io.StringIO(code, newline=None)]


def listed(names: Sequence[str]) -> str:
    """Return names for a message, cut to a bound."""
    shown = ", ".join(clip(name, MAX_NAME_CHARS) for name in names[:MAX_LISTED])
    more = len(names) - MAX_LISTED
    return f"{shown} and {more} more" if more > 0 else shown or "none"
