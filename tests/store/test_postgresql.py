"""The store on a PostgreSQL server: what several bridges need of it, and how it fails."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.errors import ArtifactStoreError
from bridge.event_loop import _samples
from bridge.gate.pins import Pins
from bridge.model import Tool
from bridge.saved_functions.documents import Memories
from bridge.sessions.checkpoints import Checkpoints
from bridge.settings import load, store_of
from bridge.store import ServerUrl, Store, StoreError
from bridge.store.postgresql import ServerStore
from bridge.store.schema import migrations
from tests import postgresql as servers
from tests.postgresql import PASSWORD, Server, store_at
from tests.raised import raises_code
from tests.store.test_store import count_together, get, put

pytestmark = pytest.mark.usefixtures("postgresql")

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def own_server() -> Iterator[Server]:
    with servers.server() as started:
        yield started


def artifacts_at(store: Store) -> ArtifactStore:
    return ArtifactStore(store, total_bytes=10**8, run_bytes=10**8, days=7)


def together(code: str, directory: Path, *names: str) -> None:
    words = [sys.executable, "-c", code, str(directory)]
    started = [subprocess.Popen([*words, name], cwd=REPOSITORY) for name in names]
    assert [process.wait() for process in started] == [0] * len(names)


@pytest.mark.parametrize(
    "options",
    [
        # An administrator may set it for a role or a database.
        ("-cdefault_transaction_isolation=serializable",) * 2,
        # Somebody made a schema of the role's own name after the tables, say.
        ("", "-csearch_path=t_later,{schema}"),
    ],
)
def test_bridges_take_turns_whatever_the_server_s_and_their_roles_settings_are(
    tmp_path: Path, postgresql: Server, options: tuple[str, str]
) -> None:
    schema = servers.address(tmp_path)
    put(ServerStore(tmp_path, schema), "n", b"0")
    with postgresql.connected() as connection:
        connection.execute("CREATE SCHEMA t_later")
    name = schema.text.rpartition("%3D")[2]
    added = ("%20" + quote(each.format(schema=name)) if each else "" for each in options)
    stores = [ServerStore(tmp_path, ServerUrl(schema.text + each)) for each in added]
    assert count_together(stores, 50, pause=0.002) == b"100"


SAME = """
import sys
from pathlib import Path
from bridge.artifacts.store import ArtifactStore, RunArtifacts
from tests.postgresql import store_at
kept = ArtifactStore(store_at(Path(sys.argv[1])), total_bytes=10**8, run_bytes=10**8, days=7)
for number in range(30):
    data = b"%d " % (number % 3) * 400_000
    artifact = RunArtifacts(kept, "me", "run").add("same", data)
    assert kept.read("me", artifact.uri) == data
    kept.remove("me", artifact.uri)
