"""`mcp.runtime`: helpers of a program for other servers, resources and prompts."""

from __future__ import annotations

import builtins
import types
from collections import abc
from contextlib import suppress

from bridge.guest.api import proxies
from bridge.guest.api.library import Library
from bridge.guest.api.library import text as _text
from bridge.guest.api.results import from_wire
from bridge.guest.api.values import (
    ArgumentsError,
    Blob,
    MCPError,
    MissingKeyError,
    Result,
    UnknownNameError,
    list_names,
    nearest,
    to_json,
    to_text,
)
from bridge.guest.protocol.helpers import GLOBAL_HELPERS, HELPERS, OF_SERVERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, Optional, Set, Tuple, Union

    from bridge.guest.api.client import ChannelClient
    from bridge.guest.protocol.wire import Run

PUBLIC = ("MCPError", *HELPERS)


class Runtime(Library):
    """The functions of `mcp.runtime`, bound to one run's servers and channel."""

    MCPError = MCPError

    def __init__(self, run: Run, client: ChannelClient) -> None:
        self._client = client
        self._loaded: Dict[str, Mapping[str, Any]] = {s["name"]: s for s in run.servers}
        self._discovered: Dict[str, Mapping[str, Any]] = {s["name"]: s for s in run.discovered}
        for name, server in self._loaded.items():
            self._discovered.setdefault(name, server)
        self._capabilities = run.capabilities
        self._names = run.names
        self._called: Set[str] = set()

    async def call_tool(
        self, server: Any = None, tool: Any = None, arguments: Any = None, **named: Any
    ) -> Any:
        """Call any tool of any discovered server and return its value.

        One name suffices for "server.tool", or for a tool that only one server has.

        Raises:
            MCPError: The tool, its server or the bridge refused the call.
            ArgumentsError: The arguments do not fit a loaded server's tool; also a TypeError.
        """
        return await self._call(server, tool, arguments, named, raw=False)

    async def call_tool_raw(
        self, server: Any = None, tool: Any = None, arguments: Any = None, **named: Any
    ) -> Any:
        """Call a tool and return the whole CallToolResult as a dict, tool errors included.

        The arguments are sent unchecked; the server validates them.
        """
        return await self._call(server, tool, arguments, named, raw=True)

    async def _target(
        self, server: Any, tool: Any, arguments: Any, named: Mapping[str, Any]
    ) -> Tuple[Any, Any, Any]:
        own: Dict[str, Any] = {}
        if named:
            from bridge.guest.schema.names import split_target

            given = {"server": server, "tool": tool, "arguments": arguments}
            own = split_target(given, named)
            server, tool, arguments = given.values()
        if arguments is None and isinstance(tool, abc.Mapping):
            tool, arguments = None, tool
        if own and arguments is not None:
            message = "call_tool() has no parameter %r; put it into the dict of arguments"
            raise TypeError(message % next(iter(own)))
        arguments = own or arguments
        if server is None or tool is None:
            name = _text("tool", tool if server is None else server)
            known = self._names.get(name)
            path = known or await self._client.call("find_tool", {"name": name}, name)
            server, _, tool = path.partition(".")
        return server, tool, arguments

    async def send(
        self, server: str, tool: str, arguments: Dict[str, Any], raw: bool = False
    ) -> Any:
        """Send a call with bound and checked arguments."""
        params = {"server": server, "tool": tool, "arguments": arguments, "raw": raw}
        self._called.add(server)
        subject = "%s.%s" % (server, tool)
        return from_wire(await self._client.call("call_tool", params, subject), raw, subject)

    async def load(self, name: str) -> Mapping[str, Any]:
        """Load a server and return its data, as in `Run.servers`."""
        params = {"server": name}
        self._loaded[name] = await self._client.call("load_server", params, "server %s" % name)
        return self._loaded[name]

    async def _call(
        self, server: Any, tool: Any, arguments: Any, named: Mapping[str, Any], *, raw: bool
    ) -> Any:
        server, tool, arguments = await self._target(server, tool, arguments, named)
        name = self._own_name(_text("server", server))
        tool = self._tool_name(name, _text("tool", tool))
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, abc.Mapping):
            message = "arguments must be a dict of the tool's arguments, not a %s"
            raise TypeError(message % type(arguments).__name__)
        subject = "%s.%s" % (name, tool)
        entry = None if raw else self._entry(name, tool)
        if entry is None or not all(isinstance(key, str) for key in arguments):
            plain = to_json(dict(arguments), "arguments of %s" % subject)
        else:
            from bridge.guest.api.arguments import BoundParameters

            parameters = BoundParameters(subject, entry.get("inputSchema"), name, tool)
            plain = parameters.bind((), arguments)
        return await self.send(name, tool, plain, raw)

    async def list_resources(self, server: Optional[str] = None) -> Any:
        """Return the resources of a server, or of all loaded ones: dicts with server, uri, name."""
        return await self._list("resources", server)

    async def list_resource_templates(self, server: Optional[str] = None) -> Any:
        """Return resource templates: dicts with server, uriTemplate, name."""
        return await self._list("templates", server)

    async def list_prompts(self, server: Optional[str] = None) -> Any:
        """Return the prompts of a server, or of all loaded ones: server, name, arguments."""
        return await self._list("prompts", server)

    async def read_resource(self, server: str, uri: Optional[str] = None, /, **values: Any) -> Any:
        """Return a resource's content: text, parsed if its type is JSON, or a `Blob`.

        Several contents are returned as a list. The server may be omitted when one is loaded.
        `values` fill a template: `read_resource("db", "db://{table}/rows{?limit}", table="users",
        limit=5)`.

        Raises:
            MCPError: The resource does not exist or cannot be read.
            TypeError: A value of the template is missing or unknown.
        """
        if uri is None:
            uri = _text("uri", server)
            if uri.startswith("bridge:"):
                message = "the run gets the bridge's data as a file: "
                raise TypeError('%sfiles=[{"name": ..., "uri": %r}]' % (message, uri))
            if len(self._loaded) != 1 or ":" not in uri:
                message = "read_resource() needs the server too: read_resource(server, uri)."
                raise TypeError("%s Loaded: %s" % (message, list_names(self._loaded)))
            server = next(iter(self._loaded))
        name, uri = self._own_name(_text("server", server)), _text("uri", uri)
        if values or "{" in uri:
            from bridge.guest.api.uri_templates import expand

            uri = expand(uri, values)
        params = {"server": name, "uri": uri}
        return from_wire(await self._client.call("read_resource", params, "resource %s" % uri))

    async def watch_resource(self, server: str, uri: str, timeout: Optional[float] = None) -> Any:
        """Wait until a server reports that a resource changed; return its new content.

        Without a report within `timeout` seconds it raises MCPError.
        """
        name, uri = self._own_name(_text("server", server)), _text("uri", uri)
        params = {"server": name, "uri": uri, "watch": True, "timeout": timeout}
        return from_wire(await self._client.call("read_resource", params, "resource %s" % uri))

    async def complete(
        self, server: str, ref: str, argument: str, value: str = "", **known: Any
    ) -> List[str]:
        """Return a server's suggestions for an argument of a prompt or of a resource template.

        `ref` is the prompt's name or the template's URI, `value` the beginning of the argument.
        `known` are the arguments that are set already.
        """
        name, ref = self._own_name(_text("server", server)), _text("ref", ref)
        params = {
            "server": name,
            "uri" if ":" in ref or "{" in ref else "name": ref,
            "argument": _text("argument", argument),
            "value": to_text(value, "value"),
            "known": {key: to_text(item, "argument %r" % key) for key, item in known.items()},
        }
        found: List[str] = await self._client.call("complete", params, "completion of %s" % ref)
        return found

    async def get_prompt(
        self, server: str, name: str, arguments: Optional[Mapping[str, Any]] = None
    ) -> Any:
        """Return a prompt: `description` and `messages`, each with `role` and `content`.

        Raises:
            MCPError: The prompt does not exist, or its arguments are wrong.
        """
        own, name = self._own_name(_text("server", server)), _text("name", name)
        given: Any = {} if arguments is None else arguments
        if not isinstance(given, abc.Mapping):
            message = "arguments must be a dict of the prompt's arguments, not a %s"
            raise TypeError(message % type(given).__name__)
        texts = {key: to_text(item, "argument %r" % key) for key, item in given.items()}
        params = {"server": own, "name": name, "arguments": texts}
        prompt = await self._client.call("get_prompt", params, "prompt %s.%s" % (own, name))
        for message in prompt["messages"]:
            message["content"] = from_wire(message["content"])
        return prompt

    async def _list(self, kind: str, server: Any) -> Any:
        params: Dict[str, Any] = {"kind": kind, "servers": list(self._loaded)}
        if server is not None:
            params["server"] = self._own_name(_text("server", server))
        return await self._client.call("list_offers", params, "list of %s" % kind)

    def of_server(self, server: str, name: str) -> Any:
        """Return a helper bound to one server; None for an unknown helper."""
        if name not in OF_SERVERS:
            return None
        helper = getattr(self, name)

        async def bound(*args: Any, **kwargs: Any) -> Any:
            return await helper(server, *args, **kwargs)

        bound.__name__ = bound.__qualname__ = name
        bound.__doc__ = helper.__doc__
        return bound

    def find_added(self, server: str, name: str) -> Any:
        """Return the function of a tool that a call may have added, or None."""
        if server not in self._called or not self._loaded.get(server, {}).get("changing"):
            return None

        async def function(*args: Any, **kwargs: Any) -> Any:
            tools = proxies.Tools(self, await self.load(server))
            self._called.discard(server)  # The data is new: a missing tool does not exist.
            return await tools.attribute(name)(*args, **kwargs)

        return function

    async def list_servers(self) -> Any:
        """Return every discovered server."""
        return await self._client.call("list_servers", {}, "list_servers")

    async def list_tools(self, server: str) -> Any:
        """Return the tools of any discovered server."""
        params = {"server": self._own_name(_text("server", server))}
        return [
            Result({"name": tool["tool"], **tool, "input_schema": tool["inputSchema"]})
            for tool in await self._client.call("list_tools", params, "list_tools")
        ]

    async def query_tool_docs(
        self, server: str, tool: Optional[str] = None, detail: str = "summary"
    ) -> Any:
        """Return the signatures of a server's tools, or the documentation of one tool."""
        params = self._query(server, tool, detail)
        return await self._client.call("query_tool_docs", params, "query_tool_docs")

    def _query(self, server: str, tool: Optional[str], detail: str) -> Dict[str, Any]:
        name = self._own_name(_text("server", server))
        wanted = None if tool is None else self._tool_name(name, _text("tool", tool))
        return {"server": name, "tool": wanted, "detail": detail}

    async def search_tool_docs(self, query: str, *, limit: int = 5, detail: str = "summary") -> Any:
        """Search the tools of every discovered server."""
        params = {"query": _text("query", query), "limit": limit, "detail": detail}
        return await self._client.call("search_tool_docs", params, "search_tool_docs")

    def list_servers_sync(self) -> Tuple[str, ...]:
        """Return the names of the loaded servers."""
        return tuple(self._loaded)

    def list_tools_sync(self, server: Optional[str] = None) -> List[Dict[str, Any]]:
        """Return the tools of a loaded server."""
        if server is None:
            raise TypeError("list_tools_sync() needs a server: %s" % list_names(self._loaded))
        found = self._loaded.get(self._own_name(_text("server", server)))
        if found is None:
            known = list(self._loaded)
            message = "no server %r is loaded in this run.%s Loaded: %s. For others: await %s."
            names = (server, nearest(server, known), list_names(known))
            raise UnknownNameError(message % (*names, "the function without `_sync`"))
        return [dict(tool) for tool in found.get("tools") or ()]

    def query_tool_docs_sync(
        self, server: str, tool: Optional[str] = None, detail: str = "summary"
    ) -> List[Dict[str, Any]]:
        """Return the result of `query_tool_docs` as a list."""
        found = self._ask("query_tool_docs", self._query(server, tool, detail))
        return found if isinstance(found, list) else [found]

    def search_tool_docs_sync(
        self, query: str, *, limit: int = 5, detail: str = "summary"
    ) -> List[Dict[str, Any]]:
        """Search the loaded servers' tools, best match first."""
        params = {"query": _text("query", query), "limit": 50}
        found = self._ask("search_tool_docs", {**params, "detail": detail})
        return [one for one in found if one["server"] in self._loaded][:limit]

    def discovered_servers(self, detailed: bool = False) -> Tuple[Union[str, Dict[str, Any]], ...]:
        """Return the names of all discovered servers; with `detailed`, a dict of each."""
        if not detailed:
            return tuple(self._discovered)
        return tuple(map(self._about, self._discovered))

    def describe_server(self, name: str) -> Dict[str, Any]:
        """Return the data of a discovered server; its tools only if it is loaded."""
        own = self._own_name(_text("name", name))
        server = self._loaded.get(own) or self._discovered.get(own)
        if server is None:
            known = [*self._discovered]
            message = "no server %r.%s Servers: %s."
            raise UnknownNameError(message % (name, nearest(name, known), list_names(known)))
        return Result(**self._about(own), tools=proxies.describe_tools(server))

    def _about(self, name: str) -> Dict[str, Any]:
        server = self._loaded.get(name) or self._discovered[name]
        alias, about = server.get("alias", ""), server.get("description") or ""
        return Result(name=name, alias=alias, description=about, loaded=name in self._loaded)

    def list_loaded_server_metadata(self) -> Tuple[Dict[str, Any], ...]:
        """Return `describe_server` of every loaded server."""
        return tuple(self.describe_server(name) for name in self._loaded)

    def capability_summary(self) -> str:
        """Return the guide to the abilities of a run."""
        return self._capabilities

    def _own_name(self, name: str) -> str:
        """Return a server's own name for its name or alias; an unknown name unchanged."""
        if name in self._discovered:
            return name
        for own, server in self._discovered.items():
            if name in (server.get("alias"), "mcp_%s" % server.get("alias")):
                return own
        return name

    def _tool_name(self, server: str, tool: str) -> str:
        if self._entry(server, tool) is not None:
            return tool
        from bridge.guest.schema.names import alike

        tools = self._loaded.get(server, {}).get("tools") or ()
        names: Dict[str, str] = {entry["alias"]: entry["name"] for entry in tools}
        return names.get(tool) or names.get(alike(tool, names, server), tool)

    def _entry(self, server: str, tool: str) -> Optional[Mapping[str, Any]]:
        tools = self._loaded.get(server, {}).get("tools") or ()
        return next((entry for entry in tools if entry["name"] == tool), None)


