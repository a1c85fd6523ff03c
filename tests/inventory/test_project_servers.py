"""Servers that a repository's files define start only after the user's approval."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from bridge.discovery.clients import LOCATIONS
from bridge.discovery.locations import DiscoveryContext, fill, find_project, path_variables
from bridge.errors import ApprovalNeededError, ApprovalRefusedError, AuditError, CannotAskError
from bridge.model import Json, RunRequest
from bridge.runs import Engine
from bridge.server.tools import search_result
from tests.audit_rig import records
from tests.discovery.test_precedence import in_its_spelling
from tests.discovery.writing import write
from tests.engine_rig import WORKSHOP, engine_on, settings_in
from tests.fakes.backend import FakeBackend
from tests.fakes.client import FakeClient, deciding
from tests.recorder_rig import recorder_entry
from tests.saved_functions.skill_rig import run

pytestmark = pytest.mark.guarantee("project-servers")

FILES = WORKSHOP.with_name("raw.py")
SHOP = {"mcpServers": {"shop": {"command": sys.executable, "args": [str(WORKSHOP)]}}}
USE_SHOP = "await mcp_shop.add(a=1, b=2)"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository in the home of a user whose own server writes files."""
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    own = {"files": {"command": sys.executable, "args": [str(FILES)]}}
    write(tmp_path / ".claude.json", {"mcpServers": own})
    return project


@asynccontextmanager
async def bridge(project: Path) -> AsyncIterator[Engine]:
    settings = settings_in(project.parent)
    async with engine_on(FakeBackend(), settings, cwd=str(project)) as engine:
        yield engine


def every_layout(project: Path) -> dict[str, tuple[str, str]]:
    """Return a configuration for each file of a project, with a server that leaves a mark."""
    home = project.parent
    context = DiscoveryContext(
        home=home, cwd=project, platform="linux", environ={}, system_root=home
    )
    places = path_variables(context, find_project(project))
    script = project / "evil.sh"
    found = {}
    rows = [row for row in LOCATIONS if row.in_project and not row.unless]
    rows = [row for row in rows if row.dialect.server_keys]
    for number, row in enumerate(rows):
        path = fill(row.template, places)[0]
        text = in_its_spelling(row, f"{script}.{number}").replace("same", f"evil{number}")
        found[f"evil{number}"] = (str(path.with_name(path.name.replace("*", "evil"))), text)
        (project / f"evil.sh.{number}").write_text(f"#!/bin/sh\ntouch {project}/ran.{number}\n")
        (project / f"evil.sh.{number}").chmod(0o755)
    return found


@pytest.mark.slow
async def test_no_file_that_a_program_writes_starts_anything(project: Path) -> None:
    layouts = every_layout(project)
    approved = {"enableAllProjectMcpServers": True}
    write(project.parent / ".claude" / "settings.json", approved)
    code = "".join(
        f"await mcp_files.write_file(path={path!r}, content={text!r})\n"
        for path, text in layouts.values()
    )
    async with bridge(project) as engine:
        written = await run(engine, code)
        assert written.status == "success", written.error
        assert all(Path(path).exists() for path, _ in layouts.values())  # noqa: ASYNC240
        found = await run(
            engine, "(await runtime.list_servers(), len(await runtime.search_tool_docs('evil')))"
        )
        assert found.status == "success", found.error
        assert "evil" not in str(found.result)
        assert {each.name for each in engine.servers.discovery.proposed} == set(layouts)
        told = await search_result(engine, {"query": "evil"}, "me")
        assert "Not approved" in str(told.content)
        assert "servers approve" in str(told.content)
        assert '"proposed"' in engine.guide.servers_json()
        assert "servers approve" in engine.guide.capabilities()
        for name in layouts:
            with pytest.raises(ApprovalNeededError, match="servers approve"):
                await run(engine, f"await mcp_{name}.go()")
            with pytest.raises(ApprovalNeededError):
                await run(engine, f"await runtime.call_tool({name!r}, 'go', {{}})")
            hidden = await run(
                engine, f"await runtime.call_tool({name[:2]!r} + {name[2:]!r}, 'go')"
            )
            assert hidden.status == "error"
            with pytest.raises(ApprovalNeededError):
                await engine.guide.tools_json(name)
            with pytest.raises(ApprovalNeededError):
                await engine.guide.server_stub(name)
    async with bridge(project) as engine:
        assert "evil0" not in engine.servers.names(), "the next bridge does not start it either"
    assert list(project.glob("ran.*")) == []  # noqa: ASYNC240


