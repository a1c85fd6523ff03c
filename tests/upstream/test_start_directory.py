"""A server of the user's own runs no code of the directory that it is started in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import ServerSpec
from bridge.upstream.stdio import NO_PROJECT, server_command, server_environment
from tests.upstream.rig import SERVERS, Rig


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with a module in it that the fake server imports by that name."""
    found = tmp_path / "repository"
    found.mkdir()
    (found / "base64.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w').close()\n")
    monkeypatch.chdir(found)
    return found


def module(rig: Rig, scope: str = "user") -> ServerSpec:
    """Return a server that is a module of an installed package."""
    spec = rig.spec(sys.executable, "-m", "workshop", env={"PYTHONPATH": str(SERVERS)})
    return replace(spec, source=replace(spec.source, scope=scope))


async def test_a_python_module_imports_nothing_from_the_current_directory(
    rig: Rig, repository: Path, tmp_path: Path
) -> None:
    async with rig.pool(module(rig)) as pool:
        assert await pool.tools("server")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("scope", ["project", "local"])
def test_a_server_that_was_defined_for_a_project_may_be_a_part_of_it(rig: Rig, scope: str) -> None:
    spec = module(rig, scope)
    assert "PYTHONSAFEPATH" not in server_environment({}, spec)
    npx = replace(spec, command="npx", args=("-y", "server"))
    assert server_command(npx) == ["npx", "-y", "server"]


def test_a_directory_that_was_chosen_is_not_kept_out(rig: Rig) -> None:
    spec = replace(module(rig), cwd="/srv/app")
    assert "PYTHONSAFEPATH" not in server_environment({}, spec)
    npx = replace(spec, command="/usr/bin/npx", args=("server",))
    assert server_command(npx) == ["/usr/bin/npx", "server"]
    assert server_command(replace(npx, cwd=None))[1:] == ["--prefix", NO_PROJECT, "server"]


def test_a_script_finds_the_modules_beside_it(rig: Rig) -> None:
    spec = rig.spec(sys.executable, "/srv/app/server.py")
    assert "PYTHONSAFEPATH" not in server_environment({}, spec)


@pytest.mark.skipif(shutil.which("npx") is None, reason="there is no npx")
def test_npx_itself_runs_nothing_that_the_current_directory_has_installed(
    rig: Rig, repository: Path, tmp_path: Path
) -> None:
    programs = repository / "node_modules" / ".bin"
    programs.mkdir(parents=True)
    (programs / "mcp-code-bridge-test").write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
    (programs / "mcp-code-bridge-test").chmod(0o755)
    (repository / "package.json").write_text("{}")
    # What is not installed is looked for in the cache alone, so that nothing is fetched.
    npx = rig.spec("npx", "--offline", "--no", "mcp-code-bridge-test")
    environ = {**os.environ, "HOME": str(tmp_path)}
    for command, executed in ((server_command(npx), False), ([npx.command, *npx.args], True)):
        subprocess.run(command, env=environ, capture_output=True, check=False, timeout=120)
        assert (tmp_path / "executed").exists() is executed
