"""The names by which programs reach servers, tools and helpers. Pure.

Each name means a path: `mcp_github`, `mcp_github.create_issue`, `runtime.call_tool`.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.survey import Survey, last_name
from bridge.guest.protocol.helpers import GLOBAL_HELPERS, LINES, OF_SERVERS
from bridge.guest.schema.names import PARAMETER_NAMES, letters, nearest, normalize_spelling


@dataclass(frozen=True, kw_only=True)
class Helper:
    """One function that a run has.

    Attributes:
        positional: Parameters that may be given by position, in order.
        keywords: Those that may be given by name only.
        required: How many of `positional` have no default.
        open: Whether it takes any other name.
    """

    name: str
    asynchronous: bool
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()
    required: int = 0
    open: bool = False
    owner: str = "runtime"

    @property
    def signature(self) -> str:
        parts = list(self.positional[: self.required])
        parts += [f"{name}=..." for name in self.positional[self.required :]]
        if self.keywords:
            parts += ["*", *(f"{name}=..." for name in self.keywords)]
        if self.open:
            parts.append("**values")
        call = f"{self.owner}.{self.name}({', '.join(parts)})"
        return f"await {call}" if self.asynchronous else call


def _helper(line: str) -> Helper:
    """Read a line such as "async name(a, b=, *, c=)"; a `...` at the end takes any name."""
    head, _, rest = line.partition("(")
    before, _, after = rest.rstrip(")").partition("...")[0].partition("*")
    listed = [item.strip() for item in before.split(",") if item.strip()]
    return Helper(
        name=head.removeprefix("async "),
        asynchronous=head.startswith("async "),
        positional=tuple(item.rstrip("=") for item in listed),
        keywords=tuple(i.strip().rstrip("=") for i in after.split(",") if i.strip()),
        required=sum(not item.endswith("=") for item in listed),
        open="..." in rest,
    )


HELPERS: Mapping[str, Helper] = {one.name: one for one in map(_helper, LINES.strip().splitlines())}
"""The functions of `mcp.runtime`."""

RUNTIME_TYPES = frozenset(
    {"ArgumentsError", "Blob", "MCPError", "MissingKeyError", "Result", "UnknownNameError"}
)

BY_NAME = frozenset({"call_tool", "call_tool_raw"})
"""Helpers that take a tool's own arguments as a dict."""

SERVER_METHODS: Mapping[str, Helper] = {
    name: replace(
        HELPERS[name],
        owner="mcp_<server>",
        positional=HELPERS[name].positional[1:],
        required=min(1, len(HELPERS[name].positional[1:])),
    )
    for name in (*OF_SERVERS, "list_tools")
}
"""The methods of a server object. A tool of such a name replaces it, except `list_tools`."""

MODULE_NAMES = frozenset({"TOOLS", "TOOL_MAP"})
"""Names in `mcp.servers.<alias>` that are no tools."""

OWN_GLOBALS = GLOBAL_HELPERS | {
    "Blob",
    "LOADED_MCP_SERVERS",
    "MCPError",
    "mcp",
    "mcp_servers",
    "runtime",
}

_OTHER_BUILTINS = frozenset(
    """
    BaseExceptionGroup EncodingWarning ExceptionGroup ImportCycleError PythonFinalizationError
    basestring frozendict long raw_input sentinel unichr
    """.split()  # noqa: SIM905 - as words they can be read
)
BUILTINS = frozenset(dir(builtins)) | _OTHER_BUILTINS | {"display"}
"""This interpreter's builtins, those of newer ones in the sandbox and of Python 2, which programs
name where they find out that they run on that, and the guest's own."""

STDLIB = frozenset(sys.stdlib_module_names)

