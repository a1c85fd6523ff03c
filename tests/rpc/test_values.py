"""What a program gets for a tool's result."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.rpc.values import call_parts, prompt_value, resource_value, shape_value, tool_error


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"content": [_text("ignored")], "structuredContent": {"a": 1}}, {"json": {"a": 1}}),
        ({"content": [_text('{"a": [1]}')]}, {"json": {"a": [1]}}),
        ({"content": [_text(" [1, 2] ")]}, {"json": [1, 2]}),
        ({"content": [_text("007")]}, {"json": "007"}),
        ({"content": [_text("true")]}, {"json": "true"}),
        ({"content": [_text("{not json")]}, {"json": "{not json"}),
        ({"content": [_text('{"a": -Infinity}')]}, {"json": {"a": float("-inf")}}),
        ({"content": [_text("[" * 100_000)]}, {"json": "[" * 100_000}),
        ({"content": []}, {"json": []}),
        ({}, {"json": []}),
        (
            {"content": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}]},
            {"blob": {"mimeType": "image/png", "data": "aGk="}},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "f://x", "text": "[1]"}}]},
            {"json": [1]},
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "f://x", "blob": "aGk="}}]},
            {"blob": {"mimeType": "application/octet-stream", "data": "aGk=", "uri": "f://x"}},
        ),
        (
            {"content": [{"type": "resource_link", "uri": "f://x", "name": "x"}]},
            {"json": {"type": "resource_link", "uri": "f://x", "name": "x"}},
        ),
        (
            {"content": [_text("a"), _text("[1]"), "nonsense"]},
            {"blocks": [{"json": "a"}, {"json": [1]}]},
        ),
    ],
)
def test_a_result_becomes_plain_data(result: dict[str, Any], value: dict[str, Any]) -> None:
    assert shape_value(call_parts(result)) == value


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ({"content": [_text("no")]}, None),
        ({"isError": False, "content": [_text("no")]}, None),
        ({"isError": True, "content": [_text("no"), _text("way")]}, "no\nway"),
        ({"isError": True, "structuredContent": {"code": 7}}, '{"code": 7}'),
        (
            {"isError": True, "content": [{"type": "resource", "resource": {"text": "here"}}]},
            "here",
        ),
        (
            {"isError": True, "content": [{"type": "image", "data": "aGk="}]},
            "The tool reported an error without a text. `.content` has its blocks: image.",
        ),
        ({"isError": True, "content": []}, "The tool reported an error without saying which."),
    ],
)
def test_a_tools_error_is_told_apart(result: dict[str, Any], message: str | None) -> None:
    assert tool_error(result) == message


def test_a_long_error_is_cut_and_says_so() -> None:
    message = tool_error({"isError": True, "content": [_text("x" * (16_000 + 5))]})
    assert message is not None
    assert message.endswith("… (5 more characters)")


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([], {"json": []}),
        (None, {"json": []}),
        ([{"uri": "a:b", "text": "[1]"}], {"json": [1]}),
        ([{"uri": "a:b", "text": "[1]", "mimeType": "text/plain"}], {"json": "[1]"}),
        ([{"uri": "a:b", "text": "[1]", "mimeType": "text/markdown"}], {"json": "[1]"}),
        ([{"uri": "a:b", "text": "[1]", "mimeType": "application/json"}], {"json": [1]}),
        ([{"uri": "a:b", "text": "{}", "mimeType": "Application/X+JSON; q=1"}], {"json": {}}),
        ([{"uri": "a:b", "text": "7", "mimeType": "application/json"}], {"json": "7"}),
        ([{"uri": "a:b", "text": "{", "mimeType": "application/json"}], {"json": "{"}),
        (
            [{"uri": "a:b", "blob": "aGk=", "mimeType": "image/png"}],
            {"blob": {"mimeType": "image/png", "data": "aGk=", "uri": "a:b"}},
        ),
        ([{"text": "a"}, {"text": "b"}, 7], {"blocks": [{"json": "a"}, {"json": "b"}]}),
    ],
)
def test_a_resource_is_what_its_type_says(contents: Any, expected: Any) -> None:
    assert shape_value(resource_value({"contents": contents})) == expected


def test_a_prompt_s_texts_stay_as_they_are() -> None:
    resource = {"type": "resource", "resource": {"uri": "a:b", "text": "[1]"}}
    result = {
        "messages": [
            {"role": "user", "content": {"type": "text", "text": '{"a": 1}'}},
            {"role": "assistant", "content": {"type": "image", "data": "aGk="}},
            {"role": "user", "content": resource},
            {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": 7, "content": None},
            "junk",
        ]
    }
    assert prompt_value(result) == {
        "description": "",
        "messages": [
            {"role": "user", "content": {"json": '{"a": 1}'}},
            {
                "role": "assistant",
                "content": {"parts": {"content": [{"type": "image", "data": "aGk="}]}},
            },
            {"role": "user", "content": {"parts": {"content": [resource]}}},
            {"role": "", "content": {"blocks": [{"json": "a"}, {"json": "b"}]}},
            {"role": "", "content": {"blocks": []}},
        ],
    }
    assert prompt_value({"description": 1, "messages": {}}) == {"description": "", "messages": []}


@pytest.mark.parametrize(
    ("result", "wraps", "value"),
    [
        ({"content": [_text("3")], "structuredContent": {"result": 3}}, True, 3),
        ({"content": [_text("3")], "structuredContent": {"result": 3}}, False, {"result": 3}),
        ({"content": [_text("[1]")], "structuredContent": {"result": "[1]"}}, True, "[1]"),
        ({"structuredContent": {"result": 3, "b": 4}}, True, {"result": 3, "b": 4}),
        ({"content": [_text("[1]")], "structuredContent": {"content": "[1]"}}, False, "[1]"),
        ({"content": [_text("x")], "structuredContent": {"a": "y"}}, False, {"a": "y"}),
        ({"content": [], "structuredContent": {"content": ""}}, False, {"content": ""}),
    ],
)
def test_a_structure_that_wraps_or_repeats_is_what_is_in_it(
    result: dict[str, Any], wraps: bool, value: Any
) -> None:
    assert shape_value(call_parts(result, wraps=wraps)) == {"json": value}


def test_a_structure_that_lists_the_blocks_is_those_blocks() -> None:
    block = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    parts = call_parts({"content": [block], "structuredContent": {"content": [block]}})
    assert shape_value(parts) == {"blob": {"mimeType": "image/png", "data": "aGk="}}


@pytest.mark.parametrize("texts", [(), ("a",), ("a", "b")])
def test_a_tool_that_has_sent_several_texts_gives_lists(texts: tuple[str, ...]) -> None:
    parts = call_parts({"content": [_text(text) for text in texts]}, several=True)
    shapes = [{"json": text} for text in texts]
    assert shape_value(parts) == ({"blocks": shapes} if shapes else {"json": []})
