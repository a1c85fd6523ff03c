"""`install`, `uninstall` and `installed`, for users and for scripts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from bridge.cli.install import ask_network, carry_out, plan
from bridge.cli.terminal import Person
from bridge.client_configs.entry import own_entry
from bridge.discovery.locations import machine_of
from bridge.inventory.configuration import context_for
from bridge.settings import load
from tests.cli.desk import Cli, desk
from tests.discovery.writing import write
from tests.upstream.rig import SERVERS
from tests.waiting import typing_answers

PLAYBACK = SERVERS / "playback.py"
PROGRAM = str(Path(sys.executable).parent / "mcp-code-bridge")

FAKE_CLAUDE = """#!/usr/bin/env python3
import json, os, sys
path = os.environ["HOME"] + "/.claude.json"
held = json.load(open(path)) if os.path.exists(path) else {}
servers = held.setdefault("mcpServers", {})
words = sys.argv[1:]
if words[1] == "add-json":
    servers[words[4]] = json.loads(words[5])
elif words[1] == "remove":
    del servers[words[4]]
else:
    print("\\x1b[2mother\\x1b[0m: gone\\n" + "".join(f"{name}: Connected\\n" for name in servers))
json.dump(held, open(path, "w"))
"""
"""Claude Code's own commands, which write the file in another style."""


