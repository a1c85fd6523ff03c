"""Values of tools' results: plain Python values that have their parts next to them."""

from __future__ import annotations

import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.entries import Observation, ToolEntry, call_signature
from bridge.catalog.shapes import merge_shapes, schema, shape_of
from bridge.guest.api.arguments import BoundParameters
from bridge.guest.api.results import from_wire
from bridge.guest.api.values import Blob, MCPError, to_json
from bridge.model import Tool
from bridge.rpc.values import call_parts, shape_value
from tests.golden_texts import assert_golden

PICTURE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
LINK = {"type": "resource_link", "uri": "file:///big.csv", "name": "big.csv"}
NOTES = {"uri": "repo://a.md", "mimeType": "text/markdown", "text": "[1]"}
EMBEDDED = {"type": "resource", "resource": NOTES, "annotations": {"priority": 1}}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def value_of(result: dict[str, Any], **options: bool) -> Any:
    from bridge.guest.api.client import parse_json

    return from_wire(parse_json(json.dumps(call_parts(result, **options))), subject="s.t")


def value_of_text(content: str) -> Any:
    return value_of({"content": [text(content)]})


SHAPES: dict[str, tuple[dict[str, Any], Any]] = {
    "text": ({"content": [text("hello\nworld")]}, "hello\nworld"),
    "JSON": ({"content": [text('{"n": 1.10, "a": 1, "a": 2}')]}, {"n": 1.1, "a": 2}),
    "list": ({"content": [text("['a', 'b']")]}, ["a", "b"]),
    "structure": ({"content": [text('{"a": 1}')], "structuredContent": {"a": 1}}, {"a": 1}),
    "repeated text": ({"content": [text("x")], "structuredContent": {"content": "x"}}, "x"),
    "repeated blocks": (
        {"content": [PICTURE], "structuredContent": {"content": [PICTURE]}},
        Blob("image/png", b"hi"),
    ),
    "picture": ({"content": [PICTURE]}, Blob("image/png", b"hi")),
    "text and picture": ({"content": [text("shot"), PICTURE]}, ["shot", Blob("image/png", b"hi")]),
    "link": ({"content": [LINK]}, LINK),
    "resource": ({"content": [EMBEDDED]}, "[1]"),
    "nothing": ({"content": []}, []),
}

PROGRAM = (
    *("len(r)", "[*r][:2]", "'a' in r", "r[0]", "r.content[0].type", "json.loads(r)"),
    *("str(r)", "write_file(r)", "send(r)"),
)
"""Expressions that models write with a result `r`."""


def use(result: dict[str, Any], file: Path) -> list[str]:
    """Return each expression's value or error, and the signature of a tool with such results."""

    def write_file(value: Any) -> str:
        file.write_text(value)
        return file.read_text()

    def send(value: Any) -> Any:
        return BoundParameters("s.t", FILE).bind((), {"content": value})["content"]

    found = []
    for program in PROGRAM:
        names = {"r": value_of(result), "json": json, "write_file": write_file, "send": send}
        try:
            found.append(repr(eval(program, names)))
        except Exception as error:
            found.append(type(error).__name__)
    shape = schema(merge_shapes(*[shape_of(shape_value(call_parts(result)))] * 3))
    tool = Tool(server="s", name="t", description="", input_schema={"type": "object"})
    entry = ToolEntry(tool=tool, alias="t", observed=Observation(schema=shape, count=3))
    return [*found, call_signature("s", entry)]


def test_programs_that_models_write_say_what_they_must(tmp_path: Path) -> None:
    texts = {name: use(result, tmp_path / "file") for name, (result, _) in SHAPES.items()}
    assert_golden(Path(__file__).with_name("results.json"), texts)


@pytest.mark.parametrize(("result", "value"), SHAPES.values(), ids=SHAPES)
def test_a_value_is_equal_to_a_plain_one_and_has_the_parts_of_its_result(
    result: dict[str, Any], value: Any
) -> None:
    found = value_of({**result, "_meta": {"cost": 1}})
    assert found == value
    assert found.content == found["content"] == result["content"]
    assert [block.type for block in found.content] == [block["type"] for block in result["content"]]
    assert found.structuredContent == found.structured_content == result.get("structuredContent")
    assert (found.isError, found.meta, found.get("meta")) == (False, {"cost": 1}, {"cost": 1})
    texts = [block.text for block in found.content if block.type in ("text", "resource")]
    assert found.text == found["text"] == "\n".join(texts)
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert (again, again.content) == (value, result["content"])


@pytest.mark.parametrize("number", [5, 2.5])
def test_a_number_that_was_wrapped_is_a_number_with_parts(number: float) -> None:
    result = {"content": [text(str(number))], "structuredContent": {"result": number}}
    found = value_of(result, wraps=True)
    assert (found, found + 1, json.dumps(found)) == (number, number + 1, str(number))
    assert found["content"][0]["text"] == found.text == str(number)
    assert found.structuredContent == {"result": number}
    assert to_json(found) == number


@pytest.mark.parametrize("value", [None, True])
def test_none_and_booleans_have_no_parts(value: Any) -> None:
    assert value_of({"structuredContent": {"result": value}}, wraps=True) is value


