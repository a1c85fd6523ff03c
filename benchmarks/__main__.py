"""Measure, print the table, keep the results. See `python -m benchmarks --help`."""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import anyio

from benchmarks import options, peer, pictures, runner, table
from benchmarks.bench import Bench
from benchmarks.engines import find_all
from benchmarks.results import dumped
from benchmarks.targets import ENGINES, ROWS


def main() -> int:
    """Do what the command line asks for; return the exit status."""
    asked = options.parsed()
    if asked.list:
        print(listed())
        return 0
    names = tuple(dict.fromkeys(asked.engine or ENGINES))
    engines, skipped = find_all(names)
    if not engines or (asked.engine and skipped):
        for name, reason in skipped.items():
            print(f"{name} cannot be measured: {reason}", file=sys.stderr)
        print("`make bench` starts the engines first; --engine names others.", file=sys.stderr)
        return 2
    # A short directory: sockets lie in it, whose paths may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mcb.", dir="/tmp") as directory:
        bench = Bench(directory=Path(directory), quick=asked.quick)
        if asked.peer is not None:
            return anyio.run(partial(peer.measure, bench, next(iter(engines.values())), asked))
        results = runner.results(bench, engines, skipped, asked.only)
    print(table.terminal(results))
    asked.results.write_text(dumped(results), encoding="utf-8")
    drawn = pictures.write(results, options.OUT)
    print(f"\nWritten: {asked.results}, and {len(drawn)} histograms in {options.OUT}")
    return 0


def listed() -> str:
    """Return the rows, a line each: name, what it measures, target."""
    lines = []
    for row in ROWS:
        targets = dict.fromkeys(row.target(engine).text(row.unit) for engine in ENGINES)
        lines.append((row.key, row.what, "; ".join(targets)))
    return "\n".join(table.columns([("row", "what", "target"), *lines]))


if __name__ == "__main__":
    sys.exit(main())
