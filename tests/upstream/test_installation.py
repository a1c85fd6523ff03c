"""Package runners: a first start downloads, and is not killed for that. With the real `npx`."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import anyio
import pytest

from bridge.errors import ServerStartError
from bridge.model import ServerSpec
from bridge.upstream.launch import label_container
from bridge.upstream.process import (
    KEPT_VARIABLE,
    TAG_VARIABLE,
    ProcessStat,
    _orphan_pids,
    _tree,
    broken_cache,
    installs_packages,
    new_tag,
    parse_stat,
    reap_orphans,
)
from tests.fakes.registry import SlowRegistry, slow_registry
from tests.upstream.rig import Rig
from tests.waiting import until

PACKAGE = "@modelcontextprotocol/server-memory@2026.8.31"

BRIDGE = """
import os, sys, anyio
from tests.upstream.rig import Rig
from pathlib import Path

async def main():
    rig = Rig(Path(sys.argv[1]))
    rig.environ = dict(os.environ)
    spec = rig.spec("npx", "-y", sys.argv[2], cwd=sys.argv[1])
    async with rig.pool(spec, start_patience=600.0) as pool:
        await pool.server("server").tools(patient=True)

anyio.run(main)
"""


@pytest.mark.parametrize(
    ("line", "installs"),
    [
        ("npx -y server", True),
        ("/usr/local/bin/npx --package=a b", True),
        ("npm exec -- server", True),
        ("npm --silent x server", True),
        ("pnpm dlx server", True),
        ("bunx server", True),
        ("bun x server", True),
        ("yarn dlx server", True),
        ("uvx server@latest", True),
        ("uv --directory /x run server", True),
        ("uv tool run server", True),
        ("pipx run server", True),
        ("docker run -i --rm image", True),
        ("podman --log-level error run -i image", True),
        ("env -i A=b npx server", True),
        ("sh -c|cd /srv && exec npx -y server", True),
        ("bash -lc|A=1 uvx server", True),
        ("timeout 60 uvx server", True),
        ("node server.js npx", False),
        ("python -m server", False),
        ("npm start", False),
        ("docker exec -i box server", False),
        ("env A=npx node server.js", False),
        ("sh -c|node server.js", False),
    ],
)
def test_commands_that_install_what_they_start_are_known(line: str, installs: bool) -> None:
    words, _, script = line.partition("|")
    command, *args = words.split()
    assert installs_packages(command, [*args, *filter(None, [script])]) is installs


@pytest.mark.parametrize(
    ("line", "labelled"),
    [
        ("docker run -i --label k=v img run", "docker run @ -i --label k=v img run"),
        ("/opt/bin/podman --log-level run --remote container run x", "container run @ x"),
        ("env A=b timeout 5 docker -H tcp://h:1 run x", "tcp://h:1 run @ x"),
        ("sh -c|cd / && exec docker run -i x | tee y", "exec docker run @ -i x | tee y"),
        ("docker --debug exec -i box run x", ""),
        ("docker compose run x", ""),
        ("podman-compose run x", ""),
        ("python server.py docker run x", ""),
        ("docker run", ""),
    ],
)
def test_a_container_is_labelled_where_its_engine_reads_options(line: str, labelled: str) -> None:
    head, _, script = line.partition("|")
    argv = [*head.split(), *filter(None, [script])]
    added, engine = label_container(argv, {"a": "[1]"})
    assert bool(engine) is bool(labelled)
    label = "--label 'a=[1]'" if script else "--label a=[1]"
    assert " ".join(added).endswith(labelled.replace("@", label) or " ".join(argv))
    assert label_container(argv, {})[1] == engine


@pytest.mark.parametrize(
    ("report", "directory"),
    [
        (
            "Error: Cannot find module 'ajv'\n- /home/a/.npm/_npx/ab12/node_modules/x.js",
            "/home/a/.npm/_npx/ab12",
        ),
        ("npm error code ENOTEMPTY\nnpm error path /c/_npx/ab12/node_modules/zod", "/c/_npx/ab12"),
        ("Cannot find package 'zod' imported from /r/pnpm/dlx/ff/x/index.js", "/r/pnpm/dlx/ff"),
        (
            "File \"/r/uv/archive-v0/Xy_1/lib/a/b.py\"\nModuleNotFoundError: No module named 'a'",
            "/r/uv/archive-v0/Xy_1",
        ),
        ("Error: connect ECONNREFUSED\n at /home/a/.npm/_npx/ab12/node_modules/pg/x.js", ""),
        ("Error: Cannot find module './mine'\n- /srv/server/index.js", ""),
    ],
)
def test_a_broken_cache_is_recognised_by_its_error(report: str, directory: str) -> None:
    assert broken_cache(report) == directory


needs_npx = pytest.mark.skipif(shutil.which("npx") is None, reason="there is no npx")


@pytest.fixture
def registry() -> Iterator[SlowRegistry]:
    with slow_registry(shutil.which("npm") or "npm") as made:
        yield made


def fresh(rig: Rig, registry: SlowRegistry) -> ServerSpec:
    """Give npm an empty cache, and return a real server."""
    rig.environ |= {
        "npm_config_cache": rig.path("cache"),
        "npm_config_registry": registry.url,
        "npm_config_replace_registry_host": "always",
        "npm_config_fetch_timeout": "900000",
    }
    return rig.spec("npx", "-y", PACKAGE, cwd=str(rig.directory))


def installers(rig: Rig) -> set[int]:
    """Return the processes of this test's installations, and the shells of their keepers."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environ = (path / "environ").read_bytes()
            leads = os.getpgid(int(path.name)) == int(path.name)
        except OSError:
            continue
        tagged = TAG_VARIABLE.encode() in environ and os.fsencode(rig.path("cache")) in environ
        keeps = leads and f"{KEPT_VARIABLE}=".encode() in environ
        spec = rig.spec("npx", "-y", PACKAGE, cwd=str(rig.directory))
        if tagged or (keeps and spec.definition.encode() in environ):
            found.add(int(path.name))
    return found


