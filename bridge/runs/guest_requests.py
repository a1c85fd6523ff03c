"""The methods that a program can call on the host.

The parameters come from the guest, so each method checks them before it acts. An error names the
mistake so that the author of the program can fix it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn, cast

import anyio

from bridge.artifacts.content import nth_line_end
from bridge.artifacts.store import ArtifactStore
from bridge.catalog.docs import Detail
from bridge.catalog.program.references import NameTable
from bridge.errors import ArtifactStoreError, BridgeError, ToolCallError, UnknownError
from bridge.event_loop import offload, with_plain_text
from bridge.gate.bridge_calls import ProvenanceTracker
from bridge.gate.held_calls import HeldPlaceholder
from bridge.gate.pipeline import GET_PROMPT, READ_RESOURCE, Gate
from bridge.guest.schema.validation import problem
from bridge.inventory.guide import GuestGuide, has_match, starting_line
from bridge.inventory.servers import Servers
from bridge.model import MEBIBYTE, STREAMS, Artifact, Json
from bridge.rpc.dispatcher import Answer, CallFailedError, as_failed_call
from bridge.rpc.values import prompt_value, resource_value, tool_error
from bridge.text import counted
from bridge.upstream.listing import LISTS, MAX_NAME_CHARS, MAX_URI_CHARS, Kind
from bridge.upstream.server import UpstreamServer

logger = logging.getLogger(__name__)

MAX_QUERY_CHARS = 8_000  # A guest's query is searched for.

LONGEST: Mapping[str, int] = {
    **dict.fromkeys(
        ("server", "tool", "name", "argument", "key", "run_id", "revision"), MAX_NAME_CHARS
    ),
    **dict.fromkeys(("query", "find", "description"), MAX_QUERY_CHARS),
    "uri": MAX_URI_CHARS,
}
"""The longest text of each parameter, for all methods."""

SAID_BEFORE = "What can be done was said with the first such call of this run."


@dataclass(eq=False, repr=False)
class GuestRequests:
    """Answers one program's requests to the host."""

    _servers: Servers
    _guide: GuestGuide
    _gate: Gate
    # Returns further methods by name, which few programs use.
    _more: Callable[[], Mapping[str, Answer]] = dict
    # Records the names of the saved functions that a search found, before the program gets them.
    _show: Callable[[Sequence[str]], Awaitable[None]] | None = None

    def __post_init__(self) -> None:
        self._redactor = self._servers.secrets.redactor
        self._sent_once: set[str] = set()  # Remedies, and tools whose results broke their schema.
        self._methods: Mapping[str, Answer] = {
            "call_tool": self._call_tool,
            "find_tool": self._find_tool,
            "list_servers": self._list_servers,
            "list_tools": self._list_tools,
            "load_server": self._load_server,
            "query_tool_docs": self._query_tool_docs,
            "search_tool_docs": self._search_tool_docs,
            "list_offers": self._list_offers,
            "read_resource": self._read_resource,
            "get_prompt": self._get_prompt,
            "complete": self._complete,
        }

    def handle(self, method: str, params: Mapping[str, Json]) -> Awaitable[Json]:
        """Return the answer to one call; it raises `CallFailedError` or `BridgeError`."""
        self._check_lengths(params)
        answer = self._methods.get(method)
        if answer is None:
            answer = self._more().get(method)
        if answer is None:
            self._reject(f"The bridge has no method {method!r:.80}.")
        return answer(params)

    def _check_lengths(self, params: Mapping[str, Json]) -> None:
        arguments = params.get("arguments")
        texts = [(key, params.get(key), most) for key, most in LONGEST.items()]
        if isinstance(arguments, dict):
            texts += [("the name of an argument", name, MAX_NAME_CHARS) for name in arguments]
        for what, text, most in texts:
            if isinstance(text, str) and len(text) > most:
                self._reject(f"{what} has {len(text):,} characters; the limit is {most:,}.")

    def _reject(self, message: str) -> NoReturn:
        """Reject a request, which counts against the run's calls."""
        self._gate.admit()
        raise CallFailedError(message, kind="usage")

    def _as_failure(self, error: BridgeError, *, server: str, tool: str = "") -> CallFailedError:
        """Return the error for the program; a long remedy only the first time."""
        if error.remedy in self._sent_once:
            error.remedy = SAID_BEFORE
        elif len(error.remedy) > 120:  # Each longer remedy is sent once in a run.
            self._sent_once.add(error.remedy)
        return as_failed_call(error, server=server, tool=tool)

    async def _call_tool(self, params: Mapping[str, Json]) -> Json:
        name, tool = _text(params, "server"), _text(params, "tool")
        arguments = {} if params.get("arguments") is None else params["arguments"]
        if not isinstance(arguments, dict):
            message = f"arguments must be a dict, not {type(arguments).__name__}."
            raise CallFailedError(message, kind="usage", server=name, tool=tool)
        server = name
        try:
            server = self._servers.resolve(name)
            result = await self._gate.call(server, tool, arguments)
        except BridgeError as error:
            if not (
                params.get("raw") is True and isinstance(error, ToolCallError) and error.by_tool
            ):
                raise self._as_failure(error, server=name, tool=tool) from error
            told = {"code": error.rpc_code, "message": error.message, "data": error.data}
            block = {"type": "text", "text": error.message}
            result = {"content": [block], "isError": True, "error": told}
        if isinstance(result, HeldPlaceholder):
            return result
        if params.get("raw") is True:
            return await offload(result, partial(with_plain_text, result))
        if result.get("isError") is True:
            # The whole text is redacted before it is cut.
            error_text = await offload(result, partial(tool_error, result, self._redactor.text))
            raise CallFailedError(
                error_text or "", kind="tool", server=server, tool=tool, result=result
            )
        inventory = self._servers.inventory
        value = await offload(result, partial(inventory.reader(server, tool), result))
        if (note := self._schema_note(server, tool, result)) is not None:
            value["parts"]["note"] = note
        if not self._gate.is_watched:
            # Field names could carry labelled data past the flow rules into a later run.
            inventory.learn_result(server, tool, value)
        return value

    async def _find_tool(self, params: Mapping[str, Json]) -> Json:
        name = _text(params, "name")
        self._gate.admit()
        names = [name for name in self._servers.names() if self._gate.may_use(name)]
        await self._servers.load_unknown(names)
        table = NameTable(map(self._servers.inventory.entry, names))
        path = table.find(name)
        if "." not in path:
            near = table.nearest(name)
            hint = f" Did you mean {near}?" if near else ""
            message = f"No tool is certainly meant by {name!r:.80}.{hint}"
            raise CallFailedError(message, kind="usage")
        return path

    def _schema_note(self, server: str, tool: str, result: Mapping[str, Json]) -> str | None:
        known = self._servers.inventory.tool(server, tool)
        schema = known.output_schema if known is not None else None
        name = f"{server}.{tool}"
        if schema is None or name in self._sent_once:
            return None
        structure = result.get("structuredContent")
        wrong = "it sent no structure" if structure is None else None
        wrong = wrong or problem(structure, schema, schema, "the structure")
        if wrong is None:
            return None
        self._sent_once.add(name)
        return f"{name} did not send what its own output schema promises: {wrong}."

    async def _list_offers(self, params: Mapping[str, Json]) -> Json:
        kind = _kind(params)
        if isinstance(params.get("server"), str):
            server = self._servers.resolve(_text(params, "server"))
            self._gate.admit(server)
            return await self._offers(server, kind)
        named = params.get("servers")
        listed = named if isinstance(named, list) else []
        wanted = {name for name in listed if isinstance(name, str)}
        servers = [name for name in self._servers.names() if name in wanted]
        for server in servers:
            self._gate.admit(server)
        found: dict[str, list[Json]] = {}

        async def ask(server: str) -> None:
            try:
                found[server] = await self._offers(server, kind)
            except BridgeError as error:
                # A server that is down does not hide the others.
                logger.warning("server %s is left out of a list: %s", server, error)

        async with anyio.create_task_group() as tasks:
            for server in servers:
                tasks.start_soon(ask, server)
        return [offer for server in servers for offer in found.get(server, ())]

    async def _offers(self, server: str, kind: Kind) -> list[Json]:
        ask = partial(self._servers.pool.server(server).offers, kind)
        # Policy rules see a list as a read of what it lists.
        method = GET_PROMPT if kind == "prompts" else READ_RESOURCE
        offers = await self._gate.list_offers(server, method, ask)
        return [{"server": server, **offer} for offer in offers]

    async def _read_resource(self, params: Mapping[str, Json]) -> Json:
        asked: dict[str, Json] = {"uri": _text(params, "uri")}
        if params.get("watch") is True:
            asked |= {"watch": True, "timeout": _timeout(params)}

        async def ask(server: UpstreamServer, params: Mapping[str, Json]) -> dict[str, Json]:
            if "watch" in params:
                return await server.watch_resource(params["uri"], timeout=params["timeout"])
            return await server.request("resources/read", params)

        result = await self._obtain(params, READ_RESOURCE, asked, ask, "contents")
        return await offload(result, partial(resource_value, result))

    async def _obtain(
        self,
        params: Mapping[str, Json],
        method: str,
        asked: Mapping[str, Json],
        ask: Callable[[UpstreamServer, Mapping[str, Json]], Awaitable[dict[str, Json]]],
        part: str,
    ) -> dict[str, Json]:
        """Make a request through the gate."""
        name = _text(params, "server")
        try:
            server, pool = self._servers.resolve(name), self._servers.pool
            return await self._gate.request(
                server, method, asked, lambda given: ask(pool.server(server), given), part
            )
        except BridgeError as error:
            raise self._as_failure(error, server=name) from error

    async def _get_prompt(self, params: Mapping[str, Json]) -> Json:
        name, prompt = _text(params, "server"), _text(params, "name")
        arguments = params.get("arguments")
        if not isinstance(arguments, dict) or not all(
            isinstance(value, str) for value in arguments.values()
        ):
            message = "arguments of a prompt must be a dict of texts."
            raise CallFailedError(message, kind="usage", server=name)
        result = await self._obtain(
            params,
            GET_PROMPT,
            {"name": prompt, "arguments": arguments},
            lambda server, given: server.request("prompts/get", given),
            "messages",
        )
        return await offload(result, partial(prompt_value, result))

    async def _complete(self, params: Mapping[str, Json]) -> Json:
        """Complete an argument; to policy rules it reads the resource or gets the prompt."""
        name, key = _text(params, "server"), "uri" if params.get("uri") is not None else "name"
        about, argument, value = _text(params, key), _text(params, "argument"), params.get("value")
        known = params.get("known")
        texts = known.values() if isinstance(known, dict) else (None,)
        if not all(isinstance(e, str) and len(e) <= MAX_QUERY_CHARS for e in (value, *texts)):
            message = "what is completed, and the other arguments, must be texts of at most "
            message += f"{MAX_QUERY_CHARS:,} characters."
            raise CallFailedError(message, kind="usage", server=name)
        kind = "ref/resource" if key == "uri" else "ref/prompt"
        method = READ_RESOURCE if key == "uri" else GET_PROMPT

        async def ask(server: UpstreamServer, params: Mapping[str, Json]) -> dict[str, Json]:
            wanted: dict[str, Json] = {
                "ref": {"type": kind, key: params[key]},
                "argument": {"name": params["argument"], "value": params["value"]},
            }
            if params["arguments"]:
                wanted["context"] = {"arguments": params["arguments"]}
            return await server.request("completion/complete", wanted)

        asked = {key: about, "argument": argument, "value": value, "arguments": known}
        result = await self._obtain(params, method, asked, ask, "completion")
        completion = result.get("completion")
        values = completion.get("values") if isinstance(completion, dict) else None
        listed = values if isinstance(values, list) else []
        return [each for each in listed[:100] if isinstance(each, str)]  # the protocol's limit

    async def _list_servers(self, params: Mapping[str, Json]) -> Json:
        return list(self._servers.names())

    async def _list_tools(self, params: Mapping[str, Json]) -> Json:
        return await self._guide.server_docs(await self._load(_text(params, "server")), "full")

    async def _load_server(self, params: Mapping[str, Json]) -> Json:
        return self._servers.inventory.stubs(await self._load(_text(params, "server")), None)

    async def _query_tool_docs(self, params: Mapping[str, Json]) -> Json:
        server = await self._load(_text(params, "server"))
        detail = _detail(params)
        if params.get("tool") is None:
            docs = await self._guide.server_docs(server, detail)
            if detail == "full":
                return docs
            return [{key: each[key] for key in ("signature", "description")} for each in docs]
        return await self._guide.tool_docs(server, _text(params, "tool"), detail)

    async def _search_tool_docs(self, params: Mapping[str, Json]) -> Json:
        limit = params.get("limit", 5)
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise CallFailedError("limit must be a whole number of at least 1.", kind="usage")
        self._gate.admit()
        names = tuple(name for name in self._servers.names() if self._gate.may_use(name))
        found, errors = await self._guide.search_servers(
            names,
            _text(params, "query"),
            min(limit, 50),
            _detail(params),
            skills=self._show is not None,
        )
        for name, error in errors.items():
            logger.warning("server %s is left out of a search: %s", name, error)
        starting = self._servers.starting_servers(errors)
        if starting and not has_match(found):
            raise CallFailedError(starting_line(starting, names), kind="upstream")
        skills = [str(one["tool"]) for one in found if one.get("kind") == "skill"]
        if self._show is not None:
            await self._show(skills)
        return found

    async def _load(self, name: str) -> str:
        server = self._servers.resolve(name)
        self._gate.admit(server)
        if self._gate.stop(server) is not None and self._servers.inventory.tools(server):
            return server  # A flow rule stops calls to it, and asking it again would be one.
        async with self._gate.noting_errors(server):
            await self._servers.load([server])
        return server


