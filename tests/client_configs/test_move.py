"""Servers move behind the bridge and return; the client's file loses nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.atomic_files import exclusive_lock
from bridge.client_configs.entry import Entry
from bridge.client_configs.install import Change, apply, plan_install, plan_uninstall, read_target
from bridge.client_configs.journal import Journal, MovedServers
from bridge.client_configs.move import SCOPES, Mover, move_only, tables_of, with_move, with_restore
from bridge.client_configs.writers import WRITERS, Scope, Target, targets, writer_for
from bridge.discovery.finder import DiscoveryContext, discover
from bridge.discovery.locations import Machine, machine_of
from bridge.discovery.moved import MANIFEST, MovedFile
from tests.discovery.golden_cases import CASES, Case
from tests.discovery.golden_machine import location_of, machine, put
from tests.discovery.test_moved import found_in
from tests.discovery.writing import write

ROOT = Path(__file__).parents[2]

BRIDGE = Entry(command="/opt/bin/mcp-code-bridge", args=("serve",), env={"PATH": "/bin"})


class Rig:
    """A user's machine, and the steps of the commands."""

    def __init__(self, context: DiscoveryContext) -> None:
        directory = context.home / ".config" / "mcp-code-bridge" / "moved"
        self.context = replace(context, moved=directory)
        self.kept = MovedServers(directory)
        self.journal = Journal(context.home / ".local" / "state" / "clients")

    @property
    def machine(self) -> Machine:
        return machine_of(self.context)

    def mover(self, names: Sequence[str] | None = None, *, logged_in: bool = False) -> Mover:
        return Mover(
            names=names,
            discovery=discover(self.context),
            kept=self.kept,
            logged_in=lambda spec: logged_in,
        )

    def plan(self, path: Path, mover: Mover, client: str, scope: str = "user") -> Change:
        tables = tables_of(self.machine, client, scope)[path]
        return with_move(move_only(tables[0], read_target(tables[0])), tables, mover)

    def move(self, path: Path, client: str, scope: str = "user") -> Change:
        change = self.plan(path, self.mover(), client, scope)
        apply(change, self.journal)
        return change

    def restore(self, target: Target) -> Change:
        change = with_restore(move_only(target, read_target(target)), self.kept, self.journal)
        apply(change, self.journal)
        return change

    def names(self) -> list[str]:
        return [spec.name for spec in discover(self.context).servers]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(machine(tmp_path, "linux"))


def of_writer(case: Case) -> tuple[str, Scope] | None:
    """Return the client and scope under which a file is written, if any."""
    row = location_of(case)
    scope: Scope = "project" if row.in_project else "user"
    written = row.scope in SCOPES and "linux" in row.platforms and bool(row.dialect.server_keys)
    for writer in WRITERS.values():
        named = row.template in writer.files or writer.id == row.id
        if written and named and (writer.source or writer.id) == row.id:
            return writer.id, scope
    return None


WRITTEN = [case for case in CASES if of_writer(case) and "bare" not in case.given]


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: f"{case.template}:{case.given}")
def test_all_servers_move_and_come_back_to_the_byte(case: Case, rig: Rig, tmp_path: Path) -> None:
    client, scope = of_writer(case) or ("", "")
    path = put(tmp_path, case)
    raw, before = path.read_bytes(), discover(rig.context)
    change = rig.move(path, client, scope)
    moved = discover(rig.context)
    assert sorted(map(repr, found_in(moved))) == sorted(map(repr, found_in(before)))
    here = [spec for spec in moved.servers if spec.name in change.moved]
    assert all(spec.source.moved_from == str(path) for spec in here)
    assert change.moved
    back = rig.restore(change.target)
    assert path.read_bytes() == raw
    assert set(back.restored) == set(change.moved)
    assert discover(rig.context) == replace(before, stamp=discover(rig.context).stamp)
    assert [each.name for each in rig.kept.directory.iterdir()] == [MANIFEST]


CURSOR = """{
  // mine
  "mcpServers": {
    "first": {"command": "a"}, // the first
    "second": {"command": "b", "disabled": true},
    "third": {"command": "c", "env": {"KEY": "${env:TOKEN}"}}
  }
}
"""


@pytest.fixture
def cursor(rig: Rig) -> Path:
    return write(rig.context.home / ".cursor" / "mcp.json", CURSOR)


