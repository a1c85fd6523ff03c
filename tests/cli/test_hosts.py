"""`hosts`, and `doctor` on hosts: each is tried, and says why it cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.cli import main as main_module
from tests.ssh_rig import fleet


@pytest.mark.podman
@pytest.mark.ssh
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_host_is_tried_and_one_that_is_down_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that works is enough; without any the exit status is 3."""
    with fleet() as hosts:
        monkeypatch.setenv("MCP_BRIDGE_CONFIG", str(hosts.config(tmp_path, slots=3)))
        monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
        hosts.hosts[1].go_down()

        assert main_module.main(["hosts", "--json"]) == 0
        up, down = json.loads(capsys.readouterr().out)
        assert (up["name"], up["up"], up["slots"], up["used"]) == ("a", True, 3, 0)
        assert up["engine"].startswith("podman ")
        assert up["latency_ms"] > 0
        assert (down["name"], down["up"], down["code"]) == ("b", False, "host_down")

        assert main_module.main(["hosts"]) == 0
        said = capsys.readouterr()
        destination = f"{hosts.hosts[0].user}@127.0.0.1"
        heading, first, second = said.out.splitlines()
        assert heading.split()[:3] == ["HOST", "DESTINATION", "STATE"]
        assert first.split()[:6] == ["a", destination, "up", "0", "of", "3"]
        assert second.split()[:3] == ["b", destination, "down"]
        assert f"Try `ssh -p {hosts.hosts[1].port} {destination}`" in said.err

        assert main_module.main(["doctor"]) == 0
        said = capsys.readouterr()
        assert "1 of 2 SSH hosts, 3 slots" in said.out
        assert "Connection refused" in said.out

        hosts.hosts[0].go_down()
        assert main_module.main(["hosts"]) == 3


def test_without_hosts_it_says_where_they_belong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert main_module.main(["hosts"]) == 2
    assert "[[ssh.hosts]]" in capsys.readouterr().err
