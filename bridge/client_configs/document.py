"""Edits one entry of a configuration file and preserves every other byte.

The subclasses in `formats` find the spans of a table's entries and format new ones. This module
decodes each result and refuses it if another entry differs.
"""

from __future__ import annotations

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from bridge.discovery.dialect import Format
from bridge.discovery.documents import MalformedError, decode, kind, size_limit, strip_comments
from bridge.discovery.parser import lookup
from bridge.errors import UneditableError

Table = tuple[str, ...]
"""Keys from the document's root to the table of servers, such as `("mcpServers",)`."""

_BOM = b"\xef\xbb\xbf"

NAME_KEY = "name"  # The key of an entry's name, if the table is a list.
LAST = sys.maxsize  # The index after all entries.

_GONE = object()


@dataclass(frozen=True, kw_only=True)
class EntryText:
    """An entry of a table: its verbatim text with indentation and comments, and its value."""

    name: str
    text: str
    value: object


@dataclass(frozen=True, kw_only=True)
class Row:
    """The offsets of an entry, or of a part of one, in a document's text."""

    name: object  # The entry's name; not a string if it has none.
    # `start`, `first`: the offset of the comments above the entry; the offset of its own text.
    start: int
    first: int
    end: int  # The end, which includes the comma (JSON) or the last line's break (TOML, YAML).


