"""Changes a program's text where the preflight knows for certain what is meant. Pure.

An edit belongs to a mistake that would certainly end the run, or lose a call: a missing `await`,
a `return` at the end of the program. It changes the text at one node and nothing else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

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
