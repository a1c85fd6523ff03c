from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given

from bridge.catalog.docs import example_call
from bridge.catalog.entries import MAX_SIGNATURE_CHARS, ServerEntry, ToolEntry, signature
from bridge.guest.schema.typetext import Names, TypeWriter
from bridge.model import Tool
from tests.schema_strategies import ANY_SCHEMA


def type_text(schema: Any, budget: int = 160) -> str:
    return TypeWriter(schema, "", Names(inline=budget), results=True).write(schema)


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "string"}, "str"),
        ({"type": "number"}, "float"),
        ({"type": "null"}, "None"),
        ({"type": ["string", "null"]}, "str | None"),
        ({"type": ["null", "string", "string"]}, "str | None"),
        ({"type": "array"}, "list"),
        ({"type": "array", "items": {"type": "string"}}, "list[str]"),
        ({"items": {"type": "boolean"}}, "list[bool]"),
        (
            {"type": "array", "prefixItems": [{"type": "number"}, {"type": "string"}]},
            "tuple[float, str]",
        ),
        ({"type": "object"}, "dict"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"type": "object", "additionalProperties": {"type": "oddity"}}, "dict"),
        ({"additionalProperties": False}, "dict"),
        (PERSON, "{'name': str, 'age'?: int}"),
        ({"type": "array", "items": PERSON}, "list[{'name': str, 'age'?: int}]"),
        ({"enum": ["a", "b"]}, "Literal['a', 'b']"),
        ({"enum": ["a", None]}, "Literal['a'] | None"),
        ({"enum": [1.5, 2.5]}, "float"),
        ({"enum": [{"a": 1}, [2], None]}, "dict | list | None"),
        ({"enum": ["x" * 100, "y"]}, "str"),
        ({"enum": [None]}, "None"),
        ({"enum": [object()]}, "Any"),
        ({"enum": [], "type": "string"}, "str"),
        ({"const": True}, "Literal[True]"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "int | None"),
        ({"oneOf": [{"type": "null"}, {"type": "array", "items": {}}]}, "list | None"),
        ({"anyOf": [{"type": "integer"}, {}]}, "Any"),
        ({"type": "string", "nullable": True}, "str | None"),
        ({"type": ["string", "null"], "nullable": True}, "str | None"),
        ({"allOf": [PERSON, {"properties": {"id": {"type": "integer"}}, "required": ["id"]}]},
         "{'name': str, 'age'?: int, 'id': int}"),
        ({"allOf": [{"anyOf": [{"type": "integer"}, {"type": "null"}]}]}, "int | None"),
        ({"allOf": [{"type": "string"}], "description": "x"}, "str"),
        ({"type": "object", "properties": {"x" * 101: {}}}, "dict"),
        (
            {"type": "object", "properties": {"x" * 101: {}, "a": {"type": "string"}}},
            "{'a'?: str, ...}",
        ),
        (True, "Any"),
        (False, "Any"),
        ({}, "Any"),
        (None, "Any"),
        ("string", "Any"),
        ([], "Any"),
        ({"type": {"a": 1}}, "Any"),
    ],
)  # fmt: skip
def test_a_schema_is_told_as_a_python_type(schema: Any, text: str) -> None:
    assert type_text(schema) == text


def test_an_enum_with_many_values_shows_that_there_are_more() -> None:
    text = type_text({"enum": list(range(30))})
    assert text == "Literal[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ...]"


def test_a_union_with_too_many_members_is_any() -> None:
    branches = [{"const": number} for number in range(30)]
    assert type_text({"anyOf": branches}) == "Any"


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("#/$defs/person", "{'name': str, 'age'?: int}"),
        ("#/$defs/list/0", "str"),
        ("#/$defs/list/7", "Any"),
        ("#/$defs/list/x", "Any"),
        ("#/$defs/a~1b~0c%25", "int"),
        ("#/$defs/nothing", "Any"),
        ("https://example.com/schema", "Any"),
        ("#/$defs/" + "x" * 1_000, "Any"),
    ],
)
def test_a_reference_is_followed_within_the_document(reference: str, text: str) -> None:
    document = {
        "$ref": reference,
        "$defs": {"person": PERSON, "list": [{"type": "string"}], "a/b~c%": {"type": "integer"}},
    }
    assert type_text(document) == text


