"""Shapes learnt from results: what they say, that order does not matter, that no value is in."""

from __future__ import annotations

import json
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog import shapes
from bridge.catalog.shapes import (
    MAX_DEPTH,
    MAX_FIELDS,
    MAX_NODES,
    NOTHING,
    Shape,
    from_schema,
    merge_shapes,
    prune_shape,
    schema,
    shape_of,
    shown,
)

SCALARS: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
)

KEYS = st.sampled_from(["id", "name", "createdAt", "2024-01-01", "a/b", "42"]) | st.text(
    string.ascii_lowercase, min_size=1, max_size=2
)

VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda below: (
        st.lists(below, max_size=4)
        | st.dictionaries(KEYS, below, max_size=5)
        | st.dictionaries(st.text(string.ascii_lowercase, min_size=2, max_size=2), below)
    ),
    max_leaves=25,
)

WIRES: st.SearchStrategy[dict[str, Any]] = st.builds(lambda value: {"json": value}, VALUES)
RESULTS: st.SearchStrategy[dict[str, Any]] = (
    WIRES
    | st.just({"blob": {"mimeType": "image/png", "data": "aGk="}})
    | st.builds(lambda blocks: {"blocks": blocks}, st.lists(WIRES, min_size=2, max_size=4))
)


def learn(*values: Any) -> dict[str, Any]:
    return schema(merge_shapes(*(shape_of({"json": value}) for value in values)))


def wide(*names: str) -> Shape:
    return shape_of({"json": dict.fromkeys(names, 1)})


def test_an_object_that_is_always_alike_has_required_fields() -> None:
    assert learn({"id": 1, "name": "x"}, {"id": 2, "name": "y"}) == {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
        "required": ["id", "name"],
    }


def test_what_is_sometimes_missing_is_optional_and_what_is_sometimes_null_says_so() -> None:
    assert learn({"id": 1, "body": None}, {"id": 2.5, "body": "x", "tag": "t"}) == {
        "type": "object",
        "properties": {
            "body": {"type": ["null", "string"]},
            "id": {"type": "number"},
            "tag": {"type": "string"},
        },
        "required": ["body", "id"],
    }


def test_readers_are_not_told_that_a_field_is_always_null() -> None:
    shape = shape_of({"json": [{"id": 1, "reason": None}, {"id": None, "reason": None}]})
    assert shown(shape)["items"] == {
        "type": "object",
        "properties": {"id": {"type": ["null", "integer"]}, "reason": {}},
        "required": ["id", "reason"],
    }
    assert schema(shape)["items"]["properties"]["reason"] == {"type": "null"}
    assert shown(shape_of({"json": None})) == {"type": "null"}


def test_the_items_of_an_empty_list_are_unknown_until_some_are_seen() -> None:
    assert learn([]) == {"type": "array"}
    assert learn([], [1], []) == {"type": "array", "items": {"type": "integer"}}


def test_different_kinds_at_one_place_are_a_union() -> None:
    assert learn("none", [{"id": 1}]) == {
        "anyOf": [
            {"type": "string"},
            {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"id": {"type": "integer"}},
                    "required": ["id"],
                },
            },
        ]
    }


@pytest.mark.parametrize(
    "key",
    [
        "2024-01-01",
        "12",
        "user_12345",
        "src/main.py",
        "README.md",
        "a@b.org",
        "Jane Doe",
        "550e8400-e29b-41d4-a716-446655440000",
        "deadbeefcafe",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "AKIAIOSFODNN7EXAMPLE",
        "dGhpcyBpcyBhIHRlc3Q",
        "zQ3shokFTS3brHcDQrn82RUDfC",
        "k" * 60,
        "",
    ],
)
def test_a_key_that_is_data_is_not_kept(key: str) -> None:
    found = learn({key: 1, "total": 2})
    assert found["additionalProperties"] == {"type": "integer"}
    assert [*found["properties"]] == ["total"]


@pytest.mark.parametrize(
    "key",
    [
        *("id", "createdAt", "html_url", "_id", "@type", "$ref", "xs:element", "sha256", "名前"),
        *("X-Rate-Limit-Remaining", "API_KEY_ID", "maxRetriesPerRequest", "isOAuth", "__typename"),
        *("password", "access_token", "numberOfDocumentsProcessed"),
    ],
)
def test_a_key_that_is_a_name_is_kept(key: str) -> None:
    assert [*learn({key: 1})["properties"]] == [key]


