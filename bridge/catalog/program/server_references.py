"""Finds the servers that a program names, and which of their tools it can reach.

The named servers are connected before the run. The reach decides which tools are sent to the
sandbox. Neither is a security decision: the guest loads any other server at its first call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.expected_calls import CallReader
from bridge.catalog.program.survey import Context, Survey
from bridge.catalog.program.symbols import Kind, Symbol, SymbolResolver
from bridge.catalog.prose import clip
from bridge.guest.schema.names import nearest
from bridge.text import valid_text

_PREFIX = "mcp_"
_OF_LOADED = {"list_loaded_server_metadata", "list_servers_sync", "search_tool_docs_sync"}
"""Helpers that return something of every loaded server."""
_CUTOFF = 0.601  # Names that only share a part do not count: `git_log` is no server like `git`.


Reach = Mapping[str, frozenset[str] | None]
"""By server, the attributes that a program uses; None for a server used as a whole object."""


@dataclass(frozen=True, kw_only=True)
class References:
    """The servers that a program refers to, in order of first appearance.

    Attributes:
        unknown: Names that no server has, each with a sentence on it.
        dynamic: Whether it also uses all servers, as in `list(mcp_servers)`.
        mentioned: Names in its texts, if it chooses servers by computed names.
        reach: What it can get at of the servers; None if that does not show.
    """

    servers: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    dynamic: bool = False
    mentioned: tuple[str, ...] = ()
    reach: Reach | None = field(default=None, compare=False)


def references(
    survey: Survey, aliases: Mapping[str, str], *, more_names: bool = False
) -> References:
    """Return the servers that a program names.

    Args:
        aliases: Every server's name and alias.
        more_names: Whether it may use names that it does not bind, as in a session.
    """
    return _ReferenceReader(survey, aliases).read(more_names=more_names)


class _ReferenceReader:
    def __init__(self, survey: Survey, aliases: Mapping[str, str]) -> None:
        self._survey = survey
        self._aliases = aliases
        servers = {alias: ServerEntry(name=name, alias=alias) for name, alias in aliases.items()}
        self._symbols = SymbolResolver(survey, servers)
        self._calls = CallReader(survey, self._symbols)
        self._dynamic = False
        self._chooses = False
        self._found: list[tuple[int, int, str]] = []
        self._missing: list[tuple[int, int, str]] = []
        self._consumed: set[int] = set()

    def read(self, *, more_names: bool) -> References:
        for node, context in self._survey.every(ast.Import, ast.ImportFrom):
            self._import(node, context)
        # Names last: now those that are taken for one server are marked.
        for node, context in self._survey.every(ast.Call, ast.Subscript, ast.Attribute, ast.Name):
            found = self._note(node, context, self._symbols.all_of(node, context))
            if isinstance(node, ast.Call):
                for symbol in self._symbols.all_of(node.func, context):
                    if symbol is not None and symbol.helper and symbol.helper.owner == "runtime":
                        self._helper(node, context, symbol)
            elif isinstance(node, ast.Name):
                path = self._survey.given.get(node.id, node.id)
                free = path == "mcp_servers" and id(node) not in self._consumed
                if isinstance(node.ctx, ast.Load):
                    self._dynamic |= free or path == "LOADED_MCP_SERVERS"
            elif found or isinstance(node, ast.Subscript) or node.attr == "get":
                self._consumed.add(id(node.value))
        servers = dict.fromkeys(name for _, _, name in sorted(self._found))
        unknown: dict[str, str] = {}
        for line, _, text in sorted(self._missing):
            name = text.strip("'\"")
            own = more_names and text.startswith(_PREFIX)
            if name not in unknown and not own and len(unknown) < 16:
                unknown[name] = f"line {line}: no server is called {self._describe(text)}"
        objects = {f"{_PREFIX}{self._aliases[name]}": name for name in servers}
        computes = self._chooses or self._symbols.computes
        texts = [n.value for n, _ in self._survey.every(ast.Constant) if computes]
        mentions = [self._symbols.named_server(one) for one in texts if isinstance(one, str)]
        return References(
            servers=tuple(servers),
            unknown=unknown,
            dynamic=self._dynamic,
            mentioned=tuple(dict.fromkeys(one.name for one in mentions if one is not None)),
            # In a session, what earlier programs defined may call any tool.
            reach=None if more_names else _reach(self._survey, objects),
        )

    def _describe(self, text: str) -> str:
        own = {alias: name for name, alias in self._aliases.items()}
        if text.startswith(_PREFIX):
            near = nearest(text.removeprefix(_PREFIX), own, _CUTOFF)
            shown, near = f"`{valid_text(clip(text, 80))}`", near and f"`{_PREFIX}{near}`"
        else:
            near = nearest(text.strip("'\""), [*self._aliases, *own], _CUTOFF)
            shown, near = text, near and repr(valid_text(own.get(near, near)))
        return f"{shown}. Did you mean {near}?" if near else f"{shown}."

    def _import(self, node: ast.Import | ast.ImportFrom, context: Context) -> None:
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and (node.level or not node.module):
            return
        for item in node.names:
            name = f"{module}{item.name}"
            self._dynamic |= name == "mcp.servers.*"
            self._note(node, context, [self._symbols.imported(name.removesuffix(".*"))])

    def _helper(self, node: ast.Call, context: Context, symbol: Symbol) -> None:
        # A server that does not start is described without its tools.
        self._chooses |= symbol.name.endswith(("describe_server", "_sync"))
        self._dynamic |= symbol.name.rpartition(".")[2] in _OF_LOADED
        call = self._calls.helper(node, context, symbol)
        name = call.values.get("server") if call is not None else None
        by_address = symbol.name.endswith("read_resource") and call and "uri" not in call.values
        if isinstance(name, str) and not by_address:
            # Without a server, the only argument is the resource.
            self._note(node, context, [self._symbols.server(name)])

    def _note(
        self, node: ast.stmt | ast.expr, context: Context, symbols: Iterable[Symbol | None]
    ) -> bool:
        """Record servers, and unknown ones where the program would fail; return whether any is."""
        named = [one for one in symbols if one and (one.server or one.kind == Kind.NO_SERVER)]
        for symbol in named:
            if symbol.server is not None:
                self._found.append((node.lineno, node.col_offset, symbol.server.name))
            elif not context.dead:
                self._missing.append((node.lineno, node.col_offset, symbol.name))
        return bool(named)


_PLAIN_MODULES = frozenset(
    """
    __future__ abc array asyncio base64 binascii bisect calendar cmath collections colorsys
    contextlib copy csv dataclasses datetime decimal difflib email enum fractions functools glob
    gzip hashlib heapq hmac html io itertools json locale math matplotlib mimetypes numbers numpy os
    pandas pathlib pprint random re secrets shutil statistics string struct tempfile textwrap time
    typing unicodedata urllib uuid xml zipfile zlib zoneinfo
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Modules that import nothing of the program's and do not look up names in it."""

