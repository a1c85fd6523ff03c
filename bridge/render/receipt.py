"""Renders the outcome of a run's calls, and the bytes kept from the model, as lines.

Owns the wording and the sums. "Kept out of the conversation" is what the tools returned less what
the program passed on, so a program that prints every result saves nothing and the line says so.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from bridge.model import CallCount, Receipt, RunResult
from bridge.render.structured import to_json
from bridge.text import counted

MAX_KINDS = 5  # Kinds of calls named in a line; a program can call any number.


def receipt_line(result: RunResult, *, conversation: bool = True) -> str:
    """Return for example "3 tool calls, 48,211 bytes of tool results kept out of ..., 0.41 s".

    Args:
        conversation: Whether a model gets the result: only then is anything kept out.
    """
    calls = result.usage.tool_calls
    said = counted(calls, "tool call") if calls else "no tool calls"
    account = result.receipt or Receipt()
    others = [
        f"{count:,} {word}"
        for count, word in (
            (account.replayed, "replayed"),
            (account.held, "held"),
            (account.refused, "refused"),
            (account.unknown, "of unknown outcome"),
            (len(account.unsent), "not sent"),
        )
        if count
    ]
    if others:
        said = f"{said} ({', '.join(others)})"
    kept = f"{bytes_kept_out(result):,} bytes of tool results kept out of the conversation"
    seconds = f"{result.usage.wall_ms / 1000:.2f} s"
    if account.waiting_ms:
        # A plan is asked about before its time begins.
        when = "of it" if account.waiting_ms <= result.usage.wall_ms else "after"
        seconds = f"{seconds}, {when} {account.waiting_ms / 1000:.2f} s waiting for an answer"
    return ", ".join((said, kept, seconds) if calls and conversation else (said, seconds))


def call_lines(result: RunResult) -> list[str]:
    """Return the lines on calls that were replayed, held, refused or have no known outcome."""
    lines: list[str] = []

    def tell(counts: Sequence[CallCount], text: str) -> None:
        if counts:
            count = counted(sum(found.count for found in counts), "call")
            lines.append(text.format(count, named(counts)))

    retry = f'retry_of="{result.run_id}"'
    failed = result.status in ("error", "timeout")
    # Reads can be made again. The error on a plan says so in its own words.
    changed = failed and result.receipt and result.receipt.changing and retry not in result.error
    if result.receipt and (changed or result.silent):
        # Nowhere else does the model see the run's id.
        lines.append(
            f"[retry] {counted(sum(result.receipt.calls.values()), 'call')} went out. Corrected "
            f"code with {retry} does not repeat what was done."
        )
    tell(result.replayed, "[retry] {} answered from the journal: {}")
    # A program that ended early may have come to them later.
    tell(
        result.unused if result.status == "success" else (),
        "[retry] {} of the run before not asked for again, with the same arguments: {}. What was "
        "done stands.",
    )
    tell(result.refused, "[gate] {} not made: {}")
    if result.receipt and (names := result.receipt.masked):
        more = [f"and {len(names) - MAX_KINDS:,} more"] if len(names) > MAX_KINDS else []
        lines.append(
            f"[secrets] masked: {', '.join([*map(_plain, names[:MAX_KINDS]), *more])}. Pass a mark "
            "on as it is: the server that returned the secret gets it back."
        )
    if result.unsent:
        lines.append(
            f"[unsent] The run ended without {', '.join(map(_plain, result.unsent))}. "
            "Await what has to finish."
        )
    tell(
        result.unknown,
        "[gate] {} of unknown outcome: {}. It may have happened: look before you make it again.",
    )
    return lines


def bytes_kept_out(result: RunResult) -> int:
    """Return how many bytes of tool results did not reach the model, never less than 0."""
    return max(0, result.usage.tool_result_bytes - bytes_returned(result))


def bytes_returned(result: RunResult) -> int:
    """Return how many bytes the program passed on: its output, its value and its error.

    Pictures are not among them: what those cost a model goes by other measures.
    """
    shown = [result.stdout, result.stderr, result.error, result.result_repr]
    shown += [item.text for item in result.shown]
    if result.has_result:
        shown.append(json.dumps(to_json(result.result), ensure_ascii=False))
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in shown)


def named(counts: Sequence[CallCount]) -> str:
    """Return for example "6 × github.create_issue, 1 × github.push (deny: rule 'no force')"."""
    ordered = sorted(counts, key=lambda found: -found.count)
    parts = []
    for found in ordered[:MAX_KINDS]:
        name = _plain(f"{found.server}.{found.tool}") if found.server else "other tools"
        parts.append(f"{found.count:,} × {name}" + (f" ({_plain(found.why)})" if found.why else ""))
    if left := sum(found.count for found in ordered[MAX_KINDS:]):
        parts.append(f"and {left:,} more")
    return ", ".join(parts)


def _plain(text: str) -> str:
    """Return a text that stays within its line, and in its own direction."""
    cut = text if len(text) <= 120 else f"{text[:120]}…"
    return "".join(one if one.isprintable() else "?" for one in cut)
