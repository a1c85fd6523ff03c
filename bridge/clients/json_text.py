"""Edits JSON and JSON with comments: takes a table apart into its members and joins them again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in practice

from bridge.clients.document import NAME_KEY, Document, Table, indentation, spliced
from bridge.discovery.documents import strip_comments

_SPACE = re.compile(r"[ \t\r\n]*+")
_COMMENT = re.compile(r"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/")
_REST = re.compile(r"(?:[ \t]|//[^\r\n]*+|/\*(?:[^*\n]|\*(?!/))*+\*/)*+")
_SPACED = re.compile(r'":[ \t]')

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # (text, start) -> value, end


@dataclass(kw_only=True)
class _Member:
    """A member of an object, or of a list, where the key is empty: all its text, in parts.

    What stands before a closing bracket is the `lead` of a last one without a name.

    Attributes:
        at, start: Where its key and its value start in the file.
        above: Comments that are about nothing below them.
        lead: White space and the comments directly above.
        key: With the colon.
        gap: What stands between the value and its comma.
        tail: Comments on the line of the value, or of its comma.
    """

    name: object = None
    at: int
    start: int = 0
    above: str = ""
    lead: str
    key: str = ""
    value: str = ""
    gap: str = ""
    comma: str = ""
    tail: str = ""

    def __str__(self) -> str:
        before = self.above + self.lead + self.key + self.value
        return before + self.gap + self.comma + self.tail


@dataclass(frozen=True, kw_only=True)
class JsonText(Document):
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
        if self.format != "jsonc":
            return self._bare
        return strip_comments(self.text, trailing_commas=True)

    def _members(self, opening: int) -> tuple[str, list[_Member]]:
        """Return an object or list: the comments on its bracket's line, its members, its end."""
        plain, text, found = self._plain, self.text, []
        done = self._rest_of_line(opening + 1)
        head, place = text[opening + 1 : done], _skip(plain, done)
        while plain[place] not in "]}":
            at, name = place, None
            if plain[opening] == "{":
                name, place = scanstring(plain, place + 1, True)
                place = _skip(plain, _skip(plain, place) + 1)
            value, end = _scan(plain, place)
            if plain[opening] == "[" and isinstance(value, dict):
                name = value.get(NAME_KEY)
            stop = _skip(self._bare, end)
            comma = "," if self._bare[stop] == "," else ""
            stop = stop if comma else end
            lead, last = self._lead(done, at), self._rest_of_line(stop + len(comma))
            found.append(
                _Member(
                    name=name,
                    at=at,
                    start=place,
                    above=text[done:lead],
                    lead=text[lead:at],
                    key=text[at:place],
                    value=text[place:end],
                    gap=text[end:stop],
                    comma=comma,
                    tail=text[stop + len(comma) : last],
                )
            )
            done, place = last, _skip(plain, last)
        return head, [*found, _Member(at=place, lead=text[done:place])]

    def _rest_of_line(self, at: int) -> int:
        """Return where the comments end that share a line with what ends here."""
        match = _REST.match(self.text, at)
        end = match.end() if match else at
        following = self.text[end : end + 1]
        if following in ("", "\r", "\n"):
            return end
        return at + len(self.text[at:end].rstrip(" \t")) if following in "]}" else at

    def _lead(self, floor: int, key: int) -> int:
        """Return where the text above a key starts that belongs to it.

        Empty lines do, so that what is put back stands as before; not those below a comment of its
        own, which would come to stand directly above the next entry.
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
            first, *others = (member for member in self._members(at)[1] if member.name == key)
            if others:
                raise self._refused(f"the key {key} is there twice", others[0].at)
            at = first.start
        return at

    def _keys(self, table: Table) -> Iterator[tuple[object, int]]:
        members = self._members(self._find(table))[1]
        yield from ((member.name, member.at) for member in members)

    def _member(self, table: Table, name: str) -> _Member:
        members = self._members(self._find(table))[1]
        return next(member for member in members if member.name == name)

    def _entry_text(self, table: Table, name: str) -> str:
        member = self._member(table, name)
        tail = member.gap + member.tail
        text = member.lead + member.key + member.value + (tail.rstrip() if "\n" in tail else tail)
        return re.sub(r"[ \t]*\r?\n|[ \t]+", "", text, count=1) if text[:1].isspace() else text

    def _written(self, table: Table, name: str, value: object) -> str:
        opening = self._find(table)
        lines = self._in_lines(opening)
        dumped = self._dumped(value, self._entry_indent(opening), lines, opening)
        if self._plain[opening] == "[":
            return dumped
        colon = ": " if lines or _SPACED.search(self.text) else ":"
        return _escaped(json.dumps(name, ensure_ascii=False)) + colon + dumped

    def _replaced(self, table: Table, name: str, value: Mapping[str, object]) -> str:
        member = self._member(table, name)
        lines = "\n" in member.value or self._in_lines(self._find(table))
        new = self._dumped(value, indentation(self.text, member.at), lines, member.start)
        return spliced(self.text, [(member.start, member.start + len(member.value), new)])

    def _cut(self, table: Table, name: str) -> str:
        opening = self._find(table)
        head, members = self._members(opening)
        index = next(at for at, member in enumerate(members) if member.name == name)
        gone, after, is_last = members.pop(index), members[index], index == len(members) - 1
        blank = _blank(gone.lead)
        if "\n" not in _blank(str(after)) and ("\n" in blank or index == 0):
            # What follows on the line takes its place.
            after.lead = blank + after.lead.lstrip(" \t")
        after.above = gone.above + after.above
        if index and is_last:
            members[index - 1].comma = gone.comma
        inside = head + "".join(map(str, members))
        return spliced(self.text, [(opening + 1, members[-1].at, inside.strip() and inside)])

    def _inserted(self, table: Table, name: str, text: str, index: int) -> str:
        opening = self._find(table)
        head, members = self._members(opening)
        end, index = members[-1], min(index, len(members) - 1)
        new, after = self._alone(self._plain[opening], name, text), members[index]
        lines = self._in_lines(opening) or "//" in (members[index - 1].tail if index else head)
        nl, indent = self._line_end(opening), self._entry_indent(opening)
        space = " " if _SPACED.search(self.text) else ""
        if lines:
            new.lead = nl + (new.lead if new.lead[:1].isspace() else indent + new.lead)
        else:
            new.lead = (space if index else "") + new.lead.lstrip()
        if "\n" not in _blank(str(after)) and (lines or "//" in new.tail):
            closes = after is end and not after.lead.strip()
            indent = indentation(self.text, opening) if closes else indent
            after.lead = nl + indent + after.lead.lstrip(" \t")
        elif not lines and not index and after is not end and not after.lead[:1].isspace():
            after.lead = space + after.lead
        commas = [","] * len(members[:-1]) + [members[-2].comma if len(members) > 1 else ""]
        members.insert(index, new)
        for member, comma in zip(members, commas, strict=False):
            member.comma = comma
        return spliced(self.text, [(opening + 1, end.at, head + "".join(map(str, members)))])

    def _alone(self, bracket: str, name: str, entry: str) -> _Member:
        """Return the one member that an entry's text is, without a comma."""
        alone = replace(self, text=f"[\n{entry}\n]" if bracket == "[" else f"{{\n{entry}\n}}")
        try:
            _scan(alone._plain, 0)
        except (ValueError, StopIteration) as error:
            raise self._refused("the entry's text cannot be read") from error
        _, members = alone._members(0)
        member, end = members[0], members[-1]
        if len(members) != 2 or (member.name or "") != name:
            raise self._refused(f"the text of {name} is not one entry")
        member.above, member.lead = "", alone.text[2 : member.at]
        member.gap, member.tail = "", (member.gap + member.tail + end.lead)[:-1]
        return member

    def _in_lines(self, opening: int) -> bool:
        """Return whether members stand on lines of their own."""
        first, *others = self._members(opening)[1]
        return "\n" in (self.text[opening : first.at] if others else self.text.strip())

    def _entry_indent(self, opening: int) -> str:
        first, *others = self._members(opening)[1]
        if others:
            return indentation(self.text, first.at)
        return indentation(self.text, opening) + self._unit()

    def _unit(self) -> str:
        found = re.search(r"^([ \t]+)[\"{\[]", self.text, flags=re.MULTILINE)
        return found[1] if found else "  "

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


def _blank(text: str) -> str:
    return text[: _skip(text, 0)]


def _escaped(text: str) -> str:
    """Return JSON without halves of a character, which UTF-8 cannot hold."""
    return re.sub("[\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text)
