"""Approving a project's servers at the terminal."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from bridge.cli import servers as commands
from bridge.cli.person import Person
from bridge.settings import load
from tests.cli.desk import command_line, desk
from tests.discovery.writing import write
from tests.engine_rig import WORKSHOP, settings_in
from tests.waiting import typing_answers

ENTRY = {"command": "./run\x1b[2J.sh", "args": ["--fast"], "env": {"NODE_OPTIONS": "-r ./x.js"}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    write(project / ".mcp.json", {"mcpServers": {"tracker": ENTRY}})
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(project)
    return project


def _audit_lines(state: Path) -> list[str]:
    files = sorted((state / "audit").glob("*.jsonl"))
    return [line for file in files for line in file.read_text().splitlines()]


@pytest.mark.guarantee("project-servers")
def test_a_definition_is_approved_by_its_digest_where_nobody_can_be_asked(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        return command_line(capsys)("servers", *words)

    def state() -> str:
        [row] = json.loads(run("--json")[1])
        return str(row["state"])

    [_, listed, _] = run()
    assert "Not approved" in listed
    assert "servers approve NAME" in listed
    status, _, told = run("approve", "tracker")
    assert status == 2
    assert "NODE_OPTIONS" in told
    assert "\x1b" not in told
    [row] = json.loads(run("--json")[1])
    digits = row["digest"].removeprefix("sha256:")
    assert f"tracker@{digits[:32]}" in told
    assert run("approve", f"tracker@{digits[:31]}")[0] == 2
    assert run("approve", f"tracker@{'0' * 32}")[0] == 2
    assert run("approve", "unknown")[0] == 2
    assert run("approve")[0] == 2
    assert state() == "proposed"
    assert run("approve", f"tracker@{digits[:32]}")[0] == 0
    assert state() == "idle"
    assert "tracker is approved already." in run("approve", "tracker")[2]
    records = [json.loads(line) for line in _audit_lines(project.parent / "state")]
    assert [(record["kind"], record["how"]) for record in records] == [("approved", "terminal")]
    write(project / ".mcp.json", {"mcpServers": {"tracker": {**ENTRY, "args": []}}})
    assert state() == "proposed"
    status, _, told = run("approve", f"tracker@{digits}")
    assert (status, "has changed since it was shown" in told) == (2, True)


async def test_at_a_terminal_it_is_shown_and_asked_about(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load({}, dict(os.environ))
    with desk() as (typist, reader, writer):
        person = Person(reader, writer)

        monkeypatch.setattr(commands, "Person", lambda: person)

        async def approve(answer: str) -> tuple[int, str]:
            async with typing_answers(typist, answer) as told:
                status = await commands.approve(settings, names=["tracker"])
            return status, told[0]

        status, shown = await approve("no\n")
        assert status == 1
        assert "./run\\u001b[2J.sh" in shown
        assert "--fast" in shown
        assert "used as shown above (" in shown
        assert "-r ./x.js" in shown
        assert str(project / ".mcp.json") in shown
        assert (await approve("yes\n"))[0] == 0


def test_a_definition_of_the_users_own_that_changed_is_approved_so_that_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_in(tmp_path)
    (tmp_path / "config.toml").write_text("[policy]\n")
    for name in ("HOME", "MCP_BRIDGE_STATE_DIR"):
        monkeypatch.setenv(name, settings.environ[name])
    monkeypatch.setenv("MCP_BRIDGE_CONFIG", str(tmp_path / "config.toml"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)

    def define(*words: str) -> None:
        entry = {"command": sys.executable, "args": [str(WORKSHOP), *words]}
        write(tmp_path / ".claude.json", {"mcpServers": {"shop": entry}})

    def run(*words: str) -> tuple[int, str, str]:
        return command_line(capsys)("servers", *words)

    def row() -> dict[str, str]:
        [found] = json.loads(run("--json")[1])
        assert isinstance(found, dict)
        return found

    define()
    assert (run("--check")[0], row()["start"]) == (0, "allow")
    first = row()["definition"]
    define("--more\x1b[2J")
    second = row()["definition"]
    assert (row()["start"], "another definition" in row()["reason"]) == ("ask", True)
    status, listed, _ = run("--check")
    assert (status, "servers approve shop" in listed) == (4, True)
    status, _, told = run("approve", "shop")
    assert status == 2
    assert str(WORKSHOP) in told
    assert "--more" in told
    assert "\x1b" not in told
    assert first[:19] in told
    digits = second.removeprefix("sha256:")
    assert f"shop@{digits[:32]}" in told
    assert run("approve", f"shop@{digits[:31]}")[0] == 2
    assert run("approve", f"shop@{first.removeprefix('sha256:')}")[0] == 2
    assert row()["start"] == "ask"
    assert run("approve", f"shop@{digits[:32]}")[0] == 0
    assert (run("--check")[0], row()["start"]) == (0, "allow")
    assert "shop needs no approval." in run("approve", "shop")[2]
