"""`purge` removes all data of the bridge."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.private_files import in_use
from tests.cli.desk import Cli
from tests.discovery.writing import write

OTHERS = "export A=1\n# mine\n"
OURS = "localhost/mcp-code-bridge-purged"


@pytest.fixture
def home(
    home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.delenv("MCP_BRIDGE_STATE_DIR")
    # Other tests need the images that the engines have, and the directory for sockets in /tmp.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("t")))
    monkeypatch.setattr("bridge.cli.purge.REPOSITORY", OURS)
    # Short, because a socket's path is bounded.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path_factory.mktemp("s")))
    for name in ("DATA", "CACHE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    files = {
        ".config/mcp-code-bridge/config.toml": "pids = 64\n",
        ".config/other/config": "x",
        ".local/state/other": "x",
        ".bash_completions/mcp-code-bridge.sh": "complete",
        ".bashrc": f"{OTHERS}\nsource '{home}/.bash_completions/mcp-code-bridge.sh'\n",
    }
    for name, text in files.items():
        write(home / name, text)
    return home


def mentions(home: Path) -> list[str]:
    """Return the files whose name or content mentions the bridge."""
    return [
        str(path)
        for path in sorted(home.rglob("*"))
        if "code-bridge" in str(path.relative_to(home))
        or (path.is_file() and b"code-bridge" in path.read_bytes())
    ]


def test_a_directory_that_another_bridge_uses_stays(home: Path, cli: Cli) -> None:
    shared = Path(os.environ["XDG_RUNTIME_DIR"]) / "mcp-code-bridge"
    shared.mkdir(mode=0o700)
    with in_use(shared):
        assert cli("purge", "--yes")[0] == 0
    assert (shared.is_dir(), mentions(home)) == (True, [])
    assert cli("purge", "--yes")[0] == 0
    assert not shared.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="runs in bubblewrap")
def test_only_the_files_of_others_stay(home: Path, cli: Cli) -> None:
    assert cli("run", "--runtime", "bubblewrap", "-c", "print(1)")[:2] == (0, "1\n")
    status, out, err = cli("purge")
    assert (status, "Pass --yes" in err) == (2, True)
    shown = {line.strip() for line in out.splitlines()}
    assert {f"{home}/{place}/mcp-code-bridge/" for place in (".local/state", ".config")} <= shown
    assert (home / ".local/state/mcp-code-bridge/runs").is_dir()
    assert cli("purge", "--yes")[0] == 0
    assert mentions(home) == []
    assert (home / ".bashrc").read_text().startswith(OTHERS)
    assert (home / ".config/other/config").exists()
    assert (home / ".local/state/other").exists()


def test_settings_and_others_files_in_a_shared_directory_stay(home: Path, cli: Cli) -> None:
    thesis = write(home / "work" / "thesis.tex", "x")
    (home / "work" / "audit").mkdir()
    assert cli("purge", "--keep-settings", "-y", "--state-dir", str(home / "work"))[0] == 0
    assert [*(home / "work").iterdir()] == [thesis]
    settings = f"{home}/.config/mcp-code-bridge"
    assert mentions(home) == [settings, f"{settings}/config.toml"]


def test_purge_refuses_while_a_bridge_runs_or_a_client_has_it(home: Path, cli: Cli) -> None:
    state = home / ".local/state/mcp-code-bridge"
    state.mkdir(mode=0o700)
    with in_use(state) as free:
        status, _, err = cli("purge", "-y")
    assert (free, status, "a bridge runs" in err) == (True, 2, True)
    servers = {"code-bridge": {"command": "mcp-code-bridge", "args": []}}
    write(home / ".claude.json", {"mcpServers": servers})
    status, _, err = cli("purge", "-y")
    assert (status, "Claude Code still start" in err) == (2, True)
    assert "`mcp-code-bridge uninstall all --restore`" in err
    assert (home / ".config/mcp-code-bridge/config.toml").exists()
    (home / ".claude.json").unlink()
    assert cli("purge", "-y")[0] == 0


@pytest.mark.skipif("MCP_TEST_ENGINES" not in os.environ, reason="needs engines")
@pytest.mark.parametrize("engine", ["podman", "docker"])
def test_images_of_both_engines_go(home: Path, cli: Cli, engine: str) -> None:
    image = os.environ[f"MCP_TEST_IMAGE_{engine.upper()}"]
    for tag in ("slim", "data"):
        subprocess.run([engine, "tag", image, f"{OURS}:{tag}"], check=True)
    status, out, _ = cli("purge")
    assert (status, f"{engine}: {OURS}:data" in out) == (2, True)
    assert cli("purge", "-y")[0] == 0
    left = subprocess.run([engine, "images", "-q", OURS], capture_output=True, check=True)
    assert left.stdout == b""
    subprocess.run([engine, "image", "inspect", image], check=True, stdout=subprocess.DEVNULL)
