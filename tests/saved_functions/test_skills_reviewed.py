"""Who may use a saved skill: its reviewers, as the policy and the guard allow."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from bridge.errors import LibraryError
from bridge.model import Provenance
from bridge.runs import Engine
from bridge.saved_functions.skills import question
from bridge.saved_functions.source import MAX_DESCRIPTION_CHARS, Header, encode_skill, read_skill
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.fakes.client import FakeClient
from tests.saved_functions.skill_rig import answer_with, run, value

REVIEWED = "from skills import hello\nhello()"


@pytest.fixture
async def other(
    settings: Settings, backend: FakeBackend, finder: ListFinder, engine: Engine
) -> AsyncIterator[Engine]:
    """Another bridge of the same user, with a skill that the first one saved."""
    hello = "def hello():\n    '''Greet.\\x1b[31m'''\n    return 'hello'\n"
    await value(engine, hello + "runtime.save_skill(hello)")
    async with engine_on(backend, settings, finder=finder) as opened:
        yield opened


@pytest.mark.guarantee("skills")
async def test_a_person_reviews_a_skill_before_another_bridge_uses_it(
    engine: Engine, other: Engine
) -> None:
    assert await value(engine, REVIEWED) == "hello"

    alone = await run(other, REVIEWED)
    assert (alone.status, alone.reason, alone.isolation) == ("error", "policy", None)
    assert "mcp-code-bridge skills approve hello" in alone.error

    no = FakeClient()
    refused = await run(other, REVIEWED, no)
    assert "declined" in refused.error
    [asked] = no.asked
    assert "Use the saved skill hello?" in asked["message"]
    assert "return 'hello'" in asked["message"]
    assert "\x1b" not in asked["message"]

    client = answer_with("once")
    dynamic = "import skills\n[getattr(skills, 'hel' + 'lo')() for _ in range(2)]"
    assert await value(other, dynamic, client) == ["hello", "hello"]
    assert await value(other, REVIEWED, client) == "hello"
    assert len(client.asked) == 2
    client = answer_with("always")
    assert await value(other, REVIEWED, client) == "hello"
    assert await value(other, REVIEWED) == "hello"

    # Whatever gets into the file has to be reviewed again; the approval is kept elsewhere.
    file = other.skills.index.folder / "hello.py"
    file.write_text(file.read_text().replace("return 'hello'", "return 'bye'"))
    assert (await run(other, REVIEWED)).reason == "policy"
    assert (await run(engine, REVIEWED)).reason == "policy"
    assert await value(other, REVIEWED, client) == "bye"
    listed: Any = await value(other, "runtime.list_skills()")
    assert (listed[0]["version"], listed[0]["edited"], listed[0]["reviewed"]) == (2, True, True)
    file.write_text("def hello(:")
    with pytest.raises(LibraryError, match="cannot be used as its file is"):
        await run(other, REVIEWED)


@pytest.mark.guarantee("skills")
async def test_the_policy_and_an_unknown_caller_decide_who_has_skills(
    settings: Settings, backend: FakeBackend, finder: ListFinder, other: Engine
) -> None:
    unknown = await run(other, REVIEWED, principal="")
    assert "unidentified caller" in unknown.error
    saving = "def f():\n    pass\nsave_tool(f)"
    assert "may not save the user's skills" in (await run(other, saving, principal="")).error
    assert "it has no memories" in (await run(other, "list_memories()", principal="")).error

    for action in ("allow", "deny"):
        path = settings.policy.path
        assert path is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'[policy]\nskills = "{action}"\n')
        async with engine_on(backend, settings, finder=finder) as opened:
            result = await run(opened, REVIEWED, principal="")
            if action == "allow":
                assert result.result == "hello"
            else:
                assert "The policy lets no program use skills." in result.error


@pytest.mark.parametrize("code", [REVIEWED, "import skills\ngetattr(skills, 'hel' + 'lo')()"])
async def test_a_skill_that_the_guard_refuses_is_used_in_no_way(
    settings: Settings, backend: FakeBackend, finder: ListFinder, engine: Engine, code: str
) -> None:
    await value(engine, "def hello():\n    return 1\nruntime.save_skill(hello)")
    file = engine.skills.index.folder / "hello.py"
    file.write_text("import ctypes\n" + file.read_text())

    enforcing = replace(settings, guard="enforce")
    async with engine_on(backend, enforcing, finder=finder) as opened:
        client = answer_with("always")
        result = await run(opened, code, client)
        assert "guard does not allow the skill 'hello'" in result.error
        assert client.asked == []


def test_a_question_has_the_whole_description() -> None:
    hidden = "\u202e" * (MAX_DESCRIPTION_CHARS - 3) + "end"
    header = Header(description=hidden, version=1, provenance=Provenance(anything=True))
    skill = read_skill("f", encode_skill(header, "def f():\n    pass\n"))
    asked = str(question(skill, "", ())[0]["message"])
    assert r"\u202e\u202eend" + "\n" in asked


@pytest.mark.parametrize("source", ["    pass\n" * 120, f"    {'x' * 9000!r}\n"])
def test_a_source_that_is_not_shown_whole_is_approved_for_one_run(source: str) -> None:
    header = Header(description="", version=1)
    skill = read_skill("f", encode_skill(header, f"def f():\n{source}"))
    asked: Any = question(skill, "", ())[0]
    assert asked["requestedSchema"]["properties"]["decision"]["enum"] == ["once", "no"]
    assert "`mcp-code-bridge skills approve f` shows all" in asked["message"]