async def test_a_person_sees_the_definition_and_answers(project: Path) -> None:
    entry = {**SHOP["mcpServers"]["shop"], "env": {"NODE_OPTIONS": "\x1b[2J\u202e"}}
    write(project / ".mcp.json", {"mcpServers": {"shop": entry}})
    async with bridge(project) as engine:
        no = FakeClient()
        with pytest.raises(Exception, match="declined"):
            await run(engine, USE_SHOP, no)
        [asked] = no.asked
        message = str(asked["message"])
        for part in (str(project / ".mcp.json"), str(WORKSHOP), "NODE_OPTIONS"):
            assert part in message
        assert not {"\x1b", "\u202e"} & set(message)
        yes = deciding("session")
        assert (await run(engine, USE_SHOP, yes)).result == {"sum": 3}
        assert (await run(engine, USE_SHOP, yes)).result == {"sum": 3}
        assert len(yes.asked) == 1
    async with bridge(project) as running:
        assert running.servers.names() == ("files",)
        async with bridge(project) as engine:
            assert (await run(engine, USE_SHOP, deciding("always"))).result == {"sum": 3}
        assert (await run(running, USE_SHOP)).result == {"sum": 3}
    async with bridge(project) as engine:
        assert (await run(engine, USE_SHOP)).result == {"sum": 3}
        write(project / ".mcp.json", {"mcpServers": {"shop": {**entry, "args": ["other"]}}})
        with pytest.raises(ApprovalNeededError):
            await run(engine, USE_SHOP)


async def test_a_permanent_yes_is_final(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.parent / "config.toml").write_text("[policy]\n")
    monkeypatch.setenv("MCP_BRIDGE_CONFIG", str(project.parent / "config.toml"))
    for entry in (SHOP["mcpServers"]["shop"], {**SHOP["mcpServers"]["shop"], "env": {"A": "b"}}):
        write(project / ".mcp.json", {"mcpServers": {"shop": entry}})
        async with bridge(project) as engine:
            person = deciding("always")
            await run(engine, USE_SHOP, person)
        asked = [str(each["message"]).splitlines()[0] for each in person.asked]
        [which] = [line for line in asked if "Use server" in line]
        assert "which this project defines" in which