_REFLECTIVE = frozenset(
    """
    _getframe attrgetter builtins breakpoint compile cr_frame delattr dir eval exec f_back
    f_builtins f_globals f_locals gc get_type_hints getattr gi_frame ag_frame globals hasattr help
    importlib inspect locals methodcaller modules query setattr sys tb_frame vars
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Names and attributes with which a program can reach objects that it does not name."""

_HARMLESS = frozenset({"__name__", "__init__", "__file__", "__version__"})
_TELLTALES = ("__", "mcp", "MCP_", "runtime", "globals")
"""Parts of a text that may be a name to look up, or a format that reads attributes."""


def _reach(survey: Survey, names: dict[str, str]) -> Reach | None:
    """Return what the program can reach of servers, given by their objects' names."""
    paths = {name: path.split(".") for name, path in survey.given.items()}
    owners = names | {name: names[path[0]] for name, path in paths.items() if path[0] in names}
    used: dict[str, set[str]] = {}
    owned: set[int] = set()
    whole: set[str] = set()
    words: list[str] = []
    for node, _ in survey.every(ast.Attribute):
        owner = getattr(node.value, "id", "")
        if owner in owners and not node.attr.startswith("_"):
            # A tool may have any name, also that of a reflective attribute such as `query`.
            used.setdefault(owners[owner], set()).add(node.attr)
            owned.add(id(node.value))
        else:
            # These of `runtime` reach no server.
            owned |= {id(node.value)} if node.attr in ("MCPError", "Blob") else set()
            words.append(node.attr)
    for node, _ in survey.every(ast.Name):
        if node.id in owners:
            tools = paths.get(node.id, ())[1:]
            used.setdefault(owners[node.id], set()).update(tools)
            whole |= {owners[node.id]} if id(node) not in owned and not tools else set()
        elif node.id in survey.given or node.id in ("mcp", "mcp_servers"):
            return None
        elif node.id != "runtime":
            words.append(node.id)
        elif id(node) not in owned:
            return None
    modules = [item.name for node, _ in survey.every(ast.Import) for item in node.names]
    for node, _ in survey.every(ast.ImportFrom):
        modules.append("" if node.level else node.module or "")
        words += [item.name for item in node.names]
    words += [word for node, _ in survey.every(ast.MatchClass) for word in node.kwd_attrs]
    texts = (node.value for node, _ in survey.every(ast.Constant) if isinstance(node.value, str))
    parts = [module.split(".") for module in modules]
    hidden = {word for word in words if word.startswith("__")} - _HARMLESS
    if hidden or not _REFLECTIVE.isdisjoint([*words, *(name for path in parts for name in path)]):
        return None
    if not _PLAIN_MODULES.issuperset(path[0] for path in parts):
        return None
    if any(part in text for text in texts for part in _TELLTALES):
        return None
    return {name: None if name in whole else frozenset(tools) for name, tools in used.items()}
