"""Parses a program's text, repaired if it certainly means a program that parses. Pure.

A repaired text counts only if it parses, and the fewest `REPAIRS` win. A text that parses stays,
unless it is the JSON of `run_python`'s arguments, or a program in quotes. The grammar is this
interpreter's, so a syntax error is certain only once the sandbox confirms it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import html
import io
import json
import re
import shlex
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate

from bridge.catalog.program.survey import Survey
from bridge.errors import InvalidRequestError
from bridge.model import Finding, RunRequest
from bridge.text import clip

MAX_SCANNED_CHARS = 128 * 1024
"""Longest program that is parsed; it takes a second, and a program chooses its length."""

MAX_BRACES = 10_000
"""Braces of a program with f-strings; Python 3.11 needs a third of a second for 20,000 fields."""

_F_STRING = re.compile("[fF][rR]?['\"]")

SYNTAX = "syntax"
TOO_DEEP = "too-deep"
TOO_LONG = "too-long"


def parse(code: str) -> ast.Module | Finding:
    """Return a program's tree, or the reason why there is none.

    Call it in the event loop's thread: it turns warnings off for the whole process. The tree is not
    compiled, since that takes quadratic time for some small programs.
    """
    if len(code) > MAX_SCANNED_CHARS:
        message = (
            f"the program has {len(code):,} characters, and only {MAX_SCANNED_CHARS:,} can be "
            "checked; load data with tool calls instead of writing it into the program"
        )
        return Finding(line=0, rule=TOO_LONG, message=message)
    braces = code.count("{")
    if braces > MAX_BRACES and _F_STRING.search(code):
        message = f'the program has f-strings and "{{" {braces:,} times, more than {MAX_BRACES:,}'
        return Finding(line=0, rule=TOO_LONG, message=message)
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
        return Finding(line=0, rule=TOO_DEEP, message=message)


def _compile(source: str) -> ast.Module:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    tree = compile(source, "<program>", "exec", flags, dont_inherit=True)
    assert isinstance(tree, ast.Module)
    return tree


def _syntax(message: str | None, line: int | None, column: int | None) -> Finding:
    reason = plainly(message or "not Python", 200)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    text = f"syntax error: {reason}, as Python {version} reads it"
    return Finding(line=max(line or 0, 0), column=max(column or 0, 0), rule=SYNTAX, message=text)


def plainly(text: str, size: int) -> str:
    """Return a text of the program, shortened, with invisible characters as escapes."""
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
    """A fix for a mistake in a program, at one syntax node.

    `AWAIT` inserts `await` before a call. "plain" and "bare" remove `await` or `async`.
    "asynchronous" inserts `async` before a function, and "star" inserts `*` before a list.
    "value" removes the word `return`, and "answer" the word `final_answer`.
    """

    kind: str
    node: ast.stmt | ast.expr


def apply_edits(code: str, edits: Iterable[Edit]) -> tuple[str, str] | None:
    """Return the changed text, and the changes in words; None if a node is not found in it."""
    text = code.encode()
    starts = [0, *accumulate(map(len, text.splitlines(keepends=True)))]
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


_PIP = r"[!%]? *(?:(?:\{sys\.executable\}|python3?) +-m +|uv +)?pip3? +install\b"

COMMAND = (
    r"(?m:^)[ \t]*(?:%(?:matplotlib|load_ext|reload_ext|autoreload|config)\b[^\n]*"
    rf"|%%(?:time|timeit|capture)\b[^\n]*|%time[ \t]+|{_PIP}[^\n]*)"
)
"""Matches a command of one certain meaning, with the rest of its line if that belongs to it."""

_PACKAGES = "pass  # packages: "
_REQUIREMENT = re.compile(r"[A-Za-z0-9][\w.-]*(?:\[[\w,.-]+\])?(?:[<>=!~]=?[\w.*,<>=!~]+)?")
_SILENT = re.compile(r"[ \t]*(?:[12&]?>>?[ \t]*\S+|\|[ \t]*(?:tail|head|grep)\b.*)$")
_FLAGS = re.compile(
    r"-[qUy]+|--(?:quiet|upgrade|user|yes|no-input|no-cache-dir|prefer-binary|force-reinstall"
    r"|disable-pip-version-check|break-system-packages|root-user-action=\w+|progress-bar=?\w*)"
)


def read_command(text: str) -> str:
    """Return the replacement of a command, or the command if its meaning is uncertain."""
    install = re.match(rf"([ \t]*){_PIP}(.*)", text)
    if install is None:
        return text[: len(text) - len(text.lstrip())] if text.lstrip().startswith("%time ") else ""
    words = install[2]
    while (shorter := _SILENT.sub("", words)) != words:
        words = shorter
    try:
        wanted = [word for word in shlex.split(words) if not _FLAGS.fullmatch(word)]
    except ValueError:
        return text
    if not wanted or not all(map(_REQUIREMENT.fullmatch, wanted)):
        return text
    return f"{install[1]}{_PACKAGES}{' '.join(wanted)}"


_START = re.compile(r"(\b[a-zA-Z]{1,2}|)(\"\"\"|'''|\"|')|#[^\n]*")
_QUOTES = ('"', "'", '"""', "'''")


