"""Programs as models write them, each run once, and the wrong ones once more after their fix.

`programs.toml` has, for each program, what its run shows if it works at the first try, and the
calls that reach the tracker. A program that cannot work (`answer`) has a pattern of the answer that
names the fix, and the program after this fix (`fix`: texts and their replacements; `instead`).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.errors import BridgeError
from bridge.model import RunRequest, ServerSpec, Source
from bridge.render.text import compact
from bridge.runs import Engine, open_engine
from bridge.settings import load
from tests.e2e.rig import SCRIPTS, engines
from tests.engine_rig import ListFinder

HERE = Path(__file__).parent
DATA: dict[str, Any] = tomllib.loads((HERE / "programs.toml").read_text())
PROGRAMS: list[dict[str, Any]] = DATA["program"]
DOCS = HERE.parents[1] / "docs" / "programs.md"

OUTCOMES = ("first try", "one more try", "neither")


def server(name: str, *command: str, **env: str) -> ServerSpec:
    source = Source(client="Test", scope="user", path="/t.json", key=f"mcpServers.{name}")
    return ServerSpec(
        name=name, transport="stdio", source=source, command=command[0], args=command[1:], env=env
    )


def repository(place: Path) -> Path:
    place.mkdir()
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-C", str(place)]
    subprocess.run([*git, "init", "-q"], check=True)
    for name in ("first", "second"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", name], check=True)
    return place


class Corpus:
    """The corpus on one engine."""

    def __init__(self, engine: Engine, home: Path) -> None:
        self._engine = engine
        self._home = home

    async def run(self, code: str, servers: list[str] | None) -> tuple[str, list[str], bool]:
        log = self._home / "log"
        log.write_text("")
        code = code.strip("\n").replace("REPO_PATH", str(self._home / "repository"))
        named = None if servers is None else tuple(servers)
        try:
            with anyio.fail_after(120):
                result = await self._engine.run(RunRequest(code=code, servers=named))
        except BridgeError as error:
            return str(error), [], True
        return compact(result), log.read_text().splitlines(), result.status != "success"

    async def outcome(self, program: dict[str, Any]) -> tuple[str, str]:
        text, calls, failed = await self.run(program["code"], program.get("servers"))
        if not failed and re.search(program["shows"], text, re.MULTILINE):
            wanted = program.get("calls")
            return ("first try" if wanted in (None, sorted(calls)) else "neither"), text
        if not re.search(program.get("answer", "$^"), text):
            return "neither", text
        code = program.get("instead", program["code"])
        for old, new in program.get("fix", ()):
            assert old in code, program["name"]
            code = code.replace(old, new)
        again, _, failed = await self.run(code, program.get("servers"))
        worked = not failed and re.search(program["shows"], again, re.MULTILINE)
        return ("one more try" if worked else "neither"), text if worked else f"{text}\n{again}"


@asynccontextmanager
async def corpus(home: Path, *, runtime: str = "bubblewrap", **more: str) -> AsyncIterator[Corpus]:
    environ = {**os.environ, "HOME": str(home), "MCP_BRIDGE_STATE_DIR": str(home / "s")}
    settings = load({"runtime": runtime, "warm": "1"}, environ)
    tracker = (sys.executable, str(HERE / "tracker.py"))
    finder = ListFinder(
        *(server(name, command) for name, command in more.items()),
        server("tracker", *tracker, TRACKER_LOG=str(home / "log")),
    )
    async with open_engine(settings, finder=finder) as engine:
        yield Corpus(engine, home)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_each_program_works_as_often_as_the_documents_say(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repository(tmp_path / "repository")
    git, time = (str(SCRIPTS / f"mcp-server-{name}") for name in ("git", "time"))
    lacking: dict[str, str] = {}
    counts = dict.fromkeys(OUTCOMES, 0)
    async with corpus(tmp_path, git=git, time=time) as programs:
        for program in PROGRAMS:
            found, text = await programs.outcome(program)
            counts[found] += 1
            usual = "one more try" if "answer" in program else "first try"
            if found != program.get("outcome", usual):
                lacking[program["name"]] = f"{found}: {text}"
    figure = ", ".join(f"{name}: {count}" for name, count in counts.items())
    with capsys.disabled():
        print(f"\n{len(PROGRAMS)} programs as models write them: {figure}")
    assert lacking == {}
    assert f"{counts['first try']} of {len(PROGRAMS)}" in DOCS.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "runtime", [pytest.param(name, marks=getattr(pytest.mark, name)) for name in engines()]
)
@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.full)])
async def test_the_programs_work_as_well_in_a_container(
    tmp_path: Path, runtime: str, step: int
) -> None:
    repository(tmp_path / "repository")
    git, time = (str(SCRIPTS / f"mcp-server-{name}") for name in ("git", "time"))
    async with corpus(tmp_path, runtime=runtime, git=git, time=time) as programs:
        for program in PROGRAMS[::step]:
            usual = "one more try" if "answer" in program else "first try"
            found, text = await programs.outcome(program)
            assert found == program.get("outcome", usual), f"{program['name']}: {text}"
