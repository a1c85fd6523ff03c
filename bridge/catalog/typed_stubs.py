"""Writes typed stubs of servers and tools, as Python that type checkers accept.

A stub has exact types, a `TypedDict` for each object, and docstrings. Types come from
`bridge.guest.schema.typetext`, which the guest uses too, so `help()` in a run shows the same.

Servers' texts appear only in comments, docstrings and literals, cleaned and quoted; names are
aliases. The length is bounded however large a schema is.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.prose import one_line
from bridge.catalog.stubs import parameter_list, tool_data
from bridge.guest.schema.parameters import Parameter
from bridge.guest.schema.signatures import Head, docstring, typed_dicts
from bridge.guest.schema.typetext import Names, class_base
from bridge.text import valid_text

MAX_STUB_CHARS = 400_000
"""Length of one server's stub. Further tools have no parameters; two thousand tools fit."""

BUILTINS = frozenset({"bool", "dict", "float", "int", "list", "str", "tuple", "type"})

_HEADER = """\
from __future__ import annotations

import builtins as _builtins
from typing import Any, Literal, NotRequired, Protocol, TypedDict

"""


def server_stub(entry: ServerEntry) -> str:
    """Return a module with a class that has a server's tools as methods."""
    names = _names(entry)
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
    body = "\n\n".join([_quoted(head, "    "), *methods])
    types = "".join(f"{part}\n\n\n" for part in classes)
    note = "# Dicts in results can be read by attribute too: `value.key` is `value['key']`.\n"
    note += "# An optional argument that is None is left out, unless its type has None.\n"
    return f"{_HEADER}{note}\n\n{blob}{types}class {name}(Protocol):\n{body}\n\n\n{called}\n"


def tool_stub(entry: ToolEntry, server_alias: str = "") -> str:
    """Return one tool's function with the classes that its types refer to.

    Args:
        server_alias: If given, a comment shows the call with it.
    """
    classes, function = _function(entry, Names(), "")
    call = f"# await mcp_{server_alias}.{entry.alias}(...)\n" if server_alias else ""
    return "\n\n\n".join([*classes, call + function]) + "\n"


def _names(entry: ServerEntry) -> Names:
    # Inside the class a method hides the builtin of its name; many tools are called `list`.
    hidden = BUILTINS.intersection(tool.alias for tool in entry.tools)
    return Names(builtins="_builtins.", shadowed=hidden)


def _function(entry: ToolEntry, names: Names, indent: str) -> tuple[list[str], str]:
    data = tool_data(entry)
    head = Head(data, names)
    parts = parameter_list(head.arguments, head.rest and f"{head.rest}: Any")
    if indent:
        parts.insert(0, _receiver(head.arguments))
    start, end = f"{indent}async def {entry.alias}(", f") -> {head.returns}:"
    text = f"{start}{', '.join(parts)}{end}"
    if len(text) > 100 and parts:
        text = "\n".join([start, *(f"{indent}    {part}," for part in parts), f"{indent}{end}"])
    about = docstring(data, head)
    body = f"{indent}    ..."
    if about:
        body = f"{_quoted(about, f'{indent}    ')}\n{body}"
    return typed_dicts(head.objects), f"{text}\n{body}"


def _receiver(arguments: Iterable[Parameter]) -> str:
    taken = {argument.alias for argument in arguments}
    name = "self"
    while name in taken:
        name = f"_{name}"
    return name


def _quoted(text: str, indent: str) -> str:
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
