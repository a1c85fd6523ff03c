"""What the preflight takes for given must be what the guest has."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.catalog.entries import ServerEntry, tool_entries
from bridge.catalog.program.advice import explained
from bridge.catalog.program.checks import check_program
from bridge.catalog.program.parsing import Unread, parse
from bridge.catalog.program.survey import Survey
from bridge.catalog.program.tables import (
    BY_NAME,
    HELPERS,
    MODULE_NAMES,
    OWN_GLOBALS,
    RUNTIME_TYPES,
    SERVER_METHODS,
    Helper,
)
from bridge.guest.api.arguments import Parameters
from bridge.guest.api.proxies import Server, ServerModule
from bridge.guest.api.runtime import OF_SERVERS, PUBLIC, Runtime
from bridge.guest.protocol.helpers import GLOBAL_HELPERS
from bridge.model import Tool

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
    """The guest builds them in one place; this reads their names there."""
    source = inspect.getsource(inspect.getmodule(Runtime).build)  # type: ignore[union-attr]
    assert all(f'"{name}"' in source for name in OWN_GLOBALS - GLOBAL_HELPERS)
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
    bound, wrong = Parameters("t", SCHEMAS[0]).bind_all(({"a": "x"},), {})
    assert (bound, wrong) == ({"a": "x"}, [])
    schema = {"properties": {"a": {"type": "string"}}}
    with pytest.raises(TypeError, match="does not fit"):
        Parameters("t", schema).bind(({},), {})


@given(schema=st.sampled_from(SCHEMAS), call=CALLS)
def test_a_call_is_refused_here_only_if_the_guest_refuses_it(
    schema: dict[str, Any], call: tuple[list[str], dict[str, str]]
) -> None:
    """Anything else would keep a program from running that works."""
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
        Parameters("t", schema).bind(args, kwargs)
    except TypeError:
        refused = True
    else:
        refused = False
    if certain:
        assert refused, [str(found) for found in certain]


@pytest.mark.parametrize(
    "code",
    [
        "def first[T](items: list[T]) -> T:\n    return items[0]",
        "class Box[T]:\n    pass",
        "type Pair = tuple[int, int]",
        'print(f"{d["key"]}")',
        "print(f'{x!r:{'>'}{10}}')",
        "print(f'''{\n3 + # comment\n4}''')",
        "print(t'{x}')",
        "try:\n    pass\nexcept A, B:\n    pass",
        "print(f'{x}')\ntype Pair = int",
        'x = f"{a["“"]}"',
        "lazy import json",
        "print(f'''\n// {d['a']} {'b'}''')",
    ],
)
def test_syntax_that_only_a_newer_python_knows_is_for_that_to_judge(code: str) -> None:
    tree = parse(code)
    if isinstance(tree, Unread):
        assert [found.severity for found in explained(code, tree).findings] == ["note"]


FRAGMENTS = re.split(
    r"\|",
    "mcp_s|.t|(|)|await |    |x| = |[|]|'k'|:|def f|async |for x in |if |try|except |lambda |, |*|"
    "**|f'{|}'|import json|return |yield |class A|with | as |global x|runtime|.call_tool|print|"
    "match x|case |else|del |:=|@|asyncio.gather",
)
WORDS = st.lists(st.sampled_from([*FRAGMENTS, "\n"]), max_size=30).map("".join)


@given(code=WORDS)
def test_any_text_has_a_verdict(code: str) -> None:
    tool = Tool(server="s", name="t", input_schema=SCHEMAS[0])
    server = ServerEntry(name="s", alias="s", tools=tool_entries([tool]), known=True)
    tree = parse(code)
    if isinstance(tree, Unread):
        assert all(found.message for found in explained(code, tree).findings)
    else:
        check_program(Survey(tree), [server], {"s": "s"})


def test_depth_costs_no_recursion() -> None:
    """The parser takes deeper nesting than a recursive walk would."""
    for code in (
        "-" * 900 + "1",
        "f(" * 80 + ")" * 80,
        "a" + ".b" * 3000,
        "x = " + "1 + " * 3000 + "1",
    ):
        tree = parse(code)
        if isinstance(tree, ast.Module):
            check_program(Survey(tree), [], {})
