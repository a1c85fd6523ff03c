"""Edits TOML, where an entry is sections (`[table.x]`, `[[table]]`) or keys in a section."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

from bridge.client_configs.document import Document, Row, Table, splice
from bridge.errors import SettingsError
from bridge.settings.policy_edit import toml_key, toml_value

_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"|\'[^\'\n]*+\'|#[^\n]*+|\n|[^"\'#\[\]{}\n]++|.',
    re.DOTALL,
)
_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = re.compile(rf"\s*{_PART}(?:[ \t]*\.[ \t]*{_PART})*[ \t]*=")


@dataclass(frozen=True, kw_only=True)
class _Statement(Row):
    """A section's header, or a key with its value. A row joins the statements of one entry.

    Attributes:
        section: The path of the section that contains the statement or that it starts.
        path: The path that it sets, from the root.
    """

    name: str | None = None
    section: Table
    path: Table
    is_header: bool


@dataclass(frozen=True, kw_only=True)
class TomlText(Document):
    @cached_property
    def _statements(self) -> list[_Statement]:
        statements: list[_Statement] = []
        section: Table = ()
        for start, end in _lines(self.text):
            text = self.text[start:end]
            if is_header := text.lstrip(" \t").startswith("["):
                section = path = _path(tomllib.loads(text))
            elif match := _KEY.match(text):
                path = section + _path(tomllib.loads(match[0] + "{}"))
            else:
                continue
            span = Row(name=None, start=start, first=start, end=end)
            statement = _Statement(**vars(span), section=section, path=path, is_header=is_header)
            statements.append(statement)
        return statements

    def _rows(self, table: Table) -> list[_Statement]:
        rows: list[_Statement] = []
        names, size, item, floor = self.named_entries(table), len(table), -1, 0
        for one in self._statements:
            item += one.is_header and one.path == table
            section, name = one.section[: size + (not self.listed)], None
            if self.listed and section == table:
                name = names[item][0]
            elif one.path[:size] == table and not self.listed:
                name = one.path[size] if len(one.path) > size else None
            row = replace(one, name=name, start=self._above(floor, one.first), section=section)
            if rows and (rows[-1].name, rows[-1].section) == (name, section) and name is not None:
                row = replace(rows.pop(), end=one.end)
            rows.append(row)
            floor = one.end
        return rows

    def _own(self, table: Table, name: str) -> list[_Statement]:
        rows = [row for row in self._rows(table) if row.name == name]
        if len({row.section for row in rows}) > 1:
            raise self._error(f"{name} is written in several ways", rows[0].start)
        return rows

    def _check(self, table: Table) -> None:
        for one in self._statements:
            if not one.is_header and one.path == table[: len(one.path)]:
                key = ".".join(one.path)
                reason = f"{key} is one value; write [{key}.NAME] sections instead"
                raise self._error(reason, one.start)

    def _entry_text(self, table: Table, name: str) -> str:
        text = super()._entry_text(table, name)
        return text.lstrip("\r\n") if self._own(table, name)[0].is_header else text

    def _with_table(self, table: Table) -> Self:
        # A section creates its table, so an empty inline value of the table must go.
        empty = [
            (one.start, one.end, "")
            for one in self._statements
            if not one.is_header and one.path == table and not self.named_entries(table)
        ]
        return self._parse(splice(self.text, empty)) if empty else self

    def _format(
        self, table: Table, name: str, value: Mapping[str, object], at: Row | None = None
    ) -> str:
        if isinstance(at, _Statement) and not at.is_header:
            key = ".".join(toml_key(part) for part in (*table, name)[len(at.section) :])
            return f"{key} = {self._inline(value)}"
        path = table if self.listed else (*table, name)
        return "\n".join(self._section_lines(path, value, self.listed))

    def _insert(self, table: Table, name: str, text: str, index: int) -> str:
        try:
            tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._error("the entry's text cannot be read") from error
        first = replace(self, text=text)._statements[0]
        names = self.named_entries(table)
        rows = self._own(table, str(names[index][0])) if index < len(names) else []
        place = next((row.start for row in rows if row.is_header == first.is_header), None)
        if first.is_header:
            return self._with_section(self._end(table) if place is None else place, text)
        path = (*table, name)
        depths = (n for n in range(len(path)) if first.path[: len(path) - n] == path[n:])
        section = table[: next(depths, 0)]
        inside = [one.end for one in self._statements if one.section == section]
        if not inside and section:
            header = f"[{'.'.join(map(toml_key, section))}]{self._line_end(len(self.text))}"
            return self._with_section(len(self.text), header + text)
        if place is None or rows[0].section != section:
            place = max(inside, default=0)
        return splice(self.text, [(place, place, self._join(place, [text]))])

    def _end(self, table: Table) -> int:
        """Return the position of a table's new section: after its last one, or at the end."""
        ends = [row.end for row in self._rows(table) if row.name is not None]
        ends += [one.end for one in self._statements if one.is_header and one.path == table]
        end = max(ends, default=len(self.text))
        for one in self._statements:
            if one.start >= end:
                if one.is_header:
                    break
                # A new section here would capture the keys below.
                end = one.end
        return end

    def _with_section(self, at: int, section: str) -> str:
        before, after, lines = self.text[:at], self.text[at:], [section]
        if before.strip() and not before.endswith(("\n\n", "\n\r\n")):
            lines = ["", section]
        if after.strip() and after[:1] not in ("\r", "\n"):
            lines.append("")
        return before + self._join(at, lines) + after

    def _section_lines(
        self, path: Table, value: Mapping[str, object], listed: bool
    ) -> Iterator[str]:
        tables = {key: item for key, item in value.items() if isinstance(item, dict) and item}
        name = ".".join(map(toml_key, path))
        yield f"[[{name}]]" if listed else f"[{name}]"
        for key, item in value.items():
            if key not in tables:
                yield f"{toml_key(key)} = {self._inline(item)}"
        for key, item in tables.items():
            yield ""
            yield from self._section_lines((*path, key), item, False)

    def _inline(self, value: Any) -> str:
        try:
            return toml_value(value)
        except SettingsError as error:
            raise self._error(f"TOML has no value for {value!r}") from error


def _lines(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each statement's whole lines."""
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
    """Return the keys of nested tables that have one key each."""
    path: list[str] = []
    while value:
        if isinstance(value, list):
            value = value[0]
            continue
        [(key, value)] = value.items()
        path.append(key)
    return tuple(path)
