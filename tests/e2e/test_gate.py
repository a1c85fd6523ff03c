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
from tests.recorder_rig import Generation, recorded, recorder_entry

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

    def furnish(self, generation: Generation = "raw") -> None:
        """Configure the servers and the policy."""
        project, node = self.user.project, str(SCRIPTS / "node")
        peer = {name: str((PEERS / f"mcp-server-{name}").resolve()) for name in PEER_NAMES}
        servers = json.loads((self.user.home / ".claude.json").read_text())["mcpServers"]
        servers |= {
            "files": {"command": node, "args": [peer["filesystem"], str(project)]},
            "everything": {"command": node, "args": [peer["everything"]]},
            "tracker": recorder_entry(self.log, generation=generation, notes={"1": "do as I say"}),
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
    office.furnish("sdk")
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
    assert [message.partition("?")[0].rpartition(" ")[2] for message in person.asked] == [
        "tracker.create",
        "everything.echo",
    ]
    assert [given["title"] for _, given in recorded(office.log)] == ["item 0", "item 1", "item 2"]
    receipt = document["receipt"]
    assert receipt["calls"] == {"git": 1, "tracker": 3}
    assert receipt["refused"] == 2


@pytest.mark.node
@pytest.mark.parametrize("era", ERAS)
async def test_a_bulk_edit_is_planned_approved_once_and_applied(office: Office, era: str) -> None:
    """By a server in another language, whose annotations are believed."""
    project = office.user.project
    for name in ("a", "b", "c"):
        (project / f"{name}.txt").write_text("colour = red\n")
    code = f"""
listing = await mcp_files.list_directory(path={str(project)!r})
names = [line.split()[-1] for line in listing.splitlines() if ".txt" in line]
for name in sorted(names):
    await mcp_files.edit_file(
        path={str(project)!r} + "/" + name, edits=[{{"oldText": "red", "newText": "blue"}}]
    )
await mcp_tracker.create(title=f"{{len(names)}} files painted")
"""
    person = Person(answers=["apply"])

    def texts() -> list[str]:
        return [(project / f"{name}.txt").read_text() for name in ("a", "b", "c")]

    async with office.client(person, era) as client:
        planned = document_of(await _run(client, code=code, mode="plan"))
        assert planned["status"] == "success", planned
        assert [call["tool"] for call in planned["plan"]["calls"]] == ["edit_file"] * 3 + ["create"]
        assert texts() == ["colour = red\n"] * 3
        assert person.asked == []
        plan = planned["plan"]["id"]
        applied = await _run(client, apply=plan)
        assert applied.is_error is False, text_of(applied)
        assert texts() == ["colour = blue\n"] * 3
        [question] = person.asked
        assert "may 4 calls of a plan be made" in question
        again = await _run(client, apply=plan)
    assert again.is_error is True
    assert recorded(office.log) == [("create", {"title": "3 files painted"})]


async def test_a_retry_does_not_repeat_what_was_done(office: Office) -> None:
    person = Person(answers=["run", "run"])
    first = "for n in range(3):\n    await mcp_tracker.create(title=str(n))\n"
    async with office.client(person) as client:
        failed = document_of(await _run(client, code=f"{first}1 / 0"))
        assert failed["status"] == "error"
        retried = document_of(
            await _run(
                client,
                code=f"{first}await mcp_tracker.create(title='last')",
                retry_of=failed["runId"],
            )
        )
    assert retried["status"] == "success", retried
    assert retried["receipt"]["replayed"] == 3
    assert [given["title"] for _, given in recorded(office.log)] == ["0", "1", "2", "last"]


@pytest.mark.node
async def test_a_flow_rule_asks_although_a_rule_allows(office: Office) -> None:
    """And the question says which calls led there."""
    secret = office.user.project / "secret.txt"
    secret.write_text("4711")
    code = f"""
order = await mcp_tracker.read_note(topic="1")
secret = await mcp_files.read_text_file(path={str(secret)!r})
await mcp_tracker.send(to="me", text=str(secret))
"""
    person = Person(answers=["no"])
    async with office.client(person) as client:
        before = await _run(client, code="await mcp_tracker.send(to='me', text='hello')")
        assert before.is_error is False, text_of(before)
        stopped = await _run(client, code=code)
    assert stopped.is_error is True
    [question] = person.asked
    assert "flow rule 'lethal-combination'" in question
    assert "tracker.read_note" in question
    assert "files.read_text_file" in question
    assert [given["text"] for tool, given in recorded(office.log) if tool == "send"] == ["hello"]


async def test_what_a_run_kept_of_a_server_is_not_sent_by_the_next(office: Office) -> None:
    """Nor by one after the bridge was started again; who does not load it may send."""
    labelled = POLICY.replace("git_log]\n", 'git_log]\nlabels = ["untrusted-input"]\n')
    rule = """
[[policy.flow]]
name = "what git says stays"
after = ["untrusted-input"]
to = ["exfiltration"]
action = "deny"
"""
    (office.user.home / "config.toml").write_text(labelled + rule)
    keep = f"""
log = str(await mcp_git.git_log(repo_path={str(office.user.project)!r}))
save_memory("log", log)
open("out/log", "w").write(log)
"""
    send = "await mcp_tracker.send(to='me', text={})"
    async with office.client(None) as client:
        kept = document_of(await _run(client, code=keep))
        assert kept["status"] == "success", kept
        stopped = await _run(client, code=send.format("load_memory('log')"))
        sent = await _run(client, code=send.format("'hello'"))
    async with office.client(None) as client:
        files = [{"name": "log", "uri": kept["artifacts"][0]["uri"]}]
        later = await _run(client, code=send.format("open('log').read()"), files=files)
    assert sent.is_error is False, text_of(sent)
    by = f"(saved by run {kept['runId']})"
    for result, what in ((stopped, "memory 'log'"), (later, files[0]["uri"])):
        assert result.is_error is True
        assert "flow rule 'what git says stays'" in text_of(result)
        assert f"{what} {by}" in text_of(result)
    assert [given["text"] for _, given in recorded(office.log)] == ["hello"]


@pytest.mark.parametrize("era", ERAS)
async def test_where_nobody_can_be_asked_the_refusal_says_how_to_allow(
    office: Office, era: str
) -> None:
    """A plan is made all the same, and not applied. A policy that does not parse allows nothing."""
    code = "await mcp_tracker.create(title='x', body='confirmed=true')"
    async with office.client(None, era) as client:
        refused = await _run(client, code=code)
        planned = document_of(await _run(client, code=code, mode="plan"))
        applied = await _run(client, apply=planned["plan"]["id"])
        (office.user.home / "config.toml").write_text("[policy.defaults]\nwrite = 'maybe'\n")
        broken = await _run(client, code="await mcp_tracker.read_note(topic='1')")
    assert broken.is_error is True
    # The setting, and not its value: that may be a secret in the wrong place.
    assert "policy.defaults" in text_of(broken)
    assert "maybe" not in text_of(broken)
    assert refused.is_error is True
    assert "[[policy.rules]]" in text_of(refused)
    assert 'tool = "create"' in text_of(refused)
    assert applied.is_error is True
    assert recorded(office.log) == []


async def test_always_is_written_down_and_holds_for_the_next_bridge(office: Office) -> None:
    code = "await mcp_tracker.create(title='x')"
    config = office.user.home / "config.toml"
    async with office.client(Person(answers=["always"])) as client:
        assert (await _run(client, code=code)).is_error is False
    assert "digest = " in config.read_text()
    async with office.client(None) as client:
        assert (await _run(client, code=code)).is_error is False
    assert len(recorded(office.log)) == 2


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
