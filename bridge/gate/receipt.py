"""The receipt of a run: its calls, and how much of them stays out of the conversation. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bridge.gate.pipeline import Gate
from bridge.gate.services import RunContext
from bridge.model import Receipt, RunResult

Measure = Callable[[RunResult], int]  # Returns how many bytes of a result go to the model.

BYTES_PER_TOKEN = 4  # Of English and of JSON, about, for all models with public tokenisers.


def accounted(result: RunResult, gate: Gate | None, run: RunContext, measure: Measure) -> RunResult:
    replay = run.context.replay
    unused = () if replay is None else replay.unused()
    result = replace(result, receipt=receipt_of(result, gate, run, measure), unused=unused)
    if gate is None:
        return result
    tally = gate.tally
    return replace(result, replayed=tally.replayed, refused=tally.refused, unknown=tally.unknown)


def receipt_of(result: RunResult, gate: Gate | None, run: RunContext, measure: Measure) -> Receipt:
    """Return what a run did, and how much of that stays out of the conversation."""
    waiting, context = run.caller.clock.stopped_seconds * 1000, run.context
    # Once only: the run's value is written as JSON to be counted.
    returned = measure(result)
    receipt = Receipt(
        held=0 if context.held_calls is None else context.held_calls.count,
        returned_bytes=returned,
        tokens_kept=max(0, result.usage.tool_result_bytes - returned) // BYTES_PER_TOKEN,
        code_ms=max(0, round(result.usage.wall_ms - waiting)),
        waiting_ms=round(waiting),
        audit=context.audit.head,
        masked=tuple(context.marks.names),
        unsent=result.unsent,
    )
    if gate is None:
        return receipt
    tally = gate.tally
    calls_ms = max(0.0, tally.busy_seconds * 1000)
    return replace(
        receipt,
        calls=dict(tally.made),
        changing=tally.changing,
        replayed=sum(each.count for each in tally.replayed),
        refused=sum(each.count for each in tally.refused),
        unknown=sum(each.count for each in tally.unknown),
        result_bytes=gate.result_bytes,
        code_ms=max(0, round(result.usage.wall_ms - calls_ms - waiting)),
        calls_ms=round(calls_ms),
    )
