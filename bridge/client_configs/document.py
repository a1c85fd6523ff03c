"""Edits one entry of a configuration file and leaves everything else as it is, to the byte.

`json_text`, `toml_text` and `yaml_text` give the spans of a table's entries (`Row`), and what is
put in between. Each result is decoded as discovery does, and refused if another entry differs.
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
"""Keys from the document's root to the table of servers: `("mcpServers",)`, for example."""

_BOM = b"\xef\xbb\xbf"

NAME_KEY = "name"  # Where the name is in an entry of a list.
LAST = sys.maxsize  # The place after all entries.

_GONE = object()


@dataclass(frozen=True, kw_only=True)
class EntryText:
    """An entry of a table, verbatim with its indentation and its comments, and decoded."""

    name: str
    text: str
    value: object


@dataclass(frozen=True, kw_only=True)
class Row:
    """The span of an entry, or of a part of one.

    Attributes:
        name: No text for what has no name.
        start, first: Where it starts, with and without its comments and the empty lines above.
        end: Where it ends; in JSON with its comma, else with its last line.
    """

    name: object
    start: int
    first: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Document(ABC):
    """A configuration file's text without its byte-order mark, and its value.

    Each change returns a new one, or raises an `UneditableError` if it cannot be exact.
    """

    EMPTY = ""
    NULL_IS_EMPTY = False

    text: str
    bom: bool
    format: Format
    listed: bool
    path: str
    decoded: dict[str, Any] = field(repr=False)

    def encode(self) -> bytes:
        return (_BOM if self.bom else b"") + self.text.encode()

    def entries(self, table: Table) -> Mapping[str, object]:
        """Return a table's entries by name; none if there is no such table."""
        found = self.named_entries(table)
        if found:
            self._check(table)
        return {name: value for name, value in found if name is not None}

    def entry(self, table: Table, name: str) -> EntryText | None:
        found = self.entries(table)
        if name not in found:
            return None
        return EntryText(name=name, text=self._entry_text(table, name), value=found[name])

    def with_entry(self, table: Table, name: str, value: Mapping[str, object]) -> Self:
        """Return it with this entry, in place of one of the name or at the end."""
        if self.listed:
            value = {NAME_KEY: name, **value}
        old = self.entries(table)
        if name not in old:
            made = self._with_table(table)
            return made._check_change(made._add(table, name, value), table, name, value)
        if _canonical(old[name]) == _canonical(value):
            return self
        index = [each for each, _ in self.named_entries(table)].index(name)
        return self._check_change(
            self._replace_entry(table, name, value), table, name, value, index
        )

    def with_text(self, table: Table, entry: EntryText, *, index: int = LAST) -> Self:
        """Return it with a verbatim entry, which takes the place `index` or the last."""
        if entry.name in self.entries(table):
            raise self._error(f"it has an entry {entry.name} already")
        made = self._with_table(table)
        text = made._insert(table, entry.name, entry.text, index)
        return made._check_change(text, table, entry.name, entry.value, index)

    def with_item(self, place: str, item: str) -> Self:
        *outer, key = place.split(".")
        items = [*cast("Any", lookup(self.decoded, place)), item]
        text = self._insert((*outer, key), "", json.dumps(item), LAST)
        return self._check_change(text, tuple(outer), key, items)

    def without(self, table: Table, name: str) -> Self:
        """Return it without an entry and its comments; an empty table stays."""
        if name not in self.entries(table):
            return self
        return self._check_change(self._cut(table, name), table, name, _GONE)

    def _with_table(self, table: Table) -> Self:
        """Return it with the table, empty if it was missing."""
        made, found = self, cast("Any", self.decoded)
        for depth, key in enumerate(table):
            if key not in (found or {}):
                empty: Any = [] if self.listed and depth == len(table) - 1 else {}
                made = made._parse(made._add(table[:depth], key, empty))
                found = {key: empty}
            found = found[key]
        return made

    def _add(self, table: Table, name: str, value: Mapping[str, object]) -> str:
        new = self._format(table, name, value).replace("\n", self._line_end(len(self.text)))
        return self._insert(table, name, new, LAST)

    @abstractmethod
    def _rows(self, table: Table) -> Sequence[Row]:
        """Return the spans in a table that exists, in their order; an entry may have several."""

    @abstractmethod
    def _format(
        self, table: Table, name: str, value: Mapping[str, object], at: Row | None = None
    ) -> str:
        """Return the text of an entry, new or in place of `at`, or of an empty table."""

    @abstractmethod
    def _insert(self, table: Table, name: str, text: str, index: int) -> str:
        """Return the text with the text of an entry at its place in a table that exists."""

    def _check(self, table: Table) -> None:
        """Raise if a table with entries cannot be edited."""
        seen = set()
        for row in self._rows(table):
            if isinstance(row.name, str):
                if row.name in seen:
                    raise self._error(f"the key {row.name} is there twice", row.first)
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
        """Return a table's entries in their order, with their names; none if it is missing."""
        found: Any = self.decoded
        for depth, key in enumerate(table):
            wanted = list if self.listed and depth == len(table) - 1 else dict
            found = found.get(key, wanted())
            if found is None and self.NULL_IS_EMPTY:
                found = wanted()
            if not isinstance(found, wanted):
                where = ".".join(table[: depth + 1])
                raise self._error(f"{where} is {kind(found)}, not {kind(wanted())}")
        if not self.listed:
            return list(found.items())
        names = (row.get(NAME_KEY) if isinstance(row, dict) else None for row in found)
        return [
            (name if isinstance(name, str) else None, row)
            for name, row in zip(names, found, strict=True)
        ]

    def _parse(self, text: str) -> Self:
        try:
            made = open_document(text.encode(), self.format, listed=self.listed, path=self.path)
        except (UneditableError, UnicodeEncodeError) as error:
            reason = getattr(error, "reason", "it is no text")
            raise self._error(f"the change cannot be made exactly: {reason}") from error
        return cast("Self", replace(made, bom=self.bom))

    def _check_change(
        self, text: str, table: Table, name: str, value: object, index: int = LAST
    ) -> Self:
        """Return the changed document, in which only one entry may differ."""
        changed = self._parse(text)
        rows = [row for row in self.named_entries(table) if row[0] != name]
        if value is not _GONE:
            rows.insert(index, (name, value))
        found = changed.named_entries(table)
        expected = (_others(self.decoded, table), rows if self.listed else dict(rows))
        present = (_others(changed.decoded, table), found if self.listed else dict(found))
        if _canonical(present) != _canonical(expected):
            raise self._error(f"the entry {name} cannot be changed without changing others")
        return changed

    def _error(self, reason: str, at: int | None = None) -> UneditableError:
        """Return the error about a place of the text."""
        if at is not None:
            line = self.text.count("\n", 0, at) + 1
            column = at - self.text.rfind("\n", 0, at)
            reason = f"{reason} (line {line}, column {column})"
        return UneditableError(reason, path=self.path)

    def _line_end(self, at: int) -> str:
        found = self.text.rfind("\n", 0, at)
        found = self.text.find("\n", at) if found < 0 else found
        return "\r\n" if found > 0 and self.text[found - 1] == "\r" else "\n"

    def _above(self, floor: int, line: int) -> int:
        """Return where a row starts, with the comments directly above and empty lines above those.

        So what is put back stands as before.
        """
        start = line
        while start > floor:
            above = self._line(start - 1)
            if above < floor or not self.text[above:start].lstrip().startswith("#"):
                break
            start = above
        return start if self.text[floor:start].strip() else floor

    def _join(self, place: int, lines: Sequence[str], indent: int = 0) -> str:
        """Return lines as they stand at a place, which starts a line or ends the text."""
        nl = self._line_end(place)
        opening = nl if place and self.text[place - 1] != "\n" else ""
        return opening + "".join(" " * indent * bool(line) + line + nl for line in lines)

    def _line(self, at: int) -> int:
        return self.text.rfind("\n", 0, max(at, 0)) + 1

    def _line_after(self, at: int) -> int:
        found = self.text.find("\n", at)
        return len(self.text) if found < 0 else found + 1


