"""What a process reports: numbers in Prometheus' text format, and the run that a log line is of."""

from __future__ import annotations

from collections import ChainMap, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock

METRICS: dict[str, tuple[str, tuple[float, ...]]] = {
    "runs_total": ("Ended runs and applied plans.", ()),
    "run_seconds": ("Time of a run.", (0.1, 0.5, 1, 5, 30, 120, 600)),
    "queue_seconds": ("Wait for a run's slot.", (0.1, 1, 5, 15, 30, 60)),
    "sandbox_start_seconds": ("Start of a sandbox.", (0.1, 0.3, 1, 3, 10, 30)),
    "calls_total": ("Calls of programs to servers.", ()),
    "store_seconds": ("Wait for an answer of a shared store.", (0.005, 0.02, 0.1, 0.5, 2, 10)),
}
"""Counters, and histograms with the bounds of their buckets."""

_samples: dict[str, dict[str, float]] = {name: defaultdict(float) for name in METRICS}
_lock = Lock()  # The store counts in threads.
_ESCAPES = {ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n"}


def count(name: str, amount: float = 1.0, **labels: str) -> None:
    """Add an amount to a counter, or one observation to a histogram; labels have few values."""
    pairs = [f'{key}="{text.translate(_ESCAPES)}"' for key, text in labels.items()]
    bounds, samples, braced = METRICS[name][1], _samples[name], f"{{{','.join(pairs)}}}"
    with _lock:
        for bound in (*map(str, bounds), "+Inf") if bounds else ():
            label = ",".join([*pairs, f'le="{bound}"'])
            samples[f"{name}_bucket{{{label}}}"] += amount <= float(bound)
        if bounds:
            samples[f"{name}_count{braced}"] += 1
        samples[f"{name}_sum{braced}" if bounds else name + braced] += amount


# Prometheus sees no increase from nothing to one.
count("runs_total", 0.0, status="error", reason="engine")


def exposition(gauges: Mapping[str, tuple[str, float]]) -> str:
    """Return all metrics as text; gauges have a description and a value."""
    told = [(name, "gauge", text, {name: value}) for name, (text, value) in gauges.items()]
    with _lock:
        for name, (text, bounds) in METRICS.items():
            told.append((name, "histogram" if bounds else "counter", text, {**_samples[name]}))
    lines = []
    for name, kind, text, samples in told:
        lines += [f"# HELP mcp_code_bridge_{name} {text}", f"# TYPE mcp_code_bridge_{name} {kind}"]
        lines += [f"mcp_code_bridge_{sample} {value}" for sample, value in samples.items()]
    return "\n".join([*lines, ""])


LOG_FACTS: ContextVar[ChainMap[str, str]] = ContextVar("facts", default=ChainMap())  # noqa: B039


@contextmanager
def logged_as(**facts: str) -> Iterator[None]:
    """Give the log lines of this context these facts too."""
    token = LOG_FACTS.set(LOG_FACTS.get().new_child(facts))
    try:
        yield
    finally:
        # A server or sandbox that a run starts has a copy of the context, and outlives the run.
        facts.clear()
        LOG_FACTS.reset(token)
