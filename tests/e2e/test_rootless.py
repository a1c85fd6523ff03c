"""Rootless podman, as an ordinary user who installed the bridge."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import WORKSHOP

pytestmark = pytest.mark.rootless


@pytest.fixture(scope="module")
def become() -> list[str]:
    """The command that runs another as the ordinary user of the test set-up."""
    command = os.environ.get("MCP_TEST_ROOTLESS_RUN")
    assert command, "run the suite with `make test`, which sets up an ordinary user"
    return [command]


@pytest.fixture(scope="module")
def home(become: list[str]) -> Path:
    """That user's home, with a server configured for Claude Code."""
    found = Path(os.environ["MCP_TEST_ROOTLESS_HOME"])
    _as_user(become, "tee", "workshop.py", stdin=WORKSHOP.read_text())
    server = {
        "command": os.environ["MCP_TEST_ROOTLESS_PYTHON"],
        "args": [str(found / "workshop.py")],
    }
    document = json.dumps({"mcpServers": {"workshop": server}})
    _as_user(become, "tee", ".claude.json", stdin=document)
    return found


def _as_user(become: list[str], *command: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*become, *command], input=stdin, capture_output=True, text=True, timeout=600, check=False
    )


def _run(become: list[str], code: str, *options: str) -> dict[str, Any]:
    done = _as_user(
        become,
        "mcp-code-bridge",
        "run",
        "--json",
        "--runtime",
        "podman",
        *options,
        "-",
        stdin=textwrap.dedent(code),
    )
    assert done.stdout, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


@pytest.mark.slow
def test_limits_that_the_engine_does_not_apply_are_applied_inside_and_said_so(
    become: list[str], home: Path
) -> None:
    result = _run(become, "x = b'a' * 10**9")
    assert (result["status"], result["reason"]) == ("error", "oom")
    isolation = result["isolation"]
    held = "memory-limit" in isolation["layers"]
    told = any("memory limit: best effort" in text for text in isolation.get("weaker", []))
    assert held != told


def test_doctor_names_the_mode(become: list[str], home: Path) -> None:
    done = _as_user(become, "mcp-code-bridge", "doctor", "--runtime", "podman", "--json")
    [probe] = json.loads(done.stdout)["backends"]
    assert probe["ok"] is True, probe
    assert probe["details"]["mode"] == "rootless"
    # The profile's file is in this user's runtime directory, and so is the service that reads it.
    assert {"user-namespace", "own-seccomp"} <= set(probe["isolation"]["verified"])
