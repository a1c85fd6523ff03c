"""`install`, `uninstall` and `installed` as a person and a script see them."""

from __future__ import annotations

import json
import os
import pty
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bridge.cli.install import ask_network, carry_out, plan
from bridge.cli.main import main
from bridge.cli.person import Person
from bridge.clients.entry import own_entry
from bridge.clients.writers import machine_of
from bridge.servers.configuration import context_for
from bridge.settings import load
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


class Shell:
    """Runs commands in a home of its own."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home = home
        self._capsys = capsys

    def __call__(self, *words: str) -> tuple[int, str, str]:
        status = main(words)
        told = self._capsys.readouterr()
        return status, told.out, told.err


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
    return Shell(tmp_path, capsys)


def test_without_a_client_those_found_are_listed_and_nothing_is_written(shell: Shell) -> None:
    status, out, err = shell("install")
    assert (status, out.split()[0]) == (0, "cursor")
    assert "Nothing was changed" in err
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
    typist, line = pty.openpty()
    with (
        os.fdopen(line, encoding="utf-8") as reader,
        os.fdopen(os.dup(line), "w", encoding="utf-8") as writer,
    ):
        person = Person(reader, writer)
        asked = SimpleNamespace(dry_run=False, yes=False)
        async with typing_answers(typist, answer):
            done = await carry_out(planned, settings, machine, asked, person)
    os.close(typist)
    assert done is written
    assert ("code-bridge" in (shell.home / ".cursor" / "mcp.json").read_text()) is written


def test_an_entry_gets_what_reaches_the_network_and_logins_only_from_a_person(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", "/ca.pem")
    monkeypatch.setenv("https_proxy", "http://proxy:3128")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:s3cret@index/simple")
    assert shell("install", "cursor", "--yes")[0] == 0
    written = (shell.home / ".cursor" / "mcp.json").read_text()
    assert ('"SSL_CERT_FILE": "/ca.pem"' in written, "proxy:3128" in written) == (True, True)
    assert "UV_DEFAULT_INDEX" not in written


@pytest.mark.parametrize(("answer", "names"), [("no\n", []), ("yes\n", ["UV_INDEX_A_PASSWORD"])])
async def test_a_person_is_asked_before_variables_are_copied(
    answer: str, names: list[str], shell: Shell
) -> None:
    settings = load({}, {"HOME": str(shell.home), "UV_INDEX_A_PASSWORD": "s3cret", "UV_RUN_X": "1"})
    typist, line = pty.openpty()
    with (
        os.fdopen(line, encoding="utf-8") as reader,
        os.fdopen(os.dup(line), "w", encoding="utf-8") as writer,
    ):
        asked = SimpleNamespace(dry_run=False, yes=False)
        async with typing_answers(typist, answer):
            found = await ask_network(settings, asked, Person(reader, writer))
    os.close(typist)
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
    assert "in no client's file" in shell("installed")[1]
    assert shell("uninstall", "cursor")[1] == "Cursor: the bridge is in none of its files.\n"


def test_a_command_that_is_gone_is_reported(shell: Shell) -> None:
    entry = {"command": "/gone/mcp-code-bridge"}
    (shell.home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"b": entry}}))
    status, out, _ = shell("installed")
    assert (status, "no such program" in out) == (1, True)


def test_a_project_has_an_entry_of_its_own(shell: Shell) -> None:
    status, out, _ = shell("install", "cursor", "--scope", "project", "--yes")
    assert (status, "keep it out of what others check out" in out) == (0, True)
    assert json.loads((shell.home / "project/.cursor/mcp.json").read_text())["mcpServers"]
    assert shell("uninstall", "cursor", "--scope", "user", "--yes")[0] == 0
    assert (shell.home / "project/.cursor/mcp.json").exists()
    assert shell("uninstall", "cursor", "--yes")[0] == 0
    assert not (shell.home / "project/.cursor").exists()


def test_one_file_that_cannot_be_changed_keeps_the_others_as_they_are(shell: Shell) -> None:
    (shell.home / ".kiro" / "settings").mkdir(parents=True)
    (shell.home / ".kiro" / "settings" / "mcp.json").write_text("{\n nonsense")
    status, _, err = shell("install", "cursor", "kiro", "--yes")
    assert (status, "line 2" in err) == (2, True)
    assert "code-bridge" not in (shell.home / ".cursor" / "mcp.json").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("curser",), "Did you mean cursor"),
        (("cursor", "--http", "localhost:8000"), "is no address"),
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
    program = shell.home / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(FAKE_CLAUDE)
    program.chmod(0o755)
    status, out, _ = shell("install", "claude-code", "--yes", "--check")
    assert status == 0
    assert "claude mcp add-json -s user code-bridge '{" in out
    assert "  code-bridge: Connected\n" in out
    written = (shell.home / ".claude.json").read_text()
    assert "\n" not in written
    entry = json.loads(written)["mcpServers"]["code-bridge"]
    assert (entry["command"], entry["timeout"]) == (PROGRAM, 780_000)
    program.write_text(FAKE_CLAUDE.replace("Connected", "Failed to connect"))
    status, _, err = shell("install", "claude-code", "--yes", "--check")
    assert (status, "has trouble with code-bridge." in err) == (1, True)
    assert "claude mcp list` may say why." in err
    url = "http://127.0.0.1:8000/mcp"
    assert shell("install", "claude-code", "--http", url, "--yes")[0] == 0
    assert json.loads(shell("installed", "--json")[1])[0]["url"] == url
    assert shell("uninstall", "claude-code", "--yes")[0] == 0
    assert json.loads((shell.home / ".claude.json").read_text()) == {"mcpServers": {}}


def test_a_client_whose_own_command_fails_is_reported(shell: Shell) -> None:
    program = shell.home / "bin" / "claude"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho no room; exit 3\n")
    program.chmod(0o755)
    status, _, err = shell("install", "claude-code", "--yes")
    assert (status, "no room" in err) == (1, True)


def test_all_means_every_client_that_is_found_here(shell: Shell) -> None:
    (shell.home / ".qwen").mkdir()
    status, _, _ = shell("install", "all", "--yes")
    assert status == 0
    for file in (".cursor/mcp.json", ".qwen/settings.json"):
        assert "code-bridge" in json.loads((shell.home / file).read_text())["mcpServers"]
    status, out, _ = shell("uninstall", "all", "--yes")
    assert (status, "none of its files" in out) == (0, False)
    assert "code-bridge" not in (shell.home / ".cursor" / "mcp.json").read_text()
    assert not (shell.home / ".qwen" / "settings.json").exists()


@pytest.mark.parametrize("name", ["a\nb", "a b", "\x1b[31m", "x" * 65])
def test_a_name_that_not_every_client_takes_is_refused(name: str, shell: Shell) -> None:
    before = (shell.home / ".cursor" / "mcp.json").read_text()
    status, _, err = shell("install", "cursor", "--yes", "--name", name)
    assert status == 2
    assert "is no name" in err
    assert "\x1b" not in err
    assert (shell.home / ".cursor" / "mcp.json").read_text() == before


def test_a_password_in_an_address_is_written_and_not_shown(shell: Shell) -> None:
    """Nor can other users read it in the client's file, whose mode was another."""
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
        assert "is no address" in err
    command(shell.home, "gemini", f"echo 'code-bridge: {url} (http) - Connected'")
    status, out, err = shell("install", "gemini", "--http", url, "--check", "--yes")
    assert (status, "s3cret" in out + err) == (0, False)
    assert "Gemini CLI lists:\n  code-bridge: http://•••@127.0.0.1:8000/mcp?•••" in out


