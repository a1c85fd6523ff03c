"""What a tool is found by: the columns of the index, and the database that they are written to.

Owns which texts of a tool are indexed, how much of each, and how much a word counts there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from bridge.catalog.words import indexed, same, words
from bridge.errors import SearchUnavailableError
from bridge.model import MEBIBYTE, Tool
from bridge.text import valid_text

if TYPE_CHECKING:
    import sqlite3

_MAX_NAME_CHARS = 200
_MAX_LEAD_CHARS = 300
_MAX_REST_CHARS = 500
"""Of a description, what is indexed. Real ones say what the tool does at the start."""

_MAX_PARAMETERS = 64
_MAX_PARAMETER_CHARS = 64

_MAX_DETAILED = 24
_MAX_DETAIL_CHARS = 150
_MAX_CHOICES = 12
_MAX_CHOICE_CHARS = 30
"""Of parameters: how many are read, and how much of what is said of each."""

COLUMNS: Mapping[str, float] = {
    "name": 2.0,
    "also": 1.0,
    "server": 2.0,
    "lead": 2.5,
    "rest": 0.3,
    "parameters": 0.7,
    "details": 0.7,
}
"""What a tool is found by, and how much a word counts there: its name, other words for those of its
name and its server's, its server, its description's first sentence and the rest, its parameters'
names, and what their descriptions and choices say. Settled on the first half of the labelled
queries in `benchmarks/disclosure_queries.toml`."""

_NAMES = ", ".join(COLUMNS)
_MARKS = ", ".join("?" * (1 + len(COLUMNS)))
ADD = f"INSERT INTO tools(rowid, {_NAMES}) VALUES ({_MARKS})"
FORGET = f"INSERT INTO tools(tools, rowid, {_NAMES}) VALUES ('delete', {_MARKS})"

_WRITTEN_AT_ONCE = 8 * MEBIBYTE
"""Of the index, kept until it is sorted and written."""


def columns(tool: Tool, name: Iterable[str]) -> tuple[str, ...]:
    """Return what a tool is found by, column by column; `name` are the words of its name."""
    described = tool.description[: _MAX_LEAD_CHARS + _MAX_REST_CHARS]
    end = _end_of_sentence(described[:_MAX_LEAD_CHARS])
    properties = tool.input_schema.get("properties")
    given = properties if isinstance(properties, Mapping) else {}
    names = (parameter[:_MAX_PARAMETER_CHARS] for parameter in islice(given, _MAX_PARAMETERS))
    return (
        indexed(tool.name[:_MAX_NAME_CHARS]),
        " ".join(same([*name, *words(tool.server[:_MAX_NAME_CHARS])])),
        indexed(tool.server[:_MAX_NAME_CHARS]),
        indexed(f"{tool.title[:_MAX_NAME_CHARS]} {described[:end]}"),
        # Prose, in which few words are joined; to look for them takes as long as all the rest.
        valid_text(described[end:]),
        indexed(" ".join(names)),
        valid_text(" ".join(_details(given))),
    )


def _details(properties: Mapping[str, Any]) -> Iterable[str]:
    """Yield what is said of parameters: their descriptions, and the values to choose from."""
    for schema in islice(properties.values(), _MAX_DETAILED):
        if not isinstance(schema, Mapping):
            continue
        if isinstance(text := schema.get("description"), str):
            yield text[:_MAX_DETAIL_CHARS]
        if isinstance(choices := schema.get("enum"), list):
            for choice in choices[:_MAX_CHOICES]:
                yield str(choice)[:_MAX_CHOICE_CHARS]


def _end_of_sentence(text: str) -> int:
    ends = [place for mark in (". ", ".\n", "\n") if (place := text.find(mark)) > 0]
    return min(ends, default=len(text))


def exact_name(tool: Tool) -> tuple[str, ...]:
    return tuple(words(tool.name[:_MAX_NAME_CHARS]))


def open_index() -> sqlite3.Connection:
    try:
        # Only now: it takes 4 ms to import, and most runs search nothing.
        import sqlite3

        database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    except ImportError as error:
        raise SearchUnavailableError from error
    try:
        database.execute(
            # Without the texts: nobody asks for them, and writing them takes as long again.
            f"CREATE VIRTUAL TABLE tools USING fts5({_NAMES},"
            " content = '', tokenize = 'porter unicode61')"
        )
        # Nothing is ever taken back, and the whole of a few thousand tools is written at once.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute(
            "INSERT INTO tools(tools, rank) VALUES ('hashsize', ?)", (_WRITTEN_AT_ONCE,)
        )
    except sqlite3.OperationalError as error:
        database.close()
        raise SearchUnavailableError from error
    return database