def _text(params: Mapping[str, Json], key: str) -> str:
    value = params.get(key)
    if not isinstance(value, str) or not value:
        message = f"{key} must be a string that is not empty, not {type(value).__name__}."
        raise CallFailedError(message, kind="usage")
    return value


def _timeout(params: Mapping[str, Json]) -> float | None:
    seconds = params.get("timeout")
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
        raise CallFailedError("timeout must be a number of seconds.", kind="usage")
    return float(seconds)


def _kind(params: Mapping[str, Json]) -> Kind:
    kind = params.get("kind")
    if not isinstance(kind, str) or kind not in LISTS:
        raise CallFailedError(f"kind must be one of {', '.join(LISTS)}.", kind="usage")
    return cast("Kind", kind)


def _detail(params: Mapping[str, Json]) -> Detail:
    detail = params.get("detail", "summary")
    if detail not in ("summary", "full"):
        raise CallFailedError('detail must be "summary" or "full".', kind="usage")
    return cast("Detail", detail)


_READ_OUTPUT = {
    "type": "object",
    "properties": {
        "run_id": {"type": "string"},
        "stream": {"enum": list(STREAMS)},
        "lines": {
            "type": "array",
            "items": {"type": "integer", "minimum": 1},
            "minItems": 2,
            "maxItems": 2,
        },
        "find": {"type": "string", "minLength": 1},
        **dict.fromkeys(("offset", "length", "limit"), {"type": "integer"}),
    },
    "required": ["run_id", "stream"],
}

