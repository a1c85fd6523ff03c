"""Checks every message that the bridge sends against the protocol's official JSON schemas.

The schemas are those of the official conformance suite. Version 2024-11-05, which it lacks, is
2025-03-26 without audio and batches.
"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Self

import anyio
import httpx2
import pytest
from jsonschema import Draft7Validator, Draft202012Validator
from jsonschema.protocols import Validator
from mcp.shared.message import SessionMessage

from bridge.server.resources import NotifyingServer
from bridge.upstream.direct_dispatcher import LineWriter
from bridge.upstream.handshake import RecordingDispatcher
from bridge.upstream.http import CappedClient

SUITE = Path(__file__).parent / "node" / "node_modules" / "conformance-next" / "dist" / "index.js"
NODE = Path(sys.executable).with_name("node")

NEWEST = "2026-07-28"
OLDER = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The versions with a handshake."""

MAX_BYTES = 64 * 1024
"""Longer messages are not checked, which would take seconds."""

VERSION = "io.modelcontextprotocol/protocolVersion"
"""The key of the version in a request of the newest version."""

_READ = r"""
const text = require("fs").readFileSync(process.argv[1], "utf8");
const table = /const \w+=\{"2025-03-26":(\w+),"2025-06-18":(\w+),"2025-11-25":(\w+),\[\w+\]:(\w+)/;
const [whole, ...names] = table.exec(text);
const start = text.indexOf(names[0] + "={$schema:");
const chain = text.slice(start, text.indexOf(whole));
console.log(JSON.stringify(new Function(`let ${chain}; return [${names}]`)()));
"""


@cache
def schemas() -> Mapping[str, Any]:
    read = subprocess.run([NODE, "-e", _READ, SUITE], capture_output=True, check=True)
    newer = dict(zip((*OLDER[1:], NEWEST), json.loads(read.stdout), strict=True))
    oldest = copy.deepcopy(newer["2025-03-26"])
    # Nothing is an audio block, and no message is an array.
    oldest["definitions"]["AudioContent"] = False
    kinds = oldest["definitions"]["JSONRPCMessage"]["anyOf"]
    oldest["definitions"]["JSONRPCMessage"]["anyOf"] = [each for each in kinds if "$ref" in each]
    found = {"2024-11-05": oldest, **newer}
    for schema in found.values():
        _allow_fractions(schema["$defs"] if "$defs" in schema else schema["definitions"])
    return found


def _allow_fractions(definitions: dict[str, Any]) -> None:
    """Fix the numbers in forms, which a bug of the schemas' generator made integers."""
    for name in ("NumberSchema", "ElicitResult"):
        if name in definitions:
            text = json.dumps(definitions[name])
            text = text.replace('{"type": "integer"}', '{"type": "number"}')
            definitions[name] = json.loads(
                text.replace('"string", "integer"', '"string", "number"')
            )


@cache
def _methods(version: str) -> Mapping[str, str]:
    """Return the definition of each request and notification of a version."""
    found = {}
    for name, definition in _definitions(version).items():
        method = isinstance(definition, dict) and definition.get("properties", {}).get("method", {})
        if method and "const" in method:
            found[method["const"]] = name
    return found


def _definitions(version: str) -> Mapping[str, Any]:
    schema = schemas()[version]
    found: Mapping[str, Any] = schema["$defs"] if "$defs" in schema else schema["definitions"]
    return found


@cache
def _validator(version: str, name: str) -> Validator:
    schema = schemas()[version]
    place = "$defs" if "$defs" in schema else "definitions"
    kind = Draft202012Validator if place == "$defs" else Draft7Validator
    return kind({"$ref": f"#/{place}/{name}", place: schema[place]})


