"""Compare two results files; end with 1 when something got worse.

python -m benchmarks.compare OLD [NEW]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.comparison import NOISE, compare, doubts, regressions
from benchmarks.options import RESULTS
from benchmarks.results import ResultsError, load
from benchmarks.table import compared


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison; return 0, 1 for regressions, 2 for files that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("old", type=Path, help="a results file from before")
    parser.add_argument(
        "new", type=Path, nargs="?", default=RESULTS, help="default: the last run's"
    )
    parser.add_argument(
        "--noise", type=float, default=NOISE, help="what may differ without meaning (%(default)s)"
    )
    asked = parser.parse_args(arguments)
    try:
        old, new = load(asked.old), load(asked.new)
    except ResultsError as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        return 2
    lines = compare(old, new, asked.noise)
    print(f"old: {old.commit}, {old.taken}\nnew: {new.commit}, {new.taken}\n")
    print(compared(lines) if lines else "The two have no row in common.")
    for doubt in doubts(old, new):
        print(f"\nCaution: {doubt}")
    worse = regressions(lines)
    print(f"\n{len(worse)} worse by more than {asked.noise:.0%}.")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