def test_the_content_that_repeats_a_text_reads_like_that_text() -> None:
    structure = {"content": "a\nb"}
    content = value_of({"content": [text("a\nb")], "structuredContent": structure}).content
    assert (content.splitlines(), content + "c", content[0].text) == (["a", "b"], "a\nbc", "a\nb")
    assert BoundParameters("s.t", FILE).bind((), {"content": content}) == {"content": "a\nb"}


def test_the_servers_own_keys_win_over_the_parts() -> None:
    found = value_of({"content": [text("shown")], "structuredContent": {"text": 1, "meta": 2}})
    assert (found.text, found["text"], found.get("text"), found.meta) == (1, 1, 1, 2)
    assert [*found] == ["text", "meta"]
    assert len(found) == 2
    assert "content" not in found
    assert json.loads(json.dumps(found)) == {"text": 1, "meta": 2}


def test_a_value_parsed_from_a_text_answers_what_only_a_text_has() -> None:
    found = value_of_text('{"a": 1,\n "b": 2}\n')
    assert found.splitlines() == ['{"a": 1,', ' "b": 2}']
    assert (found.strip()[-1], found.startswith("{"), found[:4]) == ("}", True, '{"a"')
    assert value_of_text("[1,\n2]").splitlines() == ["[1,", "2]"]
    with pytest.raises(AttributeError, match="no key 'title'"):
        _ = found.title


@pytest.mark.parametrize(
    ("content", "structure", "shown"),
    [
        ([text('{"a": 1}')], {"a": 1}, "{'a': 1}"),
        ([text('{"a": 1, "b": null}')], {"a": 1}, "{'a': 1}"),
        ([text("[1]")], {"items": [1]}, "{'items': [1]}"),
        ([text("1"), text("2")], {"items": [1, 2]}, "{'items': [1, 2]}"),
        ([text("Two found.")], {"n": 2}, "{'n': 2}\nTwo found."),
        ([PICTURE], {"n": 2}, "{'n': 2}\n<Blob image/png, 2 bytes>"),
        ([LINK], {"n": 2}, f"{{'n': 2}}\n{LINK}"),
    ],
)
def test_print_shows_what_the_structure_does_not_repeat(
    content: list[Any], structure: Any, shown: str
) -> None:
    found = value_of({"content": content, "structuredContent": structure})
    assert str(found) == shown
    assert repr(found) == repr(structure)


def test_a_resource_keeps_its_address_its_type_and_its_annotations() -> None:
    found = value_of({"content": [text("ok"), EMBEDDED]})
    assert (found[1], found[1].uri, found[1].mime_type) == ("[1]", "repo://a.md", "text/markdown")
    assert found[1].annotations == {"priority": 1}
    assert found.content[1].text == "[1]"
    assert found.content[1].uri == "repo://a.md"
    binary = {"type": "resource", "resource": {"uri": "a:b", "blob": "aGk=", "mimeType": "x/y"}}
    blob = value_of({"content": [binary]})
    assert (blob.uri, blob.data) == ("a:b", b"hi")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("+/+/", b"\xfb\xff\xbf"),
        ("-_-_", b"\xfb\xff\xbf"),
        ("aGk", b"hi"),
        ("aG\nk=", b"hi"),
        ("data:image/png;base64,aGk=", b"hi"),
    ],
)
def test_binary_content_is_read_in_every_spelling_of_base64(data: str, expected: bytes) -> None:
    assert value_of({"content": [{**PICTURE, "data": data}]}).data == expected


def test_binary_content_that_cannot_be_read_leaves_the_other_blocks() -> None:
    found = value_of({"content": [text("shot"), {**PICTURE, "data": "?"}]})
    assert found[0] == "shot"
    assert repr(found[1]) == "<Blob image/png, unreadable>"
    with pytest.raises(MCPError, match=r"s\.t sent binary content that is not base64"):
        _ = found[1].data
    assert found[1].content[0].data == "?"


def test_numbers_that_json_lacks_are_floats() -> None:
    found = value_of({"content": [], "structuredContent": {"a": math.nan, "b": [math.inf]}})
    assert math.isnan(found.a)
    assert found.b == [math.inf]


FILE = {
    "type": "object",
    "properties": {
        "content": {"type": "string"},
        "files": {"type": "array", "items": {"$ref": "#/$defs/file"}},
        "data": {"type": ["string", "object"]},
    },
    "$defs": {"file": {"type": "object", "properties": {"text": {"type": "string"}}}},
}


@pytest.mark.parametrize("source", ['{"n": 1.10, "a": 1, "a": 2}\n', "['a']\n", "[1,  2]", "x"])
def test_a_file_that_is_read_and_written_back_is_unchanged(source: str) -> None:
    value = value_of_text(source)
    bound = BoundParameters("s.t", FILE).bind((), {"content": value, "files": [{"text": value}]})
    assert bound == {"content": source, "files": [{"text": source}]}


def test_a_value_that_the_schema_takes_itself_is_sent_as_it_is() -> None:
    bound = BoundParameters("s.t", FILE).bind((), {"data": value_of_text('{"a": 1.10}')})
    assert bound == {"data": {"a": 1.1}}


@given(st.text(max_size=60))
def test_any_text_is_what_the_server_sent(content: str) -> None:
    found = value_of_text(content)
    assert found.text == found.content[0].text == content
    if isinstance(found, str):
        assert (found, str(found), found[1:]) == (content, content, content[1:])
