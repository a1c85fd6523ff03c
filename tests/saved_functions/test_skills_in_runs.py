"""Skills and memories in runs, on the fake backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bridge.cli.run import TERMINAL
from bridge.model import RunRequest
from bridge.model.runs import owner_of, principal_of
from bridge.runs import Engine
from bridge.server.stdio import STDIO
from bridge.settings import Settings
from bridge.store import Store
from tests.engine_rig import ListFinder, workshop
from tests.saved_functions.skill_rig import SAVE, run, value


def test_the_users_of_the_terminal_and_of_the_agent_are_one_principal() -> None:
    known = ((STDIO, STDIO), (TERMINAL, ""), ("", ""), ("", "#x"), ("me", "me#x"))
    asking = [RunRequest(code="", principal=name, owner=owner) for name, owner in known]
    assert list(map(owner_of, asking)) == ["user", "user", "", "#x", "me#x"]
    # A credential that no one checked keeps memories apart, and makes no one the user.
    assert list(map(principal_of, asking)) == ["user", "user", "", "", "me"]


async def test_a_function_is_kept_with_what_it_needs_and_imported_later(engine: Engine) -> None:
    kept: Any = await value(engine, SAVE)
    assert kept["import"] == "from skills import shout"
    assert kept["tools"] == ["work-shop.echo"]
    assert kept["signature"] == "await shout(text: str, *, times: int=2) -> Any"
    assert (kept["version"], kept["changed"], kept["stale"]) == (1, True, "")
    file = engine.skills.index.folder / "shout.py"
    assert "# A remark that stays.\n" in file.read_text()
    assert "import os.path\n" in file.read_text()

    used = "from skills import shout\nawait shout('loudly', times=1)"
    assert await value(engine, used) == '{"x/lou": 1}'
    assert (
        await value(engine, "import skills\nawait skills.shout('loud', times=3)") == '{"x/lou": 3}'
    )
    found_by = "import importlib\nskills = importlib.import_module('skills')\n"
    other = found_by + "await getattr(skills, 'sho' + 'ut')('b')"
    assert await value(engine, other) == '{"x/b": 2}'
    nested = "def f():\n    from skills import shout as s\n    return s.__module__\n"
    nested += "[f(), dir(__import__('skills'))]"
    assert await value(engine, nested) == ["skills.shout", ["shout"]]
    assert await value(engine, "runtime.load_skill('shout').__name__") == "shout"
    assert await value(engine, "[s['name'] for s in await runtime.list_skills()]") == ["shout"]
    found: Any = await value(engine, "await runtime.search_tool_docs('shout')")
    assert found[0]["kind"] == "skill"
    assert found[0]["signature"].startswith("from skills import shout; await shout(")

    unknown = RunRequest(code="await runtime.search_tool_docs('shout')", principal="")
    listed = (await engine.run(unknown)).result
    assert [each["kind"] for each in listed if each["kind"] == "skill"] == []

    # A skill may use another, and is a new version when it changes.
    again = SAVE.replace("Say something", "Say anything")
    kept = await value(engine, again)
    assert (kept["version"], kept["changed"]) == (2, True)
    kept = await value(engine, again)
    assert (kept["version"], kept["changed"]) == (2, False)
    twice = "from skills import shout\nasync def twice(t):\n    return [await shout(t), 1]\n"
    await value(engine, twice + "await runtime.save_skill(twice)")
    assert await value(engine, "from skills import twice\nlen(await twice('x'))") == 2
    assert sorted(path.name for path in (engine.skills.index.folder / "shout").iterdir()) == [
        "1.py",
        "2.py",
    ]
    assert await value(engine, "runtime.delete_skill('shout')") == "Skill 'shout' deleted."
    missing = await run(engine, "from skills import shout")
    assert "ImportError: No skill is called 'shout'." in missing.error


async def test_a_wrong_name_is_told_with_the_nearest_and_a_mistake_with_its_lines(
    engine: Engine,
) -> None:
    source = "def divide(a, b):\n    return a / b\n"
    await value(engine, source + "runtime.save_tool(divide)")
    for code in ("from skills import devide", "import skills\nskills.devide(1, 2)"):
        wrong = await run(engine, code)
        assert "No skill is called 'devide'. Did you mean 'divide'?" in wrong.error
    caught = "import skills\ntry:\n    skills.devide\nexcept AttributeError as e:\n    print(e)\n"
    assert "Did you mean 'divide'?" in (await run(engine, caught)).stdout
    failed = await run(engine, "from skills import divide\ndivide(1, 0)")
    assert 'File "<skill divide>", line ' in failed.error
    assert "return a / b" in failed.error
    assert "bridge" not in failed.error


REFUSED: Mapping[str, str] = {
    "lambda": "save_tool(lambda: 1)",
    "`frame`": "frame = object()\ndef f():\n    return frame\nsave_tool(f)",
    "`PATTERN`": "import re\nPATTERN = re.compile('x')\ndef f():\n    return PATTERN\nsave_tool(f)",
    "it uses `n` of the function around it": (
        "def g(n):\n    def f():\n        return n\n    return f\nsave_tool(g(1))"
    ),
    "`gone`, which is defined nowhere": "def f():\n    return gone\nsave_tool(f)",
    "modules of Python's library": "def json():\n    pass\nsave_tool(json)",
    "cannot be the name": "def _f():\n    pass\nsave_tool(_f)",
    "would run whenever": "save_tool('print(1)\\ndef f():\\n    pass')",
    "takes 70": "def f():\n    return X\nX = 'x' * 70000\nsave_tool(f)",
    "syntax error": "save_tool('def f(:')",
    "or its source, not the text 'f'": "save_tool('f', 'def f(): return 1', 'does f')",
    "the function comes first": "def f():\n    pass\nsave_tool('f', f)",
    "not 'my skill'": "def f():\n    pass\nsave_tool(f, name='my skill')",
    "no server is called": "save_tool('async def f():\\n    return await mcp_nowhere.x()')",
}


async def test_what_cannot_be_kept_is_refused_with_what_it_is(engine: Engine) -> None:
    # `exec` has no source; each is a program of its own as far as linecache is concerned.
    sources = "import linecache\ntold = []\n"
    body = ""
    for number, code in enumerate(REFUSED.values()):
        name = f"<run_python {number + 1}>"
        body += (
            f"linecache.cache[{name!r}] = (1, None, {code!r}.splitlines(True), {name!r})\n"
            f"space = {{'save_tool': save_tool, '__name__': '__main__'}}\n"
            f"try:\n    exec(compile({code!r}, {name!r}, 'exec'), space)\n    told.append('kept')\n"
            f"except BaseException as error:\n"
            f"    told.append(f'{{type(error).__name__}}: {{error}}')\n"
        )
    told: Any = await value(engine, sources + body + "told")
    for (expected, _), said in zip(REFUSED.items(), told, strict=True):
        assert expected in said
    assert await value(engine, "runtime.list_skills()") == []


async def test_a_skill_whose_tool_has_changed_is_stale_and_still_runs(
    engine: Engine, finder: ListFinder
) -> None:
    await value(engine, SAVE)
    file = engine.skills.index.folder / "shout.py"
    text = file.read_text()
    head, mark, rest = text.partition('"echo": "sha256:')
    file.write_text(f"{head}{mark}0{rest[1:]}")
    # The text is another, which no one has seen.
    assert (await run(engine, "from skills import shout")).reason == "policy"
    assert await engine.skills.index.approve(await engine.skills.index.get("shout"))
    result = await run(engine, "from skills import shout\nawait shout('b')")
    assert result.result == '{"x/b": 2}'
    assert "work-shop.echo has changed" in result.stderr
    found: Any = await value(engine, "await runtime.search_tool_docs('shout')")
    assert "work-shop.echo has changed" in found[0]["stale"]
    finder.specs = (workshop("another"),)
    listed: Any = await value(engine, "runtime.list_skills()")
    assert "there is no server 'work-shop' any more" in listed[0]["stale"]


async def test_memories_last_and_a_plan_keeps_nothing(engine: Engine) -> None:
    code = """
