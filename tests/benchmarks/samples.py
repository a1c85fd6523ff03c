"""Results as the benchmark makes them, with made-up figures."""

from __future__ import annotations

from typing import Any

from benchmarks.results import Machine, Measurement, Results

MACHINE = Machine(
    cores=2,
    memory_mb=8000,
    kernel="6.1.0",
    cpu="Some Processor",
    python="3.11.7",
    mcp="2.3.0",
    load_before=0.1,
    load_after=0.4,
)


def results(*rows: Measurement, **changes: Any) -> Results:
    values: dict[str, Any] = {
        "machine": MACHINE,
        "commit": "abc1234",
        "taken": "2026-01-02 03:04 UTC",
        "quick": False,
        "engines": {"podman": "4.3.1"},
        **changes,
    }
    return Results(rows=rows, **values)


def warm(figure: float | None = 4.0, floor: float | None = 2.0, **more: Any) -> Measurement:
    return Measurement(row="warm", engine="podman", figure=figure, floor=floor, **more)
