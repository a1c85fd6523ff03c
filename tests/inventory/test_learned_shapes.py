"""Shapes of tools' results are learned once, stored without values and shared by bridges."""

from __future__ import annotations

import json
import stat
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.catalog.entries import Observation
from bridge.catalog.shapes import schema, shape_of
from bridge.inventory.inventory import ToolInventory, listing_digest
from bridge.inventory.learned_shapes import (
    FIRST_RESULTS,
    MAX_SCHEMA_BYTES,
    MAX_TOOLS,
    SAMPLE_EVERY,
    LearnedShapes,
    ShapeRecord,
    add_shapes,
    version_digest,
)
from bridge.model import ServerSpec, Source, Tool
from bridge.store import Store
from bridge.store import schema as schema_module
from tests.waiting import until

SPEC = ServerSpec(
    name="shop",
    transport="stdio",
    source=Source(client="Test", scope="user", path="/test.json", key="mcpServers.shop"),
    command="shop",
)
TOOL = Tool(server="shop", name="find", description="Find things.", input_schema={"type": "object"})
ROW = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}


def open_shapes(directory: Path, **options: float) -> LearnedShapes:
    shapes = LearnedShapes(Store(directory), **options)
    shapes.configure([SPEC], shapes.load([SPEC]))
    return shapes


def learn(shapes: LearnedShapes, parts: dict[str, Any], tool: Tool = TOOL) -> bool:
    return shapes.learn("shop", tool, {"parts": parts})


def read_stored(directory: Path) -> dict[str, Any]:
    with Store(directory).reading() as kept:
        text = kept.get("shapes", "", listing_digest(SPEC))
    return {entry["tool"]: entry for entry in json.loads(text or '{"tools": {}}')["tools"].values()}


async def test_a_learned_shape_is_the_next_bridges_initial_one(tmp_path: Path) -> None:
    directory = tmp_path / "state"
    first = open_shapes(directory)
    assert learn(first, {"value": {"id": 1}})
    assert not learn(first, {"value": {"id": 2}})
    await first.close()
    second = open_shapes(directory)
    assert second.current("shop", TOOL) == Observation(schema=ROW, count=2)
    assert learn(second, {"text": "none"})
    now, before = second.current("shop", TOOL), second.initial("shop", TOOL)
    assert now is not None
    assert now.schema == {"anyOf": [{"type": "string"}, ROW]}
    assert before == Observation(schema=ROW, count=2)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {0o600}


async def test_another_version_of_a_tool_is_learned_separately(tmp_path: Path) -> None:
    observed = open_shapes(tmp_path)
    learn(observed, {"value": {"id": 1}})
    await observed.close()
    for other in (
        replace(TOOL, name="find_all"),
        replace(TOOL, input_schema={"type": "object", "properties": {"page": {}}}),
    ):
        assert open_shapes(tmp_path).current("shop", other) is None
        learn(observed, {"value": []}, other)
        assert observed.current("shop", other) == Observation(schema={"type": "array"}, count=1)
    same = replace(TOOL, annotations={"title": "x"}, description="Find things, in Paris.")
    assert version_digest(same) == version_digest(TOOL)


def test_nothing_is_learned_of_a_tool_that_declares_what_it_returns(tmp_path: Path) -> None:
    observed = open_shapes(tmp_path)
    declared = replace(TOOL, output_schema={"type": "object"})
    assert not learn(observed, {"value": {"id": 1}}, declared)
    assert not observed.learn("elsewhere", TOOL, {"parts": {"value": {"id": 1}}})
    assert not observed.has_any("shop")


async def test_two_bridges_add_to_what_the_other_has_written(tmp_path: Path) -> None:
    one, two = open_shapes(tmp_path), open_shapes(tmp_path)
    learn(one, {"value": {"id": 1}})
    learn(two, {"value": {"name": "x"}})
    learn(two, {"value": 1}, replace(TOOL, name="other"))
    await one.close()
    await two.close()
    learn(one, {"value": {"id": 1}})
    await one.close()
    found = read_stored(tmp_path)
    assert [*found] == ["find", "other"] or [*found] == ["other", "find"]
    assert [*found["find"]["returns"]["properties"]] == ["id", "name"]
    assert found["find"]["count"] == 3


async def test_a_failed_write_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "BUSY_SECONDS", 0.01)
    observed = open_shapes(tmp_path)
    learn(observed, {"value": 1})
    with Store(tmp_path).writing():
        await observed.save()
    assert not read_stored(tmp_path)
    await observed.save()
    assert read_stored(tmp_path)["find"]["count"] == 1


async def test_what_is_learned_is_written_while_the_bridge_runs(tmp_path: Path) -> None:
    observed = open_shapes(tmp_path, save_seconds=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(observed.save_regularly)
        learn(observed, {"value": 1})
        await until(lambda: bool(read_stored(tmp_path)))
        tasks.cancel_scope.cancel()


async def test_a_directory_that_cannot_be_written_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    observed = open_shapes(tmp_path / "file" / "shapes")
    assert learn(observed, {"value": 1})
    await observed.close()
    assert observed.current("shop", TOOL) is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"form": 2, "server": "shop", "tools": {}}',
        '{"form": 1, "server": "other", "tools": {"KEY": {"returns": {"type": "string"}}}}',
        '{"form": 1, "server": "shop", "tools": {"KEY": 7, "../x": {}}}',
        '{"form": 1, "server": "shop", "tools": {"KEY": {"count": 1e400, "depth": -1}}}',
    ],
)
def test_a_foreign_or_broken_document_is_ignored(tmp_path: Path, text: str) -> None:
    with Store(tmp_path).writing() as store:
        data = text.replace("KEY", version_digest(TOOL)).encode()
        store.put("shapes", "", listing_digest(SPEC), data)
    assert open_shapes(tmp_path).current("shop", TOOL) is None


