"""Values against schemas: conversions, refusals, and undecidable keywords."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import pathlib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.guest.schema.parameters import read_parameters, synonyms
from bridge.guest.schema.validation import MAX_STEPS, convert, problem
from tests.golden_texts import assert_golden
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


def kind_of(kind: str, measure: str) -> dict[str, Any]:
    properties = {"kind": {"const": kind}, measure: {"type": "number"}}
    return {"type": "object", "properties": properties, "required": ["kind", measure]}


SHAPES = {"anyOf": [kind_of("circle", "radius"), kind_of("box", "width")]}


PROBLEMS: list[tuple[Any, Any]] = [
    (3, {"type": "string"}),
    ("3", {"type": "integer"}),
    ("-2.5", {"type": "number"}),
    ("2.5", {"type": "integer"}),
    (2.5, {"type": "integer"}),
    (True, {"type": "integer"}),
    (True, {"type": "number"}),
    (1, {"type": "boolean"}),
    ("true", {"type": "boolean"}),
    ("null", {"type": ["integer", "null"]}),
    ("bug", {"type": "array"}),
    ({"a": 1}, {"type": "array"}),
    ([1, 2], {"type": "object"}),
    ({}, {"type": "string"}),
    (None, {"type": "string"}),
    (["a"], {"type": "string", "enum": ["a", "b"]}),
    (3, {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "null"}]}),
    ({}, {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "string"}]}),
    (["a"], {"anyOf": [{"type": "string", "enum": ["a", "b"]}, {"type": "integer"}]}),
    ({}, {"anyOf": [{"enum": ["a"], "type": "string"}, {"type": "integer"}, {"type": "null"}]}),
    (1, {"type": "null"}),
    ("opened", ISSUE["properties"]["state"]),
    ("OPEN", ISSUE["properties"]["state"]),
    (True, {"enum": [1, 0]}),
    (2, {"const": 1}),
    (99, {"enum": list(range(20))}),
    ({"titel": "t"}, ISSUE),
    ({}, ISSUE),
    ({"titel": 1}, {"required": ["title"]}),
    ({"title": "t", "labels": ["a", 3]}, ISSUE),
    ({"title": "t", "parent": {"parent": {"title": ""}}}, ISSUE),
    ({"a": 1, "b": 2}, {"required": ["d", "e"], "additionalProperties": False}),
    ({"a b": {"x": 1}}, {"additionalProperties": {"required": ["y"]}}),
    (["a"] * 4, ISSUE["properties"]["labels"]),
    ([], {"minItems": 1}),
    ([1], {"minItems": 2}),
    ([1, "x"], {"prefixItems": [{"type": "integer"}, {"type": "integer"}]}),
    ([1, 2], {"prefixItems": [{}], "items": False}),
    ([1, 2], {"items": [{}], "additionalItems": False}),
    ("abc", {"maxLength": 2}),
    ("a", {"minLength": 2}),
    (0, {"minimum": 1}),
    (101, {"maximum": 100}),
    (0, {"exclusiveMinimum": 0}),
    (0, {"minimum": 0, "exclusiveMinimum": True}),
    (1, {"exclusiveMaximum": 1}),
    ({"a": 1}, {"maxProperties": 0}),
    (1.5, {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "null"}]}),
    ("b", {"anyOf": [{"const": "a"}, {"type": "null"}]}),
    ({"kind": "box", "width": "1"}, SHAPES),
    ({"kind": "box", "with": 1}, SHAPES),
    ({"kind": "circle"}, SHAPES),
    (1, {"allOf": [{"type": "integer"}, {"minimum": 2}]}),
    (1, False),
    (["y" * 500], {"items": {"enum": ["a"]}}),
]  # fmt: skip


def test_a_problem_names_place_fault_and_remedy() -> None:
    found = [[repr(value), problem(value, schema, schema, "x")] for value, schema in PROBLEMS]
    assert_golden(Path(__file__).with_name("problems.json"), {"problems": found})


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


class Colour(enum.Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Box:
    where: pathlib.PurePosixPath
    tags: set[str]


class Scalar:
    """Looks like one of numpy's."""

    dtype = "int64"

    def tolist(self) -> int:
        return 7


WHEN = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)
TEXT = {"type": "string"}
STRINGS = {"type": "array", "items": TEXT}
BOX = {"type": "object", "properties": {"where": TEXT, "tags": STRINGS}}