@pytest.mark.guarantee("lying-servers")
@pytest.mark.parametrize("policy", ["", '[policy.defaults]\nuntrusted = "allow"\n'])
async def test_a_plan_reads_from_a_users_server_and_from_no_projects(
    project: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    config = project.parent / "config.toml"
    config.write_text(policy)
    monkeypatch.setenv("MCP_BRIDGE_CONFIG", str(config))
    entries = {
        name: recorder_entry(project.parent / f"{name}.jsonl", notes={"a": f"of {name}"})
        for name in ("mine", "theirs")
    }
    write(project.parent / ".claude.json", {"mcpServers": {"mine": entries["mine"]}})
    write(project / ".mcp.json", {"mcpServers": {"theirs": entries["theirs"]}})
    async with bridge(project) as engine:
        await run(engine, "await mcp_theirs.list_notes()", deciding("always"))
        reading = "print((await mcp_{0}.read_note(topic='a'))['text'])"
        code = "\n".join(map(reading.format, ("mine", "theirs")))
        result = await engine.run(RunRequest(code=code, mode="plan", principal="me"))
    assert result.stdout == "of mine\n‹result of #1 theirs.read_note›.text\n"
    assert result.plan is not None
    assert [call.server for call in result.plan.calls] == ["theirs"]
    effects = {
        (record["server"], record["effect"])
        for record in records(engine.settings.state_dir / "audit")
        if record.get("tool") == "read_note"
    }
    assert effects == {("mine", "read"), ("theirs", "write")}


async def test_the_refusal_names_the_file_in_the_project_and_says_why_once(project: Path) -> None:
    write(project / ".cursor" / "mcp.json", SHOP)
    why = "No user can be asked: this run has no terminal."

    async def fail(params: Mapping[str, Json]) -> Mapping[str, Json]:
        raise CannotAskError(why)

    async with bridge(project) as engine:
        with pytest.raises(ApprovalNeededError) as caught:
            await run(engine, USE_SHOP, FakeClient(answer=fail))
    assert str(caught.value).startswith(
        'The server shop of this project (".cursor/mcp.json") is not started: the user has not '
        f"approved it. {why}"
    )


async def test_a_persons_yes_is_in_the_audit_log(project: Path) -> None:
    write(project / ".mcp.json", SHOP)
    audit = settings_in(project.parent).state_dir / "audit"
    for answer in ("no", "session", "always"):
        async with bridge(project) as engine:
            with suppress(ApprovalRefusedError):
                await run(engine, USE_SHOP, deciding(answer))
    logged = records(audit)
    started = [each for each in logged if (each["kind"], each.get("server")) == ("start", "shop")]
    found = [record for record in logged if record["kind"] == "approved"]
    assert [(record["how"], record["holds"]) for record in found] == [
        ("client", "session"),
        ("client", "always"),
    ]
    for record in found:
        assert (record["server"], record["file"]) == ("shop", str(project / ".mcp.json"))
        assert record["definition"] == started[0]["definition"]


async def test_a_yes_that_cannot_be_recorded_does_not_hold(project: Path) -> None:
    write(project / ".mcp.json", SHOP)
    async with bridge(project) as engine:
        state = settings_in(project.parent).state_dir
        state.mkdir(mode=0o700, exist_ok=True)
        (state / "audit").write_text("in the way")
        for _ in range(2):
            with pytest.raises(AuditError):
                await run(engine, USE_SHOP, deciding("always"))
    async with bridge(project) as engine:
        with pytest.raises(ApprovalNeededError):
            await run(engine, USE_SHOP)


async def test_no_user_is_asked_without_owner_or_whole_definition(project: Path) -> None:
    write(project / ".mcp.json", SHOP)
    client = deciding("always")
    async with bridge(project) as engine:
        with pytest.raises(ApprovalNeededError, match="the owner of this run is unknown"):
            await engine.run(RunRequest(code=USE_SHOP), client)
        entry = {**SHOP["mcpServers"]["shop"], "args": [str(WORKSHOP), *["x"] * 100]}
        write(project / ".mcp.json", {"mcpServers": {"shop": entry}})
        with pytest.raises(ApprovalNeededError, match="too long for a question"):
            await run(engine, USE_SHOP, client)
    assert client.asked == []


async def test_a_project_takes_no_name_that_programs_call_a_users_server_by(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_BRIDGE_PROJECT_SERVERS", "all")
    used = {"command": sys.executable, "args": [str(FILES)]}
    own, others = ("my git", "my-git", "漢字"), ("my_git_2", "MY-git-2", "server", "other")
    write(project.parent / ".claude.json", {"mcpServers": dict.fromkeys(own, used)})
    write(project / ".mcp.json", {"mcpServers": dict.fromkeys(others, used)})
    async with bridge(project) as engine:
        aliases = {"my git": "my_git", "my-git": "my_git_2", "漢字": "server", "other": "other"}
        assert engine.servers.aliases == aliases
        [said] = [each for each in engine.servers.discovery.skipped if each.name == "my_git_2"]
        assert said.reason == "programs call your server 'my-git' by the name 'my_git_2'"
