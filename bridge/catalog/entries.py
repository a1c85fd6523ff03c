"""Servers and tools with their aliases and signatures, typed stubs, and the data for the guest.

A set of names has the same aliases in every run. The guest makes functions from data, without
source, so nothing that a server writes can become code. In a stub, servers' texts appear only in
comments, docstrings and literals, cleaned and quoted.
"""

from __future__ import annotations

import keyword
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from bridge.guest.schema.names import own_letters
from bridge.guest.schema.parameters import Parameter, read_parameters
from bridge.guest.schema.schemas import as_mapping
from bridge.guest.schema.typetext import (
    Head,
    Names,
    class_base,
    function_docstring,
    has_usual_name,
    typed_dicts,
)
from bridge.model import Json, Tool
from bridge.text import one_line, valid_text

MAX_ALIAS_CHARS = 64  # Servers choose their names, and a model pays for the length.
RESERVED_SERVER_ALIASES = frozenset({"servers"})  # `mcp_servers` is the mapping of all servers.
RESERVED_TOOL_ALIASES = frozenset({"list_tools"})  # Methods of every server object.

_OTHER = re.compile(r"[^a-z0-9_]+")

# The guest's Python may have more soft keywords than this interpreter.
_WORDS = frozenset(keyword.kwlist) | frozenset(keyword.softkwlist) | {"match", "case", "type"}


def server_aliases(names: Sequence[str]) -> dict[str, str]:
    """Return each server name's alias, in the order given; `mcp_<alias>` is what programs use."""
    return _aliases(names, default="server", reserved=RESERVED_SERVER_ALIASES)


def tool_aliases(names: Sequence[str]) -> dict[str, str]:
    return _aliases(names, default="tool", reserved=RESERVED_TOOL_ALIASES)


def _aliases(names: Iterable[str], *, default: str, reserved: frozenset[str]) -> dict[str, str]:
    unique = dict.fromkeys(names, "")
    bases = {name: _base(name, default, reserved) for name in unique}
    taken = set(bases.values())
    numbers: dict[str, int] = {}
    aliases = unique.copy()
    for name in sorted(unique, key=lambda name: (bases[name], name != bases[name], name)):
        base = alias = bases[name]
        while base in numbers and alias in taken:
            alias = f"{base}_{numbers[base]}"
            numbers[base] += 1
        numbers.setdefault(base, 2)
        taken.add(alias)
        aliases[name] = alias
    return aliases


def _base(name: str, default: str, reserved: frozenset[str]) -> str:
    plain = name[:1024]  # A server chooses the name.
    if not plain.isascii():
        taken_apart = unicodedata.normalize("NFKD", plain)
        plain = "".join(char for char in taken_apart if not unicodedata.combining(char))
    base = _OTHER.sub("_", plain.lower()).strip("_") or default
    if base[0].isdigit():
        base = f"_{base}"
    base = base[:MAX_ALIAS_CHARS].rstrip("_")
    if base in _WORDS or base in reserved:
        base = f"{base}_"
    return base


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The learned shape of a tool's results, without any value, and from how many calls."""

    schema: Mapping[str, Json]
    count: int


Recall = Callable[[Tool], Observation | None]  # Returns the learned shape of a tool's results.


@dataclass(frozen=True, kw_only=True)
class ToolEntry:
    """A tool and its alias; `observed` is the learned shape of its results if it declares none."""

    tool: Tool
    alias: str
    observed: Observation | None = None

    @property
    def result_schema(self) -> Mapping[str, Json] | None:
        declared = self.tool.result_schema
        return self.observed.schema if declared is None and self.observed else declared


@dataclass(frozen=True, kw_only=True)
class ServerEntry:
    """A server and its alias."""

    name: str
    alias: str
    description: str = ""
    tools: tuple[ToolEntry, ...] = ()  # In the server's order, each name once.
    known: bool = False  # Whether its tools are known; if not, `tools` is empty.
    loaded: bool = False  # Whether the current run has it as `mcp_<alias>`.
    changing: bool = False  # Whether it announces changes of its tools, as when a call adds some.
    twin: str = ""  # Alias of an earlier server with the same tools; see `mark_twins`.

    @cached_property
    def by_alias(self) -> Mapping[str, ToolEntry]:
        return {each.alias: each for each in self.tools}

    def find_tool(self, tool: str) -> ToolEntry | None:
        """Return the tool with a name or alias, or the only one with a similar spelling."""
        for each in self.tools:
            if tool in (each.tool.name, each.alias):
                return each
        same = self._by_letters.get(own_letters(tool, self.name), ())
        return same[0] if len(same) == 1 else None

    @cached_property
    def _by_letters(self) -> Mapping[str, Sequence[ToolEntry]]:
        entries = defaultdict[str, list[ToolEntry]](list)
        for each in self.tools:
            entries[own_letters(each.alias, self.name)].append(each)
        return entries


