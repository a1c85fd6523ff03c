"""Logs in to a server, with a person at a browser, and logs out; failures are LoginFailedErrors.

The SDK does the discovery, the registration, PKCE and the exchange of the code; each of its
requests goes through `oauth_web.fetch`, which checks the address and bounds time and size.
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
from bridge.upstream.oauth import (
    UNKNOWN_CLIENT,
    client_request,
    explain_no_renewal,
    sets_authorization,
    with_token,
)
from bridge.upstream.oauth_callback import Callback, Host, listen
from bridge.upstream.oauth_web import (
    WebClient,
    WebError,
    describe_response,
    fetch,
    joined_scopes,
    read_document,
    read_tokens,
    safe_url,
    shorten,
    url_problem,
)
from bridge.upstream.refusal import UNAUTHORIZED
from bridge.upstream.token_store import Place, TokenRecord, TokenStore, TokenStoreError, key_of

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
"""Requests, with their headers, to which a server responds that a login is needed: one of the
protocol since 2026-07-28, one of the older protocol. Neither opens a session."""

ShowAddress = Callable[[str, Callback], Awaitable[None]]
"""Shows a person the address to open in a browser."""


class Provider(OAuthClientProvider):
    """One login: the SDK's provider, which is its own storage and starts without tokens.

    Attributes:
        registered_by_hand: The configuration has the registration.
        challenged: The server refused a request without a token.
        resource: The server's identifier if it is no URL; sent to the authorization server.
        last: The last response, as a text.
        ended_by: The name of the error that ended the login.
    """

    registration: OAuthClientInformationFull | None = None
    registered_by_hand = challenged = False
    redirect_uri = resource = last = ended_by = ""

    async def get_tokens(self) -> None:
        """Return none: stored ones were refused or are to be replaced."""

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Leave them to `record`."""

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.registration

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Leave it to `record`."""

    async def _exchange_token_authorization_code(self, auth_code: str, code_verifier: str) -> Any:
        client, metadata = self.context.client_info, self.context.oauth_metadata
        if self.registered_by_hand and client is not None and client.client_secret:
            methods = metadata.token_endpoint_auth_methods_supported if metadata else None
            # By the specification `client_secret_basic` is the default.
            post = methods is not None and "client_secret_basic" not in methods
            client.token_endpoint_auth_method = (
                "client_secret_post" if post else "client_secret_basic"
            )
        return await super()._exchange_token_authorization_code(auth_code, code_verifier)

    async def _handle_token_response(self, response: httpx2.Response) -> None:
        tokens = read_tokens(response).model_dump_json()
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
            # A secret of the configuration stays there: a copy could become outdated.
            client_secret="" if self.registered_by_hand else client.client_secret or "",
            auth_method=client.token_endpoint_auth_method or "",
            redirect_uri=self.redirect_uri,
        )
        return with_token(empty, tokens, now)


def provider_for(
    spec: ServerSpec, callback: Callback, show: ShowAddress, seconds: float
) -> Provider:
    async def open_browser(url: str) -> None:
        address = httpx2.URL(url)
        if problem := url_problem(address, httpx2.URL(spec.url)):
            raise WebError(f"{safe_url(address)} is not opened: {problem}")
        metadata = provider.context.oauth_metadata
        methods = metadata.code_challenge_methods_supported if metadata else None
        if methods is not None and "S256" not in methods:
            raise WebError("the authorization server does not do PKCE with S256")
        callback.expect(parse_qs(urlsplit(url).query)["state"][0])
        await show(url, callback)

    async def await_callback() -> AuthorizationCodeResult:
        with anyio.move_on_after(seconds):
            response = await callback.wait()
            if response.error:
                msg = f"the authorization server said: {response.error}. {response.description}"
                raise WebError(msg.strip(), response.error)
            return AuthorizationCodeResult(
                code=response.code, state=response.state, iss=response.issuer
            )
        raise WebError(f"no user logged in within {seconds:g} s", "timed out")

    provider = Provider(
        str(httpx2.URL(spec.url).copy_with(query=None, fragment=None)),
        OAuthClientMetadata(client_name=CLIENT_NAME, redirect_uris=[AnyUrl(callback.redirect_uri)]),
        cast("Any", None),
        redirect_handler=open_browser,
        callback_handler=await_callback,
    )
    context, known = provider.context, provider.context.get_resource_url
    context.storage = provider
    context.get_resource_url = lambda: provider.resource or known()  # type: ignore[method-assign]
    provider.redirect_uri = callback.redirect_uri
    provider.registered_by_hand = bool(spec.oauth and spec.oauth.client_id)
    return provider


async def run_login(
    provider: Provider,
    web: httpx2.AsyncClient,
    server: httpx2.URL,
    spec: ServerSpec,
    scopes: str,
) -> httpx2.Response:
    """Log in through the SDK; return the server's response to the request with the token."""
    remedy = ""
    try:
        probe, refused = await _probe(spec, web, server)
        provider.challenged = refused.status_code in UNAUTHORIZED
        response = _challenge(refused, scopes)
        async with aclosing(provider.async_auth_flow(probe)) as flow:
            # The SDK's first request has no token and would be refused like the probe: not sent.
            await anext(flow)
            with suppress(StopAsyncIteration):
                while True:
                    request = await flow.asend(response)
                    is_probe = request is probe
                    response = await fetch(web, request, server, head_only=is_probe)
                    if not is_probe:
                        provider.last = describe_response(response)
                        response = _accept_resource(response, server, provider)
            return response
    except WebError as error:
        text, provider.ended_by = str(error), error.name
    except OAuthRegistrationError:
        text = f"the authorization server does not register this program: {provider.last}"
        remedy = (
            "If it needs a client that was registered beforehand, or a token, give that in "
            f"{spec.source.path}."
        )
        if not provider.challenged:
            text = f"it did not ask for a login, and {text}"
            remedy = f"It may need none: check with `mcp-code-bridge servers --check`. {remedy}"
    except OAuthFlowError as error:
        text = shorten(str(error))
    except (ValidationError, ValueError, UnicodeError):
        # The texts of these errors quote the response.
        text = f"the authorization server's response is not valid: {provider.last}"
    msg = f"Logging in to server {spec.name!r} did not work: {text.rstrip('.')}."
    raise LoginFailedError(msg, server=spec.name, remedy=remedy)


