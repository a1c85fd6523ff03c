"""Which tools fit a few words?

Owns the ranking of tools for a query: BM25 with weighted fields, over words taken out of names,
descriptions and parameter names. Words are split as programmers join them, cut to a stem, and
matched exactly, as a beginning, by a small list of verbs that servers use for the same thing, and
as a last resort by likeness, for typing errors. Nothing is fetched or learned.

The order depends on the set of tools and the query alone: equal scores are settled by server and
tool name.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from bridge.errors import InvalidRequestError
from bridge.model import Tool

DEFAULT_LIMIT = 5
MAX_LIMIT = 50
"""More results than this cost a model more than another query."""

MAX_QUERY_CHARS = 400
MAX_QUERY_WORDS = 16
"""Of a longer query the beginning is searched; nobody types more to find a tool."""

_MAX_TEXT_CHARS = 2_000
"""Of a description, what is indexed. Real ones say what the tool does at the start."""

_MAX_PARAMETERS = 64
_MAX_WORD_CHARS = 40

_REMEMBERED_WORDS = 8_192
"""Servers' texts have few words and many of each; this holds a few megabytes at most."""

_MAX_RUN_CHARS = 2 * _MAX_WORD_CHARS
"""Of letters without a gap: longer runs are encoded data rather than names."""

# How much a word counts by where it stands. A tool's own name says most.
_NAME, _SERVER, _DESCRIPTION, _PARAMETER = 4.0, 2.0, 1.0, 0.7

# The usual constants of BM25: how soon repetition stops counting, how much length does.
_K1, _B = 1.2, 0.4

_PREFIX_WORTH, _SYNONYM_WORTH, _TYPO_WORTH = 0.6, 0.5, 0.4
_SHORTEST_PREFIX = 3
_TYPO_LIKENESS = 0.75
_TYPO_CANDIDATES = 3
_EXACT_NAME_BONUS = 2.0
"""A query that spells out a tool's name wants that tool."""

_RUN = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# Words that servers use for the same thing; each stands in one group.
_SYNONYMS = (
    ("create", "add", "new", "make", "insert"),
    ("delete", "remove", "destroy", "drop"),
    ("get", "read", "fetch", "show", "view", "retrieve"),
    ("search", "find", "query", "lookup"),
    ("update", "edit", "modify", "change", "set"),
    ("send", "post", "publish"),
    ("list", "enumerate", "browse"),
    ("run", "execute", "invoke"),
    ("write", "save", "store"),
    ("current", "now"),
)

# Left out of a query as long as another word remains.
_FILLERS = frozenset(
    ("a", "an", "and", "by", "can", "do", "for", "from", "how", "i", "in", "is", "it", "me", "my")
    + ("of", "on", "or", "that", "the", "this", "to", "tool", "use", "what", "which", "with")
)


@dataclass(frozen=True, kw_only=True)
class Match:
    """A tool that fits a query, and how well; scores compare within one query only."""

    tool: Tool
    score: float


