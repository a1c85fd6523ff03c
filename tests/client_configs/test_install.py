"""The bridge is added to clients' files and removed: the original bytes return."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.client_configs.entry import NAME, Entry
from bridge.client_configs.install import (
    apply,
    installed_entries,
    plan_install,
    plan_uninstall,
    read_target,
)
from bridge.client_configs.journal import Journal
from bridge.client_configs.writers import WRITERS, Target, targets, writer_for
from bridge.discovery.finder import discover
from bridge.discovery.locations import Machine
from bridge.errors import UneditableError, UsageError
from tests.discovery.writing import write

PROGRAM = "/opt/bin/mcp-code-bridge"
COMMAND = Entry(command=PROGRAM, args=("serve",), env={"PATH": "/usr/bin"})
WRITTEN = [client for client, writer in WRITERS.items() if writer.files]
BOM = b"\xef\xbb\xbf"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "state" / "clients")


def install(target: Target, journal: Journal, entry: Entry = COMMAND) -> None:
    apply(plan_install(target, entry, read_target(target)), journal)


def uninstall(machine: Machine, journal: Journal) -> None:
    for each in list(installed_entries(machine)):
        raw = read_target(each.target)
        apply(plan_uninstall(each.target, each.name, raw, journal), journal)


def _one(client: str, machine: Machine) -> Target:
    [target] = targets(writer_for(client), "user", machine)
    return target


def _others(target: Target) -> bytes:
    """Return a file with another server, in the client's format."""
    table = target.table[0]
    format = target.location.format
    if format == "toml":
        listed = target.location.dialect.listed
        head = f'[[{table}]]\nname = "other"' if listed else f"[{table}.other]  # kept"
        return f'# mine\nmodel = "x"\n\n{head}\ncommand = "other"\n'.encode()
    if format == "yaml":
        return f"# mine\n{table}:\n  other:\n    cmd: other\n    type: stdio\n".encode()
    comments = format != "json"
    mine, tail = ("  // mine\n", "," if format == "jsonc" else "") if comments else ("", "")
    entry = '{"command": ["other"]}' if target.location.dialect.command_list else '{"command": "o"}'
    return f'{{\n{mine}  "z": 1,\n  "{table}": {{\n    "other": {entry}{tail}\n  }}\n}}\n'.encode()


def _huge(raw: bytes, target: Target) -> bytes:
    filler = b'{\n  "filler": [' + b",".join(b'"%06d"' % n for n in range(6_000)) + b"],"
    return raw.replace(b"{", filler, 1)


WITHOUT = {"yaml": b"a: 1\n", "toml": b"a = 1\n"}

CORPUS: dict[str, Callable[[bytes, Target], bytes | None]] = {
    "missing": lambda raw, target: None,
    "empty": lambda raw, target: b"",
    "white space": lambda raw, target: BOM + b"\r\n",
    "without servers": lambda raw, target: WITHOUT.get(target.location.format, b"{}"),
    "with another server": lambda raw, target: raw,
    "without a line end": lambda raw, target: raw.rstrip(b"\n"),
    "CRLF": lambda raw, target: raw.replace(b"\n", b"\r\n"),
    "BOM": lambda raw, target: BOM + raw,
    "huge": _huge,
}


@pytest.mark.parametrize("case", CORPUS)
@pytest.mark.parametrize("client", WRITTEN)
def test_installed_and_uninstalled_is_what_was(
    client: str, case: str, machine: Machine, journal: Journal
) -> None:
    target = _one(client, machine)
    before = CORPUS[case](_others(target), target)
    if before is not None:
        target.path.parent.mkdir(parents=True, exist_ok=True)
        target.path.write_bytes(before)
        target.path.chmod(0o640)
    install(target, journal)

    [entry] = installed_entries(machine)
    assert (entry.name, entry.command[0]) == (NAME, PROGRAM)
    seen = discover(replace(machine.context, allow_self=True))
    assert NAME in {server.name for server in seen.servers}
    assert NAME in {skipped.name for skipped in discover(machine.context).skipped}
    if before is not None:
        assert target.path.stat().st_mode & 0o777 == 0o640

    uninstall(machine, journal)
    assert (target.path.read_bytes() if target.path.exists() else None) == before
    assert journal.records() == []
    if before is None:
        assert sorted(path.name for path in machine.context.home.iterdir()) == ["repo"]


