"""What a program finds around it, as the head of a module for a type checker.

Owns a text that differs from the stubs for reading: it must not make a checker complain of what
works. Arguments are as wide as the guest's conversions (a path for a string, any collection for a
list, None for what may be left out), since invariance and inference would have a checker refuse
`list[int]` for `list[float]`, or a variable for a `Literal`; what is wrong in arguments written out
is found by the check of the program itself. Results are dicts with attributes: a field that a
server declares has its type either way, one that it does not declare is an error by attribute only.

Its own names begin with an underscore or are long, so that a program under it rarely means them.
"""

from __future__ import annotations

import keyword
from collections.abc import Sequence

from bridge.catalog.entries import SERVER_METHODS, ServerEntry, ToolEntry
from bridge.catalog.typed_methods import parameter_list, receiver, tool_data
from bridge.guest.schemas import ANYTHING, leaves, wanted_types
from bridge.guest.signatures import Head
from bridge.guest.typetext import Names, Object, class_base

MAX_ENVIRONMENT_CHARS = 1_000_000
"""Of all servers together. Past it tools take and return anything."""

_LOOSE = {
    "string": "_Text",
    "integer": "_b.int",
    "number": "_Number",
    "boolean": "_b.bool",
    "array": "_t.Collection[_t.Any]",
    "object": "_Object",
    "null": "None",
}

_OF_DICT = frozenset(dir(dict))
"""What a key cannot be read by attribute for."""

_PRELUDE = """\
from __future__ import annotations

import builtins as _b
import collections.abc as _abc
import datetime as _datetime
import decimal as _decimal
import enum as _enum
import os as _os
import typing as _t
import uuid as _uuid

_Text = _t.Union[
    _b.str, _os.PathLike[_b.str], _datetime.date, _datetime.time, _uuid.UUID, _enum.Enum,
    _decimal.Decimal,
]
_Number = _t.Union[_b.float, _decimal.Decimal]


class _Dataclass(_t.Protocol):
    __dataclass_fields__: _t.ClassVar[_b.dict[_b.str, _t.Any]]


_Object = _t.Union[_abc.Mapping[_b.str, _t.Any], _Dataclass]


class _Fields(_b.dict[_b.str, _t.Any]):
    def __getitem__(self, key: _b.str, /) -> _t.Any: ...
    def __setattr__(self, name: _b.str, value: _t.Any, /) -> None: ...
    def get(self, key: _b.object, default: _t.Any = None, /) -> _t.Any: ...


class _Result(_Fields):
    def __getattr__(self, name: _b.str, /) -> _t.Any: ...


class Blob:
    mime_type: _b.str
    data: _b.bytes
    uri: _b.str
    name: _b.str

    def __init__(
        self, mime_type: _b.str, data: _b.bytes, uri: _b.str = "", name: _b.str = ""
    ) -> None: ...
    def __len__(self) -> _b.int:
        raise NotImplementedError

    def __bytes__(self) -> _b.bytes:
        raise NotImplementedError

    def save(self, path: _t.Any) -> _b.str:
        raise NotImplementedError


class MCPError(RuntimeError):
    message: _b.str
    server: _b.str
    tool: _b.str
    kind: _b.str
    data: _t.Any
    code: _t.Any

    def __init__(
        self,
        message: _b.str,
        *,
        server: _b.str = "",
        tool: _b.str = "",
        kind: _b.str = "tool",
        data: _t.Any = None,
        code: _t.Any = None,
    ) -> None: ...


_MCPError = MCPError


class _Server(_t.Protocol):
    def __getitem__(self, name: _b.str, /) -> _t.Any: ...
    def __iter__(self) -> _t.Iterator[_b.str]: ...
"""

_OFFERS = {
    "get_prompt": "name: _b.str, arguments: _t.Optional[_abc.Mapping[_b.str, _t.Any]] = None",
    "list_prompts": "",
    "list_resource_templates": "",
    "list_resources": "",
    "list_tools": "",
    "read_resource": "uri: _b.str, /, **values: _t.Any",
}

