"""`run --session`: each command is a bridge of its own, and continues with the same session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bridge.cli.main import main
from tests.audit_rig import records


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state directory of its own, and no servers of this machine's user."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("MCP_BRIDGE_RUNTIME", "bubblewrap")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["run", "--json", "--session", "work", *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return status, document


def _contents(home: Path) -> list[Path]:
    return [path for path in (home / "state" / "blobs").rglob("*") if path.is_file()]


def test_a_session_goes_on_in_the_next_command_until_it_is_ended(
    capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    status, first = _run(capsys, "-c", "x = 41\nopen('.a.txt', 'w').write('kept')")
    assert (status, first["session"]["state"]) == (0, "new")
    status, second = _run(capsys, "-c", "[x + 1, open('.a.txt').read()]")
    assert (status, second["result"]) == (0, [42, "kept"])
    assert (second["session"]["state"], second["session"]["run"]) == ("restored", 2)
    assert _contents(home)
    status, ended = _run(capsys, "--end-session")
    assert (status, ended["session"]["state"]) == (0, "ended")
    assert not _contents(home)
    began = [each for each in records(home / "state" / "audit") if each["kind"] == "run"]
    assert {(each["principal"], each["clientSays"]) for each in began} == {("terminal", "cli")}
    status, unknown = _run(capsys, "--end-session")
    assert status == 2
    assert "unknown_session" in unknown["error"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--end-session", "-c", "1"], "`end_session` needs `session`"),
        (["--end-session"], "--end-session needs --session NAME"),
        (["--session", "no spaces", "-c", "1"], "`session` must be a name"),
        (["--session", "work"], "Name a FILE"),
    ],
)
def test_a_session_that_is_asked_for_badly_is_explained(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert main(["run", *arguments]) == 2
    assert message in capsys.readouterr().err
