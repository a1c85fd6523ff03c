"""Which tools fit a few words?

Owns the index over tools and the ranking: SQLite's full-text search (FTS5) with its BM25 over
weighted columns and its Porter stemmer. What goes into the columns, and what of a question goes
into the query, is made of words by `bridge.catalog.words`; nothing of a question is ever read as
query syntax. The index lives in memory and is made anew by every bridge.

The order depends on the set of tools and the question alone: equal scores are settled by server and
tool name, and not by when a server was added.
"""

from __future__ import annotations

import heapq
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from bridge.catalog.indexing import COLUMNS, columns, exact_name, open_index
from bridge.catalog.words import (
    MAX_WORD_CHARS,
    asked,
    mended,
    parts,
    runs,
    words,
)
from bridge.errors import InvalidRequestError
from bridge.model import Tool

if TYPE_CHECKING:
    import sqlite3

DEFAULT_LIMIT = 5
MAX_LIMIT = 50
"""More results than this cost a model more than another query."""

MAX_QUERY_CHARS = 400
MAX_QUERY_WORDS = 16
"""Of a longer query the beginning is searched; nobody types more to find a tool."""

MAX_TOOLS_PER_SERVER = 16_384
"""Of one server, what is indexed: more than the 10,000 that a session takes."""

_SPELLED = 4
"""Columns, from the first, whose words a mistyped one may have been."""

_ALL_RANKED = 400
"""While the words of a query stand in no more tools than this, all of those are ranked, at three
microseconds each. Beyond it only those are that have a rare word of it, or all common ones."""

_SOME_RANKED = 150
"""How many then, as a rule."""

_SHORTEST_PREFIX = 3
_MENDED_WORDS = 3
_REMEMBERED_WORDS = 4_096
"""Words of queries whose frequency is known; forgotten whenever the index changes."""

_EXACT_NAME_BONUS = 100.0
"""A query that spells out a tool's name wants that tool; no score comes near."""

_SCORE_DIGITS = 9


@dataclass(frozen=True, kw_only=True)
class Match:
    """A tool that fits a query, and how well; scores compare within one query only."""

    tool: Tool
    score: float


@dataclass(frozen=True, kw_only=True)
class _Term:
    """One word of a query.

    Attributes:
        text: As the index's query language has it.
        count: Tools that have it, as far as they were counted.
        named: Those that have it in their name, or as another word for it.
    """

    text: str
    count: int
    named: int