_RUNTIME = """\
class _Runtime(_t.Protocol):
    MCPError: _b.type[_MCPError]

    async def call_tool(
        self,
        server: _b.str,
        tool: _b.str,
        arguments: _t.Optional[_abc.Mapping[_b.str, _t.Any]] = None,
    ) -> _t.Any: ...
    async def call_tool_raw(
        self,
        server: _b.str,
        tool: _b.str,
        arguments: _t.Optional[_abc.Mapping[_b.str, _t.Any]] = None,
    ) -> _t.Any: ...
    def capability_summary(self) -> _b.str: ...
    async def complete(
        self,
        server: _b.str,
        ref: _b.str,
        argument: _b.str,
        value: _b.str = "",
        **known: _t.Any,
    ) -> _b.list[_b.str]: ...
    def delete_memory(self, key: _b.str) -> _t.Any: ...
    def delete_skill(self, name: _b.str) -> _t.Any: ...
    def describe_server(self, name: _b.str) -> _Result: ...
    def discovered_servers(self, detailed: _b.bool = False) -> _b.tuple[_t.Any, ...]: ...
    async def get_prompt(
        self,
        server: _b.str,
        name: _b.str,
        arguments: _t.Optional[_abc.Mapping[_b.str, _t.Any]] = None,
    ) -> _t.Any: ...
    def get_memory_info(self, key: _b.str) -> _t.Any: ...
    def list_loaded_server_metadata(self) -> _b.tuple[_Result, ...]: ...
    def list_memories(self) -> _t.Any: ...
    async def list_prompts(self, server: _t.Optional[_b.str] = None) -> _t.Any: ...
    async def list_resource_templates(self, server: _t.Optional[_b.str] = None) -> _t.Any: ...
    async def list_resources(self, server: _t.Optional[_b.str] = None) -> _t.Any: ...
    async def list_servers(self) -> _t.Any: ...
    def list_servers_sync(self) -> _b.tuple[_b.str, ...]: ...
    def list_skills(self) -> _t.Any: ...
    async def list_tools(self, server: _b.str) -> _t.Any: ...
    def list_tools_sync(
        self, server: _t.Optional[_b.str] = None
    ) -> _b.list[_b.dict[_b.str, _t.Any]]: ...
    def load_memory(self, key: _b.str, default: _t.Any = None) -> _t.Any: ...
    def load_skill(self, name: _b.str) -> _t.Any: ...
    def memory_exists(self, key: _b.str) -> _t.Any: ...
    def progress(
        self, done: _b.float, total: _b.float = 0, message: _b.str = ""
    ) -> None: ...
    async def query_tool_docs(
        self, server: _b.str, tool: _t.Optional[_b.str] = None, detail: _b.str = "summary"
    ) -> _t.Any: ...
    def query_tool_docs_sync(
        self, server: _b.str, tool: _t.Optional[_b.str] = None, detail: _b.str = "summary"
    ) -> _b.list[_t.Any]: ...
    async def read_output(
        self,
        run_id: _b.str,
        stream: _b.str = "stdout",
        *,
        offset: _b.int = 0,
        length: _t.Optional[_b.int] = None,
        lines: _t.Optional[_abc.Sequence[_b.int]] = None,
        find: _t.Optional[_b.str] = None,
        limit: _b.int = 100,
    ) -> _t.Any: ...
    async def read_resource(
        self, server: _b.str, uri: _t.Optional[_b.str] = None, /, **values: _t.Any
    ) -> _t.Any: ...
    async def watch_resource(
        self, server: _b.str, uri: _b.str, timeout: _t.Optional[_b.float] = None
    ) -> _t.Any: ...
    def save_memory(self, key: _b.str, value: _t.Any, metadata: _t.Any = None) -> _t.Any: ...
    def save_skill(
        self,
        function: _t.Any,
        description: _t.Optional[_b.str] = None,
        name: _t.Optional[_b.str] = None,
    ) -> _t.Any: ...
    def save_tool(
        self,
        function: _t.Any,
        description: _t.Optional[_b.str] = None,
        name: _t.Optional[_b.str] = None,
    ) -> _t.Any: ...
    async def search_tool_docs(
        self, query: _b.str, *, limit: _b.int = 5, detail: _b.str = "summary"
    ) -> _t.Any: ...
    def search_tool_docs_sync(
        self, query: _b.str, *, limit: _b.int = 5, detail: _b.str = "summary"
    ) -> _b.list[_t.Any]: ...
    def update_memory(self, key: _b.str, update_fn: _t.Any) -> _t.Any: ...


def _given() -> _t.Any:
    return None


def display(*values: _t.Any) -> None: ...


runtime: _Runtime = _given()
mcp_servers: _abc.Mapping[_b.str, _t.Any] = _given()
LOADED_MCP_SERVERS: _b.tuple[_b.str, ...] = _given()
mcp: _t.Any = _given()
delete_memory: _t.Any = _given()
get_memory_info: _t.Any = _given()
list_memories: _t.Any = _given()
load_memory: _t.Any = _given()
memory_exists: _t.Any = _given()
save_memory: _t.Any = _given()
save_tool: _t.Any = _given()
update_memory: _t.Any = _given()
"""


