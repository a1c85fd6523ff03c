"""Nothing that programs may write to decides what is started on this machine."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tracemalloc
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.discovery.finder import DiscoveryContext, discover
from bridge.discovery.writable_paths import leave_out_writable
from bridge.model import Directory, ServerSpec, Source
from bridge.upstream.launch import plan_launch, server_environment
from tests.discovery.golden_cases import CASES
from tests.discovery.golden_machine import machine, put
from tests.discovery.writing import write

pytestmark = pytest.mark.guarantee("other-users", "written-configuration")

LINES = Path(__file__).parents[1] / "testdata" / "server_lines"


def lines(name: str) -> list[str]:
    """Return the command lines of a file, in the format of its README."""
    return (LINES / f"{name}.txt").read_text().splitlines()[1:]


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """A directory that programs may write to, with a script and a data directory."""
    given, other = tmp_path / "given", tmp_path / "other"
    (given / "data").mkdir(parents=True)
    other.mkdir()
    for name in ("server.py", "tool", "env"):
        (given / name).touch(0o755)
    (given / "inner").symlink_to(other)
    (other / "runtime").symlink_to(sys.executable)
    for name in ("in-given", "in-given-env"):
        interpreter = (
            f"{given}/bin/python" if name == "in-given" else "/usr/bin/env -S given/python"
        )
        (other / name).write_text(f"#!{interpreter}\n")
        (other / name).chmod(0o755)
    (tmp_path / "link").symlink_to(given)
    (tmp_path / "chain").symlink_to(given / "inner")
    return given


def server(line: str, given: Path, scope: str = "user") -> ServerSpec:
    places = {"S": given, "L": given.parent / "link", "UP": given.parent}
    places["O"] = given.parent / "other"
    line = re.sub(r"(?<![A-Za-z_])(S|L|UP|O)(?![A-Za-z_])", lambda at: str(places[at[0]]), line)
    words, variables, cwd = shlex.split(line), {}, None
    while re.match(r"\w+=", words[0]):
        name, _, variables[name] = words.pop(0).partition("=")
    if words[0] == "cd":
        cwd, words = words[1], words[3:]
    source = Source(client="Claude Code", scope=scope, path="/x.json", key="mcpServers.one")
    return ServerSpec(
        name="one",
        transport="stdio",
        source=source,
        command=words[0],
        args=tuple(words[1:]),
        env=variables,
        cwd=cwd,
    )


def judge(
    spec: ServerSpec,
    given: Path,
    *,
    inside: bool = False,
    used_by: str = "",
    variables: Mapping[str, str] = {},
) -> tuple[ServerSpec | None, str]:
    share = Directory(name="share", path=str(given), inside="/mnt/share", writable=True)
    share = replace(share, used_by=frozenset([used_by]))
    environ = {"HOME": str(given.parent), "PATH": os.environ["PATH"], **(variables or {})}
    cwd = given if inside else given.parent
    kept, left_out = leave_out_writable([spec], [given], [share], cwd, environ)
    return (kept[0], "") if kept else (None, left_out[0].reason)


@pytest.mark.parametrize("name", ["code", "code_inside"])
def test_a_server_whose_code_programs_may_change_is_not_used(given: Path, name: str) -> None:
    inside = name.endswith("inside")
    assert [x for x in lines(name) if judge(server(x, given), given, inside=inside)[0]] == []


@pytest.mark.parametrize("name", ["data", "data_inside"])
def test_a_server_that_only_works_on_what_programs_write_is_used(given: Path, name: str) -> None:
    inside = name.endswith("inside")
    reasons = {x: judge(server(x, given), given, inside=inside)[1] for x in lines(name)}
    assert {line: reason for line, reason in reasons.items() if reason} == {}


def test_of_the_golden_configurations_only_servers_with_code_in_the_project_are_left_out(
    tmp_path: Path,
) -> None:
    reasons = set()
    for number, case in enumerate(CASES):
        root = tmp_path / str(number)
        context = machine(root, "linux")
        put(root, case)
        for name in ("browser", "data", "docs", "notes", "server", "sub"):
            (context.cwd / name).mkdir(exist_ok=True)
        shared = (context.cwd, *map(Path, ("/home/user/docs", "/srv/data", "/data")))
        servers = discover(context).servers
        _, left_out = leave_out_writable(servers, shared, (), context.cwd, context.environ)
        reasons |= {each.reason.rpartition(", where ")[2] for each in left_out}
    assert reasons == {
        "its command leads",
        "its working directory leads",
        "its argument 'files.js' leads",
        "its argument 'local-server' leads",
    }


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("node given/x.js", "its argument 'given/x.js'"),
        ("node --require=S/x.js O/x.js", "its argument '--require'"),
        ("XDG_CONFIG_HOME=S some-server", "its variable XDG_CONFIG_HOME"),
        ("S/server.py", "its command"),
        ("cd S && npm start", "its working directory"),
    ],
)
def test_the_reason_names_the_part_and_the_line_that_allows_it(
    given: Path, line: str, part: str
) -> None:
    spec = server(line, given)
    _, reason = judge(spec, given)
    assert f"where {part} leads" in reason
    assert 'add `used_by = ["one"]` to [directories.share] in config.toml' in reason
    kept, _ = judge(spec, given, used_by="one")
    assert kept is not None
    assert kept.changes == {}
    assert judge(spec, given, used_by="two")[0] is None


def test_an_inherited_variable_counts_for_the_programs_that_read_it(given: Path) -> None:
    variables = {"PYTHONPATH": f"/opt:{given}/src", "npm_config_local_prefix": str(given)}
    for line in ("npx -y server", "node O/x.js", "docker run -i mcp/time", "some-server"):
        assert judge(server(line, given), given, variables=variables)[0], line
    for line in ("python3 -m server", "uvx server", 'sh -c "exec python3 O/x.py"'):
        _, reason = judge(server(line, given), given, variables=variables)
        assert "the inherited variable PYTHONPATH leads" in reason
    script = given.parent / "other" / "server"
    script.write_text("#!/usr/bin/env python3\n")
    assert judge(server("O/server", given), given, variables=variables)[0] is None


async def test_a_command_is_searched_for_without_directories_that_programs_may_write_to(
    given: Path,
) -> None:
    programs, own = given / ".venv" / "bin", given.parent / "other"
    programs.mkdir(parents=True)
    for place in (programs, own):
        (place / "server").write_text("#!/bin/sh\n")
        (place / "server").chmod(0o755)
    environ = {"PATH": f"{programs}:{own}:/bin", "VIRTUAL_ENV": str(given / ".venv")}
    kept, reason = judge(server("server --flag", given), given, variables=environ)
    assert kept, reason
    launch = await plan_launch(kept, {}, given)
    assert launch.argv == [str(own / "server"), "--flag"]
    started_with = server_environment(environ, kept)
    assert (started_with["PATH"], started_with["VIRTUAL_ENV"]) == (f"{own}:/bin", "")
    _, reason = judge(server("server", given), given, variables={"PATH": str(programs)})
    assert "its command leads" in reason


@pytest.mark.parametrize("scope", ["user", "local", "project"])
async def test_no_server_takes_its_code_from_the_current_directory_where_programs_may_write(
    given: Path, scope: str, tmp_path: Path
) -> None:
    kept, _ = judge(server("npx -y server", given, scope), given, inside=True)
    assert kept
    assert (await plan_launch(kept, {}, tmp_path / "empty")).cwd == str(tmp_path / "empty")
    module, _ = judge(server("python3 -m server_git", given, scope), given, inside=True)
    assert module
    assert module.apart
    (given / "server_git").mkdir()
    assert judge(server("python3 -m server_git", given, scope), given, inside=True)[0] is None


def test_variables_are_not_read_from_a_file_that_programs_may_write_to(
    context: DiscoveryContext, given: Path
) -> None:
    (given / "variables").write_text("NODE_OPTIONS=--require /tmp/evil.js\n")
    entry = {"command": "node", "envFile": str(given / "variables")}
    write(context.home / ".cursor" / "mcp.json", {"mcpServers": {"one": entry}})
    assert any(spec.env for spec in discover(context).servers)
    discovery = discover(replace(context, exposed=(given,)))
    assert not any(spec.env for spec in discovery.servers)
    assert any("programs may write" in warning.reason for warning in discovery.warnings)


def test_a_configuration_that_other_users_may_change_is_not_used(context: DiscoveryContext) -> None:
    entry = {"mcpServers": {"one": {"command": "python3"}}}
    file = write(context.home / ".claude.json", entry)
    assert discover(context).servers
    file.chmod(0o666)
    discovery = discover(context)
    assert discovery.servers == ()
    assert any("every user can write to it" in warning.reason for warning in discovery.warnings)


@pytest.mark.parametrize(
    "arguments", [("$A" * 20_000,), ("-c", "$@ " * 2_000, "x", "y" * 100_000)], ids=["$A", "$@"]
)
def test_a_definition_costs_no_more_memory_than_its_length(
    given: Path, arguments: tuple[str, ...]
) -> None:
    spec = replace(server("bash", given), args=arguments, env={"A": "a" * 100_000})
    tracemalloc.start()
    try:
        judge(spec, given)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()