def test_several_clients_get_one_line_with_the_path(shell: Shell) -> None:
    """It is the same for each; of one client it stands in the diff."""
    (shell.home / ".codex").mkdir()
    path = os.environ["PATH"]
    one = shell("install", "cursor", "--dry-run")[1]
    assert path in one
    assert "<your PATH>" not in one
    _, out, _ = shell("install", "cursor", "codex", "--dry-run")
    assert out.count(path) == 1
    assert out.endswith(f"<your PATH> stands for: {path}\n")
    assert 'PATH = "<your PATH>"\n' in out
    assert '"PATH": "<your PATH>"' in out
    assert shell("install", "cursor", "codex", "--yes")[0] == 0
    for file in (".cursor/mcp.json", ".codex/config.toml"):
        text = (shell.home / file).read_text()
        assert path in text
        assert "<your PATH>" not in text


def test_a_client_that_trusts_no_folder_here_has_the_bridge_all_the_same(shell: Shell) -> None:
    """As Gemini CLI 0.46 prints it: no failure of the installation."""
    command(
        shell.home,
        "gemini",
        "printf 'Warning: MCP servers are configured but disabled because this folder is "
        "untrusted.\n\nConfigured MCP servers:\n\n"
        "○ code-bridge: /x/mcp-code-bridge serve (stdio) - Disabled\n'",
    )
    status, out, err = shell("install", "gemini", "--check", "--yes")
    assert (status, "has trouble" in err) == (0, False)
    assert "only in folders that you let it trust" in out
    command(shell.home, "gemini", "printf '○ code-bridge: x serve (stdio) - Disabled\n'")
    assert shell("install", "gemini", "--check", "--yes")[0] == 1


def command(home: Path, name: str, script: str) -> None:
    """Put a command of this home on the PATH."""
    place = home / "bin" / name
    place.parent.mkdir(exist_ok=True)
    place.write_text(f"#!/bin/sh\n{script}\n")
    place.chmod(0o755)


def test_where_there_is_no_client_the_next_step_is_said(shell: Shell) -> None:
    """The file can be written before the client is there."""
    (shell.home / ".cursor" / "mcp.json").unlink()
    (shell.home / ".cursor").rmdir()
    for words in (("install",), ("install", "all"), ("setup", "--clients", "all", "--yes")):
        status, _, err = shell(*words)
        assert status == (0 if words == ("install",) else 1)
        assert "no client was found here. Name one" in err
    assert "`mcp-code-bridge install` puts it there" in shell("installed")[1]
    assert shell("install", "cursor", "--yes")[0] == 0


def test_a_move_names_servers_whose_views_are_not_shown_then(shell: Shell) -> None:
    """Known from the last list of tools."""
    for name, more in (("maps", {"_meta": {"ui": {"resourceUri": "ui://map"}}}), ("plain", {})):
        tool = {"name": "t", "inputSchema": {"type": "object"}, **more}
        (shell.home / name).mkdir()
        (shell.home / name / "tools-1").write_text(json.dumps({"tools": [tool]}))
    servers = {
        name: {"command": sys.executable, "args": [str(PLAYBACK), str(shell.home / name)]}
        for name in ("maps", "plain")
    }
    file = shell.home / ".cursor" / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    for name in servers:
        assert shell("tools", name)[0] == 0
    status, *told = shell("install", "cursor", "--move", "all", "--yes")
    assert status == 0
    assert "maps has views. Clients do not show them" in "".join(told)
    assert "plain has views" not in "".join(told)
    assert [*json.loads(file.read_text())["mcpServers"]] == ["code-bridge"]
