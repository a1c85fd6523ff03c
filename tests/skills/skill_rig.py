"""A function to save, and runs of the person at the terminal who saves it."""

from __future__ import annotations

from typing import Any

from bridge.cli.run import TERMINAL
from bridge.model import Json, RunRequest, RunResult
from bridge.runs import Engine
from tests.fakes.client import FakeClient

SAVE = '''
import json
import os.path
from collections import Counter
from typing import Any

LIMIT = {"most": 3, "words": ["a", "b"]}

class Line:
    """A line."""
    def __init__(self, text: str) -> None:
        self.text = os.path.join("x", text)

def shorten(text, limit=LIMIT):
    return Line(text[: limit["most"]]).text

async def shout(text: str, *, times: int = 2) -> Any:
    """Say something loudly.

    And more of it.
    """
    # A remark that stays.
    said = await mcp_work_shop.echo(text=shorten(text))
    return json.dumps(Counter([said.text] * times))

runtime.save_skill(shout, description="Shout in the work-shop")
'''


async def run(
    engine: Engine, code: str, client: FakeClient | None = None, **fields: Any
) -> RunResult:
    return await engine.run(RunRequest(code=code, **{"principal": TERMINAL, **fields}), client)


async def value(engine: Engine, code: str, client: FakeClient | None = None, **fields: Any) -> Json:
    result = await run(engine, code, client, **fields)
    assert result.status == "success", (result.error, result.stderr)
    return result.result
