"""Sessions that no one uses: put away, restored, found dead, and whose they are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import anyio
import pytest

from bridge.errors import BridgeError, InvalidRequestError
from bridge.model import InputFile
from bridge.runs import Engine
from bridge.sessions import turns
from bridge.settings import Settings
from bridge.store import Store
from bridge.store.schema import sessions
from tests.fakes.backend import FakeBackend
from tests.raised import raises_code
from tests.session_rig import OWNER, reopened, run, told, value, waits_for
from tests.waiting import until, until_exists

pytestmark = pytest.mark.guarantee("kept-apart", "out-of-time")


async def test_an_idle_session_is_put_away_and_comes_back(
    settings: Settings, backend: FakeBackend
) -> None:
    async with reopened(settings, backend, session_idle_timeout=0.01) as engine:
        first = await run(engine, "kept = [1, 2]\ndef double(x):\n    return x * 2")
        await until(lambda: engine.sessions.open == 0)
        await until(lambda: not backend.live)
        [listed] = await engine.sessions.listed(OWNER)
        assert (listed.state, listed.record.runs, listed.record.name) == ("put away", 1, "work")
        assert {held.name for held in listed.record.holdings.holds} == {"kept", "double"}
        again = await run(engine, "double(kept)", session=told(first).session_id)
        assert again.result == [1, 2, 1, 2]
        report = told(again)
        assert (report.state, report.run, report.name) == ("restored", 2, "work")
        assert "after run 1" in report.note


async def test_what_could_not_be_kept_is_listed(settings: Settings, backend: FakeBackend) -> None:
    async with reopened(settings, backend, session_idle_timeout=0.01) as engine:
        await value(engine, "kept = 1\nlines = (line for line in 'abc')")
        await until(lambda: engine.sessions.open == 0)
        again = await run(engine, "kept")
        [loss] = told(again).lost
        assert loss.name == "lines"
        assert "generator" in loss.why


async def test_what_was_saved_outlasts_a_run_that_ends_while_it_is_restored(
    settings: Settings, backend: FakeBackend
) -> None:
    slow = (
        "import time\nclass Slow:\n    def __init__(self): self.kept = 1\n"
        "    def __setstate__(self, state):\n        time.sleep(60)\nkept, slow = 7, Slow()"
    )
    async with reopened(settings, backend, session_idle_timeout=0.01) as engine:
        await run(engine, slow)
        await until(lambda: engine.sessions.open == 0)
        for _ in range(2):
            cut = await run(engine, "kept", timeout=1)
            assert (cut.reason, told(cut).state) == ("timeout", "lost")
            assert "before all that was saved had been restored" in told(cut).note
            assert "what was saved after run 1" in told(cut).note


async def test_a_sandbox_that_dies_while_no_one_uses_it_is_noticed(
    engine: Engine, backend: FakeBackend
) -> None:
    await value(engine, "kept = 1")
    # Saved by then, and waiting.
    await value(engine, "kept = 2")
    [listed] = await engine.sessions.listed(OWNER)
    assert listed.state == "open"
    [sandbox] = backend.live
    os.kill(sandbox, signal.SIGKILL)
    await until(lambda: engine.sessions.open == 0)
    again = await run(engine, "kept")
    assert again.result in (1, 2)
    assert told(again).state == "restored"
    assert told(again).note


async def test_a_run_for_which_the_sandbox_is_gone_gets_another(
    engine: Engine, backend: FakeBackend
) -> None:
    assert await value(engine, "kept = 1\nkept") == 1
    assert await value(engine, "kept") == 1
    [sandbox] = backend.live
    os.kill(sandbox, signal.SIGKILL)
    again = await run(engine, "kept")
    assert (again.result, told(again).state, told(again).run) == (1, "restored", 3)
    assert backend.launched == 2


async def test_files_that_do_not_fit_beside_what_is_restored_are_for_the_next_run(
    settings: Settings, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "MAX_STATE_BYTES", 100)
    files = (InputFile(name="a.txt", data=b"x" * 90),)
    async with reopened(settings, backend) as engine:
        await value(engine, "kept = list(range(50))", files=files)
    async with reopened(settings, backend) as engine:
        with pytest.raises(InvalidRequestError, match="do not fit beside"):
            await run(engine, "1", files=files)


async def test_a_checkpoint_that_is_damaged_is_told_about_and_the_session_begins_again(
    settings: Settings, backend: FakeBackend
) -> None:
    async with reopened(settings, backend) as engine:
        await run(engine, "kept = 1")
    Store(settings.state_dir).execute(sessions.update().values(state=b"another"))
    async with reopened(settings, backend) as engine:
        report = told(result := await run(engine, "'kept' in globals()"))
        assert (result.result, report.state) == (False, "new")
        assert "began again, with nothing" in report.note
        assert "is damaged" in report.note
        assert not told(await run(engine, "1")).note


async def test_names_are_each_owners_and_an_id_opens_nothing_for_others(engine: Engine) -> None:
    mine = await run(engine, "kept = 'mine'")
    theirs = await run(engine, "'kept' in globals()", owner="bob")
    assert theirs.result is False
    assert told(theirs).session_id != told(mine).session_id
    messages = []
    for key in (told(mine).session_id, "0" * 32):
        with raises_code("unknown_session") as refused:
            await run(engine, "1", session=key, owner="bob")
        messages.append(str(refused.value).replace(key, "..."))
    assert messages[0] == messages[1]
    assert len(await engine.sessions.listed("bob")) == 1


async def test_where_callers_cannot_be_told_apart_only_the_id_continues_with_a_session(
    engine: Engine,
) -> None:
    first = await run(engine, "kept = 1", named_sessions=False)
    second = await run(engine, "'kept' in globals()", named_sessions=False)
    assert second.result is False
    ids = [told(result).session_id for result in (first, second)]
    assert ids[0] != ids[1]
    assert await value(engine, "kept", session=ids[0], named_sessions=False) == 1
    with raises_code("unknown_session", match="by its id"):
        await run(engine, "", end_session=True, named_sessions=False)
    ended = await run(engine, "", session=ids[0], end_session=True, named_sessions=False)
    assert told(ended).state == "ended"


async def test_an_engine_that_closes_while_a_run_continues_ends_it(
    settings: Settings, backend: FakeBackend, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    told_of: list[BridgeError] = []

    async def wait() -> None:
        try:
            await run(engine, waits_for(tmp_path / "never", said=begun))
        except BridgeError as error:
            told_of.append(error)

    async with anyio.create_task_group() as tasks, reopened(settings, backend) as engine:
        await value(engine, "kept = 1")
        tasks.start_soon(wait)
        await until_exists(begun)
    assert len(told_of) <= 1
    assert backend.live == set()
    async with reopened(settings, backend) as engine:
        assert await value(engine, "kept") == 1
