"""Required arguments that have a default: optional for a program, and sent at every depth."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.entries import ServerEntry, ToolEntry, call_signature, tool_entries, tool_stub
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.expected_calls import expected_calls
from bridge.catalog.program.parsing import parse
from bridge.catalog.program.survey import Survey
from bridge.guest.api.arguments import BoundParameters
from bridge.model import Json, Tool

MODE = {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
OPTIONS = {"type": "object", "properties": {"mode": MODE}, "required": ["mode"]}
LEAVES: list[tuple[Json, Json]] = [
    ({"type": "string"}, "x"),
    ({"type": "integer", "minimum": 2}, 3),
    ({"enum": ["a", None]}, "a"),
    ({"type": ["boolean", "null"]}, None),
]
MISFIT = [["fits nothing"]]


@st.composite
def shapes(draw: st.DrawFn, definitions: dict[str, Json], depth: int = 0) -> tuple[Json, Json]:
    """Draw a schema, and a value that lacks none but keys that are optional or have a default."""
    kind = draw(st.sampled_from(["object", "leaf", "array"])) if depth else "object"
    if kind == "leaf" or depth > 3:
        return draw(st.sampled_from(LEAVES))
    inner = shapes(definitions, depth + 1)
    if kind == "array":
        schema, value = draw(inner)
        return {"type": "array", "items": schema}, [value] * draw(st.integers(0, 2))
    properties: dict[str, Json] = {}
    required, value = [], {}
    for name in draw(st.lists(st.sampled_from("abcd"), unique=True)):
        own, item = draw(inner)
        how = draw(st.sampled_from(["required", "optional", "default", "misfit"]))
        default = {"default": {"default": item, "misfit": MISFIT}.get(how)}
        properties[name] = {**own, **default} if default["default"] is not None else own
        if how != "optional":
            required.append(name)
        if how in ("required", "misfit") or default["default"] is None or draw(st.booleans()):
            value[name] = item
    parts = {"properties": properties}, {"required": required}
    schema = {"type": "object", **parts[0], **parts[1]}
    match draw(st.sampled_from(["plain", "ref", "allOf", "anyOf"])):
        case "ref":
            definitions[(name := f"d{len(definitions)}")] = schema
            schema = {"$ref": f"#/$defs/{name}"}
        case "allOf":
            schema = {"allOf": [*parts]}
        case "anyOf" if depth:
            schema = {"anyOf": [{"const": "never"}, schema, draw(inner)[0]]}
    return schema, value


@st.composite
def tools(draw: st.DrawFn) -> tuple[dict[str, Json], dict[str, Json]]:
    definitions: dict[str, Json] = {}
    schema, value = draw(shapes(definitions))
    return {**schema, "$defs": definitions}, value


def _within(part: Json, whole: Json) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and _within(item, whole[name]) for name, item in part.items())
    if isinstance(part, list) and isinstance(whole, list) and len(part) == len(whole):
        return all(map(_within, part, whole))
    return bool(part == whole)


@given(tools())
def test_what_lacks_only_defaults_is_accepted_and_sent_whole(
    tool: tuple[dict[str, Json], dict[str, Json]],
) -> None:
    schema, arguments = tool
    sent = BoundParameters("t", schema).bind((), arguments)
    jsonschema.validate(sent, schema)
    assert _within(arguments, sent)
    assert BoundParameters("t", schema).bind((), sent) == sent


@given(tools(), st.data())
def test_whatever_is_accepted_is_valid_as_it_is_sent(
    tool: tuple[dict[str, Json], dict[str, Json]], data: st.DataObject
) -> None:
    schema, arguments = tool
    holder = damaged = json.loads(json.dumps(arguments))
    while isinstance(holder, dict) and holder:
        name = data.draw(st.sampled_from(sorted(holder)))
        if not isinstance(holder[name], dict) or data.draw(st.booleans()):
            del holder[name]
            break
        holder = holder[name]
    try:
        sent = BoundParameters("t", schema).bind((), damaged)
    except TypeError:
        return
    jsonschema.validate(sent, schema)


@pytest.mark.parametrize(
    ("arguments", "schema", "sent"),
    [
        ({}, OPTIONS, {"mode": "fast"}),
        ({"mode": None}, OPTIONS, {"mode": "fast"}),
        ({"mode": "slow"}, OPTIONS, {"mode": "slow"}),
        ({}, {"properties": {"o": OPTIONS}}, {}),
        ({"o": {}}, {"properties": {"o": OPTIONS}}, {"o": {"mode": "fast"}}),
        ({}, {"properties": {"o": {**OPTIONS, "default": {}}}, "required": ["o"]},
         {"o": {"mode": "fast"}}),
        ({"o": [{}, {"mode": "slow"}]},
         {"properties": {"o": {"type": "array", "items": {"$ref": "#/$defs/o"}}},
          "$defs": {"o": OPTIONS}}, {"o": [{"mode": "fast"}, {"mode": "slow"}]}),
        ({"o": {"x": {}}},
         {"properties": {"o": {"type": "object", "additionalProperties": OPTIONS}}},
         {"o": {"x": {"mode": "fast"}}}),
        ({"o": {}}, {"properties": {"o": {"anyOf": [{"type": "string"}, OPTIONS]}}},
         {"o": {"mode": "fast"}}),
        ({}, {"properties": {"m": {"$ref": "#/$defs/m"}}, "required": ["m"],
              "$defs": {"m": MODE}}, {"m": "fast"}),
        ({}, {"properties": {"m": {"anyOf": [MODE, {"type": "null"}]}}, "required": ["m"]},
         {"m": "fast"}),
        ({}, {"properties": {"m": MODE}}, {}),
        ({"o": [{}]},
         {"properties": {"o": {"anyOf": [{"type": "array", "items": OPTIONS, "default": [{}]}]}}},
         {"o": [{"mode": "fast"}]}),
    ],
)  # fmt: skip
def test_a_default_is_sent_wherever_its_object_is(
    arguments: dict[str, Json], schema: Json, sent: Json
) -> None:
    assert BoundParameters("t", schema).bind((), arguments) == sent


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"url": {"type": "string"}, "mode": MODE, "query": OPTIONS},
    "required": ["url", "mode"],
}
ENTRY = ToolEntry(tool=Tool(server="s", name="t", input_schema=SCHEMA), alias="t")


def test_signature_stub_and_help_show_the_default() -> None:
    shown = "mode: Literal['fast', 'slow'] = 'fast'"
    assert shown in call_signature("s", ENTRY)
    assert "'mode'?: Literal['fast', 'slow']" in call_signature("s", ENTRY)
    assert shown in str(BoundParameters("t", SCHEMA).signature())
    stub = tool_stub(ENTRY)
    assert shown in stub
    assert "mode: NotRequired[Literal['fast', 'slow']]  # default 'fast'" in stub


def test_results_that_always_have_a_key_say_so_whatever_its_default() -> None:
    tool = Tool(server="s", name="t", output_schema=OPTIONS)
    assert "'mode': Literal" in call_signature("s", ToolEntry(tool=tool, alias="t"))
    assert "NotRequired" not in tool_stub(ToolEntry(tool=tool, alias="t")).partition("class ")[2]


@pytest.mark.parametrize(
    ("code", "sent"),
    [
        ("mcp_s.t('u')", {"url": "u", "mode": "fast"}),
        ("mcp_s.t('u', query={})", {"url": "u", "mode": "fast", "query": {"mode": "fast"}}),
    ],
)
def test_the_check_before_a_run_and_its_plan_see_what_is_sent(code: str, sent: Json) -> None:
    tree = parse(f"await {code}")
    server = ServerEntry(name="s", alias="s", tools=tool_entries([ENTRY.tool]), known=True)
    survey = Survey(tree)  # type: ignore[arg-type]
    assert not check_program(survey, [server], {"s": "s"}).certain
    (call,) = expected_calls(survey, [server]).calls
    assert call.arguments == sent
