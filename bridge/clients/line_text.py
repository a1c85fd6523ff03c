"""Edits files of which each entry is some lines, as TOML and YAML mostly are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from bridge.clients.document import Document, Table


@dataclass(frozen=True, kw_only=True)
class Row:
    """Lines of an entry.

    Attributes:
        name: Of the entry; None for lines that are of none.
        start: Where they start, with the comments directly above and the empty lines above those.
        first, end: Where the first line without comments starts, and the last one ends.
        indent: How many spaces that one starts with.
        section: In TOML, the section that they are in.
        is_section: In TOML, whether they start with a section's header.
    """

    name: str | None
    start: int
    first: int
    end: int
    indent: int = 0
    section: Table = ()
    is_section: bool = False


@dataclass(frozen=True, kw_only=True)
class LineText(Document):
    """A file in lines."""

    @abstractmethod
    def _lines_of(self, table: Table) -> Sequence[Row]:
        """Return the rows of a table in their order; an entry may have several."""

    def _own(self, table: Table, name: str) -> list[Row]:
        return [row for row in self._lines_of(table) if row.name == name]

    def _entry_text(self, table: Table, name: str) -> str:
        rows = self._own(table, name)
        return "".join(self.text[row.start : row.end] for row in rows).rstrip("\r\n")

    def _above(self, floor: int, line: int) -> int:
        """Return where a row starts: at the comments directly above its first line.

        Empty lines above go with it, so that what is put back stands as before; not those below
        comments of their own.
        """
        start = line
        while start > floor:
            above = self._line(start - 1)
            if above < floor or not self.text[above:start].lstrip().startswith("#"):
                break
            start = above
        return start if self.text[floor:start].strip() else floor

    def _joined(self, place: int, lines: Sequence[str], indent: int = 0) -> str:
        """Return lines as they stand at a place, which starts a line or ends the text."""
        nl = self._line_end(place)
        opening = nl if place and self.text[place - 1] != "\n" else ""
        return opening + "".join(" " * indent * bool(line) + line + nl for line in lines)

    def _line(self, at: int) -> int:
        return self.text.rfind("\n", 0, max(at, 0)) + 1

    def _line_after(self, at: int) -> int:
        found = self.text.find("\n", at)
        return len(self.text) if found < 0 else found + 1
