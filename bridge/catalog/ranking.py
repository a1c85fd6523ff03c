"""How the scores of single words make up the order of the tools.

Owns the sum and what may be left out of it. The scores of a word are `bridge.catalog.search`'s.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import log

SAME_SCORE = 1e-8
"""More than rounding may take away."""

_LEAST_RARITY = 1e-6


@dataclass(frozen=True, kw_only=True)
class Scores:
    """How well tools fit one word: their rows, the score of each, and the highest of those."""

    rows: Sequence[int]
    scores: Sequence[float]
    highest: float


def scores_of(rows: Iterable[int], scores: Collection[float]) -> Scores:
    """Return the scores of these rows, packed: they are kept."""
    highest = max(scores, default=0.0)
    return Scores(rows=array("q", rows), scores=array("d", scores), highest=highest)


def rarity_of(count: int, total: int) -> float:
    """Return the weight that BM25 gives to a word that `count` of `total` tools have."""
    return max(_LEAST_RARITY, log((total - count + 0.5) / (count + 0.5)))


def ranked(found: Sequence[Scores], limit: int, named: Iterable[int]) -> dict[int, float]:
    """Return the sum of each tool's scores, times the share of words it has.

    Left out are tools that are certain not to be among the best. The words with the fewest tools
    come first: then most of those that have only the common ones are never looked at.

    Args:
        limit: How many of the best are wanted.
        named: Tools that are wanted in any case.
    """
    scores = dict.fromkeys(named, 0.0)
    hits = dict.fromkeys(scores, 0)
    share = 1 / len(found) if found else 1.0
    by_length = sorted(found, key=lambda each: len(each.rows))
    for place, each in enumerate(by_length):
        later = by_length[place + 1 :]
        least = 0.0
        if len(scores) >= limit:
            so_far = [score * hits[row] for row, score in scores.items()]
            good = heapq.nlargest(limit, so_far)[-1] * share
            # What a tool has to have of this word to come so far with all of those that follow.
            least = good / (share * (1 + len(later))) - sum(other.highest for other in later)
            least -= SAME_SCORE
        for row, score in zip(each.rows, each.scores, strict=True):
            if row in scores:
                scores[row] += score
                hits[row] += 1
            elif score >= least:
                scores[row] = score
                hits[row] = 1
    return {row: score * hits[row] * share for row, score in scores.items()}
