"""Rootless podman, as an ordinary user who installed the bridge."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import OWNER_LABEL, WORKSHOP, processes_with
from tests.waiting import until

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


def test_a_program_calls_a_server_from_a_container_in_a_user_namespace(
    become: list[str], home: Path
) -> None:
    """The whole way, without root anywhere."""
    result = _run(
        become,
        """
        import os
        total = (await mcp_workshop.add(a=1, b=2)).sum
        open("/workspace/file", "w").write("x")
        [total, os.getuid(), open("/proc/self/uid_map").read().split()[:2] != ["0", "0"]]
        """,
    )
    assert result["status"] == "success", result
    assert result["result"] == [3, 65534, True]
    assert result["isolation"]["backend"] == "podman"
    assert {"user-namespace", "no-network", "read-only-root", "no-capabilities"} <= set(
        result["isolation"]["layers"]
    )


def test_limits_that_the_engine_does_not_apply_are_applied_inside_and_said_so(
    become: list[str], home: Path
) -> None:
    """Rootless podman on cgroup v1 applies none; with delegation on v2 it applies all."""
    result = _run(become, "x = b'a' * 10**9")
    assert (result["status"], result["reason"]) == ("error", "oom")
    isolation = result["isolation"]
    held = "memory-limit" in isolation["layers"]
    told = any("memory limit: best effort" in text for text in isolation.get("weaker", []))
    assert held != told


def test_a_time_limit_holds(become: list[str], home: Path) -> None:
    """And what was printed before it is there."""
    result = _run(become, "print('before')\nwhile True: pass", "--timeout", "1")
    assert (result["status"], result["stdout"]) == ("timeout", ["before"])


def test_doctor_names_the_mode(become: list[str], home: Path) -> None:
    """By trying it."""
    done = _as_user(become, "mcp-code-bridge", "doctor", "--runtime", "podman", "--json")
    [probe] = json.loads(done.stdout)["backends"]
    assert probe["ok"] is True, probe
    assert probe["details"]["mode"] == "rootless"
    # The profile's file is in this user's runtime directory, and so is the service that reads it.
    assert {"user-namespace", "own-seccomp"} <= set(probe["isolation"]["verified"])


async def test_nothing_is_left_of_an_ordinary_users_runs(become: list[str], home: Path) -> None:
    """No container, no podman service, no server; processes take a moment to go."""
    mark = f"MARK={uuid.uuid4().hex}"
    code = "await mcp_workshop.add(a=1, b=2)"
    # Of this run, whatever others do as the same user: its process, and all that inherits the mark.
    bridge = ["sh", "-c", 'echo $$; exec "$@"', "sh", "mcp-code-bridge", "run", "-c", code]
    done = _as_user(become, "env", mark, *bridge, "--runtime", "podman")
    assert done.returncode == 0, done.stderr
    pid, *_ = done.stdout.split()
    owned = f"label={OWNER_LABEL}={pid}"
    listing = _as_user(become, "podman", "ps", "--all", "--quiet", "--filter", owned)
    assert (listing.returncode, listing.stdout) == (0, "")
    left: list[str] = []

    def gone() -> bool:
        left[:] = [
            command
            for command in processes_with(mark).values()
            # podman keeps a process of its own for the user.
            if "mcp-code-bridge/podman-" in command or "workshop.py" in command
        ]
        return not left

    try:
        await until(gone)
    except TimeoutError:
        pytest.fail(f"left behind: {left}")
