"""What type checkers make of the stubs, and of programs under them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bridge.catalog.typed import environment_stub, server_stub
from tests.catalog.nasty_servers import nasty_entries


@pytest.fixture(scope="module")
def stub_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stubs")
    entries = nasty_entries()
    for number, entry in enumerate(entries):
        (folder / f"stub_{number}.py").write_text(server_stub(entry))
    (folder / "environment.py").write_text(environment_stub(entries) + PROGRAM)
    return folder


PROGRAM = """

import pathlib as _pathlib


async def _program() -> None:
    labels = ["a"]
    where = {"field": "x"}
    made = await mcp_plain.create(
        "o/r", _pathlib.Path("t"), labels, state="Open".lower(), where=where, since=None
    )
    await mcp_plain.create("o/r", "t", {"a", "b"}, limit=None)
    print(made.number + 1, made["number"] + 1, made.user.login.upper())
    print(made.get("user").login, made["other"].anything, [*made.keys()])
    print(await mcp_plain.list_resources(), await mcp_plain.read_resource("x://y", a=1))
    print(await mcp_plain["create"]("o/r"), await mcp_servers["plain"].create("o/r"))
    try:
        await runtime.call_tool("plain", "create", {"repo": "o/r"})
    except runtime.MCPError as error:
        print(error.server, error.tool, error.data)
    for name in LOADED_MCP_SERVERS:
        print(name.upper(), (await runtime.search_tool_docs("x", limit=3))[0].signature)
"""

WRONG = """

async def _wrong() -> None:
    made = await mcp_plain.create("o/r", "t")
    print(made.nummer)
    print(made.number.upper())
    await mcp_plain.create("o/r")
    await mcp_plain.create("o/r", "t", limit="5")
    await mcp_plain.create("o/r", "t", lables=[])
    mcp_plain.creat
"""


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)


def test_mypy_accepts_stubs_and_a_program_under_them(stub_files: Path, tmp_path: Path) -> None:
    done = run(
        sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=",
        f"--cache-dir={tmp_path}", *map(str, sorted(stub_files.glob("*.py"))),
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0)


def test_ty_accepts_stubs_and_a_program_under_them(stub_files: Path) -> None:
    done = run(str(Path(sys.executable).with_name("ty")), "check", str(stub_files))
    assert done.returncode == 0, done.stdout


def test_ty_finds_what_is_wrong_in_a_program(tmp_path: Path) -> None:
    plain = [entry for entry in nasty_entries() if entry.name == "plain"]
    text = environment_stub(plain) + WRONG
    (tmp_path / "program.py").write_text(text)
    ty = str(Path(sys.executable).with_name("ty"))
    done = run(ty, "check", "--output-format=concise", str(tmp_path / "program.py"))
    first = text.split("\n").index("    print(made.nummer)") + 1
    found = [int(line.split(":")[1]) for line in done.stdout.splitlines() if "program.py:" in line]
    assert found == list(range(first, first + 6))