@pytest.mark.parametrize(
    ("value", "schema", "expected"),
    [
        (("a", "b"), STRINGS, ["a", "b"]),
        ({"b", "a"}, STRINGS, ["a", "b"]),
        (frozenset({1}), {}, [1]),
        (range(2), {"type": "array"}, [0, 1]),
        ({"k": 1}.keys(), STRINGS, ["k"]),
        (pathlib.PurePosixPath("/tmp/x"), TEXT, "/tmp/x"),
        ([pathlib.PurePosixPath("x")], STRINGS, ["x"]),
        (uuid.UUID(int=1), TEXT, "00000000-0000-0000-0000-000000000001"),
        (WHEN, {"type": "string", "format": "date-time"}, "2024-05-06T07:08:09+00:00"),
        (WHEN.date(), {"anyOf": [TEXT, {"type": "null"}]}, "2024-05-06"),
        (decimal.Decimal("0.1"), {"type": "number"}, 0.1),
        (decimal.Decimal("3"), {"type": "integer"}, 3),
        (decimal.Decimal("0.10"), TEXT, "0.10"),
        (3.0, {"type": "integer"}, 3),
        (3.0, {"type": ["integer", "null"]}, 3),
        (Colour.RED, TEXT, "red"),
        ({Colour.RED: Colour.RED}, {}, {"red": "red"}),
        (Point(1, 2), {"type": "object"}, {"x": 1, "y": 2}),
        (Point(1, 2), {"type": "array"}, [1, 2]),
        (Box(pathlib.PurePosixPath("p"), {"t"}), BOX, {"where": "p", "tags": ["t"]}),
        ({"in": {"x": (1.0,)}}, {}, {"in": {"x": [1.0]}}),
        ([(1,), Colour.RED], {"prefixItems": [{"type": "array"}, TEXT]}, [[1], "red"]),
        (Scalar(), {"type": "integer"}, 7),
    ],
)  # fmt: skip
def test_what_a_value_means_under_its_schema(value: Any, schema: Any, expected: Any) -> None:
    converted = convert(value, schema, schema)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("value", "schema"),
    [
        ("3", TEXT),
        ("3", {}),
        ("03", {"type": "integer"}),
        ("3.5", {"type": "integer"}),
        ("x", {"type": "array"}),
        ("[1]", {"type": ["array", "string"]}),
        ("A", {"enum": ["a", "B"], "type": ["string", "integer"], "anyOf": [{"type": "string"}]}),
        (3, TEXT),
        (3.5, {"type": "integer"}),
        (3.0, {"type": "number"}),
        (3.0, {}),
        (True, {"type": "integer"}),
        (b"x", TEXT),
        ({1, 2}, TEXT),
        (WHEN, {"type": "integer"}),
        (pathlib.PurePosixPath("x"), {"type": "array"}),
        (decimal.Decimal("0.1234567890123456789"), {"type": "number"}),
        (decimal.Decimal("NaN"), {"type": "number"}),
        (math.inf, {"type": "integer"}),
    ],
)
def test_what_could_mean_something_else_stays_as_it_is(value: Any, schema: Any) -> None:
    assert convert(value, schema, schema) is value


def test_a_value_that_holds_itself_comes_to_an_end() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert isinstance(convert(loop, {}, {}), list)
    assert problem(loop, LIST_OF_LISTS, LIST_OF_LISTS) is None


LIST_OF_LISTS: dict[str, Any] = {"type": "array", "items": {"$ref": "#"}}


def test_a_value_whose_methods_fail_stays_as_it_is() -> None:
    class Broken:
        dtype = "?"

        def tolist(self) -> Any:
            raise ValueError("broken")

    broken = Broken()
    assert convert(broken, {}, {}) is broken


@pytest.mark.parametrize(
    ("description", "names"),
    [
        ("Examples: a.\n       MCP accepts the aliases folder, dir, and path; the CLI flag is -f.",
         {"folder", "dir", "path"}),
        ('Natural language:\n- "2 days ago"\nAliases: since, time_range, lookback.',
         {"since", "time_range", "lookback"}),
        ("Page of results. Aliases: page_number", {"page_number"}),
        ("Alias: `dir`\nMore words", {"dir"}),
        ("The folder (aliases: dir/path).", {"dir", "path"}),
        ("Also known by the aliases 'dir' or 'path'.", {"dir", "path"}),
        ("A folder, dir or path.", set()),
        ("The alias name.", set()),
        ("Use `folder` from `dir`.", set()),
        ("List of aliases to create.", set()),
        ("Aliases: one for each of the tables.", set()),
        ("Accepts alias for the table.", set()),
        ("Aliases: other, directory.", set()),
        (3, set()),
    ],
)  # fmt: skip
def test_only_what_a_description_calls_an_alias_is_another_name(
    description: Any, names: set[str]
) -> None:
    schema = {"properties": {"directory": {"description": description}, "other": {}}}
    parameters, _ = read_parameters({**schema, "additionalProperties": False})
    assert {*synonyms(parameters)} == names
    assert {one.name for one in synonyms(parameters).values()} <= {"directory"}


def test_a_name_that_two_arguments_claim_is_neithers() -> None:
    also = {"description": "Alias: dir."}
    parameters, _ = read_parameters({"properties": {"a": also, "b": also}})
    assert synonyms(parameters) == {}
