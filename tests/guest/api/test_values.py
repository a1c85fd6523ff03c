"""The values that cross the channel: what they become, and which are refused."""

from __future__ import annotations

import copy
import dataclasses
import decimal
import enum
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from bridge.guest.api.results import from_wire
from bridge.guest.api.values import (
    MAX_DEPTH,
    ArgumentsError,
    Blob,
    MCPError,
    MissingKeyError,
    Result,
    error_from_wire,
    to_json,
)


def test_a_result_reads_like_a_dict_and_like_an_object() -> None:
    result = Result(a=1, items=[2], nested=Result(b=3))
    assert (result.a, result["a"], result.nested.b) == (1, 1, 3)
    assert result["items"] == [2]
    assert dict(result.items())["a"] == 1
    assert result == {"a": 1, "items": [2], "nested": {"b": 3}}
    assert json.loads(json.dumps(result)) == result
    assert repr(result) == "{'a': 1, 'items': [2], 'nested': {'b': 3}}"
    assert isinstance(result, dict)
    assert result.get("zzz") is None


def test_a_missing_key_names_the_keys_there_are() -> None:
    with pytest.raises(KeyError, match="and 60 more"):
        Result({f"k{n}": n for n in range(100)})["zzzzzz"]
    result = Result(title="t", number=1)
    with pytest.raises(KeyError, match=r"no key 'titel' .* Did you mean 'title'\? Keys: title, n"):
        result["titel"]
    with pytest.raises(AttributeError, match="Did you mean 'title'"):
        _ = result.titel
    assert not hasattr(result, "__html__")
    assert str(MissingKeyError("no such thing")) == "no such thing"
    assert str(MissingKeyError()) == ""


def test_a_result_can_be_changed_copied_and_pickled() -> None:
    result = Result(a=1)
    result.b = 2
    del result.a
    assert result == {"b": 2}
    for other in (copy.copy(result), copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert other == {"b": 2}
        assert type(other) is Result
    with pytest.raises(AttributeError, match="Keys: b"):
        del result.zzz


def test_binary_content_becomes_a_blob(tmp_path: Path) -> None:
    resource = {"mimeType": "image/png", "blob": "aGk=", "uri": "file:///x.png"}
    blob = from_wire({"parts": {"content": [{"type": "resource", "resource": resource}]}})
    assert (blob.mime_type, blob.data, blob.name) == ("image/png", b"hi", "")
    assert repr(blob) == "<Blob image/png, 2 bytes, file:///x.png>"
    path = blob.save(tmp_path / "x.png")
    assert Path(path).read_bytes() == b"hi" == bytes(blob)
    assert len(blob) == 2
    assert blob == Blob("image/png", b"hi") != Blob("image/gif", b"hi")
    assert hash(blob) == hash(Blob("image/png", b"hi"))
    assert blob != 1


@pytest.mark.parametrize("value", [None, 1, "x", [1], {"a": 1, "b": 2}, {"other": 1}, {}])
def test_values_that_are_no_shape_are_left_alone(value: Any) -> None:
    assert from_wire(value) == value


def test_an_error_says_where_it_comes_from() -> None:
    fields = {"kind": "tool", "server": "s", "tool": "t", "data": [1], "code": 7}
    error = error_from_wire({"message": "no", **fields})
    assert isinstance(error, RuntimeError)
    assert str(error) == "s.t: no"
    assert {name: getattr(error, name) for name in fields} == fields
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.data) == ("s.t: no", [1])
    assert str(error_from_wire({})) == "the call failed"
    assert str(MCPError("s: no", server="s")) == "s: no"


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Point:
    x: int
    tags: tuple[str, ...] = ()


class Text(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2,)), [1, [2]]),
        (Point(1, ("a",)), {"x": 1, "tags": ["a"]}),
        (Colour.RED, "red"),
        (Level.HIGH, 3),
        (Text("t"), "t"),
        (Result(a=Result(b=1)), {"a": {"b": 1}}),
        ([True, None, 1.5, "ü"], [True, None, 1.5, "ü"]),
    ],
)
def test_what_loses_nothing_is_converted(value: Any, plain: Any) -> None:
    assert to_json(value) == plain
    assert json.loads(json.dumps(to_json(value))) == plain


DataFrame = type("DataFrame", (), {})


class Scalar:
    def tolist(self) -> int:
        return 1


def generator() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        (float("nan"), "use None or leave it out"),
        (float("inf"), "which is not JSON"),
        (b"x", "b64encode"),
        (bytearray(b"x"), "b64encode"),
        (Path("x"), r"str\(x\)"),
        (decimal.Decimal(1), r"str\(x\) or float\(x\)"),
        (DataFrame(), r'x.to_dict\("records"\)'),
        (Scalar(), r"x.item\(\)"),
        (Blob("a/b", b""), r"x\.data"),
        ({1: 2}, r"use str\(key\)"),
        ([10**5000], "too long"),
        (object(), "is a object, which is not JSON$"),
        (int, "is a type"),
        (print, "is a builtin_function_or_method"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_advice(value: Any, advice: str) -> None:
    with pytest.raises(ArgumentsError, match=advice):
        to_json(value)
    with pytest.raises(TypeError, match=r"^argument 'rows'\['a'\]\[1\]"):
        to_json({"a": [1, value]}, "argument 'rows'")


def test_cycles_and_bottomless_values_are_refused() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(TypeError, match="nested more than") as refused:
        to_json(cycle)
    assert len(str(refused.value)) < 300
    deep: Any = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert to_json(deep) == deep
    with pytest.raises(TypeError, match="nested more than"):
        to_json([[deep]])
