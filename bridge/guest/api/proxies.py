"""The objects that stand for servers and tools inside a program.

Owns the functions made from the tools' data, the server objects and mappings around them and the
importable modules `mcp`, `mcp.servers` and `mcp.servers.<alias>`. Everything is built from closures
and data: nothing a server wrote is ever compiled. Functions are made when first asked for, so that
a run with hundreds of tools does not pay for those it leaves alone.
"""

from __future__ import annotations

import _collections_abc as abc  # loaded already, as `collections` is not
import keyword
import sys
import types

from bridge.guest.api.values import MCPError, MissingKeyError, Result, listed, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any, Awaitable, Callable, Dict, Iterator, List, Mapping, NoReturn, Sequence

    # Sends a bound call: server, tool, arguments.
    CallTool = Callable[[str, str, Dict[str, Any]], Awaitable[Any]]
else:
    # What `importlib.machinery` calls so, without importing that.
    ModuleSpec = type(sys.__spec__)


def usable(alias: Any) -> bool:
    """Whether a name may become an attribute: the host sends safe ones, and this makes sure."""
    return (
        isinstance(alias, str)
        and alias.isidentifier()
        and not keyword.iskeyword(alias)
        and not alias.startswith("__")
    )


def make_function(call: CallTool, server: Mapping[str, Any], tool: Mapping[str, Any]) -> Any:
    """Return an async function that calls `tool`."""
    # Not above: signatures take much importing, and many programs call no tool.
    from bridge.guest.api.arguments import Parameters

    title = "mcp_%s.%s" % (server["alias"], tool["alias"])
    server_name, tool_name = server["name"], tool["name"]
    parameters = Parameters(title, tool.get("inputSchema"), server_name, tool_name)

    async def function(*args: Any, **kwargs: Any) -> Any:
        return await call(server_name, tool_name, parameters.bind(args, kwargs))

    function.__name__ = tool["alias"]
    function.__qualname__ = title
    function.__module__ = "mcp.servers.%s" % server["alias"]
    function.tool = tool_name  # type: ignore[attr-defined]
    function.server = server_name  # type: ignore[attr-defined]
    if "description" in tool:
        # The host leaves it out for a program that only calls, which is spared all this.
        function.__doc__ = documentation(tool)
        function.__signature__ = parameters.signature(tool)  # type: ignore[attr-defined]
    return function


def documentation(tool: Mapping[str, Any]) -> str:
    """Return a tool's docstring, with the classes that its types refer to."""
    from bridge.guest.schema.signatures import Head, docstring, typed_dicts

    head = Head(tool)
    text = docstring(tool, head.shown, head.typed)
    classes = typed_dicts(head.typed.objects)
    if classes:
        import textwrap

        text += "%sTypes:\n" % ("\n\n" if text else "\n")
        text += textwrap.indent("\n".join(classes), "    ")
    return text


def signature_text(server: Mapping[str, Any], tool: Mapping[str, Any]) -> str:
    """Return how a tool is called and what it returns, with objects written out as in search."""
    from bridge.guest.api.arguments import Parameters
    from bridge.guest.schema.typetext import Names

    parameters = Parameters(str(tool["alias"]), tool.get("inputSchema"))
    text = "mcp_%s.%s%s" % (
        server["alias"],
        tool["alias"],
        parameters.signature(tool, Names(inline=True)),
    )
    # That it may be anything says nothing.
    return text[: -len(" -> Any")] if text.endswith(" -> Any") else text


