"""What all callers share, over HTTP: one takes no place, file or state of another's share."""

from __future__ import annotations

import hashlib
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from bridge.runs import Engine
from bridge.settings import Settings
from tests.fakes.backend import FakeBackend
from tests.record import record_of
from tests.server.web_rig import connected, web
from tests.session_rig import reopened, waits_for
from tests.waiting import until, until_exists


async def _run(client: Client, **arguments: Any) -> dict[str, Any]:
    with anyio.fail_after(60):
        result = await client.call_tool("run_python", arguments)
    return record_of(result)


async def _open(client: Client, code: str = "kept = 1") -> str:
    session = (await _run(client, code=code, session="work"))["session"]
    assert session["state"] == "new"
    return str(session["id"])


def _leave(name: str, size: int) -> str:
    opened = f"os.makedirs('out', exist_ok=True)\nfile = open('out/{name}', 'wb')"
    return f"import os\n{opened}\nfile.write(os.urandom({size}))"


async def _leave_much(engine: Engine, ada: Client, eve: Client) -> None:
    """Have more left than there is room for, nearly all of it Eve's."""
    # What Ada left is the oldest, and stays.
    [old] = (await _run(ada, code=_leave("old", 20_000)))["artifacts"]
    for number in range(6):
        await _run(eve, code=_leave(f"{number}", 30_000))
    assert len((await ada.read_resource(old["uri"])).contents) == 1
    kept = [each.name for each in engine.artifacts.listed(None)]
    assert kept == ["5", "4", "old"]
    [missing] = (await _run(eve, code=_leave("huge", 90_000)))["missing"]
    assert "more than your share" in missing["why"]
    assert [each.name for each in engine.artifacts.listed(None)] == kept


@pytest.mark.guarantee("shares")
async def test_one_caller_takes_nothing_of_anothers_share(
    settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    """Places for sessions and what is kept: also for who shows ever new credentials."""
    shares = {"sessions": 2, "artifact_bytes": 100_000, "artifact_run_bytes": 100_000}
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(120))
        engine = await stack.enter_async_context(reopened(settings, backend, **shares))
        url = await stack.enter_async_context(web(engine))
        ada, eve = [
            await stack.enter_async_context(connected(url, who, "auto")) for who in ("ada", "eve")
        ]

        async def opened(credential: str) -> list[str]:
            digest = hashlib.sha256(f"Bearer {credential}".encode()).hexdigest()[:32]
            listed = await engine.sessions.listed(f"#{digest}")
            return [each.session_id for each in listed if each.state == "open"]

        # Eve has both places, in use all the time; Ada gets one when one of the runs has ended.
        first, second = await _open(eve), await _open(eve)
        mine: list[str] = []

        async def open_one() -> None:
            mine.append(await _open(ada))

        async with anyio.create_task_group() as tasks:
            for session in (first, second):
                said = tmp_path / f"begun-{session}"
                work = waits_for(tmp_path / f"go-{session}", said=said)
                tasks.start_soon(partial(_run, eve, code=work, session=session))
                await until_exists(said)
            tasks.start_soon(open_one)
            await until(lambda: engine.sessions.known == 3)
            assert len(await opened("eve")) == 2
            (tmp_path / f"go-{first}").touch()
            await until(lambda: bool(mine))
            assert await opened("eve") == [second]
            # What she had there is kept, and comes back in a place of her own.
            refused = await _run(eve, code="kept", session=first)
            assert refused["status"] == "error"
            assert "your share" in refused["error"]
            (tmp_path / f"go-{second}").touch()
        restored = await _run(eve, code="kept", session=first)
        assert (restored["result"], restored["session"]["state"]) == (1, "restored")
        assert await opened("ada") == mine

        await _leave_much(engine, ada, eve)