@pytest.fixture
def cursor(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Cursor's file with a server; the working directory is a project."""
    (home / "project" / ".git").mkdir(parents=True)
    monkeypatch.chdir(home / "project")
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    servers = {"o": {"command": "o", "env": {"TOKEN": "s3cret"}}}
    return write(home / ".cursor" / "mcp.json", {"mcpServers": servers})


def test_nothing_is_written_without_a_client_or_consent(home: Path, cursor: Path, cli: Cli) -> None:
    status, out, err = cli("install")
    assert (status, "No changes made" in err) == (0, True)
    assert out.startswith(f"1 client found:\n  cursor: 1 server in {cursor}\n")
    assert not (home / "state" / "clients").exists()
    status, out, err = cli("install", "cursor")
    assert (status, "--yes" in err) == (2, True)
    for part in (f"code-bridge: {PROGRAM} serve\n", f'"PATH": "{home}/bin:/usr/bin', "+++ "):
        assert part in out
    assert "s3cret" not in out
    assert cli("install", "cursor", "--dry-run")[0] == 0
    assert "code-bridge" not in cursor.read_text()


@pytest.mark.parametrize(("answer", "written"), [("no\n", False), ("yes\n", True)])
async def test_a_user_is_asked(answer: str, written: bool, cursor: Path) -> None:
    settings = load({}, dict(os.environ))
    machine = machine_of(context_for(settings, str(Path.cwd()), "linux"))
    planned = plan(["cursor"], "user", own_entry(settings.environ), machine)
    with desk() as (typist, reader, writer):
        person = Person(reader, writer)
        async with typing_answers(typist, answer):
            done = await carry_out(planned, settings, machine, person=person)
    content = (cursor.parent / "mcp.json").read_text()
    assert (done, "code-bridge" in content) == (written, written)


def test_an_entry_gets_whole_paths_and_no_logins_unasked(
    cursor: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = own_entry({"MCP_BRIDGE_STATE_DIR": "kept", "MCP_BRIDGE_CONFIG": "/c.toml"})
    assert entry.env["MCP_BRIDGE_STATE_DIR"] == str(Path("kept").absolute())
    assert entry.env["MCP_BRIDGE_CONFIG"] == "/c.toml"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/ca.pem")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:s3cret@index/simple")
    assert cli("install", "cursor", "--yes")[0] == 0
    written = cursor.read_text()
    assert ('"REQUESTS_CA_BUNDLE": "/ca.pem"' in written, "proxy:3128" in written) == (True, True)
    assert "UV_DEFAULT_INDEX" not in written


@pytest.mark.parametrize(("answer", "names"), [("no\n", []), ("yes\n", ["UV_INDEX_A_PASSWORD"])])
async def test_a_user_agrees_to_variables(answer: str, names: list[str], home: Path) -> None:
    settings = load({}, {"HOME": str(home), "UV_INDEX_A_PASSWORD": "s3cret", "UV_RUN_X": "1"})
    with desk() as (typist, reader, writer):
        async with typing_answers(typist, answer):
            found = await ask_network(settings, Person(reader, writer), asks=True)
    assert list(found) == names


def test_installed_lists_entries_and_broken_commands_and_files(cursor: Path, cli: Cli) -> None:
    before = cursor.read_text()
    assert "Restart the clients." in cli("install", "cursor", "--yes")[2]
    status, out, _ = cli("installed", "--json")
    [row] = json.loads(out)
    assert (status, row["command"]) == (0, [PROGRAM, "serve"])
    assert (row["client"], row["scope"], row["path"]) == ("cursor", "user", str(cursor))
    assert cli("uninstall", "cursor", "--yes")[0] == 0
    assert cursor.read_text() == before
    assert "isn't installed in any client" in cli("installed")[1]
    assert cli("uninstall", "cursor")[1] == "Cursor: the bridge isn't installed.\n"
    write(cursor, {"mcpServers": {"b": {"command": "/gone/mcp-code-bridge"}}})
    status, out, _ = cli("installed")
    assert (status, "no longer exists" in out) == (1, True)
    cursor.write_text(cursor.read_text().removesuffix("}"))
    for words in (("uninstall", "cursor", "--yes"), ("uninstall",), ("installed",)):
        status, _, err = cli(*words)
        assert (status, f"{cursor} is left as it is: not valid JSON" in err) == (2, True)
    assert cli("uninstall", "zed", "--yes")[0] == 0


STARTED = {"docs": {"command": "npx"}, "web": {"command": "x"}}
REJECT = [{"matches": {"command": "*"}, "action": "reject"}]
BY_NAME = {"allowedMcpServers": [{"serverName": "docs"}]}


BARRED = {"amp.mcpServers": STARTED, "amp.mcpPermissions": REJECT}
EXCLUDED = {"mcpServers": STARTED, "mcp": {"excluded": ["code-bridge"]}}


@pytest.mark.parametrize(
    ("client", "file", "content", "lists", "reason"),
    [
        ("claude-code", ".claude.json", {"mcpServers": STARTED}, BY_NAME, "allowedMcpServers"),
        ("amp", ".config/amp/settings.json", BARRED, {}, "amp.mcpPermissions"),
        ("gemini", ".gemini/settings.json", EXCLUDED, {}, "mcp.excluded"),
    ],
)
def test_no_server_moves_out_of_a_client_that_would_not_start_the_bridge(
    client: str, file: str, content: object, lists: object, reason: str, home: Path, cli: Cli
) -> None:
    path = write(home / file, content)
    write(home / ".claude" / "settings.json", lists)
    before = path.read_text()
    status, _, err = cli("install", client, "--move", "all", "--yes")
    assert (status, path.read_text()) == (2, before)
    assert ("Nothing was moved" in err, reason in err) == (True, True)
    assert "will not start it" in cli("install", client, "--yes")[1]


@pytest.mark.parametrize("allowed", ['["docs"]', '["docs", /* both */ "web"]'])
def test_a_list_of_allowed_servers_gets_and_loses_the_bridge(
    allowed: str, home: Path, cli: Cli
) -> None:
    text = f'{{"mcp": {{"allowed": {allowed}}}, "mcpServers": {json.dumps(STARTED)}}}'
    path = write(home / ".gemini" / "settings.json", text)
    assert cli("install", "gemini", "--move", "all", "--yes")[0] == 0
    assert allowed.replace("]", ', "code-bridge"]') in path.read_text()
    assert cli("uninstall", "gemini", "--restore", "--yes")[0] == 0
    assert path.read_text() == text
    assert cli("install", "gemini", "--yes")[0] == 0
    path.write_text(path.read_text() + "\n")
    assert cli("uninstall", "gemini", "--yes")[0] == 0
    assert "code-bridge" not in path.read_text()


def test_install_names_the_servers_that_the_client_still_starts(
    home: Path, cursor: Path, cli: Cli
) -> None:
    err = cli("install", "cursor", "--yes")[2]
    assert "Cursor still starts these itself, and its model gets their tools twice: o." in err
    assert "mcp-code-bridge install cursor --move all" in err
    write(home / ".claude.json", {"mcpServers": STARTED})
    assert "Claude Code still starts" in cli("install", "claude-code", "--yes")[2]
    for client in ("cursor", "claude-code"):
        assert "still starts" not in cli("install", client, "--move", "all", "--yes")[2]


def test_a_project_has_an_entry_of_its_own(home: Path, cursor: Path, cli: Cli) -> None:
    status, out, _ = cli("install", "cursor", "--scope", "project", "--yes")
    assert (status, "do not commit the file" in out) == (0, True)
    assert json.loads((home / "project/.cursor/mcp.json").read_text())["mcpServers"]
    assert cli("uninstall", "cursor", "--scope", "user", "--yes")[0] == 0
    assert (home / "project/.cursor/mcp.json").exists()
    assert cli("uninstall", "cursor", "--yes")[0] == 0
    assert not (home / "project/.cursor").exists()


LOCAL = "http://127.0.0.1:8000/mcp"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("curser",), "Did you mean cursor"),
        (("cursor", "--http", "localhost:8000"), "is not an address"),
        (("cursor", "--http", LOCAL, "--name", "x"), "the name must be"),
        (("claude-desktop", "--http", LOCAL), "does not support servers with an address"),
        (("goose", "--scope", "project"), "no configuration file for the project"),
        (("cursor", "--name", "a\nb"), "is not a name"),
        (("cursor", "--name", "a b"), "is not a name"),
        (("cursor", "--name", "\x1b[31m"), "is not a name"),
        (("cursor", "--name", "x" * 65), "is not a name"),
        (("cursor", "kiro"), "line 2"),
    ],
)
def test_a_mistake_changes_no_file(
    words: tuple[str, ...], said: str, home: Path, cursor: Path, cli: Cli
) -> None:
    before = cursor.read_text()
    write(home / ".kiro" / "settings" / "mcp.json", "{\n nonsense")
    status, _, err = cli("install", *words, "--yes")
    assert (status, "\x1b" in err, cursor.read_text()) == (2, False, before)
    assert said in " ".join(err.split())


