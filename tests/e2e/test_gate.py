"""The gate through the installed command: real servers, and a client whose person answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import ElicitResult

from tests.e2e.rig import BRIDGE, PATIENCE_SECONDS, REPOSITORY, SCRIPTS, User, document_of, text_of
from tests.recorder_rig import recorded, recorder_entry

PEERS = REPOSITORY / "tests" / "node" / "node_modules" / ".bin"

ERAS = ["legacy", "2026-07-28"]

POLICY = """
[policy.servers.git.tools.git_log]
effect = "read"
[policy.servers.files]
trust = true
labels = ["private-data"]
[policy.servers.tracker]
trust = true
[policy.servers.tracker.tools."read_*"]
effect = "read"
labels = ["untrusted-input"]
[policy.servers.tracker.tools.send]
effect = "write"
labels = ["exfiltration"]

[[policy.rules]]
name = "no resets"
server = "git"
tool = "git_reset"
action = "deny"
reason = "history is shared"

[[policy.rules]]
name = "sending is fine"
server = "tracker"
tool = "send"
action = "allow"
"""


@dataclass
class Person:
    """Whoever sits at the client.

    Attributes:
        answers: What is going to be answered; anything more is declined.
        asked: The questions.
    """

    answers: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        """Answer."""
        self.asked.append(params.message)
        if not self.answers:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={"decision": self.answers.pop(0)})


@dataclass(frozen=True)
class Office:
    """A user with a policy, and servers of several makers."""

    user: User

    @property
    def log(self) -> Path:
        """What the recorder got."""
        return self.user.home / "tracker.log"

    def furnish(self) -> None:
        """Configure the servers and the policy."""
        project, node = self.user.project, str(SCRIPTS / "node")
        peer = {name: str((PEERS / f"mcp-server-{name}").resolve()) for name in PEER_NAMES}
        servers = json.loads((self.user.home / ".claude.json").read_text())["mcpServers"]
        servers |= {
            "files": {"command": node, "args": [peer["filesystem"], str(project)]},
            "everything": {"command": node, "args": [peer["everything"]]},
            "tracker": recorder_entry(self.log, notes={"1": "do as I say"}),
        }
        (self.user.home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
        (self.user.home / "config.toml").write_text(POLICY)

    @asynccontextmanager
    async def client(self, person: Person | None, mode: Any = "auto") -> AsyncIterator[Client]:
        """Start the bridge as a client does whose person answers; None if it cannot be asked."""
        environ = self.user.environ(
            MCP_BRIDGE_CONFIG=str(self.user.home / "config.toml"), MCP_BRIDGE_WARM="0"
        )
        parameters = StdioServerParameters(command=str(BRIDGE), cwd=self.user.project, env=environ)
        ask = None if person is None else person.elicit
        with (self.user.home / "bridge.log").open("a") as log, anyio.fail_after(PATIENCE_SECONDS):
            bridge = stdio_client(parameters, errlog=log)
            async with Client(bridge, mode=mode, elicitation_callback=ask) as client:
                yield client


PEER_NAMES = ("filesystem", "everything")


def _furnished(path: Path, engine: str) -> Office:
    for name in ("home", "project"):
        (path / name).mkdir()
    (path / "home" / "run").mkdir(mode=0o700)
    user = User(home=path / "home", project=path / "project", engine=engine)
    user.configure()
    office = Office(user)
    office.furnish()
    return office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """On bubblewrap, which starts soonest."""
    return _furnished(tmp_path, "bubblewrap")


async def _run(client: Client, **arguments: Any) -> Any:
    return await client.call_tool("run_python", arguments)


@pytest.mark.node
@pytest.mark.parametrize("era", ERAS)
async def test_the_policy_asks_and_the_person_answers(office: Office, era: str) -> None:
    """Once for a whole run, with no at another question, and never for what is denied."""
    office.furnish()
    person = Person(answers=["run", "no"])
    code = """
log = await mcp_git.git_log(repo_path=PROJECT)
made = [(await mcp_tracker.create(title=f"item {n}")).id for n in range(3)]
refused = []
for call in (
    lambda: mcp_git.git_reset(repo_path=PROJECT),
    lambda: mcp_everything.echo(message="x"),
):
    try:
        await call()
    except MCPError as error:
        refused.append(str(error))
(made, refused, "first light" in str(log))
""".replace("PROJECT", repr(str(office.user.project)))
    async with office.client(person, era) as client:
        result = await _run(client, code=code)
    document = document_of(result)
    made, refused, read = document["result"]
    assert (made, read) == ([1, 2, 3], True)
    assert "rule 'no resets': history is shared" in refused[0]
    assert "declined" in refused[1]
    assert [message.split("Allow ")[1].partition("(")[0] for message in person.asked] == [
        "tracker.create",
        "everything.echo",
    ]
    assert [given["title"] for _, given in recorded(office.log)] == ["item 0", "item 1", "item 2"]
    receipt = document["receipt"]
    assert receipt["calls"] == {"git": 1, "tracker": 3}
    assert receipt["refused"] == 2


async def test_a_plan_is_applied_on_each_engine(tmp_path: Path, engine_name: str) -> None:
    """With the calls of the program made in a container, and those of the plan without one."""
    office = _furnished(tmp_path, engine_name)
    person = Person(answers=["apply"])
    code = (
        "a = await mcp_tracker.create(title='a')\nawait mcp_tracker.create(title='b', parent=a.id)"
    )
    async with office.client(person) as client:
        planned = document_of(await _run(client, code=code, mode="plan"))
        assert planned["isolation"]["backend"] == engine_name
        applied = await _run(client, apply=planned["plan"]["id"])
    assert applied.is_error is False, text_of(applied)
    assert recorded(office.log) == [
        ("create", {"title": "a"}),
        ("create", {"title": "b", "parent": 1}),
    ]
