"""The files of each client, and the form of its entry."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.client_configs.entry import (
    CALL_SECONDS,
    NAME,
    Entry,
    entry_value,
    is_bridge,
    own_command,
)
from bridge.client_configs.writers import WRITERS, detect_targets, targets, writer_for
from bridge.discovery.clients import LOCATIONS
from bridge.discovery.locations import Machine, machine_of
from bridge.errors import UsageError
from bridge.settings import defaults

COMMAND = Entry(command="/opt/mcp-code-bridge", args=("serve",), env={"PATH": "/usr/bin"})
ADDRESS = Entry(url="http://127.0.0.1:8000/mcp")

# As npm's @gleanwork/mcp-config-schema 5.2.0 describes them: the table of servers, then its fields
# for the kind, the command, the arguments, the variables; for the kind and the address over HTTP.
SECOND_OPINION = {
    "claude-code": ("mcpServers", "stdio", "command", "args", "env", "http", "url"),
    "claude-desktop": ("mcpServers", None, "command", "args", "env", None, None),
    "vscode": ("servers", "stdio", "command", "args", "env", "http", "url"),
    "cursor": ("mcpServers", None, "command", "args", "env", None, "url"),
    "opencode": ("mcp", "local", "command", "command", "environment", "remote", "url"),
    "goose": ("extensions", "stdio", "cmd", "args", "envs", "streamable_http", "uri"),
    "gemini": ("mcpServers", None, "command", "args", "env", None, "httpUrl"),
    "codex": ("mcp_servers", None, "command", "args", "env", None, "url"),
    "junie": ("mcpServers", None, "command", "args", "env", None, "url"),
    "windsurf": ("mcpServers", None, "command", "args", "env", None, "serverUrl"),
    "antigravity": ("mcpServers", None, "command", "args", "env", None, "serverUrl"),
}


@pytest.mark.parametrize("client", WRITERS)
def test_discovery_reads_each_template_and_recognises_each_entry(
    client: str, machine: Machine
) -> None:
    writer = WRITERS[client]
    read = {row.template for row in LOCATIONS if row.id == (writer.source or client)}
    assert {*writer.files} <= read
    for target in targets(writer, "user", machine) if writer.files else ():
        value = entry_value(target, COMMAND, "mine", second=False)
        assert is_bridge("mine", value, target.location.dialect)


@pytest.mark.parametrize("client", SECOND_OPINION)
def test_the_shape_is_the_one_that_others_write(client: str, machine: Machine) -> None:
    table, kind, command, args, env, http, url = SECOND_OPINION[client]
    [target] = targets(writer_for(client), "user", machine)
    value = entry_value(target, COMMAND, NAME, second=False)
    assert target.table == (table,)
    assert value.get("type") == kind
    words = value[command] if args == command else [value[command], *value[args]]  # type: ignore[misc]
    assert words == ["/opt/mcp-code-bridge", "serve"]
    assert value[env] == {"PATH": "/usr/bin"}
    if url is None:
        with pytest.raises(UsageError, match="does not support servers with an address"):
            entry_value(target, ADDRESS, NAME, second=False)
    else:
        remote = entry_value(target, ADDRESS, NAME, second=False)
        assert (remote.get("type"), remote[url]) == (http, ADDRESS.url)


def test_a_time_limit_is_in_the_clients_unit(machine: Machine) -> None:
    def limits(client: str) -> dict[str, object]:
        [target] = targets(writer_for(client), "user", machine)
        value = entry_value(target, COMMAND, NAME, second=False)
        return {key: value[key] for key in value if "timeout" in key}

    assert limits("codex") == {"tool_timeout_sec": 780, "startup_timeout_sec": 60}
    assert limits("claude-code") == {"timeout": 780_000}
    assert limits("goose") == {"timeout": 780}
    assert limits("cursor") == {}
    assert defaults().max_timeout + 120 < CALL_SECONDS


def test_a_project_has_its_file_at_its_root_and_home_is_no_project(machine: Machine) -> None:
    (machine.root / "src").mkdir()
    below = machine_of(replace(machine.context, cwd=machine.root / "src"))
    for client, file in (("cursor", ".cursor/mcp.json"), ("claude-code", ".mcp.json")):
        [target] = targets(writer_for(client), "project", below)
        assert target.path == machine.root / file
    for place in (machine.root, machine.root / "src"):
        (place / ".mcp.json").write_text("{}")
        [target] = targets(writer_for("claude-code"), "project", below)
        assert target.path == place / ".mcp.json"  # The nearest existing file.
    at_home = machine_of(replace(machine.context, cwd=machine.context.home))
    with pytest.raises(UsageError, match="home directory"):
        targets(writer_for("cursor"), "project", at_home)


def test_an_existing_file_is_preferred(machine: Machine) -> None:
    [target] = targets(writer_for("opencode"), "user", machine)
    assert target.path.name == "opencode.json"
    target.path.parent.mkdir(parents=True)
    target.path.with_suffix(".jsonc").write_text("{}")
    [target] = targets(writer_for("opencode"), "user", machine)
    assert (target.path.name, target.exists) == ("opencode.jsonc", True)
    place = machine.context.home / ".continue"
    place.mkdir()
    [target] = targets(writer_for("continue"), "user", machine)
    assert target.path == place / "mcpServers" / "code-bridge.json"
    (place / "config.yaml").write_text("name: mine\n")
    [target] = targets(writer_for("continue"), "user", machine)
    assert target.path == place / "config.yaml"


def test_every_build_and_profile_gets_an_entry(machine: Machine, tmp_path: Path) -> None:
    config, builds = machine.places["config"][0], ("Code/User", "Code - Insiders/User")
    for build in (*builds, "Code/User/profiles/work"):
        (config / build).mkdir(parents=True)
    found = targets(writer_for("vscode"), "user", machine)
    names = [str(each.path.parent.relative_to(config)) for each in found]
    assert names == [*builds, "Code/User/profiles/work"]
    environ = {"LOCALAPPDATA": str(tmp_path / "local"), "APPDATA": str(tmp_path / "roaming")}
    store = tmp_path / "local/Packages/Claude_x1/LocalCache/Roaming/Claude"
    for directory in (store, tmp_path / "roaming" / "Claude"):
        directory.mkdir(parents=True)
    windows = machine_of(replace(machine.context, platform="win32", environ=environ))
    found = targets(writer_for("claude-desktop"), "user", windows)
    assert [each.path.parent for each in found] == [store, tmp_path / "roaming" / "Claude"]


def test_clients_are_found_by_directory_file_or_command(machine: Machine, tmp_path: Path) -> None:
    assert detect_targets(machine) == ()
    home = machine.context.home
    (home / ".cursor").mkdir()
    (home / ".claude.json").write_text(json.dumps({}))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "goose").touch(mode=0o755)
    detected = {each.writer.id for each in detect_targets(machine)}
    assert detected == {"cursor", "claude-code", "goose"}


def test_the_command_has_a_whole_persistent_path(tmp_path: Path) -> None:
    def command_of(place: str, **environ: str) -> tuple[str, ...]:
        script = tmp_path / place / "mcp-code-bridge"
        script.parent.mkdir(parents=True, exist_ok=True)
        script.touch(mode=0o755)
        return own_command(str(script), environ)

    installed = tmp_path / "venv" / "bin" / "mcp-code-bridge"
    assert command_of("venv/bin") == (str(installed),)
    link = tmp_path / "mcp-code-bridge"
    link.symlink_to(installed)
    assert own_command("mcp-code-bridge", {"PATH": str(tmp_path)}) == (str(link),)
    uvx = ("/opt/uvx", "mcp-code-bridge")
    assert command_of("cache/archive-v0/x/bin", UV="/opt/uv") == uvx
    assert command_of("own/y/bin", UV_CACHE_DIR=str(tmp_path / "own"), UV="/opt/uv") == uvx
