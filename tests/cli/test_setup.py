"""`setup` and the servers that move, at a terminal and by flags."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
import pytest

from bridge.cli.install import STOPPED
from bridge.cli.main import main
from bridge.cli.run import request_of
from bridge.cli.setup import setup
from bridge.client_configs.entry import network_variables
from bridge.sandbox.backend import Probe
from bridge.settings import load
from tests.cli.desk import desk, read_until
from tests.discovery.writing import write
from tests.engine_rig import WORKSHOP, backend, engine_on
from tests.fakes.backend import FakeBackend
from tests.waiting import PATIENCE_SECONDS, typing_answers

__all__ = ["backend"]

TERMINAL = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, "-m", "bridge", *sys.argv[1:]])
"""
"""Starts the bridge with its standard input as the controlling terminal."""

SHOP = json.dumps({"command": sys.executable, "args": [str(WORKSHOP)]})

CONFIG = f"""{{
  // mine
  "mcpServers": {{
    "shop": {SHOP}, // my shop
    "off": {{"command": "x", "disabled": true, "autoApprove": ["look"]}}
  }}
}}
"""


@pytest.fixture
def home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write(home / ".cursor" / "mcp.json", CONFIG)
    (home / "work").mkdir()
    # The command would ask about these.
    for name in network_variables(os.environ, secrets=True):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(home / "work")
    return home


def cursor(home: Path) -> str:
    return (home / ".cursor" / "mcp.json").read_text()


def moved_directory(home: Path) -> Path:
    return home / ".config" / "mcp-code-bridge" / "moved"


async def at_terminal(*words: str, answers: tuple[str, ...], path: str = "/usr/bin:/bin") -> str:
    """Answer each question; return all that the terminal has shown."""
    argv = [sys.executable, "-c", TERMINAL, *words]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "TERM": "dumb"}
    environ["PATH"] = path
    with desk() as (typist, line, writer):
        process = await anyio.open_process(argv, stdin=line, stdout=line, stderr=line, env=environ)
        with anyio.fail_after(PATIENCE_SECONDS):
            async with process, typing_answers(typist, *answers) as told:
                pass
        # The system may pass on the last output later than the process ends.
        print(end="\0", file=writer, flush=True)
        rest = read_until(typist, b"\0").removesuffix(b"\0")
        return told[0] + rest.decode().replace("\r\n", "\n")


async def test_setup_asks_step_by_step(home: Path) -> None:
    told = await at_terminal("setup", answers=("no\n", "cursor\n", "\n", "\n"))
    flat = " ".join(told.split())
    assert "1 client found:\n  cursor: 2 servers in" in told
    assert "mcp.json, 1 not used 1 server can be used through the bridge: shop;" in flat
    assert f"Moved shop, off out of {home / '.cursor' / 'mcp.json'}." in told
    assert "behind the bridge (2 servers): shop, off" in told
    assert "my shop" not in cursor(home)
    assert "// mine" in cursor(home)
    assert (moved_directory(home) / "moved.json").exists()


async def test_no_move_is_offered_if_the_client_cannot_start_the_bridge(home: Path) -> None:
    settings = {"mcpServers": {"o": {"command": "x"}}, "mcp": {"excluded": ["code-bridge"]}}
    write(home / ".gemini" / "settings.json", settings)
    told = await at_terminal("setup", "--skip-cost", answers=("gemini\n", "no\n"))
    assert "Gemini CLI will not start it: turned off by mcp.excluded." in told
    assert "move behind the bridge?" not in told


ANSWERS = ("no\n", "\n", "shop\n")


@pytest.mark.parametrize("given", range(len(ANSWERS) + 1))
async def test_an_interrupt_at_a_question_changes_nothing(home: Path, given: int) -> None:
    told = await at_terminal("setup", answers=(*ANSWERS[:given], "\x03"))
    assert told.endswith("^C\nNo changes made.\n")
    assert cursor(home) == CONFIG
    assert not moved_directory(home).exists()


async def test_an_interrupt_during_the_changes_reports_those_made(home: Path) -> None:
    os.mkfifo(home / "never")
    script = f"#!/bin/sh\nprintf 'now: ' >/dev/tty\nread line <{home / 'never'}\n"
    write(home / "bin" / "claude", script).chmod(0o755)
    words, path = ("install", "cursor", "claude-code"), f"{home / 'bin'}:/usr/bin:/bin"
    told = await at_terminal(*words, answers=("yes\n", "\x03"), path=path)
    assert f"Added code-bridge to {home / '.cursor' / 'mcp.json'}.\nnow: " in told
    assert told.endswith(f"{STOPPED}\n")
    assert "mcp-code-bridge" in cursor(home)
    assert not (home / ".claude.json").exists()


