"""`store`: what an operator of several bridges sees and sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.desk import Cli
from tests.postgresql import VARIABLE, Server, address


def test_the_limits_of_a_shared_store_are_shown_and_set(
    home: Path, cli: Cli, postgresql: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, postgresql.url())
    url = address(home)
    monkeypatch.setenv("MCP_BRIDGE_STORE", url.text)
    status, out, _ = cli("store", "limits", "--set", "--json")
    assert status == 0
    assert json.loads(out)[0]["store"] == json.loads(out)[0]["bridge"]
    with monkeypatch.context() as other:
        other.setenv("MCP_BRIDGE_ARTIFACT_DAYS", "3")
        status, out, _ = cli("store", "limits", "--json")
    artifacts = next(row for row in json.loads(out) if row["kind"] == "artifacts")
    assert (artifacts["store"]["days"], artifacts["bridge"]["days"]) == (7, 3)
    status, out, _ = cli("store", "status", "--json")
    assert json.loads(out)["bridges"] == []
    assert url.text not in out
    assert cli("store", "migrate")[0] == 0


def test_a_bridge_without_a_shared_store_says_so(cli: Cli) -> None:
    status, _, err = cli("store", "status")
    assert status == 2
    assert "MCP_BRIDGE_STORE" in err
