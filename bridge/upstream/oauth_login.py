"""Logs in to a server with a user at a browser, and logs out; failures are LoginFailedErrors.

The SDK does discovery, registration, PKCE and the exchange of the code. Each of its requests goes
through `oauth_web.fetch`, which checks the address and limits time and size.

A listener on loopback receives the browser's redirect. Any page in the user's browsers and any
program on this machine can connect to it. So a large or slow request is dropped, a request without
the login's secret state changes nothing, and texts of requests are escaped.
"""

from __future__ import annotations

import asyncio
import html
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import uvicorn
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError
from mcp.client.auth.utils import (
    extract_resource_metadata_from_www_auth,
    extract_scope_from_www_auth,
)
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_PROTOCOL_VERSION_HEADER
from mcp.types import CLIENT_CAPABILITIES_META_KEY, CLIENT_INFO_META_KEY, PROTOCOL_VERSION_META_KEY
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import AnyUrl, ValidationError
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge import __version__
from bridge.errors import LoginFailedError
from bridge.model import OAuthHints, ServerSpec
from bridge.upstream import oauth, oauth_web
from bridge.upstream.token_store import Place, TokenRecord, TokenStore, TokenStoreError, key_of
from bridge.upstream.transport import UNAUTHORIZED

CLIENT_NAME = "mcp-code-bridge"

# The SDK's texts about failures quote responses, and so secrets.
logging.getLogger("mcp.client.auth.oauth2").setLevel(logging.CRITICAL + 1)

REGISTERING_AGAIN = "The bridge registers again at the authorization server."

_PROBES: tuple[tuple[dict[str, Any], dict[str, str]], ...] = (
    (
        {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "server/discover",
            "params": {
                "_meta": {
                    PROTOCOL_VERSION_META_KEY: LATEST_MODERN_VERSION,
                    CLIENT_INFO_META_KEY: {"name": CLIENT_NAME, "version": __version__},
                    CLIENT_CAPABILITIES_META_KEY: {},
                }
            },
        },
        {MCP_PROTOCOL_VERSION_HEADER: LATEST_MODERN_VERSION, MCP_METHOD_HEADER: "server/discover"},
    ),
    ({"jsonrpc": "2.0", "id": 1, "method": "ping"}, {}),
)
"""Requests with their headers that a server refuses without a login, first of 2026-07-28 and then
of the older protocol. Neither opens a session."""

PATH = "/callback"

MAX_CONNECTIONS = 16  # Any program here may connect. A browser opens two or three at a time.

Host = Literal["127.0.0.1", "localhost"]

_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    # This page's address has the code, so no link may pass the address on.
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
}


@dataclass(frozen=True, kw_only=True)
class AuthorizationResponse:
    """The authorization server's response, as parameters of the browser's redirect."""

    state: str = field(repr=False)
    code: str = field(default="", repr=False)
    error: str = ""
    description: str = ""
    issuer: str | None = None


class Callback:
    """The receiver of one browser redirect, with the OAuth `state` that `expect` has set."""

    def __init__(self, host: Host, port: int) -> None:
        self.port, self.notice = port, ""  # Why the bridge registers again for this login.
        self.redirect_uri = f"http://{host}:{port}{PATH}"
        self._state = ""
        self._response: AuthorizationResponse | None = None
        self._received = anyio.Event()

    def expect(self, state: str) -> None:
        """Accept one response with `state`. Before this call no response is accepted."""
        self._state = state

    async def wait(self) -> AuthorizationResponse:
        await self._received.wait()
        assert self._response is not None
        return self._response

    async def handle(self, request: Request) -> HTMLResponse:
        """Return the page for a request; accept its response if it is the expected one."""
        query = request.query_params
        # A repeated parameter is a mistake or an attack.
        parameters = {name: query[name] for name in query if len(query.getlist(name)) == 1}
        state = parameters.get("state", "").encode("utf-8", "replace")
        if not self._state or not secrets.compare_digest(state, self._state.encode()):
            text = (
                "This answer does not belong to the login that is under way. Nothing was changed. "
                "Use the address that the terminal shows now."
            )
            return _page(400, "Not this login", text)
        if self._response is not None:
            text = "This login is over. To log in again, start a new one."
            return _page(410, "Already used", text)
        code, error = parameters.get("code", ""), ""
        if "error" in parameters:
            error = oauth_web.safe_error_name(parameters["error"]) or "an error without a name"
            code = ""
        elif not code:
            return _page(400, "Not understood", "This is no request that can be answered.")
        description = parameters.get("error_description", "") if error else ""
        self._response = AuthorizationResponse(
            state=self._state,
            code=code,
            error=error,
            description=oauth_web.shorten(description),
            issuer=parameters.get("iss"),
        )
        self._received.set()
        if not error:
            text = "You can close this page. The terminal says whether all went well."
            return _page(200, "Logged in", text)
        text = f"The server said: {error}. {self._response.description} You can close this page."
        return _page(200, "Not logged in", text)