import asyncio, threading
said = [save_memory("k", {"n": 1}, {"why": "test"}), await save_memory("other", [1])]
said.append(update_memory("k", lambda old: {**old, "n": old["n"] + 1}))
said.append((load_memory("k"), load_memory("none", 5), load_memory("none", default=6)))
said.append((memory_exists("k"), await runtime.memory_exists("none")))
info = get_memory_info("k")
said.append((sorted(info), info["metadata"], [m["key"] for m in list_memories()]))
said.append((delete_memory("other"), delete_memory("other"), get_memory_info("other")))

# Under way in a loop, in threads, and with calls of tools at the same time.
def count():
    return update_memory("count", lambda n: (n or 0) + 1)
threads = [threading.Thread(target=count) for _ in range(4)]
for thread in threads:
    thread.start()
async def both(n):
    await mcp_work_shop.echo(text=str(n))
    return count()
await asyncio.gather(*(both(n) for n in range(4)), *(asyncio.to_thread(count) for _ in range(3)))
for thread in threads:
    thread.join()
said.append(load_memory("count"))
said
"""
    said: Any = await value(engine, code)
    assert said[:2] == ["Memory 'k' saved.", "Memory 'other' saved."]
    assert said[2:5] == [{"n": 2}, [{"n": 2}, 5, 6], [True, False]]
    fields = ["created_at", "key", "metadata", "updated_at", "value"]
    assert said[5] == [fields, {"why": "test"}, ["k", "other"]]
    assert said[6] == ["Memory 'other' deleted.", "Memory 'other' not found.", None]
    assert said[7] == 11
    assert await value(engine, "load_memory('k')", principal=STDIO, owner=STDIO) == {"n": 2}
    assert await value(engine, "load_memory('k')", principal="else") is None

    for attempt in ("save_memory('k', 1)", "delete_memory('k')", "save_tool('def f(): pass')"):
        planned = await run(engine, attempt, mode="plan")
        assert "A plan changes nothing" in planned.error
    assert await value(engine, "load_memory('k')['n']") == 2
    for wrong in (
        "save_memory('k', object())",
        "save_memory('', 1)",
        "save_memory('k', 'x' * 70000)",
    ):
        assert (await run(engine, wrong)).status == "error"


async def test_a_skill_is_found_by_the_search_of_the_server_too(engine: Engine) -> None:
    await value(engine, "def tidy_up():\n    'Sweep the floor.'\nsave_tool(tidy_up)")
    found = await engine.guide.search("sweep floor", 5, "summary", skills=True)
    assert found[0]["tool"] == "tidy_up"
    assert await engine.guide.search("sweep floor", 5, "summary") == []


HOSTILE = """
ask = runtime.save_skill.__self__._client.call_and_wait
deep = []
for _ in range(200):
    deep = [deep]
