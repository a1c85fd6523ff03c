"""The objects that stand for servers and tools, made from data alone."""

from __future__ import annotations

import copy
import inspect
import json
import pathlib
import pickle
import pydoc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.guest.api import proxies
from bridge.guest.api.arguments import BoundParameters
from bridge.guest.api.proxies import Server, ServerModule, ServerProxies, Tools
from bridge.guest.api.values import Result
from tests.golden_texts import assert_golden

Sent = list[tuple[str, str, dict[str, Any]]]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "repo": {"type": "string", "description": "owner/name"},
        "title": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}, "default": []},
        "from": {"type": "integer"},
        "x-y": {"type": "boolean"},
        "class": {"enum": ["a", "b"]},
    },
    "required": ["repo", "title"],
}


def server_of(*tools: dict[str, Any], sent: Sent | None = None) -> Server:
    async def call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
        if sent is not None:
            sent.append((server, tool, arguments))
        return "value"

    runtime: Any = SimpleNamespace(
        send=call, of_server=lambda *name: None, find_added=lambda *name: None
    )
    return Server(Tools(runtime, {"name": "git-hub", "alias": "github", "tools": list(tools)}))


def tool(name: str, alias: str = "", schema: Any = None, description: str = "") -> dict[str, Any]:
    about = {"description": description, "inputSchema": schema}
    return {"name": name, "alias": alias or name, **about}


CREATE = tool("create-issue", "create_issue", SCHEMA, "Create an issue.")


async def test_arguments_go_by_position_by_name_and_by_either_spelling() -> None:
    sent: Sent = []
    create = server_of(CREATE, sent=sent).create_issue
    assert await create("o/r", title="t") == "value"
    await create("o/r", "t", ["l"], 1)
    await create("o/r", "t", from_=2, x_y=True, class_="a")
    await create("o/r", "t", **{"from": 3, "x-y": False, "class": "b"})
    await create("o/r", "t", labels=None)
    assert [arguments for _, _, arguments in sent] == [
        {"repo": "o/r", "title": "t"},
        {"repo": "o/r", "title": "t", "labels": ["l"], "from": 1},
        {"repo": "o/r", "title": "t", "from": 2, "x-y": True, "class": "a"},
        {"repo": "o/r", "title": "t", "from": 3, "x-y": False, "class": "b"},
        {"repo": "o/r", "title": "t"},
    ]
    assert {(server, name) for server, name, _ in sent} == {("git-hub", "create-issue")}


NAN = float("nan")
MISTAKES: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    (("o/r",), {}),
    (("o/r", "t"), {"lables": []}),
    (("o/r", "t"), {"Title": "t"}),
    (("o/r", "t"), {"title": "t"}),
    (("o/r", "t"), {"from": 1, "from_": 2}),
    ((1, 2, 3, 4, 5, 6, 7), {}),
    (("o/r", "t"), {"labels": [b"x"]}),
    (("o/r", NAN), {}),
    ((1, "t"), {}),
    ((None, "t"), {}),
    (("o/r", "t"), {"labels": "bug"}),
    (("o/r", "t"), {"labels": ["a", 3]}),
    (("o/r", "t"), {"from_": "five"}),
    (("o/r", "t"), {"class": "c"}),
]


async def test_mistakes_raise_before_anything_is_sent() -> None:
    sent: Sent = []
    told = {}
    for args, kwargs in MISTAKES:
        with pytest.raises(TypeError) as caught:
            await server_of(CREATE, sent=sent).create_issue(*args, **kwargs)
        told[f"{args}, {kwargs}"] = str(caught.value)
    assert sent == []
    assert_golden(Path(__file__).with_name("mistakes.json"), told)


async def test_a_mistake_shows_the_signature() -> None:
    with pytest.raises(TypeError, match=r"Signature: mcp_github\.create_issue\(repo: str, title"):
        await server_of(CREATE).create_issue()
    schema = {
        "properties": {"cell": {"type": "object", "properties": {"bold": {"type": "boolean"}}}}
    }
    with pytest.raises(TypeError, match=r"`cell` is \{'bold'\?: bool\}\. Signature: .*f\(cell: \{"):
        await server_of(tool("f", "f", schema)).f(cell={"bold": 1})


