from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.catalog.entries import (
    MAX_SIGNATURE_CHARS,
    ToolEntry,
    call_signature,
    run_server,
    signature,
    to_call,
    tool_data,
    tool_entries,
    tool_stub,
)
from bridge.guest.api.arguments import BoundParameters
from bridge.model import Tool
from tests.catalog.nasty_servers import server_entries
from tests.golden_texts import assert_golden


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


def test_an_argument_has_one_spelling_in_every_text() -> None:
    made = tool(
        properties={"a": STRING, "x-y": {"type": "integer"}, "from": STRING, "ﬁ": STRING},
        required=["a", "from"],
    )
    spelled = "a: str, x_y: int = ..., *, from_: str, fi: str = ..."
    assert signature(made, "x") == f"async def x({spelled}) -> Any"
    entry = ToolEntry(tool=made, alias="x")
    assert spelled in tool_stub(entry)
    parameters = BoundParameters("x", made.input_schema)
    assert str(parameters.signature()) == f"({spelled})"
    with pytest.raises(TypeError, match="required argument `from_`"):
        parameters.bind(("1",), {})
    given = {"x_y": 1, "from_": "f", "fi": "g"}
    assert parameters.bind(("1",), given) == {"a": "1", "x-y": 1, "from": "f", "ﬁ": "g"}


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


ROW = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
NESTED = {"type": "object", "properties": {f"field{n}": STRING for n in range(10)}}
SEEN = {"type": "object", "properties": {"file": {"title": "Blob"}}, "required": ["file"]}
WRAPPED = {
    "type": "object",
    "$defs": {"Row": ROW},
    "properties": {"result": {"type": "array", "items": {"$ref": "#/$defs/Row"}}},
    "required": ["result"],
    "x-fastmcp-wrap-result": True,
}
MANY = {"a": STRING, **{f"option{n}": STRING for n in range(90)}, "b": STRING}
FEW = {name: MANY[name] for name in ("a", *[f"option{n}" for n in range(30)], "b")}
STATE = {"enum": ["open", "closed"], "default": "open"}
LABELS = {"type": "array", "items": STRING}
OBSERVED = ToolEntry(tool=tool(), alias="x", observed=SEEN, observations=2)

ENTRIES: dict[str, Tool | ToolEntry] = {
    "types and defaults": tool(
        properties={"repo": STRING, "labels": LABELS, "state": STATE},
        required=["repo"],
        output=ROW,
    ),
    "required after optional": tool(
        properties={"a": STRING, "limit": {"type": "integer"}, "b": STRING}, required=["a", "b"]
    ),
    "no arguments": tool(),
    "only required": tool(properties={"a": STRING}, required=["a"]),
    "coarser types": tool(properties={f"part{n}": NESTED for n in range(8)}, output=NESTED),
    "only names": tool(properties=FEW, required=["a", "b"]),
    "others": tool(properties=MANY, required=["a", "b"]),
    "others, all required": tool(properties=MANY, required=list(MANY)),
    "absurd names": tool(properties={"a" * 1_000_000: STRING, "-" * 1_000_000: {}, "b": STRING}),
    "any arguments": Tool(server="s", name="t", input_schema={"additionalProperties": True}),
    "wrapped": tool(output=WRAPPED),
    "observed": OBSERVED,
    "observed and declared": replace(OBSERVED, tool=tool(output={"type": "string"})),
    "much observed": replace(OBSERVED, observed=MANY),
}


def test_signatures_are_as_the_file_says() -> None:
    texts = {}
    for name, one in ENTRIES.items():
        entry = one if isinstance(one, ToolEntry) else tool_entries([one])[0]
        texts[name] = call_signature("git_hub", entry)
        assert len(texts[name]) <= MAX_SIGNATURE_CHARS + 20
    assert_golden(Path(__file__).with_name("signatures.json"), texts)
