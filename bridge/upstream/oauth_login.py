"""Logs in to a server with a user at a browser, and logs out; failures are LoginFailedErrors.

The SDK does discovery, registration, PKCE and the exchange of the code. Each of its requests goes
through `oauth_web.fetch`, which checks the address and limits time and size.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
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

from bridge import __version__
from bridge.errors import LoginFailedError
from bridge.model import OAuthHints, ServerSpec
from bridge.upstream import oauth, oauth_web
from bridge.upstream.oauth_callback import Callback, Host, listen
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
        if client is None:
            raise AssertionError
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
        secret = record.client_secret or (spec.oauth.client_secret if spec.oauth else "")
        data = {"token": record.refresh_token or record.access_token}
        request = oauth.client_request(record.revocation_endpoint, data, record, secret)
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
    if hints and hints.scopes:
        return oauth_web.joined_scopes(*hints.scopes, stored.wanted if stored else "")
    if stored and stored.wanted:
        return oauth_web.joined_scopes(stored.scope, stored.wanted)
    return ""