@pytest.mark.parametrize("client", WRITTEN)
def test_only_the_entry_goes_after_a_change(
    client: str, machine: Machine, journal: Journal
) -> None:
    target = _one(client, machine)
    target.path.parent.mkdir(parents=True, exist_ok=True)
    before = _others(target)
    target.path.write_bytes(before)
    install(target, journal)
    more = b"\n" if target.location.format.startswith("json") else b"# more\n"
    target.path.write_bytes(more + target.path.read_bytes())

    uninstall(machine, journal)
    assert target.path.read_bytes() == more + before
    assert journal.records() == []


def test_a_discontinued_client_can_lose_the_bridge(machine: Machine, journal: Journal) -> None:
    entry = {"command": "uvx", "args": ["mcp-code-bridge"]}
    file = write(machine.root / ".roo" / "mcp.json", {"mcpServers": {"b": entry}})
    uninstall(machine, journal)
    assert file.read_text() == '{"mcpServers": {}}'
    with pytest.raises(UsageError, match="is discontinued"):
        targets(writer_for("roo"), "user", machine)


def test_a_second_install_still_returns_the_first_file(machine: Machine, journal: Journal) -> None:
    target = _one("cursor", machine)
    install(target, journal)
    change = plan_install(target, COMMAND, read_target(target))
    assert change.before == change.after
    install(target, journal, Entry(url="http://127.0.0.1:8000/mcp"))
    [entry] = installed_entries(machine)
    assert (entry.command, entry.url) == ((), "http://127.0.0.1:8000/mcp")
    assert not discover(machine.context).servers
    uninstall(machine, journal)
    assert not target.path.parent.exists()


def test_an_entry_of_another_name_or_form_is_the_bridge(machine: Machine) -> None:
    entry = {"command": "uvx", "args": ["mcp-code-bridge"]}
    raw = json.dumps({"mcpServers": {"bridge": entry}}).encode()
    change = plan_install(_one("cursor", machine), COMMAND, raw)
    assert json.loads(change.after or b"")["mcpServers"].keys() == {"bridge"}
    text = '[[mcp_servers]]\nname = "mine"\ncommand = "uvx mcp-code-bridge serve"\n'
    target = _one("vibe", machine)
    assert plan_install(target, COMMAND, text.encode()).name == "mine"
    write(target.path, text)
    [listed] = installed_entries(machine)
    assert listed.command == ("uvx", "mcp-code-bridge", "serve")


def test_the_second_format_of_opencode_is_kept(machine: Machine) -> None:
    target = _one("opencode", machine)
    raw = b'{"mcp": {"servers": {"other": {"type": "local", "command": ["o"]}}}}'
    after = json.loads(plan_install(target, COMMAND, raw).after or b"")
    assert after["mcp"]["servers"][NAME]["timeout"] == {"startup": 60_000, "execution": 780_000}


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"mcpServers": {', r"line 1"),
        (b'{\n "mcpServers": {"a": {}, "a": {}}}', r"line 2"),
        (b'{"mcpServers": []}', "a list"),
        (b"\xff\xfe{\x00}\x00", "UTF"),
        (b'{"mcpServers": {"code-bridge": {"command": "o"}}}', "another server named code-bridge"),
    ],
)
def test_a_file_without_exact_edits_is_left(raw: bytes, reason: str, machine: Machine) -> None:
    with pytest.raises((UneditableError, UsageError), match=reason):
        plan_install(_one("cursor", machine), COMMAND, raw)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_file_of_another_user_is_refused(machine: Machine) -> None:
    target = _one("cursor", machine)
    os.chown(write(target.path, {}), 65534, 65534)
    with pytest.raises(UsageError, match="belongs to another user"):
        read_target(target)


def test_a_list_that_excludes_the_bridge_is_reported(machine: Machine) -> None:
    raw = b'{"mcp": {"excluded": ["code-bridge"]}, "mcpServers": {}}'
    change = plan_install(_one("gemini", machine), COMMAND, raw)
    assert "Gemini CLI will not start it: turned off by mcp.excluded." in change.notes
