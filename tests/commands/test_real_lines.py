"""Command lines that people really type, run for real: no argument is refused for its looks."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.commands.runner import Commands
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.server.tools import parse_line
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile
from tests.commands.command_rig import Place, place, run

DATA = Path(__file__).parents[1] / "testdata" / "command_lines.txt"
TOOLS = (
    *("awk", "cat", "cut", "diff", "echo", "find", "git", "grep", "head", "jq", "paste", "printf"),
    *("sed", "sort", "tail", "tr", "uniq", "wc", "/usr/bin/python3"),
)
TEXT = "a /usr/bin/env ~/x\nb /etc/hosts ../x\n/usr/lib a=/etc/passwd\n@/components /home/me //\n"


def _fill(workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src" / "m.py").write_text("#!/usr/bin/env python3\nimport sys  # f\n")
    (workspace / "x.txt").write_text(TEXT)
    (workspace / "data.json").write_text('{"a": 1, "b": [1], "p": "/usr/x/../etc/y"}')
    (workspace / "link").symlink_to("/root/x")
    own = ["user.name=n", "user.email=e@example.com", "safe.directory=*"]
    git = ["git", "-C", str(workspace), *(word for each in own for word in ("-c", each))]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], check=True)


@pytest.mark.slow
async def test_popular_lines_end_as_without_a_sandbox_or_name_the_argument() -> None:
    with place() as there:
        _fill(there.workspace)
        await _check_lines(there)


@pytest.mark.parametrize(
    "line", ["node -e 'console.log(7)'", "npm --version", "java -version", "runc --version"]
)
async def test_runtimes_that_reserve_gigabytes_start_in_the_default_memory(line: str) -> None:
    tools = ["node", "npm", "java", "runc", "sh"]
    if not all(map(shutil.which, tools)):
        pytest.skip(f"not all of {tools} are installed")

    async def choose(settings: Settings, profile: CommandProfile) -> BubblewrapBackend:
        backend = BubblewrapBackend(environ=settings.environ)
        found = await backend._look_around()
        around = replace(found.around, controllers=frozenset())
        backend._found = replace(found, cgroup_parents=(), around=around)
        return backend

    with place() as there:
        path = {"PATH": "/usr/sbin:/usr/bin:/bin"}
        async with Commands(there.settings(path, executables=tools), choose) as commands:
            result = await run(commands, *map(list, parse_line(line)))
    assert result.exit_code == 0, (result.error, result.stages)
    assert result.isolation is not None
    assert "memory-watch" in result.isolation.layers


async def _check_lines(there: Place) -> None:
    rows = [line.split("\t") for line in DATA.read_text().splitlines() if line[0] != "#"]
    assert len(rows) >= 100
    environ = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory"}
    table: dict[str, Any] = {
        "executables": [*TOOLS],
        "set": {**environ, "GIT_CONFIG_VALUE_0": "*", "GIT_PAGER": "cat"},
    }
    wrong: list[tuple[str, ...]] = []

    async def check(expected: str, line: str) -> None:
        wanted, typed = (each.replace("{host}", str(there.workspace)) for each in (expected, line))
        result = await run(commands, *map(list, parse_line(typed)))
        blamed = result.error.removeprefix(result.summary).strip()
        held = {"ok": result.exit_code == 0, "no": result.exit_code not in (0, None) and not blamed}
        if not held.get(wanted, wanted in blamed):
            wrong.append((line, result.summary, blamed, *(one.stderr for one in result.stages)))

    async with Commands(there.settings(**table)) as commands:
        for start in range(0, len(rows), 4):
            async with anyio.create_task_group() as tasks:
                for expected, line in rows[start : start + 4]:
                    tasks.start_soon(check, expected, line)
    assert not wrong, "\n".join(map(repr, wrong))