DATA_BUILTINS = frozenset(
    """
    abs all any bool bytes dict enumerate float frozenset int iter len list max min next
    range reversed round set sorted sum tuple zip
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Builtins that fail on a coroutine, or treat it as true."""

SHOWING = frozenset({"ascii", "format", "print", "repr", "str"})
"""Builtins that would show the coroutine instead of its result."""

DATA_MEMBERS = frozenset(
    """
    json.dump json.dumps json.loads pprint.pformat pprint.pp pprint.pprint collections.Counter
    pandas.DataFrame re.findall re.match re.search re.split re.sub statistics.mean
    """.split()  # noqa: SIM905 - as words they can be read
)

COROUTINES = frozenset(
    {"asyncio.sleep", "asyncio.to_thread", "asyncio.wait", "asyncio.wait_for", "anyio.sleep"}
)
"""Library functions whose calls do nothing until they are awaited."""

FUTURES = frozenset({"asyncio.create_task", "asyncio.ensure_future", "asyncio.gather"})
"""Library functions that start at once and return something to await."""

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
"""Well-known names and the modules they are imported from."""

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
"""Names in other libraries and languages for what the bridge has."""

_VALUES = frozenset({"False", "MCPError", "None", "True", "range", "str"})
_TARGET = frozenset({"server", "tool"})
_CATCHES = frozenset({"NameError", "Exception", "BaseException", "*"})


class NameTable:
    """The names of servers, of their tools where these are known, and of helpers.

    Args:
        listed: Names of servers that the request lists; of two servers with a tool, these count.
    """

    def __init__(self, servers: Iterable[ServerEntry], listed: Iterable[str] = ()) -> None:
        self._servers = tuple(servers)
        self._listed = frozenset(listed)

    @cached_property
    def aliases(self) -> dict[str, str]:
        return {server.name: server.alias for server in self._servers}

    @cached_property
    def _owners(self) -> dict[str, str]:
        found = {
            normalize_spelling(server.name): f"{PREFIX}{server.alias}" for server in self._servers
        }
        return {**found, **{server.alias: f"{PREFIX}{server.alias}" for server in self._servers}}

    @cached_property
    def _members(self) -> Mapping[str, dict[str, bool]]:
        """By spelling, the paths of tools and helpers, each with whether its server is listed."""
        found: defaultdict[str, dict[str, bool]] = defaultdict(dict)
        marks = [not self._listed.isdisjoint((one.name, one.alias)) for one in self._servers]
        unknown = {mark for mark, one in zip(marks, self._servers, strict=True) if not one.known}
        for listed, server in zip(marks, self._servers, strict=True):
            for entry in server.tools:
                path = f"{PREFIX}{server.alias}.{entry.alias}"
                for tool in {entry.alias, normalize_spelling(entry.tool.name)} - {"", "_"}:
                    if not unknown & {listed, True}:  # Else another may have it too.
                        found[tool][path] = listed
                    for owner in (server.alias, normalize_spelling(server.name)):
                        found[normalize_spelling(f"{owner}_{tool}")][path] = listed
        for name in HELPERS:
            found[name][f"runtime.{name}"] = True
        return found

    @cached_property
    def _alike(self) -> Mapping[str, dict[str, bool]]:
        found: defaultdict[str, dict[str, bool]] = defaultdict(dict)
        for name, path in self._owners.items():
            found[letters(name)][path] = True
        for name, paths in self._members.items():
            found[letters(name)].update(paths)
        return found

    def find(self, name: str) -> str:
        path = self._owners.get(normalize_spelling(name)) or _ALSO.get(name)
        if path is not None:
            return path
        paths = self._members.get(normalize_spelling(name)) or self._alike.get(letters(name), {})
        chosen = [path for path, listed in paths.items() if listed] or list(paths)
        return chosen[0] if len(chosen) == 1 else ""

    def nearest(self, name: str) -> str:
        found = nearest(normalize_spelling(name), [*self._owners, *self._members])
        return self.find(found)

    def resolve(self, survey: Survey) -> dict[str, str]:
        """Return the names that a program uses and does not define, each with its certain path.

        A text counts too if it alone names the tool of a `call_tool`. A well-known name has its
        import statement.
        """
        called = {id(node.func) for node, _ in survey.every(ast.Call)}
        asked = {id(node.value): node.attr for node, _ in survey.every(ast.Attribute)}
        uses: defaultdict[str, list[int]] = defaultdict(list)
        for node in self.undefined(survey):
            uses[node.id].append(id(node))
        found = {}
        for name, nodes in uses.items():
            path = self.find(name)
            used = called if "." in path else asked.keys()
            attributes = {asked[node] for node in nodes if node in asked}
            if path == "runtime" and not HELPERS.keys() >= attributes:
                continue
            if path in _VALUES or (path and not used.isdisjoint(nodes)):
                found[name] = path
        for text in _texts(survey):
            path = self.find(text)
            if "." in path:
                found[text] = path
        imports: defaultdict[str, set[str]] = defaultdict(set)
        for node, _ in survey.every(ast.Name):
            if node.id not in survey.names | survey.made | BUILTINS:
                imports[node.id].add(asked.get(id(node), ""))
        lines = {name: import_for(name, attributes) for name, attributes in imports.items()}
        return {**found, **{name: line for name, line in lines.items() if line}}

    def undefined(self, survey: Survey) -> Iterator[ast.Name]:
        """Yield each use of a name that neither the program nor the run defines.

        Names of the standard library are missing imports; one whose error is caught is tried out.
        """
        known = survey.names | survey.made | BUILTINS | OWN_GLOBALS
        known |= {f"{PREFIX}{alias}" for alias in self.aliases.values()}
        known |= {n.id for n, at in survey.every(ast.Name) if not _CATCHES.isdisjoint(at.caught)}
        for node, _ in survey.every(ast.Name):
            name = node.id
            if name not in known and isinstance(node.ctx, ast.Load) and not import_for(name):
                yield node

    def depends_on_tools(self, survey: Survey) -> bool:
        """Return whether tools of servers that were not asked yet may give a name a meaning."""
        unknown = not all(server.known for server in self._servers)
        return unknown and (any(self.undefined(survey)) or any(_texts(survey)))


def import_for(name: str, attributes: Collection[str] = ()) -> str:
    """Return the import statement for a well-known name; empty for any other.

    Args:
        attributes: Those that a program uses of it; "" if it uses the name itself.
    """
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
    """Yield the texts that alone name the tool of a `call_tool`."""
    for node, _ in survey.every(ast.Call):
        if last_name(node.func) in BY_NAME:
            slots = [(PARAMETER_NAMES.get(one.arg, one.arg), one.value) for one in node.keywords]
            values = [*node.args[:2], *(value for name, value in slots if name in _TARGET)]
            texts = [one.value for one in values if isinstance(one, ast.Constant)]
            if len(texts) == 1 and isinstance(texts[0], str):
                yield texts[0]