def problems(version: str, message: Any, answers: str) -> list[str]:
    """Return what is wrong with a message in a protocol version.

    Args:
        answers: The method of the request that it answers.
    """
    checks = [("JSONRPCMessage", message)]
    if "method" in message:
        name = _methods(version).get(message["method"])
        if name is None:
            return [f"{version} has no {message['method']}"]
        checks.append((name, message))
    elif "result" in message and answers:
        name = _result(version, answers, message["result"])
        checks.append((name, message["result"]))
    return [
        f"{version} {name} {error.json_path}: {error.message[:300]} in {str(message)[:300]}"
        for name, part in checks
        for error in _validator(version, name).iter_errors(part)
    ]


def _result(version: str, method: str, result: Any) -> str:
    if result.get("resultType") == "input_required":
        return "InputRequiredResult"
    if result.get("resultType") == "task":
        # Of the extension, too.
        return "Result"
    name = _methods(version).get(method, "").removesuffix("Request") + "Result"
    return name if name in _definitions(version) else "Result"


class Wire:
    """The messages of a test, and what is wrong with them.

    Attributes:
        wrong: The problems, in order.
        sent: The number of checked messages by version.
    """

    def __init__(self) -> None:
        self.wrong: dict[str, None] = {}
        self.sent: dict[str, int] = defaultdict(int)
        # By request id: what servers have asked the bridge, over any connection.
        self._asked: dict[Any, set[str]] = defaultdict(set)

    def client_sends(self, message: Any, version: str = "") -> None:
        """Check what the bridge sends to a server.

        Without a version, it must be valid in all versions with a handshake that have its method.
        """
        meta = message.get("params", {}).get("_meta", {})
        version = version or meta.get(VERSION, "")
        if version == NEWEST and message.get("method", "").startswith("tasks/"):
            # An extension's, of which the suite has no schema.
            return
        versions = [version] if version == NEWEST else OLDER
        known = [each for each in versions if message.get("method", "ping") in _methods(each)]
        methods = self._asked.get(message.get("id"), {""}) if "method" not in message else {""}
        found = [problems(each, message, method) for method in methods for each in known or OLDER]
        self._note(versions[-1], found, best=len(methods) > 1)

    def client_is_asked(self, request: Any) -> None:
        self._asked[request.id].add(request.method)

    def server_sends(self, message: Any, version: str, answers: str) -> None:
        self._note(version, [problems(version, message, answers)])

    def _note(self, version: str, found: Iterable[list[str]], *, best: bool = False) -> None:
        self.sent[version] += 1
        results = list(found)
        if not best or all(results):
            self.wrong.update((each, None) for result in results for each in result)