@pytest.mark.slow
@needs_npx
async def test_an_installation_continues_after_the_answer(rig: Rig, registry: SlowRegistry) -> None:
    spec = fresh(rig, registry)
    async with rig.pool(spec, start_timeout=2.0, start_patience=600.0) as pool:
        for _ in range(2):
            with pytest.raises(ServerStartError, match=r"still being installed; run this again"):
                await pool.call_tool("server", "read_graph", {})
        assert pool.state("server").restarts == 0
        registry.open.set()
        assert len(await pool.server("server").tools(patient=True)) == 9
        assert "content" in await pool.call_tool("server", "read_graph", {})
    assert installers(rig) == set()


@pytest.mark.full
@needs_npx
async def test_an_installation_outlives_the_bridge(rig: Rig, registry: SlowRegistry) -> None:
    spec = fresh(rig, registry)
    async with rig.pool(spec, start_timeout=2.0, start_patience=6.0) as pool:
        with pytest.raises(ServerStartError, match="still being installed"):
            await pool.server("server").start()
    assert installers(rig)
    await until(lambda: installers(rig) == set())
    assert not registry.open.is_set()


@pytest.mark.slow
@needs_npx
async def test_a_killed_bridges_installation_is_waited_for(rig: Rig) -> None:
    with slow_registry(shutil.which("npm") or "npm", free=3) as registry:
        spec = fresh(rig, registry)
        command = [sys.executable, "-c", BRIDGE, str(rig.directory), PACKAGE]
        with subprocess.Popen(command, env=rig.environ) as bridge:  # noqa: ASYNC220
            await until(lambda: registry.held > 0)
            bridge.send_signal(signal.SIGKILL)
        installing = installers(rig)
        assert installing
        async with rig.pool(spec, start_patience=600.0) as pool:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(pool.server("server").tools, patient=True))
                await until(lambda: pool.state("server").state == "starting")
                assert await reap_orphans() == 0
                assert installing <= installers(rig)
                registry.open.set()
            assert len(await pool.server("server").tools()) == 9
    await until(lambda: installers(rig) == set())


def test_a_command_name_with_brackets_does_not_shift_the_fields() -> None:
    fields = " ".join(["S", "7", "8", "9", *["0"] * 15, "123", "0"])
    expected = ProcessStat(pid=42, state="S", parent=7, group=8, session=9, started=123)
    assert parse_stat(f"42 (a) b) (c) {fields}") == expected
    assert parse_stat("nonsense") is parse_stat("") is None


def test_neither_this_process_nor_a_child_of_a_live_bridge_is_an_orphan() -> None:
    assert os.getpid() not in _tree(os.getpgid(0), new_tag())
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={TAG_VARIABLE: new_tag()})
    with child:
        try:
            assert child.pid not in _orphan_pids()
        finally:
            child.kill()
