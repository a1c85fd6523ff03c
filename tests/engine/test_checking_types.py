"""The deeper check: an installed type checker reads a program that failed."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from bridge.catalog.entries import ServerEntry, tool_entries
from bridge.engine import checking_types
from bridge.engine.checking_types import Checker, find_checker, type_notes
from bridge.model import Tool
from tests.waiting import until

TEXT = {"type": "string"}
TOOL = Tool(
    server="s",
    name="say",
    input_schema={"type": "object", "properties": {"what": TEXT}, "required": ["what"]},
)
SERVER = ServerEntry(name="s", alias="s", tools=tool_entries([TOOL]), known=True)

CODE = """import unknown_package
from mcp.servers import s
value = await mcp_s.say(what="x")
def double(n: int) -> str:
    return n * 2
print(double("x"))
"""


def _script(path: Path, text: str) -> Checker:
    """Return a stand-in for a checker: found by its name, as a real one is."""
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return Checker(name="ty", path=str(path))


@pytest.mark.parametrize("name", ["ty", "mypy"])
async def test_a_real_checker_finds_what_only_types_tell(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the program's own lines, and nothing about what it cannot know."""
    # On a busy machine mypy takes longer than anybody wants to wait for a note.
    monkeypatch.setattr(checking_types, "SECONDS", 120.0)
    checker = find_checker(name, "")
    assert checker is not None
    notes = await type_notes(checker, CODE, [SERVER])
    assert [(note.line, note.rule, note.severity) for note in notes] == [
        (5, "type-check", "note"),
        (6, "type-check", "note"),
    ]
    assert notes[0].message.startswith(f"{name}: ")


def test_a_checker_is_looked_for_as_the_settings_say(tmp_path: Path) -> None:
    """Off is the default; other programs are not taken for checkers."""
    assert find_checker("off", "") is None
    assert find_checker("", "") is None
    found = find_checker("auto", "")
    assert found is not None
    assert found.name == "ty"
    assert find_checker("python3", "/usr/bin") is None
    assert find_checker(str(tmp_path / "ty"), "") is None
    _script(tmp_path / "ty", "")
    assert find_checker(str(tmp_path / "ty"), "") == Checker(name="ty", path=str(tmp_path / "ty"))


async def test_a_checker_sees_no_configuration_and_no_secrets(tmp_path: Path) -> None:
    """It runs in an empty directory, which is its home as well."""
    script = (
        "import os\n"
        "told = [sorted(os.environ), os.listdir('.'), os.environ['HOME'] == os.getcwd()]\n"
        "lines = open('program.py').read().count(chr(10))\n"
        "print(f'program.py:{lines}:1: error[seen] {told}')\n"
    )
    (note,) = await type_notes(_script(tmp_path / "ty", script), "x = 1", [])
    assert "['program.py'], True]" in note.message
    assert "TOKEN" not in note.message
    assert "MCP_" not in note.message


async def test_a_checker_that_hangs_is_stopped_with_what_it_started(tmp_path: Path) -> None:
    """By the clock, and when nobody waits for the run any more."""
    mark = tmp_path / "pid"
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(mark)!r}, 'w').write(f'{{child.pid}}.')\n"
        "time.sleep(600)\n"
    )
    checker = _script(tmp_path / "ty", script)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(type_notes, checker, "x = 1", [])
            await until(lambda: mark.exists() and mark.read_text().endswith("."))
            tasks.cancel_scope.cancel()
        await until(lambda: not _runs(int(mark.read_text().rstrip("."))))


def _runs(pid: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_checker_that_takes_too_long_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result does not wait for it."""
    monkeypatch.setattr(checking_types, "SECONDS", 0.2)
    with anyio.fail_after(60):
        notes = await type_notes(_script(tmp_path / "ty", "import time; time.sleep(600)"), "x", [])
    assert notes == ()


async def test_a_flood_and_nonsense_from_a_checker_are_bounded(tmp_path: Path) -> None:
    """Of eight notes at most, each of one short line."""
    flood = "line = 'program.py:%d:1: error[x] ' + 'y' * 1500\nfor n in range(400):\n"
    flood += "    print(line % (10_000 + n))\nprint('\\x00\\xff' * 1000)\n"
    assert await type_notes(_script(tmp_path / "ty", flood), "x = 1", []) == ()
    assert await type_notes(Checker(name="ty", path=str(tmp_path / "no")), "x = 1", []) == ()
