"""The HTTP transports: Streamable HTTP, and the older HTTP+SSE of 2024-11-05.

Differs from the SDK: a JSON body answers its request, whatever its id and content type. An error
status, and a request without a response, become a JSON-RPC error with a `Refusal`. The SDK's
HTTP+SSE ends the connection at an event beyond 1 MiB. Redirects are followed as in the SDK.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import sse_within_origin, stream_within_origin
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCRequest, JSONRPCResponse, RequestId

from bridge.event_loop import LARGE, current_time, offload
from bridge.model import ServerSpec
from bridge.upstream import framing
from bridge.upstream.failure import reason
from bridge.upstream.oauth import Logins
from bridge.upstream.oauth_web import WebClient, is_loopback, same_origin
from bridge.upstream.transport import UNAUTHORIZED, Endpoint, Refusal, own_error, refusal_of

logger = logging.getLogger(__name__)

Inbound = MemoryObjectSendStream[SessionMessage | Exception]
Outbound = MemoryObjectReceiveStream[SessionMessage]


MAX_BODY_VALUES = 200_000
"""JSON values in a server's body or event. The SDK parses them on the event loop, several times
slower than the bridge parses a pipe's messages; see `framing.MAX_VALUES`."""

_DATA = re.compile(rb"^data: ?([{\[][^\r\n]*)", re.MULTILINE)  # Of an event: a line of JSON.


@dataclass(eq=False, repr=False)
class _PlainStream(httpx2.AsyncByteStream):
    """A response's body, decompressed."""

    inner: httpx2.AsyncByteStream
    limit: int  # Most decompressed bytes. A compressed megabyte may become a gigabyte.
    encoding: str
    answers: RequestId | None  # The id of the request that the body answers; None for other bodies.
    heard: Callable[[], None]

    async def _chunks(self) -> AsyncIterator[bytes]:
        inflate = None
        if self.encoding in ("gzip", "x-gzip", "deflate"):
            inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif self.encoding not in ("", "identity"):
            raise httpx2.StreamError("The body is compressed, which was not asked for.")
        async for chunk in self.inner:
            self.heard()
            if inflate is None:
                yield chunk
                continue
            try:
                while piece := inflate.decompress(chunk, 256 * 1024):
                    yield piece
                    chunk = inflate.unconsumed_tail
            except zlib.error:
                raise httpx2.StreamError("The body is not compressed as its header says.") from None

    async def aclose(self) -> None:
        await self.inner.aclose()


