"""Tools pinned: what changed is told, and nothing passes for new that is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.gate import pins as pins_module
from bridge.gate.pins import MAX_DEFINITIONS, MAX_NAMED, MAX_PARAMETERS, Pins, tool_digest
from bridge.model import Json, Tool
from bridge.store import Store
from bridge.store import schema as schema_module

TOOL = Tool(
    server="git",
    name="push",
    description="Pushes.",
    input_schema={
        "type": "object",
        "properties": {"branch": {"type": "string"}, "force": {"type": "boolean"}},
        "required": ["branch"],
    },
    annotations={"readOnlyHint": True, "note": 1},
)


def _with(**properties: Json) -> Tool:
    schema = {**TOOL.input_schema, "properties": properties}
    return replace(TOOL, input_schema=schema)


@pytest.fixture
def file(tmp_path: Path) -> Store:
    """Where they are kept; its directory is not there yet."""
    return Store(tmp_path / "state")


def _write(store: Store, text: str) -> None:
    with store.writing() as kept:
        kept.put("pins", "", "", text.encode())


def _text(store: Store) -> str:
    with store.reading() as kept:
        return (kept.get("pins", "", "") or b"").decode()


def _remove(store: Store) -> None:
    for path in store.directory.glob("store.db*"):
        path.unlink()


async def test_a_tool_is_new_once_and_then_known_to_every_bridge(file: Store) -> None:
    """Also in a bridge that runs already."""
    first, other = Pins(file), Pins(file)
    assert first.change(TOOL) == other.change(TOOL) == ""
    await first.keep(TOOL)
    changed = replace(TOOL, description="Pushes harder.")
    for pins in (first, other, Pins(file)):
        assert pins.change(TOOL) == ""
        assert pins.change(changed) == "its description changed"
    assert "Pushes" not in _text(file)


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (replace(TOOL, title="Push"), "its title changed"),
        (replace(TOOL, output_schema={}), "its output schema changed"),
        (replace(TOOL, annotations={"readOnlyHint": True}), "its annotations changed"),
        (
            replace(TOOL, annotations={"readOnlyHint": False, "note": 1, "openWorldHint": True}),
            "readOnlyHint was true and is false; openWorldHint was not given and is true",
        ),
        (
            replace(TOOL, input_schema={**TOOL.input_schema, "required": []}),
            "its input schema changed beside parameters, such as in which it needs",
        ),
        (
            _with(branch={"type": ["string", "null"]}, to={}),
            (
                "of its parameters 'to' is new, 'force' is gone, "
                "'branch' was string and is string or null"
            ),
        ),
        (
            _with(branch={"type": "string", "title": "x"}, force={}),
            (
                "of its parameters 'branch' is described differently, "
                "'force' was boolean and is of no type"
            ),
        ),
        (
            _with(**{f"p{number}": {} for number in range(MAX_NAMED + 3)}),
            (
                "of its parameters 'p0' is new, 'p1' is new, 'p2' is new, 'p3' is new, "
                "'p4' is new and 5 more changed"
            ),
        ),
        (
            _with(**{f"p{number}": {} for number in range(MAX_PARAMETERS + 1)}),
            "its parameters changed",
        ),
    ],
)
async def test_what_changed_is_said_in_words(file: Store, tool: Tool, said: str) -> None:
    """By part, and of parameters by name; also after the file was read by another bridge."""
    await Pins(file).keep(TOOL)
    assert Pins(file).change(tool) == said


async def test_a_changed_tool_is_taken_for_what_it_is_only_for_good(file: Store) -> None:
    """An answer for one call, or one run, leaves the record as it was."""
    changed = replace(TOOL, description="Other.")
    pins = Pins(file)
    await pins.keep(TOOL)
    await pins.keep(changed)
    assert pins.change(changed) != ""
    assert Pins(file).change(changed) != ""
    await pins.keep(changed, anew=True)
    assert pins.change(changed) == Pins(file).change(changed) == ""


async def test_two_projects_may_use_two_versions_of_a_server(file: Store) -> None:
    """Both are as they were when they were allowed; of many the first is forgotten."""
    pins = Pins(file)
    versions = [replace(TOOL, description=str(number)) for number in range(MAX_DEFINITIONS + 1)]
    for version in versions:
        await pins.keep(version, anew=True)
    assert [bool(Pins(file).change(version)) for version in versions] == [
        True,
        *[False] * MAX_DEFINITIONS,
    ]


async def test_a_bridge_that_was_late_does_not_add_what_another_would_ask_about(
    file: Store,
) -> None:
    """Each saw a tool for the first time, and not the same."""
    late = Pins(file)
    assert late.change(TOOL) == ""
    other = replace(TOOL, description="Other.")
    await Pins(file).keep(other)
    await late.keep(TOOL)
    assert late.change(TOOL) == "its description changed"
    assert Pins(file).change(TOOL) == "its description changed"


async def test_of_two_bridges_at_the_same_moment_one_is_first(file: Store) -> None:
    """Neither knew of the other when it looked."""
    other = replace(TOOL, description="Other.")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Pins(file).keep, TOOL)
        tasks.start_soon(Pins(file).keep, other)
    assert sorted(bool(Pins(file).change(tool)) for tool in (TOOL, other)) == [False, True]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"form": 2, "servers": {}}',
        '{"form": 1, "servers": {"git": {"push": [{"digest": "x"}]}}}',
        '{"form": 1, "servers": 3}',
        "[" * 100_000,
    ],
)
async def test_a_damaged_record_makes_every_tool_one_to_ask_about(file: Store, text: str) -> None:
    """Until it is removed. Only what is allowed for good is known meanwhile."""
    _write(file, text)
    pins = Pins(file)
    assert "store.db" in pins.change(TOOL)
    assert str(file.directory) not in pins.change(TOOL)
    await pins.keep(TOOL)
    assert "cannot be read" in pins.change(TOOL)
    await pins.keep(TOOL, anew=True)
    assert pins.change(TOOL) == ""
    assert _text(file) == text
    _remove(file)
    assert pins.change(replace(TOOL, name="pull")) == ""


@pytest.mark.parametrize("damage", [b"no database", None])
async def test_a_damaged_database_is_a_damaged_record(file: Store, damage: bytes | None) -> None:
    """Whatever stands there, it is not nothing."""
    place = file.directory / "store.db"
    if damage is None:
        (place / "inside").mkdir(parents=True)
    else:
        file.directory.mkdir()
        place.write_bytes(damage)
    assert "cannot be read" in Pins(file).change(TOOL)


async def test_who_has_looked_asks_without_the_disk(
    file: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await Pins(file).keep(TOOL)
    pins = Pins(file)
    await pins.refresh(TOOL)
    monkeypatch.delattr(Store, "reading")
    assert pins.change(replace(TOOL, title="x")) == "its title changed"


async def test_a_full_record_forgets_nothing(file: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has no room in it is asked about."""
    monkeypatch.setattr(pins_module, "MAX_TOOLS", 2)
    pins = Pins(file)
    tools = [replace(TOOL, name=name) for name in ("a", "b", "c")]
    for tool in tools:
        await pins.keep(tool)
    assert [bool(Pins(file).change(tool)) for tool in tools] == [False, False, True]
    assert [bool(pins.change(tool)) for tool in tools] == [False, False, True]