@dataclass(frozen=True, kw_only=True)
class Document(ABC):
    """A configuration file's text, without its byte-order mark, and the decoded value.

    Each edit returns a new document, or raises an `UneditableError` if it cannot be exact.
    """

    EMPTY = ""
    NULL_IS_EMPTY = False

    text: str
    bom: bool
    format: Format
    listed: bool
    path: str
    decoded: dict[str, Any] = field(repr=False)

    @classmethod
    def open(cls, raw: bytes, format: Format, *, listed: bool = False, path: str = "") -> Self:
        """Parse a file's content; empty content becomes an empty document.

        If `listed`, a table is a list of entries that hold their name. Raises an `UneditableError`
        if the content is malformed or too large.
        """
        if len(raw) > size_limit(format):
            raise UneditableError(f"it is larger than {size_limit(format):,} bytes", path=path)
        body = raw.removeprefix(_BOM)
        decoded: object = {}
        if body.strip():
            try:
                decoded = decode(body, format)
            except MalformedError as error:
                raise UneditableError(str(error), path=path) from error
        if decoded is None and cls.NULL_IS_EMPTY:
            decoded = {}
        if not isinstance(decoded, dict):
            raise UneditableError(f"it holds {kind(decoded)}, not an object", path=path)
        text = body.decode() if body.strip() else cls.EMPTY
        if not decoded and cls.EMPTY and not strip_comments(text, trailing_commas=True).strip():
            text = f"{text.rstrip()}\n{cls.EMPTY}"
        return cls(
            text=text, bom=raw != body, format=format, listed=listed, path=path, decoded=decoded
        )

    def encode(self) -> bytes:
        return (_BOM if self.bom else b"") + self.text.encode()

    def entries(self, table: Table) -> Mapping[str, object]:
        """Return a table's entries by name; empty if there is no such table."""
        named = self.named_entries(table)
        if named:
            self._check(table)
        return {name: value for name, value in named if name is not None}

    def entry(self, table: Table, name: str) -> EntryText | None:
        entries = self.entries(table)
        if name not in entries:
            return None
        return EntryText(name=name, text=self._entry_text(table, name), value=entries[name])

    def with_entry(self, table: Table, name: str, value: Mapping[str, object]) -> Self:
        """Replace the entry of this name, or add it at the end."""
        if self.listed:
            value = {NAME_KEY: name, **value}
        old = self.entries(table)
        if name not in old:
            document = self._with_table(table)
            return document._check_change(document._add(table, name, value), table, name, value)
        if _canonical(old[name]) == _canonical(value):
            return self
        index = [each for each, _ in self.named_entries(table)].index(name)
        return self._check_change(
            self._replace_entry(table, name, value), table, name, value, index
        )

    def with_text(self, table: Table, entry: EntryText, *, index: int = LAST) -> Self:
        """Insert a verbatim entry at an index."""
        if entry.name in self.entries(table):
            raise self._error(f"it already has an entry {entry.name}")
        document = self._with_table(table)
        text = document._insert(table, entry.name, entry.text, index)
        return document._check_change(text, table, entry.name, entry.value, index)

    def with_item(self, list_path: str, item: str) -> Self:
        """Append an item to the list at a dotted path."""
        *outer, key = list_path.split(".")
        items = [*cast("Any", lookup(self.decoded, list_path)), item]
        text = self._insert((*outer, key), "", json.dumps(item), LAST)
        return self._check_change(text, tuple(outer), key, items)

    def without(self, table: Table, name: str) -> Self:
        """Remove an entry and its comments; a table that becomes empty stays."""
        if name not in self.entries(table):
            return self
        return self._check_change(self._cut(table, name), table, name, _GONE)

    def _with_table(self, table: Table) -> Self:
        """Add the table, empty, if it is missing."""
        document, value = self, cast("Any", self.decoded)
        for depth, key in enumerate(table):
            if key not in (value or {}):
                empty: Any = [] if self.listed and depth == len(table) - 1 else {}
                document = document._parse(document._add(table[:depth], key, empty))
                value = {key: empty}
            value = value[key]
        return document

    def _add(self, table: Table, name: str, value: Mapping[str, object]) -> str:
        new = self._format(table, name, value).replace("\n", self._line_end(len(self.text)))
        return self._insert(table, name, new, LAST)

    @abstractmethod
    def _rows(self, table: Table) -> Sequence[Row]:
        """Return the spans in an existing table, in order; an entry may have several."""

    @abstractmethod
    def _format(
        self, table: Table, name: str, value: Mapping[str, object], at: Row | None = None
    ) -> str:
        """Return the text of an entry or of an empty table; `at` is the row that it replaces."""

    @abstractmethod
    def _insert(self, table: Table, name: str, text: str, index: int) -> str:
        """Return the document's text with an entry's text inserted into an existing table."""

    def _check(self, table: Table) -> None:
        seen = set()
        for row in self._rows(table):
            if isinstance(row.name, str):
                if row.name in seen:
                    raise self._error(f"the key {row.name} occurs twice", row.first)
                seen.add(row.name)

    def _own(self, table: Table, name: str) -> Sequence[Row]:
        return [row for row in self._rows(table) if row.name == name]

    def _entry_text(self, table: Table, name: str) -> str:
        rows = self._own(table, name)
        return "".join(self.text[row.start : row.end] for row in rows).rstrip("\r\n")

    def _replace_entry(self, table: Table, name: str, value: Mapping[str, object]) -> str:
        first, *others = self._own(table, name)
        line = self._line(first.first)
        lines = self._format(table, name, value, first).split("\n")
        new = self._join(line, lines, first.first - line)
        cut = ((row.start, row.end, "") for row in others)
        return splice(self.text, [(line, first.end, new), *cut])

    def _cut(self, table: Table, name: str) -> str:
        return splice(self.text, [(row.start, row.end, "") for row in self._own(table, name)])

    def named_entries(self, table: Table) -> list[tuple[str | None, object]]:
        """Return a table's entries with their names, in order; empty if the table is missing."""
        value: Any = self.decoded
        for depth, key in enumerate(table):
            wanted = list if self.listed and depth == len(table) - 1 else dict
            value = value.get(key, wanted())
            if value is None and self.NULL_IS_EMPTY:
                value = wanted()
            if not isinstance(value, wanted):
                where = ".".join(table[: depth + 1])
                raise self._error(f"{where} is {kind(value)}, not {kind(wanted())}")
        if not self.listed:
            return list(value.items())
        names = (row.get(NAME_KEY) if isinstance(row, dict) else None for row in value)
        return [
            (name if isinstance(name, str) else None, row)
            for name, row in zip(names, value, strict=True)
        ]

    def _parse(self, text: str) -> Self:
        try:
            new = self.open(text.encode(), self.format, listed=self.listed, path=self.path)
        except (UneditableError, UnicodeEncodeError) as error:
            reason = getattr(error, "reason", "it is not valid Unicode")
            raise self._error(f"the change cannot be made exactly: {reason}") from error
        return replace(new, bom=self.bom)

    def _check_change(
        self, text: str, table: Table, name: str, value: object, index: int = LAST
    ) -> Self:
        """Parse the changed text; raise unless only this entry differs."""
        changed = self._parse(text)
        rows = [row for row in self.named_entries(table) if row[0] != name]
        if value is not _GONE:
            rows.insert(index, (name, value))
        named = changed.named_entries(table)
        expected = (_others(self.decoded, table), rows if self.listed else dict(rows))
        present = (_others(changed.decoded, table), named if self.listed else dict(named))
        if _canonical(present) != _canonical(expected):
            raise self._error(f"the entry {name} cannot be changed without changing others")
        return changed

    def _error(self, reason: str, at: int | None = None) -> UneditableError:
        if at is not None:
            line = self.text.count("\n", 0, at) + 1
            column = at - self.text.rfind("\n", 0, at)
            reason = f"{reason} (line {line}, column {column})"
        return UneditableError(reason, path=self.path)

    def _line_end(self, at: int) -> str:
        newline = self.text.rfind("\n", 0, at)
        newline = self.text.find("\n", at) if newline < 0 else newline
        return "\r\n" if newline > 0 and self.text[newline - 1] == "\r" else "\n"

    def _above(self, floor: int, line: int) -> int:
        """Return the start of a row with the comments directly above and empty lines above those.

        An entry that is removed and put back then has its original surroundings.
        """
        start = line
        while start > floor:
            above = self._line(start - 1)
            if above < floor or not self.text[above:start].lstrip().startswith("#"):
                break
            start = above
        return start if self.text[floor:start].strip() else floor

    def _join(self, at: int, lines: Sequence[str], indent: int = 0) -> str:
        """Join lines for insertion at the start of a line or at the end of the text."""
        nl = self._line_end(at)
        opening = nl if at and self.text[at - 1] != "\n" else ""
        return opening + "".join(" " * indent * bool(line) + line + nl for line in lines)

    def _line(self, at: int) -> int:
        return self.text.rfind("\n", 0, max(at, 0)) + 1

    def _line_after(self, at: int) -> int:
        newline = self.text.find("\n", at)
        return len(self.text) if newline < 0 else newline + 1


def _canonical(value: object) -> str:
    """Return a text that is equal for equal values of equal types."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except RecursionError as error:
        raise UneditableError("it is nested too deeply") from error


def _others(value: Mapping[str, Any], table: Table) -> Mapping[str, Any]:
    """Return a document without a table and without the outer tables that it leaves empty."""
    rest = {key: item for key, item in value.items() if key != table[0]}
    inner = value.get(table[0])
    nested = _others(inner, table[1:]) if table[1:] and isinstance(inner, dict) else None
    return {**rest, table[0]: nested} if nested else rest


def indentation(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    return text[start : start + len(text[start:at]) - len(text[start:at].lstrip(" \t"))]


def splice(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    """Replace spans of a text; insertions at one position keep the given order."""
    for start, end, new in sorted(edits, key=lambda edit: edit[:2])[::-1]:
        text = text[:start] + new + text[end:]
    return text
