"""Edits one entry in each format: JSON with and without comments, TOML, and YAML.

JSON: finds a table's members and their commas. TOML: an entry is sections (`[table.x]`,
`[[table]]`) or keys in a section. YAML: an entry is lines in a mapping or a list.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in practice
from typing import Any, Self

from bridge.client_configs.document import NAME_KEY, Document, Row, Table, indentation, splice
from bridge.discovery.documents import strip_comments, yaml_node
from bridge.errors import SettingsError
from bridge.settings.policy_edit import toml_key, toml_value

_SPACE = re.compile(r"[ \t\r\n]*+")
_COMMENT = re.compile(r"//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/")
_REST = re.compile(r"(?:[ \t]|//[^\r\n]*+|/\*(?:[^*\n]|\*(?!/))*+\*/)*+")
_SPACED = re.compile(r'":[ \t]')

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # (text, start) -> value, end


@dataclass(frozen=True, kw_only=True)
class _Member(Row):
    """A member of an object or of a list. The last row, without a value, ends at the bracket."""

    # The end of the previous member. Comments from `floor` to `start` belong to no member.
    floor: int
    value: int = 0
    value_end: int = 0
    # `comma`, `after`: the span of the member's comma; empty if it has none.
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


_TOML_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+"{3,5}'
    r"|'''(?:[^']|'(?!''))*+'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*+"|\'[^\'\n]*+\'|#[^\n]*+|\n|[^"\'#\[\]{}\n]++|.',
    re.DOTALL,
)
_TOML_PART = r"""(?:[\w-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_TOML_KEY = re.compile(rf"\s*{_TOML_PART}(?:[ \t]*\.[ \t]*{_TOML_PART})*[ \t]*=")


@dataclass(frozen=True, kw_only=True)
class _Statement(Row):
    """A section's header, or a key with its value. A row joins the statements of one entry."""

    name: str | None = None
    section: Table  # The path of the section that contains the statement or that it starts.
    path: Table  # The path that it sets, from the root.
    is_header: bool


@dataclass(frozen=True, kw_only=True)
class TomlText(Document):
    @cached_property
    def _statements(self) -> list[_Statement]:
        statements: list[_Statement] = []
        section: Table = ()
        for start, end in _statement_spans(self.text):
            text = self.text[start:end]
            if is_header := text.lstrip(" \t").startswith("["):
                section = path = _nested_keys(tomllib.loads(text))
            elif match := _TOML_KEY.match(text):
                path = section + _nested_keys(tomllib.loads(match[0] + "{}"))
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


def _statement_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the span of each statement's whole lines."""
    start, depth = 0, 0
    for match in _TOML_TOKEN.finditer(text):
        token = match[0]
        depth += (token in ("[", "{")) - (token in ("]", "}"))
        if token == "\n" and not depth:
            yield start, match.end()
            start = match.end()
    if start < len(text):
        yield start, len(text)


def _nested_keys(value: Any) -> Table:
    """Return the keys of nested tables that have one key each."""
    path: list[str] = []
    while value:
        if isinstance(value, list):
            value = value[0]
            continue
        [(key, value)] = value.items()
        path.append(key)
    return tuple(path)


_PLAIN = re.compile(r"(?!(?:null|true|false|yes|no|on|off|[yn])$)[A-Za-z/][\w./@+-]*", re.I | re.A)
_COMMENT_NEXT = re.compile(r"(?:[ \t]*\r?\n)*( +)#")
_STEP = 2


@dataclass(frozen=True, kw_only=True)
class YamlText(Document):
    NULL_IS_EMPTY = True

    @cached_property
    def _root(self) -> Any:
        return yaml_node(self.text)

    def _find(self, table: Table) -> tuple[Any, Any]:
        node, key = self._root, None
        for name in table:
            first, *others = (pair for pair in node.value if pair[0].value == name)
            if others:
                raise self._error(f"the key {name} occurs twice", others[0][0].start_mark.index)
            key, node = first
        return node, key

    def _rows(self, table: Table) -> list[Row]:
        node, key = self._find(table)
        if node is None or node.id == "scalar" or not node.value:
            return []
        if node.flow_style:
            raise self._error("a table in brackets cannot be extended", node.start_mark.index)
        rows: list[Row] = []
        firsts = [self._first(item) for item in node.value]
        floor = self._line_after(key.end_mark.index) if key is not None else 0
        limits = [self._line(first) for first in firsts[1:]]
        end = node.end_mark.index
        limits.append(self._line(end) if self.text[end:].strip() else len(self.text))
        for item, first, limit in zip(node.value, firsts, limits, strict=True):
            line = self._line(first)
            if self.text[line:first].strip(" ") or limit <= line:
                raise self._error("several entries share a line", first)
            end, column = limit, first - line
            # Comments and empty lines below an entry belong to the next one.
            while (last := self._line(end - 1)) > line:
                text = self.text[last:end]
                indent = _indent(text)
                if text.strip() and not (text[indent] == "#" and indent <= column):
                    break
                end = last
            start, name = self._above(floor, line), self._name(item)
            rows.append(Row(name=name, start=start, first=first, end=end))
            floor = end
        return rows

    def _first(self, item: Any) -> int:
        if isinstance(item, tuple):
            return int(item[0].start_mark.index)
        return self.text.rfind("-", 0, item.start_mark.index)

    def _name(self, item: Any) -> str | None:
        if isinstance(item, tuple):
            return str(item[0].value)
        pairs = item.value if item is not None and item.id == "mapping" else ()
        return next((str(value.value) for key, value in pairs if key.value == NAME_KEY), None)

    def _check(self, table: Table) -> None:
        super()._check(table)
        if {row.name for row in self._rows(table)} != {
            name for name, _ in self.named_entries(table)
        }:
            raise self._error("its keys must be text", self._find(table)[0].start_mark.index)

    def _format(
        self, table: Table, name: str, value: Mapping[str, object], at: Row | None = None
    ) -> str:
        if self.listed and value:
            lines = [("  " if number else "- ") + line for number, line in enumerate(_block(value))]
        else:
            lines = list(_block({name: value}))
        return "\n".join(lines)

    def _insert(self, table: Table, name: str, text: str, index: int) -> str:
        node, key = self._find(table)
        lines = text.replace("\r\n", "\n").split("\n")
        own = (line for line in lines if line.strip() and line.lstrip()[0] != "#")
        column = _indent(next(own, ""))
        lines = [line[min(column, _indent(line)) :] for line in lines]
        if rows := self._rows(table):
            above = rows[:index][-1:]
            place = above[0].end if above else self._line_after(key.end_mark.index)
            column = rows[0].first - self._line(rows[0].first)
            return splice(self.text, [(place, place, self._join(place, lines, column))])
        if key is None:
            start = node.start_mark.index if node else len(self.text)
            end = self._line_after(node.end_mark.index) if node else start
            return splice(self.text, [(start, end, self._join(start, lines))])
        # An empty table may be `[]`, `{}` or null; brackets must go.
        colon = self.text.index(":", key.end_mark.index) + 1
        end = max(colon, node.end_mark.index) if node.value == [] else colon
        place, outer = self._line_after(end), key.start_mark.column
        # A comment below sets the indentation, because it would become part of the new row.
        left = _COMMENT_NEXT.match(self.text, place)
        column = len(left[1]) if left and len(left[1]) > outer else outer + _STEP
        new = self._join(place, lines, column)
        return splice(self.text, [(colon, end, ""), (place, place, new)])

    def _cut(self, table: Table, name: str) -> str:
        node, key = self._find(table)
        text = super()._cut(table, name)
        if len(node.value) > 1:
            return text
        colon = text.index(":", key.end_mark.index) + 1
        return splice(text, [(colon, colon, " []" if self.listed else " {}")])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(value: Mapping[str, object]) -> Iterator[str]:
    for key, item in value.items():
        if isinstance(item, Mapping) and item:
            yield f"{_scalar(key)}:"
            yield from (" " * _STEP + line for line in _block(item))
        elif isinstance(item, list | tuple) and item:
            yield f"{_scalar(key)}:"
            yield from (" " * _STEP + f"- {_scalar(one)}" for one in item)
        else:
            yield f"{_scalar(key)}: {_scalar(item)}"


def _scalar(value: object) -> str:
    """Return a value on one line: plain if that is safe in every YAML version, else as JSON."""
    if isinstance(value, str):
        if _PLAIN.fullmatch(value):
            return value
        return json.dumps(value, ensure_ascii=not value.isprintable())
    return json.dumps(value, ensure_ascii=False)
