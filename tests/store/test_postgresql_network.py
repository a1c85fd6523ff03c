"""The store on PostgreSQL as services have it: over TLS, behind a pooler, with a standby."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import anyio
import pytest

from bridge.artifacts.store import ArtifactStore, RunArtifacts
from bridge.sessions.checkpoints import Checkpoints, Claims, Saved
from bridge.store import ServerUrl, StoreError
from bridge.store.postgresql import ServerStore
from tests.certificates import certify
from tests.postgresql import LOGIN, PASSWORD, ROLE, Server, pooler, server
from tests.store.test_store import count_together

NAME = "db.internal"


@pytest.fixture
def encrypted(tmp_path: Path) -> Iterator[Server]:
    pair = certify(tmp_path, NAME, f"DNS:{NAME}")
    with server() as made:
        for path in (shutil.copy(each, made.directory) for each in pair):
            owner = made.directory.stat()
            shutil.chown(path, owner.st_uid, owner.st_gid)
            Path(path).chmod(0o600)
        access = made.directory / "data" / "pg_hba.conf"
        access.write_text(f"local all all trust\nhostssl all {ROLE} 127.0.0.1/32 scram-sha-256\n")
        made.options |= {
            "ssl": "on",
            "ssl_cert_file": made.directory / "cert.pem",
            "ssl_key_file": made.directory / "key.pem",
        }
        made.stop()
        made.start()
        yield made


def address(to: Server, host: str = NAME, **said: object) -> ServerUrl:
    given = {"hostaddr": "127.0.0.1", "port": to.port, **said}
    query = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in given.items())
    return ServerUrl(f"postgresql://{LOGIN}@{host}/postgres?{query}")


def put(store: ServerStore, name: str, data: bytes = b"x", *, durable: bool = False) -> None:
    with store.writing(durable=durable) as kept:
        kept.put("kind", "owner", name, data)


def names(store: ServerStore) -> set[str]:
    with store.reading() as kept:
        return {name for name, _ in kept.all("kind", "owner")}


def test_a_server_is_known_by_its_certificate(tmp_path: Path, encrypted: Server) -> None:
    ca = tmp_path / "cert.pem"
    store = ServerStore(tmp_path, address(encrypted, sslmode="verify-full", sslrootcert=ca))
    put(store, "a")
    with store.reading() as kept:
        assert kept.connection is not None
        asked = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
        assert kept.connection.exec_driver_sql(asked).scalar_one() is True
    assert names(store) == {"a"}
    store.close()


@pytest.mark.parametrize(
    ("host", "mode", "said"),
    [
        ("other.internal", "verify-full", "does not match host name"),
        (NAME, "stranger", "certificate verify failed"),
        (NAME, "disable", "cannot be reached|no encryption"),
    ],
)
def test_a_server_that_could_be_another_gets_no_password(
    tmp_path: Path, encrypted: Server, host: str, mode: str, said: str
) -> None:
    if mode == "stranger":
        mode = "verify-full"
        certify(tmp_path, NAME, f"DNS:{NAME}")
    ca = tmp_path / "cert.pem"
    store = ServerStore(tmp_path, address(encrypted, host, sslmode=mode, sslrootcert=ca))
    with pytest.raises(StoreError, match=said) as caught:
        put(store, "a")
    assert PASSWORD not in str(caught.value)
    assert "MCP_BRIDGE_STORE" in caught.value.remedy
    store.close()


def test_bridges_behind_a_pooler_by_transaction_take_turns_and_lose_nothing(tmp_path: Path) -> None:
    with server() as made, pooler(made, connections=3) as url:
        stores = [ServerStore(tmp_path / name, ServerUrl(url)) for name in ("a", "b", "c")]
        assert count_together((*stores, *stores), 20) == b"120"
        # What a transaction was told for itself stays with no one's connection.
        with made.connected() as connection:
            asked = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
            assert connection.execute(asked).fetchone() == (0,)
        kept_by = [ArtifactStore(s, total_bytes=10**8, run_bytes=10**8, days=7) for s in stores]
        artifact = RunArtifacts(kept_by[0], "me", "run").add("x", b"x" * 3_000_000)
        with kept_by[2].opened("me", artifact.uri) as content:
            put(stores[1], "m")
            assert content.read(2_999_990, 10) == b"x" * 10
        for number in range(9):
            claims = Claims(stores[number % 3], "a")
            anyio.run(claims.claim, "me", "s")
            saved = Saved(session_id="s", name="s", run=number + 1)
            sessions = Checkpoints(stores[number % 3], days=7, claims=claims)
            assert sessions.save("me", saved, release=True) == ""
        for store in stores:
            store.close()


def test_a_standby_that_takes_over_has_each_write_that_was_confirmed(tmp_path: Path) -> None:
    with server() as primary, primary.standby() as standby:
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        url = f"postgresql://{LOGIN}@{hosts}/postgres?target_session_attrs=read-write"
        stores = [ServerStore(tmp_path / name, ServerUrl(url)) for name in ("a", "b")]
        put(stores[0], "begun", durable=True)
        confirmed: set[str] = set()
        failures: list[StoreError] = []
        failed, ending = threading.Event(), threading.Event()

        def write(store: ServerStore, number: int) -> None:
            while not ending.is_set():
                name = f"{store.directory.name}-{number}"
                try:
                    put(store, name, durable=True)
                except StoreError as error:
                    failures.append(error)
                    failed.set()
                else:
                    confirmed.add(name)
                number += 1

        threads = [threading.Thread(target=write, args=(store, 0)) for store in stores]
        for thread in threads:
            thread.start()
        while len(confirmed) < 20:
            assert all(thread.is_alive() for thread in threads)
        primary.stop()
        assert failed.wait(30)
        standby.promote()
        before = len(confirmed)
        while len(confirmed) < before + 20:
            assert all(thread.is_alive() for thread in threads)
        ending.set()
        for thread in threads:
            thread.join()
        assert names(stores[0]) >= confirmed
        assert {failure.errno for failure in failures} <= {errno.ENOTCONN, errno.EROFS}
        assert all("MCP_BRIDGE_STORE" in failure.remedy for failure in failures)
        for store in stores:
            store.close()