ALL = 32 * MEBIBYTE  # No more of a stream is kept.


class KeptOutputs:
    """The `read_output` of one run; `tracker` records what the earlier run had read."""

    def __init__(self, store: ArtifactStore, owner: str, tracker: ProvenanceTracker) -> None:
        self._store = store
        self._owner = owner
        self._tracker = tracker
        self._reading = anyio.CapacityLimiter(2)  # Each output is in memory meanwhile.

    async def read_output(self, params: Mapping[str, Json]) -> Json:
        """Return a text, or its lines that contain `find` with their numbers."""
        given = {name: value for name, value in params.items() if value is not None}
        wrong = problem(given, _READ_OUTPUT, _READ_OUTPUT)
        lines, find = given.get("lines"), given.get("find")
        if wrong is None and (lines or find) and (given.get("offset") or "length" in given):
            wrong = "offset and length are about bytes: leave them out with lines or find"
        if wrong is None and lines and lines[0] > lines[1] or (wrong or "").startswith("lines"):
            wrong = "lines must be the first and the last line, counted from 1, such as "
            wrong += "(100, 200); offset=-1000 is the end, in bytes"
        if wrong is not None:
            raise CallFailedError(f"read_output(run_id, stream): {wrong}.", kind="usage")
        run_id, stream = given["run_id"], given["stream"]
        offset, length = int(given.get("offset", 0)), int(given.get("length", ALL))
        limit = max(int(given.get("limit", 100)), 1)

        def work() -> tuple[Artifact, Json]:
            artifact, data = self._read(run_id, stream, offset, max(length, 0))
            first, last = map(int, lines) if lines else (1, None)
            if find is not None:
                return artifact, found_lines(data, find, first, last, limit)
            wanted = data if lines is None else part(data, first, last)
            return artifact, wanted.decode("utf-8", "replace")

        try:
            async with self._reading:
                artifact, found = await self._store.run(work)
        except UnknownError:
            raise await self._unknown(run_id, stream) from None
        await self._tracker.add(artifact.uri, artifact.provenance)
        return found

    def _read(self, run_id: str, stream: str, offset: int, length: int) -> tuple[Artifact, bytes]:
        uri = f"bridge://runs/{run_id}/{stream}"
        try:
            try:
                artifact = self._store.find(self._owner, uri)
            except UnknownError:
                if stream != "stdout":
                    raise
                # A result that its client did not receive contains the output.
                uri = f"bridge://runs/{run_id}/result"
                artifact = self._store.find(self._owner, uri)
            start = max(0, artifact.size + offset) if offset < 0 else offset
            return artifact, self._store.read(self._owner, uri, start, min(length, ALL))
        except ArtifactStoreError as error:
            raise CallFailedError(str(error), kind="internal") from None

    async def _unknown(self, run_id: str, stream: str) -> CallFailedError:
        """Return the error for a missing output, which lists the outputs that are kept."""
        try:
            listed = await self._store.run(self._store.find_all, self._owner)
        except BridgeError:
            listed = ()
        kept = [one for one in listed if one.kind in STREAMS]
        of_run = [one for one in kept if one.run_id == run_id]
        if not self._owner:
            # A run's id opens its output, so callers that share an owner do not see it.
            kept = of_run
        for one in kept:
            # The existence and size of an output are data too.
            await self._tracker.add_store(one.uri, one.provenance)
        message = (
            f"No {stream} of run {run_id!r:.80} is kept: that of other callers, what a result "
            "showed as a whole, and what has expired are not."
        )
        names = ", ".join(f"{_describe(one)} of {one.run_id}" for one in kept[:10])
        more = f" and {len(kept) - 10:,} more" if len(kept) > 10 else ""
        if of_run:
            message += f" Of this run there is {', '.join(map(_describe, of_run))}."
        elif kept:
            message += f" Kept, the newest first: {names}{more}."
        else:
            message += " No output is kept at all."
        return CallFailedError(message, kind="usage")


