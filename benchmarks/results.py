"""What one run of the benchmark found, and the file that keeps it.

Owns the schema of `results.json`. The file names no host, no user and no path, so that it can be
shown to anybody.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from benchmarks.figures import Summary, kept, median, ratio, rounded, summary
from benchmarks.targets import BY_KEY, Verdict

FORMAT = "mcp-code-bridge benchmark"
VERSION = 1

MAX_BYTES = 4 * 1024 * 1024
"""Of a file to be read; ours have about a fiftieth of it."""


class ResultsError(Exception):
    """A results file cannot be used; the text says what to do about it."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """One row on one engine.

    Attributes:
        row: Key of the row.
        engine: Empty where no engine has a part in it.
        samples: What the figure is made from, in its unit; empty when it is one measurement.
        detail: What a reader should know beside the figure.
        unavailable: Why there is no figure.
    """

    row: str
    engine: str = ""
    figure: float | None = None
    floor: float | None = None
    samples: tuple[float, ...] = ()
    floor_samples: tuple[float, ...] = ()
    detail: str = ""
    unavailable: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times the floor the figure is."""
        return ratio(self.figure, self.floor)

    @property
    def verdict(self) -> Verdict:
        """Whether the row's target was reached."""
        return BY_KEY[self.row].target(self.engine).verdict(self.figure, self.ratio)

    @property
    def summary(self) -> Summary | None:
        """What the samples come to."""
        return summary(self.samples)


def compare_medians(
    row: str,
    figures: Sequence[float],
    floors: Sequence[float],
    *,
    engine: str = "",
    detail: str = "",
) -> Measurement:
    """Return the measurement whose figure and floor are the medians of these samples."""
    return Measurement(
        row=row,
        engine=engine,
        figure=median(figures),
        floor=median(floors),
        samples=tuple(figures),
        floor_samples=tuple(floors),
        detail=detail,
    )


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the figures were taken on.

    Attributes:
        load_before, load_after: The one-minute load averages.
    """

    cores: int
    memory_mb: int
    kernel: str
    cpu: str
    python: str
    mcp: str
    load_before: float = 0.0
    load_after: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Results:
    """One run of the benchmark.

    Attributes:
        quick: Whether it took few samples; then it shows that things work, not how fast they are.
        engines: Version by engine measured.
        skipped: Reason by engine that was not.
    """

    machine: Machine
    commit: str
    taken: str
    quick: bool
    engines: Mapping[str, str] = field(default_factory=dict)
    skipped: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[Measurement, ...] = ()

    def find(self, row: str, engine: str) -> Measurement | None:
        """Return one measurement, if it was made."""
        for one in self.rows:
            if (one.row, one.engine) == (row, engine):
                return one
        return None


def joined(first: Results, second: Results) -> Results:
    """Return results with the further rows of a second measurement."""
    return replace(
        first,
        machine=replace(first.machine, load_after=second.machine.load_after),
        quick=first.quick or second.quick,
        engines={**first.engines, **second.engines},
        skipped={**first.skipped, **second.skipped},
        rows=(*first.rows, *second.rows),
    )


@dataclass(frozen=True, kw_only=True)
class _File:
    format: str
    version: int
    machine: Machine
    commit: str
    taken: str
    quick: bool
    engines: Mapping[str, str]
    skipped: Mapping[str, str]
    rows: Sequence[Mapping[str, Any]]


_FILE = TypeAdapter(_File)
_ROW = TypeAdapter(Measurement)


def dumped(results: Results) -> str:
    """Return the text of a results file: one line per measurement, so that two can be diffed."""
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(results)}
    head.pop("rows")
    lines = [_line(one) for one in results.rows]
    start = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
    body = ",\n".join(f"  {line}" for line in lines)
    return f'{start},\n "rows": [\n{body}\n ]\n}}\n'


def _line(one: Measurement) -> str:
    found = one.summary
    value: dict[str, Any] = {
        "row": one.row,
        "engine": one.engine,
        "figure": None if one.figure is None else rounded(one.figure),
        "floor": None if one.floor is None else rounded(one.floor),
        "ratio": None if one.ratio is None else rounded(one.ratio),
        "verdict": one.verdict,
        "detail": one.detail,
        "unavailable": one.unavailable,
        "summary": None if found is None else asdict(found),
        "samples": kept(one.samples),
        "floor_samples": kept(one.floor_samples),
    }
    slim = {name: item for name, item in value.items() if item not in (None, "", [])}
    return json.dumps(slim, ensure_ascii=False, separators=(",", ":"))


def parsed(text: str, name: str) -> Results:
    """Return the results that a file's text holds.

    Args:
        name: What to call the file in errors.

    Raises:
        ResultsError: It is no results file, or one of another version.
    """
    again = "Make one with `make bench`."
    try:
        data = json.loads(text)
    except ValueError as error:
        message = f"{name} is not JSON ({error}). {again}"
        raise ResultsError(message) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        message = f"{name} is not a results file of this benchmark. {again}"
        raise ResultsError(message)
    if data.get("version") != VERSION:
        message = (
            f"{name} has version {data.get('version')!r:.40} of the format, and this reads "
            f"version {VERSION}. Measure that commit again with this benchmark."
        )
        raise ResultsError(message)
    try:
        file = _FILE.validate_python(data)
        rows = tuple(_measurement(row) for row in file.rows)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"{name} is damaged: {where}: {first['msg']}. {again}"
        raise ResultsError(message) from None
    return Results(
        machine=file.machine,
        commit=file.commit,
        taken=file.taken,
        quick=file.quick,
        engines=file.engines,
        skipped=file.skipped,
        # A row that this benchmark no longer has cannot be judged.
        rows=tuple(row for row in rows if row.row in BY_KEY),
    )


def _measurement(row: Mapping[str, Any]) -> Measurement:
    # What follows from the rest is written for readers and worked out again here.
    derived = ("ratio", "verdict", "summary")
    return _ROW.validate_python({key: row[key] for key in row if key not in derived})


def load(path: Path) -> Results:
    """Read a results file.

    Raises:
        ResultsError: It cannot be read, or is not one.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            message = f"{path} is larger than any results file. Name one that `make bench` wrote."
            raise ResultsError(message)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        message = f"There is no {path}. Make one with `make bench`, or name another."
        raise ResultsError(message) from None
    except (OSError, UnicodeDecodeError) as error:
        message = f"{path} cannot be read: {error}. Name a file that `make bench` wrote."
        raise ResultsError(message) from None
    return parsed(text, str(path))
