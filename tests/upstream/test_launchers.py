"""Each launcher that people use starts a real package through the bridge, as it does directly.

The packages come from the registries. `make test` has one spelling of each launcher that it
installs; `make test-all` has all, by name and by path in a project.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import product
from pathlib import Path
from subprocess import PIPE

import anyio
import httpx2
import pytest
from _pytest.mark import ParameterSet
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.client.stdio import stdio_client

from bridge.errors import LoginRequiredError, ToolCallError
from tests.clients.client import PEERS, SCRIPTS
from tests.fakes.servers.guarded import guarded
from tests.ports import reserved_port
from tests.upstream.rig import EVERYTHING, Rig

LAUNCHERS = PEERS.with_name("launchers") / "node_modules" / ".bin"
MODULES = PEERS / "node_modules" / "@modelcontextprotocol"

MEMORY = "@modelcontextprotocol/server-memory"
PINNED = f"{MEMORY}@2026.8.31"
TIME = f"mcp-server-time=={version('mcp-server-time')}"
REMOTE = "mcp-remote@0.15.1"
IMAGE = "mcp-code-bridge-test-time"

CACHES = (
    *("npm_config_cache", "UV_CACHE_DIR", "UV_TOOL_DIR", "UV_TOOL_BIN_DIR", "XDG_CACHE_HOME"),
    *("BUN_INSTALL_CACHE_DIR", "DENO_DIR", "PIPX_HOME", "MCP_REMOTE_CONFIG_DIR"),
)

OFTEN = (
    f"npx -y {PINNED}",
    f"uvx {TIME}",
    "node MODULES/server-filesystem/dist/index.js .",
    f"docker run -i --rm --network none {IMAGE}",
)

MORE_LINES = (
    f"npm exec -y -- {PINNED}",
    f"uv run --with {TIME} mcp-server-time",
    "python -m mcp_server_time",
    f"env X=1 npx -y {PINNED}",
    f"sh -c 'exec uvx {TIME}'",
    f"npx --yes {MEMORY}@latest",
    f"npx -y -p {PINNED} mcp-server-memory",
    f"npx -y --package={PINNED} -c mcp-server-memory",
    f"npm exec --yes --package={PINNED} -- mcp-server-memory",
    f"npm x -y {PINNED}",
    f"pnpm dlx {PINNED}",
    f"pnpx {PINNED}",
    f"bunx {PINNED}",
    f"bun x --package {PINNED} mcp-server-memory",
    f"deno run -A npm:{PINNED}",
    f"uvx --from {TIME} mcp-server-time",
    f"pipx run {TIME}",
    f"pipx run --spec {TIME} mcp-server-time",
    "python -Im mcp_server_time",
)


def cases() -> Iterator[ParameterSet]:
    """Yield each line, at home by its name and in a project by its path."""
    for line, directory in product((*OFTEN, *MORE_LINES), ("home", "project")):
        marks = [] if line in OFTEN and directory == "home" else [pytest.mark.full]
        marks += [pytest.mark.docker] * line.startswith("docker")
        yield pytest.param(line, directory, marks=marks, id=f"{line} {directory}")


pytestmark = pytest.mark.node


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """An environment with the launchers, whose caches are empty at first."""
    caches = tmp_path_factory.mktemp("caches")
    path = (str(LAUNCHERS), str(caches / "UV_TOOL_BIN_DIR"), str(SCRIPTS), os.environ["PATH"])
    own = {name: str(caches / name) for name in CACHES}
    return {**os.environ, **own, "PATH": os.pathsep.join(path)}


@pytest.fixture(scope="module")
def image(environ: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Build an image of the time server on the runtime image, since no registry is reachable."""
    place = tmp_path_factory.mktemp("image")
    install = ["uv", "pip", "install", "--quiet", "--only-binary", ":all:", "--python-version"]
    install += ["3.11", "--target", str(place / "site"), TIME]
    subprocess.run(install, env=environ, check=True)
    (place / "Dockerfile").write_text(
        f"FROM {os.environ['MCP_TEST_IMAGE_DOCKER']}\nCOPY site /site\nENV PYTHONPATH=/site\n"
        'ENTRYPOINT ["python3", "-m", "mcp_server_time"]\n'
    )
    built = {**environ, "DOCKER_BUILDKIT": "0"}
    subprocess.run(["docker", "build", "--quiet", "-t", IMAGE, place], env=built, check=True)
    yield
    subprocess.run(["docker", "image", "rm", IMAGE], stdout=subprocess.DEVNULL, check=True)


