"""Bridges whose clock, limits or version differ: nothing of others is deleted, and they say so."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest
from sqlalchemy import select, text

from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.event_loop import background_task
from bridge.sessions.checkpoints import Checkpoints, Claims, Saved
from bridge.store import ServerUrl, Store, StoreError, retention
from bridge.store import schema as schema_module
from bridge.store.heartbeat import Heartbeat
from bridge.store.postgresql import ServerStore, Silence
from tests.faulty_proxy import Fault, FaultyProxy
from tests.postgresql import Server, address, store_at
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("postgresql")

DAY = 86_400.0


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = store_at(tmp_path)
    yield made
    made.close()


def artifacts(store: Store, *, total: int = 10**8, days: int = 7) -> ArtifactStore:
    return ArtifactStore(store, total_bytes=total, run_bytes=total, days=days)


def ahead(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set this process's clock ahead, as on a machine with another time."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


def test_a_bridge_whose_clock_is_days_ahead_deletes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = artifacts(store)
    RunArtifacts(kept, "me", "run").add("a", b"data")
    saved = Checkpoints(store, days=7)
    saved.save("me", Saved(session_id="s", name="s", run=1, data=b"x"))
    with store.writing() as document:
        document.put("plan", "me", "p", b"{}")
    with monkeypatch.context() as clock:
        ahead(clock, 8 * DAY)
        # `now` was bound when the stores were made.
        other, saved_elsewhere = artifacts(store), Checkpoints(store, days=7)
        other.tidy()
        saved_elsewhere.tidy()
        assert other.find_all("me")
        assert saved_elsewhere.all("me")
        with store.writing() as document:
            document.prune("plan", most=9, oldest=document.now() - 1800.0)
            assert document.get("plan", "me", "p") == b"{}"
        assert RunArtifacts(other, "me", "run").add("b", b"data").created < time.time() - 7 * DAY
    assert [each.name for each in kept.find_all("me")] == ["b", "a"]


def test_a_bridge_with_other_limits_warns_and_deletes_nothing(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    retention.warn_once.cache_clear()
    kept = artifacts(store)
    for number in range(5):
        RunArtifacts(kept, "me", "run").add(f"{number}", bytes([number]) * 1000)
    kept.tidy()
    small = artifacts(store, total=2000, days=1)
    small.tidy()
    assert len(small.find_all("me")) == len(kept.find_all("me")) == 5
    assert "removes no artifacts" in caplog.text
    assert "store limits" in caplog.text
    sessions = Checkpoints(store, days=7)
    sessions.save("me", Saved(session_id="s", name="s", run=1, data=b"x" * 100))
    sessions.tidy()
    assert Checkpoints(store, days=0, total_bytes=10).tidy() == 0
    assert sessions.all("me")


def test_a_bridge_that_meets_a_later_version_writes_nothing_more(store: Store) -> None:
    with store.writing() as kept:
        kept.put("kind", "me", "a", b"1")
        assert kept.connection is not None
        later = schema_module.migrations.insert().values(number=len(schema_module.MIGRATIONS) + 1)
        kept.connection.execute(later)
    with pytest.raises(StoreError, match="a later version") as caught, store.writing() as kept:
        kept.put("kind", "me", "a", b"2")
    assert "remove" not in caught.value.remedy


def test_tables_of_an_earlier_version_are_changed_by_store_migrate_alone(
    tmp_path: Path, store: Store
) -> None:
    with store.writing() as kept:
        assert kept.connection is not None
        kept.connection.exec_driver_sql("DELETE FROM migrations WHERE number > 1")
        kept.connection.exec_driver_sql("ALTER TABLE sessions DROP COLUMN gone")
        kept.connection.exec_driver_sql("DROP TABLE bridges")
    store.close()
    other = store_at(tmp_path)
    assert isinstance(other, ServerStore)
    with pytest.raises(StoreError, match="of version 1") as caught, other.writing():
        pass
    assert "store migrate" in caught.value.remedy
    other.migrate()
    Checkpoints(other, days=7).save("me", Saved(session_id="s", name="s", run=1, data=b"x"))
    assert Checkpoints(other, days=7).all("me")


async def test_two_bridges_of_one_name_are_noticed_and_a_dead_one_is_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.store.heartbeat.BEAT_SECONDS", 0.05)
    Heartbeat(store, "a")._renew()  # It is killed.
    one, other = Heartbeat(store, "a"), Heartbeat(store, "a")
    async with background_task(one.beat):
        await until(lambda: len(one._others) == 2)
        await anyio.sleep(0.2)
        assert one.problems == {}
        async with background_task(other.beat):
            await until(lambda: "name" in one.problems and "name" in other.problems)
        await until(lambda: one.problems == {})


@pytest.fixture
def distant(tmp_path: Path, proxy: FaultyProxy) -> Iterator[ServerStore]:
    """A store that is reached through the proxy."""
    made = ServerStore(tmp_path, address(tmp_path, port=proxy.port))
    yield made
    proxy.fault = ""
    made.close()


@pytest.mark.parametrize("fault", ["hang", "refuse"])
async def test_while_a_database_is_silent_calls_fail_at_once_and_no_other_thread_waits(
    distant: ServerStore, proxy: FaultyProxy, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.store.postgresql.ANSWER_SECONDS", 1.0)
    write_at(distant)
    proxy.fault = fault
    failures: list[StoreError] = []

    async def fail() -> None:
        try:
            await distant.run(write_at, distant)
        except StoreError as error:
            failures.append(error)

    threads = threading.active_count()
    async with anyio.create_task_group() as tasks:
        for _ in range(60):
            tasks.start_soon(fail)
        await anyio.sleep(0.1)
        assert threading.active_count() <= threads + 8
        # What needs no database has its threads.
        with anyio.fail_after(5):
            assert await anyio.to_thread.run_sync(lambda: "free") == "free"
    assert len(failures) == 60
    assert all("MCP_BRIDGE_STORE" in failure.remedy for failure in failures)
    proxy.fault = ""
    while True:
        failures.clear()
        await fail()
        if not failures:
            return


def write_at(store: Store) -> None:
    with store.writing() as kept:
        kept.put("kind", "me", "a", b"1")


def test_after_a_server_was_away_one_call_finds_it_again(
    distant: ServerStore, proxy: FaultyProxy
) -> None:
    with ExitStack() as stack:
        # Several connections, none of which was idle for long.
        for _ in range(4):
            stack.enter_context(distant.reading())
    proxy.fault = "refuse"
    proxy.fault = ""
    with pytest.raises(StoreError):
        write_at(distant)
    for _ in range(6):
        write_at(distant)


def test_a_call_is_not_told_of_another_ones_change(
    distant: ServerStore, proxy: FaultyProxy
) -> None:
    write_at(distant)
    with pytest.raises(StoreError, match="it may have been made"), distant.writing():
        proxy.fault = "refuse"
    for attempt in (partial(write_at, distant), lambda: distant.execute(select(1))):
        with distant._silence.attempt(), pytest.raises(StoreError, match="be reached"):
            attempt()
    # What was not sent was not made.
    distant.close()
    for attempt in (partial(write_at, distant), lambda: distant.execute(select(1))):
        with pytest.raises(StoreError, match="be reached"):
            attempt()


def test_of_many_threads_one_tries_a_silent_database() -> None:
    silence, entered, go = Silence(), list[int](), threading.Event()
    away = StoreError(errno.ENOTCONN, "the database server cannot be reached: no route")

    def call(failure: StoreError | None, waits: bool = True) -> str:
        try:
            with silence.attempt() as note_answer:
                if failure is not None:
                    entered.append(1)
                    if waits:
                        go.wait()
                    raise failure
                note_answer()
        except StoreError as error:
            return f"{error.strerror}"
        return "answered"

    assert "no route" in call(away, waits=False)
    entered.clear()
    with ThreadPoolExecutor(20) as threads:
        calls = [threads.submit(call, away) for _ in range(20)]
        while sum(each.done() for each in calls) < 19:
            assert len(entered) <= 1
        go.set()
        assert {each.result() for each in calls} == {away.strerror}
    # The answer may be an error, such as a lock that no writer gets.
    assert call(StoreError(errno.EBUSY, "locked")) == "locked"
    assert {call(None) for _ in range(2)} == {"answered"}
    assert silence._problem == ""


def test_a_silent_server_does_not_hold_up_other_databases(
    distant: ServerStore, proxy: FaultyProxy, tmp_path: Path
) -> None:
    proxy.fault = "hang"
    file = Store(tmp_path / "file")
    write_at(file)
    file.close()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(lambda: pytest.raises(StoreError, write_at, distant))
        while not schema_module.databases._changing[distant._url].locked():
            pass
        write_at(file)
        assert not waiting.done()
        proxy.fault = "refuse"


def test_two_event_loops_share_a_store(store: Store) -> None:
    async def write_often() -> None:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for _ in range(40):
                    tasks.start_soon(store.run, write_at, store)

    with ThreadPoolExecutor(3) as threads:
        for each in [threads.submit(anyio.run, write_often) for _ in range(3)]:
            each.result()


async def test_claims_are_made_on_a_database_whose_transactions_are_serializable(
    tmp_path: Path,
) -> None:
    strict = "%20-cdefault_transaction_isolation%3Dserializable"
    store = ServerStore(tmp_path, ServerUrl(f"{address(tmp_path).text}{strict}"))
    assert store.query(text("SHOW transaction_isolation")) == [("serializable",)]
    held = list[str]()

    async def use(name: str) -> None:
        claims = Claims(store, name)
        kept = Checkpoints(store, days=7, claims=claims)
        await claims.claim("me", "s")
        held.append(name)
        assert held == [name]
        saved = Saved(session_id="s", name="s", run=1, data=name.encode())
        held.remove(name)
        assert await kept.run(partial(kept.save, "me", saved, release=True)) == ""

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(use, str(number))
    store.close()


async def test_a_bridge_that_ends_leaves_no_row(store: Store) -> None:
    heart = Heartbeat(store, "a")
    async with background_task(heart.beat):
        await until(lambda: bool(heart._others))
    assert store.query(schema_module.bridges.select()) == []


async def test_a_lock_that_no_writer_gets_is_noticed(
    store: Store, postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.store.heartbeat.BEAT_SECONDS", 0.05)
    monkeypatch.setattr("bridge.store.postgresql.ANSWER_SECONDS", 1.5)
    heart = Heartbeat(store, "a")
    async with background_task(heart.beat):
        await until(lambda: bool(heart._others))
        with postgresql.connected() as holder:
            holder.execute("SELECT pg_advisory_lock(7168866)")
            await until(lambda: "keep the database locked" in heart.silence)
        await until(lambda: not heart.silence)
    assert heart.problems == {}
