"""Edits JSON and JSON with comments: finds an entry's span and splices the text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in practice
from typing import Self

from bridge.clients.document import Document, EntryText, Table, indentation, spliced
from bridge.discovery.documents import strip_comments

_SPACE = re.compile(r"[ \t\r\n]*+")
_COMMENT = re.compile(r"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/")
_REST = re.compile(r"(?:[ \t]|//[^\r\n]*+|/\*(?:[^*\n]|\*(?!/))*+\*/)*+")
_INDENTED = re.compile(r"^([ \t]+)[\"{\[]", re.MULTILINE)
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACED = re.compile(r'":[ \t]')

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # (text, start) -> value, end


@dataclass(frozen=True, kw_only=True)
class _Member:
    """A member of an object, or of a list, where the key is the value.

    Attributes:
        first: Where the text that belongs to it starts, with indentation and comments.
        key, start, end: Where its key starts, and its value starts and ends.
        last: Where the text that belongs to it ends; the comma may be within.
        comma: Where its comma is; -1 if it has none.
    """

    name: object
    first: int
    key: int
    start: int
    end: int
    last: int
    comma: int


@dataclass(frozen=True, kw_only=True)
class JsonText(Document):
    """A JSON file."""

    EMPTY = "{\n}\n"

    @cached_property
    def _bare(self) -> str:
        """The text with spaces for comments: at the same places."""
        if self.format not in ("jsonc", "json with comments"):
            return self.text
        return strip_comments(self.text, trailing_commas=False)

    @cached_property
    def _plain(self) -> str:
        """The text with spaces for commas before closing brackets, too."""
        return (
            self._bare
            if self.format != "jsonc"
            else strip_comments(self.text, trailing_commas=True)
        )

    def _members(self, opening: int) -> list[_Member]:
        """Return the members of the object or list that opens at a place."""
        plain, found = self._plain, []
        floor = self._rest_of_line(opening + 1)
        place = _skip(plain, opening + 1)
        while plain[place] not in "]}":
            key, name = place, None
            if plain[opening] == "{":
                name, place = scanstring(plain, place + 1, True)
                place = _skip(plain, _skip(plain, place) + 1)
            start = place
            value, end = _scan(plain, start)
            if plain[opening] == "[" and isinstance(value, dict):
                name = value.get(self.name_key)
            after = _skip(self._bare, end)
            comma = after if self._bare[after] == "," else -1
            same_line = comma >= 0 and "\n" not in self.text[end:comma]
            last = self._rest_of_line(comma + 1 if same_line else end)
            first = self._first(floor, key)
            found.append(
                _Member(
                    name=name, first=first, key=key, start=start, end=end, last=last, comma=comma
                )
            )
            floor = max(last, comma + 1)
            place = _skip(plain, max(after, comma + 1))
        return found

    def _rest_of_line(self, at: int) -> int:
        """Return where the comments end that share a line with what ends here."""
        match = _REST.match(self.text, at)
        end = match.end() if match else at
        following = self.text[end : end + 1]
        if following in ("", "\r", "\n"):
            return end
        return at + len(self.text[at:end].rstrip(" \t")) if following in "]}" else at

    def _first(self, floor: int, key: int) -> int:
        """Return where a key's lines start: its own, and those of comments directly above."""
        start = key
        for comment in reversed(list(_COMMENT.finditer(self.text, floor, key))):
            if self.text.count("\n", comment.end(), start) > 1:
                break
            start = comment.start()
        # Blank lines above go with it, so that what is put back stands as before; not those below
        # a comment of its own, which would come to stand directly above the next entry.
        find = self.text.rfind if self.text[floor:start].strip() else self.text.find
        line = find("\n", floor, start)
        return line + 1 if line >= 0 else start

    def _find(self, table: Table) -> tuple[int, int]:
        """Return where the innermost part of a table's path opens that is there, and its depth."""
        at = _skip(self._plain, 0)
        for depth, key in enumerate(table):
            found = [member for member in self._members(at) if member.name == key]
            if not found:
                return at, depth
            if len(found) > 1:
                raise self._refused(f"the key {key} is there twice", found[1].key)
            at = found[0].start
        return at, len(table)

    def _check_table(self, table: Table) -> None:
        seen = set()
        for member in self._members(self._find(table)[0]):
            if member.name in seen and isinstance(member.name, str):
                raise self._refused(f"the key {member.name} is there twice", member.key)
            seen.add(member.name if isinstance(member.name, str) else None)

    def _with_table(self, table: Table) -> Self:
        at, depth = self._find(table)
        if depth == len(table):
            return self
        value: object = [] if self.listed else {}
        for key in reversed(table[depth + 1 :]):
            value = {key: value}
        text, end = self._rendered(at, table[depth], value)
        return self._parsed(self._inserted(at, text, end))

    def _entry_text(self, table: Table, name: str) -> str:
        member = next(one for one in self._members(self._find(table)[0]) if one.name == name)
        if not member.end <= member.comma < member.last:
            return self.text[member.first : member.last]
        return self.text[member.first : member.comma] + self.text[member.comma + 1 : member.last]

    def _put(self, table: Table, name: str, value: Mapping[str, object]) -> str:
        at = self._find(table)[0]
        for member in self._members(at):
            if member.name == name:
                old = self.text[member.start : member.end]
                lines = "\n" in old or self._in_lines(at)
                new = self._dumped(value, indentation(self.text, member.key), lines, member.start)
                return spliced(self.text, [(member.start, member.end, new)])
        text, end = self._rendered(at, name, value)
        return self._inserted(at, text, end)

    def _put_text(self, table: Table, entry: EntryText, index: int) -> str:
        at = self._find(table)[0]
        opening, closing = "[]" if self.listed else "{}"
        alone = self._parsed_alone(f"{opening}\n{entry.text}\n{closing}")
        members = alone._members(0)
        if len(members) != 1 or members[0].name != entry.name:
            raise self._refused(f"the text of {entry.name} is not one entry")
        return self._inserted(at, entry.text, members[0].end - 2, index)

    def _parsed_alone(self, text: str) -> JsonText:
        made = JsonText(
            text=text,
            bom=False,
            format=self.format,
            listed=self.listed,
            name_key=self.name_key,
            path=self.path,
            decoded={},
        )
        try:
            _scan(made._plain, 0)
        except (ValueError, StopIteration) as error:
            raise self._refused("the entry's text cannot be read") from error
        return made

    def _cut(self, table: Table, name: str) -> str:
        text, opening = self.text, self._find(table)[0]
        members = self._members(opening)
        at = next(at for at, member in enumerate(members) if member.name == name)
        member, is_last = members[at], at == len(members) - 1
        start, end = member.first, member.last
        owns_lines = text[start - 1 : start] == "\n"
        if owns_lines and text[end : end + 1] in ("\r", "\n"):
            start -= 2 if text[start - 2 : start] == "\r\n" else 1
        elif owns_lines and not is_last:
            # What follows on the line takes its place.
            start, end = _skip(text, start), _skip(text, end)
        elif not owns_lines:
            if at == 0 and not is_last and text[end : end + 1] not in ("\r", "\n"):
                end = _skip(text, end)
            else:
                start = len(text[:start].rstrip(" \t"))
        closing = _skip(text, max(end, member.comma + 1))
        left = text[opening + 1 : start] + text[end:closing]
        if len(members) == 1 and text[closing] in "]}" and not left.strip(" \t\r\n,"):
            return spliced(text, [(opening + 1, closing, "")])
        edits = [(start, end, "")]
        if member.comma >= end:
            edits.append((member.comma, member.comma + 1, ""))
        if is_last and member.comma < 0 and at:
            edits.append((members[at - 1].comma, members[at - 1].comma + 1, ""))
        return spliced(text, edits)

    def _inserted(self, opening: int, entry: str, end: int, index: int | None = None) -> str:
        """Return the text with an entry's text in the object or list that opens at a place.

        Args:
            end: Where the value ends in the entry's text: the place of its comma.
            index: Which member it becomes; None is the last.
        """
        text, members = self.text, self._members(opening)
        index = len(members) if index is None else index
        edits: list[tuple[int, int, str]] = []
        comma = index < len(members) or bool(members and members[-1].comma >= 0)
        place = self._rest_of_line(opening + 1)
        after = opening + 1
        if index:
            before = members[index - 1]
            place, after = before.last, before.end
            if before.comma < 0 or before.comma >= place:
                edits.append((before.end, before.end, ","))
                comma = comma and before.comma < 0
        lines = self._in_lines(opening) or "//" in text[after:place]
        nl = self._line_end(place)
        if not lines:
            stripped = entry.lstrip()
            end -= len(entry) - len(stripped)
            entry = stripped
        elif not entry[:1].isspace():
            indent = self._entry_indent(opening)
            entry, end = indent + entry, end + len(indent)
        tail = entry[end:]
        entry = entry[:end] + ("," if comma else "") + tail
        rest = text[place : _skip(text, place) + 1]
        ends_line = "\n" in rest or not rest.strip()
        if lines:
            entry = nl + entry
        elif index and _SPACED.search(text):
            entry = " " + entry
        if (lines or "//" in tail) and not ends_line:
            closes = rest[-1:] in ("]", "}")
            indent = indentation(text, opening) if closes else self._entry_indent(opening)
            edits.append((place, place + len(rest) - 1, entry + nl + indent))
        elif not lines and not index and members and not rest[:1].isspace():
            edits.append((place, place, entry + (" " if _SPACED.search(text) else "")))
        else:
            edits.append((place, place, entry))
        return spliced(text, edits)

    def _in_lines(self, opening: int) -> bool:
        """Return whether members stand on lines of their own."""
        members = self._members(opening)
        if members:
            return "\n" in self.text[opening : members[0].key]
        return "\n" in self.text.strip()

    def _entry_indent(self, opening: int) -> str:
        members = self._members(opening)
        if members:
            return indentation(self.text, members[0].key)
        return indentation(self.text, opening) + self._unit()

    def _unit(self) -> str:
        found = _INDENTED.search(self.text)
        return found[1] if found else "  "

    def _rendered(self, opening: int, name: str, value: object) -> tuple[str, int]:
        """Return a new member's text and where its value ends."""
        lines = self._in_lines(opening)
        indent = self._entry_indent(opening) if lines else ""
        dumped = self._dumped(value, indent, lines, opening)
        if self._plain[opening] == "[":
            text = indent + dumped
        else:
            colon = ": " if lines or _SPACED.search(self.text) else ":"
            text = indent + _escaped(json.dumps(name, ensure_ascii=False)) + colon + dumped
        return text, len(text)

    def _dumped(self, value: object, indent: str, lines: bool, at: int) -> str:
        if lines:
            text = json.dumps(value, indent=self._unit(), ensure_ascii=False)
            return _escaped(text).replace("\n", self._line_end(at) + indent)
        separators = None if _SPACED.search(self.text) else (",", ":")
        return _escaped(json.dumps(value, separators=separators, ensure_ascii=False))


def _skip(text: str, at: int) -> int:
    """Return the place of the next character that is no white space."""
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _escaped(text: str) -> str:
    """Return JSON without halves of a character, which UTF-8 cannot hold."""
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
