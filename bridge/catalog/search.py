"""Finds and ranks the tools that match a few words.

The index is SQLite's full-text search (FTS5) in memory, with BM25 over weighted columns and the
Porter stemmer. A query has no syntax. The names of server and tool order equal scores.
"""

from __future__ import annotations

import heapq
import re
import weakref
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import log
from typing import TYPE_CHECKING, Any

from bridge.errors import BridgeError, InvalidRequestError
from bridge.model import Tool
from bridge.text import valid_text

if TYPE_CHECKING:
    import sqlite3


MAX_WORD_CHARS = 40

_RUN = re.compile(r"[^\W_]+")
_JOINED = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]|[A-Za-z][0-9]|[0-9][A-Za-z]")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# Synonyms, as servers and people use them. A word may be in several groups.
_SAME = """\
create add new make insert start open / delete remove destroy drop erase forget clear
get read fetch show view retrieve see load inspect / search find query lookup look locate
update edit modify change set patch / send post publish tell / sum add total plus
memory remember memorize recall / observation fact / list enumerate browse
run execute invoke / write save store / commit save / navigate visit open / fill type enter
wait sleep pause delay / extract scrape parse pull / performance speed slow fast
current now / download fetch / upload push attach / rename move / move transition
copy fork duplicate clone / convert transform translate turn / toggle turn / checkout switch
undo revert rollback reset / merge accept combine join / approve review
check verify validate test / install deploy / scale increase decrease / press click tap
watch monitor notify observe track alert tell / capture screenshot snapshot
connect link relate relation / history log / reply answer respond comment
stop end cancel kill terminate / compare diff difference / multiple several many batch bulk
repository repo / directory folder dir / database db / environment env
configuration config setting / documentation doc / document doc file / message msg
image picture photo media / video recording screencast / issue ticket bug / task todo
filesystem disk drive / news headline / aggregate group sum / schema field column structure
organization org company / comment remark note / user member people person colleague account
web internet website site url / dialog popup alert / paper article / size space big large
cost price spend charge / calculate compute evaluate / local location place near nearby
spreadsheet worksheet sheet workbook excel / presentation slide deck / javascript js
kubernetes k8s / package library"""

# Stop words: left out of a query as long as another word remains.
_FILLERS = frozenset(
    re.findall(
        r"\w+",
        """
        a about all am an and any anything are as at be been being but by called can could did do
        does everyone everything exist exists for from give had has have he her here his how i if in
        inside into is it its just kind let may me might more most much must my need no not of off
        on once one only or other our out over please she should so some somebody someone something
        such take than that
        the their them then there these they thing things this those to too tool tools up us use
        used using want was we were what whatever when where whether which while who whom whose
        why will with within would you your
        """,
    )
)

_SHORT_FOR: Mapping[str, tuple[str, ...]] = {
    "pr": ("pull", "request"),
    "prs": ("pull", "request"),
    "mr": ("merge", "request"),
    "mrs": ("merge", "request"),
    # A server that remembers also has tools that forget.
    "remember": ("remember", "add"),
}


def runs(text: str) -> list[str]:
    return _RUN.findall(text)


@lru_cache(maxsize=8_192)  # a few megabytes
def parts(run: str) -> tuple[str, ...]:
    if not run.isascii():
        return (run.lower()[:MAX_WORD_CHARS],)
    return tuple(match[0].lower()[:MAX_WORD_CHARS] for match in _PART.finditer(run))


def words(text: str) -> list[str]:
    return [part for run in runs(text) for part in parts(run)]


def index_text(text: str) -> str:
    """Return `text` and the words that it joins by case: "GitHub" adds "git hub"."""
    if _JOINED.search(text):
        # Longer runs are encoded data rather than names.
        apart = (parts(run[: 2 * MAX_WORD_CHARS]) for run in runs(text))
        text = f"{text} {' '.join(part for own in apart if own[1:] for part in own)}"
    return valid_text(text)


def same(given: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(other for word in given for other in _OTHERS.get(word, ())))


def correct_word(word: str, known: Container[str]) -> list[str]:
    """Return the known words at one edit from `word`, in alphabetical order."""
    if len(word) < 4 or not word.isascii():  # Shorter words are one edit away from too many others.
        return []
    word = word[:MAX_WORD_CHARS]
    ends = [(word[:index], word[index:]) for index in range(len(word) + 1)]
    near = {head + tail[1:] for head, tail in ends if tail}
    near.update(head + tail[1] + tail[0] + tail[2:] for head, tail in ends if len(tail) > 1)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        near.update(head + letter + tail[1:] for head, tail in ends if tail)
        near.update(head + letter + tail for head, tail in ends)
    return sorted(other for other in near if other in known)


