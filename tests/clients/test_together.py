"""Claude Code, Codex and Gemini CLI, open at once in one project, share a background bridge."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bridge.discovery.clients import SOURCE_IDS
from tests.background.rig import Person, person, wait_for
from tests.clients import claude_code, codex, gemini
from tests.clients.client import SCRIPTS, TAPPED, TESTS, Client, Setting
from tests.clients.exchange import FAKES
from tests.clients.model import Call, Step, program, scripted, serving
from tests.clients.wires import Received

pytestmark = [pytest.mark.node, pytest.mark.full, pytest.mark.slow]

CLIENTS = (claude_code.CLIENT, codex.CLIENT, gemini.CLIENT)

PACKAGES = {
    "everything": "node/node_modules/@modelcontextprotocol/server-everything",
    "files": "node/node_modules/@modelcontextprotocol/server-filesystem",
    "memory": "peers/node/node_modules/@modelcontextprotocol/server-memory",
    "git": "launchers/node_modules/@cyanheads/git-mcp-server",
    "thinking": "launchers/node_modules/@modelcontextprotocol/server-sequential-thinking",
}
"""The servers' packages, which `make test-all` installs."""

TIMEOUT_SECONDS = 20  # Of a call of Gemini CLI, which cancels it then.

OF_THE_RIG = (
    "ANTHROPIC_API_KEY ANTHROPIC_BASE_URL GEMINI_API_KEY GOOGLE_GEMINI_BASE_URL CI NO_COLOR"
    " DISABLE_AUTOUPDATER DISABLE_TELEMETRY HTTPS_PROXY NO_PROXY"
)
"""Variables that the rig gives its clients, and a user does not."""

_FORM = {"type": "object", "properties": {"colour": {"type": "string"}}}

USE = """
print((await mcp_everything.echo(message={name!r})))
print(await mcp_files.list_allowed_directories())
print(await mcp_memory.read_graph())
print(await mcp_git.git_status(path={project!r}))
thought = {{"thought": {name!r}, "thoughtNumber": 1, "totalThoughts": 1}}
print(await mcp_thinking.sequentialthinking(**thought, nextThoughtNeeded=False))
"""

LONG = "print(await mcp_everything.trigger_long_running_operation(duration=40, steps=2))"

ASK = "print(await mcp_inquirer.ask(method='elicitation/create', params={}))"


@dataclass(frozen=True)
class Window(Setting):
    """One client's settings in the user's home, in the directory of all of them."""

    name: str = ""

    @property
    def tap(self) -> Path:
        return self.home / self.name

    def entry(self, **more: Any) -> dict[str, Any]:
        entry = super().entry(**more)
        tapped = f"unset {OF_THE_RIG}; {TAPPED}"
        # Gemini CLI passes this variable on to no server.
        path = f"PYTHONPATH={entry['env']['PYTHONPATH']}"
        entry["args"] = ["-c", tapped, str(self.tap), "env", path, sys.executable, "-m", "bridge"]
        if self.name == "gemini":
            entry["timeout"] = TIMEOUT_SECONDS * 1000
        return entry


@dataclass
class Together:
    """What three clients have received, and the bridge's state while all were open."""

    project: Path
    status: dict[str, Any] = field(default_factory=dict)
    received: dict[str, Mapping[str, Received]] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    taps: dict[str, str] = field(default_factory=dict)


def steps_of(name: str, project: Path, meet: threading.Barrier) -> dict[str, Step]:
    question = {"message": f"A question for {name}", "requestedSchema": _FORM}

    def together(call: Call, taps: Sequence[Path] = ()) -> Step:
        def wait(_: Sequence[Received]) -> Call:
            meet.wait(timeout=240)
            # A server with calls of several clients could ask none of them.
            wait_for(lambda: all("A question for" in tap.read_text() for tap in taps))
            return call

        return wait

    names = [client.program for client in CLIENTS]
    earlier = [project.parent / f"{each}.out" for each in names[: names.index(name)]]
    return {
        "use": program(USE.format(name=name, project=str(project))),
        "long": together(program(LONG)),
        "after": program("print(6 * 7)"),
        "question": together(program(ASK.replace("{}", str(question))), earlier),
    }