class _Conversation:
    """The requests of one connection, to find the method that a response belongs to."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._version = OLDER[-1]
        self._methods: dict[Any, str] = {}

    def came(self, message: Any, version: str = "") -> None:
        if isinstance(message, dict) and "id" in message and "method" in message:
            meta = (message.get("params") or {}).get("_meta") or {}
            version = version or meta.get(VERSION, "")
            if version in schemas():
                self._version = version
            self._methods[message["id"]] = message["method"]

    def goes(self, message: Any) -> None:
        method = self._methods.get(message.get("id"), "") if "method" not in message else ""
        if method == "initialize" and "result" in message:
            self._version = message["result"]["protocolVersion"]
        self._wire.server_sends(message, self._version, method)


@contextmanager
def watched() -> Iterator[Wire]:
    """Check what bridges of this process send within the context."""
    wire = Wire()
    with pytest.MonkeyPatch.context() as patch:
        _watch_clients(patch, wire)
        _watch_servers(patch, wire)
        _watch_http(patch, wire)
        yield wire


def _watch_clients(patch: pytest.MonkeyPatch, wire: Wire) -> None:
    put, send = LineWriter.put, CappedClient.send
    dispatch = RecordingDispatcher._dispatch_request

    def check(data: bytes, version: str = "") -> None:
        for line in data.splitlines():
            _each(line, lambda message: wire.client_sends(message, version))

    def watched_put(self: LineWriter, data: bytes) -> None:
        check(data)
        put(self, data)

    async def watched_send(
        self: CappedClient, request: httpx2.Request, **options: Any
    ) -> httpx2.Response:
        if request.method == "POST" and "json" in request.headers.get("content-type", ""):
            check(request.content, request.headers.get("mcp-protocol-version", ""))
        return await send(self, request, **options)

    async def watched_dispatch(self: RecordingDispatcher, request: Any, *rest: Any) -> None:
        wire.client_is_asked(request)
        await dispatch(self, request, *rest)

    patch.setattr(LineWriter, "put", watched_put)
    patch.setattr(CappedClient, "send", watched_send)
    patch.setattr(RecordingDispatcher, "_dispatch_request", watched_dispatch)


def _watch_servers(patch: pytest.MonkeyPatch, wire: Wire) -> None:
    run = NotifyingServer.run

    async def watched_run(
        self: NotifyingServer, read: Any, write: Any, *rest: Any, **options: Any
    ) -> None:
        talk = _Conversation(wire)
        await run(self, _Reading(read, talk), _Writing(write, talk), *rest, **options)

    patch.setattr(NotifyingServer, "run", watched_run)


class _Stream:
    """A wrapper of an SDK stream."""

    def __init__(self, stream: Any, talk: _Conversation) -> None:
        self._stream = stream
        self._talk = talk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> Any:
        return await self._stream.__aexit__(*failure)


class _Reading(_Stream):
    """The messages of a client over stdio or in memory."""

    async def receive(self) -> Any:
        item = await self._stream.receive()
        if isinstance(item, SessionMessage):
            self._talk.came(item.message.model_dump(by_alias=True, exclude_unset=True))
        return item

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class _Writing(_Stream):
    """The messages of the bridge over stdio or in memory."""

    async def send(self, item: SessionMessage, /) -> None:
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        _each(text.encode(), self._talk.goes)
        await self._stream.send(item)


def _watch_http(patch: pytest.MonkeyPatch, wire: Wire) -> None:
    make = NotifyingServer.streamable_http_app

    def watched_make(self: NotifyingServer, **options: Any) -> Any:
        return _WatchedApp(make(self, **options), wire)

    patch.setattr(NotifyingServer, "streamable_http_app", watched_make)


class _WatchedApp:
    """An ASGI application that checks the messages in its answers."""

    def __init__(self, app: Any, wire: Wire) -> None:
        self._app = app
        self._wire = wire

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        talk = _Conversation(self._wire)
        version = dict(scope["headers"]).get(b"mcp-protocol-version", b"").decode()
        asked, answered = bytearray(), bytearray()

        async def watched_receive() -> Any:
            event = await receive()
            asked.extend(event.get("body", b""))
            if event["type"] == "http.request" and not event.get("more_body"):
                _each(bytes(asked), lambda message: talk.came(message, version))
            return event

        async def watched_send(event: Any) -> None:
            if event["type"] == "http.response.body":
                answered.extend(event.get("body", b""))
                if not event.get("more_body") or answered.endswith((b"\n\n", b"\r\n\r\n")):
                    lines = bytes(answered).splitlines()
                    answered.clear()
                    for line in lines:
                        _each(line.removeprefix(b"data:"), talk.goes)
            await send(event)

        await self._app(scope, watched_receive, watched_send)


def _each(text: bytes, use: Any) -> None:
    """Pass a message to `use` unless it is too long."""
    if len(text) > MAX_BYTES or not text.strip().startswith(b"{"):
        return
    try:
        message = json.loads(text)
    except ValueError:
        return
    # Where HTTP refuses what is no request of a session, the SDK's error names no request.
    if message.get("jsonrpc") == "2.0" and message.get("id", "") is not None:
        use(message)


@pytest.fixture(autouse=True)
def wire() -> Iterator[Wire]:
    """Fail a test that sends messages outside of the protocol's schemas."""
    with watched() as wire:
        yield wire
    assert not wire.wrong, "\n".join(wire.wrong)
