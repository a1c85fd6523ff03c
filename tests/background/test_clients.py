"""Clients of one user share a background bridge, and each keeps what is its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import bridge
from benchmarks.processes import proportional_mb
from tests.background.rig import HOLD, Client, Person, text_of, wait_for


def clients(stack: ExitStack, user: Person, count: int) -> list[Client]:
    return [stack.enter_context(user.client()).initialize() for _ in range(count)]


def test_clients_share_a_bridge_and_servers_and_a_further_one_costs_at_most_15_mb(
    user: Person,
) -> None:
    user.add_servers("keeper", "notes")
    code = "await mcp_keeper.list_notes(), await mcp_notes.list_notes()"
    with ExitStack() as stack:
        assert "topics" in clients(stack, user, 1)[0].run(f"print({code})")
        [bridge] = user.bridges()
        before = proportional_mb(bridge)
        others = clients(stack, user, 6)
        for client in others:
            assert "topics" in client.run(f"print({code})")
        fronts = sum(proportional_mb(client.process.pid) for client in others)
        assert fronts + proportional_mb(bridge) - before <= 15 * len(others)
        assert (user.bridges(), len(user.processes())) == ([bridge], 2)
        told = user.status()
    assert len(told["clients"]) == 7
    assert {each["server"]: each["clients"] for each in told["servers"]} == {
        "keeper": 7,
        "notes": 7,
    }


def test_a_front_imports_neither_an_event_loop_nor_the_sdk() -> None:
    code = "import sys, bridge.background.front; print(*sys.modules)"
    words = [sys.executable, "-c", code]
    process = subprocess.run(words, env={}, capture_output=True, text=True, check=True)
    loaded = set(process.stdout.split())
    assert not loaded & {"asyncio", "anyio", "mcp", "pydantic", "typing", "pathlib"}


def test_clients_that_start_at_one_moment_elect_one_bridge(user: Person) -> None:
    with ExitStack() as stack:
        started = [stack.enter_context(user.client()) for _ in range(20)]
        for client in started:
            client.initialize()
        assert "42" in started[-1].run("print(6 * 7)")
        assert len(user.bridges()) == 1


def test_the_bridge_and_its_servers_survive_the_client_that_started_them(user: Person) -> None:
    user.add_servers("keeper")
    with user.client() as first:
        first.initialize().run("await mcp_keeper.list_notes()")
        [number] = user.bridges()
        assert os.getpgid(number) != os.getpgid(first.process.pid)
        assert first.end() == (0, "")
    assert len(user.processes()) == 1
    assert user.status()["clients"] == []
    with user.client() as second:
        assert "2" in second.initialize().run("print(1 + 1)")
    assert user.bridges() == [number]


@pytest.mark.parametrize(("share", "processes"), [("auto", 2), ("user", 1), ("client", 3)])
def test_a_setting_says_which_clients_share_a_server(
    user: Person, share: str, processes: int
) -> None:
    user.add_servers("keeper")
    config = user.home / ".config/mcp-code-bridge/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(f'[servers.keeper]\nshare = "{share}"\n')
    other = user.home / "other"
    other.mkdir()
    with ExitStack() as stack:
        for cwd in (other, user.project, user.project):
            client = stack.enter_context(user.client(cwd)).initialize()
            client.run("await mcp_keeper.list_notes()")
        assert len(user.processes()) == processes


def test_cancelling_a_clients_run_leaves_the_others_alone(shared_user: Person) -> None:
    shared_user.add_servers("keeper")
    with shared_user.client() as one, shared_user.client() as two:
        first, second = one.initialize().begin_run(HOLD), two.initialize().begin_run(HOLD)
        wait_for(lambda: [each["tool"] for each in shared_user.calls].count("slow") == 2)
        one.send(method="notifications/cancelled", params={"requestId": first})
        assert "7" in one.run("print(3 + 4)")
        release = two.begin_run("await mcp_keeper.release()")
        answers: dict[object, dict[str, Any]] = {}
        while not answers.keys() >= {second, release}:
            message = two.receive()
            answers[message.get("id")] = message
        assert "released" in text_of(answers[second])


@pytest.mark.parametrize("kind", ["settings", "proxy", "version"])
def test_another_version_or_setting_has_its_own_bridge_and_the_old_one_ends_with_its_last_client(
    user: Person, kind: str
) -> None:
    with user.client() as old:
        # What a later bridge does with the session must not be undone.
        old.initialize().run("x = 1", session="work")
        [first] = user.bridges()
        other = {"HTTPS_PROXY" if kind == "proxy" else "MCP_BRIDGE_TIMEOUT": "20"}
        if kind == "version":
            shutil.copytree(Path(bridge.__file__).parent, user.home / "bridge")
            path = user.home / "bridge/__init__.py"
            path.write_text(path.read_text().replace("__version__ = ", "__version__ = '9'  # "))
            other = {"PYTHONPATH": f"{user.home}:{user.environ['PYTHONPATH']}"}
        with user.client(None, **other) as new:
            new.initialize()
            assert len(user.bridges()) == 2
            assert "5" in old.run("print(2 + 3)")
            old.end()
            wait_for(lambda: first not in user.bridges())
            assert "5" in new.run("print(2 + 3)")


def test_sessions_of_one_name_are_one_session_for_all_clients(shared_user: Person) -> None:
    with shared_user.client() as one, shared_user.client() as two:
        one.initialize().run("x = [1]", session="work")
        two.initialize().run("x.append(2)", session="work")
        assert "[1, 2]" in one.run("print(x)", session="work")


def test_a_project_server_is_approved_for_each_client_alone(shared_user: Person) -> None:
    project = shared_user.project
    server = {"command": "python3", "args": ["-c", "1"]}
    (project / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": server}}))
    elsewhere = Path(shared_user.home / "elsewhere")
    elsewhere.mkdir()
    with shared_user.client() as inside, shared_user.client(elsewhere) as outside:
        assert "not started" in inside.initialize().run("await mcp_theirs.go()")
        assert "not started" not in outside.initialize().run("await mcp_theirs.go()")
