"""A server starts as by hand, and runs no code of a foreign directory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.errors import ServerStartError
from bridge.upstream.launch import plan_launch, server_environment
from bridge.upstream.process import TAG_VARIABLE
from tests.interpreters import require
from tests.upstream.rig import SERVERS, Rig

MEMORY = "@modelcontextprotocol/server-memory@2026.8.31"

PACKAGE_RUNNERS = (
    ("npx", "-y", MEMORY),
    ("npm", "exec", "-y", "--", MEMORY),
    ("npm", "x", f"--package={MEMORY}", "-y", "--", "mcp-server-memory"),
)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with modules that shadow those that servers import."""
    directory = tmp_path / "repository"
    directory.mkdir()
    for module in ("base64", "json", "runpy"):
        mark = f"open({str(tmp_path / 'executed')!r}, 'w').close()\n"
        (directory / f"{module}.py").write_text(mark)
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture(scope="module")
def npm_environ(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment in which the package is in npm's cache."""
    directory = tmp_path_factory.mktemp("npm")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, "npm_config_cache": str(directory / "cache")}
    fetch = ["npx", "-y", "-p", MEMORY, "-c", "true"]
    subprocess.run(fetch, cwd=directory, env=environ, stdin=subprocess.DEVNULL, check=True)
    return environ


@pytest.fixture
def hostile(repository: Path, tmp_path: Path) -> Path:
    """A repository with each file that npm may execute; each records its execution."""
    programs = repository / "node_modules" / ".bin"
    programs.mkdir(parents=True)
    for name in ("mcp-server-memory", "server-memory", "node", "sh", "env", "evil"):
        (programs / name).write_text(f"#!/bin/sh\n: > {tmp_path}/executed\n")
        (programs / name).chmod(0o755)
    bins = '{"mcp-server-memory": "node_modules/.bin/evil"}'
    (repository / "package.json").write_text(f'{{"name": "evil", "bin": {bins}}}')
    settings = ("registry=http://127.0.0.1:9/", "fetch-retries=0", f"script-shell={programs}/evil")
    (repository / ".npmrc").write_text("\n".join(settings))
    return repository


def run(*argv: str, environ: Mapping[str, str] = os.environ) -> int:
    return subprocess.run(argv, env=environ, stdin=subprocess.DEVNULL, check=False).returncode


@pytest.mark.slow
@pytest.mark.guarantee("start-directory")
@pytest.mark.node
@pytest.mark.usefixtures("hostile")
@pytest.mark.parametrize("argv", PACKAGE_RUNNERS, ids=" ".join)
async def test_npm_ignores_a_hostile_project(
    rig: Rig, tmp_path: Path, npm_environ: Mapping[str, str], argv: tuple[str, ...]
) -> None:
    rig.environ.update(npm_environ)
    path = shutil.which(argv[0], path=rig.environ["PATH"]) or "`make test` installs npm"
    for command in (argv[0], path):
        async with rig.pool(rig.spec(command, *argv[1:])) as pool:
            assert len(await pool.server("server").tools()) == 9
        assert not (tmp_path / "executed").exists()
    assert run(*argv, environ=rig.environ) or (tmp_path / "executed").exists()


@pytest.mark.node
async def test_what_npm_starts_has_the_environment_and_the_directory_of_the_bridge(
    rig: Rig, repository: Path, tmp_path: Path, npm_environ: Mapping[str, str]
) -> None:
    rig.environ.update(npm_environ)
    seen = {}
    for way in ("direct", "bridge"):
        script = f"env -0 > {tmp_path}/{way}; exec mcp-server-memory"
        argv = ("npx", "-y", "-p", MEMORY, "-c", script)
        if way == "direct":
            assert run(*argv, environ=rig.environ) == 0
        else:
            async with rig.pool(rig.spec(*argv)) as pool:
                await pool.server("server").start()
        lines = (tmp_path / way).read_text().split("\0")
        seen[way] = dict(line.partition("=")[::2] for line in lines if line)
        lifecycle = ("npm_lifecycle_script", "npm_config_call", "PATH", "_")
        own = (TAG_VARIABLE, "MCP_BRIDGE_BACKGROUND")
        for name in (*lifecycle, *own, "npm_config_local_prefix", "npm_package_json", "OLDPWD"):
            seen[way].pop(name, None)
    assert seen["bridge"]["PWD"] == seen["bridge"]["INIT_CWD"] == str(repository)
    assert seen["bridge"] == {**seen["direct"], "PWD": str(repository)}


