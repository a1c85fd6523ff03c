"""The table, for terminals and for documents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.comparison import Line
from benchmarks.figures import shown
from benchmarks.results import Measurement, Results
from benchmarks.targets import BY_KEY, ROWS

HEAD = ("what", "engine", "target", "figure", "floor", "ratio", "")

_MARKS = {"met": "met", "missed": "MISSED", "no target": "–", "not measured": "not measured"}


def ordered(rows: Iterable[Measurement]) -> list[Measurement]:
    """Return measurements in the table's order: by row, then as they were measured."""
    places = {row.key: place for place, row in enumerate(ROWS)}
    return sorted(rows, key=lambda one: places[one.row])


def cells(one: Measurement) -> tuple[str, ...]:
    """Return a measurement's texts, one for each of `HEAD`."""
    row = BY_KEY[one.row]
    return (
        row.what,
        one.engine or "any",
        row.target(one.engine).text(row.unit),
        shown(one.figure, row.unit),
        shown(one.floor, row.unit),
        "–" if one.ratio is None else f"{one.ratio:.2f}",
        _MARKS[one.verdict],
    )


def terminal(results: Results) -> str:
    """Return the whole report of a run, for a terminal."""
    lines = [machine_line(results), ""]
    body = [cells(one) for one in ordered(results.rows)]
    lines += columns([HEAD, *body])
    notes = _notes(results)
    lines += ["", *notes] if notes else []
    for engine, reason in results.skipped.items():
        lines.append(f"{engine} was skipped: {reason}")
    lines += ["", counted(results)]
    return "\n".join(lines)


def counted(results: Results) -> str:
    """Return how many targets were met."""
    verdicts = [one.verdict for one in results.rows]
    text = f"Targets met: {verdicts.count('met')}; missed: {verdicts.count('missed')}"
    absent = verdicts.count("not measured")
    text += f"; not measured: {absent}" if absent else ""
    return f"{text}. --quick: it shows what works, not how fast." if results.quick else f"{text}."


def machine_line(results: Results) -> str:
    """Return one line on what the figures were taken on."""
    machine = results.machine
    engines = ", ".join(f"{name} {version}" for name, version in results.engines.items())
    return (
        f"{machine.cpu}, {machine.cores} cores, {machine.memory_mb:,} MB, Linux {machine.kernel}, "
        f"Python {machine.python}, mcp {machine.mcp}; {engines or 'no engine'}; "
        f"load {machine.load_before:.1f} before and {machine.load_after:.1f} after; "
        f"commit {results.commit}, {results.taken}"
    )


def _notes(results: Results) -> list[str]:
    found = []
    for one in ordered(results.rows):
        text = one.unavailable or one.detail
        if text:
            place = f" on {one.engine}" if one.engine else ""
            kind = "not available: " if one.unavailable else ""
            found.append(f"{one.row}{place}: {kind}{text}")
    return found


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of texts as lines whose columns stand below each other."""
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def markdown(results: Results) -> str:
    """Return the table for a document."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    before = ""
    for one in ordered(results.rows):
        what, *rest = (text.replace("|", "\\|") for text in cells(one))
        # A row's name stands once, above its engines.
        lines.append(f"| {'' if one.row == before else what} | " + " | ".join(rest) + " |")
        before = one.row
    notes = _notes(results)
    return "\n".join([*lines, "", *(f"- {note}" for note in notes)]).rstrip()


def compared(lines: Sequence[Line]) -> str:
    """Return a comparison, for a terminal."""
    rows = [("row", "engine", "by", "old", "new", "change", "")]
    for line in lines:
        by = "ratio" if line.by_ratio else BY_KEY[line.row].unit
        factor = "" if line.factor is None else f"{line.factor - 1:+.0%}"
        old, new = ("–" if value is None else f"{value:,.2f}" for value in (line.old, line.new))
        mark = {"worse": "WORSE", "same": ""}.get(line.change, line.change)
        rows.append((line.row, line.engine or "any", by, old, new, factor, mark))
    return "\n".join(columns(rows))
