"""What `doctor` says of the store: where it is, and why it cannot be used."""

from __future__ import annotations

from pathlib import Path

from bridge.cli.doctor import check_store, describe_store
from bridge.settings import load
from tests.postgresql import PASSWORD, Server


def test_a_store_on_a_server_is_tried_and_shown_without_its_password(
    tmp_path: Path, postgresql: Server
) -> None:
    url = postgresql.url("pg_temp", host="127.0.0.1")
    environ = {"HOME": str(tmp_path), "MCP_BRIDGE_STORE": url}
    said = describe_store(check_store(load({}, environ)))
    assert said == f"store: ok: postgresql://bridge@127.0.0.1:{postgresql.port}/postgres\n"
    environ["MCP_BRIDGE_STORE"] = url.replace(str(postgresql.port), "1")
    said = describe_store(check_store(load({}, environ)))
    assert "store: FAIL: the database server cannot be reached" in said
    assert "MCP_BRIDGE_STORE" in said
    assert PASSWORD not in said
    assert "s3cret" not in said


def test_a_file_that_is_no_database_is_said_and_none_is_made(tmp_path: Path) -> None:
    settings = load({}, {"HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")})
    assert describe_store(check_store(settings)) == f"store: ok: {tmp_path / 'state'}\n"
    assert not (tmp_path / "state").exists()
    (tmp_path / "state").mkdir(mode=0o700)
    (tmp_path / "state" / "store.db").write_bytes(b"no database" * 100)
    assert "damaged" in describe_store(check_store(settings))