def test_a_client_that_rewrites_its_file_makes_the_change_itself(
    home: Path, cursor: Path, cli: Cli
) -> None:
    command(home, "claude", FAKE_CLAUDE)
    status, out, _ = cli("install", "claude-code", "--yes", "--check")
    assert status == 0
    assert "claude mcp add-json -s user code-bridge '{" in out
    assert "  code-bridge: Connected\n" in out
    written = (home / ".claude.json").read_text()
    assert "\n" not in written
    entry = json.loads(written)["mcpServers"]["code-bridge"]
    assert (entry["command"], entry["timeout"]) == (PROGRAM, 780_000)
    command(home, "claude", FAKE_CLAUDE.replace("Connected", "Failed to connect"))
    status, _, err = cli("install", "claude-code", "--yes", "--check")
    assert (status, "reports a problem with code-bridge." in err) == (1, True)
    assert "claude mcp list` may show why." in err
    assert cli("install", "claude-code", "--http", LOCAL, "--yes")[0] == 0
    assert json.loads(cli("installed", "--json")[1])[0]["url"] == LOCAL
    assert cli("uninstall", "claude-code", "--yes")[0] == 0
    assert json.loads((home / ".claude.json").read_text()) == {"mcpServers": {}}
    command(home, "claude", "echo no room; exit 3")
    status, _, err = cli("install", "claude-code", "--yes")
    assert (status, "no room" in err) == (1, True)


def test_all_means_every_client_that_is_found_here(home: Path, cursor: Path, cli: Cli) -> None:
    (home / ".qwen").mkdir()
    qwen = home / ".qwen" / "settings.json"
    assert cli("install", "all", "--yes")[0] == 0
    for file in (cursor, qwen):
        assert "code-bridge" in json.loads(file.read_text())["mcpServers"]
    status, out, _ = cli("uninstall", "all", "--yes")
    assert (status, "isn't installed" in out) == (0, False)
    assert ("code-bridge" in cursor.read_text(), qwen.exists()) == (False, False)


def test_a_password_in_an_address_is_written_and_not_shown(
    home: Path, cursor: Path, cli: Cli
) -> None:
    url = "http://ann:s3cret@127.0.0.1:8000/mcp?key=s3cret"
    cursor.chmod(0o664)
    status, out, err = cli("install", "cursor", "--http", url, "--yes")
    token = next(home.rglob("http-token")).read_text()
    assert cursor.stat().st_mode & 0o777 == 0o600
    assert (status, "s3cret" in out + err, token in out + err) == (0, False, False)
    assert "http://•••@127.0.0.1:8000/mcp?•••" in out
    headers = {"Authorization": f"Bearer {token}"}
    entry = json.loads(cursor.read_text())["mcpServers"]["code-bridge"]
    assert entry == {"url": url, "headers": headers}
    for words in (("installed",), ("installed", "--json"), ("uninstall",)):
        said = cli(*words)[1]
        assert ("127.0.0.1:8000/mcp" in said, "s3cret" in said) == (True, False)
    for mistake in ("ftp://ann:s3cret@x/", "http://ann:s3cret@x/ y", 'http://ann:s3cret@x/"'):
        status, out, err = cli("install", "cursor", "--http", mistake)
        assert (status, "s3cret" in out + err) == (2, False)
        assert "is not an address" in err
    command(home, "gemini", f"echo 'code-bridge: {url} (http) - Connected'")
    status, out, err = cli("install", "gemini", "--http", url, "--check", "--yes")
    assert (status, "s3cret" in out + err) == (0, False)
    assert "Gemini CLI lists:\n  code-bridge: http://•••@127.0.0.1:8000/mcp?•••" in out


