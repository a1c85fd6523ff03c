"""Which servers does a program name?

Owns the reading of a program before it runs, so that the servers it needs can be made ready and a
misspelt one reported at once. It decides nothing about safety: a program that hides what it uses
only makes itself wait. Any string is accepted. Nothing is executed.

A program that has a tree is read by that. One that does not parse here (a syntax error, or syntax
newer than this interpreter's) or that is very long is scanned as text instead, which may find a
server in a comment and reports nothing as unknown.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from bridge.catalog.checking.survey import Survey
from bridge.catalog.prose import clip
from bridge.text import valid_text

MAX_UNKNOWN = 16
"""Unknown names reported; more help nobody."""

_MAX_SHOWN_CHARS = 80
_NEAREST = 3

_PREFIX = "mcp_"
_MAPPING = "mcp_servers"
_PACKAGE = "mcp.servers"
_RUNTIME = "mcp.runtime"
_CALLS = frozenset(
    """
    call_tool call_tool_raw complete get_prompt list_prompts list_resource_templates
    list_resources list_tools query_tool_docs read_resource watch_resource
    """.split()  # noqa: SIM905 - as words they can be read
)
"""Of `runtime`: what takes a server first."""
_IMPORTERS = frozenset({"import_module", "__import__"})


@dataclass(frozen=True, kw_only=True)
class UnknownReference:
    """A server that the program names and that does not exist.

    Attributes:
        text: As the program has it: `mcp_githb`, or the name in quotes.
        nearest: What may have been meant, spelled the same way, best first.
    """

    text: str
    line: int
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        hint = f" Did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        return f"line {self.line}: no server is called {self.text}.{hint}"


@dataclass(frozen=True, kw_only=True)
class References:
    """What a program says about servers.

    Attributes:
        servers: Names of those it refers to, in order of first appearance.
        unknown: References that match no server.
        dynamic: Whether it also picks among the loaded servers in a way that only running it can
            tell. Reflection on anything else (`vars(thing)`, `eval`) does not count, as every
            server there is would be started for it; nor do `runtime` calls with a computed name,
            which reach servers that are not loaded.
        parsed: Whether the program was parsed; if not, `servers` comes from its text.
    """

    servers: tuple[str, ...] = ()
    unknown: tuple[UnknownReference, ...] = ()
    dynamic: bool = False
    parsed: bool = True


def references(
    code: str, survey: Survey | None, aliases: Mapping[str, str], *, more_names: bool = False
) -> References:
    """Return the servers that `code` names.

    Args:
        survey: Of its tree; None if it has none.
        aliases: Every server's name and alias. A program may use either where it gives a name.
        more_names: Whether it may use names that it does not bind, as those of a session.
    """
    if survey is None:
        return _scan_text(code, aliases)
    reader = _Reader(aliases=aliases, bound=survey.names, star_import=more_names)
    reader.read(survey.tree)
    return reader.references()


@dataclass
class _Reader:
    """Walks one tree and collects what it says."""

    aliases: Mapping[str, str]
    bound: Collection[str]
    dynamic: bool = False
    star_import: bool = False
    runtime_names: set[str] = field(default_factory=lambda: {"runtime"})
    package_names: set[str] = field(default_factory=set)
    call_names: dict[str, str] = field(default_factory=dict)
    found: list[tuple[int, int, str]] = field(default_factory=list)
    missing: list[tuple[int, int, str, bool]] = field(default_factory=list)
    consumed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names = {alias: name for name, alias in self.aliases.items()}

    def read(self, tree: ast.Module) -> None:
        """Collect first what names mean, then how they are used; parents come before children."""
        nodes = list(ast.walk(tree))
        for node in nodes:
            self._import(node)
        for node in nodes:
            if isinstance(node, ast.Call):
                self._call(node)
            elif isinstance(node, ast.Subscript):
                self._subscript(node)
            elif isinstance(node, ast.Attribute):
                self._attribute(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._name(node)

    def references(self) -> References:
        """Return what was collected, in the order of the program's text."""
        servers = dict.fromkeys(name for _, _, name in sorted(self.found))
        unknown: dict[str, UnknownReference] = {}
        for line, _, text, is_name in sorted(self.missing):
            if is_name and (self.star_import or text in self.bound):
                continue
            if text not in unknown and len(unknown) < MAX_UNKNOWN:
                unknown[text] = self._unknown(text, line, is_name)
        return References(
            servers=tuple(servers), unknown=tuple(unknown.values()), dynamic=self.dynamic
        )

    def _unknown(self, text: str, line: int, is_name: bool) -> UnknownReference:
        shown = valid_text(clip(text, _MAX_SHOWN_CHARS))
        if is_name:
            stem = shown.removeprefix(_PREFIX)
            close = difflib.get_close_matches(stem, self.names, _NEAREST)
            return UnknownReference(
                text=f"`{shown}`", line=line, nearest=tuple(f"`{_PREFIX}{near}`" for near in close)
            )
        close = difflib.get_close_matches(shown, chain(self.aliases, self.names), _NEAREST)
        own = dict.fromkeys(self.names.get(near, near) for near in close)
        return UnknownReference(
            text=repr(shown), line=line, nearest=tuple(repr(valid_text(near)) for near in own)
        )

    def _import(self, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            for item in node.names:
                if item.name.startswith(f"{_PACKAGE}."):
                    self._alias(node, item.name.split(".")[2])
                elif item.name == _PACKAGE and item.asname:
                    self.package_names.add(item.asname)
                elif item.name == _RUNTIME and item.asname:
                    self.runtime_names.add(item.asname)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            self._import_from(node, node.module)

    def _import_from(self, node: ast.ImportFrom, module: str) -> None:
        if module.startswith(f"{_PACKAGE}."):
            self._alias(node, module.split(".")[2])
            return
        for item in node.names:
            name = item.asname or item.name
            if item.name == "*":
                self.star_import = True
                self.dynamic |= module == _PACKAGE
            elif module == _PACKAGE:
                self._alias(node, item.name)
            elif module == "mcp" and item.name == "servers":
                self.package_names.add(name)
            elif module == "mcp" and item.name == "runtime":
                self.runtime_names.add(name)
            elif module == _RUNTIME and item.name in _CALLS:
                self.call_names[name] = item.name

    def _call(self, node: ast.Call) -> None:
        function = node.func
        if isinstance(function, ast.Attribute):
            self._method_call(node, function)
        elif isinstance(function, ast.Name):
            self._plain_call(node, function.id)

    def _method_call(self, node: ast.Call, function: ast.Attribute) -> None:
        owner, method = _dotted(function.value), function.attr
        if owner == _MAPPING and method == "get" and node.args:
            self.consumed.add(id(function.value))
            # Asking with `get` is how a program copes with a server that is not there.
            self.dynamic |= not self._literal(node, node.args[0], must_exist=False)
        elif method in _CALLS and (owner in self.runtime_names or owner == _RUNTIME):
            self._server_argument(node, method)
        elif method in _IMPORTERS:
            self._import_call(node)

    def _plain_call(self, node: ast.Call, name: str) -> None:
        if name in self.call_names:
            self._server_argument(node, self.call_names[name])
        elif name in _IMPORTERS:
            self._import_call(node)
        elif name == "globals":
            self.dynamic = True
        elif name == "getattr" and len(node.args) > 1 and self._is_package(_dotted(node.args[0])):
            self.dynamic |= not self._literal(node, node.args[1], must_exist=False)

    def _server_argument(self, node: ast.Call, method: str) -> None:
        if method == "read_resource" and len(node.args) == 1:
            # The server may be left out: this is the resource.
            return
        named = [keyword.value for keyword in node.keywords if keyword.arg == "server"]
        for argument in node.args[:1] or named:
            self._literal(node, argument)

    def _import_call(self, node: ast.Call) -> None:
        """Read `import_module("mcp.servers.x")`, where the name may be put together."""
        for part in chain.from_iterable(ast.walk(argument) for argument in node.args[:1]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                name = part.value.removeprefix(f"{_PACKAGE}.")
                if name == part.value:
                    continue
                if part is node.args[0]:
                    self._alias(node, name.split(".")[0])
                else:
                    self.dynamic = True

    def _is_package(self, dotted: str) -> bool:
        return dotted == _PACKAGE or (dotted != "" and dotted in self.package_names)

    def _subscript(self, node: ast.Subscript) -> None:
        if _dotted(node.value) == _MAPPING:
            self.consumed.add(id(node.value))
            self.dynamic |= not self._literal(node, node.slice)

    def _attribute(self, node: ast.Attribute) -> None:
        if self._is_package(_dotted(node.value)):
            self._alias(node, node.attr, must_exist=not node.attr.startswith("_"))

    def _name(self, node: ast.Name) -> None:
        if node.id == "LOADED_MCP_SERVERS":
            self.dynamic = True
        elif node.id == _MAPPING:
            self.dynamic |= id(node) not in self.consumed
        elif node.id.startswith(_PREFIX):
            name = self.names.get(node.id.removeprefix(_PREFIX))
            if name is None:
                self.missing.append((node.lineno, node.col_offset, node.id, True))
            else:
                self.found.append((node.lineno, node.col_offset, name))

    def _literal(self, node: ast.expr, argument: ast.expr, *, must_exist: bool = True) -> bool:
        """Note the server that `argument` names; return whether it could be read."""
        if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
            return False
        value = argument.value
        alias = value.removeprefix(_PREFIX) if must_exist else value
        name = value if value in self.aliases else self.names.get(value, self.names.get(alias))
        if name is not None:
            self.found.append((node.lineno, node.col_offset, name))
        elif must_exist:
            self.missing.append((node.lineno, node.col_offset, value, False))
        return True

    def _alias(self, node: ast.stmt | ast.expr, alias: str, *, must_exist: bool = True) -> None:
        name = self.names.get(alias)
        if name is not None:
            self.found.append((node.lineno, node.col_offset, name))
        elif must_exist:
            self.missing.append((node.lineno, node.col_offset, alias, False))


def _dotted(node: ast.expr) -> str:
    """Return "a", "a.b" for such an expression; empty for anything longer or else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    return ""


# --- programs that do not parse -----------------------------------------------------------------

_BY_ALIAS = re.compile(
    r"\bmcp_(?P<name>\w{1,200})|\bmcp\s?\.\s?servers\s?\.\s?(?P<module>\w{1,200})"
)
_BY_IMPORT = re.compile(
    r"\bfrom\s{1,8}mcp\.servers\s{1,8}import\s{1,8}\(?(?P<names>[^\n)]{1,2000})"
)
_BY_TEXT = re.compile(
    r"\b(?:mcp_servers\s{0,8}(?:\[|\.get\()"
    rf"|(?:{'|'.join(sorted(_CALLS))})\()"
    r"\s{0,8}(?:server\s{0,8}=\s{0,8})?(?P<quote>['\"])(?P<name>[^'\"\n]{1,200})(?P=quote)"
)
_DYNAMIC = re.compile(
    r"\bmcp_servers\b(?!\s{0,8}(?:\[|\.get\()\s{0,8}['\"])"
    r"|\bLOADED_MCP_SERVERS\b|\bmcp\.servers\s{1,8}import\s{1,8}\*|\bmcp\.servers\.['\"{]"
    r"|\bglobals\s{0,8}\(\s{0,8}\)"
)


def _scan_text(code: str, aliases: Mapping[str, str]) -> References:
    names = {alias: name for name, alias in aliases.items()}
    found: list[tuple[int, str]] = []
    for position, word in _words(code):
        name = word if word in aliases else names.get(word)
        if name is not None:
            found.append((position, name))
    return References(
        servers=tuple(dict.fromkeys(name for _, name in sorted(found))),
        dynamic=_DYNAMIC.search(code) is not None,
        parsed=False,
    )


def _words(code: str) -> Iterator[tuple[int, str]]:
    for match in _BY_ALIAS.finditer(code):
        yield match.start(), match["name"] or match["module"]
    for match in _BY_IMPORT.finditer(code):
        for item in re.finditer(r"\w{1,200}", match["names"]):
            yield match.start(), item[0]
    for match in _BY_TEXT.finditer(code):
        yield match.start(), match["name"]