async def _probe(
    spec: ServerSpec, web: httpx2.AsyncClient, server: httpx2.URL
) -> tuple[httpx2.Request, httpx2.Response]:
    """Return a request that the server refuses without a login, else the last, and its response."""
    if spec.transport == "sse":
        accept = {**spec.headers, "accept": "text/event-stream"}
        requests = [web.build_request("GET", spec.url, headers=accept)]
    else:
        accept = {**spec.headers, "accept": "application/json, text/event-stream"}
        requests = [
            web.build_request("POST", spec.url, headers={**accept, **headers}, json=body)
            for body, headers in _PROBES
        ]
    request, *others = requests
    response = await fetch(web, request, server, head_only=True)
    if response.status_code not in UNAUTHORIZED and others:
        (request,) = others
        response = await fetch(web, request, server, head_only=True)
    if response.is_server_error:
        raise WebError(f"it answered with HTTP status {response.status_code}")
    return request, response


def _accept_resource(
    response: httpx2.Response, server: httpx2.URL, provider: Provider
) -> httpx2.Response:
    """Return metadata as the SDK takes it: with a URL as `resource`; another one is remembered."""
    document = read_document(response)
    if not isinstance(document, dict) or "authorization_servers" not in document:
        return response
    resource = document.get("resource")
    if not isinstance(resource, str) or resource.lower().startswith(("http:", "https:")):
        return response
    provider.resource = resource
    return httpx2.Response(response.status_code, json={**document, "resource": str(server)})


def _challenge(response: httpx2.Response, scopes: str) -> httpx2.Response:
    """Return a 401 response with which the SDK starts a login, for `scopes` if any are given.

    Some servers accept requests without a login until a call needs one; the SDK starts only at a
    refusal, and takes the scopes from it.
    """
    parts = []
    if response.status_code in UNAUTHORIZED:
        where = extract_resource_metadata_from_www_auth(response) or ""
        if where and '"' not in where:
            parts.append(f'resource_metadata="{where}"')
        scopes = scopes or joined_scopes(extract_scope_from_www_auth(response) or "")
    if scopes:
        parts.append(f'scope="{scopes}"')
    return httpx2.Response(
        401, headers={"www-authenticate": f"Bearer {', '.join(parts)}"}, request=response.request
    )


@dataclass(frozen=True, kw_only=True)
class LoginResult:
    """A successful login.

    Attributes:
        notice: Why the tokens are not in a keyring.
        end: Why the login cannot be renewed, and what to do about it; empty if it can.
    """

    scope: str
    place: Place
    notice: str = ""
    end: str = ""