class ToolIndex:
    """The words of a set of tools, taken server by server. One caller at a time, in any thread."""

    def __init__(self) -> None:
        self._database: sqlite3.Connection | None = None
        self._first_rows: dict[str, int] = {}
        self._next_row = 1
        self._servers: dict[str, tuple[Tool, ...]] = {}
        self._tools: dict[int, Tool] = {}
        self._exact: dict[tuple[str, ...], set[int]] = {}
        self._vocabulary: Counter[str] = Counter()
        self._own_words: dict[str, frozenset[str]] = {}
        self._terms: dict[str, _Term | None] = {}

    def __len__(self) -> int:
        return len(self._tools)

    @property
    def bytes(self) -> int:
        """What the database takes in memory, without what Python keeps beside it."""
        if self._database is None:
            return 0
        [pages] = self._database.execute("PRAGMA page_count").fetchone()
        [size] = self._database.execute("PRAGMA page_size").fetchone()
        return int(pages) * int(size)

    def update(self, servers: Mapping[str, tuple[Tool, ...]]) -> bool:
        """Have exactly these servers' tools in the index; return whether anything was to do.

        Raises:
            SearchUnavailableError: This Python has no full-text search.
        """
        gone = [name for name in self._servers if name not in servers]
        new = [name for name, tools in servers.items() if self._servers.get(name) != tools]
        # The equal ones are kept as the caller has them: the next comparison is one of identity.
        self._servers.update((name, tools) for name, tools in servers.items() if name not in new)
        if not gone and not new:
            return False
        database = self._opened()
        # Each change in a transaction of its own would take ten times as long.
        database.execute("BEGIN")
        try:
            for name in (*gone, *new):
                self._remove(database, name)
            for name in new:
                self._add(database, name, servers[name])
        finally:
            database.execute("COMMIT")
            self._terms.clear()
        return True

    def search(
        self, query: str, *, limit: int = DEFAULT_LIMIT, server: str | None = None
    ) -> list[Match]:
        """Return the tools that fit `query`, best first, at most `limit` of them.

        Args:
            server: Look only among this server's tools.

        Raises:
            InvalidRequestError: There is no word in the query.
        """
        spelled = query[:MAX_QUERY_CHARS]
        asked_runs = asked(spelled)
        if not asked_runs:
            message = "The query has no words in it."
            raise InvalidRequestError(
                message, remedy='Say what the tool should do, for example "create issue".'
            )
        first = 0 if server is None else self._first_rows.get(server, -1)
        if first < 0 or self._database is None:
            return []
        last = self._next_row if server is None else first + MAX_TOOLS_PER_SERVER - 1
        terms = self._wanted(asked_runs)
        scores = self._scores(self._database, terms, first, last, everywhere=server is None)
        for row in self._exact.get(tuple(words(spelled)), ()):
            if first <= row <= last:
                scores[row] = scores.get(row, 0.0) + _EXACT_NAME_BONUS
        best = heapq.nsmallest(
            max(1, min(limit, MAX_LIMIT)),
            (
                (-score, self._tools[row].server, self._tools[row].name, row)
                for row, score in scores.items()
            ),
        )
        return [Match(tool=self._tools[row], score=-negative) for negative, _, _, row in best]

    def _opened(self) -> sqlite3.Connection:
        if self._database is None:
            self._database = open_index()
            # Closed with the index, whoever drops it.
            weakref.finalize(self, self._database.close)
        return self._database

    def _add(self, database: sqlite3.Connection, server: str, tools: tuple[Tool, ...]) -> None:
        first, self._next_row = self._next_row, self._next_row + MAX_TOOLS_PER_SERVER
        self._first_rows[server] = first
        self._servers[server] = tools
        known: set[str] = set()
        rows = []
        for row, tool in enumerate(tools[:MAX_TOOLS_PER_SERVER], first):
            name = exact_name(tool)
            texts = columns(tool, name)
            known.update(runs(" ".join(texts[:_SPELLED]).lower()))
            rows.append((row, *texts))
            self._tools[row] = tool
            self._exact.setdefault(name, set()).add(row)
        marks = ", ".join("?" * (1 + len(COLUMNS)))
        database.executemany(
            f"INSERT INTO tools(rowid, {', '.join(COLUMNS)}) VALUES ({marks})", rows
        )
        self._own_words[server] = frozenset(known)
        self._vocabulary.update(known)

    def _remove(self, database: sqlite3.Connection, server: str) -> None:
        first = self._first_rows.pop(server, None)
        tools = self._servers.pop(server, ())
        if first is None:
            return
        for row, tool in enumerate(tools[:MAX_TOOLS_PER_SERVER], first):
            del self._tools[row]
            name = exact_name(tool)
            self._exact[name].discard(row)
            if not self._exact[name]:
                del self._exact[name]
        database.execute(
            "DELETE FROM tools WHERE rowid BETWEEN ? AND ?",
            (first, first + MAX_TOOLS_PER_SERVER - 1),
        )
        self._vocabulary.subtract(self._own_words.pop(server))
        self._vocabulary += Counter()

    def _wanted(self, asked_runs: Sequence[str]) -> list[_Term]:
        """Return what to look for; of words that nothing is like, nothing."""
        asked_words = islice(dict.fromkeys(self._asked_words(asked_runs)), MAX_QUERY_WORDS)
        found = [term for word in asked_words if (term := self._term(word))]
        return list({term.text: term for term in found}.values())

    def _asked_words(self, asked_runs: Sequence[str]) -> Iterable[str]:
        """Yield words; "GitHub" is one word if any tool has it so, else "git" and "hub"."""
        for run in asked_runs:
            whole = run.lower()[:MAX_WORD_CHARS]
            split = parts(run)
            if len(split) > 1 and self._count(_quoted(whole)) == 0:
                yield from split
            else:
                yield whole

    def _term(self, word: str) -> _Term | None:
        """Return what to look for in place of a word; None if nothing is like it."""
        if word not in self._terms:
            if len(self._terms) >= _REMEMBERED_WORDS:
                self._terms.clear()
            self._terms[word] = self._look_for(word)
        return self._terms[word]

    def _look_for(self, word: str) -> _Term | None:
        text = _quoted(word)
        count = self._count(text)
        if not count and len(word) >= _SHORTEST_PREFIX:
            text = f"{_quoted(word)} *"
            count = self._count(text)
        if not count:
            near = mended(word, self._vocabulary)
            # Of several, those that most servers have.
            near.sort(key=lambda other: -self._vocabulary[other])
            text = " OR ".join(map(_quoted, near[:_MENDED_WORDS]))
            count = self._count(text) if text else 0
            text = f"({text})"
        if not count:
            return None
        named = self._count(_named(text)) if count > _SOME_RANKED else count
        return _Term(text=text, count=count, named=named)

    def _worth_ranking(self, terms: Sequence[_Term]) -> str:
        """Return which tools are ranked where too many have some word of the query."""
        room = _SOME_RANKED
        chosen, common = [], []
        for term in sorted(terms, key=lambda term: (term.count, term.named, term.text)):
            if term.count <= room:
                chosen.append(term.text)
                room -= term.count
            elif 0 < term.named <= room:
                chosen.append(_named(term.text))
                room -= term.named
            else:
                common.append(term)
        chosen += self._narrowed(common, enough=bool(chosen))
        return " OR ".join(chosen)

    def _narrowed(self, common: Sequence[_Term], *, enough: bool) -> list[str]:
        """Return how to find the best of too many: those with all common words, if there are any.

        Args:
            enough: Whether there is something to rank without them.
        """
        if not common:
            return []
        together = " AND ".join(term.text for term in common)
        count = self._count(together)
        if 0 < count <= _SOME_RANKED:
            return [f"({together})"]
        named = " AND ".join(f"({_named(term.text)})" for term in common)
        if count and self._count(named):
            return [f"({named})"]
        if enough:
            return []
        ways = [(count, together), *((term.named, _named(term.text)) for term in common)]
        ways = [(count, f"({way})") for count, way in ways if count]
        return [min(ways)[1]] if ways else [f"({common[0].text})"]

    def _count(self, text: str) -> int:
        """Return how many tools have it, counted until they are too many anyway."""
        if self._database is None:
            return 0
        [count] = self._database.execute(
            "SELECT count(*) FROM (SELECT 1 FROM tools WHERE tools MATCH ? LIMIT ?)",
            (text, _ALL_RANKED + 1),
        ).fetchone()
        return int(count)

    def _scores(
        self,
        database: sqlite3.Connection,
        terms: Sequence[_Term],
        first: int,
        last: int,
        *,
        everywhere: bool,
    ) -> dict[int, float]:
        """Return the scores of the tools that are ranked: BM25, times the share of words it has."""
        if not terms:
            return {}
        worth = ""
        if everywhere and sum(term.count for term in terms) > _ALL_RANKED:
            worth = self._worth_ranking(terms)
        anything = " OR ".join(term.text for term in terms)
        weights = ", ".join(map(str, COLUMNS.values()))
        found = database.execute(
            f"SELECT rowid, bm25(tools, {weights}) FROM tools"
            " WHERE tools MATCH ? AND rowid BETWEEN ? AND ?",
            (_both(worth, anything), first, last),
        )
        scores = {row: -score for row, score in found}
        if len(terms) == 1:
            return {row: round(score, _SCORE_DIGITS) for row, score in scores.items()}
        hits: Counter[int] = Counter()
        for term in terms:
            having = database.execute(
                "SELECT rowid FROM tools WHERE tools MATCH ? AND rowid BETWEEN ? AND ?",
                (_both(worth, term.text), first, last),
            )
            hits.update(row for (row,) in having)
        return {
            row: round(score * hits[row] / len(terms), _SCORE_DIGITS)
            for row, score in scores.items()
        }


def _named(text: str) -> str:
    return f"{{name also}} : {text}"


def _both(narrowing: str, query: str) -> str:
    return f"({narrowing}) AND ({query})" if narrowing else query


def _quoted(word: str) -> str:
    # Words are letters and digits alone, so there is no quote in them; and within quotes there is
    # no syntax, though a word be "OR".
    return f'"{word}"'
