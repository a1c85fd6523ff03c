"""Two results side by side: what got worse, and by how much. Pure.

Ratios to a floor of the same run are compared where there are any, since they hold across machines
and load; only where there is no floor are the figures themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from benchmarks.results import Measurement, Results
from benchmarks.targets import BY_KEY, ROWS

NOISE = 0.15
"""What two runs of the same code may differ by without it meaning anything: chosen, not measured.
Readings an hour apart on a busy machine differed by less in the medians of runs, and by more where
a row depends on how eight things share two cores."""

Change = Literal["worse", "better", "same", "gone", "new"]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row on one engine, then and now; a value is a ratio where `by_ratio`, else a figure."""

    row: str
    engine: str
    old: float | None
    new: float | None
    by_ratio: bool
    change: Change

    @property
    def factor(self) -> float | None:
        """How many times the old value the new one is."""
        return self.new / self.old if self.old and self.new is not None else None


def compare(old: Results, new: Results, noise: float = NOISE) -> tuple[Line, ...]:
    """Return a line for each row that either has."""
    engines = dict.fromkeys(one.engine for one in (*old.rows, *new.rows))
    lines = []
    for row in ROWS:
        for engine in engines:
            before, now = old.find(row.key, engine), new.find(row.key, engine)
            if before is not None or now is not None:
                lines.append(_line(row.key, engine, before, now, noise))
    return tuple(line for line in lines if line.old is not None or line.new is not None)


def _line(
    row: str, engine: str, before: Measurement | None, now: Measurement | None, noise: float
) -> Line:
    by_ratio = all(one is None or one.ratio is not None for one in (before, now))
    then, after = (_value(one, by_ratio=by_ratio) for one in (before, now))
    return Line(
        row=row,
        engine=engine,
        old=then,
        new=after,
        by_ratio=by_ratio,
        change=_change(then, after, more_is_better=BY_KEY[row].more_is_better, noise=noise),
    )


def _value(one: Measurement | None, *, by_ratio: bool) -> float | None:
    if one is None:
        return None
    return one.ratio if by_ratio else one.figure


def _change(old: float | None, new: float | None, *, more_is_better: bool, noise: float) -> Change:
    if old is None:
        return "new"
    if new is None:
        return "gone"
    worse, better = (new, old) if not more_is_better else (old, new)
    if worse > better * (1 + noise):
        return "worse"
    return "better" if better > worse * (1 + noise) else "same"


def regressions(lines: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines that should stop a change from going in."""
    return tuple(line for line in lines if line.change == "worse")


def better_of(one: Results, other: Results) -> Results:
    """Return the first results with those rows of the other that are better, or only there."""
    found = {(row.row, row.engine): row for row in one.rows}
    for row in other.rows:
        key = (row.row, row.engine)
        if key not in found or _is_better(row, found[key]):
            found[key] = row
    return replace(one, rows=tuple(found.values()))


def _is_better(one: Measurement, other: Measurement) -> bool:
    line = _line(one.row, one.engine, other, one, 0.0)
    return line.change in ("better", "new")


def doubts(old: Results, new: Results) -> tuple[str, ...]:
    """Say what makes the comparison weaker than it looks."""
    found = []
    for name, results in (("old", old), ("new", new)):
        if results.quick:
            found.append(f"The {name} results are from --quick: too few samples to judge by.")
    if (old.machine.cores, old.machine.cpu) != (new.machine.cores, new.machine.cpu):
        found.append("The machines differ: figures without a floor say little.")
    for name, results in (("old", old), ("new", new)):
        load = max(results.machine.load_before, results.machine.load_after)
        if load > results.machine.cores:
            found.append(f"The {name} results were taken under a load of {load:.1f}.")
    return tuple(found)
