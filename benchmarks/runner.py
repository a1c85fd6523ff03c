"""One run of the benchmark: which groups of rows, on which engines, in what order."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

import anyio

from benchmarks import background, machine
from benchmarks.bench import Bench, Group
from benchmarks.engines import Engine
from benchmarks.results import Measurement, Results
from benchmarks.rows import (
    bulk,
    calls,
    data,
    flat,
    gate,
    idle,
    kept,
    latency,
    rates,
    remote,
    starts,
)
from benchmarks.targets import BY_KEY, CLIENTS, ENGINES, LOCAL, REMOTE

GROUP_SECONDS = 300
"""For one group on one engine; the longest takes two minutes. What is stuck does not keep the rest
from being measured."""

GROUPS = (
    Group(
        keys=("warm", "warm-cpu", "first-line"),
        measure=latency.both,
        apart=(
            Group(keys=("warm", "warm-cpu"), measure=latency.warm),
            Group(keys=("first-line",), measure=latency.first_line),
        ),
    ),
    Group(keys=("warm", "warm-cpu"), measure=latency.warm, engines=REMOTE),
    Group(keys=("warm-home",), measure=latency.home),
    Group(keys=("back-to-back",), measure=starts.back_to_back),
    Group(keys=("cold",), measure=starts.cold, engines=ENGINES),
    Group(keys=("call",), measure=calls.sequential, engines=ENGINES),
    Group(keys=("gather", "throughput"), measure=calls.gathered),
    Group(keys=("sustained",), measure=rates.sustained, engines=LOCAL),
    Group(keys=("sustained", "nodes"), measure=remote.nodes, engines=("kubernetes",)),
    Group(keys=("crowd", "crowd-p99", "crowd-memory"), measure=rates.crowded),
    Group(keys=("result-time", "result-memory"), measure=bulk.result),
    Group(keys=("stdout-time", "stdout-memory"), measure=bulk.stdout),
    Group(keys=("session-run",), measure=kept.session_run),
    Group(keys=("checkpoint",), measure=kept.checkpoint),
    Group(keys=("output-kept", "file-out", "picture"), measure=kept.left),
    Group(keys=("packages",), measure=data.imports, engines=("bubblewrap",)),
    Group(keys=("idle-cpu", "idle-memory", "idle-own"), measure=idle.idle),
    Group(keys=("flat-servers",), measure=flat.servers),
    Group(keys=("flat-tools",), measure=flat.tools),
    Group(keys=("gate",), measure=gate.added),
    Group(keys=("gate-run",), measure=gate.in_runs),
    Group(keys=("linear-calls",), measure=calls.linear),
    Group(keys=("linear-bytes",), measure=bulk.linear),
    *(
        Group(keys=(f"clients-{count}",), measure=partial(background.side_by_side, count=count))
        for count in CLIENTS
    ),
    Group(
        keys=("client-memory", "client-servers", "tools-list", "tools-list-cold"),
        measure=background.further,
    ),
    Group(keys=("client-call", "client-result"), measure=background.through),
    Group(keys=("pod-waits",), measure=remote.pod_waits, engines=("kubernetes",)),
    Group(keys=("message",), measure=remote.message, engines=REMOTE),
    Group(keys=("streams",), measure=remote.streams, engines=("kubernetes",)),
)

HOST_ENGINES = ("bubblewrap", "podman", "docker")
"""Where rows are measured in which no engine has a part: the first of these that works, for it is
the one with the least of its own in the figures."""


def chosen(only: Sequence[str] | None) -> tuple[Group, ...]:
    """Return the groups that measure the rows asked for; all of them when none is."""
    if not only:
        return GROUPS
    found: list[Group] = []
    for group in GROUPS:
        smaller = group.apart if set(group.keys) - set(only) else ()
        found += [part for part in smaller or (group,) if set(part.keys) & set(only)]
    return tuple(found)


def is_measured(engine: str, only: Sequence[str] | None) -> bool:
    """Tell whether any of the rows asked for is measured on an engine."""
    return any(engine in group.engines for group in chosen(only))


def results(
    bench: Bench,
    engines: Mapping[str, Engine],
    skipped: Mapping[str, str],
    only: Sequence[str] | None = None,
) -> Results:
    """Measure rows on every engine, all of them unless some are named."""
    here = machine.machine()
    taken = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    rows = anyio.run(measure, bench, engines, only)
    return Results(
        machine=replace(here, load_after=machine.machine().load_before),
        commit=machine.commit(),
        taken=taken,
        quick=bench.quick,
        engines={name: engine.version for name, engine in engines.items()},
        skipped=skipped,
        rows=rows,
    )


async def measure(
    bench: Bench, engines: Mapping[str, Engine], only: Sequence[str] | None = None
) -> tuple[Measurement, ...]:
    """Measure on every engine, one after the other, so that none disturbs another."""
    groups = chosen(only)
    found: list[Measurement] = []
    for engine in engines.values():
        for group in groups:
            if not _on_host(group) and engine.name in group.engines:
                found += await _guarded(bench, engine, group)
    host = next((engines[name] for name in HOST_ENGINES if name in engines), None)
    for group in groups:
        if host is not None and _on_host(group):
            found += await _guarded(bench, host, group)
    return tuple(one for one in found if not only or one.row in only)


def _on_host(group: Group) -> bool:
    return BY_KEY[group.keys[0]].host_only


async def _guarded(bench: Bench, engine: Engine, group: Group) -> list[Measurement]:
    """Measure one group; whatever goes wrong with it is said in its rows."""
    started = time.monotonic()
    name = "" if _on_host(group) else engine.name
    try:
        with anyio.fail_after(GROUP_SECONDS):
            measured = await group.measure(bench, engine)
    except TimeoutError:
        measured = _absent(group, name, f"it took longer than {GROUP_SECONDS} s")
    except Exception as error:
        # A named boundary: one row that cannot be measured must not cost the others.
        measured = _absent(group, name, reason(error))
    taken = time.monotonic() - started
    said = ", ".join(group.keys)
    print(f"  {engine.name}: {said}: {taken:.0f} s", file=sys.stderr, flush=True)
    return measured


def _absent(group: Group, engine: str, why: str) -> list[Measurement]:
    return [Measurement(row=key, engine=engine, unavailable=why) for key in group.keys]


def reason(error: BaseException) -> str:
    """Return one line on what went wrong, from inside whatever it is wrapped in."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = " ".join(str(error).split())
    return text[:300] if text else type(error).__name__