def build(run: Run, client: ChannelClient) -> Dict[str, Any]:
    """Install `mcp` for a run; return the globals that its program starts with.

    Names:
        mcp_ALIAS: A loaded server, by its alias: `await mcp_github.create_issue(title="t")`.
        mcp_servers: The loaded servers by their own names: `mcp_servers["git-hub"]`. Another server
            is loaded at its first call.
        LOADED_MCP_SERVERS: A tuple of the loaded servers' names.
        mcp: The package of `mcp.runtime` and of `mcp.servers`, which has a module for each server.
        runtime: The module `mcp.runtime`; its functions for memories, and `save_tool`, are globals
            too.
        MCPError: The exception that failed calls raise.
        Blob: Binary content.
    """
    runtime = Runtime(run, client)
    module = types.ModuleType("mcp.runtime", __doc__)
    module.__spec__ = proxies.ModuleSpec("mcp.runtime", None)
    helpers = {name: getattr(runtime, name) for name in PUBLIC}
    module.__dict__.update(helpers)
    for kind in (ArgumentsError, Blob, MCPError, MissingKeyError, Result, UnknownNameError):
        # Tracebacks and `type()` then show the module that programs can import.
        setattr(module, kind.__name__, kind)
        kind.__module__ = "mcp.runtime"
    module.__all__ = list(PUBLIC)  # type: ignore[attr-defined]

    loaded = [proxies.Tools(runtime, server) for server in run.servers]
    others = [proxies.Tools(runtime, s, False) for s in run.discovered if not s.get("loaded")]
    servers = {tools.server["name"]: proxies.Server(tools) for tools in loaded}
    every = {**{tools.server["name"]: proxies.Server(tools) for tools in others}, **servers}
    aliases = {tools.server["alias"]: tools.server["name"] for tools in (*others, *loaded)}
    mapping = proxies.ServerProxies(servers, aliases, every)
    package = proxies.install_modules(
        loaded, module, others, lambda name: helpers[name] if name in helpers else mapping[name]
    )
    package.MCPError = package.McpError = MCPError  # type: ignore[attr-defined]
    found: Dict[str, Any] = {"mcp": package, "runtime": module, "mcp_servers": mapping}
    found.update({"LOADED_MCP_SERVERS": tuple(servers), "MCPError": MCPError, "Blob": Blob})
    found.update((name, helpers[name]) for name in GLOBAL_HELPERS)
    for alias, name in aliases.items():
        if proxies.usable("mcp_%s" % alias):
            found["mcp_%s" % alias] = every[name]
    _define(run.names, found)
    return found


_defined: List[str] = []  # Builtins for servers and helpers, replaced in the next run of a session.


def _define(names: Mapping[str, str], found: Mapping[str, Any]) -> None:
    """Define names by their paths or imports as builtins, which the program's own names shadow."""
    while _defined:
        builtins.__dict__.pop(_defined.pop(), None)
    for name, path in names.items():
        if " " in path:
            # An earlier run of the session may have imported the name from elsewhere.
            with suppress(ImportError):
                exec(path, builtins.__dict__)
            continue
        if name in vars(builtins):
            continue
        first, _, member = path.partition(".")
        _defined.extend([name] if first in found else ())
        owner = found[first] if first in found else getattr(builtins, first)
        setattr(builtins, name, getattr(owner, member) if member else owner)
