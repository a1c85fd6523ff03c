"""`purge`: nothing of the bridge stays on the machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.private_files import in_use
from tests.cli.desk import Cli, command_line

OTHERS = "export A=1\n# mine\n"
OURS = "localhost/mcp-code-bridge-purged"


@pytest.fixture
def home(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    for name in list(os.environ):
        if name.startswith("MCP_BRIDGE_"):
            monkeypatch.delenv(name)
    # Other tests need the images that the engines have, and the directory for sockets in /tmp.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.setattr("bridge.cli.purge.REPOSITORY", OURS)
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    for name in ("CONFIG", "STATE", "DATA", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    files = {
        ".config/mcp-code-bridge/config.toml": "pids = 64\n",
        ".config/other/config": "x",
        ".local/state/other": "x",
        ".bash_completions/mcp-code-bridge.sh": "complete",
        ".bashrc": f"{OTHERS}\nsource '{tmp_path}/.bash_completions/mcp-code-bridge.sh'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def commands(home: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return command_line(capsys)


def mentions(home: Path) -> list[str]:
    """Return the files of a home whose name or content is about the bridge."""
    return [
        str(path)
        for path in sorted(home.rglob("*"))
        if "code-bridge" in str(path.relative_to(home))
        or (path.is_file() and b"code-bridge" in path.read_bytes())
    ]


def test_a_directory_that_another_bridge_uses_stays(
    home: Path,
    commands: Cli,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    short = tmp_path_factory.mktemp("s")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(short))
    shared = short / "mcp-code-bridge"
    shared.mkdir(mode=0o700)
    with in_use(shared):
        assert commands("purge", "--yes")[0] == 0
    assert shared.is_dir()
    assert mentions(home) == []
    assert commands("purge", "--yes")[0] == 0
    assert not shared.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="runs in bubblewrap")
def test_after_it_a_search_finds_nothing(home: Path, commands: Cli) -> None:
    assert commands("run", "--runtime", "bubblewrap", "-c", "print(1)")[:2] == (0, "1\n")
    status, out, err = commands("purge")
    assert (status, "Pass --yes" in err) == (2, True)
    shown = {line.strip() for line in out.splitlines()}
    assert f"{home}/.local/state/mcp-code-bridge/" in shown
    assert f"{home}/.config/mcp-code-bridge/" in shown
    assert (home / ".local/state/mcp-code-bridge/runs").is_dir()
    assert commands("purge", "--yes")[0] == 0
    assert mentions(home) == []
    assert (home / ".bashrc").read_text().startswith(OTHERS)
    assert (home / ".config/other/config").exists()
    assert (home / ".local/state/other").exists()


def test_settings_stay_if_they_are_to(home: Path, commands: Cli) -> None:
    assert commands("purge", "--keep-settings", "-y")[0] == 0
    assert mentions(home) == [
        f"{home}/.config/mcp-code-bridge",
        f"{home}/.config/mcp-code-bridge/config.toml",
    ]


def test_only_the_bridge_s_files_go_from_another_directory(home: Path, commands: Cli) -> None:
    state = home / "work"
    (state / "audit").mkdir(parents=True)
    (state / "thesis.tex").write_text("x")
    assert commands("purge", "-y", "--state-dir", str(state))[0] == 0
    assert [path.name for path in state.iterdir()] == ["thesis.tex"]


def test_it_refuses_while_a_bridge_runs(home: Path, commands: Cli) -> None:
    state = home / ".local/state/mcp-code-bridge"
    state.mkdir(mode=0o700)
    with in_use(state) as free:
        status, _, err = commands("purge", "-y")
    assert (free, status, "a bridge runs" in err) == (True, 2, True)
    assert commands("purge", "-y")[0] == 0


def test_it_refuses_while_a_client_has_the_bridge(home: Path, commands: Cli) -> None:
    servers = {"code-bridge": {"command": "mcp-code-bridge", "args": []}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    status, _, err = commands("purge", "-y")
    assert (status, "Claude Code still start" in err) == (2, True)
    assert "`mcp-code-bridge uninstall all --restore`" in err
    assert (home / ".config/mcp-code-bridge/config.toml").exists()


@pytest.mark.skipif("MCP_TEST_ENGINES" not in os.environ, reason="needs engines")
@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_images_of_both_engines_go(home: Path, commands: Cli, engine: str) -> None:
    there = os.environ[f"MCP_TEST_IMAGE_{engine.upper()}"]
    for tag in ("slim", "data"):
        subprocess.run([engine, "tag", there, f"{OURS}:{tag}"], check=True)
    status, out, _ = commands("purge")
    assert (status, f"{engine}: {OURS}:data" in out) == (2, True)
    assert commands("purge", "-y")[0] == 0
    left = subprocess.run([engine, "images", "-q", OURS], capture_output=True, check=True)
    assert left.stdout == b""
    subprocess.run([engine, "image", "inspect", there], check=True, stdout=subprocess.DEVNULL)