class Tools:
    """The functions of one server, made on demand."""

    def __init__(
        self,
        call: CallTool,
        server: Mapping[str, Any],
        helper: Callable[[str, str], Any] = lambda server, name: None,
        load: Callable[[str], Awaitable[Mapping[str, Any]]] | None = None,
    ) -> None:
        """Make them.

        Args:
            helper: Gives what a server has besides tools, by the names of both; None for no such.
            load: Returns the data of a server that is not loaded; its functions call it first.
        """
        self._helper = helper
        self._load = load
        self.title = "mcp_%s" % server["alias"]
        self._call = call
        self._by_alias: Dict[str, Mapping[str, Any]] = {}
        self._by_name: Dict[str, Mapping[str, Any]] = {}
        self._made: Dict[str, Any] = {}
        self._take(server)

    def _take(self, server: Mapping[str, Any]) -> None:
        self.server = server
        for tool in server.get("tools") or ():
            self._by_name[tool["name"]] = tool
            if usable(tool["alias"]):
                self._by_alias[tool["alias"]] = tool

    async def load(self) -> None:
        """Make sure that the tools are known."""
        if self._load is not None:
            self._take(await self._load(self.server["name"]))
            self._load = None

    def _later(self, find: Callable[[str], Any], name: str) -> Any:
        """Return a function that loads the server before it calls the tool."""

        async def function(*args: Any, **kwargs: Any) -> Any:
            await self.load()
            return await find(name)(*args, **kwargs)

        function.__name__ = function.__qualname__ = name
        return function

    def aliases(self) -> List[str]:
        """Return the names under which tools are attributes."""
        return list(self._by_alias)

    def attribute(self, alias: str) -> Any:
        """Return a tool's function.

        Raises:
            AttributeError: There is no such tool; the message names the nearest.
        """
        # Interpreter and libraries probe for dunders; a tool must never answer.
        if not (alias.startswith("__") and alias.endswith("__")):
            if "refused" in self.server:
                return self._refused(alias)
            if self._load is not None and not alias.startswith("_"):
                return self._later(self.attribute, alias)
            tool = self._by_alias.get(alias)
            if tool is not None:
                return self._function(tool)
            helper = self._helper(self.server["name"], alias)
            if helper is not None:
                return helper
            raise AttributeError(self._no_such(alias))
        raise AttributeError(alias)

    def item(self, name: str) -> Any:
        """Return the function of a tool by its own name, or by its alias.

        Raises:
            MissingKeyError: There is no such tool; the message names the nearest.
        """
        if "refused" in self.server:
            return self._refused(name)
        if self._load is not None:
            return self._later(self.item, name)
        tool = self._by_name.get(name) or self._by_alias.get(name)
        if tool is None:
            raise MissingKeyError(self._no_such(name))
        return self._function(tool)

    def _function(self, tool: Mapping[str, Any]) -> Any:
        found = self._made.get(tool["name"])
        if found is None:
            found = self._made[tool["name"]] = make_function(self._call, self.server, tool)
        return found

    def _refused(self, name: str) -> Any:
        """Return what raises, when it is called, why the run goes on without this server."""

        async def function(*args: Any, **kwargs: Any) -> Any:
            own = self.server
            raise MCPError(own["refused"], server=own["name"], tool=name, kind="policy")

        return function

    def _no_such(self, name: str) -> str:
        return "%s has no tool %r.%s Tools: %s." % (
            self.title,
            name,
            nearest(str(name), [*self._by_alias, *self._by_name]),
            listed(self._by_alias),
        )


class Server:
    """A server: its tools are attributes, and items by their own names."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def __getattr__(self, name: str) -> Any:
        if name == "_tools":
            # Asked before __init__, by copy or pickle.
            raise AttributeError(name)
        return self._tools.attribute(name)

    def __getitem__(self, name: str) -> Any:
        return self._tools.item(name)

    def __iter__(self) -> Iterator[str]:
        if "tools" not in self._tools.server:
            message = "%s: its tools are not known yet. First: await server.list_tools()"
            raise MissingKeyError(message % self._tools.title)
        return iter(self._tools.aliases())

    def __dir__(self) -> List[str]:
        return [*object.__dir__(self), *self._tools.aliases()]

    async def list_tools(self) -> List[Any]:
        """Return name, alias and description of each tool."""
        if "refused" in self._tools.server:
            await self._tools.item("")()
        await self._tools.load()
        return [Result(summary(tool)) for tool in self._tools.server.get("tools") or ()]

    def __repr__(self) -> str:
        return "<MCP server %r: %s>" % (self._tools.server["name"], listed(self._tools.aliases()))


def summary(tool: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the short form of a tool's data."""
    return {key: tool.get(key) or "" for key in ("name", "alias", "description")}


