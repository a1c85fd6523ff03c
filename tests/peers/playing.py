"""What every Python client does with the bridge: CLIENT.py TASK, where the task is a JSON object.

It has `url` or `command`, programs by name in `programs`, and `started`, a file that appears once
the program `slow` has begun. It prints the answers as a JSON object. Runs in environments of
others, and so needs nothing but the standard library.
"""

import asyncio
import json
import sys
from pathlib import Path


async def play(peer, task):
    """List, call and cancel; return the answers.

    Args:
        peer: Has `tools()`, `call(code)` and `cancel(call)`.
    """
    programs = task["programs"]
    seen = {"tools": await peer.tools()}
    for name in ("value", "error", "picture"):
        seen[name] = await peer.call(programs[name])
    slow = asyncio.create_task(peer.call(programs["slow"]))
    while not Path(task["started"]).exists():
        if slow.done():
            raise RuntimeError(f"the slow program has ended: {slow.result()}")
        await asyncio.sleep(0.02)
    await peer.cancel(slow)
    slow.cancel()
    await asyncio.wait([slow])
    seen["after"] = await peer.call(programs["value"])
    return seen


def came(result):
    """Return a result as a program and a model read it."""
    plain = result.model_dump(by_alias=True, mode="json")
    record = (plain.get("_meta") or {}).get("mcp-code-bridge/result")
    return {
        "failed": plain["isError"],
        "kinds": [block["type"] for block in plain["content"]],
        "text": "".join(block.get("text", "") for block in plain["content"]),
        "record": record or plain["structuredContent"],
    }


def main(run):
    """Run a client's `run(task)` and print what it saw."""
    seen = asyncio.run(run(json.loads(sys.argv[1])))
    print(json.dumps(seen))
