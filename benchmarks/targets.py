"""The rows of the table: what each measures, what it has to reach, and whether it did. Pure.

Owns the targets, as data. An engine that a target says nothing about is measured and shown without
a verdict. How a row is measured is the business of `benchmarks.rows`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["met", "missed", "no target", "not measured"]

KEPT = 1.6
"""Of a plain run: what a run may take that leaves a megabyte or a picture."""

CLAIM = 0.5
"""Of a pod's start: what a run may take that is spared one. Chosen: below that it is worth having
pods wait, which hold memory on a node."""

FLAT = 1.2
"""What "flat" and "linear" allow between a small and a large case. Medians of the same work differ
a little within one run of the benchmark; a cost that grew with what is configured would be
a multiple."""

CONTAINERS = ("podman", "docker")
LOCAL = (*CONTAINERS, "bubblewrap")
CLIENTS = (1, 5, 20)
"""How many clients of one user are measured at once."""

REMOTE = ("kubernetes",)
"""Where programs run on other machines; here these are this one, under other names."""

ENGINES = (*LOCAL, *REMOTE)


@dataclass(frozen=True, kw_only=True)
class Target:
    """Bounds of a figure and of its ratio to the floor; all that are given have to hold."""

    at_most: float | None = None
    at_least: float | None = None
    ratio_at_most: float | None = None
    ratio_at_least: float | None = None

    def text(self, unit: str) -> str:
        """Say it in the table's words."""
        space = f" {unit}" if unit else ""
        parts = [
            f"{sign} {limit:g}{what}"
            for sign, limit, what in (
                ("≤", self.at_most, space),
                ("≥", self.at_least, space),
                ("≤", self.ratio_at_most, " × floor"),
                ("≥", self.ratio_at_least, " × floor"),
            )
            if limit is not None
        ]
        return " and ".join(parts) or "–"

    def verdict(self, figure: float | None, ratio: float | None) -> Verdict:
        """Say whether a figure and its ratio are within the bounds.

        A bound on a ratio that could not be had counts as missed: nothing shows that it holds.
        """
        if figure is None:
            return "not measured"
        bounds = [
            (figure, self.at_most, 1),
            (figure, self.at_least, -1),
            (ratio, self.ratio_at_most, 1),
            (ratio, self.ratio_at_least, -1),
        ]
        asked = [(value, limit, sign) for value, limit, sign in bounds if limit is not None]
        if not asked:
            return "no target"
        held = all(
            value is not None and value * sign <= limit * sign for value, limit, sign in asked
        )
        return "met" if held else "missed"