def test_a_cycle_ends_where_it_closes() -> None:
    node = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "children": {"items": {"$ref": "#/$defs/n"}}},
    }
    document = {"$ref": "#/$defs/n", "$defs": {"n": node}}
    assert type_text(document) == "{'name'?: str, 'children'?: list}"
    assert type_text({"$ref": "#"}) == "Any"
    chain = {f"r{n}": {"$ref": f"#/$defs/r{n + 1}"} for n in range(50)}
    assert type_text({"$ref": "#/$defs/r0", "$defs": chain}) == "Any"
    loop = {"allOf": [{"$ref": "#"}], "properties": {"a": {"type": "string"}}}
    assert type_text(loop) == "{'a'?: str}"


def test_references_that_multiply_take_bounded_work() -> None:
    defs: dict[str, Any] = {"l0": {"type": "string"}}
    for level in range(1, 30):
        reference = {"$ref": f"#/$defs/l{level - 1}"}
        defs[f"l{level}"] = {"anyOf": [reference] * 10, "allOf": [reference] * 10}
    document = {"$ref": "#/$defs/l29", "$defs": defs}
    assert len(type_text(document)) < 1_000


def test_detail_is_dropped_until_the_text_fits() -> None:
    schema = {
        "type": "object",
        "properties": {f"field_{n}": {"type": "array", "items": PERSON} for n in range(4)},
    }
    assert type_text(schema, budget=150) == (
        "{'field_0'?: list[dict], 'field_1'?: list[dict], 'field_2'?: list[dict], "
        "'field_3'?: list[dict]}"
    )
    assert type_text(schema, budget=20) == "dict"
    assert type_text({"enum": ["a", "b"]}, budget=3) == "str"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, '"..."'),
        ({"type": ["integer", "null"]}, "1"),
        ({"type": "number"}, "1.0"),
        ({"type": "boolean"}, "True"),
        ({"type": "array", "items": {"type": "string"}}, "[...]"),
        ({"type": "object"}, "{...}"),
        ({"enum": ["open", "closed"]}, "'open'"),
        ({"enum": ["it's, [x]", "y"]}, '"it\'s, [x]"'),
        ({"const": 3}, "3"),
        ({"$ref": "#/$defs/mode"}, "'r'"),
        ({}, "..."),
    ],
)
def test_an_example_value_fits_the_parameters_type(schema: Any, value: str) -> None:
    document = {
        "properties": {"p": schema},
        "required": ["p"],
        "$defs": {"mode": {"enum": ["r", "w"]}},
    }
    assert example(document) == f"await mcp_s.t(p={value})"


def example(document: Any) -> str:
    tool = Tool(server="s", name="t", input_schema=document)
    return example_call(ServerEntry(name="s", alias="s"), ToolEntry(tool=tool, alias="t"))


@given(schema=ANY_SCHEMA)
def test_no_json_makes_it_fail(schema: Any) -> None:
    assert type_text(schema)
    type_text(schema, budget=0).encode()
    assert example({"properties": {"p": schema}, "required": ["p"]})
    result = schema if isinstance(schema, dict) else None
    text = signature(Tool(server="s", name="t", input_schema=schema, output_schema=result), "t")
    assert len(text) <= MAX_SIGNATURE_CHARS
    assert len(text.encode().splitlines()) == 1


def test_nesting_as_deep_as_a_parser_allows_is_read() -> None:
    schema: Any = {"type": "string"}
    for _ in range(20_000):
        schema = {"type": "array", "items": schema, "allOf": [schema], "anyOf": [schema]}
    assert type_text(schema)
