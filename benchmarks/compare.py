"""Compare two results files, or the published reading with this machine; end with 1 if worse.

python -m benchmarks.compare [OLD [NEW]]
python -m benchmarks.compare --measure bubblewrap [OLD]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks import runner
from benchmarks.bench import Bench
from benchmarks.comparison import NOISE, better_of, compare, doubts, regressions
from benchmarks.engines import Engine, find_all
from benchmarks.options import PUBLISHED, RESULTS
from benchmarks.results import Results, ResultsError, load
from benchmarks.table import compared
from benchmarks.targets import LOCAL

READINGS = 3
"""Of a row that looks worse; the best counts, for other work on a machine makes a row slower."""

Measure = Callable[[bool, Sequence[str] | None], Results]
"""Measures rows, all if none are named; the first argument says whether few samples do."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison; return 0, 1 for regressions, 2 for files that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "old", type=Path, nargs="?", default=PUBLISHED, help="default: the published reading"
    )
    parser.add_argument(
        "new", type=Path, nargs="?", default=RESULTS, help="default: the last run's"
    )
    parser.add_argument(
        "--measure", choices=LOCAL, metavar="ENGINE", help="take the new reading on this one now"
    )
    parser.add_argument(
        "--noise", type=float, default=NOISE, help="what may differ without meaning (%(default)s)"
    )
    asked = parser.parse_args(arguments)
    try:
        old = load(asked.old)
        if asked.measure is None:
            new = load(asked.new)
        else:
            engines, skipped = find_all((asked.measure,))
            if skipped:
                raise ResultsError(f"{asked.measure} cannot be measured: {skipped[asked.measure]}")
            new = best_of(old, partial(_measured, engines), asked.noise)
    except ResultsError as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        return 2
    lines = compare(old, new, asked.noise)
    if asked.measure is not None:
        lines = tuple(line for line in lines if line.change != "gone")
    print(f"old: {old.commit}, {old.taken}\nnew: {new.commit}, {new.taken}\n")
    print(compared(lines) if lines else "The two have no row in common.")
    for doubt in doubts(old, new):
        print(f"\nCaution: {doubt}")
    worse = regressions(lines)
    print(f"\n{len(worse)} worse by more than {asked.noise:.0%}.")
    return 1 if worse else 0


def best_of(old: Results, measure: Measure, noise: float) -> Results:
    """Return a reading whose rows were taken again, with more samples, where they looked worse."""
    new = measure(True, None)
    for _ in range(READINGS - 1):
        worse = dict.fromkeys(line.row for line in regressions(compare(old, new, noise)))
        if not worse:
            break
        new = better_of(new, measure(False, list(worse)))
    return new


def _measured(engines: dict[str, Engine], quick: bool, only: Sequence[str] | None) -> Results:
    # A short directory: sockets lie in it, whose paths may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mcb.", dir="/tmp") as directory:
        return runner.results(Bench(directory=Path(directory), quick=quick), engines, {}, only)


if __name__ == "__main__":
    sys.exit(main())
