"""Edits TOML: finds the statements of an entry, and writes entries as sections.

An entry may be sections (`[mcp_servers.x]`, `[mcp_servers.x.env]`, `[[mcp_servers]]`) or keys in
the section of its table (`x = {...}`, `x.command = "..."`).
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

from bridge.clients.document import Document, EntryText, Table, spliced

_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"|\'[^\'\n]*+\'|#[^\n]*+|\n|[^"\'#\[\]{}\n]++|.',
    re.DOTALL,
)
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = re.compile(rf"\s*{_PART}(?:[ \t]*\.[ \t]*{_PART})*[ \t]*=")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True, kw_only=True)
class _Statement:
    """A header, a key with its value, a comment's line or an empty line.

    Attributes:
        section: The path of the section that it is in or starts.
        path: What it sets, from the root; of a section, the section.
    """

    start: int
    end: int
    kind: str
    section: Table = ()
    path: Table = ()

    @property
    def is_solid(self) -> bool:
        return self.kind in ("header", "pair")


@dataclass(frozen=True, kw_only=True)
class _Span:
    """Statements that follow each other, of one entry or of none, and comments above them."""

    owner: Table
    start: int
    end: int
    solid: list[_Statement]


@dataclass(frozen=True, kw_only=True)
class TomlText(Document):
    """A TOML file."""

    @cached_property
    def _statements(self) -> list[_Statement]:
        found: list[_Statement] = []
        section: Table = ()
        for start, end in _lines(self.text):
            text = self.text[start:end]
            first, path = text.lstrip(" \t")[:1], section
            kind = {"[": "header", "#": "comment"}.get(first, "pair" if first.strip() else "blank")
            if kind == "header":
                section = path = _path(tomllib.loads(text))
            elif kind == "pair" and (match := _KEY.match(text)):
                path = section + _path(tomllib.loads(match[0] + "{}"))
            found.append(_Statement(start=start, end=end, kind=kind, section=section, path=path))
        return found

    def _spans(self, table: Table) -> list[_Span]:
        """Return all statements as spans of entries and of what is none."""
        spans: list[_Span] = []
        rows, item, comments_from = self._named(self._rows(table)), -1, -1
        for statement in self._statements:
            if not statement.is_solid:
                if statement.kind == "blank":
                    comments_from = -1
                elif comments_from < 0:
                    comments_from = statement.start
                continue
            item += statement.kind == "header" and statement.path == table
            owner = (
                statement.path[len(table) :][:1] if statement.path[: len(table)] == table else ()
            )
            if self.listed:
                owner = (rows[item][0] or "",) if statement.section[: len(table)] == table else ()
            start = statement.start if comments_from < 0 else comments_from
            comments_from = -1
            solid = [statement]
            if spans and spans[-1].owner == owner:
                before = spans.pop()
                start, solid = before.start, [*before.solid, statement]
            spans.append(_Span(owner=owner, start=start, end=statement.end, solid=solid))
        return spans

    def _entry_spans(self, table: Table, name: str) -> list[_Span]:
        spans = [span for span in self._spans(table) if span.owner == (name,)]
        size = len(table) + (not self.listed)
        if len({one.section[:size] for span in spans for one in span.solid}) > 1:
            raise self._refused(f"{name} is written in several ways", spans[-1].start)
        return spans

    def _check_table(self, table: Table) -> None:
        for statement in self._statements:
            size = len(statement.path)
            if statement.kind == "pair" and statement.path == table[:size]:
                key = ".".join(table[:size])
                raise self._refused(
                    f"{key} is one value; write [{key}.NAME] sections instead", statement.start
                )

    def _entry_text(self, table: Table, name: str) -> str:
        spans = self._entry_spans(table, name)
        return "".join(self.text[span.start : span.end] for span in spans).rstrip("\r\n")

    def _with_table(self, table: Table) -> Self:
        # Sections make their tables; one that is an empty value must go.
        empty = [
            (statement.start, statement.end, "")
            for statement in self._statements
            if statement.kind == "pair" and statement.path == table and not self._rows(table)
        ]
        return self._parsed(spliced(self.text, empty)) if empty else self

    def _put(self, table: Table, name: str, value: Mapping[str, object]) -> str:
        spans = self._entry_spans(table, name)
        if not spans:
            return self._inserted(self._end(table), self._section(table, name, value))
        first = spans[0].solid[0]
        if first.kind == "header":
            new = self._section(table, name, value)
        else:
            key = [_key(part) for part in (*table, name)[len(first.section) :]]
            new = f"{'.'.join(key)} = {self._inline(value)}"
        edits = [(first.start, spans[0].end, new + self._line_end(first.start))]
        edits += [(span.start, span.end, "") for span in spans[1:]]
        return spliced(self.text, edits)

    def _put_text(self, table: Table, entry: EntryText, index: int) -> str:
        try:
            value = tomllib.loads(entry.text)
        except tomllib.TOMLDecodeError as error:
            raise self._refused("the entry's text cannot be read") from error
        names = [name for name, _ in self._named(self._rows(table))]
        spans = self._entry_spans(table, str(names[index])) if index < len(names) else []
        next_one = spans[0] if spans else None
        lines = (line.lstrip() for line in entry.text.splitlines())
        is_section = next(line for line in lines if line and line[0] != "#").startswith("[")
        if is_section:
            if next_one and next_one.solid[0].kind == "header":
                return self._inserted(next_one.start, entry.text)
            return self._inserted(self._end(table), entry.text)
        depth = next((n for n in range(len(table) + 1) if _has(value, (*table[n:], entry.name))), 0)
        section = table[:depth]
        if next_one and next_one.solid[0].kind == "pair" and next_one.solid[0].section == section:
            return spliced(self.text, [self._line(next_one.start, entry.text)])
        inside = [one.end for one in self._statements if one.is_solid and one.section == section]
        if not inside and section:
            header = f"[{'.'.join(map(_key, section))}]{self._line_end(len(self.text))}"
            return self._inserted(len(self.text), header + entry.text)
        return spliced(self.text, [self._line(max(inside, default=0), entry.text)])

    def _cut(self, table: Table, name: str) -> str:
        edits = []
        for span in self._entry_spans(table, name):
            start, end = span.start, span.end
            before = len(self.text[:start].rstrip())
            line = self.text.find("\n", before) + 1 if before else 0
            blank = len(self.text) - end - len(self.text[end:].lstrip())
            if end + blank == len(self.text):
                start, end = line, len(self.text)
            elif line < start or not before:
                # The empty lines above separate what follows.
                end = max(end, self.text.rfind("\n", end, end + blank) + 1)
            edits.append((start, end, ""))
        return spliced(self.text, edits)

    def _end(self, table: Table) -> int:
        """Return where a new section of a table goes: after its last, or at the end."""
        ends = [span.end for span in self._spans(table) if span.owner]
        ends += [one.end for one in self._statements if one.kind == "header" and one.path == table]
        end = max(ends, default=len(self.text))
        for one in self._statements:
            if one.start >= end and one.is_solid:
                if one.kind == "header":
                    break
                # A key of the section that ends here, which the new one would take.
                end = one.end
        return end

    def _line(self, at: int, text: str) -> tuple[int, int, str]:
        """Return the edit that puts text on lines of its own at a line's start."""
        nl = self._line_end(at)
        opening = nl if at and self.text[at - 1] != "\n" else ""
        return (at, at, opening + text + nl)

    def _inserted(self, at: int, section: str) -> str:
        """Return the text with a section at a line's start, and empty lines around it."""
        nl = self._line_end(at)
        before, after = self.text[:at], self.text[at:]
        opening = ""
        if before.strip():
            opening = nl if before.endswith("\n") else nl + nl
            if before.endswith(("\n\n", "\n\r\n")):
                opening = ""
        closing = nl if after.strip() and after[:1] not in ("\r", "\n") else ""
        return before + opening + section.rstrip("\r\n") + nl + closing + after

    def _section(self, table: Table, name: str, value: Mapping[str, object]) -> str:
        """Return an entry as sections, without a last line end."""
        path = table if self.listed else (*table, name)
        return self._line_end(len(self.text)).join(self._section_lines(path, value, self.listed))

    def _section_lines(
        self, path: Table, value: Mapping[str, object], listed: bool
    ) -> Iterator[str]:
        tables = {key: item for key, item in value.items() if isinstance(item, dict) and item}
        name = ".".join(map(_key, path))
        yield f"[[{name}]]" if listed else f"[{name}]"
        for key, item in value.items():
            if key not in tables:
                yield f"{_key(key)} = {self._inline(item)}"
        for key, item in tables.items():
            yield ""
            yield from self._section_lines((*path, key), item, False)

    def _inline(self, value: object) -> str:
        """Return a value on one line."""
        match value:
            case Mapping():
                pairs = (f"{_key(key)} = {self._inline(item)}" for key, item in value.items())
                return "{ " + ", ".join(pairs) + " }" if value else "{}"
            case list() | tuple():
                return f"[{', '.join(map(self._inline, value))}]"
            case bool() | str():
                return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
            case int() | float():
                return repr(value)
            case _:
                raise self._refused(f"TOML has no value for {value!r}")


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield each statement's span, to the end of its last line."""
    start, depth = 0, 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        if token == "\n" and not depth:
            yield start, match.end()
            start = match.end()
    if start < len(text):
        yield start, len(text)


def _path(value: Any) -> Table:
    """Return the keys of a value of which each holds one other."""
    path: list[str] = []
    while value:
        if isinstance(value, list):
            value = value[0]
            continue
        [(key, value)] = value.items()
        path.append(key)
    return tuple(path)


def _has(value: object, path: Table) -> bool:
    """Return whether there is a value at a path."""
    for key in path:
        if not isinstance(value, dict) or key not in value:
            return False
        value = value[key]
    return True


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else json.dumps(key, ensure_ascii=False)
