"""The recipes of CONTRIBUTING.md, each followed on a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

BACKEND = '''"""A sandbox of the recipe."""

from bridge.sandbox.process.backend import BubblewrapBackend


class TwinBackend(BubblewrapBackend):
    """Bubblewrap in another class."""
'''
BRING_UP = """\
        if name == "twin":
            return replace(self.get("bubblewrap"), name=name)
"""
RIG = """\
    elif engine.name == "twin":
        from bridge.sandbox.process.twin_backend import TwinBackend

        backend = TwinBackend(environ=engine.environ)
"""
COMMAND = '''"""`probe`."""

from __future__ import annotations

from bridge.cli.output import write_out
from bridge.settings import Settings


async def probe(settings: Settings) -> int:
    """Print a word."""
    write_out("probed\\n")
    return 0
'''
COMMAND_TEST = '''"""`probe`."""

from bridge.cli.probe import probe
from bridge.settings import Settings


async def test_a_word_is_printed(capsys) -> None:
    assert await probe(Settings()) == 0
    assert capsys.readouterr().out == "probed\\n"
'''

ERROR_TEST = """\
def test_a_probe() -> None:
    text = [{"type": "text", "text": "no"}]
    assert tool_error({"isError": True, "content": text}) == "no (probed)"


"""

# Per recipe: the edits (file, text before which something is inserted or "", the insertion), and
# the tests to run.
RECIPES: dict[str, tuple[list[tuple[str, str, str]], list[str]]] = {
    "a setting": (
        [
            ("bridge/settings/values.py", "        timeout: Default", "        probe: A word.\n"),
            (
                "bridge/settings/values.py",
                "    timeout: float = declare",
                '    probe: str = declare(str, "none")\n',
            ),
            (
                "tests/settings/test_load.py",
                '        ("pids = 64"',
                '        (\'probe = "a"\', {"PROBE": "b"}, {"probe": "c"}, {"probe": "c"}),\n',
            ),
        ],
        ["tests/settings/test_load.py"],
    ),
    "a field to the result": (
        [
            ("bridge/model/runs.py", "        summary: The status", "        probe: A word.\n"),
            ("bridge/model/runs.py", "    recorded: bool", '    probe: str = ""\n'),
            ("bridge/runs/execution.py", "            stdout=label", '            probe="b",\n'),
            (
                "bridge/render/structured.py",
                '        "findings": [',
                '        "probe": result.probe,\n',
            ),
            (
                "bridge/server/arguments.py",
                '        "timeoutSeconds": "number",\n',
                '        "probe": "string",\n',
            ),
        ],
        ["tests/render", "tests/server/test_arguments.py"],
    ),
    "a client's configuration format": (
        [
            ("bridge/discovery/dialect.py", "VSCODE = ", "PROBE = Dialect()\n\n"),
            (
                "bridge/discovery/clients.py",
                '    "vscode": (',
                '    "probe": ("Probe", "json", dialects.PROBE),\n',
            ),
            (
                "bridge/discovery/clients.py",
                '    _file("cursor", "{home}',
                '    _file("probe", "{home}/.probe/mcp.json"),\n',
            ),
            ("bridge/client_configs/writers.py", '    _row("cursor"),', '    _row("probe"),\n'),
            (
                "tests/testdata/discovery/probe/mcp.json",
                "",
                '{"mcpServers": {"files": {"command": "mcp-files", "args": ["/srv"]}}}\n',
            ),
        ],
        ["tests/discovery/test_locations.py", "tests/client_configs/test_install.py"],
    ),
    "a sandbox backend": (
        [
            ("bridge/sandbox/process/twin_backend.py", "", BACKEND),
            ("bridge/settings/parsers.py", '"landlock",)', '"twin", '),
            (
                "bridge/sandbox/selection.py",
                '    "landlock": (',
                '    "twin": ("twin_backend", "TwinBackend"),\n',
            ),
            ("tests/contract/rig.py", '"bubblewrap", "podman", "docker"', '"twin", '),
            ("tests/contract/rig.py", '"bubblewrap")', '"twin", '),
            ("tests/contract/rig.py", '        if name == "docker":', BRING_UP),
            ("tests/contract/rig.py", '    elif engine.name == "bubblewrap":', RIG),
        ],
        ["tests/contract/test_backend_contract.py", "-k", "twin", "-m", "full or not full"],
    ),
    "a command": (
        [
            (
                "bridge/cli/app.py",
                '    "servers": Command(',
                '    "probe": Command("probe:probe", "Print a word", RUNNING),\n',
            ),
            ("bridge/cli/probe.py", "", COMMAND),
            ("tests/cli/test_probe.py", "", COMMAND_TEST),
        ],
        ["tests/cli/test_probe.py"],
    ),
    "how a tool's error is shown": (
        [
            (
                "bridge/rpc/values.py",
                "    if clear is not None:",
                '    message = f"{message} (probed)"\n',
            ),
            ("tests/rpc/test_values.py", "def test_a_long_error", ERROR_TEST),
        ],
        ["tests/rpc/test_values.py::test_a_probe"],
    ),
}


def named_files(recipe: str) -> list[str]:
    """Return the files that a recipe names, with NAME as a pattern."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [section] = re.findall(
        rf"^## How to (?:add|change) {re.escape(recipe)}\n(.*?)^## ", text, re.M | re.S
    )
    paths = re.findall(r"`((?:bridge|tests|docs)/[\w./]+)`", section)
    return list(dict.fromkeys(path.replace("NAME", "*") for path in paths))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_names_at_most_four_files_which_exist(recipe: str) -> None:
    names = named_files(recipe)
    assert 0 < len(names) <= 4, names
    assert [name for name in names if not list(ROOT.glob(name))] == []
    edits, _ = RECIPES[recipe]
    assert [edit for edit in edits if edit[1] and edit[1] not in (ROOT / edit[0]).read_text()] == []


@pytest.mark.full
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_followed_on_a_copy_passes_its_own_tests(recipe: str, tmp_path: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    edits, tests = RECIPES[recipe]
    for name, before, text in edits:
        assert any(fnmatch(name, f"{pattern}*") for pattern in named_files(recipe)), name
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = path.read_text(encoding="utf-8") if before else ""
        assert not before or before in content, (name, before)
        path.write_text(content.replace(before, text + before, 1) if before else text)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "UPDATE_FROZEN": "1"}
    lint = Path(sys.executable).with_name("lint-imports")
    for command in (
        [str(lint)],
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
    ):
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:]