def part(data: bytes, first: int, last: int | None) -> bytes:
    """Return lines of a text, counted from 1 and including the last."""
    start = _line_start(data, 0, first - 1)
    if last is None:
        return data[start:]
    return data[start : _line_start(data, start, max(0, last - first + 1))]


def found_lines(
    data: bytes, text: str, first: int = 1, last: int | None = None, limit: int = 100
) -> list[Json]:
    """Return the numbers and excerpts of the lines that contain a text."""
    wanted = text.encode("utf-8", "replace")
    data = part(data, first, last)
    found: list[Json] = []
    number, counted_to, room = first, 0, 8 * MEBIBYTE
    at = data.find(wanted)
    while at >= 0 and len(found) < limit and room > 0:
        start = data.rfind(b"\n", 0, at) + 1
        end = data.find(b"\n", max(at, start))
        end = len(data) if end < 0 else end
        number += data.count(b"\n", counted_to, start)
        counted_to = start
        # A guest may write long lines: the excerpt has little before the match and more after it.
        start = max(start, min(at - 512, end - 2048))
        line = data[start : min(end, start + 2048)]
        room -= len(line) + 1
        found.append([number, line.decode("utf-8", "replace")])
        at = data.find(wanted, end)
    return found


def _line_start(data: bytes, start: int, lines: int) -> int:
    """Return the offset of the line that begins `lines` lines after `start`."""
    if lines < 1:
        return start
    if data.count(b"\n", start) < lines:
        return len(data)
    return nth_line_end(data, lines, start) + 1


def _describe(artifact: Artifact) -> str:
    return f"{artifact.kind} ({counted(artifact.size, 'byte')})"
