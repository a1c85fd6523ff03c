"""The names in a program: of servers, tools and helpers; and the calls and servers that they mean.

The named servers are connected before the run. The reach decides which tools are sent to the
sandbox. Neither is a security decision: the guest loads any other server at its first call.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.program.survey import Context, Survey, last_name
from bridge.catalog.program.symbols import BY_NAME, HELPERS, Helper, Kind, Symbol, SymbolResolver
from bridge.guest.protocol.helpers import OWN_GLOBALS
from bridge.guest.protocol.placeholders import WHOLE
from bridge.guest.schema.binding import Parameters
from bridge.guest.schema.names import (
    PARAMETER_NAMES,
    letters,
    nearest,
    normalize_spelling,
    split_target,
)
from bridge.model import Json
from bridge.text import clip, valid_text

STDLIB = frozenset(sys.stdlib_module_names)

_MODULES = """
    asyncio create_task gather sleep wait_for
    collections Counter OrderedDict defaultdict deque namedtuple
    contextlib contextmanager suppress
    copy deepcopy
    dataclasses dataclass asdict field
    datetime date timedelta timezone
    decimal Decimal
    enum Enum
    functools lru_cache partial reduce wraps
    io StringIO
    itertools chain combinations groupby islice product
    json dumps loads
    math ceil floor sqrt
    pathlib Path
    statistics mean median stdev
    textwrap dedent
    typing Annotated Any Callable Dict Iterable List Literal NamedTuple Optional Tuple TypedDict
    typing Union
    uuid uuid4
    zoneinfo ZoneInfo
"""
_ROWS = [line.split() for line in _MODULES.strip().splitlines()]
MEMBERS: Mapping[str, str] = {name: module for module, *names in _ROWS for name in names}

TWICE_NAMED = frozenset(
    {"bisect", "copy", "datetime", "fnmatch", "glob", "pprint", "random", "time"}
)
"""Modules with a member of their own name."""

SHORT_NAMES: Mapping[str, str] = {
    "np": "numpy as np",
    "pd": "pandas as pd",
    "plt": "matplotlib.pyplot as plt",
    "dt": "datetime as dt",
    "numpy": "numpy",
    "pandas": "pandas",
}


PREFIX = "mcp_"

_ALSO = {
    **dict.fromkeys(("tools", "servers", "mcp_tools"), "mcp_servers"),
    **dict.fromkeys(("client", "session", "mcp_client"), "runtime"),
    **dict.fromkeys(("call_mcp_tool", "mcp_call_tool"), "runtime.call_tool"),
    **dict.fromkeys(("McpError", "MCPException", "MCPToolError", "ToolError"), "MCPError"),
    **{"true": "True", "false": "False", **dict.fromkeys(("null", "nil", "undefined"), "None")},
    **{"xrange": "range", "unicode": "str"},
}
"""Names of other libraries and languages, with the bridge's name."""

_VALUES = frozenset({"False", "MCPError", "None", "True", "range", "str"})
_TARGET = frozenset({"server", "tool"})
_CATCHES = frozenset({"NameError", "Exception", "BaseException", "*"})


