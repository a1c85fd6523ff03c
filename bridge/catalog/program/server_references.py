"""Finds the servers that a program names, and which of their tools it can reach.

The named servers are connected before the run, and a misspelt one is reported at once. The reach
decides which tools are sent to the sandbox. Neither is a security decision: a program that hides
what it uses only waits longer, and can still call any tool by name.

A program that has no tree (a syntax error, syntax newer than this interpreter's, or too long) names
none: the guest loads a server when it is first called.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.survey import Context, Survey, last_name
from bridge.catalog.program.symbols import (
    HELPER,
    IMPORTERS,
    MODULES,
    PACKAGE,
    SERVERS,
    SymbolResolver,
)
from bridge.catalog.prose import clip
from bridge.text import valid_text

MAX_UNKNOWN = 16
"""Unknown names reported."""

_MAX_SHOWN_CHARS = 80
_NEAREST = 3

_PREFIX = "mcp_"
_PACKAGE = "mcp.servers"
_CALLS = frozenset(
    """
    call_tool call_tool_raw complete get_prompt list_prompts list_resource_templates
    list_resources list_tools query_tool_docs read_resource watch_resource
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Helpers of `runtime` whose first argument is a server."""

_IMPORTERS = IMPORTERS | {"builtins.import_module"}
"""Functions that import a module; an earlier program of a session may have imported the last."""


@dataclass(frozen=True, kw_only=True)
class UnknownReference:
    """A server that the program names and that does not exist.

    Attributes:
        text: The name as the program writes it: `mcp_githb`, or in quotes.
        nearest: Similar names, written the same way, best first.
    """

    text: str
    line: int
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        hint = f" Did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        return f"line {self.line}: no server is called {self.text}.{hint}"


@dataclass(frozen=True, kw_only=True)
class References:
    """The servers that a program refers to.

    Attributes:
        servers: Their names, in order of first appearance.
        unknown: References that match no server.
        dynamic: Whether it also uses all servers, as in `list(mcp_servers)`. A name that it
            computes does not count, because the guest loads that server when it is first called.
        mentioned: Names in its texts, if it chooses servers by computed names.
    """

    servers: tuple[str, ...] = ()
    unknown: tuple[UnknownReference, ...] = ()
    dynamic: bool = False
    mentioned: tuple[str, ...] = ()


def references(
    survey: Survey, aliases: Mapping[str, str], *, more_names: bool = False
) -> References:
    """Return the servers that a program names.

    Args:
        aliases: Every server's name and alias. A program may pass either as a name.
        more_names: Whether it may use names that it does not bind, as in a session.
    """
    reader = _Reader(survey, aliases)
    reader.read()
    return reader.references(more_names=more_names or bool(survey.stars))


class _Reader:
    """Collects the references of one program."""

    def __init__(self, survey: Survey, aliases: Mapping[str, str]) -> None:
        self._survey = survey
        self._aliases = aliases
        self._names = {alias: name for name, alias in aliases.items()}
        servers = {alias: ServerEntry(name=name, alias=alias) for name, alias in aliases.items()}
        self._symbols = SymbolResolver(survey, servers)
        self._dynamic = False
        self._chooses = False
        self._found: list[tuple[int, int, str]] = []
        self._missing: list[tuple[int, int, str, bool]] = []
        self._consumed: set[int] = set()

    def read(self) -> None:
        """Collect references; `mcp_servers` used other than with a key makes it dynamic."""
        for node, context in self._survey.every(ast.Import, ast.ImportFrom):
            self._import(node, context)
        for node, context in self._survey.every(ast.Call):
            self._call(node, context)
        for node, context in self._survey.every(ast.Subscript):
            if self._is(node.value, context, SERVERS) or self._is(node.value, context, PACKAGE):
                self._consumed.add(id(node.value))
                self._chooses |= not self._literal(node, node.slice, context)
        for node, context in self._survey.every(ast.Attribute):
            if self._is(node.value, context, MODULES):
                self._alias(node, node.attr, context, must_exist=not node.attr.startswith("_"))
            elif node.attr in self._names and (
                self._is(node.value, context, SERVERS) or self._is(node.value, context, PACKAGE)
            ):
                self._consumed.add(id(node.value))
                self._alias(node, node.attr, context)
        for node, context in self._survey.every(ast.Name):
            if isinstance(node.ctx, ast.Load):
                self._name(node, context)

    def references(self, *, more_names: bool) -> References:
        """Return the collected references, in the order of the program's text."""
        servers = dict.fromkeys(name for _, _, name in sorted(self._found))
        unknown: dict[str, UnknownReference] = {}
        for line, _, text, is_name in sorted(self._missing):
            if is_name and (more_names or text in self._survey.names):
                continue
            if text not in unknown and len(unknown) < MAX_UNKNOWN:
                unknown[text] = self._unknown(text, line, is_name)
        return References(
            servers=tuple(servers),
            unknown=tuple(unknown.values()),
            dynamic=self._dynamic,
            mentioned=tuple(dict.fromkeys(self._mentions())) if self._chooses else (),
        )

    def _mentions(self) -> Iterator[str]:
        """Yield the servers whose name or alias is a text of the program."""
        for node, _ in self._survey.every(ast.Constant):
            if isinstance(node.value, str) and (name := self._named(node.value)):
                yield name

    def _unknown(self, text: str, line: int, is_name: bool) -> UnknownReference:
        shown = valid_text(clip(text, _MAX_SHOWN_CHARS))
        if is_name:
            stem = shown.removeprefix(_PREFIX)
            close = difflib.get_close_matches(stem, self._names, _NEAREST)
            return UnknownReference(
                text=f"`{shown}`", line=line, nearest=tuple(f"`{_PREFIX}{near}`" for near in close)
            )
        close = difflib.get_close_matches(shown, chain(self._aliases, self._names), _NEAREST)
        own = dict.fromkeys(self._names.get(near, near) for near in close)
        return UnknownReference(
            text=repr(shown), line=line, nearest=tuple(repr(valid_text(near)) for near in own)
        )

    def _is(self, node: ast.expr, context: Context, kind: str) -> bool:
        return any(
            one is not None and one.kind == kind for one in self._symbols.all_of(node, context)
        )

    def _import(self, node: ast.Import | ast.ImportFrom, context: Context) -> None:
        if isinstance(node, ast.Import):
            dotted = [item.name for item in node.names]
        elif node.level or not node.module:
            return
        else:
            dotted = [f"{node.module}.{item.name}" for item in node.names]
        for name in dotted:
            parts = name.split(".")
            if name == f"{_PACKAGE}.*":
                self._dynamic = True
            elif name.startswith(f"{_PACKAGE}."):
                self._alias(node, parts[2], context)
            elif parts[0] == "mcp" and parts[-1] in self._names:
                self._alias(node, parts[-1], context)
            elif parts[0].startswith(_PREFIX):
                self._alias(node, parts[0].removeprefix(_PREFIX), context, must_exist=False)

    def _call(self, node: ast.Call, context: Context) -> None:
        function = node.func
        mapping = function.value if isinstance(function, ast.Attribute) else function
        gets = mapping is not function and last_name(function) == "get" and node.args
        if gets and self._is(mapping, context, SERVERS):
            self._consumed.add(id(mapping))
            # A program that uses `get` handles a missing server itself.
            self._chooses |= not self._literal(node, node.args[0], context, must_exist=False)
        for symbol in self._symbols.all_of(function, context):
            if symbol is None:
                continue
            if symbol.kind == HELPER and symbol.helper and symbol.helper.owner == "runtime":
                self._server_argument(node, symbol.helper.name, context)
            elif symbol.dotted in _IMPORTERS and node.args:
                self._import_call(node, context)
            elif symbol.dotted == "builtins.globals":
                self._chooses = True
            elif (
                symbol.dotted == "builtins.getattr"
                and node.args
                and self._is(node.args[0], context, MODULES)
            ):
                known = self._literal(node, node.args[-1], context, must_exist=False)
                self._chooses |= not known

    def _server_argument(self, node: ast.Call, helper: str, context: Context) -> None:
        # A server that does not start is described without its tools.
        self._chooses |= helper == "describe_server"
        if helper not in _CALLS or (helper == "read_resource" and len(node.args) == 1):
            # Without a server, the only argument is the resource.
            return
        names = ("server", "server_name", "tool", "tool_name", "name")
        named = [keyword.value for keyword in node.keywords if keyword.arg in names]
        for argument in (node.args or named)[:1]:
            text = argument.value if isinstance(argument, ast.Constant) else None
            path = self._survey.given.get(text, "") if isinstance(text, str) else ""
            alias = path.removeprefix(_PREFIX).partition(".")[0]
            if alias in self._names:
                self._alias(node, alias, context)
            else:
                self._literal(node, argument, context)

    def _import_call(self, node: ast.Call, context: Context) -> None:
        """Read `import_module("mcp.servers.x")`, where the name may be computed."""
        name = self._symbols.text(node.args[0], context)
        if name is None:
            self._chooses |= self._symbols.start(node.args[0], context).startswith(f"{_PACKAGE}.")
        elif name.startswith(f"{_PACKAGE}."):
            self._alias(node, name.split(".")[2], context)

    def _name(self, node: ast.Name, context: Context) -> None:
        path = self._survey.given.get(node.id, node.id)
        if path == "LOADED_MCP_SERVERS":
            self._dynamic = True
        elif path == "mcp_servers":
            self._dynamic |= id(node) not in self._consumed
        elif path.startswith(_PREFIX):
            alias = path.removeprefix(_PREFIX).partition(".")[0]
            self._note(node, self._names.get(alias), node.id, context, True)

    def _literal(
        self, node: ast.expr, argument: ast.expr, context: Context, *, must_exist: bool = True
    ) -> bool:
        """Record the server that `argument` names; return whether it is a literal."""
        value = argument.value if isinstance(argument, ast.Constant) else None
        if not isinstance(value, str):
            return False
        name = self._named(value) if must_exist else self._known(value)
        self._note(node, name, value if must_exist else "", context)
        return True

    def _known(self, text: str) -> str | None:
        """Return the server of this name or alias."""
        return text if text in self._aliases else self._names.get(text)

    def _named(self, text: str) -> str | None:
        """Return the server of this name, alias, or alias with its prefix."""
        return self._known(text) or self._names.get(text.removeprefix(_PREFIX))

    def _alias(
        self, node: ast.stmt | ast.expr, alias: str, context: Context, *, must_exist: bool = True
    ) -> None:
        self._note(node, self._names.get(alias), alias if must_exist else "", context)

    def _note(
        self,
        node: ast.stmt | ast.expr,
        name: str | None,
        missing: str,
        context: Context,
        is_name: bool = False,
    ) -> None:
        """Record a server, or an unknown one where the program would fail for it."""
        if name is not None:
            self._found.append((node.lineno, node.col_offset, name))
        elif missing and not context.dead:
            self._missing.append((node.lineno, node.col_offset, missing, is_name))