def test_an_object_with_very_many_names_is_a_map_and_stays_one() -> None:
    names = [f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"][: MAX_FIELDS + 1]
    once, apart = wide(*names), merge_shapes(*(wide(name) for name in names))
    later, earlier = merge_shapes(once, wide("zz")), merge_shapes(wide("zz"), once)
    assert later == earlier
    expected = {"type": "object", "additionalProperties": {"type": "integer"}}
    assert schema(once) == schema(apart) == schema(later) == expected
    assert "properties" in schema(wide(*names[:-1]))


def test_a_new_name_beside_keys_that_are_data_is_news() -> None:
    shape = shape_of({"json": {"total": 1, "2024-01-01": 1}})
    assert merge_shapes(shape, shape_of({"json": {"total": 1, "2024-01-02": 2}})) == shape
    assert merge_shapes(shape, shape_of({"json": {"2024-01-02": 2, "page": 3}})) != shape


def test_what_lies_too_deep_is_only_there() -> None:
    value: Any = "leaf"
    for _ in range(MAX_DEPTH + 3):
        value = [value]
    text = json.dumps(learn(value))
    assert text.count("array") == MAX_DEPTH + 1
    assert "string" not in text


def test_a_large_result_is_only_sampled() -> None:
    """The bound is on values; the names of an object's other fields still count."""
    rows = [{"id": n, "list": [*range(15)]} for n in range(100_000)]
    found = learn({"rows": rows, "total": 3})
    assert found["required"] == ["rows", "total"]
    assert found["properties"]["rows"]["items"]["required"] == ["id", "list"]
    look = shapes._Look()
    look.shape_of({"json": {str(n): n for n in range(100_000)}})
    assert look.left == 0 < MAX_NODES


def test_binary_content_and_several_blocks_are_told_apart() -> None:
    blob: dict[str, Any] = {"blob": {"mimeType": "image/png", "data": "aGk="}}
    assert schema(shape_of(blob)) == {"title": "Blob"}
    assert schema(shape_of({"blocks": [{"json": "a note"}, blob]})) == {
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, {"title": "Blob"}]},
    }


def test_a_pruned_shape_keeps_its_top() -> None:
    shape = shape_of({"json": {"rows": [{"id": 1}], "total": 1}})
    assert schema(prune_shape(shape, 1)) == {
        "type": "object",
        "properties": {"rows": {"type": "array"}, "total": {"type": "integer"}},
        "required": ["rows", "total"],
    }
    assert schema(prune_shape(shape, 0)) == {"type": "object"}


@given(RESULTS, RESULTS, RESULTS)
def test_order_grouping_and_repetition_do_not_matter(a: Any, b: Any, c: Any) -> None:
    x, y, z = map(shape_of, (a, b, c))
    assert merge_shapes(x, y) == merge_shapes(y, x)
    assert merge_shapes(merge_shapes(x, y), z) == merge_shapes(x, merge_shapes(y, z))
    assert merge_shapes(x, x) == x
    assert merge_shapes(merge_shapes(x, y), x) == merge_shapes(x, y)
    assert merge_shapes(x, NOTHING) == x


@given(RESULTS, RESULTS)
def test_a_shape_survives_being_written_as_a_schema(a: Any, b: Any) -> None:
    shape = merge_shapes(shape_of(a), shape_of(b))
    assert from_schema(json.loads(json.dumps(schema(shape)))) == shape


@given(
    st.recursive(
        SCALARS | st.sampled_from(["object", "array", "string"]),
        lambda below: (
            st.lists(below, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["type", "anyOf", "items", "properties", "required", "additionalProperties"]
                )
                | KEYS,
                below,
                max_size=5,
            )
        ),
        max_leaves=25,
    )
)
def test_any_document_makes_some_shape(document: Any) -> None:
    shape = from_schema(document)
    assert from_schema(schema(shape)) == shape


@given(VALUES, st.text(string.ascii_letters + string.digits, min_size=16, max_size=40))
def test_no_value_is_in_a_schema(value: Any, secret: str) -> None:
    number = int.from_bytes(secret.encode()[:7], "big") + 10**12
    found = json.dumps(learn({"a": secret, "b": [secret, number, {"c": secret, "d": value}]}))
    assert secret not in found
    assert str(number) not in found
    assert not any(word in found for word in ("enum", "const", "example", "default"))
