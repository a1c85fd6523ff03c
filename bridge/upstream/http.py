"""The HTTP transports: Streamable HTTP, and the older HTTP+SSE of 2024-11-05.

Protocol: Streamable HTTP is the SDK's, with this module's HTTP client (headers, bearer token, caps,
timeouts) and an SSE event limit of our own instead of 1 MiB. A 400, 404 or 405 to the first POST
leads to HTTP+SSE, as the specification says for older servers. A 404 to a request with
`Mcp-Session-Id` means that the server rejected the session.

HTTP+SSE is implemented here: the SDK's ends the connection at an event beyond 1 MiB, which cannot
be configured.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urljoin

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import ErrorData, JSONRPCError, JSONRPCRequest
from mcp_types.jsonrpc import INTERNAL_ERROR

from bridge.model import ServerSpec, Transport
from bridge.offload import LARGE, offload
from bridge.upstream.framing import Line, Noise, decode_line, has_too_many_values, repair_body
from bridge.upstream.oauth import Login, Logins
from bridge.upstream.oauth_web import WebClient, is_loopback, same_origin
from bridge.upstream.refusal import UNAUTHORIZED, Refusal, refusal_of, says_unknown_session
from bridge.upstream.results import split_batch
from bridge.upstream.transport import Endpoint

logger = logging.getLogger(__name__)

REQUEST_SECONDS = 30.0
"""For connecting, for sending and for a free connection; as in the SDK. Reading has no limit of
its own: a call's timeout bounds it, and an event stream may rightly be silent for hours."""

LEAVE_SECONDS = 2.0  # For the DELETE that ends a session.

SESSION_HEADER = "mcp-session-id"

REFUSED = "The server refused the request with status"
"""Beginning of the error message for a request whose POST was refused."""

Inbound = MemoryObjectSendStream[SessionMessage | Exception]
Outbound = MemoryObjectReceiveStream[SessionMessage]


MAX_BODY_VALUES = 200_000
"""Values that one body or one event may hold. The SDK parses them on the event loop, which takes
several times as long as a pipe's messages take; see `framing.MAX_VALUES`."""

_DATA = re.compile(rb"^data: ?([{\[][^\r\n]*)", re.MULTILINE)
"""The data of an event that is one line of JSON."""


class OversizeBody(httpx2.StreamError):
    """A response's body is beyond the cap. The SDK turns it into an error of the one request."""