def rewrite_f_strings(code: str) -> str:
    try:
        return "".join(_Rewriter(code).pieces(""))
    except (IndexError, RecursionError, SyntaxError, ValueError):
        # Not an f-string that Python 3.12 reads.
        return code


class _Rewriter:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def pieces(self, ends: str) -> Iterator[str]:
        """Yield the code up to one of the characters that end a field, outside all brackets."""
        depth = 0
        while self._at < len(self._text):
            char = self._text[self._at]
            if not depth and char in ends and not self._text.startswith("!=", self._at):
                return
            if match := _START.match(self._text, self._at):
                yield self._literal(match, inside=bool(ends))
                continue
            depth += (char in "([{") - (char in ")]}")
            self._at += 1
            yield char

    def _literal(self, match: re.Match[str], *, inside: bool) -> str:
        """Return a string or a comment; inside a field, write it without backslashes."""
        self._at = match.end()
        prefix, quote = match[1], match[2]
        if quote is None:
            return match[0]
        pieces, fields = [], ""
        is_f = "f" in prefix.lower()
        while not self._text.startswith(quote, self._at):
            pair = self._text[self._at : self._at + 2]
            if pair[0] == "\n" and len(quote) == 1:
                raise ValueError
            if is_f and pair[0] == "{" and pair != "{{":
                piece = self._field()
                fields += piece
            else:
                piece = pair if pair[0] == "\\" or pair == "{{" else pair[0]
                self._at += len(piece)
            pieces.append(piece)
        self._at += len(quote)
        body = "".join(pieces)
        whole = f"{prefix}{quote}{body}{quote}"
        if inside and "\\" in body and not is_f:
            return _spell_text(ast.literal_eval(whole))
        if quote in fields or ("\n" in fields and len(quote) == 1):
            quote = next((one for one in _QUOTES if _fits(one, body, fields)), quote)
        return f"{prefix}{quote}{body}{quote}"

    def _field(self) -> str:
        self._at += 1
        field = "{" + "".join(self.pieces("}:!"))
        while self._text[self._at] != "}":
            # `!r`, and a format, in which there may be fields.
            nested = self._text[self._at] == "{"
            field += self._field() if nested else self._text[self._at]
            self._at += not nested
        self._at += 1
        return field + "}"


def _fits(quote: str, body: str, fields: str) -> bool:
    if len(quote) == 1:
        return quote not in body and "\n" not in fields
    return quote not in body and body[-1:] != quote[0]


def _spell_text(text: str) -> str:
    pieces = (piece for piece in re.split(r"([^ -~]|[\\'\"])", text) if piece)
    parts = [f"chr({ord(p)})" if re.match(r"[^ -~]|[\\'\"]", p) else repr(p) for p in pieces]
    return f"({'+'.join(parts)})"


ATTEMPTED_CHARS = 1024 * 1024
"""Characters parsed in search of a repair: half a second, or hundreds of usual programs."""

_ARGUMENTS = {field.name for field in dataclasses.fields(RunRequest)} | {"apply", "profile"}

_UNREAD = frozenset({"servers", "session", "timeout"})
"""Arguments without which a program means the same."""

