"""`install`, `uninstall` and `installed` as a person and a script see them."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from bridge.cli.install import ask_network, carry_out, plan
from bridge.cli.person import Person
from bridge.client_configs.entry import own_entry
from bridge.client_configs.writers import machine_of
from bridge.inventory.configuration import context_for
from bridge.settings import load
from tests.cli.desk import Cli, command_line, desk
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
"""As Claude Code's own commands are called: it writes the file its own way."""


@dataclass
class Shell:
    """Runs commands in a home of its own."""

    home: Path
    run: Cli

    def __call__(self, *words: str) -> tuple[int, str, str]:
        return self.run(*words)


@pytest.fixture
def shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor" / "mcp.json").write_text(
        '{"mcpServers": {"o": {"command": "o", "env": {"TOKEN": "s3cret"}}}}'
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MCP_BRIDGE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(project)
    return Shell(tmp_path, command_line(capsys))


def test_without_a_client_those_found_are_listed_and_nothing_is_written(shell: Shell) -> None:
    status, out, err = shell("install")
    assert status == 0
    assert out.startswith(f"1 client found:\n  cursor: 1 server in {shell.home}/.cursor/mcp.json\n")
    assert "No changes made" in err
    assert not (shell.home / "state" / "clients").exists()


def test_a_script_has_to_agree_beforehand(shell: Shell) -> None:
    status, out, err = shell("install", "cursor")
    assert (status, "--yes" in err) == (2, True)
    assert f"code-bridge: {PROGRAM} serve\n" in out
    assert f'"PATH": "{shell.home}/bin:/usr/bin' in out
    assert "+++ " in out
    assert "s3cret" not in out
    assert shell("install", "cursor", "--dry-run")[0] == 0
    assert "code-bridge" not in (shell.home / ".cursor" / "mcp.json").read_text()


@pytest.mark.parametrize(("answer", "written"), [("no\n", False), ("yes\n", True)])
async def test_a_person_is_asked(answer: str, written: bool, shell: Shell) -> None:
    settings = load({}, dict(os.environ))
    machine = machine_of(context_for(settings, str(Path.cwd()), "linux"))
    planned = plan(["cursor"], "user", own_entry(settings.environ), machine)
    with desk() as (typist, reader, writer):
        person = Person(reader, writer)
        async with typing_answers(typist, answer):
            done = await carry_out(planned, settings, machine, person=person)
    assert done is written
    assert ("code-bridge" in (shell.home / ".cursor" / "mcp.json").read_text()) is written


def test_an_entry_gets_whole_paths_since_its_client_starts_elsewhere() -> None:
    entry = own_entry({"MCP_BRIDGE_STATE_DIR": "kept", "MCP_BRIDGE_CONFIG": "/c.toml"})
    assert entry.env["MCP_BRIDGE_STATE_DIR"] == str(Path("kept").absolute())
    assert entry.env["MCP_BRIDGE_CONFIG"] == "/c.toml"


def test_an_entry_gets_no_logins_unasked(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/ca.pem")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:s3cret@index/simple")
    assert shell("install", "cursor", "--yes")[0] == 0
    written = (shell.home / ".cursor" / "mcp.json").read_text()
    assert ('"SSL_CERT_FILE": "/ca.pem"' in written, "proxy:3128" in written) == (True, True)
    assert "UV_DEFAULT_INDEX" not in written


@pytest.mark.parametrize(("answer", "names"), [("no\n", []), ("yes\n", ["UV_INDEX_A_PASSWORD"])])
async def test_a_person_agrees_to_variables(answer: str, names: list[str], shell: Shell) -> None:
    settings = load({}, {"HOME": str(shell.home), "UV_INDEX_A_PASSWORD": "s3cret", "UV_RUN_X": "1"})
    with desk() as (typist, reader, writer):
        async with typing_answers(typist, answer):
            found = await ask_network(settings, Person(reader, writer), asks=True)
    assert list(found) == names


def test_installed_says_where_and_whether_the_command_is_there(shell: Shell) -> None:
    file = shell.home / ".cursor" / "mcp.json"
    before = file.read_text()
    assert "Restart the clients." in shell("install", "cursor", "--yes")[2]
    status, out, _ = shell("installed", "--json")
    [row] = json.loads(out)
    assert status == 0
    assert row["command"] == [PROGRAM, "serve"]
    assert (row["client"], row["scope"], row["path"]) == ("cursor", "user", str(file))
    assert shell("uninstall", "cursor", "--yes")[0] == 0
    assert file.read_text() == before
    assert "isn't installed in any client" in shell("installed")[1]
    assert shell("uninstall", "cursor")[1] == "Cursor: the bridge isn't installed.\n"


