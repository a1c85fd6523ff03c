"""What the preflight takes for given must be what the guest has."""

from __future__ import annotations

import ast
import inspect
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bridge.catalog.entries import ServerEntry, tool_entries
from bridge.catalog.program import guard
from bridge.catalog.program.advice import explain_syntax
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.expected_calls import expected_calls
from bridge.catalog.program.guard import MAX_FINDINGS
from bridge.catalog.program.parsing import parse
from bridge.catalog.program.references import references
from bridge.catalog.program.survey import Survey
from bridge.catalog.program.symbols import (
    BY_NAME,
    HELPERS,
    MODULE_NAMES,
    RUNTIME_TYPES,
    SERVER_METHODS,
    Helper,
)
from bridge.guest.api.arguments import BoundParameters
from bridge.guest.api.proxies import Server, ServerModule
from bridge.guest.api.runtime import PUBLIC, Runtime
from bridge.guest.protocol.helpers import GLOBAL_HELPERS, OF_SERVERS, OWN_GLOBALS
from bridge.model import Finding, Tool

KINDS = inspect.Parameter


def test_the_helpers_are_those_of_the_guest() -> None:
    assert set(HELPERS) == set(PUBLIC) - RUNTIME_TYPES


@pytest.mark.parametrize("name", sorted(HELPERS.keys() - BY_NAME))
def test_a_helper_is_called_as_the_guest_has_it(name: str) -> None:
    function = getattr(Runtime, name)
    parameters = list(inspect.signature(function).parameters.values())[1:]
    positional = [
        p for p in parameters if p.kind in (KINDS.POSITIONAL_OR_KEYWORD, KINDS.POSITIONAL_ONLY)
    ]
    assert HELPERS[name] == Helper(
        name=name,
        asynchronous=inspect.iscoroutinefunction(function),
        positional=tuple(p.name for p in positional),
        keywords=tuple(p.name for p in parameters if p.kind == KINDS.KEYWORD_ONLY),
        required=sum(p.default is KINDS.empty for p in positional),
        open=any(p.kind == KINDS.VAR_KEYWORD for p in parameters),
    )


def test_the_methods_of_a_server_are_those_of_the_guest() -> None:
    own = {name for name in vars(Server) if not name.startswith("_")}
    assert set(SERVER_METHODS) == own | set(OF_SERVERS)
    assert own == {"list_tools"}


def test_the_names_of_a_run_are_there() -> None:
    source = inspect.getsource(inspect.getmodule(Runtime).build)  # type: ignore[union-attr]
    own = OWN_GLOBALS - GLOBAL_HELPERS
    assert [name for name in own if f'"{name}"' not in source and f"{name}=" not in source] == []
    module = inspect.getsource(ServerModule)
    assert all(name in module for name in MODULE_NAMES)


SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {}}, "required": ["a"]},
    {"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": False},
    {"type": "object", "additionalProperties": {"type": "string"}},
    {"type": "object"},
    {"properties": {"from": {}, "x-y": {"enum": [1, "2"]}}, "required": ["from", "z"]},
    {"anyOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}]},
]

VALUES = st.sampled_from(["1", "'x'", "None", "[1, 'x']", "{'a': 1}", "1.5", "True", "-3", "(1,)"])
CALLS = st.tuples(
    st.lists(VALUES, max_size=3),
    st.dictionaries(st.sampled_from(["a", "b", "c", "from_", "x_y", "z"]), VALUES, max_size=3),
)


def test_an_empty_dict_is_an_argument() -> None:
    bound, wrong = BoundParameters("t", SCHEMAS[0]).bind_all(({"a": "x"},), {})
    assert (bound, wrong) == ({"a": "x"}, [])
    schema = {"properties": {"a": {"type": "string"}}}
    with pytest.raises(TypeError, match="does not fit"):
        BoundParameters("t", schema).bind(({},), {})


@given(schema=st.sampled_from(SCHEMAS), call=CALLS)
def test_a_call_is_refused_here_only_if_the_guest_refuses_it(
    schema: dict[str, Any], call: tuple[list[str], dict[str, str]]
) -> None:
    positional, named = call
    tool = Tool(server="s", name="t", input_schema=schema)
    server = ServerEntry(name="s", alias="s", tools=tool_entries([tool]), known=True)
    given_arguments = [*positional, *(f"{name}={value}" for name, value in named.items())]
    tree = parse(f"await mcp_s.t({', '.join(given_arguments)})")
    assert isinstance(tree, ast.Module)
    certain = check_program(Survey(tree), [server], {"s": "s"}).certain
    args = tuple(ast.literal_eval(value) for value in positional)
    kwargs = {name: ast.literal_eval(value) for name, value in named.items()}
    try:
        BoundParameters("t", schema).bind(args, kwargs)
    except TypeError:
        refused = True
    else:
        refused = False
    if certain:
        assert refused, [str(found) for found in certain]


PIECES = st.lists(
    st.sampled_from(
        [
            "import os", "from os import *", "from . import a", "os", "eval", "getattr", "global a",
            "nonlocal a", "def f(a=1, *b, c: d, **e):", "class A(B, c=d):", "lambda a:", "async ",
            "await ", "(", ")", "[", "]", "{", "}", ",", ":", "=", ":=", ".", "system", "a", "'a'",
            "f'{a}'", "b'x'", "+", "/", "*", "**", "\n", "\n ", "\n  ", "match a:", "case", "as",
            "try:", "except* A as a:", "with", "for a in", "if", "else", "__import__", "'", '"',
            "'''", "\\", "\0", "\ufeff", "\f", "\r", "\ud800", "9" * 50, "open", "mcp_s", ".t(",
            "__globals__", "sys.modules", ".join", "/etc/shadow", "@", "->", "type X[T] = T", "...",
            "mcp_servers", "from mcp.servers import ", "runtime.call_tool(", "gather", ".get",
            "print", "return ", "yield ", "del ",
        ]
    ),
    max_size=40,
).map(" ".join)  # fmt: skip


@given(st.text(st.characters(codec=None)) | PIECES)
@example("\x00")
@example("f'{")
@example("[*a for a in b]\n\x0c  \\\n")
@example("def f[T: (int, str)](x): return x.__code__")
@example("-" * 900 + "1")
@example("f(" * 80 + ")" * 80)
@example("a" + ".b" * 3000)
@example("x = " + "1 + " * 3000 + "1")
@example("\n".join("  " * depth + "if x:" for depth in range(200)))
@example("from mcp.servers import " * 5_000)
def test_any_text_has_a_verdict(code: str) -> None:
    tool = Tool(server="s", name="t", input_schema=SCHEMAS[0])
    server = ServerEntry(name="s", alias="s", tools=tool_entries([tool]), known=True)
    tree = parse(code)
    if isinstance(tree, Finding):
        findings = explain_syntax(code, tree).findings
    else:
        survey = Survey(tree)
        expected_calls(survey, [server])
        found = references(survey, {"s": "s"})
        assert set(found.servers) <= {"s"}
        "".join(found.unknown.values()).encode()
        verdict = check_program(survey, [server], {"s": "s"})
        findings = (*verdict.findings, *guard.check(survey).findings)
    assert len(findings) <= 4 * MAX_FINDINGS
    assert all(one.line >= 0 and len(one.message) <= 1000 for one in findings)
    "".join(map(str, findings)).encode()