def _forms(word: str) -> Iterable[str]:
    stem = word.removesuffix("e")
    yield from (word, f"{word}s", f"{stem}ing", f"{stem}ed", f"{stem}es")
    if word.endswith("y"):
        yield f"{word[:-1]}ies"


_OTHERS: dict[str, dict[str, None]] = {}
for _group in map(str.split, re.split(r" / |\n", _SAME)):
    for _word in _group:
        for _form in _forms(_word):
            others = dict.fromkeys(other for other in _group if other != _word)
            _OTHERS.setdefault(_form, {}).update(others)


DEFAULT_LIMIT = 5
MAX_LIMIT = 50
"""A model pays less for another query than for more results."""

MAX_QUERY_CHARS = 400  # A client's query may have any length.

_SPELLED = 4
"""Number of first columns whose words may correct a typing error."""

_EXACT_NAME_BONUS = 100.0
"""Bonus for a tool's exact name as the query; larger than any score."""

_WHOLE_NAME = 1.6
"""Factor for a query with all words of a tool's name; words of the server's name do not count."""

_SAME_SCORE = 1e-8
"""Scores that differ by less are equal; larger than the rounding error."""

_PURPOSE = "name also server lead"
_IN_PASSING = 0.5
"""The columns on a tool's purpose, and the weight of a match in the other columns."""

_ONLY_LIKE = 0.5
"""The weight of a match by prefix or by correction."""

