"""Edits JSON and JSON with comments: finds a table's members and their commas."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in practice

from bridge.client_configs.document import NAME_KEY, Document, Row, Table, indentation, splice
from bridge.discovery.documents import strip_comments

_SPACE = re.compile(r"[ \t\r\n]*+")
_COMMENT = re.compile(r"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/")
_REST = re.compile(r"(?:[ \t]|//[^\r\n]*+|/\*(?:[^*\n]|\*(?!/))*+\*/)*+")
_SPACED = re.compile(r'":[ \t]')

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # (text, start) -> value, end


@dataclass(frozen=True, kw_only=True)
class _Member(Row):
    """A member of an object or of a list. The last row, without a value, ends at the bracket.

    Attributes:
        floor: The end of the previous member. Comments from `floor` to `start` belong to no member.
        comma, after: The span of the member's comma; empty if it has none.
    """

    floor: int
    value: int = 0
    value_end: int = 0
    comma: int = 0
    after: int = 0


@dataclass(frozen=True, kw_only=True)
class JsonText(Document):
    EMPTY = "{\n}\n"

    @cached_property
    def _bare(self) -> str:
        """The text with comments replaced by spaces."""
        if self.format not in ("jsonc", "json with comments"):
            return self.text
        return strip_comments(self.text, trailing_commas=False)

    @cached_property
    def _plain(self) -> str:
        """The text with comments and trailing commas replaced by spaces."""
        if self.format != "jsonc":
            return self._bare
        return strip_comments(self.text, trailing_commas=True)

    def _members(self, opening: int) -> list[_Member]:
        """Return the members of an object or list, then a row for the span before the bracket."""
        plain, members = self._plain, []
        floor = self._rest_of_line(opening + 1)
        at = _skip(plain, floor)
        while plain[at] not in "]}":
            first, name = at, None
            if plain[opening] == "{":
                name, at = scanstring(plain, at + 1, True)
                at = _skip(plain, _skip(plain, at) + 1)
            value, end = _scan(plain, at)
            if plain[opening] == "[" and isinstance(value, dict):
                name = value.get(NAME_KEY)
            comma = _skip(self._bare, end)
            comma, after = (comma, comma + 1) if self._bare[comma] == "," else (end, end)
            row_end = self._rest_of_line(after)
            members.append(
                _Member(
                    name=name,
                    floor=floor,
                    start=self._lead(floor, first),
                    first=first,
                    value=at,
                    value_end=end,
                    comma=comma,
                    after=after,
                    end=row_end,
                )
            )
            floor, at = row_end, _skip(plain, row_end)
        return [*members, _Member(name=None, floor=floor, start=floor, first=at, end=at)]

    def _rest_of_line(self, at: int) -> int:
        """Return the end of the comments that follow `at` on its line."""
        match = _REST.match(self.text, at)
        end = match.end() if match else at
        following = self.text[end : end + 1]
        if following in ("", "\r", "\n"):
            return end
        return at + len(self.text[at:end].rstrip(" \t")) if following in "]}" else at

    def _lead(self, floor: int, key: int) -> int:
        """Return the start of a member's own text above its key.

        A comment above an empty line stays when the member goes: it belongs to no single member.
        """
        text, start = self.text, key
        for comment in reversed(list(_COMMENT.finditer(text, floor, key))):
            if text.count("\n", comment.end(), start) > 1:
                break
            start = comment.start()
        if not text[floor:start].strip():
            return floor
        line = text.rfind("\n", floor, start)
        return start if line < 0 else line - (text[line - 1] == "\r")

    def _find(self, table: Table) -> int:
        at = _skip(self._plain, 0)
        for key in table:
            first, *others = (member for member in self._members(at) if member.name == key)
            if others:
                raise self._error(f"the key {key} occurs twice", others[0].first)
            at = first.value
        return at

    def _rows(self, table: Table) -> list[_Member]:
        return self._members(self._find(table))

    def _entry_text(self, table: Table, name: str) -> str:
        member = next(each for each in self._rows(table) if each.name == name)
        tail = self.text[member.value_end : member.comma] + self.text[member.after : member.end]
        tail = tail.rstrip() if "\n" in tail else tail
        text = self.text[member.start : member.value_end] + tail
        return re.sub(r"[ \t]*\r?\n|[ \t]+", "", text, count=1) if text[:1].isspace() else text

    def _format(self, table: Table, name: str, value: object, at: Row | None = None) -> str:
        opening = self._find(table)
        lines = self._in_lines(opening)
        dumped = self._dump(value, self._entry_indent(opening), lines)
        if self._plain[opening] == "[":
            return dumped
        colon = ": " if lines or _SPACED.search(self.text) else ":"
        return _escape(json.dumps(name, ensure_ascii=False)) + colon + dumped

    def _replace_entry(self, table: Table, name: str, value: Mapping[str, object]) -> str:
        member = next(each for each in self._rows(table) if each.name == name)
        old = slice(member.value, member.value_end)
        lines = "\n" in self.text[old] or self._in_lines(self._find(table))
        new = self._dump(value, indentation(self.text, member.first), lines)
        new = new.replace("\n", self._line_end(old.start))
        return splice(self.text, [(old.start, old.stop, new)])

    def _cut(self, table: Table, name: str) -> str:
        opening = self._find(table)
        *members, end = self._members(opening)
        index = next(at for at, member in enumerate(members) if member.name == name)
        gone, is_last = members[index], index == len(members) - 1
        start, stop, below = gone.start, gone.end, _skip(self.text, gone.end)
        lead = _skip(self.text, start)
        if "\n" not in self.text[stop:below] and ("\n" in self.text[start:lead] or index == 0):
            # The rest of the line moves to the start of the removed member.
            start, stop = lead, below
        if not (self.text[opening + 1 : start] + self.text[stop : end.first]).strip():
            return splice(self.text, [(opening + 1, end.first, "")])
        edits = [(start, stop, "")]
        if index and is_last and gone.comma == gone.after:
            edits.append((members[index - 1].comma, members[index - 1].after, ""))
        return splice(self.text, edits)

    def _insert(self, table: Table, name: str, text: str, index: int) -> str:
        opening = self._find(table)
        *members, end = self._members(opening)
        index = min(index, len(members))
        before, after = members[index - 1] if index else None, [*members, end][index]
        lead, new, tail = self._alone(self._plain[opening], name, text)
        place = stop = after.floor
        above = self.text[before.after if before else opening + 1 : place]
        lines = self._in_lines(opening) or "//" in above
        nl, indent = self._line_end(opening), self._entry_indent(opening)
        space = " " if _SPACED.search(self.text) else ""
        if lines:
            lead = nl + (lead if lead[:1].isspace() else indent + lead)
        else:
            lead = (space if index else "") + lead.lstrip()
        below, following = "", _skip(self.text, place)
        if "\n" not in self.text[place:following] and (lines or "//" in tail):
            closes = following == end.first
            stop, below = following, nl + (indentation(self.text, opening) if closes else indent)
        elif not lines and not index and members and following == place:
            below = space
        trailing = before is not None and before.after > before.comma
        comma = "," if after is not end or trailing else ""
        edits = [(place, stop, lead + new + comma + tail + below)]
        if before and not trailing:
            edits.insert(0, (before.comma, before.comma, ","))
        return splice(self.text, edits)

    def _alone(self, bracket: str, name: str, entry: str) -> tuple[str, str, str]:
        """Split the text of one member into its leading comments, the member, and its tail."""
        text = f"[\n{entry}\n]" if bracket == "[" else f"{{\n{entry}\n}}"
        alone = replace(self, text=text)
        try:
            _scan(alone._plain, 0)
        except (ValueError, StopIteration) as error:
            raise self._error("the entry's text cannot be read") from error
        member, *others = alone._members(0)
        if len(others) != 1 or (member.name or "") != name:
            raise self._error(f"the text of {name} is not one entry")
        tail = text[member.value_end : member.comma] + text[member.after : -2]
        return text[2 : member.first], text[member.first : member.value_end], tail

    def _in_lines(self, opening: int) -> bool:
        first, *others = self._members(opening)
        return "\n" in (self.text[opening : first.first] if others else self.text.strip())

    def _entry_indent(self, opening: int) -> str:
        first, *others = self._members(opening)
        if others:
            return indentation(self.text, first.first)
        return indentation(self.text, opening) + self._unit

    @property
    def _unit(self) -> str:
        match = re.search(r"^([ \t]+)[\"{\[]", self.text, flags=re.MULTILINE)
        return match[1] if match else "  "

    def _dump(self, value: object, indent: str, lines: bool) -> str:
        if lines:
            text = json.dumps(value, indent=self._unit, ensure_ascii=False)
            return _escape(text).replace("\n", f"\n{indent}")
        separators = None if _SPACED.search(self.text) else (",", ":")
        return _escape(json.dumps(value, separators=separators, ensure_ascii=False))


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _escape(text: str) -> str:
    # UTF-8 cannot encode lone surrogates.
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)
