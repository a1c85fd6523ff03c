"""A function to save, and runs of the user at the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.cli.run import TERMINAL
from bridge.model import Json, RunRequest, RunResult
from bridge.runs import Engine
from tests.fakes.client import FakeClient

SAVE = '''
import json
import os.path
from collections import Counter
from collections.abc import Mapping
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


def answer_with(*decisions: str) -> FakeClient:
    """Return a client that answers in this order, and repeats the last answer."""
    left = list(decisions)

    async def answer(params: Mapping[str, Json]) -> Mapping[str, Json]:
        decision = left.pop(0) if len(left) > 1 else left[0]
        return {"action": "accept", "content": {"decision": decision}}

    return FakeClient(answer=answer)


async def run(
    engine: Engine, code: str, client: FakeClient | None = None, **fields: Any
) -> RunResult:
    return await engine.run(RunRequest(code=code, **{"principal": TERMINAL, **fields}), client)


async def value(engine: Engine, code: str, client: FakeClient | None = None, **fields: Any) -> Json:
    result = await run(engine, code, client, **fields)
    assert result.status == "success", (result.error, result.stderr)
    return result.result
