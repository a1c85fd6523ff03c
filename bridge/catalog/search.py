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

from bridge.catalog.indexing import ADD, COLUMNS, FORGET, columns, exact_name, open_index
from bridge.catalog.ranking import SAME_SCORE, Scores, ranked, rarity_of, scores_of
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

_RANKED = 300
"""Tools that are ranked for one query, at two microseconds each, those of its rare words first. Of
a word for which there is no room any more, only those are that have it in a telling place."""

_TOLD = 150
"""How many those should be, if some such place has so few."""

_TELLING = ("name lead", "name")
"""Such places, each narrower than the one before."""

_COUNTED = 2_000
"""Of a word that more tools have, it does not count where else they have it."""

_ELSEWHERE = 0.8
"""What a common word counts there, beside its rarity: what BM25 gives it on average."""

_SHORTEST_PREFIX = 3
_MENDED_WORDS = 3
_REMEMBERED_WORDS = 4_096
_REMEMBERED_SCORES = 524_288
"""Words of queries, and scores of tools for them, that are kept until the index changes: 6 MB.
Those for 5,000 tools take a third of it."""

_EXACT_NAME_BONUS = 100.0
"""A query that spells out a tool's name wants that tool; no score comes near."""

_SCORE_DIGITS = 9

_PURPOSE = "name also server lead"
_IN_PASSING = 0.5
"""Where words say what a tool is for, and what one counts towards a fit that stands elsewhere."""

_ONLY_LIKE = 0.5
"""What a word counts towards a fit that is completed or mended."""

