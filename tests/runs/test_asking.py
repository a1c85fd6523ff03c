"""Servers that ask, through whole runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import pytest

from bridge.callers.client import MAX_LOGS, RunCaller, is_wanted
from bridge.errors import CannotAskError
from bridge.event_loop import Clock
from bridge.model import Json, RunRequest
from bridge.runs import Engine
from bridge.upstream import client_features as asking
from tests.asker_rig import asker, remote_asker
from tests.engine_rig import ListFinder, engine_on, settings_in
from tests.fakes.backend import FakeBackend
from tests.fakes.client import FakeClient
from tests.waiting import until

ERAS = {"newer": "http", "older": "older-http"}
"""Names of the servers over HTTP, and how each is run."""


@pytest.fixture(scope="module")
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture(scope="module")
async def opened(
    backend: FakeBackend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Engine]:
    """One engine for all tests, with servers that ask, each of which takes a second to start."""

    settings = settings_in(tmp_path_factory.mktemp("home"))
    with ExitStack() as stack:
        remote = {name: stack.enter_context(remote_asker(kind)) for name, kind in ERAS.items()}
        finder = ListFinder(asker(), *(replace(spec, name=name) for name, spec in remote.items()))
        async with engine_on(backend, settings, finder=finder) as made:
            yield made


@pytest.fixture
async def engine(opened: Engine, backend: FakeBackend) -> AsyncIterator[Engine]:
    """The same for each test, none of which leaves a run to the next."""
    yield opened
    await until(lambda: not backend.live)


async def accept(params: Mapping[str, Json]) -> Mapping[str, Json]:
    return {"action": "accept", "content": {"name": "Ann"}}


async def four(params: Mapping[str, Json]) -> Mapping[str, Json]:
    content: Json = {"type": "text", "text": "four"}
    return {"role": "assistant", "content": content, "model": "m"}


@pytest.mark.parametrize("era", ERAS)
async def test_servers_of_either_era_ask_over_http(engine: Engine, era: str) -> None:
    client = FakeClient(answer=accept)
    code = f"[await mcp_{era}.name(), await mcp_{era}.visit()]"
    result = await engine.run(RunRequest(code=code), client)
    assert result.result == ["accept {'name': 'Ann'}", "accept"], result.error
    client = FakeClient(answer=four)
    result = await engine.run(RunRequest(code=f"await mcp_{era}.think()"), client)
    assert result.result == "it says four"


async def test_a_user_who_declines_to_visit_an_address_leaves_the_servers_refusal(
    engine: Engine,
) -> None:
    code = "try:\n    r = await mcp_asker.enrol()\nexcept MCPError as e:\n    r = e.data\nr"
    unasked = FakeClient()
    refused = (await engine.run(RunRequest(code=code), unasked)).result
    assert refused["elicitations"][0]["url"] == "https://example.com/enrol"
    assert unasked.asked[0]["url"] == "https://example.com/enrol"
    assert (await engine.run(RunRequest(code=code), unasked)).result == "enrolled"


async def test_a_user_who_agrees_to_visit_an_address_has_the_call_made_again(
    engine: Engine,
) -> None:
    client = FakeClient(answer=accept)
    result = await engine.run(RunRequest(code="await mcp_asker.enrol()"), client)
    assert result.result == "enrolled", result.error
    [asked] = client.asked
    assert asked["mode"] == "url"
    assert asked["message"].startswith(
        "[asker] Please enrol.\n"
        "It is about an address of the host example.com: https://example.com/enrol\n"
    )


@pytest.mark.parametrize("era", ERAS)
async def test_servers_ask_before_they_give_a_resource_or_a_prompt(
    engine: Engine, era: str
) -> None:
    client = FakeClient(answer=accept)
    code = (
        f"one = await mcp_{era}.read_resource('note://x')\n"
        f"other = await mcp_{era}.get_prompt('p')\n"
        "[one, other['messages'][0]['content']]"
    )
    result = await engine.run(RunRequest(code=code), client)
    assert result.result == ["for Ann", "for Ann"], result.error
    assert [asked["message"].partition("\n")[0] for asked in client.asked] == [f"[{era}] Who?"] * 2


@pytest.mark.parametrize("server", ["asker", *ERAS])
async def test_progress_and_messages_of_servers_reach_the_client(
    engine: Engine, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asking, "LATE_SECONDS", 0.0)
    client = FakeClient(log_level="info")
    result = await engine.run(RunRequest(code=f"await mcp_{server}.count()"), client)
    assert result.result == "counted", result.error
    assert client.logged == [
        ("info", f"{server}/the-asker", {"said": "info"}),
        ("error", f"{server}/the-asker", {"said": "error"}),
    ]
    assert f"{server}.count: step 1 (1/3)" in [text for _, text in client.told]
    seconds = [value for value, _ in client.told]
    assert seconds == sorted(set(seconds))


async def test_the_bridge_asks_on_its_own_behalf_in_the_same_way() -> None:
    clock = Clock()

    async def answer(params: Mapping[str, Json]) -> Mapping[str, Json]:
        assert not clock.running
        return {"action": "accept"}

    client = FakeClient(answer=answer)
    run = RunCaller(client, clock, identified=True)
    assert await run.elicit({"message": "May it?"}) == {"action": "accept"}
    assert clock.running
    assert client.asked == [{"message": "May it?"}]
    with pytest.raises(CannotAskError, match="no client"):
        await RunCaller(None, clock).elicit({"message": "May it?"})


@pytest.mark.guarantee("identified-approvers")
async def test_a_client_that_is_not_identified_approves_of_nothing() -> None:
    client = FakeClient(answer=accept)
    run = RunCaller(client, Clock())
    with pytest.raises(CannotAskError, match="not identified does not count.*over stdio"):
        await run.elicit({"message": "May it?"})
    assert client.asked == []
    answer = await run.ask("shop", "elicitation/create", {"message": "One?"})
    assert answer["action"] == "accept"


async def test_reports_are_few_and_messages_bounded() -> None:
    client = FakeClient()
    run = RunCaller(client, Clock())
    for number in range(1000):
        await run.report("s", "t", number, None, "x" * 10_000)
        await run.log("s", "info", "", "y" * 10_000)
    assert len(client.told) < 20
    assert MAX_LOGS <= len(client.logged) < 2 * MAX_LOGS
    assert all(len(text) < 600 for _, text in client.told)
    assert all(len(str(data)) < 4100 for _, _, data in client.logged)


@pytest.mark.parametrize(
    ("level", "least", "wanted"),
    [
        ("info", "info", True),
        ("debug", "info", False),
        ("emergency", "debug", True),
        ("info", "", False),
        ("shout", "debug", False),
    ],
)
def test_a_message_is_wanted_from_its_level_on(level: str, least: str, wanted: bool) -> None:
    assert is_wanted(level, least) is wanted
