"""Programs in plan mode on the fake backend: placeholders from the guest to the plan, and on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.model import ApplyRequest, Plan, RunRequest, RunResult
from bridge.render.text import compact
from bridge.runs import Engine
from bridge.settings import Settings
from tests.engine_rig import ListFinder, engine_on
from tests.fakes.backend import FakeBackend
from tests.raised import raises_code
from tests.recorder_rig import recorded, recorder, tools_recorded

POLICY = """
[policy.defaults]
write = "allow"
destructive = "allow"
[policy.servers.rec]
trust = true
"""

CREATE = "mcp_rec.create"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the server writes its calls."""
    return tmp_path / "calls.jsonl"


@pytest.fixture
async def planner(
    settings: Settings, backend: FakeBackend, tmp_path: Path, log: Path
) -> AsyncIterator[Engine]:
    """An engine with a recorder whose annotations are believed."""

    config = tmp_path / "config.toml"
    config.write_text(POLICY)
    finder = ListFinder(recorder("rec", log, notes={"a": "note a", "b": "note b"}))
    async with engine_on(backend, settings, config=config, finder=finder) as engine:
        yield engine


async def plan(engine: Engine, code: str) -> tuple[RunResult, Plan]:
    """Run a program in plan mode."""
    with anyio.fail_after(60):
        result = await engine.run(RunRequest(code=code, mode="plan"))
    assert result.plan is not None, result
    return result, result.plan


def shown(plan: Plan) -> list[tuple[str, Mapping[str, Any]]]:
    """Return tools and arguments of the held calls."""
    return [(call.tool, call.arguments) for call in plan.calls]


async def test_results_of_held_calls_are_passed_on_shown_and_resolved(
    planner: Engine, log: Path
) -> None:
    code = f"""
notes = [await mcp_rec.read_note(topic=topic) for topic in ("a", "b")]
parent = await {CREATE}(title="parent", body=str(len(notes)))
for note in notes:
    child = await {CREATE}(title=f"{{note.text}} below #{{parent.id}}", parent=parent.id)
    print("made", child.url, [child])
await mcp_rec.send(to="ann", text="see " + parent.url)
{{"parent": parent.id, "last": f"{{child.url}}"}}
"""
    result, made = await plan(planner, code)
    assert (result.status, made.stopped) == ("success", "")
    assert tools_recorded(log) == ["read_note", "read_note"]
    assert result.stdout == "".join(
        f"made ‹result of #{n} rec.create›.url [‹result of #{n} rec.create›]\n" for n in (2, 3)
    )
    assert result.result == {
        "parent": "‹result of #1 rec.create›.id",
        "last": "‹result of #3 rec.create›.url",
    }
    assert [tool for tool, _ in shown(made)] == ["create", "create", "create", "send"]
    assert "heldResult" not in repr(made)
    with anyio.fail_after(60):
        applied = await planner.apply(ApplyRequest(plan_id=made.plan_id))
    assert applied.status == "success", applied
    creates = recorded(log)[2:]
    assert creates[0] == ("create", {"title": "parent", "body": "2"})
    number = creates[1][1]["parent"]
    assert isinstance(number, int)
    assert [arguments["title"] for _, arguments in creates[1:3]] == [
        f"note a below #{number}",
        f"note b below #{number}",
    ]
    assert creates[3][1]["to"] == "ann"
    assert creates[3][1]["text"].startswith("see ")


STOPPING = {
    "item.id > 3": "it compares ‹result of #1 rec.create›.id: its value is unknown.",
    "await mcp_rec.read_note(topic=item.title)": "A plan can use that only in other held calls.",
    "await mcp_rec.create(title=f'{item.title}, {item.id}'.upper())": "cut or changed",
    "await mcp_rec.plain(value={f'{item.id}, {item.title}': 1})": "cannot be a key of a dict",
    "await mcp_rec.plain(value={item.id: 1})": "uses ‹result of #1 rec.create›.id as a key",
    "await mcp_rec.create(title=str([item]))": "what is only to be read",
    "await mcp_rec.create(title=__import__('json').dumps([f'{item.id}']))": "not quoted (as JSON",
    "await mcp_rec.create(title=f'{item.url}'.split('/')[-1])": "cut or changed",
    "await mcp_rec.read_note(topic=repr([item]))": "A plan can use that only in other held calls.",
    "', '.join([item.title])": "expected str instance, Placeholder found",
}


@pytest.mark.parametrize("line", STOPPING)
async def test_a_program_that_has_to_know_stops_and_the_plan_says_so(
    planner: Engine, log: Path, line: str
) -> None:
    code = f"""
item = await {CREATE}(title="one")
try:
    {line}
except Exception:
    pass
await {CREATE}(title="two")
"""
    if "join" in line:
        code = f'item = await {CREATE}(title="one")\n\n\n{line}'
    result, made = await plan(planner, code)
    assert result.status == "success", result
    assert result.error == ""
    assert made.stopped.startswith(f"line 4, `{line}`: ")
    assert STOPPING[line] in made.stopped
    assert shown(made) == [("create", {"title": "one"})]
    assert tools_recorded(log) == []


