"""Recognising an entry that would start the bridge again, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.discovery.self_reference import starts_bridge

STARTS_IT = (
    ("mcp-code-bridge",),
    ("/opt/x/bin/mcp-code-bridge", "serve"),
    ("C:\\tools\\mcp-code-bridge.EXE",),
    ("mcp-server-code-execution-mode",),
    ("python3", "-m", "bridge"),
    ("python3.13t", "-Im", "bridge.cli.main", "serve"),
    ("/venv/bin/python", "-X", "dev", "-Wall", "-u", "-m", "bridge"),
    ("python", "--check-hash-based-pycs", "-mbridge"),
    ("python", "--", "/x/mcp_code_bridge.py"),
    ("python", "mcp_server_code_execution_mode.py"),
    ("py", "-3", "-m", "bridge"),
    ("uvx", "mcp-code-bridge"),
    ("uvx", "mcp-code-bridge@latest"),
    ("uvx", "mcp-code-bridge[all]>=1", "serve"),
    ("uvx", "--python", "3.13", "--from", "/src/bridge", "mcp-code-bridge"),
    ("uvx", "git+ssh://git@host.example/a/mcp-code-bridge.git@v1"),
    ("uv", "--directory", "/src", "run", "mcp-code-bridge"),
    ("uv", "run", "--directory=/src", "python", "-m", "bridge"),
    ("uv", "run", "-m", "bridge"),
    ("uv", "tool", "run", "mcp-code-bridge==1.0"),
    ("pipx", "run", "--spec", "/src/bridge", "mcp-code-bridge"),
    ("poetry", "-C", "/src", "run", "mcp-code-bridge"),
    ("env", "-u", "A", "B=1", "mcp-code-bridge"),
    ("env", "--", "mcp-code-bridge"),
    ("sh", "-c", "cd /src && exec mcp-code-bridge"),
    ("sh", "-c", "set -e\nmcp-code-bridge"),
    ("sh", "-c", "(mcp-code-bridge)"),
    ("sh", "-c", "mcp-code-bridge; echo 'unclosed"),
    ("bash", "-lc", "B=1 timeout -k 1 5 mcp-code-bridge"),
    ("bash", "--login", "/x/bin/mcp-code-bridge"),
    ("busybox", "sh", "-c", "mcp-code-bridge"),
    ("sudo", "-u", "me", "A=1", "nice", "-n", "5", "nohup", "mcp-code-bridge"),
)

STARTS_SOMETHING_ELSE = (
    ("mcp-server-git", "--repository", "/x/mcp-code-bridge"),
    ("mcp-code-bridge-tools",),
    ("python", "-m", "mcp_server_git", "--repository", "/x/mcp-code-bridge"),
    ("python", "-m", "bridges"),
    ("python", "-c", "import bridge"),
    ("python", "-X"),
    ("python", "-m"),
    ("python", "-u"),
    ("python", "-"),
    ("python",),
    ("node", "/x/mcp-code-bridge/index.js"),
    ("npx", "mcp-code-bridge"),
    ("uv", "run", "--directory", "/x/mcp-code-bridge", "mcp-server-git"),
    ("uv", "run", "--with", "mcp-code-bridge", "mcp-server-git"),
    ("uv", "pip", "install", "mcp-code-bridge"),
    ("uv",),
    ("uvx", "--from", "mcp-code-bridge", "mcp-server-git"),
    ("uvx", "git+https://host.example/mcp-code-bridge/other"),
    ("docker", "run", "mcp-code-bridge"),
    ("sh", "-c", "ls mcp-code-bridge"),
    ("sh", "-c", "echo 'mcp-code-bridge"),
    ("sh", "-c"),
    ("sh", "--norc"),
    ("sh",),
    ("env",),
    ("env", "-S"),
    ("timeout", "5"),
    ("",),
)


@pytest.mark.parametrize("argv", STARTS_IT, ids=" ".join)
def test_the_bridge_is_recognised(argv: tuple[str, ...]) -> None:
    assert starts_bridge(argv[0], argv[1:])


@pytest.mark.parametrize("argv", STARTS_SOMETHING_ELSE, ids=" ".join)
def test_other_programs_are_not_taken_for_the_bridge(argv: tuple[str, ...]) -> None:
    assert not starts_bridge(argv[0], argv[1:])


def test_launchers_are_looked_through_only_so_deep() -> None:
    assert starts_bridge("nohup", ["nohup"] * 5 + ["mcp-code-bridge"])
    assert not starts_bridge("nohup", ["nohup"] * 5000 + ["mcp-code-bridge"])


WORDS = st.sampled_from(
    ["env", "-S", "sh", "-c", "python", "-m", "uv", "run", "--", "-X", "A=1", "bridge", "'", "\n"]
) | st.text(max_size=8)


@settings(deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=8))
def test_no_command_line_makes_the_check_raise(argv: list[str]) -> None:
    assert starts_bridge(argv[0], argv[1:]) in (True, False)
