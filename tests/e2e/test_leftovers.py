"""Calls that a program starts and does not await, on real engines."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client

from tests.e2e.rig import User, document_of, engines

THREE_WRITES = """
import asyncio
async def save(n):
    await mcp_workshop.add(a=n, b=1)
for n in range(3):
    asyncio.create_task(save(n))
"all 3 saved"
"""


@pytest.fixture(
    params=[
        "bubblewrap",
        *(pytest.param(name, marks=getattr(pytest.mark, name)) for name in engines()),
    ]
)
def engine_name(request: pytest.FixtureRequest) -> Any:
    """The backend that the bridge uses."""
    return request.param


@pytest.mark.parametrize("runs", [5, pytest.param(100, marks=pytest.mark.full)])
@pytest.mark.parametrize("session", ["", "writes"])
async def test_three_writes_are_sent_each_time(user: User, session: str, runs: int) -> None:
    arguments = {"code": THREE_WRITES, **({"session": session} if session else {})}
    async with user.client() as client:
        for _ in range(runs):
            assert await _calls(client, arguments) == {"workshop": 3}


async def _calls(client: Client, arguments: dict[str, Any]) -> Any:
    document = document_of(await client.call_tool("run_python", arguments))
    assert document["result"] == "all 3 saved"
    return document["receipt"]["calls"]