def test_a_function_is_a_real_async_function_with_documentation() -> None:
    create = server_of(CREATE).create_issue
    assert inspect.iscoroutinefunction(create)
    assert create.__name__ == "create_issue"
    assert create.__module__ == "mcp.servers.github"
    signature = inspect.signature(create)
    assert list(signature.parameters) == ["repo", "title", "labels", "from_", "x_y", "class_"]
    assert repr(signature.parameters["labels"].default) == "..."
    assert signature.parameters["repo"].default is inspect.Parameter.empty
    text = pydoc.plain(pydoc.render_doc(create))
    parts = ("Create an issue.", "repo: owner/name", "from_: sent as 'from'", "labels: default []")
    assert all(part in text for part in (*parts, "'create-issue'"))


def test_optional_before_required_keeps_schema_order_by_position() -> None:
    properties = {"limit": {"type": "integer"}, "query": {"type": "string"}}
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    parameters = BoundParameters("f", schema)
    assert parameters.bind((5, "q"), {}) == {"limit": 5, "query": "q"}
    assert str(parameters.signature()) == "(limit: int = ..., *, query: str)"


HOSTILE = [
    tool("__import__", "import_", description="__CODE_LITERAL__ {0} %s ''' \"\"\" \\"),
    tool("class", "class_"),
    tool("x'); import os; ('", "x_import_os"),
    tool("evil", "__class__"),
    tool("worse", "not an identifier"),
    tool("keyword", "lambda"),
]


def test_hostile_names_become_data_and_never_code() -> None:
    server = server_of(*HOSTILE)
    assert server.import_.__name__ == "import_"
    assert "__CODE_LITERAL__ {0} %s" in server.import_.__doc__
    assert type(server) is Server
    assert server["evil"].__name__ == "__class__"
    assert list(server) == ["import_", "class_", "x_import_os"]
    assert server["x'); import os; ('"] is server.x_import_os


@pytest.mark.parametrize("name", ["__html__", "__wrapped__", "__len__", "_repr_html_", "shape"])
def test_names_that_libraries_probe_for_are_never_answered(name: str) -> None:
    assert not hasattr(server_of(CREATE), name)


def test_an_unknown_tool_names_the_nearest_and_all() -> None:
    server = server_of(CREATE, tool("close_issue"))
    with pytest.raises(
        AttributeError,
        match=r"no tool 'create_isue'\. Did you mean 'create_issue'\? Tools: create_issue, close",
    ):
        _ = server.create_isue
    with pytest.raises(KeyError, match="Did you mean 'create_issue'"):
        _ = server["create-isue"]


def test_a_server_object_can_be_inspected_and_copied() -> None:
    server = server_of(CREATE)
    assert "create_issue" in dir(server)
    assert repr(server) == "<MCP server 'git-hub': create_issue>"
    assert copy.copy(server).create_issue is server.create_issue
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        pickle.dumps(server)


async def test_a_server_lists_its_tools() -> None:
    (listed,) = await server_of(CREATE).list_tools()
    assert (listed.name, listed["alias"]) == ("create-issue", "create_issue")
    assert listed.description == "Create an issue."


def test_servers_are_found_by_name_and_alias() -> None:
    server = server_of(CREATE)
    servers = ServerProxies({"git-hub": server}, {"github": "git-hub"}, {"git-hub": server})
    assert servers["git-hub"] is servers["github"] is server
    assert (list(servers), len(servers), servers.get("zzz")) == (["git-hub"], 1, None)
    assert ("git-hub" in servers, "zzz" in servers) == (True, False)
    with pytest.raises(KeyError, match=r"no server 'git-hup'.* Did you mean 'git-hub'"):
        servers["git-hup"]
    assert repr(servers) == "<MCP servers: git-hub>"


IN = {"properties": {"a": {}}, "required": ["a"]}
EITHER = [{"properties": {"a": {}}}, {"properties": {"b": {}}, "required": ["b"]}]
BOTH = {"allOf": [{"properties": {"a": {}}}, {"required": ["a"]}]}