class ToolIndex:
    """The words of a set of tools, counted once and searched often."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = sorted(tools, key=lambda tool: (tool.server, tool.name))
        self._weights = [_weigh(tool) for tool in self._tools]
        lengths = [sum(weights.values()) for weights in self._weights]
        mean = math.fsum(lengths) / len(lengths) if lengths else 0.0
        self._norms = [_K1 * (1 - _B + _B * length / mean) if mean else _K1 for length in lengths]
        self._postings: dict[str, list[int]] = {}
        for number, weights in enumerate(self._weights):
            for stem in weights:
                self._postings.setdefault(stem, []).append(number)
        self._names = [words(tool.name) for tool in self._tools]

    def search(self, query: str, *, limit: int = DEFAULT_LIMIT) -> list[Match]:
        """Return the tools that fit `query`, best first, at most `limit` of them.

        Raises:
            InvalidRequestError: There is no word in the query.
        """
        spelled = query[:MAX_QUERY_CHARS]
        stems = list(dict.fromkeys(self._query_words(spelled)))[:MAX_QUERY_WORDS]
        if not stems:
            message = "The query has no words in it."
            raise InvalidRequestError(
                message, remedy='Say what the tool should do, for example "create issue".'
            )
        scores: dict[int, float] = {}
        hits: Counter[int] = Counter()
        for stem in stems:
            for number, score in self._score(self._similar(stem)).items():
                scores[number] = scores.get(number, 0.0) + score
                hits[number] += 1
        exact = words(spelled)
        for number in scores:
            # A tool that has most of the words beats one that repeats a single one.
            scores[number] *= math.sqrt(hits[number] / len(stems))
            if self._names[number] == exact:
                scores[number] += _EXACT_NAME_BONUS
        matches = [
            Match(tool=self._tools[number], score=round(score, 6))
            for number, score in scores.items()
        ]
        matches.sort(key=lambda match: (-match.score, match.tool.server, match.tool.name))
        return matches[: max(1, min(limit, MAX_LIMIT))]

    def _query_words(self, query: str) -> Iterator[str]:
        """Yield stems; "GitHub" is one word if any tool has it so, else "git" and "hub"."""
        runs = [match[0] for match in _RUN.finditer(query)]
        telling = [run for run in runs if run.lower() not in _FILLERS]
        for run in telling or runs:
            whole = _stem(run.lower())
            if whole in self._postings:
                yield whole
            else:
                yield from words(run)

    def _score(self, worths: Mapping[str, float]) -> dict[int, float]:
        """Return each tool's score for one word, by its best match."""
        best: dict[int, float] = {}
        total = len(self._tools)
        for stem, worth in worths.items():
            having = self._postings[stem]
            rarity = math.log(1 + (total - len(having) + 0.5) / (len(having) + 0.5))
            for number in having:
                weight = self._weights[number][stem]
                score = worth * rarity * weight * (_K1 + 1) / (weight + self._norms[number])
                best[number] = max(best.get(number, 0.0), score)
        return best

    def _similar(self, stem: str) -> dict[str, float]:
        """Return the indexed words that `stem` may stand for, and what such a match is worth."""
        found = {other: _SYNONYM_WORTH for other in _VERBS.get(stem, ()) if other in self._postings}
        if len(stem) >= _SHORTEST_PREFIX:
            for other in self._postings:
                if other.startswith(stem):
                    found[other] = max(_PREFIX_WORTH, found.get(other, 0.0))
        if stem in self._postings:
            found[stem] = 1.0
        if not found:
            near = [other for other in self._postings if abs(len(other) - len(stem)) <= 2]
            close = difflib.get_close_matches(stem, near, _TYPO_CANDIDATES, _TYPO_LIKENESS)
            found = dict.fromkeys(close, _TYPO_WORTH)
        return found


def search(tools: Sequence[Tool], query: str, *, limit: int = DEFAULT_LIMIT) -> list[Tool]:
    """Return the tools that fit `query`, best first; `ToolIndex` saves work on later queries.

    Raises:
        InvalidRequestError: There is no word in the query.
    """
    return [match.tool for match in ToolIndex(tools).search(query, limit=limit)]


def words(text: str) -> list[str]:
    """Return the stems of the words in `text`, which may be joined by case or underscores."""
    return [_stem(part) for run in _RUN.finditer(text) for part in _parts(run[0])]


def _parts(run: str) -> list[str]:
    if not run.isascii():
        return [run.lower()[:_MAX_WORD_CHARS]]
    return [match[0].lower()[:_MAX_WORD_CHARS] for match in _PART.finditer(run)]


def _weigh(tool: Tool) -> dict[str, float]:
    properties = tool.input_schema.get("properties")
    names = list(properties)[:_MAX_PARAMETERS] if isinstance(properties, Mapping) else []
    weights: dict[str, float] = {}
    for text, weight in (
        (tool.name, _NAME),
        (tool.server, _SERVER),
        (tool.description, _DESCRIPTION),
        (" ".join(map(str, names)), _PARAMETER),
    ):
        for run in _RUN.findall(text[:_MAX_TEXT_CHARS]):
            for stem in _indexed_stems(run[:_MAX_RUN_CHARS]):
                weights[stem] = weights.get(stem, 0.0) + weight
    return weights


@lru_cache(maxsize=_REMEMBERED_WORDS)
def _indexed_stems(run: str) -> tuple[str, ...]:
    """Return the stems that a run of letters is found by; "GitHub" also by "github"."""
    parts = _parts(run)
    whole = [run.lower()[:_MAX_WORD_CHARS]] if len(parts) > 1 else []
    return tuple(map(_stem, parts + whole))


def _stem(word: str) -> str:
    """Cut the endings that English verbs and plurals take; the rest need not be a word."""
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word[: -len(ending)]
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if len(word) > 3 and word.endswith("e") else word


_VERBS: Mapping[str, tuple[str, ...]] = {
    _stem(verb): tuple(_stem(other) for other in group if other != verb)
    for group in _SYNONYMS
    for verb in group
}