class _PlainStream(httpx2.AsyncByteStream):
    """A response's body, decompressed.

    Args:
        limit: Of the decompressed bytes: a compressed megabyte may become a gigabyte.
        encoding: The `Content-Encoding` of `inner`.
    """

    def __init__(self, inner: httpx2.AsyncByteStream, limit: int, encoding: str) -> None:
        self._inner = inner
        self._limit = limit
        self._encoding = encoding

    async def _chunks(self) -> AsyncIterator[bytes]:
        inflate = None
        if self._encoding in ("gzip", "x-gzip", "deflate"):
            inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif self._encoding not in ("", "identity"):
            raise httpx2.StreamError("The body is compressed, which was not asked for.")
        async for chunk in self._inner:
            for piece in (chunk,) if inflate is None else _decompress(inflate, chunk):
                yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class _CappedStream(_PlainStream):
    """A body that raises if it is too long or has too many values."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = bytearray()
        async for piece in self._chunks():
            body += piece
            if len(body) > self._limit:
                raise OversizeBody(f"The body exceeded the {self._limit} byte limit.")
        whole = bytes(body)
        if await _holds_too_many(whole):
            raise OversizeBody(_too_many("body"))
        yield await offload(whole, partial(repair_body, whole))


class _EventStream(_PlainStream):
    """A body of events that raises at an event with too many values.

    The decoder limits an event's length; longer events are passed on in parts.
    """

    async def __aiter__(self) -> AsyncIterator[bytes]:
        waiting = bytearray()
        async for piece in self._chunks():
            # The blank line may have begun in the piece before.
            start = max(0, len(waiting) - 1)
            waiting += piece
            end = max(waiting.rfind(blank, start) for blank in (b"\n\n", b"\n\r", b"\r\r")) + 2
            if waiting[end : end + 1] == b"\n":
                # The second byte of a line end, which may also arrive as a piece of its own.
                end += 1
            if len(waiting) > self._limit or waiting == b"\n":
                end = len(waiting)
            if end > 1:
                events = bytes(waiting[:end])
                del waiting[:end]
                if await _holds_too_many(events):
                    raise httpx2.SSEError(_too_many("event"))
                yield await offload(events, partial(_DATA.sub, _repair_data, events))
        if waiting:
            yield bytes(waiting)


def _repair_data(match: re.Match[bytes]) -> bytes:
    """Return an event's data with its messages in JSON-RPC's form, an event for each."""
    messages = split_batch(match[1]) or [match[1]]
    return b"\n\n".join(b"data: " + repair_body(message) for message in messages)


async def _holds_too_many(data: bytes) -> bool:
    """Return whether JSON data has more values than the SDK may parse."""
    if len(data) <= LARGE:
        return False
    return await offload(data, partial(has_too_many_values, Line(data), MAX_BODY_VALUES))


def _too_many(what: str) -> str:
    return f"The {what} exceeded the {MAX_BODY_VALUES} value limit."


def _decompress(inflate: zlib._Decompress, chunk: bytes) -> Iterator[bytes]:
    """Yield a chunk of a compressed body decompressed, in pieces of bounded size.

    Raises:
        httpx2.StreamError: The body is not compressed as its header says.
    """
    try:
        while piece := inflate.decompress(chunk, 256 * 1024):
            yield piece
            chunk = inflate.unconsumed_tail
    except zlib.error:
        raise httpx2.StreamError("The body is not compressed as its header says.") from None


class CappedClient(WebClient):
    """An HTTP client that adds the login's token, limits bodies and stores the last refusal.

    An event stream may last for days and has no limit as a whole; each event has one on its values,
    and its decoder limits its length. Compression is not requested; if a server compresses all the
    same, the limit is on the decompressed bytes.
    """

    def __init__(
        self, spec: ServerSpec, *, max_body_bytes: int, login: Login | None = None
    ) -> None:
        super().__init__(
            headers={"accept-encoding": "identity", **spec.headers},
            timeout=httpx2.Timeout(REQUEST_SECONDS, read=None),
            # A proxy of a kind that is not installed must not be in a local server's way.
            trust_env=not is_loopback(httpx2.URL(spec.url).host),
        )
        self._max_body_bytes = max_body_bytes
        self._spec = spec
        self._login = login
        self.refusal: Refusal | None = None
        self.expired = False

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; limit the response's stream, as which each body is read."""
        if request.method == "DELETE":
            leave = httpx2.Timeout(LEAVE_SECONDS).as_dict()
            request.extensions = {**request.extensions, "timeout": leave}
        response = await self._send_authorized(request, **options)
        if response.is_error:
            self.refusal = refusal_of(response, self._spec, self._login, self.refusal)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if isinstance(response.stream, httpx2.AsyncByteStream):
            # The stream decompresses the body, so that the client must not.
            encoding = response.headers.pop("content-encoding", "").strip().lower()
            bounded = _EventStream if kind == "text/event-stream" else _CappedStream
            response.stream = bounded(response.stream, self._max_body_bytes, encoding)
        if response.status_code == httpx2.codes.NOT_FOUND and SESSION_HEADER in request.headers:
            # By the specification: the server no longer has the session.
            self.expired = True
            if kind == "text/event-stream":
                # The stream may never end, and the SDK does not read it either.
                return response
            with suppress(httpx2.StreamError):
                if says_unknown_session(await response.aread()):
                    # As plain text the SDK ignores it and raises its own error, by which alone a
                    # request may be repeated. Servers send errors like this one for others too.
                    response.headers["content-type"] = "text/plain"
        return response

    async def _send_authorized(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request with the login's token; if refused, once more with a newer token."""
        login = self._login
        token = await login.token(request.url) if login else ""
        if login:
            _authorize(request, token)
        response = await super().send(request, **options)
        if response.status_code not in UNAUTHORIZED:
            return response
        refusal = refusal_of(response, self._spec, login)
        other_token = await _other_token(login, token, refusal, request.url) if login else ""
        if other_token:
            await response.aclose()
            _authorize(request, other_token)
            response = await super().send(request, **options)
            refusal = refusal_of(response, self._spec, login)
        if login and refusal.insufficient_scope:
            await login.remember_scope(refusal.scope)
        if response.status_code in UNAUTHORIZED:
            # The SDK would report only a JSON-RPC error in the body, without the status and the
            # challenge.
            response.headers["content-type"] = "text/plain"
        return response


async def _other_token(login: Login, token: str, refusal: Refusal, url: httpx2.URL) -> str:
    """Return another token than the refused one for a request to `url`; empty if there is none."""
    other_token = ""
    if refusal.insufficient_scope:
        other_token = await login.newer_token(token)
    elif refusal.status == httpx2.codes.UNAUTHORIZED:
        other_token = await login.renewed_token(token)
    # `token` is called again because it checks the request's origin.
    return other_token if other_token and await login.token(url) == other_token else ""


def _authorize(request: httpx2.Request, token: str) -> None:
    if token:
        request.headers["Authorization"] = f"Bearer {token}"
    else:
        # A redirected request has the headers of the previous one.
        request.headers.pop("Authorization", None)


class HttpEndpoint(Endpoint):
    """One server behind a URL.

    Args:
        logins: The user's logins; None to send no tokens.
        owner: The server whose login is used, if `spec` is a variant of it.
    """

    def __init__(
        self,
        spec: ServerSpec,
        *,
        max_message_bytes: int,
        logins: Logins | None = None,
        owner: ServerSpec | None = None,
    ) -> None:
        self._spec = spec
        self._owner = owner or spec
        self._max_bytes = max_message_bytes
        self._logins = logins
        self._client: CappedClient | None = None
        self._end_report = ""

    @property
    def refusal(self) -> Refusal | None:
        """The last response that was an error."""
        return self._client.refusal if self._client else None

    @property
    def expired(self) -> bool:
        """Whether the server has rejected the session (HTTP 404)."""
        return self._client is not None and self._client.expired

    @property
    def transport(self) -> Transport:
        """Streamable HTTP or event streams."""
        return self._spec.transport

    def alternative(self) -> HttpEndpoint | None:
        """Return the HTTP+SSE transport if the server refused Streamable HTTP; else None.

        As the specification says for older servers. Many entries have such a server's URL without
        its transport.
        """
        status = self.refusal.status if self.refusal else None
        # A server that only supports HTTP+SSE answers so to a POST.
        if self._spec.transport != "http" or status not in {400, 404, 405}:
            return None
        return HttpEndpoint(
            replace(self._spec, transport="sse"),
            max_message_bytes=self._max_bytes,
            logins=self._logins,
            owner=self._owner,
        )

    def end_report(self) -> str:
        """Return how the connection ended, in sentences; may be empty."""
        return self._end_report

    @asynccontextmanager
    async def open(self, until: float) -> AsyncGenerator[tuple[Any, Any], None]:
        """Connect; raises failures to connect, possibly in an exception group."""
        async with AsyncExitStack() as stack:
            login = self._logins.of(self._owner) if self._logins else None
            self._client = CappedClient(self._spec, max_body_bytes=self._max_bytes, login=login)
            client = await stack.enter_async_context(self._client)
            if self._spec.transport == "sse":
                transport = _open_events(client, self._spec.url, self._max_bytes)
                yield await stack.enter_async_context(transport)
            else:
                yield await stack.enter_async_context(
                    streamable_http_client(
                        self._spec.url, http_client=client, max_sse_event_size=self._max_bytes
                    )
                )


@asynccontextmanager
async def _open_events(
    client: CappedClient, url: str, max_event_bytes: int
) -> AsyncGenerator[tuple[Any, Any], None]:
    """Connect over HTTP+SSE: messages are received as events and sent by POST."""
    inbound, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, outbound = anyio.create_memory_object_stream[SessionMessage](0)
    async with AsyncExitStack() as stack:
        for stream in (inbound, read, write, outbound):
            stack.callback(stream.close)
        response = await stack.enter_async_context(
            _stream(client, "GET", url, headers={"accept": "text/event-stream"})
        )
        response.raise_for_status()
        tg = await stack.enter_async_context(anyio.create_task_group())
        stack.callback(tg.cancel_scope.cancel)
        events = httpx2.EventSource(response, max_event_size=max_event_bytes)
        target = await tg.start(_read_events, events, url, inbound)
        tg.start_soon(_post_messages, client, target, outbound, inbound.clone())
        yield read, write


async def _read_events(
    events: httpx2.EventSource,
    url: str,
    inbound: Inbound,
    *,
    task_status: anyio.abc.TaskStatus[str],
) -> None:
    """Deliver messages; report the URL to post to once the server has sent it.

    Raises:
        httpx2.TransportError: The stream broke, or an event was too long. An event stream cannot be
            resumed in the middle of an event, so the connection has ended.
    """
    announced = False
    async with inbound:
        async for event in events:
            if event.event == "endpoint" and not announced:
                announced = True
                task_status.started(_same_origin(url, event.data))
            elif event.event == "message" and event.data:
                decoded = decode_line(Line(event.data.encode()))
                if isinstance(decoded, Noise):
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
            # The response arrives as an event. Messages are posted one by one to keep their order,
            # so a POST that is never acknowledged would block all later ones.
            timeout = httpx2.Timeout(REQUEST_SECONDS)
            async with _stream(client, "POST", target, json=body, timeout=timeout) as response:
                refused = response.is_error or response.is_redirect
            if refused and isinstance(message, JSONRPCRequest):
                data = ErrorData(code=INTERNAL_ERROR, message=f"{REFUSED} {response.status_code}.")
                answer = JSONRPCError(jsonrpc="2.0", id=message.id, error=data)
                await inbound.send(SessionMessage(answer))


@asynccontextmanager
async def _stream(
    client: CappedClient, method: str, url: str, **options: Any
) -> AsyncGenerator[httpx2.Response, None]:
    """Send a request; follow a few redirects of same origin and method, as the SDK does."""
    request = client.build_request(method, url, **options)
    response = await client.send(request, stream=True, follow_redirects=False)
    for _ in range(5):  # A trailing slash and a moved path need two.
        redirect = response.next_request
        if redirect is None or not may_redirect(request, redirect):
            break
        await response.aclose()
        request = redirect
        response = await client.send(request, stream=True, follow_redirects=False)
    try:
        yield response
    finally:
        await response.aclose()


def may_redirect(sent: httpx2.Request, redirect: httpx2.Request) -> bool:
    """Return whether a redirect keeps the method and the origin, and so may get the headers."""
    if redirect.method != sent.method:
        return False
    if redirect.url.userinfo and redirect.url.userinfo != sent.url.userinfo:
        return False
    return same_origin(redirect.url, sent.url)


def _same_origin(url: str, endpoint: str) -> str:
    target = httpx2.URL(urljoin(url, endpoint))
    base = httpx2.URL(url)
    if (base.scheme, base.host, base.port) != (target.scheme, target.host, target.port):
        msg = f"the server wants messages posted to another origin: {target}"
        raise httpx2.RemoteProtocolError(msg)
    return str(target)