def test_a_move_after_an_installation_and_both_come_back(rig: Rig, cursor: Path) -> None:
    target = targets(writer_for("cursor"), "user", rig.machine)[0]
    change = plan_install(target, BRIDGE, read_target(target))
    apply(change, rig.journal)
    rig.move(cursor, "cursor")
    rig.restore(target)
    raw = read_target(target)
    apply(plan_uninstall(target, change.name, raw, rig.journal), rig.journal)
    assert cursor.read_text() == CURSOR


def test_named_servers_move_one_by_one_and_return_together(rig: Rig, cursor: Path) -> None:
    for name in ("third", "first"):
        change = rig.plan(cursor, rig.mover([name]), "cursor")
        apply(change, rig.journal)
        assert list(change.moved) == [name]
        assert sorted(rig.names()) == ["first", "third"]
        assert '"second"' in cursor.read_text()
    back = rig.restore(tables_of(rig.machine, "cursor", "user")[cursor][0])
    assert cursor.read_text() == CURSOR
    assert set(back.restored) == {"first", "third"}


def test_servers_return_to_their_places_in_a_file_that_has_changed(rig: Rig, cursor: Path) -> None:
    target = rig.move(cursor, "cursor").target
    # A disabled server stays disabled behind the bridge.
    skipped = discover(rig.context).skipped
    assert [(each.name, each.holds_name) for each in skipped] == [("second", True)]
    key = '"mcpServers": {'
    cursor.write_text(cursor.read_text().replace(key, key + '"new": {"command": "n"}'))
    back = rig.restore(target)
    assert any("one by one" in note for note in back.notes)
    assert rig.names() == ["first", "third", "new"]
    assert '"first": {"command": "a"}, // the first\n' in cursor.read_text()
    assert rig.kept.files() == ()


def test_a_newer_server_of_the_name_is_not_overwritten(rig: Rig, cursor: Path) -> None:
    target = rig.move(cursor, "cursor").target
    write(cursor, {"mcpServers": {"first": {"command": "newer"}}})
    change = rig.plan(cursor, rig.mover(), "cursor")
    assert dict(change.refused)["first"].startswith("another server of this name has moved")
    assert not change.moved
    back = rig.restore(target)
    assert json.loads(cursor.read_text())["mcpServers"]["first"] == {"command": "newer"}
    assert back.restored == ("second", "third")
    assert any(note.startswith("first stays behind the bridge") for note in back.notes)
    assert [entry.name for file in rig.kept.files() for entry in file.entries] == ["first"]
    write(cursor, {"mcpServers": {}})
    assert rig.restore(target).restored == ("first",)
    assert rig.names() == ["first"]


def test_servers_of_a_deleted_file_return_in_a_new_one(rig: Rig, cursor: Path) -> None:
    target = rig.move(cursor, "cursor").target
    cursor.unlink()
    assert rig.names() == ["first", "third"]
    rig.restore(target)
    assert rig.names() == ["first", "third"]
    assert rig.kept.files() == ()


def test_a_program_that_writes_during_a_move_loses_nothing(rig: Rig, cursor: Path) -> None:
    writes = iter(['"new": {"command": "n"}, '])

    class Kept(MovedServers):
        def write(self, file: MovedFile, text: bytes) -> None:
            super().write(file, text)
            added = next(writes, "")
            cursor.write_text(cursor.read_text().replace('"first"', f'{added}"first"'))

    kept, rig.kept = rig.kept, Kept(rig.kept.directory)
    change = rig.move(cursor, "cursor")
    rig.kept = kept
    assert json.loads(cursor.read_text().replace("// mine", ""))["mcpServers"].keys() == {"new"}
    assert rig.names() == ["new", "first", "third"]
    rig.restore(change.target)
    assert sorted(rig.names()) == ["first", "new", "third"]


OAUTH = {"type": "http", "url": "https://x.example", "oauth": {"clientId": "i"}}
LOGIN = "Claude Code holds its login; move it after `mcp-code-bridge login x`"


@pytest.mark.parametrize(
    ("file", "client", "entry", "reason"),
    [
        (".cursor/mcp.json", "cursor", {"command": "/bin/mcp-code-bridge"}, "the bridge itself"),
        (".claude.json", "claude-code", OAUTH, LOGIN),
        (".claude.json", "claude-code", {"url": "https://x.example"}, "type"),
    ],
)
def test_a_server_that_only_the_client_can_start_stays(
    rig: Rig, file: str, client: str, entry: dict[str, object], reason: str
) -> None:
    path = write(rig.context.home / file, {"mcpServers": {"x": entry}})
    change = rig.plan(path, rig.mover(["x"]), client)
    assert reason in dict(change.refused)["x"]
    assert change.after == change.before
    if reason == LOGIN:
        assert list(rig.plan(path, rig.mover(logged_in=True), client).moved) == ["x"]


