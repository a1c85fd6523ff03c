"""Edits YAML: finds an entry's lines in a mapping or a list, and writes new lines."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from bridge.client_configs.document import NAME_KEY, Document, Row, Table, splice
from bridge.discovery.documents import yaml_node

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
