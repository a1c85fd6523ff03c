"""Writes the messages on a program's mistakes, with the fix. Pure.

`bridge.guest.api.hints` has the advice on mistakes that only the run shows.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping

from bridge.catalog.entries import ServerEntry, call_signature
from bridge.catalog.program.guard import NOTHING, Verdict
from bridge.catalog.program.parsing import SYNTAX, lines_of
from bridge.catalog.program.survey import BUILTINS, Survey
from bridge.catalog.program.symbols import HELPERS, RUNTIME_TYPES
from bridge.guest.protocol.helpers import OWN_GLOBALS
from bridge.guest.schema.binding import Wrong
from bridge.guest.schema.names import NAME_CHARS, nearest
from bridge.model import Finding
from bridge.text import clip, list_names, one_line

SIGNATURE = " Signature: "
"""Separates the problem with a call from the call's signature."""

FOREIGN: Mapping[str, str] = {
    "NaN": 'Write `float("nan")`.',
    "console": "This is Python: write `print(...)`.",
    "require": "This is Python: write `import ...`; the servers' objects are there already.",
    "JSON": "This is Python: `import json`, then `json.loads(...)` or `json.dumps(...)`.",
    "Math": "This is Python: `import math`.",
    "Promise": "This is Python: `import asyncio`, then `await asyncio.gather(...)`.",
    "get_ipython": "This is no notebook: leave the line out; `display(x)` shows pictures.",
    "final_answer": "End the program with the value itself.",
    "client": "No client is needed: call tools as `await mcp_<server>.<tool>(...)`.",
    "session": "No session is needed: call tools as `await mcp_<server>.<tool>(...)`.",
}
"""Names of other languages and libraries, with what to write instead."""

_COMMENT = "Comments begin with `#` in Python."
_NEW_TYPES = (
    "Type parameters and `type` statements need Python 3.12; leave them out, or write `Name = ...`."
)

_LINE_BEGINS = (
    (
        r"!\s?\w|(?:pip3?|npm|apt|cd|curl|git|python3?)\s+[\w-]+(?:\s|$)",
        "This is a shell command; write Python. Packages are an argument of run_python.",
    ),
    (r"%{1,2}[a-z]\w*", "This is plain Python, not a notebook: leave out lines that begin with %."),
    (
        r"(?:const|let|var)\s+[\w{\[$]",
        "This is JavaScript; write the program in Python: `name = value`, without const or let.",
    ),
    (r"//|/\*", _COMMENT),
    (r"print\s+[\"'\w]", "Write `print(...)`, with parentheses."),
    (
        r"(?:\}\s*)?(?:if|while|for|switch|catch|else|try)\b.{0,400}\{\s*(?:$|[a-z/])",
        "This is JavaScript; in Python a colon ends the line and the block below is indented.",
    ),
    (r"(?:async\s+)?(?:def|class)\s+\w+\s*\[|type\s+\w+.{0,100}=", _NEW_TYPES),
    (r"except\*?\s+[\w.]+\s*,", "Put several exceptions into parentheses: `except (A, B):`."),
)
_LINE_HOLDS = (
    (r"=>\s*[\w({]", "This is JavaScript; write `lambda x: ...` or a `def`."),
    (r"[^/]//\s+[A-Za-z]", _COMMENT),
    (r"&&|\|\|", "Write `and` and `or`."),
    (r"===|!==", "Write `==` and `!=`."),
    (
        r"\w\?\.\w",
        'This is JavaScript; write `x.get("key")`, which gives None where there is none.',
    ),
    (
        r"\b(from|class|import|global|is|in|not|with|def|lambda|pass|as)\s*=\s*[^=]",
        r'`\1` is a keyword of Python: write `\1_=...` for a tool, and `**{"\1": ...}` elsewhere.',
    ),
)
_BY_LINE = tuple(
    [(re.compile(r"\s{0,40}(?:" + pattern + ")"), advice) for pattern, advice in _LINE_BEGINS]
    + [(re.compile(".{0,400}(?:" + pattern + ")"), advice) for pattern, advice in _LINE_HOLDS]
)


def explain_syntax(code: str, finding: Finding) -> Verdict:
    """Return a note on a program without a tree; the sandbox's Python decides on it."""
    if finding.rule != SYNTAX:
        return NOTHING
    lines, problem = lines_of(code), finding.message
    line = lines[finding.line - 1][:640] if 0 < finding.line <= len(lines) else ""
    matches = ((pattern.match(line), advice) for pattern, advice in _BY_LINE)
    advice = next((match.expand(advice) for match, advice in matches if match), "")
    if not advice and "expected an indented block" in problem:
        advice = "Indent the block's lines, or write `pass`."
    message = f"{problem}. {advice}" if advice else problem
    note = dataclasses.replace(finding, severity="note", message=message, source="preflight")
    return Verdict(findings=(note,))


def undefined_name(node: ast.Name, survey: Survey, servers: Collection[str]) -> str:
    name = node.id
    problem = f"{quote(name)} is not defined in the program."
    if name in FOREIGN:
        return f"{problem} {FOREIGN[name]}"
    if name in servers:
        return f"{problem} The server's object is `mcp_{name}`."
    near = nearest(name, [*sorted(survey.names), *sorted(OWN_GLOBALS)])
    # There are so many builtins that one is always slightly similar.
    near = near or nearest(name, sorted(BUILTINS - {"_"}), cutoff=0.78)
    if near:
        return f"{problem} Did you mean {quote(near)}?"
    if any(key is node for one, _ in survey.each(ast.Dict) for key in one.keys):
        return f"{problem} Quote a dict's keys: `{{{name[:64]!r}: ...}}`."
    problem = f"{problem} Every run starts empty: define or import it here"
    if any(call.func is node for call, _ in survey.each(ast.Call)):
        return f"{problem}; tools are called as {quote(f'await mcp_<server>.{name}(...)')}."
    return f"{problem}."


def no_tool(server: ServerEntry, name: str, *, by_name: bool = False) -> str:
    names = {entry.tool.name if by_name else entry.alias: entry for entry in server.tools}
    near = nearest(name, names)
    hint = ""
    if near:
        meant = near if by_name else call_signature(server.alias, names[near])
        hint = f" Did you mean `{meant}`?"
    if not near or (len(names) <= 6 and not by_name):
        hint += f" Tools: {list_tools(names)}."
    owner = f"the server {quote(server.name)}" if by_name else f"`mcp_{server.alias}`"
    return f"{owner} has no tool {quote(name)}.{hint}"


def no_helper(name: str) -> str:
    near = nearest(name, [*HELPERS, *RUNTIME_TYPES])
    hint = f" It has {', '.join(sorted(HELPERS))}."
    if near:
        hint = f" Did you mean {quote(HELPERS[near].signature if near in HELPERS else near)}?"
    return f"`runtime` has no {quote(name)}.{hint}"


def wrong_argument(label: str, one: Wrong, signature: Callable[[], str]) -> str:
    text = one.text
    if label.endswith(".get_prompt") and one.rule == "unknown-argument":
        text = f"has no parameter {quote(one.name)}: its own arguments go into a dict, "
        text += f"`get_prompt(..., {{{one.name[:64]!r}: ...}})`"
    end = "" if text.endswith("?") else "."
    return f"{quote(label)} {text}{end}{SIGNATURE}`{signature()}`"


def quote(name: str) -> str:
    return f"`{one_line(name, NAME_CHARS)}`"


def list_tools(names: Iterable[str]) -> str:
    return list_names([clip(name, NAME_CHARS) for name in names]) or "none"
