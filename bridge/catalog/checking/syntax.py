"""Why a program is no Python, and what its author probably meant.

Owns the advice on programs that do not parse: what stands around a program when it was pasted,
what belongs to another language, what a bracket or a quote is missing. The sandbox's Python may
know more syntax than the one here, so most of this is for its own error to confirm; certain is only
what no Python will ever read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bridge.catalog.checking.report import lines_of
from bridge.model import Finding

MAX_LINE_CHARS = 160
"""Of a program's line in a message."""

_QUOTES = re.compile("[“”„‘’‚«»]")
_SPACES = re.compile("[\u00a0\u2000-\u200b\u202f\u3000\ufeff]")


@dataclass(frozen=True, kw_only=True)
class _Advice:
    """What to say where a line matches.

    Attributes:
        certain: Whether no Python reads such a line, wherever it stands.
    """

    pattern: re.Pattern[str]
    text: str
    certain: bool = True


def _advice(pattern: str, text: str, *, certain: bool = True) -> _Advice:
    return _Advice(pattern=re.compile(pattern), text=text, certain=certain)


_BY_LINE = (
    _advice(
        r"\s{0,40}(?:```|~~~)",
        "Give the program alone, without the Markdown fence around it.",
    ),
    _advice(
        r"\s{0,40}!\s?\w",
        "This is plain Python, without a shell, and nothing can be installed: use the standard "
        "library or a server's tool.",
    ),
    _advice(
        r"\s{0,40}%{1,2}[a-z]\w*",
        "This is plain Python, not a notebook: leave out lines that begin with %.",
    ),
    _advice(
        r"\s{0,40}(?:pip|pip3|npm|apt|cd|curl|git|python|python3)\s+[\w-]+(?:\s|$)",
        "This is a shell command; the program has to be Python, and nothing can be installed.",
    ),
    _advice(
        r"\s{0,40}(?:const|let|var)\s+[\w{\[$]",
        "This is JavaScript; write the program in Python: `name = value`, without const or let.",
    ),
    _advice(
        r"\s{0,40}(?:async\s+|export\s+)?function\b",
        "This is JavaScript; write `def name(...):` or `async def name(...):`.",
    ),
    _advice(
        r"\s{0,40}import\s+(?:[\w{}*,\s]+)\s+from\s+['\"]",
        "This is JavaScript; write `from module import name`.",
    ),
    _advice(r"\s{0,40}//", "Comments begin with `#` in Python."),
    _advice(r"\s{0,40}/\*", "Comments begin with `#` in Python."),
    _advice(
        r".{0,400}=>\s*[\w({]",
        "This is JavaScript; write `lambda x: ...` or a `def`.",
        certain=False,
    ),
    _advice(r".{0,400}[^/]//\s+[A-Za-z]", "Comments begin with `#` in Python.", certain=False),
    _advice(r".{0,400}(?:&&|\|\|)", "Write `and` and `or`.", certain=False),
    _advice(r".{0,400}\?\s.{1,400}\s:\s", "Write `a if condition else b`.", certain=False),
    _advice(r".{0,400}(?:\+\+|--)\s*;?\s*$", "Write `x += 1`.", certain=False),
    _advice(r"\s{0,40}new\s+\w+\s*\(", "Write `Name(...)`, without `new`."),
    _advice(r"\s{0,40}else\s+if\b", "Write `elif`."),
    _advice(r"\s{0,40}for\s+\w+\s+of\b", "Write `for x in ...:`."),
    _advice(r"\s{0,40}print\s+[\"'\w]", "Write `print(...)`, with parentheses."),
    _advice(r".{0,400}(?:===|!==)", "Write `==` and `!=`.", certain=False),
    _advice(
        r".{0,400}\w\?\.\w",
        "This is JavaScript; write `x.get(\"key\")`, which gives None where there is none.",
        certain=False,
    ),
    _advice(
        r"\s{0,40}(?:\}\s*)?(?:if|while|for|switch|catch|else|try)\b.{0,400}\{\s*(?:$|[a-z/])",
        "This is JavaScript; in Python a colon ends the line and the block below is indented.",
        certain=False,
    ),
    _advice(
        r"\s{0,40}(?:async\s+)?(?:def|class)\s+\w+\s*\[",
        "Type parameters in brackets need Python 3.12; leave them out.",
        certain=False,
    ),
    _advice(
        r"\s{0,40}type\s+\w+.{0,100}=",
        "`type` statements need Python 3.12; write `Name = ...`.",
        certain=False,
    ),
    _advice(
        r"\s{0,40}except\*?\s+[\w.]+\s*,",
        "Put several exceptions into parentheses: `except (A, B):`.",
        certain=False,
    ),
    _advice(
        r".{0,400}\b(?:from|class|import|global|is|in|not|with|def|lambda|pass|as)\s*=\s*[^=]",
        "A keyword cannot be an argument's name here: pass it as `**{\"from\": ...}`.",
        certain=False,
    ),
    _advice(
        r"\s{0,40}<[/a-zA-Z]",
        "Give the program alone, without tags around it.",
    ),
    _advice(
        r"\s{0,40}(?:Here|I|This|Now|Sure|Let|First|The|We)\b[^=(\[]{3,}[.:]?\s*$",
        "Give the program alone; put words around it into comments that begin with `#`.",
        certain=False,
    ),
)  # fmt: skip

