"""The store: one database, whole at every moment, of this user alone, and imported when used."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from bridge.store import Store
from bridge.store import schema as schema_module
from bridge.store.store import FILE, VERSION, _read_without_sqlalchemy


def put(store: Store, name: str, data: bytes) -> None:
    with store.writing() as kept:
        kept.put("kind", "owner", name, data)


def get(store: Store, name: str) -> bytes | None:
    with store.reading() as kept:
        return kept.get("kind", "owner", name)


def test_what_is_kept_is_read_back_and_reading_makes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    assert get(store, "a") is None
    with store.reading() as kept:
        assert (kept.listed("kind"), kept.all("kind", "owner")) == ([], [])
        assert kept.owners("kind") == set()
        assert not kept.delete("kind", "owner", "a")
    assert not store.directory.exists()
    put(store, "a", b"1")
    put(store, "a", b"22")
    assert get(Store(tmp_path / "state"), "a") == b"22"
    with store.writing() as kept:
        assert [(one.name, one.size) for one in kept.listed("kind", "owner")] == [("a", 2)]
        assert kept.delete("kind", "owner", "a")
    assert get(store, "a") is None


def test_a_transaction_that_fails_changes_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "a", b"old")

    def fail() -> None:
        with store.writing() as kept:
            kept.put("kind", "owner", "a", b"new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert get(store, "a") == b"old"


def test_it_is_this_user_s_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(tmp_path / "state")
        put(store, "a", b"1")
        content = store.blobs.begin()
        content.write(b"2")
        with store.writing_blob(content, sha256(b"2").hexdigest()):
            os.close(content.descriptor)
    finally:
        os.umask(before)
    for path in (tmp_path / "state", *(tmp_path / "state").rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


def test_what_is_deleted_is_not_left_in_the_file(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "a", b"s3cret-of-somebody" * 10)
    with store.writing() as kept:
        kept.delete("kind", "owner", "a")
    # Its log goes with the last connection.
    schema_module.databases.forget()
    assert not [path for path in tmp_path.iterdir() if b"s3cret" in path.read_bytes()]


def test_no_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "elsewhere").touch()
    (tmp_path / "state" / "store.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="no plain file"):
        put(Store(tmp_path / "state"), "a", b"1")
    assert not (tmp_path / "elsewhere").read_bytes()


def count_together(stores: Sequence[Store], times: int, pause: float = 0.0) -> bytes | None:
    """Add to one number from a thread for each store; return it."""

    def add(store: Store) -> None:
        for _ in range(times):
            with store.writing() as kept:
                number = int(kept.get("kind", "owner", "n") or b"0")
                time.sleep(pause)
                kept.put("kind", "owner", "n", b"%d" % (number + 1))

    with ThreadPoolExecutor(len(stores)) as threads:
        list(threads.map(add, stores))
    return get(stores[0], "n")


def test_writers_take_turns(tmp_path: Path) -> None:
    assert count_together([Store(tmp_path / "state") for _ in range(4)], 10) == b"40"


@pytest.mark.parametrize("damage", [b"no database at all, but a text" * 50, b"SQLite format 3\0"])
def test_a_damaged_database_is_an_error_and_not_empty(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "store.db").write_bytes(damage)
    with pytest.raises(OSError, match="damaged"):
        get(Store(tmp_path), "a")
    with pytest.raises(OSError, match="damaged"):
        put(Store(tmp_path), "a", b"1")


def test_one_that_a_later_version_wrote_is_left_alone(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "a", b"1")
    with store.writing() as kept:
        assert kept.connection is not None
        kept.connection.execute(schema_module.migrations.insert().values(number=99))
    schema_module.databases.forget()
    with pytest.raises(OSError, match="later version"):
        get(Store(tmp_path), "a")


def test_a_new_version_adds_its_migrations_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(Store(tmp_path), "a", b"1")
    schema_module.databases.forget()
    made: list[bool] = []
    more = (*schema_module.MIGRATIONS, lambda _: made.append(True))
    monkeypatch.setattr(schema_module, "MIGRATIONS", more)
    for _ in range(2):
        assert get(Store(tmp_path), "a") == b"1"
    assert made == [True]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    put(store, "a", b"old")

    with store.writing() as kept:
        assert kept.connection is not None
        kept.connection.exec_driver_sql("PRAGMA max_page_count=10")
    with pytest.raises(OSError, match="the disk is full") as caught:
        put(store, "a", b"x" * 1_000_000)
    assert caught.value.errno == errno.ENOSPC
    assert get(store, "a") == b"old"


def test_nothing_is_said_to_the_database_that_another_would_not_understand() -> None:
    for table in schema_module.metadata.sorted_tables:
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        assert str(CreateTable(table).compile(dialect=dialect))


def test_what_a_bridge_reads_at_its_start_imports_no_sqlalchemy(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.writing() as kept:
        kept.put("any", "", "x", b"kept")
    code = """
import sys
from pathlib import Path
from bridge.store import Store
store = Store(Path(sys.argv[1]))
assert store.documents("any", ["x", "y"]) == {"x": b"kept"}
assert "sqlalchemy" not in sys.modules
with store.writing() as kept:
    kept.put("any", "", "y", b"too")
assert store.documents("any", ["x", "y"]) == {"x": b"kept", "y": b"too"}
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert len(schema_module.MIGRATIONS) == VERSION
    # What this version does not know it does not read so, and then says why.
    with store.writing() as kept:
        assert kept.connection is not None
        kept.connection.execute(schema_module.migrations.insert().values(number=VERSION + 1))
    assert _read_without_sqlalchemy(tmp_path / FILE, "any", "", ["x"]) is None
    store.close()
    with pytest.raises(OSError, match="later version"):
        store.documents("any", ["x"])


def test_a_plain_run_makes_no_database_and_imports_no_sqlalchemy(tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "XDG_RUNTIME_DIR": str(tmp_path / "run"),
        "MCP_BRIDGE_RUNTIME": "bubblewrap",
    }
    run = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "bridge", "run", "-c", "print(6 * 7)"],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "42\n"), run.stderr[-2000:]
    imported = {line.rpartition("|")[2].strip() for line in run.stderr.splitlines()}
    assert "bridge.store.store" in imported
    assert not {
        name for name in imported if name.partition(".")[0] in ("sqlalchemy", "sqlite3", "psycopg")
    }
    assert "bridge.store.postgresql" not in imported
    assert not list(tmp_path.rglob("store.db*"))
