"""What a process reports: numbers in Prometheus' text format, and the run that a log line is of."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from math import inf
from threading import Lock

SERIES = 500  # Of one metric, since Prometheus has each in memory. Others count as "others".

_lock = Lock()  # The store counts in threads.


@dataclass(eq=False)
class Metric:
    """A histogram if it has buckets (upper bounds), a counter if its name says so, or a gauge."""

    name: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    _series: dict[tuple[str, ...], list[float]] = field(default_factory=dict)

    def add(self, *values: str, amount: float = 1.0) -> None:
        """Add an amount to the series with these values of the labels."""
        with _lock:
            if values not in self._series and len(self._series) >= SERIES:
                values = ("others",) * len(values)
            series = self._series.setdefault(values, [0.0] * (len(self.buckets) + 2))
            series[0] += amount
            for place, bound in enumerate((*self.buckets, inf), 1):
                series[place] += amount <= bound

    def lines(self) -> Iterator[str]:
        name, counter = f"mcp_code_bridge_{self.name}", self.name.endswith("_total")
        kind = "histogram" if self.buckets else "counter" if counter else "gauge"
        yield f"# HELP {name} {self.text}\n# TYPE {name} {kind}\n"
        with _lock:
            found = [(values, list(series)) for values, series in self._series.items()]
        for values, (total, *counts) in found:
            labels = dict(zip(self.labels, values, strict=True))
            if not self.buckets:
                yield _sample(name, labels, total)
                continue
            for bound, count in zip((*map(str, self.buckets), "+Inf"), counts, strict=True):
                yield _sample(f"{name}_bucket", {**labels, "le": bound}, count)
            yield _sample(f"{name}_sum", labels, total) + _sample(
                f"{name}_count", labels, counts[-1]
            )


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    escapes = {ord("\\"): r"\\", ord('"'): r"\"", ord("\n"): r"\n"}
    pairs = ",".join(f'{key}="{text.translate(escapes)}"' for key, text in labels.items())
    return f"{name}{{{pairs}}} {value}\n" if pairs else f"{name} {value}\n"


RUNS = Metric("runs_total", "Ended runs and applied plans.", ("status", "reason"))
RUN = Metric("run_seconds", "Time of a run.", buckets=(0.1, 0.5, 1, 5, 30, 120, 600))
QUEUE = Metric("queue_seconds", "Wait for a run's slot.", buckets=(0.1, 1, 5, 15, 30, 60))
START = Metric("sandbox_start_seconds", "Start of a sandbox.", ("warm",), (0.1, 0.3, 1, 3, 10, 30))
CALLS = Metric("calls_total", "Calls of programs to servers.", ("server", "outcome"))
STORE = Metric("store_seconds", "Answers of a shared store.", (), (0.005, 0.02, 0.1, 0.5, 2, 10))


def exposition(gauges: Mapping[str, tuple[str, float]]) -> str:
    """Return all metrics as text; gauges are names, each with its explanation and value."""
    metrics = [RUNS, RUN, QUEUE, START, CALLS, STORE]
    metrics += [
        Metric(name, text, _series={(): [value, 0.0]}) for name, (text, value) in gauges.items()
    ]
    return "".join(line for metric in metrics for line in metric.lines())


LOG_FACTS: ContextVar[ChainMap[str, str]] = ContextVar("facts", default=ChainMap())  # noqa: B039 - never changed


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