@pytest.mark.parametrize("scope", ["user", "project"])
def test_a_server_with_inputs_stays(rig: Rig, scope: str) -> None:
    user = rig.context.home.parent / "xdg" / "Code" / "User" / "mcp.json"
    path = user if scope == "user" else rig.context.cwd / ".vscode" / "mcp.json"
    # A default lets discovery use the server, but others can change the project's file.
    default = {"default": "/bin/x"} if scope == "project" else {}
    inputs = [{"id": "key", "type": "promptString", **default}]
    write(path, {"inputs": inputs, "servers": {"x": {"command": "${input:key}"}}})
    change = rig.plan(path, rig.mover(), "vscode", scope)
    reason = "inputs that the project's file defines" if scope == "project" else "input"
    assert reason in dict(change.refused)["x"]


def test_a_shadowed_server_moves_after_it_is_renamed(rig: Rig, cursor: Path) -> None:
    claude = {"mcpServers": {"first": {"command": "other"}}}
    path = write(rig.context.home / ".claude.json", claude)
    reason = dict(rig.plan(cursor, rig.mover(), "cursor").refused)["first"]
    assert reason.startswith(f"{path} (mcpServers.first) defines")
    assert "rename one of the two and move again, or delete this one" in reason
    rig.move(path, "claude-code")
    assert "first" in dict(rig.plan(cursor, rig.mover(), "cursor").refused)
    cursor.write_text(cursor.read_text().replace('"first"', '"first-of-cursor"'))
    assert "first-of-cursor" in rig.move(cursor, "cursor").moved
    assert {"first", "first-of-cursor"} <= set(rig.names())


def test_a_move_locks_out_other_bridges(rig: Rig, cursor: Path) -> None:
    held = []

    class Kept(MovedServers):
        def write(self, file: MovedFile, text: bytes) -> None:
            super().write(file, text)
            with pytest.raises(TimeoutError), exclusive_lock(self.directory, seconds=0):
                pytest.fail("another bridge could have taken the lock")
            held.append(True)

    rig.kept = Kept(rig.kept.directory)
    rig.restore(rig.move(cursor, "cursor").target)
    assert held == [True, True]


def test_the_same_server_moves_out_of_each_clients_file(rig: Rig, cursor: Path) -> None:
    claude = write(rig.context.home / ".claude.json", {"mcpServers": {"first": {"command": "a"}}})
    rig.move(cursor, "cursor")
    rig.move(claude, "claude-code")
    assert json.loads(claude.read_text()) == {"mcpServers": {}}
    assert rig.names() == ["first", "third"]


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.client_configs.test_move import Rig
from tests.discovery.golden_machine import context_of

root, step = Path(sys.argv[1]), int(sys.argv[2])
rig = Rig(context_of(root, "linux"))
cursor = rig.context.home / ".cursor" / "mcp.json"
what = sys.argv[3]
left = step

def hook(event, arguments):
    global left
    if event in ("os.rename", "os.remove"):
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

sys.addaudithook(hook)
if what == "move":
    rig.move(cursor, "cursor")
else:
    from bridge.client_configs.move import tables_of
    rig.restore(tables_of(rig.machine, "cursor", "user")[cursor][0])
"""


@pytest.mark.parametrize("what", ["move", "restore"])
@pytest.mark.parametrize("step", range(7))
def test_a_bridge_that_is_killed_at_any_step_loses_no_server(
    rig: Rig, cursor: Path, tmp_path: Path, what: str, step: int
) -> None:
    if what == "restore":
        rig.move(cursor, "cursor")
    args = [sys.executable, "-c", KILLED, str(tmp_path), str(step), what]
    done = subprocess.run(args, cwd=ROOT, check=False)
    assert done.returncode in (-signal.SIGKILL, 0)
    assert sorted(set(rig.names())) == ["first", "third"]
    target = rig.move(cursor, "cursor").target
    assert rig.names() == ["first", "third"]
    rig.restore(target)
    assert cursor.read_text() == CURSOR
    assert rig.kept.files() == ()
