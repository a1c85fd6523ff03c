"""A program neither replaces nor removes nor imitates a skill that a person wrote or approved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.runs import Engine
from bridge.server.stdio import STDIO
from bridge.settings import Settings
from tests.fakes.client import FakeClient, deciding
from tests.plans.plan_rig import audited, opened
from tests.saved_functions.skill_rig import run, value

pytestmark = pytest.mark.guarantee("kept-through-the-gate", "skills")

USE = "from skills import hello\nhello()"
HELLO = "def hello():\n    return {!r}\nruntime.save_skill(hello)"
WRITTEN = "def hello():\n    return 'by hand'\n"
DELETE = "runtime.delete_skill('hello')"


def write(engine: Engine, text: str = WRITTEN) -> Path:
    folder = engine.skills.index.folder
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hello.py").write_text(text)
    return folder / "hello.py"


async def approve(engine: Engine) -> None:
    assert await engine.skills.index.approve(await engine.skills.index.get("hello"))


@pytest.mark.parametrize("code", [HELLO.format("other"), DELETE])
async def test_a_program_replaces_or_removes_what_a_person_wrote_only_if_they_say_so(
    engine: Engine, code: str
) -> None:
    file = write(engine)
    alone = await run(engine, code)
    assert "needs a person's approval" in alone.error
    assert "mcp-code-bridge skills rm" in alone.error
    assert [refused.why for refused in alone.refused] == ["ask: a skill that is there"]
    no = FakeClient()
    assert "declined" in (await run(engine, code, no)).error
    assert "hello" in no.asked[0]["message"]
    assert file.read_text() == WRITTEN

    result = await run(engine, code, deciding("call"))
    assert result.status == "success", result.error
    assert WRITTEN in [path.read_text() for path in (file.parent / "hello").iterdir()]
    # The next one has to be asked about again.
    write(engine)
    assert "needs a person's approval" in (await run(engine, code)).error


@pytest.mark.parametrize(("answer", "questions"), [("call", 2), ("run", 1)])
async def test_an_answer_about_skills_holds_for_what_it_said(
    engine: Engine, answer: str, questions: int
) -> None:
    file = write(engine)
    code = f"{DELETE}\nruntime.delete_skill('other')"
    for _ in range(2):
        write(engine)
        (file.parent / "other.py").write_text("def other():\n    return 1\n")
        client = deciding(answer)
        result = await run(engine, code, client)
        assert result.status == "success", result.error
        assert len(client.asked) == questions


async def test_what_a_program_made_itself_it_replaces_and_removes_unasked(engine: Engine) -> None:
    for text in ("one", "two"):
        await value(engine, HELLO.format(text))
        assert await value(engine, USE) == text
    await value(engine, DELETE)
    await value(engine, HELLO.format("three"))
    await approve(engine)
    for code in (HELLO.format("four"), DELETE):
        assert "needs a person's approval" in (await run(engine, code)).error
    again: Any = await value(engine, HELLO.format("three"))
    assert (again["changed"], await value(engine, USE)) == (False, "three")
    # Another principal's is not its own.
    assert "needs a person's approval" in (await run(engine, DELETE, principal="else")).error


@pytest.mark.parametrize("session", ["", "s"])
async def test_a_skill_replaced_under_an_approved_name_needs_a_review(
    engine: Engine, session: str
) -> None:
    write(engine)
    await approve(engine)
    assert await value(engine, USE) == "by hand"
    more = {"session": session} if session else {}
    yes = deciding("call")
    for code in (HELLO.format("other"), f"{DELETE}\n{HELLO.format('more')}"):
        dynamic = f"{code}\nimport skills\ngetattr(skills, 'hel' + 'lo')()"
        result = await run(engine, dynamic, yes, **more)
        asked = yes.asked[-1]["message"]
        assert "Use the saved skill hello?" in asked, result.error
        assert result.status == "error"
        assert (await run(engine, USE)).reason == "policy"
        for principal in ("else", STDIO):
            assert (await run(engine, USE, principal=principal)).reason == "policy"
    listed: Any = await value(engine, "runtime.list_skills()")
    assert listed[0]["reviewed"] is False


async def test_an_approval_is_of_the_whole_text(engine: Engine) -> None:
    await value(engine, HELLO.format("x").replace("(hello)", "(hello, 'It greets')"))
    file = engine.skills.index.folder / "hello.py"
    approved = file.read_text()
    other = file.read_text().replace("It greets", "It greets and pays")
    for text in (other, approved + "# Note.\n", approved.replace('"version": 1', '"version": 2')):
        write(engine, approved)
        await approve(engine)
        assert await value(engine, USE) == "x"
        write(engine, text)
        assert (await run(engine, USE)).reason == "policy"


async def test_an_unidentified_caller_replaces_and_removes_nothing(
    settings: Settings, tmp_path: Path
) -> None:
    policy = '[policy]\nskills = "allow"\n[policy.defaults]\nuntrusted = "allow"\n'
    async with opened(settings, [], policy=policy, tmp_path=tmp_path) as engine:
        file = write(engine)
        for code in (HELLO.format("other"), DELETE):
            yes = deciding("call")
            result = await run(engine, code, yes, principal="", owner="#x")
            assert "is not allowed" in result.error
            assert yes.asked == []
        assert file.read_text() == WRITTEN


POLICY = """
[[policy.rules]]
name = "keeps nothing of customers"
server = "runtime"
tool = ["save_memory", "save_skill"]
when = { "key" = { glob = "customer*" } }
action = "deny"

[[policy.rules]]
name = "forgets nothing"
server = "runtime"
tool = "delete_memory"
action = "ask"

[[policy.rules]]
name = "anything"
action = "allow"
"""


async def test_rules_decide_on_what_is_kept_and_the_log_has_it(
    settings: Settings, tmp_path: Path
) -> None:
    async with opened(settings, [], policy=POLICY, tmp_path=tmp_path) as engine:
        await value(engine, "save_memory('a', 1)\nsave_memory('a', 2)")
        denied = await run(engine, "save_memory('customer 5', 1)")
        assert "(rule 'keeps nothing of customers')" in denied.error
        assert "needs a person's approval" in (await run(engine, "delete_memory('a')")).error
        client = deciding("call")
        assert await value(engine, "delete_memory('a')\nload_memory('a')", client) is None
        # No rule takes from a person what is theirs.
        write(engine)
        assert "needs a person's approval" in (await run(engine, DELETE)).error
    log = audited(settings)
    for text in ('"save_memory"', '"delete_memory"', '"delete_skill"', '"customer 5"'):
        assert text in log


@pytest.mark.parametrize("effect", ["write", "destructive"])
async def test_a_default_denies_and_asks_nothing_of_what_programs_keep(
    settings: Settings, tmp_path: Path, effect: str
) -> None:
    for action in ("ask", "deny"):
        policy = f'[policy.defaults]\n{effect} = "{action}"\n'
        async with opened(settings, [], policy=policy, tmp_path=tmp_path) as engine:
            code = "save_memory('a', 1)" if effect == "write" else "delete_memory('a')"
            result = await run(engine, code)
            assert (result.status == "success") == (action == "ask"), result.error


async def test_a_run_that_keeps_nothing_touches_nothing_of_it(
    engine: Engine, settings: Settings
) -> None:
    await value(engine, "1")
    there = {path.name for path in settings.state_dir.iterdir()}
    assert not there & {"memories", "skills", "skills-read.json", "skills.lock"}