class _BriefConnection(H11Protocol):
    """A connection that is closed after ten seconds, more than a login needs."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.close()
        self.loop.call_later(10.0, transport.abort)


@asynccontextmanager
async def listen(host: Host = "127.0.0.1", port: int = 0) -> AsyncIterator[Callback]:
    """Listen on loopback for the browser's redirect; raises OSError if the port is taken."""
    with socket.create_server(("127.0.0.1", port)) as listener:
        callback = Callback(host, listener.getsockname()[1])
        app = Starlette(
            routes=[Route(PATH, callback.handle, methods=["GET"])],
            # Refuses pages of other hosts whose names resolve to this machine (DNS rebinding).
            middleware=[
                Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
            ],
        )
        config = uvicorn.Config(app, **_LISTENER_OPTIONS)
        server = uvicorn.Server(config)
        # Not `serve`, which installs its own signal handlers.
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup([listener])
        try:
            yield callback
        finally:
            with anyio.CancelScope(shield=True):
                await server.shutdown([listener])


_LISTENER_OPTIONS: dict[str, Any] = {
    "http": _BriefConnection,
    "ws": "none",
    "lifespan": "off",
    "log_config": None,
    "log_level": "warning",
    # An access log would contain codes.
    "access_log": False,
    "server_header": False,
    "proxy_headers": False,
    # Codes may have a few thousand bytes, and a browser adds cookies.
    "h11_max_incomplete_event_size": 32 * 1024,
    "timeout_graceful_shutdown": 1,
}


def _page(status: int, title: str, text: str) -> HTMLResponse:
    title, text = html.escape(title), html.escape(text)
    body = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<h1>{title}</h1><p>{text}</p></html>"
    )
    return HTMLResponse(body, status, _PAGE_HEADERS)


ShowAddress = Callable[[str, Callback], Awaitable[None]]  # Shows the user an address.