def open_document(raw: bytes, format: Format, *, listed: bool = False, path: str = "") -> Document:
    """Return a file's document; no bytes are a new file in the format's smallest form.

    Args:
        listed: Whether a table is a list of entries that hold their name.

    Raises:
        UneditableError: It is malformed or too large.
    """
    # Imported here, as each imports this module.
    from bridge.client_configs import json_text, toml_text, yaml_text

    classes: dict[str, type[Document]] = {"toml": toml_text.TomlText, "yaml": yaml_text.YamlText}
    chosen = classes.get(format, json_text.JsonText)
    if len(raw) > size_limit(format):
        raise UneditableError(f"it is larger than {size_limit(format):,} bytes", path=path)
    body = raw.removeprefix(_BOM)
    decoded: object = {}
    if body.strip():
        try:
            decoded = decode(body, format)
        except MalformedError as error:
            raise UneditableError(str(error), path=path) from error
    if decoded is None and chosen.NULL_IS_EMPTY:
        decoded = {}
    if not isinstance(decoded, dict):
        raise UneditableError(f"it holds {kind(decoded)}, not an object", path=path)
    text = body.decode() if body.strip() else chosen.EMPTY
    if not decoded and chosen.EMPTY and not strip_comments(text, trailing_commas=True).strip():
        text = f"{text.rstrip()}\n{chosen.EMPTY}"
    return chosen(
        text=text, bom=raw != body, format=format, listed=listed, path=path, decoded=decoded
    )


def _canonical(value: object) -> str:
    """Return a text that is the same for equal values of the same types."""
    try:
        return json.dumps(value, sort_keys=True, default=repr)
    except RecursionError as error:
        raise UneditableError("it is nested too deeply") from error


def _others(value: Mapping[str, Any], table: Table) -> Mapping[str, Any]:
    """Return a document without a table, and without those around it that hold nothing else."""
    rest = {key: item for key, item in value.items() if key != table[0]}
    inner = value.get(table[0])
    kept = _others(inner, table[1:]) if table[1:] and isinstance(inner, dict) else None
    return {**rest, table[0]: kept} if kept else rest


def indentation(text: str, at: int) -> str:
    start = text.rfind("\n", 0, at) + 1
    return text[start : start + len(text[start:at]) - len(text[start:at].lstrip(" \t"))]


def splice(text: str, edits: Sequence[tuple[int, int, str]]) -> str:
    """Return a text with spans replaced; edits at one place come in the order given."""
    for start, end, new in sorted(edits, key=lambda edit: edit[:2])[::-1]:
        text = text[:start] + new + text[end:]
    return text