NO_TARGET = Target()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table.

    Attributes:
        key: What `--only` takes.
        what: What is measured, for readers.
        unit: Of the figure and the floor.
        floor: What the figure is compared with.
        targets: By engine; "" stands for every engine of this machine that is not named.
        more_is_better: Whether a larger figure is the better one.
        host_only: Whether it is measured once, since no engine has a part in it.
        histogram: Whether its samples are drawn.
    """

    key: str
    what: str
    unit: str
    floor: str
    targets: Mapping[str, Target] = field(default_factory=dict)
    more_is_better: bool = False
    host_only: bool = False
    histogram: bool = False

    def target(self, engine: str) -> Target:
        """Return what it has to reach on an engine."""
        others = NO_TARGET if engine in REMOTE else self.targets.get("", NO_TARGET)
        return self.targets.get(engine, others)


def _everywhere(target: Target) -> Mapping[str, Target]:
    return {"": target}


_ONE_RUN = "the engine's own `run --rm`; bare bubblewrap; a bare pod until it runs"

ROWS = (
    Row(
        key="warm",
        what="run_python(1+1) through client and bridge, a second apart, p50",
        unit="ms",
        floor="no-op MCP call at the same moments",
        targets=_everywhere(Target(ratio_at_most=2.2)),
        histogram=True,
    ),
    Row(
        key="warm-home",
        what="the same, just after files changed in the home directory and in /tmp, p50",
        unit="ms",
        floor="with nothing changed",
        targets=_everywhere(Target(ratio_at_most=1.1)),
    ),
    Row(
        key="warm-cpu",
        what="a warm run: CPU of the bridge's own process, the start of the next sandbox included",
        unit="ms",
        floor="",
        targets=_everywhere(Target(at_most=3)),
    ),
    Row(
        key="back-to-back",
        what="run_python(1+1) back to back, the pool drained, p50",
        unit="ms",
        floor=_ONE_RUN,
        targets={"": Target(ratio_at_most=0.5), "bubblewrap": Target(at_most=60)},
        histogram=True,
    ),
    Row(
        key="first-line",
        what="first line of output at the host, p99",
        unit="ms",
        floor="no-op MCP call, p99",
        targets=_everywhere(Target(at_most=20)),
        histogram=True,
    ),
    Row(
        key="cold",
        what="run_python(1+1) with the pool off, p50",
        unit="ms",
        floor=_ONE_RUN,
        targets={"": Target(ratio_at_most=1.0), "bubblewrap": Target(at_most=60)},
        histogram=True,
    ),
    Row(
        key="call",
        what="tool call from the sandbox, one after another, p50",
        unit="ms",
        floor="the same call by the client",
        targets=_everywhere(Target(ratio_at_most=1.1)),
        histogram=True,
    ),
    Row(
        key="gather",
        what="200 gathered calls to a tool that sleeps 50 ms",
        unit="ms",
        floor="the same calls by the client",
        targets=_everywhere(Target(at_most=150)),
    ),
    Row(
        key="throughput",
        what="200 gathered calls to a tool that does not sleep",
        unit="calls/s",
        floor="the same calls by the client",
        targets=_everywhere(Target(ratio_at_least=0.9)),
        more_is_better=True,
    ),
    Row(
        key="sustained",
        what="one-shot runs, 8 at a time",
        unit="runs/s",
        floor="the engine's own create, start, wait, remove; bare bubblewrap; bare pods",
        targets={"podman": Target(ratio_at_least=0.8), "bubblewrap": Target(ratio_at_least=1.5)},
        more_is_better=True,
    ),
    Row(
        key="crowd",
        what="one-shot runs with 10 calls each, 64 at a time",
        unit="runs/s",
        floor="8 at a time",
        targets=_everywhere(Target(ratio_at_least=0.9)),
        more_is_better=True,
    ),
    Row(
        key="crowd-p99",
        what="the same: from a run's request to its result, p99",
        unit="ms",
        floor="64 runs at the rate of 8 at a time",
        targets=_everywhere(Target(ratio_at_most=1.5)),
    ),
    Row(
        key="crowd-memory",
        what="the same: growth of the bridge's memory at its peak, for each run that waits",
        unit="MB",
        floor="",
        targets=_everywhere(Target(at_most=1)),
    ),
    Row(
        key="result-time",
        what="50 MB result from a tool into the sandbox",
        unit="ms",
        floor="plain pipe copy of it",
        targets=_everywhere(Target(ratio_at_most=2)),
    ),
    Row(
        key="result-memory",
        what="50 MB result: growth of the bridge's memory at its peak",
        unit="MB",
        floor="size of the result",
        targets=_everywhere(Target(ratio_at_most=2.2)),
    ),
    Row(
        key="stdout-time",
        what="1 GB of stdout",
        unit="s",
        floor="python | head -c",
        targets=_everywhere(Target(ratio_at_most=1.3)),
    ),
    Row(
        key="stdout-memory",
        what="1 GB of stdout: growth of the bridge's memory at its peak",
        unit="MB",
        floor="",
        targets=_everywhere(Target(at_most=20)),
    ),
    Row(
        key="session-run",
        what="a further run_python(1+1) in a session, p50",
        unit="ms",
        floor="no-op MCP call at the same moments",
        targets=_everywhere(Target(ratio_at_most=3)),
    ),
    Row(
        key="checkpoint",
        what="from a session's result until its state, 1 MB, is on the disk, p50",
        unit="ms",
        floor="writing and flushing a file of that size",
        targets=_everywhere(Target(ratio_at_most=4)),
    ),
    Row(
        key="output-kept",
        what="run that prints 1 MB, which is kept, p50",
        unit="ms",
        floor="run_python(1+1) at the same moments",
        targets=_everywhere(Target(ratio_at_most=KEPT)),
    ),
    Row(
        key="file-out",
        what="run that leaves a file of 1 MB, p50",
        unit="ms",
        floor="run_python(1+1) at the same moments",
        targets=_everywhere(Target(ratio_at_most=KEPT)),
    ),
    Row(
        key="picture",
        what="run that shows a picture of 60 KB, p50",
        unit="ms",
        floor="run_python(1+1) at the same moments",
        targets=_everywhere(Target(ratio_at_most=KEPT)),
    ),
    Row(
        key="idle-cpu",
        what="idle with 4 warm sandboxes: CPU of one core",
        unit="%",
        floor="",
        targets=_everywhere(Target(at_most=1)),
    ),
    Row(
        key="idle-memory",
        what="idle with 4 warm sandboxes: memory of bridge and sandboxes",
        unit="MB",
        floor="",
    ),
    Row(
        key="idle-own",
        what="the same: memory of the bridge's own process",
        unit="MB",
        floor="",
        targets=_everywhere(Target(at_most=55)),
    ),
    Row(
        key="flat-servers",
        what="warm run that uses one server, of 200 configured",
        unit="ms",
        floor="of 1 configured",
        targets=_everywhere(Target(ratio_at_most=FLAT)),
        host_only=True,
    ),
    Row(
        key="flat-tools",
        what="warm run that uses one tool, of 5,000 of its server",
        unit="ms",
        floor="of 10",
        targets=_everywhere(Target(ratio_at_most=FLAT)),
        host_only=True,
    ),
    Row(
        key="gate",
        what="what the gate adds to a call: 200 rules, 20 secrets, audit, journal",
        unit="µs",
        floor="the same function called directly",
        targets=_everywhere(Target(at_most=100)),
        host_only=True,
        histogram=True,
    ),
    Row(
        key="gate-run",
        what="a call in a run of 200, with 200 rules, 20 secrets, audit",
        unit="ms",
        floor="without policy and audit",
        targets=_everywhere(Target(ratio_at_most=FLAT)),
        host_only=True,
    ),
    Row(
        key="linear-calls",
        what="a call's cost in a run of 2,000",
        unit="ms",
        floor="in a run of 200",
        targets=_everywhere(Target(ratio_at_most=FLAT)),
        host_only=True,
    ),
    Row(
        key="linear-bytes",
        what="a megabyte's cost in a result of 40 MB",
        unit="ms",
        floor="in a result of 4 MB",
        targets=_everywhere(Target(ratio_at_most=FLAT)),
        host_only=True,
    ),
    Row(
        key="packages",
        what="pandas, matplotlib and a first plot, as packages of a run, p50",
        unit="ms",
        floor="from a virtual environment with bytecode",
        targets={"bubblewrap": Target(ratio_at_most=1.15)},
    ),
    *(
        Row(
            key=f"clients-{count}",
            what=f"{count} clients with five servers: memory of all processes",
            unit="MB",
            floor="",
            host_only=True,
        )
        for count in CLIENTS
    ),
    Row(
        key="client-memory",
        what="a further client of a background bridge: memory",
        unit="MB",
        floor="",
        targets=_everywhere(Target(at_most=15)),
        host_only=True,
    ),
    Row(
        key="client-servers",
        what="the same: processes of servers",
        unit="",
        floor="",
        targets=_everywhere(Target(at_most=0)),
        host_only=True,
    ),
    Row(
        key="tools-list",
        what="the same: from the start of its process to the answer to `tools/list`, p50",
        unit="ms",
        floor="starting Python and importing the SDK's server",
        targets=_everywhere(Target(ratio_at_most=0.15)),
        host_only=True,
        histogram=True,
    ),
    Row(
        key="tools-list-cold",
        what="the same with cold caches, p50",
        unit="ms",
        floor="the import with cold caches",
        targets=_everywhere(Target(ratio_at_most=0.15)),
        host_only=True,
    ),
    Row(
        key="client-call",
        what="run with one call through a background bridge, p50",
        unit="ms",
        floor="with a bridge in the client's own process",
        targets=_everywhere(Target(ratio_at_most=1.05)),
        host_only=True,
    ),
    Row(
        key="client-result",
        what="run with a result of 50 MB through a background bridge, p50",
        unit="ms",
        floor="with a bridge in the client's own process",
        targets=_everywhere(Target(ratio_at_most=1.1)),
        host_only=True,
    ),
    Row(
        key="pod-waits",
        what="run_python(1+1) that finds a pod waiting, and no sandbox, p50",
        unit="ms",
        floor="a bare pod until it runs",
        targets={"kubernetes": Target(ratio_at_most=CLAIM)},
    ),
    Row(
        key="message",
        what="100 bytes to a program on another machine and back, p50",
        unit="ms",
        floor="the same through a bare attach stream; on local podman",
    ),
    Row(
        key="nodes",
        what="one-shot runs on two nodes, 8 at a time",
        unit="runs/s",
        floor="on one node",
        more_is_better=True,
    ),
    Row(
        key="streams",
        what="memory of the bridge's own process with 50 sessions in pods",
        unit="MB",
        floor="with one",
    ),
)

BY_KEY: Mapping[str, Row] = {row.key: row for row in ROWS}