_BACKSLASH = (
    "In the braces of an f-string, a backslash needs Python 3.12; give the value a name in a line "
    "before."
)
_SAME_QUOTES = (
    "In the braces of an f-string, quotes like those around it need Python 3.12; use the other "
    "kind: `f\"{x['key']}\"`."
)

_BY_MESSAGE = (
    ("f-string expression part cannot include a backslash", _BACKSLASH),
    ("f-string: unmatched", _SAME_QUOTES),
    ("f-string: expecting", _SAME_QUOTES),
    ("f-string: unterminated", _SAME_QUOTES),
    ("f-string: invalid syntax", _SAME_QUOTES),
    ("unindent does not match", "Indent the lines of one block alike, with spaces."),
    ("inconsistent use of tabs", "Indent with spaces only: 4 for each level."),
    ("unexpected indent", "Indent only what is inside a block."),
    ("expected an indented block", "Indent the block's lines, or write `pass`."),
    ("expected ':'", "End the line with a colon."),
    ("was never closed", "Close the bracket."),
    ("unmatched ", "Leave it out, or open the bracket before."),
    ("does not match opening", "Close brackets in the order in which they were opened."),
    ("unterminated triple-quoted", "Close the text with three quotes."),
    (
        "unterminated string",
        "Close the text with the quote that it began with; for several lines, use three quotes.",
    ),
    ("forgot a comma", "Put a comma between the values."),
    ("instead of '='", "Compare with `==`."),
    ("cannot contain assignment", "An argument's name has to be a Python name."),
    ("positional argument follows keyword", "Give arguments by name after those without a name."),
    ("parentheses in call to 'print'", "Write `print(...)`, with parentheses."),
    ("EOL while scanning", "Close the text with the quote that it began with."),
)

_PLAIN_MESSAGES = (
    "inconsistent use of tabs",
    "unexpected indent",
    "unindent does not match",
    "expected an indented block",
    "parentheses in call to 'print'",
    "instead of '='",
    "positional argument follows keyword",
    "forgot a comma",
    "cannot contain assignment",
)
"""What no newer Python has come to accept, nor says of syntax that it has."""

_NEWER = re.compile(
    r"(?m)^\s*(?:async\s+)?(?:def|class)\s+\w+\s*\[|^\s*type\s+\w|^\s*lazy\s|^\s*except\b"
    r"|(?<!\w)[fFtT][rR]?['\"]|(?<!\w)[rR][fFtT]['\"]"
)
"""Syntax, and nested quotes, that some Python reads and an older one stumbles over."""


def explained(code: str, finding: Finding) -> Finding:
    """Return a syntax error with advice; severity "deny" if it is one for every Python.

    Args:
        finding: What the parser said, with the line.
    """
    lines = lines_of(code)
    said = finding.message
    text = lines[finding.line - 1] if 0 < finding.line <= len(lines) else ""
    advice, certain = _by_line(text[: MAX_LINE_CHARS * 4])
    if not advice:
        advice, certain = _by_characters(text, said)
    if not advice:
        advice, certain = _by_start(lines, said)
    if not advice:
        advice = next((cure for part, cure in _BY_MESSAGE if part in said), "")
        certain = any(part in said for part in _PLAIN_MESSAGES)
    # Whatever comes before the line may be read otherwise, and then the line too.
    certain = certain and _NEWER.search("\n".join(lines[: finding.line])) is None
    message = f"{said}. {advice}" if advice else said
    return Finding(
        line=finding.line,
        column=finding.column,
        rule=finding.rule,
        severity="deny" if certain else "note",
        message=message,
        source="preflight",
    )


def _by_line(line: str) -> tuple[str, bool]:
    for advice in _BY_LINE:
        if advice.pattern.match(line):
            return advice.text, advice.certain
    return "", False


def _by_characters(line: str, said: str) -> tuple[str, bool]:
    if _QUOTES.search(line):
        text = "Write plain quotes, ' or \", instead of typographic ones."
        return text, "invalid character" in said
    if _SPACES.search(line):
        return "Replace the special spaces in the line by plain ones.", False
    return "", False


def _by_start(lines: list[str], said: str) -> tuple[str, bool]:
    """A fence around a program shows in its first line, wherever the parser gave up."""
    first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("```"):
        return _BY_LINE[0].text, True
    if "unmatched" in said or "never closed" in said:
        last = next((line for line in reversed(lines) if line.strip()), "")
        if last.lstrip().startswith("```"):
            return _BY_LINE[0].text, True
    return "", False