def mark_twins(servers: Sequence[ServerEntry]) -> tuple[ServerEntry, ...]:
    """Return the servers; one with the same tools as an earlier one names it as its `twin`."""
    first: dict[tuple[str, ...], list[ServerEntry]] = {}
    marked = []
    for server in servers:
        alike = first.setdefault(tuple(entry.tool.name for entry in server.tools), [])
        twin = next((other.alias for other in alike if _said(server) == _said(other)), "")
        if twin and server.tools:
            marked.append(replace(server, tools=(), twin=twin))
        else:
            alike.append(server)
            marked.append(server)
    return tuple(marked)


def _said(server: ServerEntry) -> list[tuple[object, ...]]:
    return [(e.tool.description, e.tool.input_schema, e.result_schema) for e in server.tools]


def tool_entries(tools: Sequence[Tool], recall: Recall | None = None) -> tuple[ToolEntry, ...]:
    unique: dict[str, Tool] = {}
    for tool in tools:
        unique.setdefault(tool.name, tool)
    aliases = tool_aliases(tuple(unique))
    return tuple(
        ToolEntry(
            tool=tool,
            alias=aliases[name],
            observed=recall(tool) if recall and tool.output_schema is None else None,
        )
        for name, tool in unique.items()
    )


MAX_SIGNATURE_CHARS = 480
"""Longest signature: ten typed parameters fit; a longer one loses detail."""

_TYPE_BUDGETS = (160, 48, 0)
"""Characters of each parameter's type, tried in this order until the signature fits."""


def signature(
    tool: Tool, alias: str, result: Mapping[str, Json] | None = None, *, returns: bool = True
) -> str:
    """Return how to call `tool`, as the head of an async function.

    `= ...` marks an optional parameter without a short default. What does not fit loses its type,
    and then becomes `**others`. `result` replaces the tool's own schema of results.
    """
    result = tool.result_schema if result is None else result
    data = {"inputSchema": tool.input_schema, "outputSchema": result if returns else None}
    # If the names alone are too long, skip the attempts with types.
    names = [one.alias for one in filter(has_usual_name, read_parameters(tool.input_schema)[0])]
    budgets = _TYPE_BUDGETS if sum(map(len, names)) <= MAX_SIGNATURE_CHARS else ()
    # A schema that says nothing promises no arguments either.
    named = as_mapping(tool.input_schema).keys() - {"$schema", "description", "title", "type"}
    for budget in budgets:
        head = Head(data, Names(inline=budget))
        text = _whole(alias, parameter_list(head.arguments, head.rest if named else ""), head)
        if len(text) <= MAX_SIGNATURE_CHARS:
            return text
    head = Head(data, Names(inline=0))
    bare, rest = list(head.arguments), head.rest
    while True:
        text = _whole(alias, parameter_list(bare, rest, typed=False), head)
        if len(text) <= MAX_SIGNATURE_CHARS or not bare:
            return text
        optional = [one for one in bare if one.default is not None]
        bare.remove((optional or bare)[-1])
        # Only says that there are more: the full documentation has them.
        rest = "others"


def parameter_list(arguments: Iterable[Parameter], rest: str, *, typed: bool = True) -> list[str]:
    parts = list[str]()
    optional = False
    for one in arguments:
        if one.default is None and optional and "*" not in parts:
            parts.append("*")
        text = f"{one.alias}: {one.text}" if typed else one.alias
        if one.default is not None:
            optional, text = True, f"{text} = {one.default}" if typed else f"{text}=..."
        parts.append(text)
    return [*parts, f"**{rest}"] if rest else parts


def _whole(alias: str, parts: Iterable[str], head: Head) -> str:
    return f"async def {alias}({', '.join(parts)}) -> {head.returns}"


def tool_data(entry: ToolEntry) -> dict[str, Any]:
    tool = entry.tool
    document: dict[str, Any] = {
        "name": tool.name,
        "alias": entry.alias,
        "description": tool.description,
        "inputSchema": dict(tool.input_schema),
    }
    if tool.result_schema is not None:
        document["outputSchema"] = dict(tool.result_schema)
    elif entry.observed is not None:
        document["observed"] = entry.observed.schema
        document["observations"] = entry.observed.count
    return document


def call_signature(server_alias: str, entry: ToolEntry, *, returns: bool = True) -> str:
    """Return the signature as a program writes the call: `mcp_github.create_issue(...)`.

    A learned return type looks like a declared one: only the full documentation tells them apart.
    """
    text = signature(entry.tool, entry.alias, entry.result_schema, returns=returns).removeprefix(
        "async def "
    )
    return f"mcp_{server_alias}.{text.removesuffix(' -> Any')}"