GOOD_FIT = 0.3
"""Least `Match.fit` of a good match. Of the queries in `benchmarks/disclosure_queries.toml`, 160
find their tool; 4 of these have a worse first match. So do 102 of 123 queries for missing tools."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """A tool that matches a query."""

    tool: Tool
    score: float  # Comparable within one query only.
    fit: float = 1.0  # The share of the query's words in the tool, weighted by rarity.


@dataclass(frozen=True, kw_only=True)
class _Term:
    """One word of a query."""

    text: str
    scores: Mapping[int, float]
    telling: Collection[int]  # The rows with the word in a column on the purpose.
    likeness: float = 1.0  # 1 for the word itself, less for a prefix or a correction.


class ToolIndex:
    """An index of tools by words, updated by server. One caller at a time, in any thread."""

    def __init__(self) -> None:
        self._database: sqlite3.Connection | None = None
        self._rows: dict[str, range] = {}
        self._next_row = 1
        self._servers: dict[str, tuple[Tool, ...]] = {}
        self._tools: dict[int, Tool] = {}
        self._own_words: dict[str, frozenset[str]] = {}

    def update(self, servers: Mapping[str, tuple[Tool, ...]]) -> bool:
        """Replace the tools in the index; return whether it changed."""
        gone = [name for name in self._servers if name not in servers]
        new = [name for name, tools in servers.items() if self._servers.get(name) != tools]
        # Equal tuples are replaced by the caller's: the next comparison is by identity.
        self._servers.update((name, tools) for name, tools in servers.items() if name not in new)
        if not gone and not new:
            return False
        if self._database is None:
            self._database = _open_index()
            # Closed when the index is garbage-collected.
            weakref.finalize(self, self._database.close)
        database = self._database
        # One transaction: with one for each change it would take ten times as long.
        database.execute("BEGIN")
        try:
            for name in (*gone, *new):
                self._remove(database, name)
            for name in new:
                self._add(database, name, servers[name])
        finally:
            database.execute("COMMIT")
        return True

    def search(
        self, query: str, *, limit: int = DEFAULT_LIMIT, server: str | None = None
    ) -> list[Match]:
        """Return the tools of one server, or of all, that match `query`, best first."""
        spelled = query[:MAX_QUERY_CHARS]
        query_runs = runs(spelled)
        telling = [run for run in query_runs if run.lower() not in _FILLERS] or query_runs
        asked_runs = [long for run in telling for long in _SHORT_FOR.get(run.lower(), (run,))]
        if not asked_runs:
            message = "The query has no words in it."
            raise InvalidRequestError(
                message, remedy='Say what the tool should do, for example "create issue".'
            )
        rows = range(self._next_row) if server is None else self._rows.get(server, range(0))
        if self._database is None:
            return []
        asked_words: list[str] = []
        for run in asked_runs:
            # "GitHub" is one word if a tool has it, else "git" and "hub".
            whole, split = run.lower()[:MAX_WORD_CHARS], parts(run)
            known = len(split) < 2 or self._run(_FOUND, _quote(whole)).fetchone()
            asked_words += [whole] if known else split
        matched = [self._term(word) for word in [*dict.fromkeys(asked_words)][:16]]
        terms = list({term.text: term for term in matched if term}.values())
        scores = _sum_scores(terms, rows)
        typed = words(spelled)
        named = set()
        for row in self._best(scores, MAX_LIMIT):
            tool = self._tools[row]
            name = _words_of_name(tool)
            own = {*name} - {*words(tool.server[:_MAX_NAME_CHARS])}
            if len(own) > 1 and own.issubset(typed):
                scores[row] *= _WHOLE_NAME
            if name == typed:
                scores[row] += _EXACT_NAME_BONUS
                named.add(row)
        best = self._best(scores, max(1, min(limit, MAX_LIMIT)))
        fits = self._fits(best, terms, matched.count(None))
        fits.update(dict.fromkeys(fits.keys() & named, 1.0))
        return [Match(tool=self._tools[row], score=best[row], fit=fits[row]) for row in best]

    def _best(self, scores: Mapping[int, float], limit: int) -> dict[int, float]:
        least = min(heapq.nlargest(limit, scores.values()), default=0.0) - _SAME_SCORE
        rows = [(row, round(score, 9)) for row, score in scores.items() if score >= least]
        tools = self._tools
        rows.sort(key=lambda one: (-one[1], tools[one[0]].server, tools[one[0]].name))
        return dict(rows[:limit])

    def _fits(self, rows: Iterable[int], terms: Sequence[_Term], unknown: int) -> dict[int, float]:
        """Return each row's `fit`; `unknown` is the number of words that no tool has."""
        total = unknown * self._rarity(0)
        fits = dict.fromkeys(rows, 0.0)
        for term in terms:
            rarity = self._rarity(len(term.scores))
            total += rarity
            for row in fits.keys() & term.scores.keys():
                weight = term.likeness * (1.0 if row in term.telling else _IN_PASSING)
                fits[row] += rarity * weight
        return {row: had / total if total else 0.0 for row, had in fits.items()}

    def _rarity(self, count: int) -> float:
        return max(1e-6, log((len(self._tools) - count + 0.5) / (count + 0.5)))

    def _add(self, database: sqlite3.Connection, server: str, tools: tuple[Tool, ...]) -> None:
        rows = self._rows[server] = range(self._next_row, self._next_row + len(tools))
        self._next_row = rows.stop
        self._servers[server] = tools
        self._tools.update(zip(rows, tools, strict=True))
        texts = [_columns(tool) for tool in tools]
        database.executemany(_ADD, ((row, *own) for row, own in zip(rows, texts, strict=True)))
        spelled = " ".join(text for own in texts for text in own[:_SPELLED])
        self._own_words[server] = frozenset(runs(spelled.lower()))

    def _remove(self, database: sqlite3.Connection, server: str) -> None:
        self._servers.pop(server, None)
        self._own_words.pop(server, None)
        # The table stores no texts, so deleting a row needs them again.
        rows = self._rows.pop(server, ())
        database.executemany(_DELETE, [(row, *_columns(self._tools.pop(row))) for row in rows])

    def _term(self, word: str) -> _Term | None:
        text = _quote(word)
        scores = dict(self._run(_SCORED, text))
        likeness = 1.0 if scores else _ONLY_LIKE
        if not scores and len(word) >= 3:
            text = f"{_quote(word)} *"
            scores = dict(self._run(_SCORED, text))
        if not scores:
            vocabulary = Counter(word for own in self._own_words.values() for word in own)
            # Prefer corrections that most servers have.
            near = sorted(correct_word(word, vocabulary), key=lambda other: -vocabulary[other])
            text = f"({' OR '.join(map(_quote, near[:3]))})"
            scores = dict(self._run(_SCORED, text)) if near else {}
        if not scores:
            return None
        scores = {row: score * likeness for row, score in scores.items()}
        telling = frozenset(row for (row,) in self._run(_FOUND, f"{{{_PURPOSE}}} : {text}"))
        return _Term(text=text, scores=scores, telling=telling, likeness=likeness)

    def _run(self, statement: str, text: str) -> sqlite3.Cursor:
        assert self._database is not None
        return self._database.execute(statement, (text,))


