"""Objects that represent servers and tools inside a program.

They consist of closures and data: text from a server is never compiled. A function is made at its
first access, so unused tools cost nothing.
"""

from __future__ import annotations

import keyword
import sys
import types
from collections import abc

from bridge.guest.api.values import MCPError, Result, UnknownNameError, list_names, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec as ModuleSpec  # also for other modules
    from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence

    from bridge.guest.api.runtime import Runtime
else:
    # `importlib.machinery.ModuleSpec`, without that import.
    ModuleSpec = type(sys.__spec__)


def usable(alias: Any) -> bool:
    """Return whether a name may become an attribute, whatever the host sent."""
    return (
        isinstance(alias, str)
        and alias.isidentifier()
        and not keyword.iskeyword(alias)
        and not alias.startswith("__")
    )


def make_function(runtime: Runtime, server: Mapping[str, Any], tool: Mapping[str, Any]) -> Any:
    # Imported here: these modules are slow, and many programs call no tool.
    from bridge.guest.api.arguments import BoundParameters

    title = "mcp_%s.%s" % (server["alias"], tool["alias"])
    server_name, tool_name = server["name"], tool["name"]
    parameters = BoundParameters(title, tool.get("inputSchema"), server_name, tool_name)

    async def function(*args: Any, **kwargs: Any) -> Any:
        return await runtime.send(server_name, tool_name, parameters.bind(args, kwargs))

    function.__name__ = tool["alias"]
    function.__qualname__ = title
    function.__module__ = "mcp.servers.%s" % server["alias"]
    function.tool = tool_name  # type: ignore[attr-defined]
    function.server = server_name  # type: ignore[attr-defined]
    if "description" in tool:
        # The host omits it for a program that only calls the tool.
        _document(function, tool)
    return function


def _document(function: Any, tool: Mapping[str, Any]) -> None:
    from bridge.guest.api.arguments import make_signature
    from bridge.guest.schema.typetext import Head, function_docstring, typed_dicts

    head = Head(tool)
    text = function_docstring(tool, head)
    classes = typed_dicts(head.objects)
    if classes:
        lines = "\n".join(classes).split("\n")
        text += "%sTypes:\n    %s" % ("\n\n" if text else "\n", "\n    ".join(lines))
    function.__doc__ = text
    function.__signature__ = make_signature(head)


def signature_text(server: Mapping[str, Any], tool: Mapping[str, Any]) -> str:
    """Return a tool's call signature and result type, with objects written inline as in search."""
    from bridge.guest.api.arguments import make_signature
    from bridge.guest.schema.typetext import MAX_INLINE_CHARS, Head, Names

    signature = make_signature(Head(tool, Names(inline=MAX_INLINE_CHARS)))
    text = "mcp_%s.%s%s" % (server["alias"], tool["alias"], signature)
    # "Any" adds no information.
    return text[: -len(" -> Any")] if text.endswith(" -> Any") else text