class NameTable:
    """The names of servers, of their tools where these are known, and of helpers.

    Of two servers with a tool, the one counts that the request lists.
    """

    def __init__(self, servers: Iterable[ServerEntry], listed: Iterable[str] = ()) -> None:
        self._servers = tuple(servers)
        self._listed = frozenset(listed)

    @cached_property
    def aliases(self) -> dict[str, str]:
        return {server.name: server.alias for server in self._servers}

    @cached_property
    def _owners(self) -> dict[str, str]:
        paths = {
            normalize_spelling(server.name): f"{PREFIX}{server.alias}" for server in self._servers
        }
        return {**paths, **{server.alias: f"{PREFIX}{server.alias}" for server in self._servers}}

    @cached_property
    def _members(self) -> Mapping[str, dict[str, bool]]:
        """By spelling, the paths of tools and helpers, each with whether its server is listed."""
        members: defaultdict[str, dict[str, bool]] = defaultdict(dict)
        marks = [not self._listed.isdisjoint((one.name, one.alias)) for one in self._servers]
        unknown = {mark for mark, one in zip(marks, self._servers, strict=True) if not one.known}
        for listed, server in zip(marks, self._servers, strict=True):
            for entry in server.tools:
                path = f"{PREFIX}{server.alias}.{entry.alias}"
                for tool in {entry.alias, normalize_spelling(entry.tool.name)} - {"", "_"}:
                    if not unknown & {listed, True}:  # Else another may have it too.
                        members[tool][path] = listed
                    for owner in (server.alias, normalize_spelling(server.name)):
                        members[normalize_spelling(f"{owner}_{tool}")][path] = listed
        for name in HELPERS:
            members[name][f"runtime.{name}"] = True
        return members

    @cached_property
    def _alike(self) -> Mapping[str, dict[str, bool]]:
        members: defaultdict[str, dict[str, bool]] = defaultdict(dict)
        for name, path in self._owners.items():
            members[letters(name)][path] = True
        for name, paths in self._members.items():
            members[letters(name)].update(paths)
        return members

    def find(self, name: str) -> str:
        path = self._owners.get(normalize_spelling(name)) or _ALSO.get(name)
        if path is not None:
            return path
        paths = self._members.get(normalize_spelling(name)) or self._alike.get(letters(name), {})
        chosen = [path for path, listed in paths.items() if listed] or list(paths)
        return chosen[0] if len(chosen) == 1 else ""

    def nearest(self, name: str) -> str:
        return self.find(nearest(normalize_spelling(name), [*self._owners, *self._members]))

    def resolve(self, survey: Survey) -> dict[str, str]:
        """Return the names that a program uses and does not define, each with its certain path.

        A text counts too if it alone names the tool of a `call_tool`. A well-known name has its
        import statement.
        """
        called = {id(node.func) for node, _ in survey.every(ast.Call)}
        asked = {id(node.value): node.attr for node, _ in survey.every(ast.Attribute)}
        uses: defaultdict[str, list[int]] = defaultdict(list)
        for node in self.find_undefined(survey):
            uses[node.id].append(id(node))
        meanings = {}
        for name, nodes in uses.items():
            path = self.find(name)
            used = called if "." in path else asked.keys()
            attributes = {asked[node] for node in nodes if node in asked}
            if path == "runtime" and not HELPERS.keys() >= attributes:
                continue
            if path in _VALUES or (path and not used.isdisjoint(nodes)):
                meanings[name] = path
        for text in _texts(survey):
            path = self.find(text)
            if "." in path:
                meanings[text] = path
        imports: defaultdict[str, set[str]] = defaultdict(set)
        for node, _ in survey.free:
            imports[node.id].add(asked.get(id(node), ""))
        lines = {name: import_for(name, attributes) for name, attributes in imports.items()}
        return {**meanings, **{name: line for name, line in lines.items() if line}}

    def find_undefined(self, survey: Survey) -> Iterator[ast.Name]:
        """Yield each use of a name that neither the program nor the run defines.

        Names of the standard library are missing imports; one whose error is caught is tried out.
        """
        known = {f"{PREFIX}{alias}" for alias in self.aliases.values()} | OWN_GLOBALS
        known |= {node.id for node, at in survey.free if not _CATCHES.isdisjoint(at.caught)}
        for node, _ in survey.free:
            if node.id not in known and not import_for(node.id):
                yield node

    def depends_on_tools(self, survey: Survey) -> bool:
        """Return whether tools of servers that were not asked yet may give a name a meaning."""
        unknown = not all(server.known for server in self._servers)
        return unknown and (any(self.find_undefined(survey)) or any(_texts(survey)))


def import_for(name: str, attributes: Collection[str] = ()) -> str:
    """Return the import for a well-known name, given its attributes in use; else empty."""
    if name in MEMBERS:
        return f"from {MEMBERS[name]} import {name}"
    if name in TWICE_NAMED and attributes:
        module = importlib.import_module(name)
        if not all(attribute and hasattr(module, attribute) for attribute in attributes):
            member = getattr(module, name)
            fits = all(not attribute or hasattr(member, attribute) for attribute in attributes)
            return f"from {name} import {name}" if fits else ""
    if name in SHORT_NAMES:
        return f"import {SHORT_NAMES[name]}"
    if name in STDLIB and not name.startswith("_") and name not in ("this", "antigravity"):
        return f"import {name}"
    return ""