@pytest.mark.parametrize(
    ("schema", "arguments", "is_accepted"),
    [
        (None, {"any": 1}, True),
        ({"type": "object"}, {"any": 1}, True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": "b"}, True),
        ({"properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, True),
        ({"$ref": "#/$defs/In", "$defs": {"In": IN}}, {"a": 1}, True),
        ({"oneOf": EITHER}, {"a": 1}, True),
        ({"required": ["a"]}, {"a": 1}, True),
        ({"$ref": "#/$defs/A", "$defs": {"A": {"allOf": [{"$ref": "#/$defs/A"}]}}}, {"x": 1}, True),
        ({"$ref": "#/nowhere/at/all"}, {"x": 1}, True),
        ({"$ref": "http://elsewhere"}, {"x": 1}, True),
        ({"type": "object", "properties": {}}, {"a": 1}, False),
        ({"type": "object", "additionalProperties": False}, {"a": 1}, False),
        (BOTH, {}, False),
        (BOTH, {"a": 1, "b": 2}, False),
    ],
)
def test_unusual_schemas_admit_what_they_should(
    schema: Any, arguments: dict[str, Any], is_accepted: bool
) -> None:
    parameters = BoundParameters("f", schema)
    if is_accepted:
        assert parameters.bind((), arguments) == arguments
    else:
        with pytest.raises(TypeError):
            parameters.bind((), arguments)


def test_a_bare_tool_has_an_empty_documentation_and_one_that_is_only_called_none() -> None:
    assert server_of(tool("x", schema={"properties": {}})).x.__doc__ == ""
    bare = {"name": "x", "alias": "x", "inputSchema": SCHEMA}
    assert not hasattr(server_of(bare).x, "__signature__")


def test_arguments_are_converted_to_what_the_schema_wants() -> None:
    parameters = BoundParameters("f", SCHEMA)
    options = {"labels": {"b", "a"}, "from_": 3.0}
    bound = parameters.bind((pathlib.PurePosixPath("o/r"), "t"), options)
    assert bound == {"repo": "o/r", "title": "t", "labels": ["a", "b"], "from": 3}
    assert type(bound["from"]) is int


def test_none_goes_where_the_tool_takes_null_and_nowhere_else() -> None:
    properties = {
        "due": {"type": ["string", "null"]},
        "cursor": {"type": "string"},
        "old": {"type": "string", "default": None},
        "any": {},
    }
    bound = BoundParameters("f", {"properties": properties}).bind((), dict.fromkeys(properties))
    assert bound == {"due": None, "old": None, "any": None}


def test_a_result_in_place_of_its_content_is_refused_with_its_keys() -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    with pytest.raises(TypeError, match=r"this result has the keys: 'content'\. Signature"):
        BoundParameters("put", schema).bind((), {"text": Result(content="[1]")})


def test_arguments_are_checked_together_where_the_schema_says_so() -> None:
    either = [{"required": ["a"]}, {"required": ["b"]}]
    parameters = BoundParameters("f", {"properties": {"a": {}, "b": {}}, "anyOf": either})
    assert parameters.bind((), {"b": 1}) == {"b": 1}
    with pytest.raises(TypeError, match="is given arguments that do not fit: missing key 'a'"):
        parameters.bind((), {})


def test_a_module_lists_tools_with_their_signatures() -> None:
    server = server_of(CREATE)
    module = ServerModule("mcp.servers.github", server._tools)
    assert "TOOLS" not in vars(module)
    listed: Any = module.TOOLS
    assert listed is module.TOOLS
    whole = f"mcp_github.create_issue{inspect.signature(server.create_issue)}"
    assert listed[0]["signature"] == whole.removesuffix(" -> Any")
    assert {key: listed[0][key] for key in CREATE} == CREATE
    assert "TOOLS" in dir(module)


@pytest.mark.parametrize("name", ["", "a b", "class", "__dunder__", "__x", 3, None])
def test_unusable_names_are_recognised(name: Any) -> None:
    assert not proxies.usable(name)


def test_a_tool_with_hundreds_of_siblings_costs_only_itself() -> None:
    server = server_of(*(tool(f"t{n}", schema=SCHEMA) for n in range(500)))
    _ = server.t7
    assert len(server._tools._made) == 1
    assert json.dumps(sorted(dir(server)))