class Tools(abc.Mapping):  # type: ignore[type-arg]
    """The functions of one server, made on demand, by alias or by the tools' own names."""

    def __init__(self, runtime: Runtime, server: Mapping[str, Any], loaded: bool = True) -> None:
        """Take the server's data; the functions of an unloaded server load it first."""
        self._runtime = runtime
        self._loaded = loaded
        self.title = "mcp_%s" % server["alias"]
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
        if not self._loaded:
            self._take(await self._runtime.load(self.server["name"]))
            self._loaded = True

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_alias)

    def __len__(self) -> int:
        return len(self._by_alias)

    def attribute(self, name: str) -> Any:
        """Return a tool's function by its alias or by its own name, or raise."""
        # Interpreter and libraries probe dunder names; no tool may have one.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        if not self._loaded and name.startswith("_"):
            raise UnknownNameError(self._no_such(name))
        return self._find(name, self._by_alias, self._by_name)

    def __getitem__(self, name: str) -> Any:
        """Return a tool's function by its own name or by its alias, or raise."""
        return self._find(name, self._by_name, self._by_alias)

    def _find(self, name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Any:
        if "refused" in self.server:

            async def refuse(*args: Any, **kwargs: Any) -> Any:
                own = self.server
                raise MCPError(own["refused"], server=own["name"], tool=name, kind="policy")

            return refuse
        if not self._loaded:

            async def function(*args: Any, **kwargs: Any) -> Any:
                await self.load()
                return await self._find(name, first, second)(*args, **kwargs)

            function.__name__ = function.__qualname__ = name
            return function
        tool = first.get(name) or second.get(name)
        if tool is not None:
            return self._function(tool)
        helper = self._runtime.of_server(self.server["name"], name)
        if helper is not None:
            return helper
        if name == "tools":
            return Server(self)
        from bridge.guest.schema.names import alike  # for names that are not the tools' own

        tool = self._by_alias.get(alike(str(name), self._by_alias, self.server["name"]))
        if tool is not None:
            return self._function(tool)
        added = self._runtime.find_added(self.server["name"], name)
        if added is None:
            raise UnknownNameError(self._no_such(name))
        return added

    def _function(self, tool: Mapping[str, Any]) -> Any:
        name = tool["name"]
        if name not in self._made:
            self._made[name] = make_function(self._runtime, self.server, tool)
        return self._made[name]

    def _no_such(self, name: str) -> str:
        near = nearest(str(name), [*self._by_alias, *self._by_name])
        message = "%s has no tool %r.%s Tools: %s."
        return message % (self.title, name, near, list_names(self._by_alias))


class Server:
    """A server whose attributes are its tools, and whose items are tools by their own names."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    def __getattr__(self, name: str) -> Any:
        if name == "_tools":
            # `copy` and `pickle` ask before __init__.
            raise AttributeError(name)
        return self._tools.attribute(name)

    def __getitem__(self, name: str) -> Any:
        return self._tools[name]

    def __iter__(self) -> Iterator[str]:
        if "tools" not in self._tools.server:
            message = "%s: its tools are not known yet. First: await server.list_tools()"
            raise UnknownNameError(message % self._tools.title)
        return iter(self._tools)

    def __dir__(self) -> List[str]:
        return [*object.__dir__(self), *self._tools]

    # Programs write `with` or `async with` as for a client; the server is already connected.
    def __enter__(self) -> Server:
        return self

    async def __aenter__(self) -> Server:
        return self

    def __exit__(self, *raised: Any) -> None: ...

    async def __aexit__(self, *raised: Any) -> None: ...

    async def list_tools(self) -> List[Any]:
        """Return each tool's name, alias, description, signature and input schema."""
        if "refused" in self._tools.server:
            await self._tools[""]()
        await self._tools.load()
        return describe_tools(self._tools.server)

    def __repr__(self) -> str:
        return "<MCP server %r: %s>" % (self._tools.server["name"], list_names(self._tools))


def describe_tools(server: Mapping[str, Any]) -> List[Dict[str, Any]]:
    return [
        Result(
            {"description": "", **tool},
            signature=signature_text(server, tool),
            input_schema=tool.get("inputSchema"),
        )
        for tool in server.get("tools") or ()
    ]


class ServerProxies(abc.Mapping):  # type: ignore[type-arg]
    """The loaded servers by their own names; as a key, any server's name or alias works."""

    def __init__(
        self, servers: Mapping[str, Server], aliases: Mapping[str, str], every: Mapping[str, Server]
    ) -> None:
        self._servers = servers
        self._aliases = aliases
        self._every = every

    def __getitem__(self, name: str) -> Server:
        bare = str(name)[4:] if str(name).startswith("mcp_") else name
        for one in (self._aliases.get(name, name), name, self._aliases.get(bare, bare)):
            if one in self._every:
                return self._every[one]
        message = "there is no server %r.%s Servers: %s."
        near = nearest(str(name), [*self._every, *self._aliases])
        raise UnknownNameError(message % (name, near, list_names(self._every)))

    def __getattr__(self, name: str) -> Server:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._servers)

    def __len__(self) -> int:
        return len(self._servers)

    def __repr__(self) -> str:
        return "<MCP servers: %s>" % list_names(self._servers)


