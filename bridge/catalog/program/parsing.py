"""Parses a program's text into a syntax tree, or into a finding; no text raises. Pure.

The grammar is this interpreter's, so a syntax error is certain only once the sandbox confirms it.
The guest compiles: for some small programs that takes quadratic time, and parsing does not.
"""

from __future__ import annotations

import ast
import contextlib
import re
import sys
import textwrap
import warnings
from dataclasses import dataclass

from bridge.catalog.program.report import plainly
from bridge.model import Finding

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
    """Why a program has no tree."""

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