def environment_stub(entries: Sequence[ServerEntry]) -> str:
    """Return everything that a program with these servers sees, as a module's text."""
    names = Names(builtins="_b.", shadowed=None, typing="_t.")
    servers: list[str] = []
    size = 0
    for entry in entries:
        text, name = _server(entry, names, size)
        size += len(text)
        servers.append(f"{text}\n\nmcp_{entry.alias}: {name} = _given()\n")
    return "\n\n".join([_PRELUDE, _RUNTIME, *servers])


def _server(entry: ServerEntry, names: Names, size: int) -> tuple[str, str]:
    base = class_base(entry.alias)
    name = names.take(f"_{base}Server")
    classes: list[str] = []
    methods: list[str] = []
    taken = {tool.alias for tool in entry.tools}
    for offer in sorted(SERVER_METHODS - taken):
        parameters = _OFFERS[offer]
        receiver = f"self, {parameters}" if parameters else "self"
        methods.append(f"    async def {offer}({receiver}) -> _t.Any: ...")
    for tool in entry.tools:
        if size > MAX_ENVIRONMENT_CHARS:
            methods.append(
                f"    async def {tool.alias}(self, *a: _t.Any, **k: _t.Any) -> _t.Any: ..."
            )
            continue
        own, method = _method(tool, base, names)
        classes += own
        methods.append(method)
        size += sum(map(len, own)) + len(method)
    body = "\n".join(methods)
    types = "".join(f"{part}\n\n\n" for part in classes)
    return f"{types}class {name}(_Server, _t.Protocol):\n{body}\n", name


def _method(entry: ToolEntry, base: str, names: Names) -> tuple[list[str], str]:
    data = tool_data(entry)
    # Without its own classes for arguments, which would be names for nothing.
    head = Head(data, names, prefix=f"_{base}")
    root = data["inputSchema"]
    for argument, parameter in zip(head.arguments, head.shown, strict=True):
        optional = argument.default is not None
        argument.text = _loose(parameter.schema, root, optional)
        # In a protocol there is no need for another.
        argument.default = "..." if optional else None
    own = [receiver(head.arguments), *parameter_list(head.arguments, head.rest, "_t.Any")]
    parts = ", ".join(own)
    observed = bool(head.typed.observed)
    classes = [_result_class(made, observed) for made in head.typed.results]
    return classes, f"    async def {entry.alias}({parts}) -> {head.typed.returns}: ..."


def _loose(schema: object, root: object, optional: bool) -> str:
    wanted = wanted_types(leaves(schema, root))
    if ANYTHING in wanted:
        return "_t.Any"
    parts = [text for kind, text in _LOOSE.items() if kind in wanted and kind != "null"]
    if optional or "null" in wanted:
        parts.append("None")
    return " | ".join(parts) or "_t.Any"


def _result_class(made: Object, observed: bool) -> str:
    # Of what was only seen so far, other fields may turn up the next time.
    is_open = observed or made.is_open or made.more
    lines = [f"class {made.name}({'_Result' if is_open else '_Fields'}):"]
    lines += [f"    {field.key}: {field.text}" for field in made.fields if _is_attribute(field.key)]
    overloads = []
    for field in made.fields:
        overloads += [
            "    @_t.overload",
            f"    def __getitem__(self, key: _t.Literal[{field.key!r}], /) -> {field.text}: ...",
        ]
    if overloads:
        lines += [
            *overloads,
            "    @_t.overload",
            "    def __getitem__(self, key: _b.str, /) -> _t.Any: ...",
            "    def __getitem__(self, key: _b.str, /) -> _t.Any:",
            "        raise NotImplementedError",
        ]
    return "\n".join(lines if len(lines) > 1 else [*lines, "    pass"])


def _is_attribute(key: str) -> bool:
    return (
        key.isidentifier()
        and not keyword.iskeyword(key)
        and not key.startswith("_")
        and key not in _OF_DICT
    )