def _texts(survey: Survey) -> Iterator[str]:
    for node, _ in survey.every(ast.Call):
        if last_name(node.func) in BY_NAME:
            slots = [(PARAMETER_NAMES.get(one.arg, one.arg), one.value) for one in node.keywords]
            values = [*node.args[:2], *(value for name, value in slots if name in _TARGET)]
            texts = [one.value for one in values if isinstance(one, ast.Constant)]
            if len(texts) == 1 and isinstance(texts[0], str):
                yield texts[0]


COMPUTED: Json = {WHOLE: ""}
"""Represents a value that the text does not show."""


def helper_parameters(helper: Helper) -> Parameters:
    names = (*helper.positional, *helper.keywords)
    schema = {
        "properties": {name: {} for name in names},
        "required": list(names[: helper.required]),
        "additionalProperties": helper.open,
    }
    return Parameters(schema, len(helper.positional))


@dataclass(frozen=True, kw_only=True)
class CallText:
    """The arguments of a call, as far as the program's text shows them."""

    args: Sequence[Json] = ()  # Empty if the call unpacks a list.
    kwargs: Mapping[str, Json]
    starred: bool = False  # Whether it unpacks a list that the text does not show.
    unpacked: bool = False  # Whether it unpacks a dict that the text does not show.
    scalar: bool = False  # Whether the first argument is certainly no dict.

    def may_be_all(self, parameters: Parameters) -> bool:
        """Whether there are arguments that the text does not show: unpacked, or in one dict."""
        whole = parameters.whole(self.args, self.kwargs) == COMPUTED and not self.scalar
        return self.starred or self.unpacked or whole


@dataclass(frozen=True, kw_only=True)
class HelperCall:
    """A call of a helper for a server."""

    values: Mapping[str, Json]  # The arguments by the helper's own names.
    server: ServerEntry | None = None  # None if it is computed or does not exist.
    tool: str | None = None
    entry: ToolEntry | None = None
    given: CallText | None = None  # The tool's arguments; None if the text shows no dict.


class CallReader:
    def __init__(self, survey: Survey, symbols: SymbolResolver) -> None:
        self._survey = survey
        self._symbols = symbols
        self._parameters: dict[int, Parameters] = {}

    def parameters(self, entry: ToolEntry) -> Parameters:
        if id(entry) not in self._parameters:
            self._parameters[id(entry)] = Parameters(entry.tool.input_schema)
        return self._parameters[id(entry)]

    def text(self, node: ast.Call, context: Context) -> CallText:
        starred = any(isinstance(item, ast.Starred) for item in node.args)
        kwargs: dict[str, Json] = {}
        unpacked = False
        for keyword in node.keywords:
            value = self.value(keyword.value, context)
            if keyword.arg is not None:
                kwargs[keyword.arg] = value
            elif value == COMPUTED or not isinstance(value, dict):
                unpacked = True
            else:
                kwargs.update(value)
        args = [] if starred else [self.value(item, context) for item in node.args]
        values: list[object] = [*node.args[:1]]
        if node.args and isinstance(first := node.args[0], ast.Name):
            values = [value for value, _ in self._survey.bound(first.id, context)] or values
        scalar = bool(values) and all(isinstance(v, ast.Constant | ast.JoinedStr) for v in values)
        return CallText(args=args, kwargs=kwargs, starred=starred, unpacked=unpacked, scalar=scalar)

    def helper(self, node: ast.Call, context: Context, symbol: Symbol) -> HelperCall | None:
        helper, text = symbol.helper, self.text(node, context)
        assert helper is not None
        if text.starred or text.unpacked:
            return None
        values = dict(zip(helper.positional, text.args, strict=False))
        by_name = helper.name in BY_NAME
        if by_name:
            values = self._target(dict.fromkeys(helper.positional) | values, text.kwargs)
        else:
            values.update(text.kwargs)
        if by_name and symbol.server is None and len(values.keys() & {"server", "tool"}) == 1:
            # One text may name both; see `NameTable.resolve`.
            whole = values.get("server", values.get("tool"))
            path = self._survey.given.get(whole, "") if isinstance(whole, str) else ""
            if "." in path:
                values["server"], _, values["tool"] = path.partition(".")
        server, name, tool = symbol.server, values.get("server"), values.get("tool")
        if server is None and isinstance(name, str):
            server = self._symbols.named_server(name)
        if not by_name or server is None or not isinstance(tool, str):
            return HelperCall(values=values, server=server)
        given = values.get("arguments") or {}
        shown = isinstance(given, dict) and given != COMPUTED
        return HelperCall(
            values=values,
            server=server,
            tool=tool,
            entry=server.find_tool(tool),
            given=CallText(kwargs=given) if shown else None,
        )

    def _target(self, target: dict[str, Json], named: Mapping[str, Json]) -> dict[str, Json]:
        own = split_target(target, named)
        if isinstance(tool := target["tool"], dict) and tool != COMPUTED:
            target["tool"], target["arguments"] = None, tool
        if own and target["arguments"] is None:
            target["arguments"] = own
        return {name: value for name, value in target.items() if value is not None}

    def value(self, node: ast.expr, context: Context) -> Json:
        """Return the value of an expression; `COMPUTED` for what the text does not show of it.

        A name counts that is bound once, to a constant.
        """
        if isinstance(node, ast.Name):
            bound = self._survey.bound(node.id, context)
            value = bound[0][0] if len(bound) == 1 else None
            fixed = not self._survey.tricky and node.id not in self._survey.shared
            if not fixed or not isinstance(value, ast.Constant):
                return COMPUTED
            node = value
        return _literal(node)