"""


def test_a_content_that_one_bridge_removes_stays_for_another_that_keeps_it(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    together(SAME, tmp_path, "a", "b")
    assert store.blobs.all() == set()


HANGING = """
import os, signal, sys
from pathlib import Path
from tests.postgresql import store_at
with store_at(Path(sys.argv[1])).writing() as kept:
    kept.put("kind", "owner", "a", b"half")
    print("up", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_bridge_that_hangs_in_a_transaction_loses_its_turn(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, "a", b"old")
    with subprocess.Popen(
        [sys.executable, "-c", HANGING, str(tmp_path)], stdout=subprocess.PIPE, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        put(store, "b", b"mine")
        assert (get(store, "a"), get(store, "b")) == (b"old", b"mine")
        process.send_signal(signal.SIGKILL)


def test_what_was_read_at_the_beginning_is_read_to_the_end(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    put(store, "a", b"1")
    with store.reading() as kept:
        assert kept.get("kind", "owner", "a") == b"1"
        put(store, "a", b"2")
        assert kept.get("kind", "owner", "a") == b"1"
    assert get(store, "a") == b"2"


def test_a_server_that_ends_is_an_error_with_a_remedy_and_is_used_again_when_it_is_back(
    tmp_path: Path, own_server: Server
) -> None:
    store = ServerStore(tmp_path, ServerUrl(own_server.url()))
    put(store, "a", b"1")
    own_server.stop()
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be reached") as caught:
            get(store, "a")
        assert caught.value.errno == errno.ENOTCONN
        assert "MCP_BRIDGE_STORE" in caught.value.remedy
    with pytest.raises(ArtifactStoreError, match="cannot be reached") as refused:
        RunArtifacts(artifacts_at(store), "me", "run").add("x", b"x")
    assert "MCP_BRIDGE_STORE" in refused.value.remedy
    own_server.start()
    # What did not wait for the disk may be gone; the tables are not.
    assert get(store, "a") in (b"1", None)
    with own_server.connected() as connection:
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    with pytest.raises(StoreError, match="has no tables"):
        get(store, "a")
    put(store, "a", b"2")
    assert get(store, "a") == b"2"
    store.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("s3cret", "0ther"), "refuses the login"),
        (("/postgres", "/nothing"), 'database "nothing" does not exist'),
        (("?", "?sslmode=n0ne&"), "no address that libpq reads|cannot be reached"),
    ],
)
def test_an_address_that_does_not_do_is_an_error_that_shows_no_password(
    tmp_path: Path,
    postgresql: Server,
    caplog: pytest.LogCaptureFixture,
    change: tuple[str, str],
    said: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    url = postgresql.url(host="127.0.0.1") + "connect_timeout=5"
    store = ServerStore(tmp_path, ServerUrl(url.replace(*change)))
    with pytest.raises(StoreError, match=said) as caught:
        put(store, "a", b"1")
    told = "".join([str(caught.value), repr(caught.value), caplog.text, repr(store.place)])
    assert caught.value.__cause__ is None
    for secret in (PASSWORD, PASSWORD.replace(" ", "%20"), "0ther"):
        assert secret not in told


def test_a_database_without_an_encoding_has_every_text(tmp_path: Path, postgresql: Server) -> None:
    with postgresql.connected() as connection:
        connection.execute("DROP DATABASE IF EXISTS plain")
        connection.execute(
            "CREATE DATABASE plain ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0"
        )
    store = ServerStore(tmp_path, ServerUrl(postgresql.url(database="plain")))
    kept = artifacts_at(store)
    artifact = RunArtifacts(kept, "me", "run").add("übersicht.txt", b"x")
    assert (artifact.name, kept.find_all("me")) == ("übersicht.txt", (artifact,))
    store.close()


def test_an_interrupted_upload_is_removed_when_the_store_is_tidied(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    kept = artifacts_at(store)
    stays = RunArtifacts(kept, "me", "run").add("stays", b"s" * 2_500_000)
    unfinished = store.blobs.begin()
    unfinished.write(b"never named")
    store.blobs.prepare(unfinished, "f" * 64)
    store.blobs.discard(unfinished)
    assert store.blobs.all() == {stays.digest, "f" * 64}
    kept.tidy()
    assert store.blobs.all() == {stays.digest}
    assert kept.read("me", stays.uri, 1_048_570, 20) == b"s" * 20


EVERYTHING = """
import sys
from pathlib import Path
import anyio
from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.gate.pins import Pins
from bridge.model import Tool
from bridge.sessions.checkpoints import Checkpoints, Saved
from bridge.saved_functions.documents import Memories
from tests.postgresql import store_at

async def main(me):
    store = store_at(Path(sys.argv[1]))
    kept = ArtifactStore(store, total_bytes=10**8, run_bytes=10**8, days=7)
    memories, pins, sessions = Memories(store, "me"), Pins(store), Checkpoints(store, days=7)
    for number in range(15):
        RunArtifacts(kept, "me", f"run-{me}").add(f"{number}", b"%d" % number * 1000)
        while True:
            before = memories.get("n")
            after = (before.revision, before.value + 1) if before else ("", 1)
            if memories.put("n", after[1], unless_after=after[0]) is not None:
                break
        await pins.refresh()
        await pins.keep(Tool(server="s", name=f"{me}-{number}"))
        await pins.keep(Tool(server="s", name="same", output_schema={"type": me}))
        saved = Saved(session_id="s", name=me, run=number, data=me.encode() * 2_000_000)
        assert sessions.save("me", saved) == ""

anyio.run(main, sys.argv[2])
"""


async def test_two_bridges_at_once_lose_and_mix_up_nothing_of_any_kind(tmp_path: Path) -> None:
    together(EVERYTHING, tmp_path, "a", "b")
    store = store_at(tmp_path)
    with store.reading() as read:
        assert read.connection is not None
        assert [row.number for row in read.connection.execute(migrations.select())] == [1, 2]
    kept = artifacts_at(store)
    names = [(one.run_id, one.name) for one in kept.find_all("me")]
    assert sorted(names) == sorted((f"run-{me}", f"{n}") for me in "ab" for n in range(15))
    assert all(kept.read("me", one.uri) for one in kept.find_all("me"))
    memory = Memories(store, "me").get("n")
    assert memory is not None
    assert memory.value == 30
    pins = Pins(store)
    await pins.refresh()
    for me in "ab":
        for number in range(15):
            tool = Tool(server="s", name=f"{me}-{number}", output_schema={})
            assert pins.change(tool) == "its output schema changed"
    # Of two that saw the tool first, each its own way, one was first.
    same = [pins.change(Tool(server="s", name="same", output_schema={"type": me})) for me in "ab"]
    assert sorted(same) == ["", "its output schema changed"]
    (session,) = Checkpoints(store, days=7).all("me")
    loaded, why = Checkpoints(store, days=7).load("me", "s")
    assert loaded is not None, why
    assert loaded.data == session.name.encode() * 2_000_000
    assert len(store.blobs.all()) == 15


async def test_pins_of_another_bridge_are_seen_and_without_the_server_tools_count_as_changed(
    tmp_path: Path, own_server: Server
) -> None:
    stores = [ServerStore(tmp_path, ServerUrl(own_server.url())) for _ in range(2)]
    first, second = map(Pins, stores)
    tool = Tool(server="git", name="push")
    await second.refresh()
    await first.keep(tool)
    changed = replace(tool, output_schema={})
    await second.refresh(changed)
    assert second.change(changed) == "its output schema changed"
    own_server.stop()
    await second.refresh(changed)
    assert "MCP_BRIDGE_STORE" in second.change(changed)
    await first.refresh(tool)
    assert first.change(tool) == ""
    own_server.start()
    await second.refresh(changed)
    assert second.change(changed) == "its output schema changed"
    stores[0].close()


def test_a_store_that_cannot_be_reached_does_not_keep_a_run_from_running(tmp_path: Path) -> None:
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
        "MCP_BRIDGE_STORE": "postgresql://me:s3cret@127.0.0.1:1/nothing",
    }
    code = "print(6 * 7)\ntry: await runtime.save_memory('k', 1)\nexcept Exception as e: print(e)"
    command = [sys.executable, "-m", "bridge", "run", "-c", code]
    run = subprocess.run(
        command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("42\n")
    assert "the database server cannot be reached" in run.stdout
    assert "s3cret" not in run.stdout + run.stderr


def test_what_there_is_no_room_for_does_not_stay_on_the_server(tmp_path: Path) -> None:
    store = store_at(tmp_path)
    kept = ArtifactStore(store, total_bytes=1_000, run_bytes=1_000, days=7)
    for number in range(3):
        RunArtifacts(kept, "you", f"run{number}").add("x", b"%d" % number * 330)
    before = store.blobs.all()
    with raises_code("artifact_quota"):
        RunArtifacts(kept, "me", "run").add("x", b"y" * 990)
    assert store.blobs.all() == before


def test_a_server_that_ends_while_a_content_is_read_is_the_store_s_error(
    tmp_path: Path, own_server: Server
) -> None:
    kept = artifacts_at(ServerStore(tmp_path, ServerUrl(own_server.url())))
    artifact = RunArtifacts(kept, "me", "run").add("x", b"x" * 3_000_000)

    def read() -> None:
        with kept.opened("me", artifact.uri) as content:
            assert content.read(0, 10) == b"x" * 10
            own_server.stop()
            content.read(2_000_000, 10)

    with pytest.raises(ArtifactStoreError, match="cannot be reached"):
        read()


def test_a_bridge_has_no_more_connections_than_its_setting_says(
    tmp_path: Path, own_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.store.postgresql.ANSWER_SECONDS", 0.5)

    def answers() -> float:
        return _samples["store_seconds"]["store_seconds_count{}"]

    flags = {"store": own_server.url(), "store_pool": "3", "state_dir": str(tmp_path)}
    store = store_of(load(flags, {"HOME": str(tmp_path)}))
    assert get(store, "a") is None
    before = answers()
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(store.reading())
        with pytest.raises(StoreError, match="all connections to the database are in use"):
            get(store, "a")
    # The one that got no connection is no answer.
    assert answers() - before == 3
    assert get(store, "a") is None
    assert store.pool == 3
    store.close()


@pytest.mark.parametrize(
    ("more", "said"),
    [(True, "cannot be reached"), (False, "before it confirmed a change; it may have been made")],
)
def test_a_server_that_does_not_answer_is_given_up_and_what_it_may_have_done_is_said(
    tmp_path: Path, own_server: Server, monkeypatch: pytest.MonkeyPatch, more: bool, said: str
) -> None:
    """One of its processes is stopped, and so never notices its own limit on time."""
    monkeypatch.setattr("bridge.store.postgresql.ANSWER_SECONDS", 0.5)
    store = ServerStore(tmp_path, ServerUrl(own_server.url()))
    stopped: list[int] = []

    def stop() -> None:
        with store.writing(durable=True) as kept:
            assert kept.connection is not None
            kept.put("kind", "owner", "a", b"1")
            stopped.append(kept.connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())
            os.kill(stopped[-1], signal.SIGSTOP)
            if more:
                kept.put("kind", "owner", "a", b"2")

    with pytest.raises(StoreError, match=said):
        stop()
    if more:
        assert get(store, "a") is None
        store.close()
    os.kill(stopped[0], signal.SIGCONT)
    while not more and get(store, "a") is None:
        assert Path(f"/proc/{stopped[0]}").exists() or get(store, "a") == b"1"
    store.close()


def test_a_server_without_room_for_connections_says_so_and_is_used_again_with_room(
    tmp_path: Path,
) -> None:
    with servers.server(max_connections=4) as small:
        store = ServerStore(tmp_path, ServerUrl(small.url()))
        put(store, "a", b"1")
        store.close()
        with ExitStack() as others:
            held = 0
            while held < 4:
                # The server ends the process of the closed store in its own time.
                with suppress(psycopg.OperationalError):
                    others.enter_context(small.connected())
                    held += 1
            with pytest.raises(StoreError, match="too many clients") as refused:
                get(store, "a")
            assert "MCP_BRIDGE_STORE" in refused.value.remedy
        while True:
            # The server ends the others' processes in its own time.
            with suppress(StoreError):
                assert get(store, "a") == b"1"
                break
        store.close()


def test_an_artifact_that_was_reported_survives_a_crash_of_the_server(tmp_path: Path) -> None:
    with servers.server(wal_writer_delay="10s") as own:
        store = ServerStore(tmp_path, ServerUrl(own.url()))
        artifact = RunArtifacts(artifacts_at(store), "me", "run").add("x", b"x" * 10**6)
        own.stop()
        own.start()
        with suppress(StoreError, ArtifactStoreError):
            store.check()
        assert artifacts_at(store).read("me", artifact.uri) == b"x" * 10**6
        store.close()
