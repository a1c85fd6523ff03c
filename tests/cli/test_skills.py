"""The skills at the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bridge.cli.main import main


def test_skills_are_listed_shown_approved_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_BRIDGE_SKILLS_DIR", str(tmp_path / "skills"))
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["skills", *words])
        told = capsys.readouterr()
        return status, told.out, told.err

    assert run("list")[2].startswith("No skill is saved in ")
    (tmp_path / "skills").mkdir()
    (tmp_path / "skills" / "greet.py").write_text("def greet():\n    '''Say \x1b[1mhello.'''\n")
    (tmp_path / "skills" / "broken.py").write_text("def broken(:")
    [_, listed, _] = run("list")
    assert "unusable" in listed
    assert "not reviewed, edited" in listed
    assert "\x1b" not in listed
    [_, shown, _] = run("show", "greet")
    assert "Say \\x1b[1mhello." in shown
    assert run("show", "gret")[0] == 2
    assert "may be used as long as it stays as it is" in run("approve", "greet")[2]
    found = {each["name"]: each["approved"] for each in json.loads(run("list", "--json")[1])}
    assert found == {"broken": False, "greet": True}
    assert json.loads(run("show", "--json", "greet")[1])["signature"] == "greet()"
    assert run("rm", "greet", "broken")[0] == 0
    assert list((tmp_path / "skills").iterdir()) == []
    assert run("rm", "greet")[0] == 2