def _literal(node: ast.expr) -> Json:
    match node:
        case ast.Constant(value=str() | int() | float() | None):
            return node.value
        case ast.List() | ast.Tuple():
            starred = any(isinstance(item, ast.Starred) for item in node.elts)
            return COMPUTED if starred else [_literal(item) for item in node.elts]
        case ast.Dict():
            keys = [getattr(key, "value", None) for key in node.keys]
            if all(isinstance(key, str) for key in keys):
                return dict(zip(keys, map(_literal, node.values), strict=True))
        case ast.UnaryOp(op=ast.USub()):
            inner = _literal(node.operand)
            if isinstance(inner, int | float) and not isinstance(inner, bool):
                return -inner
        case _:
            pass
    return COMPUTED


_OF_LOADED = {"list_loaded_server_metadata", "list_servers_sync", "search_tool_docs_sync"}
"""Helpers that return data on every loaded server."""
_CUTOFF = 0.601  # `git` is not similar enough to `git_log`.


Reach = Mapping[str, frozenset[str] | None]
"""By server, the attributes that a program uses; None for a server used as a whole object."""


@dataclass(frozen=True, kw_only=True)
class References:
    """The servers that a program refers to, in the order of appearance."""

    servers: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)  # Wrong names, each with a message.
    dynamic: bool = False  # Whether it also uses all servers, as in `list(mcp_servers)`.
    mentioned: tuple[str, ...] = ()  # Those in its strings, if it chooses by computed names.
    reach: Reach | None = field(default=None, compare=False)  # None if it may reach any tool.


def references(
    survey: Survey, aliases: Mapping[str, str], *, more_names: bool = False
) -> References:
    """Return the servers that a program names; `more_names` if it may use names of a session."""
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
            own = more_names and text.startswith(PREFIX)
            if name not in unknown and not own and len(unknown) < 16:
                unknown[name] = f"line {line}: no server is called {self._describe(text)}"
        objects = {f"{PREFIX}{self._aliases[name]}": name for name in servers}
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
        if text.startswith(PREFIX):
            near = nearest(text.removeprefix(PREFIX), own, _CUTOFF)
            shown, near = f"`{valid_text(clip(text, 80))}`", near and f"`{PREFIX}{near}`"
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
            self._note(node, context, [self._symbols.resolve_import(name.removesuffix(".*"))])

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
"""Modules that neither import code of the program nor look up its names."""

_REFLECTIVE = frozenset(
    """
    _getframe attrgetter builtins breakpoint compile cr_frame delattr dir eval exec f_back
    f_builtins f_globals f_locals gc get_type_hints getattr gi_frame ag_frame globals hasattr help
    importlib inspect locals methodcaller modules query setattr sys tb_frame vars
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Names and attributes by which a program can reach objects without naming them."""

_HARMLESS = frozenset({"__name__", "__init__", "__file__", "__version__"})
_TELLTALES = ("__", "mcp", "MCP_", "runtime", "globals")
"""Parts of a string that may name an object, or a format that reads attributes."""


def _reach(survey: Survey, names: dict[str, str]) -> Reach | None:
    """Return the attributes that the program can reach of the servers, by their objects' names."""
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
