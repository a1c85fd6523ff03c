"""Data that one run saves cannot leave by the next run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import Directory, InputFile, RunResult
from bridge.runs import Engine
from bridge.saved_functions.skills import question
from bridge.settings import Settings
from tests.plans.plan_rig import audited, log, opened
from tests.recorder_rig import recorded, recorder
from tests.saved_functions.skill_rig import answer_with, run

__all__ = ["log"]

POLICY = """
[policy.defaults]
untrusted = "allow"

[policy.servers.log]
labels = ["untrusted-input", "private-data"]

[policy.servers.chat]
labels = ["exfiltration"]
"""

READ = "said = (await mcp_log.read_note(topic='a'))['text']\n"
SEND = "\nawait mcp_chat.send(to='x', text=str({what}))"


@pytest.fixture
async def engine(settings: Settings, tmp_path: Path, log: Path) -> AsyncIterator[Engine]:
    specs = [recorder("log", log, notes={"a": "4711"}), recorder("chat", log)]
    async with opened(settings, specs, policy=POLICY, tmp_path=tmp_path) as engine:
        yield engine


async def keep(engine: Engine, code: str) -> RunResult:
    result = await run(engine, READ + code)
    assert result.status == "success", (result.error, result.stderr)
    return result


def assert_stopped(result: RunResult, *said: str) -> None:
    assert result.status == "error", (result.stdout, result.result)
    for text in ("lethal-combination", *said):
        assert text in result.error


async def test_whatever_a_program_keeps_and_however_it_is_found_it_is_not_sent(
    engine: Engine, log: Path
) -> None:
    kept = await keep(
        engine,
        """
save_memory("notes", said, {"from": said})
open("out/a.txt", "w").write(said)
print(said * 20000)
TOKEN = said
def passed_on():
    return TOKEN
runtime.save_skill(passed_on, description="What the note says")
""",
    )
    run_id = kept.run_id
    kinds = {artifact.kind: artifact.uri for artifact in kept.artifacts}
    assert set(kinds) == {"file", "stdout"}
    # Everything else that a program has is made of these.
    ways = {
        "load_memory('notes')": "memory 'notes'",
        "list_memories()": "memory 'notes'",
        f"await runtime.read_output({run_id!r}, find='4711')": kinds["stdout"],
        "runtime.load_skill('passed_on')()": "skill 'passed_on'",
        "runtime.list_skills()": "skill 'passed_on'",
        "await runtime.search_tool_docs('what the note says')": "skill 'passed_on'",
    }
    for way, named in ways.items():
        found = await run(engine, f"found = {way}" + SEND.format(what="found"))
        assert_stopped(found, f"{named} (saved by run {run_id})")
    imported = "from skills import passed_on" + SEND.format(what="passed_on()")
    assert_stopped(await run(engine, imported), f"skill 'passed_on' (saved by run {run_id})")
    for kind in kinds:
        given = (InputFile(name="given", uri=kinds[kind]),)
        found = await run(engine, SEND.format(what="open('given').read()"), files=given)
        assert_stopped(found, f"{kinds[kind]} (saved by run {run_id})")
    assert [tool for tool, _ in recorded(log) if tool == "send"] == []

    changed = "found = update_memory('notes', lambda old: old)" + SEND.format(what="found")
    assert_stopped(await run(engine, changed), "memory 'notes'")
    plain = await run(engine, "save_memory('own', 1)" + SEND.format(what="1"))
    assert plain.status == "success", plain.error
    # That it is there as it was says that no other run removed it.
    own = await run(engine, "found = load_memory('own')" + SEND.format(what="found"))
    assert_stopped(own, f"the memories (saved by run {run_id})")
    assert "4711" not in str([given for tool, given in recorded(log) if tool == "send"])


async def test_a_skill_that_a_person_has_seen_is_theirs(engine: Engine, settings: Settings) -> None:
    await keep(engine, "def f():\n    return 'hello'\nruntime.save_skill(f)")
    use = "from skills import f" + SEND.format(what="f()")
    assert_stopped(await run(engine, use), "skill 'f'")
    skill = await engine.skills.index.get("f")
    assert skill.header.provenance is not None
    asked = str(question(skill, "", ())[0]["message"])
    assert "saved by a run that had called log, and read what is private-data, untrusted" in asked
    assert await engine.skills.index.approve(skill)
    sent = await run(engine, use)
    assert sent.status == "success", sent.error
    # The same source, and what it says of itself is another's.
    other = READ + "def f():\n    return 'hello'\nruntime.save_skill(f, description=said)"
    assert "needs a person's approval" in (await run(engine, other)).error
    assert (await run(engine, other, answer_with("call"))).status == "success"
    assert (await run(engine, use)).reason == "policy"


async def test_a_person_who_is_asked_and_says_yes_has_seen_a_skill(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    specs = [recorder("log", log, notes={"a": "4711"}), recorder("chat", log)]
    async with opened(settings, specs, policy=POLICY, tmp_path=tmp_path) as engine:
        await keep(engine, "def f():\n    return 'hello'\nruntime.save_skill(f)")
    person = answer_with("once", "once", "always")
    use = "from skills import f" + SEND.format(what="f()")
    async with opened(settings, specs, policy=POLICY, tmp_path=tmp_path) as engine:
        for _ in range(4):
            sent = await run(engine, use, person)
            assert sent.status == "success", sent.error
    assert len(person.asked) == 3


async def test_a_directory_with_labels_is_read_by_every_run_that_has_it(
    settings: Settings, tmp_path: Path, log: Path
) -> None:
    mail = Directory(
        name="mail",
        path=str(tmp_path),
        inside="/mnt/mail",
        labels=frozenset({"private-data", "untrusted-input"}),
    )
    own = replace(settings, directories=(mail,))
    specs = [recorder("log", log), recorder("chat", log)]
    async with opened(own, specs, policy=POLICY, tmp_path=tmp_path) as engine:
        assert_stopped(await run(engine, SEND.format(what="1")), "directory 'mail'")
    assert '"what":"directory \'mail\'"' in audited(settings)
    strict = replace(own, strict=True)
    async with opened(strict, specs, policy=POLICY, tmp_path=tmp_path) as engine:
        sent = await run(engine, SEND.format(what="1"), servers=("chat",))
    assert sent.status == "success", sent.error


COUNT = """
update_memory("n", lambda old: (old or 0) + 1)
save_memory("last", load_memory("n"))
delete_memory("gone")
def f(): return 1
made = runtime.save_skill(f)["changed"]
{fault}
update_memory("n", lambda old: old + 10)
[load_memory("n"), load_memory("last"), made]
"""


async def test_a_retry_saves_nothing_twice(engine: Engine) -> None:
    await run(engine, "save_memory('gone', 1)")
    first = await run(engine, COUNT.format(fault="1 / 0"))
    assert "ZeroDivisionError" in first.error
    await run(engine, "save_memory('gone', 2)")
    slip = await run(engine, COUNT.format(fault="1 / 0"), retry_of=first.run_id)
    assert "ZeroDivisionError" in slip.error
    done = await run(engine, COUNT.format(fault=""), retry_of=slip.run_id)
    assert done.result == [11, 1, True], done.error
    replayed = {count.tool: (count.server, count.count) for count in done.replayed}
    assert replayed == {
        "load_memory": ("runtime", 2),
        "save_memory": ("runtime", 2),
        "delete_memory": ("runtime", 1),
        "save_skill": ("runtime", 1),
    }
    assert (await run(engine, "[load_memory('n'), load_memory('gone')]")).result == [11, 2]