def _sum_scores(terms: Sequence[_Term], rows: range) -> dict[int, float]:
    # Copy the scores of the most frequent word and add those of the others.
    terms = sorted(terms, key=lambda term: -len(term.scores))
    scores = dict(terms[0].scores) if terms else {}
    hits = Counter(scores.keys())
    for term in terms[1:]:
        hits.update(term.scores.keys())
        for row, score in term.scores.items():
            scores[row] = scores.get(row, 0.0) + score
    return {row: score * hits[row] / len(terms) for row, score in scores.items() if row in rows}


def _quote(word: str) -> str:
    # Words are only letters and digits, so they contain no quote; quoted, "OR" is no operator.
    return f'"{word}"'


_MAX_NAME_CHARS = 200  # A server chooses the names.
COLUMNS: Mapping[str, float] = {
    "name": 2.0,
    "also": 1.0,
    "server": 2.0,
    "lead": 2.5,
    "rest": 0.3,
    "parameters": 0.7,
    "details": 0.7,
}
"""The columns and their weights: a tool's name, synonyms of the name's and the server's words, the
server, the description's first sentence and the rest, the parameters' names, and their descriptions
and choices. Tuned on the first half of the queries in `benchmarks/disclosure_queries.toml`."""

_NAMES = ", ".join(COLUMNS)
_MARKS = ", ".join("?" * (1 + len(COLUMNS)))
_ADD = f"INSERT INTO tools(rowid, {_NAMES}) VALUES ({_MARKS})"
_DELETE = f"INSERT INTO tools(tools, rowid, {_NAMES}) VALUES ('delete', {_MARKS})"
_SCORED = (
    f"SELECT rowid, -bm25(tools, {', '.join(map(str, COLUMNS.values()))}) FROM tools"
    " WHERE tools MATCH ?"
)

_FOUND = "SELECT rowid FROM tools WHERE tools MATCH ?"


def _columns(tool: Tool) -> tuple[str, ...]:
    described = tool.description.lstrip()[:800]
    lead = described[:300]
    ends = [index for mark in (". ", ".\n", "\n") if (index := lead.find(mark)) > 0]
    end = min(ends, default=len(lead))
    properties = tool.input_schema.get("properties")
    given = properties if isinstance(properties, Mapping) else {}
    names = (parameter[:64] for parameter in islice(given, 64))
    return (
        index_text(tool.name[:_MAX_NAME_CHARS]),
        " ".join(same([*_words_of_name(tool), *words(tool.server[:_MAX_NAME_CHARS])])),
        index_text(tool.server[:_MAX_NAME_CHARS]),
        index_text(f"{tool.title[:_MAX_NAME_CHARS]} {described[:end]}"),
        # Prose has few joined words, and splitting it would take as long as all the rest.
        valid_text(described[end:]),
        index_text(" ".join(names)),
        valid_text(" ".join(_details(given))),
    )


def _details(properties: Mapping[str, Any]) -> Iterable[str]:
    for schema in islice(properties.values(), 24):
        if not isinstance(schema, Mapping):
            continue
        if isinstance(text := schema.get("description"), str):
            yield text[:150]
        if isinstance(choices := schema.get("enum"), list):
            for choice in choices[:12]:
                yield str(choice)[:30]


def _words_of_name(tool: Tool) -> list[str]:
    return words(tool.name[:_MAX_NAME_CHARS])


def _open_index() -> sqlite3.Connection:
    message = "Tools cannot be searched: this Python's SQLite has no full-text search."
    unavailable = BridgeError(message, code="search_unavailable")
    try:
        # Imported here: it takes 4 ms, and most runs do not search.
        import sqlite3
    except ImportError as error:
        raise unavailable from error
    database = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        database.execute(
            # Without storing the texts: they are not read, and would double the writing time.
            f"CREATE VIRTUAL TABLE tools USING fts5({_NAMES},"
            " content = '', tokenize = 'porter unicode61')"
        )
        # Nothing is rolled back, and 8 MiB of the index are collected before they are written.
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("INSERT INTO tools(tools, rank) VALUES ('hashsize', 8388608)")
    except sqlite3.OperationalError as error:
        database.close()
        raise unavailable from error
    return database
