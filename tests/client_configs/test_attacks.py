"""Races and other users' files do no harm to clients' files."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.cli.install import check_clients
from bridge.client_configs.install import Change, apply, plan_install, read_target, run_own
from bridge.client_configs.journal import Journal, MoveRecord
from bridge.client_configs.writers import targets, writer_for
from bridge.errors import BridgeError, UsageError
from tests.client_configs.test_move import BRIDGE, Rig
from tests.discovery.golden_machine import machine
from tests.discovery.writing import write
from tests.raised import raises_code

SERVERS = {"a": {"command": "a"}, "b": {"command": "b"}}


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(machine(tmp_path, "linux"))


def at_once(*calls: Callable[[], object]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_projects_server_that_is_not_approved_or_changed_does_not_move(rig: Rig) -> None:
    path = write(rig.context.cwd / ".mcp.json", {"mcpServers": SERVERS})
    change = rig.plan(path, rig.mover(), "claude-code", "project")
    assert change.moved
    write(path, {"mcpServers": {**SERVERS, "a": {"command": "another"}}})
    with raises_code("changed_meanwhile"):
        apply(change, rig.journal)
    assert ("another" in path.read_text(), rig.kept.files()) == (True, ())
    rig.context = replace(rig.context, project_servers="approved")
    change = rig.plan(path, rig.mover(), "claude-code", "project")
    assert not change.moved
    assert "servers approve a" in dict(change.refused)["a"]


def test_moves_out_of_several_files_at_once_keep_every_server(rig: Rig) -> None:
    cursor = write(rig.context.home / ".cursor" / "mcp.json", {"mcpServers": {"c": SERVERS["a"]}})
    claude = write(rig.context.home / ".claude.json", {"mcpServers": {"d": SERVERS["b"]}})
    mover = rig.mover()
    changes = [rig.plan(cursor, mover, "cursor"), rig.plan(claude, mover, "claude-code")]
    at_once(*(lambda each=each: apply(each, rig.journal) for each in changes))
    assert sorted(rig.names()) == ["c", "d"]


def test_two_moves_out_of_one_file_at_once_keep_every_server(rig: Rig) -> None:
    path = write(rig.context.home / ".cursor" / "mcp.json", {"mcpServers": SERVERS})
    both, one = (rig.plan(path, rig.mover(names), "cursor") for names in (None, ["b"]))
    at_once(lambda: apply(both, rig.journal), lambda: apply(one, rig.journal))
    assert sorted(rig.names()) == ["a", "b"]
    rig.restore(both.target)
    assert json.loads(path.read_text())["mcpServers"] == SERVERS


def test_a_projects_file_that_became_a_link_is_not_followed_out_of_it(rig: Rig) -> None:
    path = write(rig.context.cwd / ".mcp.json", {"mcpServers": {}})
    home = write(rig.context.home / ".cursor" / "mcp.json", {"mcpServers": SERVERS})
    target = targets(writer_for("claude-code"), "project", rig.machine)[0]
    change = plan_install(target, BRIDGE, read_target(target))
    path.unlink()
    path.symlink_to(home)
    with pytest.raises(UsageError, match="leads out of the project"):
        apply(change, rig.journal)
    assert json.loads(home.read_text()) == {"mcpServers": SERVERS}


@pytest.mark.parametrize("moment", ["records", "edit", "keep"])
@pytest.mark.parametrize("there", [True, False], ids=["a file", "no file"])
def test_a_directory_that_becomes_a_link_is_not_followed(
    rig: Rig, moment: str, there: bool
) -> None:
    home = write(rig.context.home / ".cursor" / "mcp.json", {"mcpServers": SERVERS})
    own = home.read_bytes()
    target = targets(writer_for("cursor"), "project", rig.machine)[0]
    if there:
        write(target.path, {"mcpServers": {}})
    change = plan_install(target, BRIDGE, read_target(target))

    def swap(now: str) -> None:
        place = target.path.parent
        if now == moment and not place.is_symlink():
            if place.exists():
                place.rename(place.with_name("aside"))
            place.symlink_to(home.parent)

    class Swapping(Journal):
        def records(self, path: Path | None = None) -> list[MoveRecord]:
            swap("records")
            return super().records(path)

        def add(self, record: MoveRecord) -> MoveRecord:
            swap("keep")
            return super().add(record)

    def again(now: bytes | None) -> Change:
        swap("edit")
        return change.again(now)

    rig.journal = Swapping(rig.journal.directory)
    with suppress(BridgeError):
        apply(replace(change, again=again), rig.journal)
    assert target.path.parent.is_symlink()
    assert home.read_bytes() == own
    assert list(home.parent.iterdir()) == [home]


def test_a_directory_that_cannot_be_written_is_an_error_that_names_the_file(rig: Rig) -> None:
    rig.journal.directory.parent.mkdir(parents=True)
    rig.journal.directory.write_text("")
    path = write(rig.context.home / ".cursor" / "mcp.json", {"mcpServers": SERVERS})
    with pytest.raises(BridgeError, match="could not be changed"):
        apply(rig.plan(path, rig.mover(), "cursor"), rig.journal)
    assert json.loads(path.read_text()) == {"mcpServers": SERVERS}


async def test_no_command_of_a_client_runs_in_the_project(
    rig: Rig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = await run_own(("/bin/pwd",), rig.machine)
    assert output.strip() == str(rig.context.home)
    program = write(tmp_path / "bin" / "claude", f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    environ = {**rig.context.environ, "PATH": str(program.parent)}
    rig.context = replace(rig.context, environ=environ)
    target = targets(writer_for("claude-code"), "project", rig.machine)[0]
    change = plan_install(target, BRIDGE, None)
    assert await check_clients([change], rig.machine) == 0
    assert "run it yourself" in capsys.readouterr().out
    assert not (tmp_path / "ran").exists()


def test_a_link_that_leads_to_itself_is_refused(rig: Rig) -> None:
    path = rig.context.home / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.symlink_to(path.name)
    target = targets(writer_for("cursor"), "user", rig.machine)[0]
    with pytest.raises(UsageError, match="is not changed"):
        read_target(target)


@pytest.mark.parametrize("path", [":/usr/bin", "/usr/bin:", ".:/usr/bin"])
def test_a_local_program_is_no_client(rig: Rig, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    fake = write(rig.context.cwd / "claude", "#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.chdir(rig.context.cwd)
    rig.context = replace(rig.context, environ={"PATH": path})
    assert rig.machine.program("claude") == ""
