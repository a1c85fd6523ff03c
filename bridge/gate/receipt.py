"""The receipt of a run: what it called, and what of that stays out of the conversation. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bridge.gate.pipeline import Gate
from bridge.gate.services import RunContext
from bridge.model import Receipt, RunResult

Measure = Callable[[RunResult], int]
"""Returns how many bytes of a result go to the model."""


BYTES_PER_TOKEN = 4
"""Of English and of JSON, about, for all the models whose tokenisers are public."""


def accounted(result: RunResult, gate: Gate, run: RunContext, measure: Measure) -> RunResult:
    """Return a result with the outcome of its run's calls, and its receipt."""
    tally = gate.tally
    return replace(
        result,
        replayed=tally.replayed,
        unused=() if run.context.replay is None else run.context.replay.unused(),
        refused=tally.refused,
        unknown=tally.unknown,
        receipt=receipt_of(result, gate, run, measure),
    )


def receipt_of(result: RunResult, gate: Gate, run: RunContext, measure: Measure) -> Receipt:
    """Return what a run did, and what of it stays out of the conversation."""
    tally, waiting = gate.tally, run.caller.clock.stood * 1000
    calls_ms = max(0.0, tally.busy_seconds * 1000)
    holding = run.context.holding
    # Once only: the run's value is written as JSON to be counted.
    returned = measure(result)
    return Receipt(
        calls=dict(tally.made),
        changing=tally.changing,
        replayed=sum(found.count for found in tally.replayed),
        held=0 if holding is None else holding.count,
        refused=sum(found.count for found in tally.refused),
        unknown=sum(found.count for found in tally.unknown),
        result_bytes=gate.result_bytes,
        returned_bytes=returned,
        tokens_kept=max(0, result.usage.tool_result_bytes - returned) // BYTES_PER_TOKEN,
        code_ms=max(0, round(result.usage.wall_ms - calls_ms - waiting)),
        calls_ms=round(calls_ms),
        waiting_ms=round(waiting),
        audit=run.context.audit.head,
    )
