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
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from bridge.catalog.entries import ServerEntry
from bridge.catalog.program.arguments import CallReader
from bridge.catalog.program.survey import Context, Survey, last_name
from bridge.catalog.program.symbols import (
    IMPORTERS,
    MODULES,
    NO_SERVER,
    PACKAGE,
    SERVERS,
    Symbol,
    SymbolResolver,
)
from bridge.catalog.prose import clip
from bridge.text import valid_text

MAX_UNKNOWN = 16
"""Unknown names reported."""

_MAX_SHOWN_CHARS = 80
_NEAREST = 3

_PREFIX = "mcp_"
_MAPPINGS = frozenset({PACKAGE, SERVERS})


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
    return reader.references(more_names=more_names)


class _Reader:
    """Collects the references of one program."""

    def __init__(self, survey: Survey, aliases: Mapping[str, str]) -> None:
        self._survey = survey
        self._aliases = aliases
        self._names = {alias: name for name, alias in aliases.items()}
        servers = {alias: ServerEntry(name=name, alias=alias) for name, alias in aliases.items()}
        self._symbols = SymbolResolver(survey, servers)
        self._calls = CallReader(survey, self._symbols)
        self._dynamic = False
        self._chooses = False
        self._found: list[tuple[int, int, str]] = []
        self._missing: list[tuple[int, int, str]] = []
        self._consumed: set[int] = set()

    def read(self) -> None:
        """Collect references; `mcp_servers` used other than with a key makes it dynamic."""
        for node, context in self._survey.every(ast.Import, ast.ImportFrom):
            self._import(node, context)
        for node, context in self._survey.every(ast.Call):
            self._call(node, context)
        for node, context in self._survey.every(ast.Subscript, ast.Attribute):
            found = self._note(node, context, self._symbols.all_of(node, context))
            keyed = isinstance(node, ast.Subscript) and self._is(node.value, context, _MAPPINGS)
            self._chooses |= keyed and not found
            if keyed or found:
                self._consumed.add(id(node.value))
        for node, context in self._survey.every(ast.Name):
            if isinstance(node.ctx, ast.Load):
                self._note(node, context, self._symbols.all_of(node, context))
                path = self._survey.given.get(node.id, node.id)
                free = path == "mcp_servers" and id(node) not in self._consumed
                self._dynamic |= free or path == "LOADED_MCP_SERVERS"

    def references(self, *, more_names: bool) -> References:
        """Return the collected references, in the order of the program's text."""
        servers = dict.fromkeys(name for _, _, name in sorted(self._found))
        unknown: dict[str, UnknownReference] = {}
        for line, _, text in sorted(self._missing):
            own = more_names and text.startswith(_PREFIX)
            if text not in unknown and not own and len(unknown) < MAX_UNKNOWN:
                unknown[text] = self._unknown(text, line)
        return References(
            servers=tuple(servers),
            unknown=tuple(unknown.values()),
            dynamic=self._dynamic,
            mentioned=tuple(dict.fromkeys(self._mentions())) if self._chooses else (),
        )

    def _mentions(self) -> Iterator[str]:
        """Yield the servers whose name or alias is a text of the program."""
        for node, _ in self._survey.every(ast.Constant):
            server = self._symbols.named_server(node.value) if isinstance(node.value, str) else None
            if server is not None:
                yield server.name

    def _unknown(self, text: str, line: int) -> UnknownReference:
        """Return a reference by `mcp_name`, or by a text in quotes, with similar names."""
        if text.startswith(_PREFIX):
            shown = f"`{valid_text(clip(text, _MAX_SHOWN_CHARS))}`"
            close = difflib.get_close_matches(text[len(_PREFIX) :], self._names, _NEAREST)
            near = [f"`{_PREFIX}{name}`" for name in close]
        else:
            shown = text
            names = chain(self._aliases, self._names)
            close = difflib.get_close_matches(text.strip("'\""), names, _NEAREST)
            own = dict.fromkeys(self._names.get(name, name) for name in close)
            near = [repr(valid_text(name)) for name in own]
        return UnknownReference(text=shown, line=line, nearest=tuple(near))

    def _is(self, node: ast.expr, context: Context, kinds: Collection[str]) -> bool:
        return any(one and one.kind in kinds for one in self._symbols.all_of(node, context))

    def _import(self, node: ast.Import | ast.ImportFrom, context: Context) -> None:
        module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and (node.level or not node.module):
            return
        for item in node.names:
            name = f"{module}{item.name}"
            self._dynamic |= name == "mcp.servers.*"
            self._note(node, context, [self._symbols.imported(name.removesuffix(".*"))])

    def _call(self, node: ast.Call, context: Context) -> None:
        function = node.func
        found = self._note(node, context, self._symbols.all_of(node, context))
        mapping = function.value if isinstance(function, ast.Attribute) else function
        if last_name(function) == "get" and node.args and self._is(mapping, context, {SERVERS}):
            self._consumed.add(id(mapping))
            self._chooses |= not found and self._symbols.text(node.args[0], context) is None
        for symbol in self._symbols.all_of(function, context):
            dotted = symbol.dotted if symbol is not None else ""
            if symbol is not None and symbol.helper and symbol.helper.owner == "runtime":
                self._helper(node, context, symbol)
            elif dotted in IMPORTERS and node.args:
                start = self._symbols.start(node.args[0], context)
                self._chooses |= not found and start.startswith("mcp.servers.")
            elif dotted == "builtins.getattr" and node.args:
                self._chooses |= not found and self._is(node.args[0], context, {MODULES})
            self._chooses |= dotted == "builtins.globals"

    def _helper(self, node: ast.Call, context: Context, symbol: Symbol) -> None:
        """Read the server that a helper is given."""
        helper = symbol.helper
        # A server that does not start is described without its tools.
        self._chooses |= helper is not None and helper.name == "describe_server"
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
        found = False
        for symbol in symbols:
            if symbol is None:
                continue
            if symbol.server is not None:
                self._found.append((node.lineno, node.col_offset, symbol.server.name))
            elif symbol.kind == NO_SERVER and not context.dead:
                self._missing.append((node.lineno, node.col_offset, symbol.name))
            found |= symbol.server is not None or symbol.kind == NO_SERVER
        return found


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

_TELLTALES = ("__", "mcp", "runtime", "globals")
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