async def test_what_cannot_be_written_is_remembered_by_this_bridge(
    file: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And written with the next."""
    monkeypatch.setattr(schema_module, "BUSY_SECONDS", 0.01)
    pins = Pins(file)
    with file.writing():
        await pins.keep(TOOL)
    assert not _text(file)
    assert pins.change(TOOL) == ""
    await pins.keep(replace(TOOL, name="pull"))
    assert list(json.loads(_text(file))["servers"]["git"]) == ["pull", "push"]


async def test_a_known_tool_costs_no_look_at_the_disk(file: Store) -> None:
    """It is called for every call."""
    pins = Pins(file)
    await pins.keep(TOOL)
    _remove(file)
    assert pins.change(TOOL) == ""
    await pins.keep(TOOL)
    assert not (file.directory / "store.db").exists()


async def test_without_a_file_nothing_is_remembered() -> None:
    """Nor does anything count as changed."""
    pins = Pins()
    await pins.keep(TOOL)
    assert pins.change(replace(TOOL, title="x")) == ""


def test_a_digest_is_of_everything_that_the_server_says_and_of_nothing_else() -> None:
    """In whatever order it says it; and it is worked out once for each definition."""
    again = replace(TOOL, input_schema=dict(sorted(TOOL.input_schema.items(), reverse=True)))
    assert tool_digest(again) == tool_digest(TOOL)
    assert tool_digest(replace(TOOL, server="other", name="x")) == tool_digest(TOOL)
    assert tool_digest(replace(TOOL, title="x")) != tool_digest(TOOL)
    before = len(pins_module._digests)
    mine = replace(TOOL, title="y")
    assert tool_digest(mine) is tool_digest(mine)
    assert len(pins_module._digests) == before + 1
    del mine
    assert len(pins_module._digests) == before


A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"


async def test_a_tool_belongs_to_its_servers_definition_and_not_to_its_name(file: Store) -> None:
    changed = replace(TOOL, description="Pushes elsewhere.")
    pins = Pins(file)
    await pins.keep(TOOL, A)
    assert pins.change(changed, A) == "its description changed"
    assert pins.change(changed, B) == ""
    renamed = replace(TOOL, server="hub")
    assert pins.change(replace(changed, server="hub"), A) == "its description changed"
    assert Pins(file).change(renamed, A) == ""


async def test_a_server_is_new_once_and_another_definition_is_not(file: Store) -> None:
    pins, other = Pins(file), Pins(file)
    assert pins.redefined("git", A) == other.redefined("git", B) == ""
    await pins.keep_server("git", A)
    assert pins.redefined("git", A) == ""
    # Another bridge was first, and what this one knew was from before.
    await other.keep_server("git", B)
    for each in (pins, other, Pins(file)):
        said = each.redefined("git", B)
        assert "another definition" in said
        assert A[:19] in said
        assert B[:19] in said
        assert not each.approved("git", A)
    await other.keep_server("git", B, always=True)
    for each in (pins, other, Pins(file)):
        assert each.redefined("git", A) == each.redefined("git", B) == ""
        assert (each.approved("git", A), each.approved("git", B)) == (False, True)
    assert pins.redefined("hub", B) == ""


async def test_two_bridges_that_start_two_definitions_at_once_do_not_both_pin(file: Store) -> None:
    one, two = Pins(file), Pins(file)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one.keep_server, "git", A)
        tasks.start_soon(two.keep_server, "git", B)
    found = [one.redefined("git", A), two.redefined("git", B)]
    assert sorted(map(bool, found)) == [False, True]


async def test_with_a_file_that_cannot_be_read_no_definition_passes_for_new(file: Store) -> None:
    _write(file, "{")
    pins = Pins(file)
    assert "cannot be read" in pins.redefined("git", A)
    await pins.keep_server("git", A)
    assert "cannot be read" in pins.redefined("git", A)
    await pins.keep_server("git", A, always=True)
    assert pins.redefined("git", A) == ""


async def test_servers_that_there_is_no_room_for_are_asked_about(
    file: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pins_module, "MAX_SERVERS", 1)
    monkeypatch.setattr(pins_module, "MAX_SERVER_DEFINITIONS", 2)
    pins = Pins(file)
    await pins.keep_server("git", A)
    assert "1 servers" in pins.redefined("hub", A)
    for digest in (B, f"sha256:{'c' * 64}"):
        await pins.keep_server("git", digest, always=True)
    assert "another definition" in Pins(file).redefined("git", A)
    assert Pins(file).redefined("git", B) == ""
