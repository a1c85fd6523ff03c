"""A person reviews saved skills, through the MCP surface and the official client, in both eras."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import pytest
from mcp import Client
from mcp.types import ElicitResult

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.settings import Settings
from tests.asker_rig import call, text_of, value_of
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend

USE = "from skills import greet, bow\n[greet(), bow()]"


class Person:
    """Answers the questions one after the other."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(action="accept", content={"decision": self.answers.pop(0)})


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_each_skill_is_shown_to_the_person_before_its_first_use(
    settings: Settings, backend: FakeBackend, finder: ListFinder, engine: Engine, era: str
) -> None:
    saving = "".join(
        f"def {name}():\n    return {name!r}\nruntime.save_skill({name})\n"
        for name in ("greet", "bow")
    )
    async with AsyncExitStack() as stack:
        own = build_server(engine, principal="me")
        mine = await stack.enter_async_context(Client(own, mode=era))
        assert value_of(await call(mine, saving))["import"] == "from skills import bow"
        assert value_of(await call(mine, USE)) == ["greet", "bow"]

        other = await stack.enter_async_context(engine_on(backend, settings, finder=finder))
        person = Person("always", "no", "once", "once")
        server = build_server(other, principal="me")
        client = await stack.enter_async_context(
            Client(server, mode=era, elicitation_callback=person)
        )
        refused = await call(client, USE)
        assert "'bow' was not used: the client, asked for a review, declined" in text_of(refused)
        assert ["return 'greet'" in person.asked[0], "return 'bow'" in person.asked[1]] == [
            True
        ] * 2
        assert value_of(await call(client, USE)) == ["greet", "bow"]
        assert value_of(await call(client, USE)) == ["greet", "bow"]
        assert ["bow" in asked for asked in person.asked] == [False, True, True, True]

        found = await client.call_tool("search_tools", {"query": "greet"})
        assert "from skills import greet; greet()" in text_of(found)

        alone = await stack.enter_async_context(Client(server, mode=era))
        told = text_of(await call(alone, USE))
        assert "`mcp-code-bridge skills approve bow`" in told
