"""Stubs: valid Python whatever servers write, accepted by checkers, the same in the guest."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bridge.catalog.entries import (
    MAX_STUB_CHARS,
    ServerEntry,
    ToolEntry,
    server_stub,
    tool_data,
    tool_stub,
)
from bridge.guest.api.proxies import Server, Tools
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
    entry = ToolEntry(tool=tool, alias="get", observed=CREATED, observations=3)
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


async def _call(server: str, tool: str, arguments: dict[str, Any]) -> Any:
    raise AssertionError((server, tool, arguments))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NASTY if name != "hides builtins"])
def test_help_in_a_run_agrees_with_the_stub(name: str) -> None:
    entry = a_server(*NASTY[name], name=name)
    data = {"name": name, "alias": entry.alias, "tools": [tool_data(t) for t in entry.tools]}
    guest = Server(Tools(_call, data))
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