class ServerModule(types.ModuleType):
    """A module `mcp.servers.<alias>` with a server's functions."""

    def __init__(self, name: str, tools: Tools) -> None:
        super().__init__(name, str(tools.server.get("description") or "") or None)
        self._tools = tools
        self.TOOL_MAP = tools
        self.__all__ = list(tools)

    def __getattr__(self, name: str) -> Any:
        if name == "_tools":
            raise AttributeError(name)
        if name == "TOOLS":
            # Made on demand: hundreds of signatures are slow.
            return self.__dict__.setdefault(name, describe_tools(self._tools.server))
        return self._tools.attribute(name)

    def __dir__(self) -> List[str]:
        return [*super().__dir__(), "TOOLS", *self._tools]


class Package(types.ModuleType):
    """The module `mcp` or `mcp.servers`; `find` returns the value of other names."""

    def __init__(self, name: str, doc: str, find: Callable[[str], Any]) -> None:
        super().__init__(name, doc)
        self.__spec__ = ModuleSpec(name, None, is_package=True)
        self.__path__ = []
        self._find = find
        sys.modules[name] = self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._find(name)

    __getitem__ = __getattr__


class NameFinder:
    """Imports modules by alternative names (`mcp_x`, `runtime`); explains missing modules."""

    def __init__(self, modules: Mapping[str, types.ModuleType], servers: Sequence[str]) -> None:
        self.modules = modules
        self._servers = servers

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of an alternative module name; refuse missing names below `mcp`."""
        if name in self.modules:
            return ModuleSpec(name, self)  # type: ignore[arg-type]
        package, _, last = name.rpartition(".")
        if package in ("mcp.servers", "servers") and not path:
            message = "no server %r is loaded in this run.%s Loaded: %s."
            near = nearest(last, self._servers)
            # Without a name: an import statement would pass over an absent module of that name.
            raise ModuleNotFoundError(message % (last, near, list_names(self._servers)))
        if name.startswith("mcp."):
            message = "no module %r: `mcp` in a run is the bridge's own and has `runtime` and "
            message += "`servers`. The MCP SDK is not needed here."
            raise ModuleNotFoundError(message % name)
        return None

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module unchanged."""


def install_modules(
    servers: Sequence[Tools],
    runtime: types.ModuleType,
    others: Sequence[Tools],
    find: Callable[[str], Any],
) -> types.ModuleType:
    """Make `mcp` and its modules importable, also if the image has another `mcp`; return it."""
    aliases = [tools.server["alias"] for tools in servers]
    about = "The bridge's own module inside a run: `runtime`, `servers` and each server."
    package = Package("mcp", about, find)
    below = Package("mcp.servers", "One module per server: %s." % list_names(aliases), find)
    # Runs support nested event loops without it.
    nested = types.ModuleType("nest_asyncio")
    nested.apply = lambda loop=None: None  # type: ignore[attr-defined]
    modules: Dict[str, Any] = {"runtime": runtime, "nest_asyncio": nested, "servers": below}
    for tools in (*others, *servers):
        alias = tools.server["alias"]
        if not usable(alias):
            continue
        name = "mcp.servers.%s" % alias
        module = ServerModule(name, tools)
        module.__spec__ = ModuleSpec(name, None)
        modules["mcp_%s" % alias] = modules["servers.%s" % alias] = sys.modules[name] = module
        setattr(below, alias, module)
    below.__all__ = aliases  # type: ignore[attr-defined]
    package.servers = below  # type: ignore[attr-defined]
    package.runtime = runtime  # type: ignore[attr-defined]
    package.__all__ = ["runtime", "servers"]  # type: ignore[attr-defined]
    sys.modules["mcp.runtime"] = runtime
    for finder in [one for one in sys.meta_path if isinstance(one, NameFinder)]:
        sys.meta_path.remove(finder)
        for name in [name for name, old in finder.modules.items() if sys.modules.get(name) is old]:
            # Of the session's previous run.
            del sys.modules[name]
    # Last: the program's own modules take precedence.
    sys.meta_path.append(NameFinder(modules, aliases))
    return package
