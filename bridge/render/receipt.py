"""What a run saved, in one line.

Owns the wording and the sum. "Kept out of the conversation" is what the tools returned less what
the program passed on, so a program that prints every result saves nothing and the line says so.
"""

from __future__ import annotations

import json

from bridge.model import RunResult
from bridge.render.structured import to_json


def receipt(result: RunResult) -> str:
    """Return for example "3 tool calls, 48,211 bytes of tool results kept out of ..., 0.41 s"."""
    seconds = f"{result.usage.wall_ms / 1000:.2f} s"
    calls = result.usage.tool_calls
    if not calls:
        return f"no tool calls, {seconds}"
    counted = "1 tool call" if calls == 1 else f"{calls:,} tool calls"
    kept = bytes_kept_out(result)
    return f"{counted}, {kept:,} bytes of tool results kept out of the conversation, {seconds}"


def bytes_kept_out(result: RunResult) -> int:
    """Return how many bytes of tool results did not reach the model, never less than 0."""
    return max(0, result.usage.tool_result_bytes - bytes_returned(result))


def bytes_returned(result: RunResult) -> int:
    """Return how many bytes the program passed on: its output, its value and its error."""
    shown = [result.stdout, result.stderr, result.error, result.result_repr]
    if result.has_result:
        shown.append(json.dumps(to_json(result.result), ensure_ascii=False))
    return sum(len(text.encode("utf-8", "surrogatepass")) for text in shown)
