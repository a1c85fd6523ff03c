"""Measure, print the table, keep the results. See `python -m benchmarks --help`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

import anyio

from benchmarks import fleet, options, peer, pictures, runner, table
from benchmarks.bench import Bench, BenchmarkError
from benchmarks.cluster import cluster_engine
from benchmarks.engines import Engine, find_all
from benchmarks.results import Results, ResultsError, dumped, joined
from benchmarks.targets import ENGINES, LOCAL, ROWS


def main() -> int:
    """Do what the command line asks for; return the exit status."""
    asked = options.parsed()
    if asked.list:
        print(listed())
        return 0
    # A short directory: sockets lie in it, whose paths may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mcb.", dir="/tmp") as directory:
        bench = Bench(directory=Path(directory), quick=asked.quick)
        try:
            if asked.peer is not None:
                return beside_peer(bench, asked)
            results = measured(bench, asked)
        except BenchmarkError as error:
            print(error, file=sys.stderr)
            return 2
    print(table.terminal(results))
    asked.results.write_text(dumped(results), encoding="utf-8")
    drawn = pictures.write(results, options.OUT)
    print(f"\nWritten: {asked.results}, and {len(drawn)} histograms in {options.OUT}")
    return 0


def measured(bench: Bench, asked: argparse.Namespace) -> Results:
    """Measure the rows asked for on the engines asked for, on all that work if none are.

    Raises:
        BenchmarkError: No engine can be measured, or not all that are named.
    """
    names = asked.engine or [name for name in ENGINES if runner.is_measured(name, asked.only)]
    on_cluster = "kubernetes" in names and not fleet.is_inside()
    parts: list[Results] = []
    with ExitStack() as stack:
        engines, skipped = opened(names, bench.directory, stack)
        if on_cluster and not (asked.engine or fleet.is_built()):
            on_cluster, skipped["kubernetes"] = False, fleet.NOT_BUILT
        if not (engines or on_cluster) or (asked.engine and skipped):
            raise refusal(skipped)
        if engines:
            parts.append(runner.results(bench, engines, skipped, asked.only))
    if on_cluster:
        try:
            parts.append(fleet.measured(bench.directory, quick=bench.quick, only=asked.only))
        except (BenchmarkError, ResultsError) as error:
            reason = {"kubernetes": str(error)}
            if asked.engine or not parts:
                raise refusal(reason) from error
            parts[0] = replace(parts[0], skipped={**parts[0].skipped, **reason})
    return reduce(joined, parts)


def opened(
    names: list[str], directory: Path, stack: ExitStack
) -> tuple[dict[str, Engine], dict[str, str]]:
    """Return the engines that work from this process, and why others do not."""
    engines, skipped = find_all(tuple(name for name in LOCAL if name in names))
    if "kubernetes" in names and fleet.is_inside():
        engines["kubernetes"] = stack.enter_context(cluster_engine(directory))
    return engines, skipped


def beside_peer(bench: Bench, asked: argparse.Namespace) -> int:
    """Measure another bridge beside this one, on the first engine; return the exit status."""
    with ExitStack() as stack:
        engines, skipped = opened(asked.engine or [*LOCAL], bench.directory, stack)
        if not engines or (asked.engine and skipped):
            raise refusal(skipped)
        return anyio.run(partial(peer.measure, bench, next(iter(engines.values())), asked))


def refusal(skipped: dict[str, str]) -> BenchmarkError:
    """Return the error of a run without engines."""
    lines = [f"{name} cannot be measured: {reason}" for name, reason in skipped.items()]
    lines.append("`make bench` starts the engines first; --engine names others.")
    return BenchmarkError("\n".join(lines))


def listed() -> str:
    """Return the rows, a line each: name, what it measures, target."""
    lines = []
    for row in ROWS:
        targets = dict.fromkeys(row.target(engine).text(row.unit) for engine in ENGINES)
        said = [text for text in targets if text != "–"]
        lines.append((row.key, row.what, "; ".join(said) or "–"))
    return "\n".join(table.columns([("row", "what", "target"), *lines]))


if __name__ == "__main__":
    sys.exit(main())
