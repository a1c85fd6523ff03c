"""Stubs: valid Python whatever servers write, accepted by checkers, the same in the guest."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.catalog.entries import (
    MAX_SIGNATURE_CHARS,
    MAX_STUB_CHARS,
    Observation,
    ServerEntry,
    ToolEntry,
    call_signature,
    server_stub,
    signature,
    tool_data,
    tool_entries,
    tool_stub,
)
from bridge.guest.api.arguments import BoundParameters
from bridge.guest.api.proxies import Server, Tools
from bridge.model import Tool
from tests.catalog.nasty_servers import (
    CREATED,
    ISSUE,
    NASTY,
    STRING,
    a_server,
    a_tool,
    nasty_entries,
)
from tests.golden_texts import assert_golden
from tests.schema_strategies import ANY_SCHEMA


@pytest.mark.parametrize("text", ['"', '"""', 'a"""', 'a\\"', '\\"""', '""""', 'a""b"""c"', "\\"])
def test_a_docstring_holds_its_text_whatever_that_ends_with(text: str) -> None:
    server = a_server(a_tool("t", {}, description=text), description=f"Says {text}")
    function = ast.parse(tool_stub(server.tools[0])).body[0]
    assert isinstance(function, ast.AsyncFunctionDef)
    assert ast.get_docstring(function, clean=False) == text
    whole = ast.parse(server_stub(server))
    [described] = [node for node in whole.body if isinstance(node, ast.ClassDef)]
    assert f"Says {text}" in str(ast.get_docstring(described, clean=False))


def test_a_tool_becomes_a_typed_function_with_its_units_and_limits() -> None:
    server = a_server(a_tool("create-issue", ISSUE, CREATED, 'Create an issue.\n\nSays """so""".'))
    stub = tool_stub(server.tools[0], "git_hub")
    assert_golden(Path(__file__).with_name("stub.json"), {"stub": stub.splitlines()})


def test_what_was_only_observed_is_said_to_be() -> None:
    tool = a_tool("get", {"properties": {}})
    entry = ToolEntry(tool=tool, alias="get", observed=Observation(schema=CREATED, count=3))
    stub = tool_stub(entry)
    assert "-> GetResult:" in stub
    assert "Observed in 3 calls; may differ." in stub


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": ["integer", "null"]}, "int | None"),
        ({"enum": ["a", 1, None, True]}, "Literal['a', 1, True] | None"),
        ({"enum": [1.5, 2]}, "float | int"),
        ({"enum": [None]}, "None"),
        ({"enum": ["\ud800", "b"]}, "str"),
        ({"enum": [f"value {n}" for n in range(500)]}, "str"),
        ({"const": "x"}, "Literal['x']"),
        ({"type": "array"}, "list[Any]"),
        ({"items": {"type": "array", "items": {"type": "number"}}}, "list[list[float]]"),
        ({"prefixItems": [STRING, {"type": "integer"}]}, "list[str | int]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"additionalProperties": {"type": "integer"}}, "dict[str, int]"),
        ({"type": "string", "nullable": True}, "str | None"),
        ({"oneOf": [STRING, {"type": "object", "properties": {"a": {}}}]}, "str | TX2"),
        ({"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}, "TX"),
        ({"allOf": [STRING, {"minLength": 1}]}, "str"),
        ({"$ref": "#/nowhere"}, "Any"),
        ({"$ref": "#"}, "TX"),
        ({"$ref": "#/properties/x"}, "Any"),
        ({"type": "date"}, "Any"),
        (False, "Any"),
        (7, "Any"),
    ],
)
def test_schemas_become_types(schema: Any, text: str) -> None:
    root = {"properties": {"x": schema}, "required": ["x"]}
    stub = tool_stub(a_server(a_tool("t", root)).tools[0])
    function = next(n for n in ast.parse(stub).body if isinstance(n, ast.AsyncFunctionDef))
    annotation = function.args.args[0].annotation
    assert annotation is not None
    assert ast.unparse(annotation) == text


@pytest.mark.parametrize("entry", nasty_entries(), ids=[*NASTY, "ugly name"])
def test_stubs_of_nasty_servers_are_python_of_bounded_size(entry: ServerEntry) -> None:
    started = time.process_time()
    for text in (server_stub(entry), *map(tool_stub, entry.tools)):
        compile(text, "stub", "exec")
        assert len(text) < 120_000
        assert text.isprintable() or not set(text) & {"\x00", "\u2028", "\r", "\x0c"}
    # A bound of the work and not of the time, by two orders of magnitude.
    assert time.process_time() - started < 60


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(schema=ANY_SCHEMA, output=st.dictionaries(st.text(), ANY_SCHEMA, max_size=4), text=st.text())
def test_any_json_makes_python(schema: Any, output: Any, text: str) -> None:
    tools = a_tool(text, schema, schema if isinstance(schema, Mapping) else output, text)
    server = a_server(tools, a_tool("second", {"properties": output}), description=text)
    for stub in (server_stub(server), tool_stub(server.tools[0])):
        compile(stub, "stub", "exec")


def test_stubs_of_thousands_of_tools_stay_bounded() -> None:
    tools = [a_tool(f"tool_{n}", ISSUE, CREATED, "word " * 200) for n in range(1_500)]
    server = a_server(*tools)
    text = server_stub(server)
    assert len(text) < MAX_STUB_CHARS * 1.5
    assert "    async def tool_1499(self" in text
    compile(text, "stub", "exec")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NASTY if name != "hides builtins"])
