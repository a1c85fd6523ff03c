"""How well tools are found: the labelled queries, and what is made of the ranks. No measuring."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

QUERIES = Path(__file__).parent / "disclosure_queries.toml"

Half = str
TUNED: Half = "tuned"
HELD_OUT: Half = "held_out"

RANKS = 50
"""Hits looked at; a tool below counts as not found."""

Search = Callable[[str], Sequence[str]]
"""Returns the tools for a query, best first, each as SERVER.TOOL."""


@dataclass(frozen=True, kw_only=True)
class Query:
    """What is asked, and which tools would do it."""

    text: str
    wanted: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The results of some queries.

    Attributes:
        ranks: Of the first wanted tool for each query, from 1; 0 where there is none.
        missed: Queries whose tool is not among the first five, with the ranks.
    """

    ranks: tuple[int, ...]
    missed: tuple[tuple[str, int], ...]

    def recall(self, limit: int) -> float:
        """Return the share of queries whose tool is among the first `limit`."""
        return sum(1 <= rank <= limit for rank in self.ranks) / len(self.ranks)

    @property
    def mean_reciprocal_rank(self) -> float:
        """Return the mean of 1/rank, where 0 is for what was not found."""
        return sum(1 / rank for rank in self.ranks if rank) / len(self.ranks)


def read_queries(half: Half, servers: Collection[str] | None = None) -> tuple[Query, ...]:
    """Return the queries of one half, or of it those that only these servers' tools answer."""
    document = tomllib.loads(QUERIES.read_text(encoding="utf-8"))
    queries = (
        Query(text=text, wanted=frozenset(wanted)) for text, wanted in document[half].items()
    )
    return tuple(
        query
        for query in queries
        if servers is None or {tool.partition(".")[0] for tool in query.wanted} <= set(servers)
    )


def rate(queries: Sequence[Query], search: Search) -> Quality:
    """Return how well `search` answers the queries."""
    ranks = []
    for query in queries:
        found = search(query.text)
        places = (place for place, tool in enumerate(found, 1) if tool in query.wanted)
        ranks.append(next(places, 0))
    missed = tuple(
        (query.text, rank) for query, rank in zip(queries, ranks, strict=True) if not 1 <= rank <= 5
    )
    return Quality(ranks=tuple(ranks), missed=missed)
