"""The histograms of a run, as files."""

from __future__ import annotations

from pathlib import Path

from benchmarks.histogram import Panel, histogram
from benchmarks.results import Results
from benchmarks.targets import ROWS, Row


def drawings(results: Results) -> dict[str, str]:
    """Return the SVG of each row that is drawn and was measured, by file name."""
    return {
        f"{row.key}.svg": histogram(title(row), row.unit, row.floor, panels)
        for row in ROWS
        if row.histogram and (panels := _panels(results, row))
    }


def title(row: Row) -> str:
    """Return what is drawn: all samples, not the quantile that the table shows."""
    return row.what.removesuffix(", p50").removesuffix(", p99")


def _panels(results: Results, row: Row) -> list[Panel]:
    return [
        Panel(label=one.engine or "bridge", samples=one.samples, floor_samples=one.floor_samples)
        for one in results.rows
        if one.row == row.key and one.samples
    ]


def write(results: Results, directory: Path) -> list[Path]:
    """Write the drawings; return their files."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in drawings(results).items():
        path = directory / name
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written
