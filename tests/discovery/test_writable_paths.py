"""Nothing that programs may write to decides what is started on this machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.discovery.finder import Discovery, DiscoveryContext, discover


@pytest.fixture
def given(context: DiscoveryContext, tmp_path: Path) -> Path:
    """A directory that programs may write to; with a script and a data directory in it."""
    given = tmp_path / "given"
    (given / "data").mkdir(parents=True)
    (given / "server.py").touch()
    (given / "server.py").chmod(0o755)
    return given


def found(context: DiscoveryContext, given: Path, **entry: Any) -> Discovery:
    """Discover with one server in the user's own configuration."""
    context.home.mkdir(parents=True, exist_ok=True)
    document = {"mcpServers": {"one": entry}}
    (context.home / ".claude.json").write_text(json.dumps(document))
    return discover(replace(context, exposed=(given,)))


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "{given}/server.py"},
        {"command": "{link}/server.py"},
        {"command": "python3", "args": ["{given}/server.py"]},
        {"command": "python3", "args": ["-X", "utf8", "{link}/server.py", "--flag"]},
        {"command": "node", "args": ["--require={given}/server.py", "/opt/x.js"]},
        {"command": "uv", "args": ["--directory", "{given}/data", "run", "server"]},
        {"command": "npm", "args": ["--prefix={given}/data", "start"]},
        {"command": "server.py", "env": {"PATH": "{given}"}},
        {"command": "python3", "args": ["{given}/not/built/yet.py"]},
        {"command": "python3", "args": ["-X", "utf8", "{given}/data"]},
        {"command": "node", "args": ["{given}/data"]},
        {"command": "node", "args": ["--import=file://{given}/x.mjs", "/opt/x.js"]},
        {"command": "sh", "args": ["-c", "exec sh {given}/go.sh"]},
        {"command": "sh", "env": {"PATH": "{given}/bin:/bin"}},
        {"command": "python3", "args": ["-m", "server"], "env": {"PYTHONPATH": "/opt:{given}"}},
        {"command": "node", "args": ["/x.js"], "env": {"NODE_OPTIONS": "-r {given}/x.js"}},
    ],
    ids=str,
)
def test_a_server_whose_code_programs_may_change_is_not_used(
    context: DiscoveryContext, given: Path, tmp_path: Path, entry: dict[str, Any]
) -> None:
    link = tmp_path / "link"
    link.symlink_to(given)
    text = json.dumps(entry).replace("{given}", str(given)).replace("{link}", str(link))
    discovery = found(context, given, **json.loads(text))
    assert discovery.servers == ()
    (skipped,) = discovery.skipped
    assert skipped.name == "one"
    assert "programs may write to" in skipped.reason
    assert "which it is started from" in skipped.reason


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx", "args": ["-y", "server-filesystem", "{given}/data"]},
        {"command": "python3", "args": ["-m", "server_git", "{given}/data"]},
        {"command": "sh", "args": ["/opt/start.sh", "{given}/data"]},
        {"command": "sh", "args": ["/opt/start.sh"], "env": {"NOTES_DIR": "{given}/data"}},
    ],
    ids=str,
)
def test_data_that_a_server_serves_may_be_written_by_programs_too(
    context: DiscoveryContext, given: Path, entry: dict[str, Any]
) -> None:
    text = json.dumps(entry).replace("{given}", str(given))
    (spec,) = found(context, given, **json.loads(text)).servers
    assert spec.name == "one"


def test_no_server_takes_its_code_from_the_current_directory_where_programs_may_write(
    context: DiscoveryContext, given: Path
) -> None:
    """`npx` and `python -m` would, but are kept from it when they are started."""
    inside = replace(context, cwd=given)
    assert not found(inside, given, command="uv", args=["run", "server"]).servers
    assert not found(inside, given, command="node", args=["./server.py"]).servers
    assert not found(inside, given, command="node", args=["server.py"]).servers
    assert found(inside, given, command="npx", args=["-y", "server"]).servers
    assert found(inside, given, command="python3", args=["-m", "server"]).servers
    assert found(inside, given, type="http", url="https://example.org/mcp").servers


def test_variables_of_the_bridge_name_no_code_that_programs_may_write(
    context: DiscoveryContext, given: Path
) -> None:
    inherited = replace(context, environ={"PYTHONPATH": str(given)})
    assert found(context, given, command="python3", args=["-m", "server"]).servers
    assert not found(inherited, given, command="python3", args=["-m", "server"]).servers


def test_variables_are_not_read_from_a_file_that_programs_may_write_to(
    context: DiscoveryContext, given: Path
) -> None:
    (given / "variables").write_text("NODE_OPTIONS=--require /tmp/evil.js\n")
    place = context.home / ".cursor" / "mcp.json"
    place.parent.mkdir(parents=True)
    entry = {"command": "node", "envFile": str(given / "variables")}
    place.write_text(json.dumps({"mcpServers": {"one": entry}}))
    assert any(spec.env for spec in discover(context).servers)
    discovery = discover(replace(context, exposed=(given,)))
    assert not any(spec.env for spec in discovery.servers)
    assert any("programs may write" in warning.reason for warning in discovery.warnings)


def test_a_configuration_that_other_users_may_change_is_not_used(
    context: DiscoveryContext, given: Path
) -> None:
    assert found(context, given, command="python3").servers
    (context.home / ".claude.json").chmod(0o666)
    discovery = discover(context)
    assert discovery.servers == ()
    assert any("every user can write to it" in warning.reason for warning in discovery.warnings)