class _CappedStream(_PlainStream):
    """A body that raises StreamError if it is too long or has too many values."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        try:
            async for piece in self._chunks():
                body += piece
                if len(body) > self.limit:
                    raise httpx2.StreamError(f"The body exceeded the {self.limit} byte limit.")
        except httpx2.TransportError as error:
            if self.answers is None:
                raise
            yield Refusal(status=0, text=reason(error)).answer(self.answers)
            return
        whole = bytes(body)
        await _check_values(whole, httpx2.StreamError, "body")
        yield await offload(whole, partial(framing.repair_body, whole, self.answers))


class _EventStream(_PlainStream):
    """A body of events that raises at an event with too many values."""

    def _repair(self, match: re.Match[bytes]) -> bytes:
        """Return an event's data with its messages in JSON-RPC's form, an event for each."""
        messages = framing.split_batch(match[1])
        if messages is None:
            return b"data: " + framing.repair_body(match[1], self.answers)
        return b"\n\n".join(b"data: " + framing.repair_body(message) for message in messages)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        waiting = bytearray()
        async for piece in self._chunks():
            # The blank line may have begun in the previous piece.
            start = max(0, len(waiting) - 1)
            waiting += piece
            end = max(waiting.rfind(blank, start) for blank in (b"\n\n", b"\n\r", b"\r\r")) + 2
            if waiting[end : end + 1] == b"\n":
                # The second byte of a line end may also arrive as a separate piece.
                end += 1
            if len(waiting) > self.limit or waiting == b"\n":
                end = len(waiting)
            if end > 1:
                events = bytes(waiting[:end])
                del waiting[:end]
                await _check_values(events, httpx2.SSEError, "event")
                yield await offload(events, partial(_DATA.sub, self._repair, events))
        if waiting:
            yield bytes(waiting)


async def _check_values(data: bytes, kind: type[Exception], what: str) -> None:
    count = partial(framing.has_too_many_values, data, MAX_BODY_VALUES)
    if len(data) > LARGE and await offload(data, count):
        raise kind(f"The {what} exceeded the {MAX_BODY_VALUES} value limit.")


class CappedClient(WebClient):
    """An HTTP client that adds the login's token, limits bodies and answers for failed requests.

    An event stream may last for days, so only each event's length and values are limited. Once
    `endpoint` is ready, a request without a response gets an error as its answer. Before, it
    raises, because the connection cannot start.
    """

    def __init__(self, endpoint: HttpEndpoint) -> None:
        spec = endpoint.spec
        super().__init__(
            headers={"accept-encoding": "identity", **spec.headers},
            # As in the SDK. A call's timeout limits reading, and an event stream may be silent
            # for hours.
            timeout=httpx2.Timeout(30.0, read=None),
            # A local server must work even if the support of the proxy's kind is not installed.
            trust_env=not is_loopback(httpx2.URL(spec.url).host),
        )
        self._endpoint = endpoint
        self._login = endpoint.logins.of(spec) if endpoint.logins else None

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if request.method == "DELETE":
            # It ends a session, perhaps while the bridge is stopping.
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(2.0).as_dict()}
        sent = request.content if request.method == "POST" else b""
        answers = framing.message_id(sent, sent)
        try:
            response = await self._send_authorized(request, **options)
        except httpx2.TransportError as error:
            if answers is None or not self._endpoint.ready:
                raise
            refusal = Refusal(status=0, text=reason(error), sent=not isinstance(error, _NEVER_SENT))
            return _json_response(request, httpx2.codes.BAD_GATEWAY, refusal.answer(answers))
        self._heard()
        if response.is_error:
            return await self._refuse(request, response, answers)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        events = kind == "text/event-stream"
        if self._endpoint.transport == "sse":
            # The answer is an event.
            answers = None
        if isinstance(response.stream, httpx2.AsyncByteStream):
            # The stream decompresses the body, so the client must not.
            encoding = response.headers.pop("content-encoding", "").strip().lower()
            response.stream = (_EventStream if events else _CappedStream)(
                response.stream, self._endpoint.max_message_bytes, encoding, answers, self._heard
            )
        if answers is not None and not events and response.is_success:
            response.headers["content-type"] = "application/json"
            # The SDK does not read the body of a response with status 202.
            response.status_code = httpx2.codes.OK
        return response

    def _heard(self) -> None:
        self._endpoint.last_heard = current_time()

    async def _refuse(
        self, request: httpx2.Request, response: httpx2.Response, answers: RequestId | None
    ) -> httpx2.Response:
        body = bytearray()
        encoding = response.headers.get("content-encoding", "").strip().lower()
        if isinstance(response.stream, httpx2.AsyncByteStream):
            stream = _PlainStream(response.stream, 0, encoding, None, self._heard)
            # Some bodies never end, and an excerpt is enough unless it is a JSON-RPC error.
            with anyio.move_on_after(2.0), suppress(httpx2.StreamError, httpx2.TransportError):
                async for piece in stream._chunks():
                    body += piece
                    if len(body) > min(LARGE, self._endpoint.max_message_bytes):
                        break
            await response.aclose()
        data = bytes(body)
        refusal = refusal_of(response, self._endpoint.spec, self._login, data)
        self._endpoint.refusal = refusal
        answer = b"" if answers is None else refusal.answer(answers, own_error(data))
        return _json_response(request, response.status_code, answer)

    async def _send_authorized(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        login = self._login
        token = await login.current_token(request.url) if login else ""
        if login:
            _authorize(request, token)
        response = await super().send(request, **options)
        if response.status_code not in UNAUTHORIZED or login is None:
            return response
        refusal, other_token = refusal_of(response, self._endpoint.spec, login), ""
        if refusal.insufficient_scope or refusal.status == httpx2.codes.UNAUTHORIZED:
            other_token = await login.other_token(token, renew=not refusal.insufficient_scope)
        # `current_token` is called again because it checks the request's origin.
        if other_token and await login.current_token(request.url) == other_token:
            await response.aclose()
            _authorize(request, other_token)
            response = await super().send(request, **options)
            refusal = refusal_of(response, self._endpoint.spec, login)
        if refusal.insufficient_scope:
            await login.remember_scope(refusal.scope)
        return response


_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


def _json_response(request: httpx2.Request, status: int, body: bytes) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    return httpx2.Response(status, headers=headers, content=body, request=request)


def _authorize(request: httpx2.Request, token: str) -> None:
    if token:
        request.headers["Authorization"] = f"Bearer {token}"
    else:
        # A redirected request has the headers of the previous request.
        request.headers.pop("Authorization", None)


@dataclass(eq=False, repr=False)
class HttpEndpoint(Endpoint):
    """One server behind a URL; without `logins` it gets no tokens."""

    spec: ServerSpec
    _: KW_ONLY
    max_message_bytes: int
    logins: Logins | None = None
    ready: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.transport = self.spec.transport

    def finish_start(self) -> None:
        self.ready = True

    def fall_back(self) -> bool:
        status = self.refusal.status if self.refusal else None
        # A server that only supports HTTP+SSE answers a POST with these.
        if self.transport != "http" or status not in {400, 404, 405}:
            return False
        self.transport = "sse"
        return True

    @asynccontextmanager
    async def open(self, until: float) -> AsyncGenerator[tuple[Any, Any], None]:
        url, most = self.spec.url, self.max_message_bytes
        async with CappedClient(self) as client:
            if self.transport == "sse":
                transport: Any = _open_events(client, url, most)
            else:
                transport = streamable_http_client(url, http_client=client, max_sse_event_size=most)
            async with transport as streams:
                yield streams


@asynccontextmanager
async def _open_events(
    client: CappedClient, url: str, max_event_bytes: int
) -> AsyncGenerator[tuple[Any, Any], None]:
    inbound, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outbound = anyio.create_memory_object_stream[SessionMessage](0)
    async with (
        inbound,
        read,
        write,
        outbound,
        sse_within_origin(client, url, max_event_size=max_event_bytes) as events,
        anyio.create_task_group() as tg,
    ):
        events.response.raise_for_status()
        target = await tg.start(_read_events, events, url, inbound)
        tg.start_soon(_post_messages, client, target, outbound, inbound.clone())
        try:
            yield read, write
        finally:
            tg.cancel_scope.cancel()


async def _read_events(
    events: httpx2.EventSource,
    url: str,
    inbound: Inbound,
    *,
    task_status: anyio.abc.TaskStatus[str],
) -> None:
    """Deliver messages, and report the URL to post to once the server has sent it."""
    announced = False
    async with inbound:
        async for event in events:
            if event.event == "endpoint" and not announced:
                announced, target = True, httpx2.URL(urljoin(url, event.data))
                if not same_origin(target, httpx2.URL(url)):
                    msg = f"the server wants messages posted to another origin: {target}"
                    raise httpx2.RemoteProtocolError(msg)
                task_status.started(str(target))
            elif event.event == "message" and event.data:
                decoded = framing.decode_line(event.data.encode())
                if isinstance(decoded, framing.Noise):
                    logger.warning("an event that is no message was skipped: %r", decoded.preview)
                elif decoded is not None:
                    await inbound.send(SessionMessage(decoded))
        raise httpx2.RemoteProtocolError("the server ended its event stream")


async def _post_messages(
    client: CappedClient, target: str, outbound: Outbound, inbound: Inbound
) -> None:
    async with outbound, inbound:
        async for item in outbound:
            message = item.message
            body = message.model_dump(by_alias=True, mode="json", exclude_unset=True)
            options = {"json": body, "timeout": 30.0}
            # The response arrives as an event. Messages are posted one by one to keep their order,
            # so a POST that is never acknowledged would block all later ones.
            async with stream_within_origin(client, "POST", target, **options) as response:
                # Some servers answer here instead of by an event.
                data = await response.aread() if response.status_code != 202 else b""
            if not isinstance(message, JSONRPCRequest) or response.is_success and not data:
                continue
            if response.is_redirect:
                data = Refusal(status=response.status_code).answer(message.id)
            answer = framing.decode_line(data)
            if isinstance(answer, JSONRPCResponse | JSONRPCError):
                await inbound.send(SessionMessage(answer))