def test_a_file_that_cannot_be_read_is_named_where_the_bridge_may_be_in_it(shell: Shell) -> None:
    file = shell.home / ".cursor" / "mcp.json"
    assert shell("install", "cursor", "--yes")[0] == 0
    file.write_text(file.read_text().rstrip().removesuffix("}"))
    for words in (("uninstall", "cursor", "--yes"), ("uninstall",), ("installed",)):
        status, out, err = shell(*words)
        assert (status, "in none of its files" in out) == (2, False)
        assert f"{file} is left as it is: not valid JSON" in err
    assert shell("uninstall", "zed", "--yes")[0] == 0


STARTED = {"docs": {"command": "npx"}, "web": {"command": "x"}}
REJECT = [{"matches": {"command": "*"}, "action": "reject"}]
BY_NAME = {"allowedMcpServers": [{"serverName": "docs"}]}


@pytest.mark.parametrize(
    ("client", "file", "content", "lists", "reason"),
    [
        ("claude-code", ".claude.json", {"mcpServers": STARTED}, BY_NAME, "allowedMcpServers"),
        (
            "amp",
            ".config/amp/settings.json",
            {"amp.mcpServers": STARTED, "amp.mcpPermissions": REJECT},
            {},
            "amp.mcpPermissions",
        ),
        (
            "gemini",
            ".gemini/settings.json",
            {"mcpServers": STARTED, "mcp": {"excluded": ["code-bridge"]}},
            {},
            "mcp.excluded",
        ),
    ],
)
def test_no_server_moves_out_of_a_client_that_would_not_start_the_bridge(
    client: str, file: str, content: object, lists: object, reason: str, shell: Shell
) -> None:
    path = write(shell.home / file, content)
    write(shell.home / ".claude" / "settings.json", lists)
    before = path.read_text()
    status, _, err = shell("install", client, "--move", "all", "--yes")
    assert (status, path.read_text()) == (2, before)
    assert ("Nothing is moved" in err, reason in err) == (True, True)
    assert "will not start it" in shell("install", client, "--yes")[1]


@pytest.mark.parametrize("allowed", ['["docs"]', '["docs", /* both */ "web"]'])
def test_a_list_of_allowed_servers_gets_and_loses_the_bridge(allowed: str, shell: Shell) -> None:
    text = f'{{"mcp": {{"allowed": {allowed}}}, "mcpServers": {json.dumps(STARTED)}}}'
    path = write(shell.home / ".gemini" / "settings.json", text)
    assert shell("install", "gemini", "--move", "all", "--yes")[0] == 0
    assert allowed.replace("]", ', "code-bridge"]') in path.read_text()
    assert shell("uninstall", "gemini", "--restore", "--yes")[0] == 0
    assert path.read_text() == text
    assert shell("install", "gemini", "--yes")[0] == 0
    path.write_text(path.read_text() + "\n")
    assert shell("uninstall", "gemini", "--yes")[0] == 0
    assert "code-bridge" not in path.read_text()


def test_install_says_what_the_client_still_starts_and_how_to_move_it(shell: Shell) -> None:
    err = shell("install", "cursor", "--yes")[2]
    assert "Cursor still starts these itself, and its model gets their tools twice: o." in err
    assert "mcp-code-bridge install cursor --move all" in err
    write(shell.home / ".claude.json", json.dumps({"mcpServers": STARTED}))
    assert "Claude Code still starts" in shell("install", "claude-code", "--yes")[2]
    for client in ("cursor", "claude-code"):
        assert "still starts" not in shell("install", client, "--move", "all", "--yes")[2]


def test_a_command_that_is_gone_is_reported(shell: Shell) -> None:
    entry = {"command": "/gone/mcp-code-bridge"}
    write(shell.home / ".cursor" / "mcp.json", {"mcpServers": {"b": entry}})
    status, out, _ = shell("installed")
    assert (status, "no longer exists" in out) == (1, True)


def test_a_project_has_an_entry_of_its_own(shell: Shell) -> None:
    status, out, _ = shell("install", "cursor", "--scope", "project", "--yes")
    assert (status, "keep it out of what others check out" in out) == (0, True)
    assert json.loads((shell.home / "project/.cursor/mcp.json").read_text())["mcpServers"]
    assert shell("uninstall", "cursor", "--scope", "user", "--yes")[0] == 0
    assert (shell.home / "project/.cursor/mcp.json").exists()
    assert shell("uninstall", "cursor", "--yes")[0] == 0
    assert not (shell.home / "project/.cursor").exists()