def test_help_in_a_run_agrees_with_the_stub(name: str) -> None:
    entry = a_server(*NASTY[name], name=name)
    data = {"name": name, "alias": entry.alias, "tools": [tool_data(t) for t in entry.tools]}
    guest = Server(Tools(None, data))  # type: ignore[arg-type]
    for tool in entry.tools:
        function = getattr(guest, tool.alias)
        parsed = ast.parse(tool_stub(tool))
        stub = next(node for node in parsed.body if isinstance(node, ast.AsyncFunctionDef))
        shown = str(inspect.signature(function))
        alone = ast.parse(f"def f{shown}: ...").body[0]
        assert isinstance(alone, ast.FunctionDef)
        assert ast.unparse(stub.args) == ast.unparse(alone.args)
        assert stub.returns is not None
        assert alone.returns is not None
        assert ast.unparse(stub.returns) == ast.unparse(alone.returns)
        written = ast.get_docstring(stub) or ""
        told = inspect.cleandoc(function.__doc__).partition("\n\nTypes:\n")[0]
        assert written == ("" if told.startswith("Types:\n") else told)


def test_mypy_accepts_stubs(tmp_path: Path) -> None:
    for number, entry in enumerate(nasty_entries()):
        (tmp_path / f"stub_{number}.py").write_text(server_stub(entry))
    done = subprocess.run(
        [
            sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file=",
            f"--cache-dir={tmp_path / 'cache'}", *map(str, sorted(tmp_path.glob("*.py"))),
        ],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("", 0)


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
        input_schema={"type": "object", "properties": properties or {}, "required": required or []},
        output_schema=output,
    )


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


def test_the_guest_learns_what_was_observed() -> None:
    document = tool_data(
        ToolEntry(tool=tool(), alias="x", observed=Observation(schema={"a": 1}, count=2))
    )
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
OBSERVED = ToolEntry(tool=tool(), alias="x", observed=Observation(schema=SEEN, count=2))

ENTRIES: dict[str, Tool | ToolEntry] = {
    "types and defaults": tool(
        properties={"repo": STRING, "labels": LABELS, "state": STATE}, required=["repo"], output=ROW
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
    "much observed": replace(OBSERVED, observed=Observation(schema=MANY, count=2)),
}


def test_signatures_are_as_the_file_says() -> None:
    texts = {}
    for name, one in ENTRIES.items():
        entry = one if isinstance(one, ToolEntry) else tool_entries([one])[0]
        texts[name] = call_signature("git_hub", entry)
        assert len(texts[name]) <= MAX_SIGNATURE_CHARS + 20
    assert_golden(Path(__file__).with_name("signatures.json"), texts)
