"""What Python values mean as arguments, and which stay as they are."""

from __future__ import annotations

import datetime
import decimal
import enum
import math
import pathlib
import uuid
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from bridge.guest.schema.parameters import read_parameters, synonyms
from bridge.guest.schema.validation import convert, problem


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