def test_several_clients_get_one_line_with_the_path(home: Path, cursor: Path, cli: Cli) -> None:
    (home / ".codex").mkdir()
    path, hidden = os.environ["PATH"], "<your PATH>"
    one = cli("install", "cursor", "--dry-run")[1]
    assert (path in one, hidden in one) == (True, False)
    _, out, _ = cli("install", "cursor", "codex", "--dry-run")
    assert out.count(path) == 1
    assert out.endswith(f"{hidden} is {path}\n")
    for line in (f'PATH = "{hidden}"\n', f'"PATH": "{hidden}"'):
        assert line in out
    assert cli("install", "cursor", "codex", "--yes")[0] == 0
    for file in (cursor, home / ".codex" / "config.toml"):
        text = file.read_text()
        assert (path in text, hidden in text) == (True, False)


def test_a_client_without_trusted_folders_has_the_bridge_nevertheless(
    home: Path, cursor: Path, cli: Cli
) -> None:
    command(
        home,
        "gemini",
        "printf 'Warning: MCP servers are configured but disabled because this folder is "
        "untrusted.\n\nConfigured MCP servers:\n\n"
        "○ code-bridge: /x/mcp-code-bridge serve (stdio) - Disabled\n'",
    )
    status, out, err = cli("install", "gemini", "--check", "--yes")
    assert (status, "reports a problem" in err) == (0, False)
    assert "only in trusted folders" in out
    command(home, "gemini", "printf '○ code-bridge: x serve (stdio) - Disabled\n'")
    assert cli("install", "gemini", "--check", "--yes")[0] == 1


def command(home: Path, name: str, script: str) -> None:
    path = write(home / "bin" / name, script if script[:2] == "#!" else f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_without_a_client_the_next_step_is_shown(
    home: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    for words in (("install",), ("install", "all"), ("setup", "--clients", "all", "--yes")):
        status, _, err = cli(*words)
        assert status == (0 if words == ("install",) else 1)
        assert "no client was found. To write a client's file anyway" in err
    assert "Run `mcp-code-bridge install`" in cli("installed")[1]
    assert cli("install", "cursor", "--yes")[0] == 0


def test_a_move_names_servers_that_lose_views_or_permissions(
    home: Path, cursor: Path, cli: Cli
) -> None:
    for name, more in (("maps", {"_meta": {"ui": {"resourceUri": "ui://map"}}}), ("plain", {})):
        tool = {"name": "t", "inputSchema": {"type": "object"}, **more}
        write(home / name / "tools-1", {"tools": [tool]})
    servers = {
        name: {"command": sys.executable, "args": [str(PLAYBACK), str(home / name)]}
        for name in ("maps", "plain")
    }
    write(cursor, {"mcpServers": servers})
    for name in servers:
        assert cli("tools", name)[0] == 0
    status, *told = cli("install", "cursor", "--move", "all", "--yes")
    assert status == 0
    assert "maps has views. Clients do not show them" in "".join(told)
    assert "plain has views" not in "".join(told)
    assert [*json.loads(cursor.read_text())["mcpServers"]] == ["code-bridge"]
    write(home / ".claude.json", {"mcpServers": STARTED})
    denied = {"permissions": {"deny": ["mcp__docs__drop"]}}
    write(home / ".claude" / "settings.json", denied)
    out = cli("install", "claude-code", "--move", "all", "--dry-run")[1]
    assert "Claude Code's permissions for tools of docs do not apply" in out
    assert "tools of web" not in out


def test_servers_of_each_deleted_file_of_a_client_are_restored(home: Path, cli: Cli) -> None:
    user = home / ".config" / "Code" / "User"
    write(user / "mcp.json", {"servers": {"a": {"command": "a"}}})
    settings = write(user / "settings.json", {"mcp": {"servers": {"b": {"command": "b"}}}})
    assert cli("install", "vscode", "--move", "all", "--yes")[0] == 0
    settings.unlink()
    assert cli("uninstall", "vscode", "--restore", "--yes")[0] == 0
    assert json.loads(settings.read_text()) == {"mcp": {"servers": {"b": {"command": "b"}}}}
