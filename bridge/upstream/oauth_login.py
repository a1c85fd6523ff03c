"""Logging in to a server, with a person at a browser, and logging out.

Owns what goes before and after: where the browser comes back to, as whom the bridge is known to the
authorization server, and what is kept. The login itself is `oauth_course.py`'s.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx2
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl

from bridge.errors import LoginFailedError
from bridge.model import OAuthHints, ServerSpec
from bridge.upstream.oauth import own_header, revoke_request
from bridge.upstream.oauth_callback import Callback, listen
from bridge.upstream.oauth_course import Course, Show, carry_out, provider_for, quiet
from bridge.upstream.oauth_web import (
    WebError,
    fetch,
    joined_scopes,
    problem_with,
    shown,
    web_client,
)
from bridge.upstream.refusal import UNAUTHORIZED
from bridge.upstream.tokens import Place, Record, StoreError, TokenStore, key_of


@dataclass(frozen=True, kw_only=True)
class Done:
    """A login that worked.

    Attributes:
        scope: What was granted, if that is known.
        place: Where the tokens are.
        notice: Why they are not in a keyring.
    """

    scope: str
    place: Place
    notice: str = ""


async def log_in(spec: ServerSpec, store: TokenStore, show: Show, *, seconds: float) -> Done:
    """Log in to a server and keep the tokens.

    Args:
        show: Called once with the address that the user has to open in a browser.
        seconds: How long the user may take.

    Raises:
        LoginFailedError: It did not work.
    """
    server = _checked(spec)
    key = key_of(spec)
    prior = None
    with suppress(StoreError):
        prior = await store.load(key)
    async with AsyncExitStack() as stack:
        callback, again = await stack.enter_async_context(_listening(spec, prior))
        web = await stack.enter_async_context(web_client())
        course = Course(client=_known_client(spec.oauth, prior if again else None))
        provider = provider_for(spec, course, callback, show, seconds)
        with quiet():
            final = await carry_out(provider, web, server, spec, course, _scopes(spec.oauth, prior))
    if final.status_code in UNAUTHORIZED or course.tokens is None:
        msg = (
            f"Server {spec.name!r} refuses the token that its authorization server gave: it "
            f"answered with HTTP status {final.status_code}."
        )
        raise LoginFailedError(msg, server=spec.name)
    record = provider.record(course.tokens, time.time())
    try:
        async with store.locked(key):
            place, notice = await store.save_anew(key, record)
    except StoreError as error:
        msg = f"The login to {spec.name!r} worked, but cannot be kept: {error}."
        raise LoginFailedError(msg, server=spec.name) from None
    return Done(scope=record.scope, place=place, notice=notice)


async def log_out(spec: ServerSpec, store: TokenStore) -> tuple[bool, bool]:
    """Forget a login, and have the authorization server end it if it can.

    Returns:
        Whether there was one, and whether its authorization server ended it.

    Raises:
        LoginFailedError: It is still there.
    """
    key = key_of(spec)
    revoked = False
    try:
        async with store.locked(key):
            record = None
            with suppress(StoreError):
                record = await store.load(key)
            removed = await store.remove(key)
    except StoreError as error:
        msg = f"The login to {spec.name!r} cannot be removed: {error}."
        raise LoginFailedError(msg, server=spec.name) from None
    if record and record.revocation_endpoint and (record.refresh_token or record.access_token):
        secret = record.client_secret or (spec.oauth.client_secret if spec.oauth else "")
        with suppress(WebError):
            async with web_client() as web:
                request = revoke_request(record, secret)
                response = await fetch(web, request, httpx2.URL(spec.url), head_only=True)
            revoked = response.is_success
    return removed, revoked


def _checked(spec: ServerSpec) -> httpx2.URL:
    """Return the address of a server that can be logged in to.

    Raises:
        LoginFailedError: It cannot.
    """
    problem, remedy = "", ""
    server = httpx2.URL("")
    try:
        server = httpx2.URL(spec.url)
    except httpx2.InvalidURL:
        problem = "its `url` is none"
    if spec.transport == "stdio":
        problem = "it is a program on this machine, which has no login of this kind"
    elif own_header(spec):
        problem = "its configuration gives an Authorization header, which is what it is sent"
        remedy = f"Take that out of {spec.source.path} to log in instead."
    elif not problem and (found := problem_with(server, server)):
        problem = f"{shown(server)} is not used for that: {found}"
    if problem:
        msg = f"Server {spec.name!r} cannot be logged in to: {problem}."
        raise LoginFailedError(msg, server=spec.name, remedy=remedy)
    return server


@asynccontextmanager
async def _listening(
    spec: ServerSpec, prior: Record | None
) -> AsyncIterator[tuple[Callback, bool]]:
    """Listen where the client is registered to; say whether that registration can be used."""
    hints = spec.oauth
    async with AsyncExitStack() as stack:
        again = False
        if hints and hints.callback_port is not None:
            # Whoever registered a client with a fixed port did so for another client of MCP, and
            # those say `localhost`.
            where = listen("localhost" if hints.client_id else "127.0.0.1", hints.callback_port)
            try:
                callback = await stack.enter_async_context(where)
            except OSError as error:
                msg = (
                    f"Port {hints.callback_port}, where the browser is to come back to, cannot be "
                    f"used: {error.strerror or error}."
                )
                raise LoginFailedError(msg, server=spec.name) from None
            again = prior is not None and prior.redirect_uri == callback.redirect_uri
        else:
            # Some authorization servers insist on the very port that was registered.
            port = _port(prior)
            try:
                callback = await stack.enter_async_context(listen(port=port))
                again = bool(port)
            except OSError:
                callback = await stack.enter_async_context(listen())
        yield callback, again


def _port(prior: Record | None) -> int:
    try:
        return (urlsplit(prior.redirect_uri).port if prior else None) or 0
    except ValueError:
        return 0


def _known_client(
    hints: OAuthHints | None, prior: Record | None
) -> OAuthClientInformationFull | None:
    """Return the bridge as the authorization server knows it already; None to register."""
    if hints and hints.client_id:
        return OAuthClientInformationFull(
            client_id=hints.client_id, client_secret=hints.client_secret or None
        )
    if prior is None or not prior.client_id or not prior.issuer or prior.wanted:
        # A registration names scopes, and some authorization servers grant no others.
        return None
    return OAuthClientInformationFull(
        client_id=prior.client_id,
        client_secret=prior.client_secret or None,
        token_endpoint_auth_method=prior.auth_method or None,
        redirect_uris=[AnyUrl(prior.redirect_uri)],
        # The SDK registers anew where the server has another authorization server by now.
        issuer=prior.issuer,
    )


def _scopes(hints: OAuthHints | None, prior: Record | None) -> str:
    """Return what to ask for; empty for what the server names."""
    if hints and hints.scopes:
        return joined_scopes(*hints.scopes, prior.wanted if prior else "")
    if prior and prior.wanted:
        return joined_scopes(prior.scope, prior.wanted)
    return ""