def run_server(server: ServerEntry) -> dict[str, Any]:
    return {
        "name": server.name,
        "alias": server.alias,
        "description": server.description,
        "tools": [tool_data(entry) for entry in server.tools],
        **({"changing": True} if server.changing else {}),
    }


def to_call(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tool[key] for key in ("name", "alias", "inputSchema")}


def run_discovered(servers: Sequence[ServerEntry]) -> list[dict[str, Any]]:
    return [
        {
            "name": server.name,
            "alias": server.alias,
            "description": one_line(server.description, 200),
            "loaded": server.loaded,
        }
        for server in servers
    ]


MAX_STUB_CHARS = 400_000
"""Characters of one server's stub. The tools beyond have no parameters; 2,000 tools fit."""

BUILTINS = frozenset({"bool", "dict", "float", "int", "list", "str", "tuple", "type"})

_HEADER = """\
from __future__ import annotations

import builtins as _builtins
from typing import Any, Literal, NotRequired, Protocol, TypedDict

"""


def server_stub(entry: ServerEntry) -> str:
    """Return a module with a class that has a server's tools as methods."""
    # Inside the class a method hides the builtin of its name; many tools are called `list`.
    hidden = BUILTINS.intersection(tool.alias for tool in entry.tools)
    names = Names(builtins="_builtins.", shadowed=hidden)
    name = names.take(class_base(entry.alias) + "Server")
    classes: list[str] = []
    methods: list[str] = []
    size = 0
    for tool in entry.tools:
        if size > MAX_STUB_CHARS:
            methods.append(
                f"    async def {tool.alias}(self, *args: Any, **arguments: Any) -> Any: ..."
            )
            continue
        own, method = _function(tool, names, "    ")
        classes += own
        methods.append(method)
        size += sum(map(len, own)) + len(method)
    about = one_line(entry.description, 300)
    head = f"The server {one_line(entry.name, 80)}{': ' if about else '.'}{about}"
    blob = _BLOB if any("Blob" in part for part in (*classes, *methods)) else ""
    called = one_line(f"mcp_{entry.alias}: {name}", 200)
    body = "\n\n".join([_quote(head, "    "), *methods])
    types = "".join(f"{part}\n\n\n" for part in classes)
    note = "# Dicts in results can be read by attribute too: `value.key` is `value['key']`.\n"
    note += "# An optional argument that is None is left out, unless its type has None.\n"
    return f"{_HEADER}{note}\n\n{blob}{types}class {name}(Protocol):\n{body}\n\n\n{called}\n"


def tool_stub(entry: ToolEntry, server_alias: str = "") -> str:
    classes, function = _function(entry, Names(), "")
    call = f"# await mcp_{server_alias}.{entry.alias}(...)\n" if server_alias else ""
    return "\n\n\n".join([*classes, call + function]) + "\n"


def _function(entry: ToolEntry, names: Names, indent: str) -> tuple[list[str], str]:
    data = tool_data(entry)
    head = Head(data, names)
    parts = parameter_list(head.arguments, head.rest and f"{head.rest}: Any")
    if indent:
        receiver = "self"
        while receiver in {argument.alias for argument in head.arguments}:
            receiver = f"_{receiver}"
        parts.insert(0, receiver)
    start, end = f"{indent}async def {entry.alias}(", f") -> {head.returns}:"
    text = f"{start}{', '.join(parts)}{end}"
    if len(text) > 100 and parts:
        text = "\n".join([start, *(f"{indent}    {part}," for part in parts), f"{indent}{end}"])
    about = function_docstring(data, head)
    body = f"{indent}    ..."
    if about:
        body = f"{_quote(about, f'{indent}    ')}\n{body}"
    return typed_dicts(head.objects), f"{text}\n{body}"


def _quote(text: str, indent: str) -> str:
    plain = valid_text(text).replace("\\", "\\\\")
    body = plain.rstrip('"')
    # Escape quotes at the end, next to the closing ones.
    safe = body.replace('"""', '\\"\\"\\"') + '\\"' * (len(plain) - len(body))
    lines = safe.split("\n")
    if len(lines) == 1:
        return f'{indent}"""{safe}"""'
    rest = [f"{indent}{line}" if line.strip() else "" for line in lines[1:]]
    return "\n".join([f'{indent}"""{lines[0]}', *rest, f'{indent}"""'])


_BLOB = '''\
class Blob:
    """Binary content: an image, audio, a file."""

    mime_type: str
    data: bytes

    def save(self, path: Any) -> str:
        """Write the bytes to a file and return its path."""
        raise NotImplementedError


'''