def play_together(user: Person) -> Together:
    project = user.home / "project"
    subprocess.run(["git", "init", "-q", project], check=True)
    servers: dict[str, dict[str, Any]] = {
        name: {"command": str(SCRIPTS / "node"), "args": [str(TESTS / path / "dist/index.js")]}
        for name, path in PACKAGES.items()
    }
    servers["files"]["args"].append(str(project))
    memory = user.home / "memory.json"
    entity = {"type": "entity", "name": "Ada", "entityType": "person", "observations": []}
    memory.write_text(json.dumps(entity))
    servers["memory"]["env"] = {"MEMORY_FILE_PATH": str(memory)}
    servers["inquirer"] = {"command": sys.executable, "args": [str(FAKES / "inquirer.py")]}
    listed = user.home / "behind.json"
    listed.write_text(json.dumps({"mcpServers": servers}))
    user.variables["MCP_SERVERS_CONFIG"] = str(listed)
    user.variables["MCP_BRIDGE_SOURCES"] = ",".join(f"-{name}" for name in SOURCE_IDS)
    seen = Together(project)

    def look() -> None:
        # The last time counts: servers that ask for roots late are shared until the next call.
        seen.status = user.status()

    meet = threading.Barrier(len(CLIENTS), look)

    def play(client: Client) -> None:
        name = client.program
        steps = steps_of(name, project, meet)
        with serving(list(steps.values())) as model:
            window = Window(user.home, model.url, user.environ, name)
            seen.printed[name] = client.run(window)
        results = scripted(model.requests[-1]) if model.requests else []
        seen.received[name] = dict(zip(steps, results, strict=False))
        for end in ("in", "out"):
            seen.taps[f"{name}.{end}"] = window.tap.with_suffix(f".{end}").read_text()

    with ThreadPoolExecutor() as pool:
        list(pool.map(play, CLIENTS))
    return seen


@pytest.fixture(scope="module")
def together() -> Iterator[Together]:
    with tempfile.TemporaryDirectory(prefix="mcb-") as home, person(Path(home)) as user:
        yield play_together(user)


@pytest.fixture(params=[client.program for client in CLIENTS])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_one_bridge_has_one_process_of_each_server_that_may_be_shared(together: Together) -> None:
    assert len(together.status["clients"]) == len(CLIENTS)
    counts = Counter(each["server"] for each in together.status["servers"])
    # Codex has no roots to give to the server that asks for them, at a moment of its choice.
    assert counts.pop("everything") in (1, 2)
    assert counts == {"files": 1, "memory": 1, "git": 1, "thinking": len(CLIENTS)}


def test_each_client_receives_its_own_results(together: Together, name: str) -> None:
    assert len(together.received[name]) == 4, together.printed[name][-3000:]
    text = together.received[name]["use"].text
    for part in (
        f"Echo: {name}",
        "Ada",
        str(together.project),
        "isClean",
        "'thoughtHistoryLength': 1",
    ):
        assert part in text


def test_a_call_that_one_client_cancels_goes_on_in_the_others(
    together: Together, name: str
) -> None:
    text = together.received[name]["long"].text
    assert ("Duration: 40 seconds" in text) == (name != "gemini"), text
    assert "42" in together.received[name]["after"].text
    assert "notifications/cancelled" in together.taps["gemini.in"]


def test_a_question_reaches_no_client_but_its_own(together: Together, name: str) -> None:
    asked = f"A question for {name}"
    assert "replies" in together.received[name]["question"].text
    taps = {tap for tap, text in together.taps.items() if tap.endswith("out") and asked in text}
    assert taps == {f"{name}.out"}