class Provider(OAuthClientProvider):
    """One login: the SDK's provider, which is also its storage and starts without tokens."""

    registration: OAuthClientInformationFull | None = None
    challenged = False
    resource = ""  # The server's identifier for the authorization server if it is not a URL.
    last = ""  # The last response, described as a text.
    ended_by = ""  # The name of the error that ended the login.

    def __init__(
        self,
        spec: ServerSpec,
        web: httpx2.AsyncClient,
        callback: Callback,
        show: ShowAddress,
        seconds: float,
    ) -> None:
        self._spec, self._web, self._callback = spec, web, callback
        self._show, self._seconds = show, seconds
        self._server = httpx2.URL(spec.url)
        self.registered_by_hand = bool(spec.oauth and spec.oauth.client_id)
        redirects = [AnyUrl(callback.redirect_uri)]
        super().__init__(
            str(self._server.copy_with(query=None, fragment=None)),
            OAuthClientMetadata(client_name=CLIENT_NAME, redirect_uris=redirects),
            cast("Any", self),
            redirect_handler=self._open_browser,
            callback_handler=self._await_callback,
        )
        known = self.context.get_resource_url
        self.context.get_resource_url = lambda: self.resource or known()  # type: ignore[method-assign]

    async def get_tokens(self) -> None:
        """Return none, because stored tokens were refused or will be replaced."""

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Do nothing: `record` stores the tokens."""

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.registration

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Do nothing: `record` stores the registration."""

    async def _exchange_token_authorization_code(self, auth_code: str, code_verifier: str) -> Any:
        client, metadata = self.context.client_info, self.context.oauth_metadata
        if self.registered_by_hand and client is not None and client.client_secret:
            methods = metadata.token_endpoint_auth_methods_supported if metadata else None
            # The specification's default is `client_secret_basic`.
            post = methods is not None and "client_secret_basic" not in methods
            client.token_endpoint_auth_method = (
                "client_secret_post" if post else "client_secret_basic"
            )
        return await super()._exchange_token_authorization_code(auth_code, code_verifier)

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        tokens = oauth_web.read_tokens(response).model_dump_json()
        await super()._handle_token_response(httpx2.Response(200, content=tokens))

    def record(self, tokens: OAuthToken, now: float) -> TokenRecord:
        context = self.context
        client, metadata = context.client_info, context.oauth_metadata
        assert client is not None
        revocation = metadata.revocation_endpoint if metadata else None
        resource = ""
        if context.should_include_resource_param(context.protocol_version):
            resource = context.get_resource_url()
        empty = TokenRecord(
            resource=resource,
            issuer=str(metadata.issuer) if metadata else "",
            token_endpoint=self._get_token_endpoint(),
            revocation_endpoint=str(revocation) if revocation else "",
            client_id=client.client_id,
            # A secret of the configuration is not copied, because a copy could become outdated.
            client_secret="" if self.registered_by_hand else client.client_secret or "",
            auth_method=client.token_endpoint_auth_method or "",
            redirect_uri=self._callback.redirect_uri,
        )
        return oauth.with_token(empty, tokens, now)

    async def _open_browser(self, url: str) -> None:
        address = httpx2.URL(url)
        if problem := oauth_web.url_problem(address, self._server):
            raise oauth_web.WebError(f"{oauth_web.safe_url(address)} is not opened: {problem}")
        metadata = self.context.oauth_metadata
        methods = metadata.code_challenge_methods_supported if metadata else None
        if methods is not None and "S256" not in methods:
            raise oauth_web.WebError("the authorization server does not do PKCE with S256")
        self._callback.expect(parse_qs(urlsplit(url).query)["state"][0])
        await self._show(url, self._callback)

    async def _await_callback(self) -> AuthorizationCodeResult:
        with anyio.move_on_after(self._seconds):
            found = await self._callback.wait()
            if found.error:
                msg = f"the authorization server said: {found.error}. {found.description}"
                raise oauth_web.WebError(msg.strip(), found.error)
            return AuthorizationCodeResult(code=found.code, state=found.state, iss=found.issuer)
        raise oauth_web.WebError(f"no user logged in within {self._seconds:g} s", "timed out")

    async def log_in(self, scopes: str) -> httpx2.Response:
        """Log in through the SDK; return the server's response to the request with the token."""
        remedy = ""
        try:
            probe, refused = await self._probe()
            self.challenged = refused.status_code in UNAUTHORIZED
            response = _challenge(refused, scopes)
            async with aclosing(self.async_auth_flow(probe)) as flow:
                # The server would refuse the SDK's first request like the probe.
                await anext(flow)
                with suppress(StopAsyncIteration):
                    while True:
                        request = await flow.asend(response)
                        response = await oauth_web.fetch(
                            self._web, request, self._server, head_only=request is probe
                        )
                        if request is not probe:
                            self.last = oauth_web.describe_response(response)
                            response = self._accept_resource(response)
                return response
        except oauth_web.WebError as error:
            text, self.ended_by = str(error), error.name
        except OAuthRegistrationError:
            text = f"the authorization server does not register this program: {self.last}"
            remedy = (
                "If it needs a client that was registered beforehand, or a token, give that in "
                f"{self._spec.source.path}."
            )
            if not self.challenged:
                text = f"it did not ask for a login, and {text}"
                remedy = f"It may need none: check with `mcp-code-bridge servers --check`. {remedy}"
        except OAuthFlowError as error:
            text = oauth_web.shorten(str(error))
        except (ValidationError, ValueError, UnicodeError):
            # The texts of these errors quote the response.
            text = f"the authorization server's response is not valid: {self.last}"
        msg = f"Logging in to server {self._spec.name!r} did not work: {text.rstrip('.')}."
        raise LoginFailedError(msg, server=self._spec.name, remedy=remedy)

    async def _probe(self) -> tuple[httpx2.Request, httpx2.Response]:
        """Return the first request that the server refuses, else the last one, and its response."""
        headers, url = self._spec.headers, self._spec.url
        if self._spec.transport == "sse":
            accept = {**headers, "accept": "text/event-stream"}
            requests = [self._web.build_request("GET", url, headers=accept)]
        else:
            accept = {**headers, "accept": "application/json, text/event-stream"}
            requests = [
                self._web.build_request("POST", url, headers={**accept, **more}, json=body)
                for body, more in _PROBES
            ]
        request, *others = requests
        response = await oauth_web.fetch(self._web, request, self._server, head_only=True)
        if response.status_code not in UNAUTHORIZED and others:
            (request,) = others
            response = await oauth_web.fetch(self._web, request, self._server, head_only=True)
        if response.is_server_error:
            raise oauth_web.WebError(f"it answered with HTTP status {response.status_code}")
        return request, response

    def _accept_resource(self, response: httpx2.Response) -> httpx2.Response:
        """Return metadata with a URL as `resource` for the SDK, and store another resource."""
        document = oauth_web.read_document(response)
        if not isinstance(document, dict) or "authorization_servers" not in document:
            return response
        resource = document.get("resource")
        if not isinstance(resource, str) or resource.lower().startswith(("http:", "https:")):
            return response
        self.resource, url = resource, str(self._server)
        return httpx2.Response(response.status_code, json={**document, "resource": url})


