"""Values against schemas: what is refused, in which words, and what is left to the server."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.guest.schema.parameters import read_parameters
from bridge.guest.schema.validation import MAX_STEPS, convert, problem
from tests.schema_strategies import ANY_SCHEMA

ISSUE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "minLength": 1},
        "labels": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "state": {"enum": ["open", "closed"]},
        "parent": {"$ref": "#"},
    },
    "required": ["title"],
    "additionalProperties": False,
}
SHAPES: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}},
            "required": ["kind", "radius"],
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "box"}, "width": {"type": "number"}},
            "required": ["kind", "width"],
        },
    ]
}


@pytest.mark.parametrize(
    ("value", "schema", "message"),
    [
        (3, {"type": "string"}, "x must be a string, not int 3; write 3 in quotes, or str(x)"),
        ("3", {"type": "integer"}, "x must be an integer, not '3'"),
        ("-2.5", {"type": "number"}, "x must be a number, not '-2.5'"),
        ("2.5", {"type": "integer"}, "x must be an integer, not '2.5'"),
        (2.5, {"type": "integer"}, "x must be an integer, not float 2.5"),
        (True, {"type": "integer"}, "x must be an integer, not True"),
        (True, {"type": "number"}, "x must be a number, not True"),
        (1, {"type": "boolean"}, "x must be True or False, not int 1"),
        ("true", {"type": "boolean"}, "x must be True or False, not 'true'"),
        ("null", {"type": ["integer", "null"]},
         "x must be an integer or None, not 'null'"),
        ("bug", {"type": "array"}, "x must be a list, not 'bug'; write ['bug']"),
        ({"a": 1}, {"type": "array"}, "x must be a list, not dict {...}; write [{...}]"),
        ([1, 2], {"type": "object"}, "x must be a dict, not list of 2"),
        ({}, {"type": "string"},
         "x must be a string, not dict {}; json.dumps(x) if its JSON text is meant"),
        (None, {"type": "string"}, "x must be a string, not None"),
        (["a"], {"type": "string", "enum": ["a", "b"]}, "x must be one of 'a', 'b', not list of 1"),
        (3, {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]},
         "x must be one of 'a', 'b', None, not int 3"),
        ({}, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "string"}]},
         "x must be a string, not dict {}; json.dumps(x) if its JSON text is meant"),
        (["a"], {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "integer"}]},
         "x must be one of 'a', 'b' or an integer, not list of 1"),
        ({}, {"anyOf": [{"enum": ["a"], "type": "string"}, {"type": "integer"}, {"type": "null"}]},
         "x must be 'a' or an integer or None, not dict {}"),
        (1, {"type": "null"}, "x must be None, not int 1"),
        ("opened", ISSUE["properties"]["state"],
         "x must be one of 'open', 'closed', not 'opened'; did you mean 'open'?"),
        ("OPEN", ISSUE["properties"]["state"],
         "x must be one of 'open', 'closed', not 'OPEN'; did you mean 'open'?"),
        (True, {"enum": [1, 0]}, "x must be one of 1, 0, not True"),
        (2, {"const": 1}, "x must be 1, not int 2"),
        (99, {"enum": list(range(20))},
         "x must be one of 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ... (20 values), not int 99"),
        ({"titel": "t"}, ISSUE, "x has no key 'titel'; did you mean 'title'?"),
        ({}, ISSUE, "x is missing key 'title'"),
        ({"titel": 1}, {"required": ["title"]}, "x is missing key 'title'; it has 'titel'"),
        ({"title": "t", "labels": ["a", 3]}, ISSUE,
         "x.labels[1] must be a string, not int 3; write 3 in quotes, or str(x)"),
        ({"title": "t", "parent": {"parent": {"title": ""}}}, ISSUE,
         "x.parent.parent.title must not be empty; x.parent is missing key 'title'"),
        ({"a": 1, "b": 2}, {"required": ["d", "e"], "additionalProperties": False},
         "x has no key 'a'; x has no key 'b'; x is missing key 'd'; x is missing key 'e'"),
        ({"a b": {"x": 1}}, {"additionalProperties": {"required": ["y"]}},
         "x['a b'] is missing key 'y'"),
        (["a"] * 4, ISSUE["properties"]["labels"], "x must have at most 3 items, not 4"),
        ([], {"minItems": 1}, "x must not be empty"),
        ([1], {"minItems": 2}, "x must have at least 2 items, not 1"),
        ([1, "x"], {"prefixItems": [{"type": "integer"}, {"type": "integer"}]},
         "x[1] must be an integer, not 'x'"),
        ([1, 2], {"prefixItems": [{}], "items": False}, "x must have at most 1 items, not 2"),
        ([1, 2], {"items": [{}], "additionalItems": False}, "x must have at most 1 items, not 2"),
        ("abc", {"maxLength": 2}, "x must have at most 2 characters, not 3"),
        ("a", {"minLength": 2}, "x must have at least 2 characters, not 1"),
        (0, {"minimum": 1}, "x must be at least 1, not 0"),
        (101, {"maximum": 100}, "x must be at most 100, not 101"),
        (0, {"exclusiveMinimum": 0}, "x must be more than 0, not 0"),
        (0, {"minimum": 0, "exclusiveMinimum": True}, "x must be more than 0, not 0"),
        (1, {"exclusiveMaximum": 1}, "x must be less than 1, not 1"),
        ({"a": 1}, {"maxProperties": 0}, "x must have at most 0 keys, not 1"),
        (1.5, {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]},
         "x must be a string or an integer or None, not float 1.5; write 1.5 in quotes, or str(x)"),
        ("b", {"anyOf": [{"const": "a"}, {"type": "null"}]}, "x must be one of 'a', None, not 'b'"),
        ({"kind": "box", "width": "1"}, SHAPES,
         "x.width must be a number, not '1'"),
        ({"kind": "box", "with": 1}, SHAPES, "x is missing key 'width'; it has 'with'"),
        ({"kind": "circle"}, SHAPES, "x is missing key 'radius'"),
        (1, {"allOf": [{"type": "integer"}, {"minimum": 2}]}, "x must be at least 2, not 1"),
        (1, False, "x is not allowed here"),
        (["y" * 500], {"items": {"enum": ["a"]}}, f"x[0] must be 'a', not '{'y' * 60}...'"),
    ],
)  # fmt: skip
def test_a_problem_names_place_fault_and_remedy(value: Any, schema: Any, message: str) -> None:
    assert problem(value, schema, schema, "x") == message


def test_numbers_of_thousands_of_digits_are_described() -> None:
    # Longer than the interpreter turns into text.
    found = problem(10**5000, {"maximum": 5}, {}, "x")
    assert found == "x must be at most 5, not a number of more than 60 digits"
    assert problem(10**5000, {"type": "string"}, {}) is not None
    assert problem(1, {"maximum": -(10**5000)}, {}) is not None


def test_a_value_without_a_name_gets_a_sentence_too() -> None:
    assert problem({}, ISSUE, ISSUE) == "missing key 'title'"
    assert problem({"title": "t", "b": 1}, ISSUE, ISSUE) == "no key 'b'"
    assert problem({"title": 1}, ISSUE, ISSUE) == (
        "title must be a string, not int 1; write 1 in quotes, or str(x)"
    )
    assert problem(1, {"type": "null"}, {}) == "must be None, not int 1"


LOOP: dict[str, Any] = {"$ref": "#"}
EXPONENTIAL: dict[str, Any] = {
    "$ref": "#/$defs/a0",
    "$defs": {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]}
        for n in range(60)
    },
}


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        (3.0, {"type": "integer"}),
        ("x", {"type": "date"}),
        (1, {"type": ["string", "file"]}),
        (1, {"type": {}}),
        (1, {"type": []}),
        ("no date", {"type": "string", "format": "date-time"}),
        (None, {"type": "string", "nullable": True}),
        (None, {"type": "string", "default": None}),
        (1, {"oneOf": [{"type": "integer"}, {"type": "number"}]}),
        (1, {"not": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}),
        (1, {"not": {"contains": 1}}),
        (1, {"$ref": "#/nowhere"}),
        (1, {"$ref": "http://example.com/schema"}),
        (1, {"$ref": 5}),
        (1, {"not": {"$ref": "#/nowhere"}}),
        (1, LOOP),
        (1, {"not": LOOP}),
        (1, EXPONENTIAL),
        ("x", {"pattern": "^y$"}),
        (7, {"multipleOf": 5}),
        ([1, 1], {"uniqueItems": True}),
        ({"b": 1}, {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}),
        (1, {"minimum": "5"}),
        ([1], {"items": 5}),
        ({"a": 1}, {"properties": [], "required": {"b": 1}, "patternProperties": 3}),
        ({"a": 1}, {"required": "b"}),
        ("a", {"enum": []}),
        ("a", {"enum": "b"}),
        ("a", {"anyOf": {}}),
        ([*range(30_000), "x"], {"items": {"type": "integer"}}),
        (1, None),
        (1, "schema"),
        (object(), {}),
    ],
)
def test_what_cannot_be_told_is_fine(value: Any, schema: Any) -> None:
    assert problem(value, schema, schema, "x") is None


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.sampled_from([0.5, 1.0, -2.5]),
    st.sampled_from(["", "a", "b", "ab", "abc"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "c"]), inner, max_size=3),
    ),
    max_leaves=6,
)
TYPES = ["string", "integer", "number", "boolean", "array", "object", "null"]
REFERENCES = st.sampled_from([{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    small = st.integers(0, 3)
    by_name = {
        "type": st.one_of(
            st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), min_size=1, unique=True)
        ),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "required": st.lists(st.sampled_from(["a", "b"]), unique=True),
        "properties": st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
        "additionalProperties": inner,
        "minProperties": small,
        "maxProperties": small,
        "items": inner,
        "prefixItems": st.lists(inner, min_size=1, max_size=2),
        "minItems": small,
        "maxItems": small,
        "minLength": small,
        "maxLength": small,
        "minimum": st.integers(-2, 2),
        "maximum": st.integers(-2, 2),
        "exclusiveMinimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2),
        "anyOf": st.lists(inner, min_size=1, max_size=3),
        "allOf": st.lists(inner, min_size=1, max_size=2),
        "format": st.just("date"),
        "title": st.just("t"),
    }
    # A few of them: a schema of twenty keywords refuses everything.
    names = st.lists(st.sampled_from(sorted(by_name)), min_size=1, max_size=4, unique=True)
    return names.flatmap(lambda own: st.fixed_dictionaries({name: by_name[name] for name in own}))


SCHEMAS = st.recursive(
    st.one_of(st.booleans(), REFERENCES, keywords(st.booleans())), keywords, max_leaves=5
)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(value=VALUES, schema=keywords(SCHEMAS), a=keywords(st.booleans()), b=keywords(REFERENCES))
def test_it_agrees_with_the_reference_implementation(
    value: Any, schema: dict[str, Any], a: dict[str, Any], b: dict[str, Any]
) -> None:
    # Neither refers to itself in place, which the other implementation does not survive.
    b = {key: part for key, part in b.items() if key not in ("anyOf", "allOf")}
    root = {**schema, "$defs": {"a": a, "b": b}}
    valid = jsonschema.Draft202012Validator(root).is_valid(value)
    assert (problem(value, root, root, "x") is None) is valid


@given(value=ANY_SCHEMA, schema=ANY_SCHEMA)
def test_any_json_is_taken_for_a_schema(value: Any, schema: Any) -> None:
    found = problem(value, schema, schema, "x")
    assert found is None or (found.startswith("x") and len(found) < 2000)
    convert(value, schema, schema)


def test_thousands_of_names_that_python_writes_alike_stay_short_and_apart() -> None:
    letters = "!@$%^&*()-+={}"
    names = [one + two + three for one in letters for two in letters for three in letters]
    found, _ = read_parameters({"properties": dict.fromkeys(names, {})})
    aliases = [parameter.alias for parameter in found]
    assert aliases[:3] == ["___", "____", "_____"]
    assert len(set(aliases)) == len(names)
    assert max(map(len, aliases)) < 30


def test_a_choice_among_too_many_is_left_to_the_server() -> None:
    assert problem("x", {"enum": ["y"] * MAX_STEPS}, {}) is None
    assert problem("x", {"enum": ["y"] * (MAX_STEPS // 2)}, {}) is not None
