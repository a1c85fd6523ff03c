"""A program's calls and their answers on a channel that is full, or read by somebody else."""

from __future__ import annotations

from typing import Any


def test_a_host_that_reads_no_more_until_its_answers_are_taken_is_no_deadlock(
    guest_on: Any,
) -> None:
    text = "x" * 100_000

    def answer(guest: Any, call: Any) -> None:
        guest.reply(call.id, {"json": {"text": text}})
        guest.written()

    finished = guest_on.run(
        f"""
import asyncio, threading
async def main():
    calls = [mcp_git_hub.echo("x" * {len(text)}) for _ in range(40)]
    return [len(answer.text) for answer in await asyncio.gather(*calls)]
(asyncio.run(main()), threading.active_count())
""",
        answer,
        limits={"timeout": 20.0},
    )
    assert finished.value == [[len(text)] * 40, 2]