async def test_a_program_that_fails_otherwise_fails(planner: Engine) -> None:
    result, made = await plan(planner, f'item = await {CREATE}(title="one")\n1 / 0')
    assert (result.status, made.stopped) == ("error", "")
    assert "ZeroDivisionError" in result.error
    code = f'item = await {CREATE}(title="one")\nraise ValueError(f"bad {{item.id}}")'
    result, made = await plan(planner, code)
    assert (result.status, made.stopped) == ("error", "")
    assert "ValueError: bad ‹result of #1 rec.create›.id" in result.error
    assert "heldResult" not in result.summary


async def test_what_was_read_without_the_held_calls_is_told(planner: Engine) -> None:
    code = """
await mcp_rec.read_note(topic="a")
await mcp_rec.write_note(topic="a", text="new")
print((await mcp_rec.read_note(topic="a")).text)
"""
    result, made = await plan(planner, code)
    assert (result.stdout, made.stale) == ("note a\n", "1 × rec.read_note")
    assert "without what those will change: 1 × rec.read_note." in compact(result)
    _, made = await plan(planner, 'await mcp_rec.read_note(topic="a")')
    assert made.stale == ""


async def test_an_id_of_the_wrong_kind_says_where_it_belongs(planner: Engine) -> None:
    result, made = await plan(planner, f'await {CREATE}(title="one")')
    with raises_code("unknown_run", match="is a plan's id") as run_error:
        await planner.run(RunRequest(code="1", retry_of=made.plan_id))
    assert "`apply`" in run_error.value.remedy
    with raises_code("unknown_plan", match="is a run's id") as plan_error:
        await planner.apply(ApplyRequest(plan_id=result.run_id))
    assert 'mode="plan"' in plan_error.value.remedy
    with raises_code("unknown_run", match="no journal"):
        await planner.run(RunRequest(code="1", retry_of=made.plan_id, owner="somebody else"))


async def test_what_a_plan_shows_has_labels_for_what_nobody_knows(planner: Engine) -> None:
    code = (
        f"made = await {CREATE}(title='a')\n"
        "class Note:\n"
        "    def _repr_markdown_(self): return f'# {made.url} and {made.id}'\n"
        "display(Note()); print([made.url, f'{made.url}'])"
    )
    result, _ = await plan(planner, code)
    (item,) = result.shown
    assert item.text == "# ‹result of #1 rec.create›.url and ‹result of #1 rec.create›.id"
    assert result.stdout == "[‹result of #1 rec.create›.url, '‹result of #1 rec.create›.url']\n"


FORGED = {
    "a mark of another run": ("mark.replace(mark[11:27], '0' * 16)", False),
    "a mark of a call to come": ("mark.replace('n1p', 'n9p')", False),
    "half a mark": ("mark[:len(mark) // 2]", False),
    "a mark with its own checksum": ("with_check(mark)", True),
    "what stands for it by itself": ("{'$heldResult': mark}", True),
    "that with more in it": ("{'$heldResult': mark, 'a': 1}", False),
    "a list of marks in JSON": ("json.dumps([mark])", False),
    "a mark in base64": ("base64.b64encode(mark.encode()).decode()", True),
}


@pytest.mark.parametrize("what", FORGED)
async def test_a_mark_that_a_program_forges_is_refused_or_shown_as_what_it_means(
    planner: Engine, log: Path, what: str
) -> None:
    """Nothing is sent that was not shown, whatever the program makes of a mark."""
    forged, is_held = FORGED[what]
    code = f"""
import base64, json, zlib
def with_check(mark):
    core = mark[11:27] + "n1p" + b'["url"]'.hex()
    head, _, seal = mark.partition("aA!")
    return f"{{mark[:11]}}{{core}}k{{zlib.crc32(core.encode()):08x}}aA!{{seal}}"
item = await {CREATE}(title="one")
mark = f"{{item.id}}"
await mcp_rec.plain(value={forged})
"""
    result, made = await plan(planner, code)
    assert len(made.calls) == 1 + is_held, result
    assert bool(made.stopped) is not is_held
    with anyio.fail_after(60):
        done = await planner.apply(ApplyRequest(plan_id=made.plan_id))
    assert done.status == "success", done
    if is_held:
        value, sent = made.calls[1].arguments["value"], recorded(log)[-1][1]["value"]
        labels = {"‹result of #1 rec.create›.id": 1, "‹result of #1 rec.create›.url": URL}
        assert labels.get(str(value), value) == sent


URL = "https://example.org/1"