@pytest.mark.parametrize(
    "argv",
    [
        ("sh", "-c", "npx -y server"),
        ("npx", "-y", "./server"),
        ("npx", "-y", "server-1.0.0.tgz"),
        ("npx", "-p", "file:server", "server"),
        ("npx", "--prefix", "/srv/app", "server"),
        ("npm", "exec", "-w", "app", "server"),
        ("npm", "start"),
        ("./npx", "server"),
        ("python3", "server.py", "-m", "stdio"),
        ("python3", "-W", "ignore", "-X", "dev", "server.py", "-m"),
        ("python3", "-c", "pass", "-m", "x"),
    ],
    ids=" ".join,
)
async def test_own_directories_stay(rig: Rig, tmp_path: Path, argv: tuple[str, ...]) -> None:
    spec = rig.spec(*argv)
    own = replace(rig.spec("npx", "server"), source=replace(spec.source, scope="project"))
    chosen = rig.spec(sys.executable, "-m", "server", cwd="/srv/app")
    for each in (spec, own, replace(own, source=replace(own.source, scope="local")), chosen):
        environ = server_environment({"A": "1", "MCP_BRIDGE_LOG_LEVEL": "DEBUG"}, each)
        plan = await plan_launch(each, environ, tmp_path / "empty")
        assert plan.environ == {"A": "1"}
        assert (list(plan.argv), plan.cwd) == ([each.command, *each.args], each.cwd)


@pytest.mark.guarantee("start-directory")
@pytest.mark.parametrize(
    "options", [["-m", "raw"], ["-mraw"], ["-um", "raw"], ["-X", "dev", "-m", "raw"]]
)
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.13"])
async def test_a_python_module_imports_nothing_from_the_current_directory(
    rig: Rig, repository: Path, tmp_path: Path, version: str, options: list[str]
) -> None:
    rig.environ["PYTHONPATH"] = str(SERVERS)
    async with rig.pool(rig.spec(require(version), *options, "")) as pool:
        assert await pool.server("server").tools()
    assert not (tmp_path / "executed").exists()


async def test_a_module_of_the_current_directory_is_named_and_starts_with_cwd(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(SERVERS / "raw.py", tmp_path / "weather_server.py")
    monkeypatch.chdir(tmp_path)
    spec = rig.spec(sys.executable, "-m", "weather_server", "")
    async with rig.pool(spec) as pool:
        with pytest.raises(ServerStartError) as caught:
            await pool.server("server").tools()
    for part in ("No module named weather_server", 'as "cwd"', spec.source.path):
        assert part in str(caught.value)
    async with rig.pool(replace(spec, cwd=str(tmp_path))) as pool:
        assert await pool.server("server").tools()


async def test_a_script_finds_the_modules_next_to_it(rig: Rig, tmp_path: Path) -> None:
    raw = f"runpy.run_path({str(SERVERS / 'raw.py')!r}, run_name='__main__')"
    (tmp_path / "helpers.py").write_text(f"import runpy, sys\nsys.argv[1:] = []\n{raw}\n")
    (tmp_path / "server.py").write_text("import helpers\n")
    script = rig.spec(sys.executable, str(tmp_path / "server.py"), "-m", "stdio")
    async with rig.pool(script) as pool:
        assert await pool.server("server").tools()
