"""Tools and helpers that are not there, and arguments that they do not take."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial

from bridge.catalog.checking.binding import BY_NAME, Binding, Patience
from bridge.catalog.checking.certainty import Certainty
from bridge.catalog.checking.meaning import (
    HELPER,
    PACKAGE,
    RUNTIME,
    SERVER,
    TOOL,
    Meaning,
    Meanings,
)
from bridge.catalog.checking.places import Place
from bridge.catalog.checking.report import Report, did_you_mean, listed, nearest, quoted
from bridge.catalog.checking.signatures import Arguments, arguments_of
from bridge.catalog.checking.survey import Survey
from bridge.catalog.checking.tables import (
    HELPERS,
    MODULE_NAMES,
    NOT_OF_MODULES,
    RUNTIME_TYPES,
    SERVER_METHODS,
)
from bridge.catalog.entries import ServerEntry, ToolEntry
from bridge.catalog.prose import clip
from bridge.catalog.stubs import call_signature
from bridge.model import Severity

_MODULE_NAMES = MODULE_NAMES | (SERVER_METHODS.keys() - NOT_OF_MODULES)

_INTROSPECTIVE = frozenset(
    """
    dir getattr hasattr help inspect list_tools list_tools_sync query_tool_docs
    query_tool_docs_sync describe_server search_tool_docs search_tool_docs_sync TOOLS TOOL_MAP
    """.split()  # noqa: SIM905 - as words they can be read
)
"""With these a program can find out what there is, and then use only that."""


class Calls:
    """Checks what a program takes of servers, and how it calls it."""

    def __init__(
        self, survey: Survey, meanings: Meanings, certainty: Certainty, report: Report
    ) -> None:
        self._survey = survey
        self._meanings = meanings
        self._certainty = certainty
        self._report = report
        self._accepted: dict[tuple[str, str], Arguments] = {}
        self._signatures: dict[tuple[str, str], str] = {}
        self._looks = self._looks_around()
        self._values = Patience()

    def check(self) -> None:
        """Report what is wrong."""
        for node, place in self._survey.each(ast.Attribute):
            assert isinstance(node, ast.Attribute)
            self._attribute(node, place)
        for node, place in self._survey.each(ast.Subscript):
            assert isinstance(node, ast.Subscript)
            self._item(node, place)
        for node, place in self._survey.each(ast.ImportFrom):
            assert isinstance(node, ast.ImportFrom)
            self._import(node, place)
        for node, place in self._survey.each(ast.With, ast.AsyncWith):
            assert isinstance(node, ast.With | ast.AsyncWith)
            for context in node.items:
                self._context(context.context_expr, place)
        awaited = {id(node.value) for node, _ in self._survey.each(ast.Await)}  # type: ignore[attr-defined]
        for node, place in self._survey.each(ast.Call):
            assert isinstance(node, ast.Call)
            self._call(node, place, awaited=id(node) in awaited)

    def _looks_around(self) -> bool:
        for node, _ in self._survey.each(ast.Name):
            assert isinstance(node, ast.Name)
            if node.id in _INTROSPECTIVE:
                return True
        for node, _ in self._survey.each(ast.Attribute):
            assert isinstance(node, ast.Attribute)
            if node.attr in _INTROSPECTIVE:
                return True
        return False

    def _context(self, node: ast.expr, place: Place) -> None:
        """`async with mcp_x as x`: a server is no client that has to be opened."""
        meaning = self._meanings.of(node, place)
        # Python 3.10 and before raise the other.
        severities = {self._certainty.raises(place, k) for k in ("TypeError", "AttributeError")}
        if meaning is not None and meaning.kind == SERVER:
            message = (
                f"{quoted(meaning.name)} is connected already and is no context: leave the `with` "
                f"out, and call `await {meaning.name}.<tool>(...)`"
            )
            severity: Severity = "note" if "note" in severities else "deny"
            self._report.add(node, "not-a-tool", severity, message)

    # --- names -----------------------------------------------------------------------------------

    def _attribute(self, node: ast.Attribute, place: Place) -> None:
        name = node.attr
        if name.startswith("_") or not isinstance(node.ctx, ast.Load):
            return
        if name in self._survey.stored:
            return
        base = self._meanings.of(node.value, place)
        if base is None:
            return
        if base.kind == SERVER and base.server is not None:
            if not self._has(base, name):
                self._no_tool(node, place, base.server, name, "AttributeError")
        elif base.kind == RUNTIME and name not in HELPERS and name not in RUNTIME_TYPES:
            self._no_helper(node, place, name, "AttributeError")
        elif base.kind == PACKAGE and name not in ("runtime", "servers", "MCPError"):
            message = (
                f"`mcp` has no {quoted(name)}: in a run it is the bridge's own and has `runtime` "
                "and `servers`; call tools as `await mcp_<server>.<tool>(...)`"
            )
            severity = self._certainty.raises(place, "AttributeError")
            self._report.add(node, "unknown-name", severity, message)

    def _item(self, node: ast.Subscript, place: Place) -> None:
        key = node.slice
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
            return
        base = self._meanings.of(node.value, place)
        if base is None or base.kind != SERVER or base.server is None or base.as_module:
            return
        names = {entry.tool.name for entry in base.server.tools}
        if key.value not in names and key.value not in self._meanings.tools(base.server):
            self._no_tool(node, place, base.server, key.value, "MissingKeyError")

    def _import(self, node: ast.ImportFrom, place: Place) -> None:
        module = "" if node.level else node.module or ""
        parts = module.split(".")
        if parts[0] != "mcp":
            return
        for item in node.names:
            if item.name == "*":
                continue
            if module == "mcp" and item.name not in ("runtime", "servers", "MCPError"):
                self._foreign(node, place, f"from mcp import {item.name}")
                return
            if module == "mcp.runtime":
                if item.name not in HELPERS and item.name not in RUNTIME_TYPES:
                    self._no_helper(node, place, item.name, "ImportError")
            elif parts[:2] == ["mcp", "servers"] and len(parts) == 3:
                server = self._meanings.imported_server(parts[2])
                if server is not None and not self._has_imported(server, item.name):
                    self._no_tool(node, place, server, item.name, "ImportError")
            elif parts[1:2] not in (["servers"], ["runtime"], []):
                self._foreign(node, place, f"from {module} import {item.name}")
                return

    def _has_imported(self, server: ServerEntry, name: str) -> bool:
        return name.startswith("_") or name in _MODULE_NAMES or name in self._meanings.tools(server)

    def _has(self, base: Meaning, name: str) -> bool:
        assert base.server is not None
        extra = _MODULE_NAMES if base.as_module else SERVER_METHODS.keys()
        return name in extra or name in self._meanings.tools(base.server)

    def _no_tool(
        self, node: ast.AST, place: Place, server: ServerEntry, name: str, kind: str
    ) -> None:
        if self._report.exhausted:
            return
        severity = self._certainty.raises(place, kind)
        if name in self._survey.words and kind != "MissingKeyError":
            # The program looks for it by name.
            severity = "note"
        elif self._looks and place.conditional:
            severity = "note"
        names = [entry.alias for entry in server.tools]
        owner = f"`mcp_{server.alias}`"
        near = nearest(name, names)
        if name in BY_NAME:
            how = f"await runtime.{name}({clip(server.name, 60)!r}, tool, {{...}})"
            said = f" By its name a tool is called as `{how}`. Tools: {listed(names)}."
        elif near:
            entry = self._meanings.tools(server)[near]
            said = f" Did you mean `{self._signature(server, entry)}`?"
            if len(names) <= 6:
                said += f" Tools: {listed(names)}."
        else:
            said = f" Tools: {listed(names)}."
        message = f"{owner} has no tool {quoted(name)}.{said}"
        self._report.add(node, "unknown-tool", severity, message)

    def _no_helper(self, node: ast.AST, place: Place, name: str, kind: str) -> None:
        if self._report.exhausted:
            return
        severity = self._certainty.raises(place, kind)
        names = [*HELPERS, *RUNTIME_TYPES]
        near = nearest(name, names)
        if near in HELPERS:
            said = f" Did you mean {quoted(HELPERS[near].signature)}?"
        else:
            said = did_you_mean(name, names) or f" It has {', '.join(sorted(HELPERS))}."
        self._report.add(
            node, "unknown-helper", severity, f"`runtime` has no {quoted(name)}.{said}"
        )

    def _foreign(self, node: ast.AST, place: Place, text: str) -> None:
        message = (
            f"{quoted(text)} is the MCP SDK's, which is neither here nor needed: the servers are "
            "connected; call tools as `await mcp_<server>.<tool>(...)`"
        )
        severity = self._certainty.raises(place, "ModuleNotFoundError")
        self._report.add(node, "unknown-module", severity, message)

    # --- arguments -------------------------------------------------------------------------------

    def _call(self, node: ast.Call, place: Place, *, awaited: bool) -> None:
        meaning = self._meanings.of(node.func, place)
        if meaning is None:
            return
        if meaning.kind == SERVER:
            certain = self._certainty.raises(place, "TypeError")
            names = [entry.alias for entry in meaning.server.tools] if meaning.server else []
            message = (
                f"{quoted(meaning.name)} is a server and cannot be called; "
                f"call one of its tools: `await {meaning.name}.<tool>(...)`. Tools: {listed(names)}"
            )
            self._report.add(node, "not-a-tool", certain, message)
        elif meaning.kind == TOOL and meaning.server is not None and meaning.tool is not None:
            severity = partial(self._certainty.raises, place, "ArgumentsError", later=not awaited)
            accepted = self._arguments(meaning.server, meaning.tool)
            how = partial(self._signature, meaning.server, meaning.tool)
            Binding(self._report, severity, meaning.name, how, self._values).tool(node, accepted)
        elif meaning.kind == HELPER and meaning.helper is not None:
            later = meaning.helper.asynchronous and not awaited
            severity = partial(self._certainty.raises, place, "TypeError", later=later)
            helper = meaning.helper
            binding = Binding(
                self._report, severity, meaning.name, lambda: helper.signature, self._values
            )
            binding.helper(node, helper)
            if meaning.helper.name in BY_NAME:
                raw = meaning.helper.name != "call_tool"
                self._by_name(node, lambda kind: self._raised(place, kind, raw=raw, later=later))

    def _raised(self, place: Place, kind: str, *, raw: bool, later: bool) -> Severity:
        """Return the severity of what a call by name raises; a raw one may return an error."""
        looked = self._looks and place.conditional
        return "note" if raw or looked else self._certainty.raises(place, kind, later=later)

    def _by_name(self, node: ast.Call, severity: Callable[[str], Severity]) -> None:
        """`runtime.call_tool("server", "tool", {...})`."""
        texts = [
            item.value if isinstance(item, ast.Constant) and isinstance(item.value, str) else None
            for item in node.args[:2]
        ]
        if len(texts) < 2 or texts[0] is None or texts[1] is None:
            return
        server = self._meanings.named_server(texts[0])
        if server is None or not server.known:
            return
        names = [entry.tool.name for entry in server.tools]
        entry = server.named(texts[1])
        if entry is None:
            near = did_you_mean(texts[1], names) or f" Tools: {listed(names)}."
            message = f"the server {quoted(server.name)} has no tool {quoted(texts[1])}.{near}"
            self._report.add(node, "unknown-tool", severity("MCPError"), message)
            return
        given = node.args[2] if len(node.args) > 2 else None
        if isinstance(given, ast.Dict) and all(isinstance(key, ast.Constant) for key in given.keys):
            keywords = [
                ast.keyword(arg=str(key.value), value=value)
                for key, value in zip(given.keys, given.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
            call = ast.copy_location(ast.Call(func=node.func, args=[], keywords=keywords), node)
            how = partial(self._signature, server, entry)
            label = f"{server.name}.{entry.tool.name}"
            certain = partial(severity, "ArgumentsError")
            binding = Binding(self._report, certain, label, how, self._values)
            binding.tool(call, self._arguments(server, entry))

    def _signature(self, server: ServerEntry, entry: ToolEntry) -> str:
        key = (server.alias, entry.alias)
        if key not in self._signatures:
            self._signatures[key] = call_signature(server.alias, entry)
        return self._signatures[key]

    def _arguments(self, server: ServerEntry, entry: ToolEntry) -> Arguments:
        key = (server.alias, entry.alias)
        if key not in self._accepted:
            self._accepted[key] = arguments_of(entry.tool.input_schema)
        return self._accepted[key]
