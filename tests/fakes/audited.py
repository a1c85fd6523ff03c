"""A program that makes audited calls, for tests that kill it or leave it no room.

Usage: `audited.py DIRECTORY WHAT [COUNT]`. It says "ready" on stdout where it waits to be killed:

- `before`: a call has been asked for, and nothing of it is recorded;
- `recorded`: it is recorded, and the server has not done it;
- `done`: the server has done it, and its outcome is not recorded;
- `append`: it appends COUNT records, saying so after the first.
- `fill`: it makes calls until one is refused, then says what its error is and how many the server
  did; on each line that it reads, it tries once more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from bridge.errors import AuditError
from bridge.gate.audit.log import AuditLog, RunAudit
from bridge.gate.pipeline import Gate, Grant
from bridge.gate.services import GateContext
from bridge.model import Tool


async def _wait_for_the_end() -> None:
    print("ready", flush=True)
    await anyio.sleep_forever()


class _Server:
    """Writes what it is called with to a file beside the log."""

    def __init__(self, done: Path, what: str) -> None:
        self.done = done
        self.what = what
        self.calls = 0

    async def call(self, server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        if self.what == "recorded" and self.calls:
            await _wait_for_the_end()
        self.calls += 1
        if self.what != "fill":
            with self.done.open("a") as file:
                file.write(f"{arguments['number']}\n")
        if self.what == "done" and self.calls > 1:
            await _wait_for_the_end()
        return {"content": []}

    async def define(self, server: str, tool: str) -> Tool | None:
        if self.what == "before" and self.calls:
            await _wait_for_the_end()
        return None


async def _calls(directory: Path, what: str) -> None:
    server = _Server(directory.parent / "done", what)
    audit = RunAudit(AuditLog(directory), "r1")
    oversight = GateContext(audit=audit, define=server.define)
    gate = Gate(Grant(servers=None, calls=100_000), server.call, oversight)
    await audit.record_start({"code": "sha256:c"})
    if what != "fill":
        for number in range(2):
            await gate.call("shop", "write", {"number": number})
    number = 0
    while True:
        try:
            await gate.call("shop", "write", {"number": number, "text": "x" * (number % 400)})
            number += 1
        except AuditError as error:
            told = {"error": str(error), "remedy": error.remedy, "done": server.calls}
            print(json.dumps(told), flush=True)
            if not await anyio.to_thread.run_sync(sys.stdin.readline):
                return


async def _append(directory: Path, count: int) -> None:
    log = AuditLog(directory, largest=20_000)
    for number in range(count):
        await log.append({"kind": "run", "run": f"{number}", "text": "y" * (number % 300)})
        if not number:
            print("ready", flush=True)
        # As a server's other tasks would get their turn.
        await anyio.lowlevel.checkpoint()
    log.close()


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if sys.argv[2] == "append":
        anyio.run(_append, place, int(sys.argv[3]))
    else:
        anyio.run(partial(_calls, place, sys.argv[2]))
