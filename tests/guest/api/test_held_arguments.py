"""Placeholders in the arguments of later calls, and where none can be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from bridge.errors import HeldResultError as RefusedError
from bridge.gate.held_calls.placeholders import referred
from bridge.guest.api import held_results as held
from bridge.guest.api.arguments import Parameters
from bridge.guest.api.client import Client
from bridge.guest.api.held_results import HeldResultError, Placeholder
from bridge.guest.api.results import from_wire
from bridge.guest.api.runtime import Runtime
from bridge.guest.api.values import to_json
from bridge.guest.protocol.wire import Run
from bridge.guest.schema.validation import problem
from tests.guest.held_rig import CREATED, PLAN, token, whole, x

__all__ = ["x"]


SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "integer", "minimum": 1},
        "title": {"type": "string", "maxLength": 10, "pattern": "^[a-z]+$"},
        "state": {"enum": ["open", "closed"]},
        "labels": {"type": "array", "items": {"type": "string", "minLength": 100}},
        "author": {
            "type": "object",
            "properties": {"login": {"type": "string"}},
            "required": ["login"],
            "additionalProperties": False,
        },
        "either": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["number"],
}


def bind(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return Parameters("mcp_x.f", SCHEMA).bind(args, kwargs)


def test_placeholders_are_sent_and_not_judged(x: Placeholder) -> None:
    assert bind(x.number) == {"number": whole("number")}
    assert bind(
        number=x["number"],
        title=f"{x.title}!",
        state=x.state,
        labels=[x.labels[0], "a" + x.b],
        author=x.author,
        either=x.flag,
    ) == {
        "number": whole("number"),
        "title": f"{token('title')}!",
        "state": whole("state"),
        "labels": [whole("labels", 0), f"a{token('b')}"],
        "author": whole("author"),
        "either": whole("flag"),
    }
    assert bind(1, author={"login": x}) == {"number": 1, "author": {"login": whole()}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "is missing the required argument `number`"),
        ({"numbr": 1}, "has no parameter `numbr`"),
        ({"number": "text"}, "number must be an integer"),
        ({"number": 1, "author": {"name": "text"}}, "author"),
    ],
)
def test_what_is_wrong_in_any_case_is_said(
    x: Placeholder, arguments: dict[str, Any], message: str
) -> None:
    filled = {
        key: f"{x}" if value == "text" else {"name": x} if isinstance(value, dict) else value
        for key, value in arguments.items()
    }
    with pytest.raises(TypeError, match=message):
        bind(**filled)


def test_values_of_richer_types_may_hold_one(x: Placeholder) -> None:
    import dataclasses

    import pydantic

    @dataclasses.dataclass
    class Issue:
        number: Any
        tags: tuple[Any, ...]

    class Model(pydantic.BaseModel):
        number: Any

    parameters = Parameters("mcp_x.f", {"properties": {"a": {"type": "object"}, "b": {}}})
    assert parameters.bind((Issue(x.number, (x.tag, 1)), Model(number=x.id)), {}) == {
        "a": {"number": whole("number"), "tags": [whole("tag"), 1]},
        "b": {"number": whole("id")},
    }


def test_a_schema_cannot_be_told_not_to_fit() -> None:
    for value in (whole(), f"see {token()}"):
        assert problem(value, {"not": {"type": ["object", "string"]}}, {}) is None
    assert problem("heldback", {"enum": ["a"]}, {}) is not None


def test_containers_are_sent_with_what_they_hold(x: Placeholder) -> None:
    assert to_json([x, (x.a,)], "x") == [whole(), [whole("a")]]


class FakeClient:
    """Holds every call back."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []

    async def call(self, method: str, params: dict[str, Any], subject: str) -> Any:
        held.check()
        json.dumps(params)
        self.sent.append(params)
        return {"held": {**CREATED, "number": len(self.sent)}}


async def test_calls_by_name_take_placeholders(x: Placeholder) -> None:
    client = FakeClient()
    runtime = Runtime(Run(code=""), cast("Client", client))
    y = await runtime.call_tool("git-hub", "create", {"a": x, "b": f"{x.number}"})
    await runtime.call_tool("git-hub", "close", {"number": y.number})
    assert [params["arguments"] for params in client.sent] == [
        {"a": whole(), "b": token("number")},
        {"number": whole("number")},
    ]


async def test_a_raw_result_can_be_neither_looked_into_nor_passed_on(x: Placeholder) -> None:
    client = FakeClient()
    runtime = Runtime(Run(code=""), cast("Client", client))
    y = await runtime.call_tool_raw("git-hub", "create")
    assert repr(y) == "‹result of #1 git-hub.create-issue›"
    with pytest.raises(HeldResultError, match="looks into .* Only results of call_tool have"):
        _ = y["structuredContent"]
    held._first = ""
    for value in (y, f"{y}", repr(x), str([x])):
        await runtime.call_tool("git-hub", "create", {"a": value})
        with pytest.raises(RefusedError, match="only to be read"):
            referred(client.sent[-1]["arguments"], PLAN, 9)


@pytest.mark.parametrize(
    "ask",
    [
        lambda runtime, x: runtime.call_tool(x, "create"),
        lambda runtime, x: runtime.call_tool("git-hub", x.name),
        lambda runtime, x: runtime.read_resource("git-hub", x.uri),
        lambda runtime, x: runtime.get_prompt("git-hub", x.name),
    ],
)
async def test_what_is_asked_for_has_to_be_known(
    x: Placeholder, ask: Callable[[Runtime, Placeholder], Any]
) -> None:
    runtime = Runtime(Run(code=""), cast("Client", FakeClient()))
    with pytest.raises(HeldResultError, match="names what it asks for"):
        await ask(runtime, x)


def test_only_a_held_call_makes_a_placeholder() -> None:
    assert from_wire({"json": {"held": CREATED}}) == {"held": CREATED}