def _challenge(response: httpx2.Response, scopes: str) -> httpx2.Response:
    """Return a 401 response with which the SDK starts a login, for `scopes` if any are given.

    Some servers accept requests without a login until a call needs one. The SDK starts a login
    only at a refusal, with the refusal's scopes.
    """
    parts = []
    if response.status_code in UNAUTHORIZED:
        where = extract_resource_metadata_from_www_auth(response) or ""
        if where and '"' not in where:
            parts.append(f'resource_metadata="{where}"')
        scopes = scopes or oauth_web.joined_scopes(extract_scope_from_www_auth(response) or "")
    if scopes:
        parts.append(f'scope="{scopes}"')
    return httpx2.Response(
        401, headers={"www-authenticate": f"Bearer {', '.join(parts)}"}, request=response.request
    )


@dataclass(frozen=True, kw_only=True)
class LoginResult:
    """A successful login."""

    scope: str
    place: Place
    notice: str = ""  # Why the tokens are not in a keyring.
    end: str = ""  # Why the login cannot be renewed, and the remedy.


async def log_in(
    spec: ServerSpec, store: TokenStore, show: ShowAddress, *, seconds: float, notice: str = ""
) -> LoginResult:
    """Log in to a server and store the tokens.

    An authorization server may have lost a stored registration, and show the user an error instead
    of redirecting. So if it refuses the registration, or no user logs in for `seconds`, the login
    starts once more with a new registration; `notice` tells the user why.
    """
    _check_address(spec)
    key, stored = key_of(spec), None
    with suppress(TokenStoreError):
        async with store.locked(key):
            if stored := await store.load(key):
                # Only a successful login lets the next one use the registration.
                await store.save(key, replace(stored, redirect_uri=""))
    async with AsyncExitStack() as stack:
        callback = await stack.enter_async_context(_open_callback(spec, stored))
        web = await stack.enter_async_context(oauth_web.WebClient(timeout=None))
        callback.notice = notice
        provider = Provider(spec, web, callback, show, seconds)
        provider.registration = _registered_client(spec.oauth, stored, callback)
        try:
            final = await provider.log_in(_scopes(spec.oauth, stored))
        except LoginFailedError as error:
            fresh = provider.registration is None or provider.registered_by_hand
            if fresh or provider.ended_by not in oauth.UNKNOWN_CLIENT:
                raise
            notice = f"{error.message} {REGISTERING_AGAIN}"
            return await log_in(spec, store, show, seconds=seconds, notice=notice)
    tokens = provider.context.current_tokens
    if final.status_code in UNAUTHORIZED or tokens is None:
        msg = (
            f"Server {spec.name!r} refuses the token that its authorization server gave: it "
            f"answered with HTTP status {final.status_code}."
        )
        raise LoginFailedError(msg, server=spec.name)
    record = provider.record(tokens, time.time())
    try:
        async with store.locked(key):
            place, notice = await store.save_in_keyring(key, record)
    except TokenStoreError as error:
        msg = f"The login to {spec.name!r} worked, but cannot be stored: {error}."
        raise LoginFailedError(msg, server=spec.name) from None
    end = ""
    if record.renew_at is not None and not record.refresh_token:
        end = f"It ends in {tokens.expires_in} s{oauth.explain_no_renewal(record, spec)}."
    return LoginResult(scope=record.scope, place=place, notice=notice, end=end)