def words(line: str, environ: Mapping[str, str], by: str) -> Sequence[str]:
    command, *arguments = shlex.split(line.replace("MODULES", str(MODULES)))
    path = shutil.which(command, path=environ["PATH"])
    assert path, f"{command} is missing; `make test` or `make test-all` installs it"
    return (path if by == "path" else command, *arguments)


@pytest.mark.slow
@pytest.mark.parametrize(("line", "place"), [*cases()])
async def test_a_server_starts_through_the_bridge_as_it_does_directly(
    request: pytest.FixtureRequest,
    rig: Rig,
    environ: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    line: str,
    place: str,
) -> None:
    command = line.split()[0]
    if command == "docker":
        request.getfixturevalue("image")
    if command == "pipx":
        install = ["uv", "tool", "install", "--quiet", "pipx==1.18.4"]
        await anyio.run_process(install, env=environ)
    here = tmp_path / place
    here.mkdir()
    if place == "project":
        (here / "package.json").write_text('{"name": "app", "version": "1.0.0", "private": true}')
        (here / "pyproject.toml").write_text('[project]\nname = "app"\nversion = "1.0.0"\n')
    monkeypatch.chdir(here)
    rig.environ.update(environ)
    argv = words(line, environ, "path" if place == "project" else "name")
    async with rig.pool(rig.spec(*argv), start_timeout=120.0) as pool:
        tools = await pool.server("server").tools()
        if "filesystem" in line:
            result = await pool.call_tool("server", "list_allowed_directories", {})
            assert str(here) in str(result)
    direct = {"command": argv[0], "args": argv[1:], "env": environ, "cwd": here}
    parameters = StdioServerParameters.model_validate(direct)
    async with McpClient(stdio_client(parameters)) as client:
        listed = (await client.list_tools()).tools
    assert {tool.name for tool in tools} == {tool.name for tool in listed}


@contextmanager
def remote(port: int, environ: Mapping[str, str]) -> Iterator[None]:
    command = ["node", str(EVERYTHING), "streamableHttp"]
    own = {**environ, "PORT": str(port)}
    with subprocess.Popen(command, env=own, stderr=PIPE, start_new_session=True) as process:
        try:
            assert process.stderr is not None
            next(line for line in process.stderr if b"listening" in line)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


async def test_mcp_remote_survives_a_lost_session(rig: Rig, environ: Mapping[str, str]) -> None:
    rig.environ.update(environ)
    said = {"message": "hello"}
    with reserved_port() as port:
        server = rig.spec("npx", "-y", REMOTE, f"http://127.0.0.1:{port}/mcp")
        async with rig.pool(server, start_timeout=120.0) as pool:
            with remote(port, environ):
                result = await pool.call_tool("server", "echo", said)
            with remote(port, environ):
                with pytest.raises(ToolCallError, match=r"session.*connected again"):
                    await pool.call_tool("server", "echo", said)
                assert await pool.call_tool("server", "echo", said) == result


@pytest.mark.slow
async def test_a_server_waits_for_its_users_login(rig: Rig, environ: Mapping[str, str]) -> None:
    """`mcp-remote` receives the browser itself, so the login would end with its process."""
    find = ["npx", "-y", "-p", REMOTE, "-c", "command -v mcp-remote"]
    proxy = await anyio.run_process(find, env=environ)
    rig.environ.update(environ)
    with guarded() as fake, reserved_port() as port:
        spec = rig.spec(proxy.stdout.decode().strip(), fake.url, str(port))
        async with rig.pool(spec, start_timeout=20.0, start_patience=600.0) as pool:
            with pytest.raises(LoginRequiredError, match=r"open http\S+ and then run") as caught:
                await pool.server("server").start()
            address = str(caught.value).partition(" open ")[2].partition(" ")[0]
            async with httpx2.AsyncClient() as browser:
                await browser.get(address, follow_redirects=True)
            await pool.server("server").tools(patient=True)
            result = await pool.call_tool("server", "echo", {"a": 1})
            assert result["structuredContent"] == {"a": 1}
            assert pool.state("server").restarts == 0
