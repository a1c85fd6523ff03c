from __future__ import annotations

import ast
import json
from dataclasses import replace
from typing import Any

import pytest

from bridge.catalog.entries import ToolEntry, tool_entries
from bridge.catalog.stubs import (
    MAX_SIGNATURE_CHARS,
    call_signature,
    run_server,
    signature,
    to_call,
    tool_data,
    tool_stub,
)
from bridge.guest.api.arguments import Parameters
from bridge.model import Tool
from tests.catalog.nasty_servers import server_entries


def tool(
    name: str = "create_issue",
    *,
    server: str = "github",
    properties: dict[str, Any] | None = None,
    required: list[str] | None = None,
    output: dict[str, Any] | None = None,
    description: str = "",
) -> Tool:
    return Tool(
        server=server,
        name=name,
        description=description,
        input_schema={
            "type": "object",
            "properties": properties or {},
            "required": required or [],
        },
        output_schema=output,
    )


STRING = {"type": "string"}


def test_a_signature_shows_types_defaults_and_what_is_optional() -> None:
    made = tool(
        properties={
            "repo": STRING,
            "title": STRING,
            "labels": {"type": "array", "items": STRING},
            "state": {"enum": ["open", "closed"], "default": "open"},
        },
        required=["repo", "title"],
        output={"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
    )
    assert signature(made, "create_issue") == (
        "async def create_issue(repo: str, title: str, labels: list[str] = ..., "
        "state: Literal['open', 'closed'] = 'open') -> {'id': int}"
    )


def test_a_required_argument_after_an_optional_one_is_named() -> None:
    made = tool(
        properties={"a": STRING, "limit": {"type": "integer"}, "b": STRING}, required=["a", "b"]
    )
    assert signature(made, "x") == "async def x(a: str, limit: int = ..., *, b: str) -> Any"


def test_a_tool_without_arguments_or_with_only_required_ones_has_no_star() -> None:
    assert signature(tool(), "x") == "async def x() -> Any"
    made = tool(properties={"a": STRING}, required=["a"])
    assert signature(made, "x") == "async def x(a: str) -> Any"


def test_an_argument_has_one_spelling_in_every_text() -> None:
    made = tool(
        properties={"a": STRING, "x-y": {"type": "integer"}, "from": STRING, "ﬁ": STRING},
        required=["a", "from"],
    )
    spelled = "a: str, x_y: int = ..., *, from_: str, fi: str = ..."
    assert signature(made, "x") == f"async def x({spelled}) -> Any"
    entry = ToolEntry(tool=made, alias="x")
    assert spelled in tool_stub(entry)
    parameters = Parameters("x", made.input_schema)
    assert str(parameters.signature()) == f"({spelled})"
    with pytest.raises(TypeError, match="required argument `from_`"):
        parameters.bind(("1",), {})
    given = {"x_y": 1, "from_": "f", "fi": "g"}
    assert parameters.bind(("1",), given) == {"a": "1", "x-y": 1, "from": "f", "ﬁ": "g"}


def test_a_long_signature_gets_coarser_types_before_it_loses_arguments() -> None:
    nested = {"type": "object", "properties": {f"field{n}": STRING for n in range(10)}}
    made = tool(properties={f"part{n}": nested for n in range(8)}, output=nested)
    text = signature(made, "x")
    assert text == (
        "async def x(part0: dict = ..., part1: dict = ..., part2: dict = ..., "
        "part3: dict = ..., part4: dict = ..., part5: dict = ..., part6: dict = ..., "
        "part7: dict = ...) -> dict"
    )


def test_a_long_signature_keeps_the_names_of_all_arguments() -> None:
    properties = {"a": STRING, **{f"option{n}": STRING for n in range(30)}, "b": STRING}
    text = signature(tool(properties=properties, required=["a", "b"]), "x")
    names = ", ".join(f"option{n}=..." for n in range(30))
    assert text == f"async def x(a, {names}, *, b) -> Any"


def test_of_too_many_arguments_the_optional_ones_are_summed_up_first() -> None:
    properties = {"a": STRING, **{f"option{n}": STRING for n in range(90)}, "b": STRING}
    text = signature(tool(properties=properties, required=["a", "b"]), "x")
    assert text.startswith("async def x(a, option0=..., option1=..., ")
    assert text.endswith("=..., *, b, **others) -> Any")
    assert MAX_SIGNATURE_CHARS - 20 < len(text) <= MAX_SIGNATURE_CHARS
    text = signature(tool(properties=properties, required=list(properties)), "x")
    assert text.startswith("async def x(a, option0, option1, ")
    assert text.endswith(", **others) -> Any")


def test_an_argument_with_an_absurd_name_is_left_to_the_full_documentation() -> None:
    made = tool(properties={"a" * 1_000_000: STRING, "-" * 1_000_000: STRING, "b": STRING})
    assert signature(made, "x") == "async def x(b: str = ..., **arguments) -> Any"


def test_a_tool_that_takes_any_arguments_says_so() -> None:
    made = Tool(server="s", name="t", input_schema={"additionalProperties": True})
    assert signature(made, "t") == "async def t(**arguments) -> Any"


def test_a_call_signature_names_the_server_object() -> None:
    (entry,) = tool_entries([tool(properties={"a": STRING}, required=["a"])])
    assert call_signature("git_hub", entry) == "mcp_git_hub.create_issue(a: str)"


def test_a_call_signature_shows_what_was_observed_where_nothing_is_declared() -> None:
    seen = {"type": "object", "properties": {"file": {"title": "Blob"}}, "required": ["file"]}
    entry = ToolEntry(tool=tool(), alias="x", observed=seen, observations=2)
    assert call_signature("s", entry) == "mcp_s.x() -> {'file': Blob}"
    declared = replace(entry, tool=tool(output={"type": "string"}))
    assert call_signature("s", declared) == "mcp_s.x() -> str"
    many = {"type": "object", "properties": {f"field_{n}": STRING for n in range(12)}}
    assert len(call_signature("s", replace(entry, observed=many))) <= MAX_SIGNATURE_CHARS


def test_a_program_that_only_calls_gets_only_what_calling_takes() -> None:
    document = tool_data(ToolEntry(tool=tool(description="d", output={}), alias="x"))
    assert to_call(document) == {
        "name": "create_issue",
        "alias": "x",
        "inputSchema": document["inputSchema"],
    }


def test_the_guest_learns_what_was_observed() -> None:
    document = tool_data(ToolEntry(tool=tool(), alias="x", observed={"a": 1}, observations=2))
    assert (document["observed"], document["observations"]) == ({"a": 1}, 2)
    assert "outputSchema" not in document


def test_a_plain_signature_is_python() -> None:
    made = tool(properties={"a": STRING, "b": {"type": ["integer", "null"]}}, required=["a"])
    ast.parse(signature(made, "x") + ": ...")


def test_of_two_tools_with_one_name_the_first_counts() -> None:
    entries = tool_entries(
        [tool("a", description="first"), tool("a", description="second"), tool("A")]
    )
    assert [(entry.alias, entry.tool.description) for entry in entries] == [
        ("a", "first"),
        ("a_2", ""),
    ]


def test_a_description_that_looks_like_a_template_or_code_stays_data() -> None:
    hostile = '__CODE_LITERAL__ {servers} %(x)s """\n\nimport os'
    servers = server_entries(
        {"s": hostile}, {"s": [tool("t", server="s", description=hostile)]}, loaded=["s"]
    )
    (document,) = json.loads(json.dumps([run_server(each) for each in servers if each.loaded]))
    assert document["description"] == hostile
    assert document["tools"][0]["description"] == hostile


def test_a_server_that_was_never_asked_is_marked_so() -> None:
    asked, unasked = server_entries({"a": "", "b": ""}, {"a": []})
    assert (asked.known, unasked.known) == (True, False)


def test_a_result_that_is_wrapped_only_for_mcp_is_told_as_programs_get_it() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
    schema = {
        "type": "object",
        "$defs": {"Row": row},
        "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/Row"}}},
        "required": ["result"],
        "x-fastmcp-wrap-result": True,
    }
    rows = Tool(server="s", name="rows", output_schema=schema)
    [entry] = tool_entries([rows])
    assert call_signature("s", entry) == "mcp_s.rows() -> list[{'id': int}]"
    assert "list[" in tool_stub(entry, "s")