async def log_in(
    spec: ServerSpec, store: TokenStore, show: ShowAddress, *, seconds: float, notice: str = ""
) -> LoginResult:
    """Log in to a server and store the tokens.

    An authorization server may have forgotten a stored registration, and show the user an error
    instead of returning. So if it refuses the registration or no one logs in, the login starts
    once more with a new one.

    Args:
        seconds: How long the user may take for one address.
        notice: Why a stored registration is not used.
    """
    server, key, stored = _login_url(spec), key_of(spec), None
    with suppress(TokenStoreError):
        async with store.locked(key):
            if stored := await store.load(key):
                # Only a login that succeeds lets the next one use the registration.
                await store.save(key, replace(stored, redirect_uri=""))
    async with AsyncExitStack() as stack:
        callback = await stack.enter_async_context(_open_callback(spec, stored))
        web = await stack.enter_async_context(WebClient(timeout=None))
        callback.notice = notice
        provider = provider_for(spec, callback, show, seconds)
        provider.registration = _registered_client(spec.oauth, stored, callback)
        try:
            final = await run_login(provider, web, server, spec, _scopes(spec.oauth, stored))
        except LoginFailedError as error:
            fresh = provider.registration is None or provider.registered_by_hand
            if fresh or provider.ended_by not in UNKNOWN_CLIENT:
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
        end = f"It ends in {tokens.expires_in} s{explain_no_renewal(record, spec)}."
    return LoginResult(scope=record.scope, place=place, notice=notice, end=end)


async def log_out(spec: ServerSpec, store: TokenStore) -> tuple[bool, bool]:
    """Remove a login, and revoke it at the authorization server if that is possible.

    Returns:
        Whether there was a login, and whether its authorization server revoked it.
    """
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
        request = client_request(record.revocation_endpoint, data, record, secret)
        with suppress(WebError):
            async with WebClient(timeout=None) as web:
                response = await fetch(web, request, httpx2.URL(spec.url), head_only=True)
            revoked = response.is_success
    return removed, revoked


def _login_url(spec: ServerSpec) -> httpx2.URL:
    problem, remedy = "", ""
    server = httpx2.URL("")
    try:
        server = httpx2.URL(spec.url)
    except httpx2.InvalidURL:
        problem = "its `url` is not a URL"
    if spec.transport == "stdio":
        message = f"{spec.name!r} is a local server; there is nothing to log in to."
        raise LoginFailedError(message, server=spec.name)
    if sets_authorization(spec):
        problem = "its configuration sets the Authorization header"
        remedy = f"Take that out of {spec.source.path} to log in instead."
    elif not problem and (found := url_problem(server, server)):
        problem = f"{safe_url(server)} is not used for that: {found}"
    if problem:
        msg = f"Cannot log in to {spec.name!r}: {problem}."
        raise LoginFailedError(msg, server=spec.name, remedy=remedy)
    return server


@asynccontextmanager
async def _open_callback(spec: ServerSpec, stored: TokenRecord | None) -> AsyncIterator[Callback]:
    """Listen at the registered redirect address if that is free, or else at another one."""
    hints = spec.oauth
    fixed = hints.callback_port if hints else None
    # A client with a fixed port was registered for another MCP client, and those use `localhost`.
    host: Host = "localhost" if hints and hints.client_id and fixed is not None else "127.0.0.1"
    # Some authorization servers insist on the very port that was registered.
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
    """Return the bridge's client registration, configured or stored; None to register again."""
    if hints and hints.client_id:
        return OAuthClientInformationFull(
            client_id=hints.client_id, client_secret=hints.client_secret or None
        )
    address = stored.redirect_uri if stored and not callback.notice else ""
    if address and address != callback.redirect_uri:
        callback.notice = f"The browser returns to {callback.redirect_uri} instead of {address}."
        callback.notice += f" {REGISTERING_AGAIN}"
    if stored is None or address != callback.redirect_uri or not stored.issuer or stored.wanted:
        # More scopes are wanted: some authorization servers grant only registered scopes.
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
    """Return the scopes to request; empty to request those that the server names."""
    if hints and hints.scopes:
        return joined_scopes(*hints.scopes, stored.wanted if stored else "")
    if stored and stored.wanted:
        return joined_scopes(stored.scope, stored.wanted)
    return ""
