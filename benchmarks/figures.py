"""Samples and what is said of them: quantiles, ratios, how they are kept. Pure.

Samples have no unit here: each row knows its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MAX_KEPT = 120
"""Samples of one list that a results file keeps: enough for a histogram, and for every run of the
longest rows."""

KEPT_DIGITS = 4
"""Significant digits of a kept sample; clocks and machines are not steadier than that."""


def quantile(samples: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the samples lie, between neighbours in proportion.

    Raises:
        ValueError: There are no samples, or `share` is not within 0 and 1.
    """
    if not samples:
        message = "no samples, so no quantile"
        raise ValueError(message)
    if not 0 <= share <= 1:
        message = f"a share is between 0 and 1, not {share}"
        raise ValueError(message)
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def median(samples: Sequence[float]) -> float:
    """Return the middle of the samples."""
    return quantile(samples, 0.5)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a list of samples comes to."""

    n: int
    min: float
    p50: float
    p90: float
    p99: float
    max: float


def summary(samples: Sequence[float]) -> Summary | None:
    """Return the summary; None of no samples."""
    if not samples:
        return None
    return Summary(
        n=len(samples),
        min=rounded(min(samples)),
        p50=rounded(median(samples)),
        p90=rounded(quantile(samples, 0.9)),
        p99=rounded(quantile(samples, 0.99)),
        max=rounded(max(samples)),
    )


def ratio(figure: float | None, floor: float | None) -> float | None:
    """Return how many times the floor a figure is; None where that cannot be said."""
    if figure is None or floor is None or floor <= 0:
        return None
    return figure / floor


def rounded(value: float) -> float:
    """Return `value` with as many digits as are worth keeping."""
    return float(f"{value:.{KEPT_DIGITS}g}")


def kept(samples: Sequence[float]) -> list[float]:
    """Return what a results file keeps of the samples, in order of size.

    Of more than `MAX_KEPT` it keeps as many quantiles, the least and the greatest among them.
    """
    if len(samples) <= MAX_KEPT:
        return sorted(rounded(value) for value in samples)
    last = MAX_KEPT - 1
    return [rounded(quantile(samples, number / last)) for number in range(MAX_KEPT)]


def shown(value: float | None, unit: str) -> str:
    """Return a value with its unit, as many digits as tell something."""
    if value is None:
        return "–"
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f} {unit}".rstrip()