# --- reachable tools -----------------------------------------------------------------------------

Reach = Mapping[str, frozenset[str] | None]
"""By server, the attributes that the program uses; None for a server used as a whole object."""

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
_EVERYTHING = frozenset({"mcp", "mcp_servers"})
_OF_RUNTIME = frozenset({"MCPError", "Blob"})
"""Attributes of `runtime` that reach no server."""

_TELLTALES = ("__", "mcp", "MCP_", "runtime", "globals")
"""Parts of a text that may be a name to look up, or a format that reads attributes."""


def reach(survey: Survey, aliases: Mapping[str, str]) -> Reach | None:
    """Return the attributes of servers that the program can reach; None if that is unknown.

    Ordinary programs write `mcp_github.create_issue(...)` and need that tool and not the other five
    thousand. A program that uses reflection needs all of them.

    Args:
        aliases: Name and alias of each server that the program names.
    """
    names = {f"mcp_{alias}": name for name, alias in aliases.items()}
    paths = {name: path.split(".") for name, path in survey.given.items()}
    names.update((name, names[path[0]]) for name, path in paths.items() if path[0] in names)
    taken: dict[str, set[str]] = {}
    owned: set[int] = set()
    whole: set[str] = set()
    words: list[str] = []
    for node, _ in survey.every(ast.Attribute):
        owner = node.value.id if isinstance(node.value, ast.Name) else ""
        if owner in names and not node.attr.startswith("_"):
            # A tool may have any name, also that of a reflective attribute such as `query`.
            owned.add(id(node.value))
            taken.setdefault(names[owner], set()).add(node.attr)
            continue
        if owner == "runtime" and node.attr in _OF_RUNTIME:
            owned.add(id(node.value))
        words.append(node.attr)
    for node, _ in survey.every(ast.Name):
        if node.id in names:
            taken.setdefault(names[node.id], set()).update(paths.get(node.id, ())[1:])
            if id(node) not in owned and len(paths.get(node.id, ())) < 2:
                whole.add(names[node.id])
        elif (
            node.id in _EVERYTHING
            or node.id in survey.given
            or (node.id == "runtime" and id(node) not in owned)
        ):
            return None
        else:
            words.append(node.id)
    modules = [item.name for node, _ in survey.every(ast.Import) for item in node.names]
    for node, _ in survey.every(ast.ImportFrom):
        modules.append("" if node.level else node.module or "")
        words += [item.name for item in node.names]
    words += [word for node, _ in survey.every(ast.MatchClass) for word in node.kwd_attrs]
    texts = (node.value for node, _ in survey.every(ast.Constant) if isinstance(node.value, str))
    plain = all(map(_plain_word, words)) and all(map(_plain_module, modules))
    if not plain or any(part in text for text in texts for part in _TELLTALES):
        return None
    return {name: None if name in whole else frozenset(got) for name, got in taken.items()}


def _plain_module(dotted: str) -> bool:
    parts = dotted.split(".")
    return parts[0] in _PLAIN_MODULES and not _REFLECTIVE.intersection(parts)


def _plain_word(word: str) -> bool:
    return word not in _REFLECTIVE and (not word.startswith("__") or word in _HARMLESS)
