"""What all callers share, over HTTP: one takes no place, file or state of another's share."""

from __future__ import annotations

import hashlib
import json
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import jsonschema
import pytest
from mcp import Client

from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.arguments import OUTPUT_SCHEMA
from bridge.settings import Settings
from tests.engine_rig import ListFinder
from tests.fakes.backend import FakeBackend
from tests.record import record_of, text_of
from tests.server.web_rig import connected, web
from tests.session_rig import reopened, waits_for
from tests.waiting import until, until_exists


async def _call(client: Client, **arguments: Any) -> Any:
    with anyio.fail_after(60):
        return await client.call_tool("run_python", arguments)


async def _run(client: Client, **arguments: Any) -> dict[str, Any]:
    return record_of(await _call(client, **arguments))


async def _open_session(client: Client) -> str:
    session = (await _run(client, code="kept = 1", session="work"))["session"]
    assert session["state"] == "new"
    return str(session["id"])


def _leave(name: str, size: int) -> str:
    opened = f"os.makedirs('out', exist_ok=True)\nfile = open('out/{name}', 'wb')"
    return f"import os\n{opened}\nfile.write(os.urandom({size}))"


async def _leave_much(engine: Engine, ada: Client, eve: Client) -> None:
    # What Ada left is the oldest, and stays.
    [old] = (await _run(ada, code=_leave("old", 20_000)))["artifacts"]
    for number in range(6):
        await _run(eve, code=_leave(f"{number}", 30_000))
    assert len((await ada.read_resource(old["uri"])).contents) == 1
    kept = [each.name for each in engine.artifacts.find_all(None)]
    assert kept == ["5", "4", "old"]
    [missing] = (await _run(eve, code=_leave("huge", 90_000)))["missing"]
    assert "exceed your share" in missing["why"]
    assert [each.name for each in engine.artifacts.find_all(None)] == kept


@pytest.mark.guarantee("shares")
async def test_one_caller_takes_nothing_of_anothers_share(
    settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    shares = {"sessions": 2, "artifact_bytes": 100_000, "artifact_run_bytes": 100_000}
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(120))
        engine = await stack.enter_async_context(reopened(settings, backend, **shares))
        url = await stack.enter_async_context(web(engine))
        ada, eve = [
            await stack.enter_async_context(connected(url, who, "auto")) for who in ("ada", "eve")
        ]

        async def open_sessions(credential: str) -> list[str]:
            digest = hashlib.sha256(f"Bearer {credential}".encode()).hexdigest()[:32]
            listed = await engine.sessions.listed(f"#{digest}")
            return [each.record.session_id for each in listed if each.state == "open"]

        # Eve has both places, in use all the time; Ada gets one when one of the runs has ended.
        first, second = await _open_session(eve), await _open_session(eve)
        mine: list[str] = []

        async def open_one() -> None:
            mine.append(await _open_session(ada))

        async with anyio.create_task_group() as tasks:
            for session in (first, second):
                said = tmp_path / f"begun-{session}"
                work = waits_for(tmp_path / f"go-{session}", said=said)
                tasks.start_soon(partial(_run, eve, code=work, session=session))
                await until_exists(said)
            tasks.start_soon(open_one)
            await until(lambda: len(engine.sessions._sessions) == 3)
            assert len(await open_sessions("eve")) == 2
            (tmp_path / f"go-{first}").touch()
            await until(lambda: bool(mine))
            assert await open_sessions("eve") == [second]
            # What she had there is kept, and comes back in a place of her own.
            refused = await _run(eve, code="kept", session=first)
            assert refused["status"] == "error"
            assert "your share" in refused["error"]
            (tmp_path / f"go-{second}").touch()
        restored = await _run(eve, code="kept", session=first)
        assert (restored["result"], restored["session"]["state"]) == (1, "restored")
        assert await open_sessions("ada") == mine

        await _leave_much(engine, ada, eve)


SESSIONS_URI = "bridge://sessions"


@pytest.fixture
def finder() -> ListFinder:
    return ListFinder()


async def _list_sessions(client: Client) -> list[dict[str, Any]]:
    [content] = (await client.read_resource(SESSIONS_URI)).contents
    found: list[dict[str, Any]] = json.loads(content.text)["sessions"]  # type: ignore[union-attr]
    return found


async def test_over_stdio_a_session_goes_by_its_name(engine: Engine) -> None:
    async with Client(build_server(engine, principal="stdio")) as client:
        first = await _call(client, code="total = 41\nrows = ['x'] * 3000", session="analysis")
        assert '[session "analysis", run 1] holds rows: list (24 kB), total: int.' in text_of(first)
        assert "Continue with" not in text_of(first)
        second = await _call(client, code="total + 1", session="analysis")
        document = record_of(second)
        assert (document["result"], document["session"]["state"]) == (42, "kept")
        jsonschema.validate(document, OUTPUT_SCHEMA)
        uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
        assert SESSIONS_URI in uris
        [listed] = await _list_sessions(client)
        assert listed["id"] == document["session"]["id"]
        assert (listed["name"], listed["state"], listed["runs"]) == ("analysis", "open", 2)
        assert listed["memoryLimitBytes"] > 0
        assert {held["name"] for held in listed["holds"]} == {"rows", "total"}
        ended = await _call(client, session="analysis", end_session=True)
        assert ended.is_error is False
        assert "ended" in text_of(ended)
        assert await _list_sessions(client) == []


async def test_over_http_a_session_is_its_callers_own_and_needs_its_id(engine: Engine) -> None:
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(90))
        url = await stack.enter_async_context(web(engine))
        ada, bob, nobody = [
            await stack.enter_async_context(connected(url, who, "auto"))
            for who in ("ada", "bob", "")
        ]
        first = await _call(ada, code="total = 41", session="analysis")
        identity = record_of(first)["session"]["id"]
        assert f'Continue with session="{identity}".' in text_of(first)
        # The name alone begins another, also for its owner.
        again = await _run(ada, code="'total' in globals()", session="analysis")
        assert again["result"] is False
        for stranger in (bob, nobody):
            refused = await _call(stranger, code="total", session=identity)
            assert refused.is_error
            assert "No session" in text_of(refused)
            assert await _list_sessions(stranger) == []
        identities = {identity, again["session"]["id"]}
        assert {each["id"] for each in await _list_sessions(ada)} == identities
        assert (await _run(ada, code="total + 1", session=identity))["result"] == 42
        # A caller without credentials has the id, and sees no other ids.
        own = (await _run(nobody, code="x = 1", session="own"))["session"]["id"]
        assert await _list_sessions(nobody) == []
        assert (await _run(nobody, code="x", session=own))["result"] == 1