def test_one_file_that_cannot_be_changed_keeps_the_others_as_they_are(shell: Shell) -> None:
    write(shell.home / ".kiro" / "settings" / "mcp.json", "{\n nonsense")
    status, _, err = shell("install", "cursor", "kiro", "--yes")
    assert (status, "line 2" in err) == (2, True)
    assert "code-bridge" not in (shell.home / ".cursor" / "mcp.json").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("curser",), "Did you mean cursor"),
        (("cursor", "--http", "localhost:8000"), "is not an address"),
        (("cursor", "--http", "http://127.0.0.1:8000/mcp", "--name", "x"), "the name is"),
        (("claude-desktop", "--http", "http://127.0.0.1:8000/mcp"), "takes no address"),
        (("goose", "--scope", "project"), "no file of its servers for the project"),
    ],
)
def test_what_cannot_be_done_is_said(words: tuple[str, ...], said: str, shell: Shell) -> None:
    status, _, err = shell("install", *words, "--yes")
    assert status == 2
    assert said in " ".join(err.split())


def test_a_client_that_rewrites_its_file_is_asked_to_do_it_itself(shell: Shell) -> None:
    command(shell.home, "claude", FAKE_CLAUDE)
    status, out, _ = shell("install", "claude-code", "--yes", "--check")
    assert status == 0
    assert "claude mcp add-json -s user code-bridge '{" in out
    assert "  code-bridge: Connected\n" in out
    written = (shell.home / ".claude.json").read_text()
    assert "\n" not in written
    entry = json.loads(written)["mcpServers"]["code-bridge"]
    assert (entry["command"], entry["timeout"]) == (PROGRAM, 780_000)
    command(shell.home, "claude", FAKE_CLAUDE.replace("Connected", "Failed to connect"))
    status, _, err = shell("install", "claude-code", "--yes", "--check")
    assert (status, "has trouble with code-bridge." in err) == (1, True)
    assert "claude mcp list` may say why." in err
    url = "http://127.0.0.1:8000/mcp"
    assert shell("install", "claude-code", "--http", url, "--yes")[0] == 0
    assert json.loads(shell("installed", "--json")[1])[0]["url"] == url
    assert shell("uninstall", "claude-code", "--yes")[0] == 0
    assert json.loads((shell.home / ".claude.json").read_text()) == {"mcpServers": {}}


def test_a_client_whose_own_command_fails_is_reported(shell: Shell) -> None:
    command(shell.home, "claude", "echo no room; exit 3")
    status, _, err = shell("install", "claude-code", "--yes")
    assert (status, "no room" in err) == (1, True)


def test_all_means_every_client_that_is_found_here(shell: Shell) -> None:
    (shell.home / ".qwen").mkdir()
    status, _, _ = shell("install", "all", "--yes")
    assert status == 0
    for file in (".cursor/mcp.json", ".qwen/settings.json"):
        assert "code-bridge" in json.loads((shell.home / file).read_text())["mcpServers"]
    status, out, _ = shell("uninstall", "all", "--yes")
    assert (status, "isn't installed" in out) == (0, False)
    assert "code-bridge" not in (shell.home / ".cursor" / "mcp.json").read_text()
    assert not (shell.home / ".qwen" / "settings.json").exists()


@pytest.mark.parametrize("name", ["a\nb", "a b", "\x1b[31m", "x" * 65])
def test_a_name_that_not_every_client_takes_is_refused(name: str, shell: Shell) -> None:
    before = (shell.home / ".cursor" / "mcp.json").read_text()
    status, _, err = shell("install", "cursor", "--yes", "--name", name)
    assert status == 2
    assert "is not a name" in err
    assert "\x1b" not in err
    assert (shell.home / ".cursor" / "mcp.json").read_text() == before


def test_a_password_in_an_address_is_written_and_not_shown(shell: Shell) -> None:
    url = "http://ann:s3cret@127.0.0.1:8000/mcp?key=s3cret"
    (shell.home / ".cursor/mcp.json").chmod(0o664)
    status, out, err = shell("install", "cursor", "--http", url, "--yes")
    token = next(shell.home.rglob("http-token")).read_text()
    assert (shell.home / ".cursor/mcp.json").stat().st_mode & 0o777 == 0o600
    assert (status, "s3cret" in out + err) == (0, False)
    assert "http://•••@127.0.0.1:8000/mcp?•••" in out
    assert json.loads((shell.home / ".cursor/mcp.json").read_text())["mcpServers"][
        "code-bridge"
    ] == {"url": url, "headers": {"Authorization": f"Bearer {token}"}}
    assert token not in out + err
    for mistake in ("ftp://ann:s3cret@x/", "http://ann:s3cret@x/ y", 'http://ann:s3cret@x/"'):
        status, out, err = shell("install", "cursor", "--http", mistake)
        assert (status, "s3cret" in out + err) == (2, False)
        assert "is not an address" in err
    command(shell.home, "gemini", f"echo 'code-bridge: {url} (http) - Connected'")
    status, out, err = shell("install", "gemini", "--http", url, "--check", "--yes")
    assert (status, "s3cret" in out + err) == (0, False)
    assert "Gemini CLI lists:\n  code-bridge: http://•••@127.0.0.1:8000/mcp?•••" in out