GOOD_FIT = 0.3
"""Share of what was asked that a good match has. Of 157 labelled queries in
`benchmarks/disclosure_queries.toml` whose tool is found, 4 have a first match that is worse; of 123
asked of five servers without such a tool, 103 have."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """A tool that fits a query, and how well.

    Attributes:
        score: Compares within one query only.
        fit: Share of the query's words that it has, rare words counting for more; see `GOOD_FIT`.
    """

    tool: Tool
    score: float
    fit: float = 1.0


@dataclass(frozen=True, kw_only=True)
class _Term:
    """One word of a query.

    Attributes:
        text: As the index's query language has it.
        count: How many tools have it, as far as they were counted.
        likeness: 1 for the word itself, less for one that is only like it.
    """

    text: str
    count: int
    likeness: float = 1.0


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
        self._scored: dict[tuple[str, bool], Scores] = {}
        self._kept_scores = 0

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
            self._forget()
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
        terms, unknown = self._wanted(asked_runs)
        if server is None:
            words_scores = self._everywhere(terms)
        else:
            words_scores = [self._look_up(term.text, first, last) for term in terms]
        exact = self._exact.get(tuple(words(spelled)), ())
        named = [row for row in exact if first <= row <= last]
        limit = max(1, min(limit, MAX_LIMIT))
        scores = ranked(words_scores, limit, named)
        for row in named:
            scores[row] += _EXACT_NAME_BONUS
        best = self._best(scores, limit)
        fits = self._fits(best, zip(terms, words_scores, strict=False), unknown)
        fits.update(dict.fromkeys(fits.keys() & set(named), 1.0))
        return [Match(tool=self._tools[row], score=best[row], fit=fits[row]) for row in best]

    def _fits(
        self, rows: Iterable[int], found: Iterable[tuple[_Term, Scores]], unknown: int
    ) -> dict[int, float]:
        """Return the share of the words that each tool has, `unknown` ones being in none."""
        total = unknown * rarity_of(0, len(self._tools))
        fits = dict.fromkeys(rows, 0.0)
        for term, scores in found:
            if scores.rows:
                rarity = rarity_of(term.count, len(self._tools))
                total += rarity
                telling = self._telling(term, fits)
                for row in fits.keys() & set(scores.rows):
                    weight = term.likeness if row in telling else term.likeness * _IN_PASSING
                    fits[row] += rarity * weight
        return {row: had / total if total else 0.0 for row, had in fits.items()}

    def _telling(self, term: _Term, rows: Iterable[int]) -> set[int]:
        """Return which of these tools have a word where it says what they are for."""
        assert self._database is not None
        found = self._database.execute(
            "SELECT rowid FROM tools WHERE tools MATCH ?"
            f" AND rowid IN ({', '.join(map(str, rows))})",
            (f"{{{_PURPOSE}}} : {term.text}",),
        )
        return {row for (row,) in found}

    def _best(self, scores: Mapping[int, float], limit: int) -> dict[int, float]:
        """Return the best, in order; the scores of most are only compared."""
        least = min(heapq.nlargest(limit, scores.values()), default=0.0) - SAME_SCORE
        found = [
            (row, round(score, _SCORE_DIGITS)) for row, score in scores.items() if score >= least
        ]
        tools = self._tools
        found.sort(key=lambda one: (-one[1], tools[one[0]].server, tools[one[0]].name))
        return dict(found[:limit])

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
        database.executemany(ADD, rows)
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
            # The texts are not kept: what is to be forgotten has to be said again.
            database.execute(FORGET, (row, *columns(tool, name)))
            self._exact[name].discard(row)
            if not self._exact[name]:
                del self._exact[name]
        self._vocabulary.subtract(self._own_words.pop(server))
        self._vocabulary += Counter()

    def _wanted(self, asked_runs: Sequence[str]) -> tuple[list[_Term], int]:
        """Return what to look for, rare words first, and how many words nothing is like."""
        asked_words = islice(dict.fromkeys(self._asked_words(asked_runs)), MAX_QUERY_WORDS)
        found = [self._term(word) for word in asked_words]
        terms = {term.text: term for term in found if term}
        rare_first = sorted(terms.values(), key=lambda term: (term.count, term.text))
        return rare_first, found.count(None)

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
                self._forget()
            self._terms[word] = self._look_for(word)
        return self._terms[word]

    def _forget(self) -> None:
        self._terms.clear()
        self._scored.clear()
        self._kept_scores = 0

    def _look_for(self, word: str) -> _Term | None:
        text = _quoted(word)
        count = self._count(text)
        likeness = 1.0 if count else _ONLY_LIKE
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
        return _Term(text=text, count=count, likeness=likeness) if count else None

    def _count(self, text: str, enough: int = _RANKED + 1) -> int:
        """Return how many tools have it, counted until they are enough."""
        if self._database is None:
            return 0
        [count] = self._database.execute(
            "SELECT count(*) FROM (SELECT 1 FROM tools WHERE tools MATCH ? LIMIT ?)",
            (text, enough),
        ).fetchone()
        return int(count)

    def _everywhere(self, terms: Sequence[_Term]) -> list[Scores]:
        """Return the scores of all tools for each word, as far as there are any; BM25 sums them.

        Which are looked up in full depends on the query and the index, and not on what is kept.
        """
        found, room = [], _RANKED
        for term in terms:
            exact = term.count <= room or len(terms) == 1
            if exact:
                room -= term.count
            key = (term.text, exact)
            if key not in self._scored:
                self._keep(key, self._look_up(term.text) if exact else self._estimate(term))
            found.append(self._scored[key])
        if terms and not any(each.rows for each in found):
            # All words are everywhere: then the least common of them has to do.
            return self._everywhere(terms[:1])
        return found

    def _keep(self, key: tuple[str, bool], scores: Scores) -> None:
        if self._kept_scores + len(scores.rows) > _REMEMBERED_SCORES:
            self._scored.clear()
            self._kept_scores = 0
        self._scored[key] = scores
        self._kept_scores += len(scores.rows)

    def _estimate(self, term: _Term) -> Scores:
        """Return the scores for a common word: BM25's only where it is in telling places."""
        assert self._database is not None
        telling, told = "", 0
        for places in _TELLING:
            if fewer := self._count(f"{{{places}}} : {term.text}", _COUNTED):
                telling, told = f"{{{places}}} : {term.text}", fewer
            if fewer <= _TOLD:
                break
        count = self._count(term.text, _COUNTED)
        rarity = rarity_of(count, len(self._tools))
        scores: dict[int, float] = {}
        if count < _COUNTED:
            having = self._database.execute("SELECT rowid FROM tools(?)", (term.text,))
            scores = dict.fromkeys([row for (row,) in having], _ELSEWHERE * rarity)
        if 0 < told < _COUNTED:
            # It is as common as it is, though it be rare in those places.
            weight = rarity / max(rarity, rarity_of(told, len(self._tools)))
            named = self._look_up(telling, weight=weight)
            scores.update(zip(named.rows, named.scores, strict=True))
        return scores_of(scores, scores.values())

    def _look_up(
        self, text: str, first: int = 0, last: int | None = None, weight: float = 1.0
    ) -> Scores:
        assert self._database is not None
        limits = (first, self._next_row if last is None else last)
        found = self._database.execute(_SCORED, (-weight, text, *limits)).fetchall()
        rows, scores = zip(*found, strict=True) if found else ((), ())
        return scores_of(rows, scores)


_SCORED = (
    f"SELECT rowid, ? * bm25(tools, {', '.join(map(str, COLUMNS.values()))}) FROM tools"
    " WHERE tools MATCH ? AND rowid BETWEEN ? AND ?"
)


def _quoted(word: str) -> str:
    # Words are letters and digits alone, so there is no quote in them; and within quotes there is
    # no syntax, though a word be "OR".
    return f'"{word}"'