told = []
for method, params in (
    ("save_skill", {}),
    ("save_skill", {"source": 5}),
    ("save_skill", {"source": "def f(): pass", "name": ["f"]}),
    ("save_skill", {"source": "def f(): pass", "name": "../../f"}),
    ("save_skill", {"source": "def f(): pass", "description": "x" * 1000}),
    ("save_skill", {"source": "x = " + "[" * 50000}),
    ("load_skill", {"name": "../hello"}),
    ("load_skill", {"name": None}),
    ("delete_skill", {"name": "a/b"}),
    ("save_memory", {"key": 5, "value": 1}),
    ("save_memory", {"key": "k", "value": 1, "metadata": [1]}),
    ("save_memory", {"key": "k", "value": 1, "revision": 7}),
    ("save_memory", {"key": "k" * 1000, "value": 1}),
    ("load_memory", {}),
    ("delete_memory", {"key": {}}),
):
    try:
        told.append([method, ask(method, params, method)])
    except MCPError as error:
        told.append(error.kind)
save_memory("../../../../etc/x", deep)
told.append(load_memory("../../../../etc/x") == deep)
told
"""


@pytest.mark.guarantee("skills")
async def test_parameters_of_a_hostile_guest_are_answered_as_mistakes(
    engine: Engine, settings: Settings
) -> None:
    told: Any = await value(engine, HOSTILE)
    assert told == ["usage"] * 15 + [True]
    assert await value(engine, "runtime.list_skills()") == []
    with Store(settings.state_dir).reading() as kept:
        assert len(kept.listed("memory")) == 1


async def test_in_a_session_functions_of_earlier_runs_are_kept_and_skills_stay_current(
    engine: Engine,
) -> None:
    first = "LIMIT = 2\ndef first(n):\n    return n * LIMIT\n"
    await value(engine, first, session="s")
    again = "def second(n):\n    return first(n) + 1\nruntime.save_skill(second).version"
    assert await value(engine, again, session="s") == 1
    use = "from skills import second\nsecond(3)"
    assert await value(engine, use, session="s") == 7
    assert await value(engine, use) == 7
    changed = "LIMIT = 5\nruntime.save_skill(second).version"
    # The name is the skill's now, whose source is known as well.
    told = await run(engine, changed, session="s")
    assert told.status == "success", told
    other = first.replace("first", "second").replace("LIMIT = 2", "LIMIT = 9")
    await value(engine, f"{other}runtime.save_skill(second)")
    assert await value(engine, use, session="s") == 27