_CALL_ARGUMENTS = ("arguments", "input", "parameters")

_LITERAL = "|".join(
    f"{quote}(?:\\\\.|[^\\\\{outside}])*?{quote}"
    for quote, outside in (('"""', ""), ("'''", ""), ('"', "\n"), ("'", "\n"))
)
_QUOTED = r"[“”„«»][^“”„«»\"\n]*[“”«»]|[‘’‚‹›][^‘’‚‹›'\n]*[‘’‹›]"

_CHARACTERS = {
    **dict.fromkeys("\xa0\u2002\u2003\u2007\u2009\u200a\u202f\u3000", " "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\xad", ""),
    **dict.fromkeys("–—−‐‑", "-"),
    **{"≤": "<=", "≥": ">=", "≠": "!=", "（": "(", "）": ")", "，": ",", "：": ":"},
}
"""Characters that editors and converters write for Python's."""


@dataclass(frozen=True, kw_only=True)
class ReadProgram:
    """A program, repaired if needed, with its tree or error. `read_as` describes the repairs."""

    code: str
    tree: ast.Module | Finding
    read_as: str = ""

    @property
    def packages(self) -> tuple[str, ...]:
        if _NOTEBOOK not in self.read_as:
            return ()
        lines = re.findall(rf"(?m)^[ \t]*{_PACKAGES}(.+)$", self.code)
        return tuple(dict.fromkeys(name for line in lines for name in line.split()))


def read_program(code: str, python: Callable[[], str] = str) -> ReadProgram:
    """Return a program, repaired if its text as given does not parse and a repaired one does.

    `python` returns the sandbox's Python version, as "3.11"; empty if it is unknown.
    """
    tree = parse(code)
    if (inside := _inside(code, tree)) is not None:
        read = read_program(inside[0], python)
        return dataclasses.replace(read, read_as="; ".join(filter(None, (inside[1], read.read_as))))
    read = ReadProgram(code=code, tree=tree)
    if isinstance(tree, Finding):
        read = _repair(code, tree)
        if read.read_as == _F_STRINGS and python() not in {"", *_OLDER}:
            # Only this Python is too old for it.
            return dataclasses.replace(read, code=code, read_as="")
    newer = sys.version_info >= (3, 12) and python() in _OLDER
    if newer and (older := rewrite_f_strings(read.code)) != read.code:
        words = "; ".join(filter(None, (read.read_as, _F_STRINGS)))
        return ReadProgram(code=older, tree=parse(older), read_as=words)
    return read


def _repair(code: str, why: Finding) -> ReadProgram:
    left = ATTEMPTED_CHARS
    if why.rule != SYNTAX or len(code) > left:
        return ReadProgram(code=code, tree=why)
    level: dict[str, tuple[str, ...]] = {code: ()}
    seen = {code}
    for _ in range(3):
        texts, level = level, {}
        for text, done in texts.items():
            for words, change in REPAIRS:
                parsed: dict[str, ReadProgram] = {}
                for new in dict.fromkeys(change(text)):
                    left -= len(new)
                    if new in seen or left < 0:
                        continue
                    seen.add(new)
                    level[new] = (*done, words)
                    if isinstance(tree := parse(new), ast.Module):
                        read_as = "; ".join(level[new])
                        parsed[ast.dump(tree)] = ReadProgram(code=new, tree=tree, read_as=read_as)
                if len(parsed) == 1:
                    return next(iter(parsed.values()))
    return ReadProgram(code=code, tree=why)


def _argument(code: str) -> tuple[str, str] | None:
    if not code.lstrip().startswith("{") or '"code' not in code:
        return None
    try:
        given = json.loads(code, strict=False)
        if str(given.get("name")).endswith("run_python") and len(given) == 2:
            # A whole tool call.
            given = next((given[name] for name in _CALL_ARGUMENTS if name in given), given)
            given = json.loads(given, strict=False) if isinstance(given, str) else given
        inner = given.get("code")
    except (ValueError, RecursionError, AttributeError):
        return None
    if not given.keys() <= _ARGUMENTS or not isinstance(inner, str):
        return None
    words, names = "the text of `code` in the JSON object", given.keys() - {"code"}
    others = ", ".join(f"`{name}`" for name in given if name in names)
    if names - _UNREAD:
        message = f"The text of `code` is a JSON object that holds {others} too. Nothing was run."
        raise InvalidRequestError(message, remedy=f"Pass {others} as an argument of its own.")
    return inner, f"{words}, without {others}" if others else words


def _inside(code: str, tree: ast.Module | Finding) -> tuple[str, str] | None:
    if isinstance(tree, ast.Module) and tree.body:
        match tree.body[0]:
            case ast.Expr(value=ast.Constant(value=str() as text)) if len(tree.body) == 1:
                inner = parse(text)
                nodes = ast.walk(inner) if isinstance(inner, ast.Module) else ()
                if any(isinstance(node, ast.Call) for node in nodes):
                    return text, "the program in quotes"
            case ast.AnnAssign(target=ast.Subscript(value=ast.Name(id="In"))):
                texts = () if "In" in Survey(tree).names else _without_prompts(code)
                return next(((text, _PROMPTS) for text in texts), None)
            case _:
                pass
    return _argument(code)


_MARK = re.compile(r"\s*(?:```|~~~)\s*(\w*)|\s*</?(?:end_)?(?:code|python)>\s*$")
_PYTHON = frozenset({"python", "py", "python3", "py3", "ipython"})


def _without_fence(text: str) -> Iterator[str]:
    """Yield the text inside Markdown fences or `<code>`, if the rest is prose."""
    lines = text.splitlines()
    marks = {n: match[1] or "" for n, line in enumerate(lines) if (match := _MARK.match(line))}
    if not marks:
        return
    first, last = min(marks), max(marks)
    if first == last:
        # One end is missing: the fence is the first or the last line.
        above = any(line.strip() for line in lines[:first])
        first, last = (-1, last) if above else (first, len(lines))
    if not _has_code([*lines[: max(first, 0)], *lines[last + 1 :]]):
        yield "\n".join(lines[first + 1 : last])
        yield from _several_fences(lines, marks) if len(marks) % 2 == 0 < len(marks) - 2 else ()


def _several_fences(lines: list[str], marks: Mapping[int, str]) -> Iterator[str]:
    """Yield the Python programs in several fences as one, unless they may be alternatives.

    They are one program if no text separates them, or if each uses names from those before it.
    """
    starts, stops = list(marks)[::2], list(marks)[1::2]
    kinds = [marks[start] for start in starts]
    labelled = not _PYTHON.isdisjoint(kinds)
    whole, end = "", -1
    for start, stop, kind in zip(starts, stops, kinds, strict=True):
        block, between = lines[start + 1 : stop], lines[end + 1 : start]
        if kind not in _PYTHON and (labelled or kind):
            if not kind and _has_code(block):
                return
            continue
        tree = parse("\n".join(block))
        if not isinstance(tree, ast.Module) or _has_code(between):
            return
        if whole and any(map(str.strip, between)):
            own, before = Survey(tree), parse(whole)
            defined = Survey(before).names if isinstance(before, ast.Module) else set()
            if defined.isdisjoint(own.read_names - own.names):
                return
        whole, end = "\n".join(filter(None, (whole, *block))), stop
    yield whole


def _has_code(lines: list[str]) -> bool:
    return any(map(_is_code, filter(str.strip, [*lines, "\n".join(lines)])))


def _is_code(line: str) -> bool:
    plain = re.sub(r"`[^`]*`", "", line).strip()
    if re.search(r"=|[\[\]{}\\]|\"\"\"|'''|^[@)#]|\w\((?!e?s\))", plain):
        return True
    for text in (plain, f"{plain} pass"):
        tree = parse(text)
        for statement in tree.body if isinstance(tree, ast.Module) else ():
            # "Done" and "Note: this is it" may be prose.
            calls = any(isinstance(node, ast.Call | ast.Await) for node in ast.walk(statement))
            if calls or not isinstance(statement, ast.Expr | ast.AnnAssign):
                return True
    return False


_PROMPT = re.compile(r"\s*(?:>>>|\.\.\.:?|In ?\[\d+\]:)(?: (.*)|$)")
_NUMBER = re.compile(r"\s*(\d+)(?: ?[|│] ?|→|\t)(.*)")


def _without_prompts(text: str) -> Iterator[str]:
    """Yield the lines without prompts, line numbers and the output between them."""
    lines = text.splitlines()
    numbered = [match for match in map(_NUMBER.match, lines) if match]
    if numbered and len(numbered) == len(lines):
        first = int(numbered[0][1])
        if [int(match[1]) for match in numbered] == list(range(first, first + len(lines))):
            yield "\n".join(match[2] for match in numbered)
    elif re.match(r"\s*(?:>>>|In ?\[)", text):
        prompts = [_PROMPT.match(line) for line in lines]
        output = [s for m, s in zip(prompts, lines, strict=True) if not m and s.strip()]
        output = [re.sub(r"^Out\[\d+\]:", "", line) for line in output]
        if not output or (any(prompts[1:]) and not any(map(_is_code, output))):
            yield "\n".join((match[1] or "") if match else "" for match in prompts)


def _outside_literals(pattern: str, replace: Callable[[str], str], text: str) -> str:
    both = re.compile(f"{_LITERAL}|#[^\n]*|({pattern})", re.DOTALL)
    return both.sub(lambda match: match[0] if match[1] is None else replace(match[1]), text)


def _with_plain_characters(text: str) -> Iterator[str]:
    def plain(match: str) -> str:
        if len(match) == 1:
            return _CHARACTERS[match]
        quote = '"' if match[0] in "“”„«»" else "'"
        return f"{quote}{match[1:-1]}{quote}"

    if not text.isascii():
        yield _outside_literals(f"{_QUOTED}|[{''.join(_CHARACTERS)}]", plain, text)


def _with_plain_fields(text: str) -> Iterator[str]:
    if not text.isascii():
        plain = str.maketrans("“”„«»‘’‚‹›", '"' * 5 + "'" * 5)
        field = re.compile(r"(?<!\{)\{(?!\{)[^{}]*\}")
        literal = re.compile(f"#[^\n]*|(\\b[rR]?[fF][rR]?)?(?:{_LITERAL})", re.DOTALL)
        yield literal.sub(
            lambda m: field.sub(lambda f: f[0].translate(plain), m[0]) if m[1] else m[0], text
        )


_ENTITY = re.compile(r"&(?:quot|amp|lt|gt|apos|nbsp|#\d+|#x[0-9a-fA-F]+);")


def _without_escapes(text: str) -> Iterator[str]:
    if "\\n" not in text:
        return
    breaks = {"\\n": "\n", "\\t": "\t", "\\r\\n": "\n"}
    yield _outside_literals(r"(?:\\r)?\\n|\\t", breaks.__getitem__, text)
    try:
        yield str(json.loads(f'"{text}"', strict=False))
    except ValueError:
        return


def _with_spaces(text: str) -> Iterator[str]:
    if not re.search(r"\"\"\"|'''", text):
        for width in (2, 4, 8):
            yield re.sub(r"(?m)^[ \t]+", lambda m: m[0].expandtabs(width), text)  # noqa: B023


_PROMPTS = "the lines without prompts or numbers"
_OLDER = frozenset({"3.9", "3.10", "3.11"})
_F_STRINGS = "f-strings with nested quotes, written for an older Python"
_NOTEBOOK = "the program without notebook commands"

REPAIRS: tuple[tuple[str, Callable[[str], Iterable[str]]], ...] = (
    (_F_STRINGS, lambda text: (rewrite_f_strings(text),)),
    ("the text in the fence", _without_fence),
    (_PROMPTS, _without_prompts),
    ("plain quotes, spaces and signs in place of typographic ones", _with_plain_characters),
    ("plain quotes in f-strings' braces", _with_plain_fields),
    ("the text without HTML entities", lambda t: (_ENTITY.sub(lambda m: html.unescape(m[0]), t),)),
    ("`\\n` outside texts as a line's end", _without_escapes),
    (_NOTEBOOK, lambda text: (_outside_literals(COMMAND, read_command, text),)),
    ("the same lines with spaces in place of tabs", _with_spaces),
)
"""The repairs in the order of the attempts, each with its words."""