def test_a_shape_that_gets_too_large_loses_its_depths_permanently() -> None:
    memory, names = ShapeRecord(name="find"), [f"{a}{b}" for a in "abcdef" for b in "uvwxyz"]
    results = [
        {n: {m: {"leaf": [{n: 1}]} for m in names} for n in names[k : k + 4]} for k in (0, 9)
    ]
    for result in results:
        memory = memory.with_shape(shape_of({"json": result}))
    assert len(json.dumps(schema(memory.shape))) <= MAX_SCHEMA_BYTES
    again = memory.with_shape(shape_of({"json": results[0]}))
    assert again == memory
    assert schema(memory.shape)["properties"]["au"]["type"] == "object"


def test_the_records_of_a_server_are_bounded(tmp_path: Path) -> None:
    files = Store(tmp_path)
    many = {
        f"{n:032x}": ShapeRecord(name=f"t{n}", count=1, day=f"2026-01-{1 + n % 28:02}")
        for n in range(MAX_TOOLS + 5)
    }
    assert add_shapes(files, [(SPEC, many)])
    assert len(LearnedShapes(files).load([SPEC])[SPEC.name]) == MAX_TOOLS


def test_later_results_are_looked_at_now_and_then(tmp_path: Path) -> None:
    observed = open_shapes(tmp_path)
    for _ in range(FIRST_RESULTS):
        learn(observed, {"value": {"id": 1}})
    news = [learn(observed, {"value": {"id": None}}) for _ in range(SAMPLE_EVERY)]
    assert news.count(True) == 1
    found = observed.current("shop", TOOL)
    assert found is not None
    assert found.count == FIRST_RESULTS + SAMPLE_EVERY


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    secrets=st.lists(
        st.text(string.ascii_letters + string.digits + "-_./+=", min_size=12, max_size=40),
        min_size=4,
        max_size=4,
    ),
    pin=st.integers(10**11, 10**17),
)
def test_no_value_is_ever_in_a_file(tmp_path: Path, secrets: list[str], pin: int) -> None:
    name, text, item, below = secrets
    token = "ghp_" + "".join(filter(str.isalnum, name)) + "7aB9" * 4
    files = Store(tmp_path)
    result = {"a": text, "b": [item, pin, {"c": below, "d": float(pin)}], token: text}
    for wire in (
        {"json": result},
        {"json": text},
        {"blocks": [{"json": item}, {"blob": {"mimeType": "x/y", "data": below, "uri": text}}]},
    ):
        memory = ShapeRecord(name="find", count=1).with_shape(shape_of(wire))
        assert add_shapes(files, [(SPEC, {version_digest(TOOL): memory})])
    for path in tmp_path.iterdir():
        content = path.read_bytes().decode("latin-1")
        assert not [secret for secret in (text, item, below, token, str(pin)) if secret in content]


def test_entries_show_what_was_seen_and_texts_that_must_not_change_do_not(tmp_path: Path) -> None:
    known = ToolInventory(open_shapes(tmp_path))
    known.reset({"shop": "Things"}, {"shop": (TOOL,)})
    settled, revision = known.initial_entries(), known.revision
    stub = known.stubs("shop", None)
    known.learn_result("shop", "find", {"parts": {"value": {"id": 1}}})
    known.learn_result("shop", "no such tool", {"parts": {"value": {"id": 1}}})
    known.learn_result("nowhere", "find", {"parts": {"value": {"id": 1}}})
    entry = known.entry("shop").tools[0]
    assert entry.observed == Observation(schema=ROW, count=1)
    assert (known.shape_revision, known.revision) == (1, revision)
    assert known.initial_entries() is settled
    assert settled[0].tools[0].observed is None
    assert known.stubs("shop", None) is not stub
    same = known.entries()
    known.learn_result("shop", "find", {"parts": {"value": {"id": 2}}})
    assert known.entries() is same
    assert known.shape_revision == 1


ROWS = ('[{"id": 1}]', '[{"id": 2}, {"id": 3}]', "[]", '[{"id": 4}]')


def learn_texts(directory: Path, *texts: str) -> Any:
    shapes = open_shapes(directory)
    for text in texts:
        learn(shapes, {"text": text})
    found = shapes.current("shop", TOOL)
    return found.schema if found is not None else None


@pytest.mark.parametrize(
    ("texts", "schema"),
    [
        (ROWS[:2], {}),
        (ROWS, {"type": "array", "items": ROW}),
        (('{"name": "app"}', "[1.10, 2]", '{"version": 1}'), {}),
        (('{"id": 1}', '{"id": 2}', "plain", '{"id": 3}'), {"type": "string"}),
        (("none", *ROWS), {"anyOf": [{"type": "string"}, {"type": "array", "items": ROW}]}),
    ],
)
def test_three_parsed_texts_teach_a_shape(
    tmp_path: Path, texts: tuple[str, ...], schema: dict[str, Any]
) -> None:
    assert learn_texts(tmp_path, *texts) == schema


async def test_a_tool_that_sent_several_texts_is_remembered(tmp_path: Path) -> None:
    first = open_shapes(tmp_path)
    assert not first.sends_several("shop", TOOL)
    blocks = [{"type": "text", "text": text} for text in ("a", "b")]
    learn(first, {"content": blocks, "several": True})
    await first.close()
    assert open_shapes(tmp_path).sends_several("shop", TOOL)
