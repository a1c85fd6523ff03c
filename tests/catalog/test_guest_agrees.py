"""What the model is told of a call, and what the guest accepts, must be the same.

The guest reads schemas with its own code, since nothing of the catalog enters a sandbox.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest

from bridge.catalog.entries import ToolEntry
from bridge.catalog.naming import server_aliases, tool_aliases
from bridge.catalog.program.tables import SERVER_METHODS
from bridge.catalog.typed_stubs import tool_stub
from bridge.guest.api.arguments import Parameters
from bridge.guest.api.proxies import Server, ServerModule, usable
from bridge.guest.api.runtime import OF_SERVERS, PUBLIC
from bridge.model import Tool

STRING = {"type": "string"}
SCHEMAS: list[Any] = [
    {"properties": {"a": STRING, "b": STRING}, "required": ["b"]},
    {"properties": {"a": STRING}, "required": ["a", "undescribed"]},
    {"allOf": [{"properties": {"a": STRING}, "required": ["a"]}, {"properties": {"b": {}}}]},
    {"anyOf": [{"properties": {"a": STRING}}, {"properties": {"b": STRING}}]},
    {
        "$ref": "#/$defs/base",
        "properties": {"b": STRING},
        "$defs": {"base": {"properties": {"a": STRING}, "required": ["a"]}},
    },
    {"properties": {"x-y": STRING, "from": STRING, "z": STRING}, "required": ["from"]},
    {},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_guest_takes_every_argument_by_its_own_name(schema: Any) -> None:
    guest = Parameters("t", schema)
    arguments = {parameter.name: "v" for parameter in guest.all}
    assert guest.bind((), arguments) == arguments
    assert guest.bind((), {parameter.alias: "v" for parameter in guest.all}) == arguments


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_guest_accepts_what_the_stub_says(schema: Any) -> None:
    """Positions, names and which arguments are required."""
    stub = tool_stub(ToolEntry(tool=Tool(server="s", name="t", input_schema=schema), alias="t"))
    function = ast.parse(stub).body[-1]
    assert isinstance(function, ast.AsyncFunctionDef)
    places = function.args.args
    given = {argument.arg: "v" for argument in function.args.kwonlyargs}
    guest = Parameters("t", schema)
    bound = guest.bind(tuple("v" for _ in places), given)
    assert list(bound) == [parameter.name for parameter in guest.all]
    assert (function.args.kwarg is not None) == guest.open


def test_the_guest_takes_every_alias() -> None:
    names = ["class", "__init__", "1x", "", "list_tools", "TOOLS", "servers", "é", "_tools"]
    aliases = [*server_aliases(names).values(), *tool_aliases(names).values()]
    assert all(usable(alias) for alias in aliases)


def test_no_tool_alias_hides_behind_an_attribute_of_the_guests_objects() -> None:
    own = [name for kind in (Server, ServerModule) for name in dir(kind)]
    own += ["_tools", "TOOLS", "TOOL_MAP"]
    assert set(tool_aliases(own).values()).isdisjoint(own)


def test_both_know_the_same_helpers_of_servers() -> None:
    """A program that uses one is told neither that it does not exist nor to send all tools."""
    assert frozenset({"list_tools", *OF_SERVERS}) == SERVER_METHODS.keys()
    assert set(OF_SERVERS) < set(PUBLIC)