def described(server: Mapping[str, Any]) -> List[Dict[str, Any]]:
    """Return the data of a server's tools, each with its signature."""
    return [
        Result({**tool, "signature": signature_text(server, tool)})
        for tool in server.get("tools") or ()
    ]


class Servers(abc.Mapping):  # type: ignore[type-arg]
    """The loaded servers by their own names; as a key any server will do, also by its alias."""

    def __init__(
        self, servers: Mapping[str, Server], aliases: Mapping[str, str], every: Mapping[str, Server]
    ) -> None:
        self._servers = servers
        self._aliases = aliases
        self._every = every

    def __getitem__(self, name: str) -> Server:
        found = self._every.get(self._aliases.get(name, name)) or self._every.get(name)
        if found is None:
            message = "there is no server %r.%s Loaded: %s."
            known = [*self._every, *self._aliases]
            raise MissingKeyError(
                message % (name, nearest(str(name), known), listed(self._servers))
            )
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    def __repr__(self) -> str:
        return "<MCP servers: %s>" % listed(self._servers)


class ServerModule(types.ModuleType):
    """`mcp.servers.<alias>`: a server's functions, to import by name."""

    def __init__(self, name: str, tools: Tools) -> None:
        super().__init__(name, str(tools.server.get("description") or "") or None)
        self._tools = tools
        every = tools.server.get("tools") or ()
        self.TOOL_MAP = {tool["alias"]: tool["name"] for tool in every}
        self.__all__ = list(self.TOOL_MAP)

    def __getattr__(self, name: str) -> Any:
        if name == "_tools":
            raise AttributeError(name)
        if name == "TOOLS":
            # Made when asked for: signatures of hundreds of tools take a while.
            return self.__dict__.setdefault(name, described(self._tools.server))
        return self._tools.attribute(name)

    def __dir__(self) -> List[str]:
        return [*super().__dir__(), "TOOLS", *self._tools.aliases()]


class AbsentFinder:
    """Says what `mcp` has when a program imports something below it that is not there."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = servers

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Refuse names below `mcp`; leave all others to the other finders."""
        package, _, last = name.rpartition(".")
        if package == "mcp.servers":
            message = "no server %r is loaded in this run.%s Loaded: %s."
            _refuse(message % (last, nearest(last, self._servers), listed(self._servers)))
        if name.startswith("mcp."):
            message = "no module %r: `mcp` in a run is the bridge's own and has `runtime` and "
            _refuse((message + "`servers`. The MCP SDK is not needed here.") % name)


def _refuse(message: str) -> NoReturn:
    # Without a name, as an import statement passes over an absent module of the expected name.
    raise ModuleNotFoundError(message)


def install_modules(
    servers: Sequence[Tools], runtime: types.ModuleType, others: Sequence[Tools] = ()
) -> types.ModuleType:
    """Make `mcp` and its modules importable, also if the image has another `mcp`; return it."""
    aliases = [tools.server["alias"] for tools in servers]
    package = _module("mcp", "The bridge's own module inside a run: `runtime` and `servers`.", True)
    below = _module("mcp.servers", "One module per loaded server: %s." % listed(aliases), True)
    for tools in (*others, *servers):
        alias = tools.server["alias"]
        if not usable(alias):
            continue
        name = "mcp.servers.%s" % alias
        module = ServerModule(name, tools)
        module.__spec__ = ModuleSpec(name, None)
        sys.modules[name] = module
        setattr(below, alias, module)
    below.__all__ = aliases  # type: ignore[attr-defined]
    package.servers = below  # type: ignore[attr-defined]
    package.runtime = runtime  # type: ignore[attr-defined]
    package.__all__ = ["runtime", "servers"]  # type: ignore[attr-defined]
    sys.modules["mcp.runtime"] = runtime
    sys.meta_path.insert(0, AbsentFinder(aliases))
    return package


def _module(name: str, doc: str, package: bool) -> types.ModuleType:
    module = types.ModuleType(name, doc)
    module.__spec__ = ModuleSpec(name, None, is_package=package)
    if package:
        module.__path__ = []
    sys.modules[name] = module
    return module