def test_several_clients_get_one_line_with_the_path(shell: Shell) -> None:
    (shell.home / ".codex").mkdir()
    path = os.environ["PATH"]
    one = shell("install", "cursor", "--dry-run")[1]
    assert path in one
    assert "<your PATH>" not in one
    _, out, _ = shell("install", "cursor", "codex", "--dry-run")
    assert out.count(path) == 1
    assert out.endswith(f"<your PATH> is {path}\n")
    assert 'PATH = "<your PATH>"\n' in out
    assert '"PATH": "<your PATH>"' in out
    assert shell("install", "cursor", "codex", "--yes")[0] == 0
    for file in (".cursor/mcp.json", ".codex/config.toml"):
        text = (shell.home / file).read_text()
        assert path in text
        assert "<your PATH>" not in text


def test_a_client_that_trusts_no_folder_here_has_the_bridge_all_the_same(shell: Shell) -> None:
    command(
        shell.home,
        "gemini",
        "printf 'Warning: MCP servers are configured but disabled because this folder is "
        "untrusted.\n\nConfigured MCP servers:\n\n"
        "○ code-bridge: /x/mcp-code-bridge serve (stdio) - Disabled\n'",
    )
    status, out, err = shell("install", "gemini", "--check", "--yes")
    assert (status, "has trouble" in err) == (0, False)
    assert "only in trusted folders" in out
    command(shell.home, "gemini", "printf '○ code-bridge: x serve (stdio) - Disabled\n'")
    assert shell("install", "gemini", "--check", "--yes")[0] == 1


def command(home: Path, name: str, script: str) -> None:
    place = home / "bin" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(script if script[:2] == "#!" else f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)


def test_where_there_is_no_client_the_next_step_is_said(shell: Shell) -> None:
    (shell.home / ".cursor" / "mcp.json").unlink()
    (shell.home / ".cursor").rmdir()
    for words in (("install",), ("install", "all"), ("setup", "--clients", "all", "--yes")):
        status, _, err = shell(*words)
        assert status == (0 if words == ("install",) else 1)
        assert "no client was found. Name one" in err
    assert "Run `mcp-code-bridge install`" in shell("installed")[1]
    assert shell("install", "cursor", "--yes")[0] == 0


def test_a_move_names_servers_whose_views_are_not_shown_then(shell: Shell) -> None:
    for name, more in (("maps", {"_meta": {"ui": {"resourceUri": "ui://map"}}}), ("plain", {})):
        tool = {"name": "t", "inputSchema": {"type": "object"}, **more}
        write(shell.home / name / "tools-1", {"tools": [tool]})
    servers = {
        name: {"command": sys.executable, "args": [str(PLAYBACK), str(shell.home / name)]}
        for name in ("maps", "plain")
    }
    file = write(shell.home / ".cursor" / "mcp.json", {"mcpServers": servers})
    for name in servers:
        assert shell("tools", name)[0] == 0
    status, *told = shell("install", "cursor", "--move", "all", "--yes")
    assert status == 0
    assert "maps has views. Clients do not show them" in "".join(told)
    assert "plain has views" not in "".join(told)
    assert [*json.loads(file.read_text())["mcpServers"]] == ["code-bridge"]


def test_a_move_names_servers_with_permissions_that_hold_in_the_client_alone(shell: Shell) -> None:
    write(shell.home / ".claude.json", {"mcpServers": STARTED})
    denied = {"permissions": {"deny": ["mcp__docs__drop"]}}
    write(shell.home / ".claude" / "settings.json", denied)
    out = shell("install", "claude-code", "--move", "all", "--dry-run")[1]
    assert "Claude Code has permissions for tools of docs." in out
    assert "tools of web" not in out


def test_servers_of_each_deleted_file_of_a_client_are_restored(shell: Shell) -> None:
    user = shell.home / ".config" / "Code" / "User"
    write(user / "mcp.json", {"servers": {"a": {"command": "a"}}})
    settings = write(user / "settings.json", {"mcp": {"servers": {"b": {"command": "b"}}}})
    assert shell("install", "vscode", "--move", "all", "--yes")[0] == 0
    settings.unlink()
    assert shell("uninstall", "vscode", "--restore", "--yes")[0] == 0
    assert json.loads(settings.read_text()) == {"mcp": {"servers": {"b": {"command": "b"}}}}


def test_an_address_is_listed_without_its_password_and_token(shell: Shell) -> None:
    url = "http://u:pa55@127.0.0.1:1/mcp?token=t0ken"
    shell("install", "cursor", "--http", url, "--yes")
    for words in (("installed",), ("installed", "--json"), ("uninstall",)):
        said = shell(*words)[1]
        assert "127.0.0.1:1/mcp" in said
        assert "pa55" not in said
        assert "t0ken" not in said
