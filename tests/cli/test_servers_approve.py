"""Approving a project's servers at the terminal."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from bridge.cli import servers as commands
from bridge.cli.terminal import Person
from bridge.settings import load
from tests.audit_rig import records
from tests.cli.desk import Cli, desk
from tests.discovery.writing import write
from tests.engine_rig import WORKSHOP
from tests.waiting import typing_answers

ENTRY = {"command": "./run\x1b[2J.sh", "args": ["--fast"], "env": {"NODE_OPTIONS": "-r ./x.js"}}


@pytest.fixture
def project(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(home / "project" / ".mcp.json", {"mcpServers": {"tracker": ENTRY}})
    monkeypatch.chdir(home / "project")
    return home / "project"


@pytest.mark.guarantee("project-servers")
def test_a_script_approves_a_definition_by_its_digest(project: Path, cli: Cli) -> None:
    run = partial(cli, "servers")

    def state() -> str:
        [row] = json.loads(run("--json")[1])
        return str(row["state"])

    assert "servers approve NAME" in run()[1]
    status, _, told = run("approve", "tracker")
    assert status == 2
    assert "NODE_OPTIONS" in told
    assert "\x1b" not in told
    [row] = json.loads(run("--json")[1])
    digits = row["digest"].removeprefix("sha256:")
    assert f"tracker@{digits[:32]}" in told
    for wrong in ([f"tracker@{digits[:31]}"], [f"tracker@{'0' * 32}"], ["unknown"], []):
        assert run("approve", *wrong)[0] == 2
    assert state() == "proposed"
    assert run("approve", f"tracker@{digits[:32]}")[0] == 0
    assert state() == "idle"
    assert "tracker is already approved." in run("approve", "tracker")[2]
    [approved] = records(project.parent / "state" / "audit")
    assert (approved["kind"], approved["how"]) == ("approved", "terminal")
    write(project / ".mcp.json", {"mcpServers": {"tracker": {**ENTRY, "args": []}}})
    assert state() == "proposed"
    status, _, told = run("approve", f"tracker@{digits}")
    assert (status, "has changed since it was shown" in told) == (2, True)


async def test_a_terminal_shows_a_server_and_asks(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load({}, dict(os.environ))
    with desk() as (typist, reader, writer):
        monkeypatch.setattr(commands, "Person", lambda: Person(reader, writer))

        async def approve(answer: str) -> tuple[int, str]:
            async with typing_answers(typist, answer) as told:
                status = await commands.approve(settings, names=["tracker"])
            return status, told[0]

        status, shown = await approve("no\n")
        assert status == 1
        place = str(project / ".mcp.json")
        for part in ("./run\\u001b[2J.sh", "--fast", "used as shown above (", "-r ./x.js", place):
            assert part in shown
        assert (await approve("yes\n"))[0] == 0


def test_a_changed_server_of_the_user_starts_after_its_approval(
    home: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    run = partial(cli, "servers")
    config = write(home / "config.toml", "[policy]\n")
    monkeypatch.setenv("MCP_BRIDGE_CONFIG", str(config))
    (home / "work").mkdir()
    monkeypatch.chdir(home / "work")

    def define(*words: str) -> None:
        entry = {"command": sys.executable, "args": [str(WORKSHOP), *words]}
        write(home / ".claude.json", {"mcpServers": {"shop": entry}})

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
    digits = second.removeprefix("sha256:")
    assert (status, "\x1b" in told) == (2, False)
    for part in (str(WORKSHOP), "--more", first[:19], f"shop@{digits[:32]}"):
        assert part in told
    for wrong in (digits[:31], first.removeprefix("sha256:")):
        assert run("approve", f"shop@{wrong}")[0] == 2
    assert row()["start"] == "ask"
    assert run("approve", f"shop@{digits[:32]}")[0] == 0
    assert (run("--check")[0], row()["start"]) == (0, "allow")
    assert "shop needs no approval." in run("approve", "shop")[2]