async def log_out(spec: ServerSpec, store: TokenStore) -> tuple[bool, bool]:
    """Remove a login; return whether there was one, and whether its server revoked it."""
    key = key_of(spec)
    revoked = False
    try:
        async with store.locked(key):
            record = None
            with suppress(TokenStoreError):
                record = await store.load(key)
            removed = await store.remove(key)
    except TokenStoreError as error:
        msg = f"The login to {spec.name!r} cannot be removed: {error}."
        raise LoginFailedError(msg, server=spec.name) from None
    if record and record.revocation_endpoint and (record.refresh_token or record.access_token):
        data = {"token": record.refresh_token or record.access_token}
        request = oauth.client_request(record.revocation_endpoint, data, record, spec)
        with suppress(oauth_web.WebError):
            async with oauth_web.WebClient(timeout=None) as web:
                response = await oauth_web.fetch(web, request, httpx2.URL(spec.url), head_only=True)
            revoked = response.is_success
    return removed, revoked


def _check_address(spec: ServerSpec) -> None:
    """Raise LoginFailedError for a server that needs no login in a browser, or an unsafe one."""
    problem, remedy = "", ""
    if spec.transport == "stdio":
        problem = "it is a local server; there is nothing to log in to"
    elif oauth.sets_authorization(spec):
        problem = "its configuration sets the Authorization header"
        remedy = f"Take that out of {spec.source.path} to log in instead."
    else:
        try:
            server = httpx2.URL(spec.url)
            if found := oauth_web.url_problem(server, server):
                problem = f"{oauth_web.safe_url(server)} is not used for that: {found}"
        except httpx2.InvalidURL:
            problem = "its `url` is not a URL"
    if problem:
        msg = f"Cannot log in to {spec.name!r}: {problem}."
        raise LoginFailedError(msg, server=spec.name, remedy=remedy)


@asynccontextmanager
async def _open_callback(spec: ServerSpec, stored: TokenRecord | None) -> AsyncIterator[Callback]:
    hints = spec.oauth
    fixed = hints.callback_port if hints else None
    # A client with a fixed port was registered for another MCP client; those use `localhost`.
    host: Host = "localhost" if hints and hints.client_id and fixed is not None else "127.0.0.1"
    # Some authorization servers require the registered port.
    port = urlsplit(stored.redirect_uri).port if stored and fixed is None else fixed
    async with AsyncExitStack() as stack:
        try:
            callback = await stack.enter_async_context(listen(host, port or 0))
        except OSError as error:
            if fixed is not None:
                msg = f"Port {fixed}, to which the browser returns, cannot be used: "
                msg += f"{error.strerror or error}."
                raise LoginFailedError(msg, server=spec.name) from None
            callback = await stack.enter_async_context(listen())
        yield callback


def _registered_client(
    hints: OAuthHints | None, stored: TokenRecord | None, callback: Callback
) -> OAuthClientInformationFull | None:
    """Return the configured or stored client registration; None to register again."""
    if hints and hints.client_id:
        return OAuthClientInformationFull(
            client_id=hints.client_id, client_secret=hints.client_secret or None
        )
    address = stored.redirect_uri if stored and not callback.notice else ""
    if address and address != callback.redirect_uri:
        callback.notice = f"The browser returns to {callback.redirect_uri} instead of {address}."
        callback.notice += f" {REGISTERING_AGAIN}"
    if stored is None or address != callback.redirect_uri or not stored.issuer or stored.wanted:
        # Some authorization servers grant only registered scopes, and now more are needed.
        return None
    return OAuthClientInformationFull(
        client_id=stored.client_id,
        client_secret=stored.client_secret or None,
        token_endpoint_auth_method=stored.auth_method or None,
        redirect_uris=[AnyUrl(stored.redirect_uri)],
        # The SDK registers again if the server has changed its authorization server.
        issuer=stored.issuer,
    )


def _scopes(hints: OAuthHints | None, stored: TokenRecord | None) -> str:
    wanted = stored.wanted if stored else ""
    if hints and hints.scopes:
        return oauth_web.joined_scopes(*hints.scopes, wanted)
    return oauth_web.joined_scopes(stored.scope, wanted) if stored and wanted else ""