def test_each_answer_has_a_flag_and_all_comes_back(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["setup", "--clients", "all", "--move", "all", "--skip-cost", "--yes"])
    assert "mcp-code-bridge" in cursor(home)
    assert "shop" not in cursor(home)
    assert "Cursor's permissions for tools of off do not apply" in capsys.readouterr().out
    assert main(["servers", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert f"moved from {home / '.cursor' / 'mcp.json'}" in rows["shop"]["source"]
    assert rows["off"]["state"] == "skipped"
    assert main(["uninstall", "cursor", "--restore", "--yes"]) == 0
    assert f"Restored shop, off to {home / '.cursor' / 'mcp.json'}." in capsys.readouterr().err
    assert cursor(home) == CONFIG


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("setup --skip-cost", 2, "--clients A,B"),
        ("install cursor --move shop,nope --yes", 2, "'nope'"),
        ("install cursor --move all --dry-run", 0, "No changes made (--dry-run)."),
    ],
)
def test_nothing_is_written(
    home: Path, words: str, status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == status
    assert said in capsys.readouterr().err
    assert cursor(home) == CONFIG
    assert not moved_directory(home).exists()


def test_a_moved_server_answers_the_same_calls(home: Path, backend: FakeBackend) -> None:
    async def answer() -> object:
        settings = load({"warm": "0"}, dict(os.environ))
        async with engine_on(backend, settings) as engine:
            done = await engine.run(request_of(code="await mcp_shop.add(a=20, b=22)"))
            return done.status, done.result

    before = anyio.run(answer)
    assert main(["install", "cursor", "--move", "shop", "--yes"]) == 0
    assert anyio.run(answer) == before
    assert before == ("success", {"sum": 42})


def test_without_a_sandbox_setup_names_the_next_step(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(home / "nothing"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{home / 'none.sock'}")
    assert main(["setup", "--clients", "cursor", "--skip-cost", "--yes"]) == 1
    told = capsys.readouterr()
    assert "No sandbox works yet, so programs cannot run here.\n  podman: " in told.out
    assert "Seatbelt" not in told.out
    assert "Next: run `mcp-code-bridge doctor`" in " ".join(told.err.split())
    assert "mcp-code-bridge" in cursor(home)


async def test_setup_offers_to_build_a_missing_image_after_the_clients(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def survey(_: object) -> list[Probe]:
        problem = "has no image."
        return [Probe(backend="podman", ok=False, summary=problem, error_code="image_missing")]

    monkeypatch.setattr("bridge.cli.setup.probe_all", survey)
    with desk() as (typist, reader, writer):
        monkeypatch.setattr(sys, "stdin", reader)
        monkeypatch.setattr(sys, "stderr", writer)
        async with typing_answers(typist, "yes\n", "no\n") as told:
            settings = load({}, dict(os.environ))
            assert await setup(settings, clients="cursor", move="none", skip_cost=True) == 1
    first, second = map(
        told[0].index, ("Apply these changes?", "Build the runtime image on podman")
    )
    assert first < second


def test_uninstall_warns_of_moved_servers_and_asks_whether_they_come_back(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["install", "cursor", "--move", "shop", "--yes"])
    capsys.readouterr()
    main(["setup", "--clients", "none", "--skip-cost", "--yes"])
    assert ", 1 moved behind the bridge, has the bridge" in capsys.readouterr().out

    async def leave() -> str:
        return await at_terminal("uninstall", "cursor", answers=("\n", "yes\n"))

    told = anyio.run(leave)
    assert "without shop, which moved behind the bridge" in told
    assert told.count("--- /") == 1
    assert cursor(home) == CONFIG
    main(["install", "cursor", "--move", "shop", "--yes"])
    assert main(["uninstall", "cursor", "--yes"]) == 0
    assert "without shop, which moved behind" in capsys.readouterr().err
    assert "shop" not in cursor(home)
    assert main(["uninstall", "cursor", "--restore", "--yes"]) == 0
    assert "shop" in cursor(home)
