"""Gives each request to a server its OAuth token, and renews the tokens; opens no browser.

The SDK's provider sends one request at a time until the response begins. It does not store when a
token expires and where it is renewed.
"""

from __future__ import annotations

import base64
import logging
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from urllib.parse import quote

import anyio
import httpx2
from mcp.shared.auth import OAuthToken

from bridge.model import ServerSpec
from bridge.upstream.oauth_web import (
    WebClient,
    WebError,
    fetch,
    joined_scopes,
    read_tokens,
    same_origin,
)
from bridge.upstream.token_store import TokenRecord, TokenStore, TokenStoreError, key_of

logger = logging.getLogger(__name__)

UNKNOWN_CLIENT = frozenset({"invalid_client", "unauthorized_client", "timed out"})
"""Errors of a lost registration. At the last one the user may see an error page."""


OnTokens = Callable[[str, Mapping[str, str]], None]  # Receives a server and its tokens.


class Logins:
    """The logins of one user. `on_tokens` receives each token before its use."""

    def __init__(self, directory: Path, *, on_tokens: OnTokens | None = None) -> None:
        self.store = TokenStore(directory)
        self._on_tokens = on_tokens

    def of(self, spec: ServerSpec) -> Login | None:
        if spec.transport == "stdio" or sets_authorization(spec):
            return None
        return Login(spec, self.store, on_tokens=self._on_tokens)


@dataclass(eq=False, repr=False)
class Login:
    """The login to one server; many tasks may use it at once."""

    spec: ServerSpec
    store: TokenStore
    _: KW_ONLY
    clock: Callable[[], float] = time.time
    on_tokens: OnTokens | None = None

    def __post_init__(self) -> None:
        self._url = httpx2.URL(self.spec.url)
        self._key = key_of(self.spec)
        self._hints = self.spec.oauth
        self._lock = anyio.Lock()
        self._record: TokenRecord | None = None
        self._loaded = False
        self._not_before = -math.inf
        self._over = False
        self.problem = ""

    @property
    def exists(self) -> bool:
        """Whether the store has a login that is valid, or that a renewal can make valid."""
        return self._record is not None and not self._over

    @property
    def _current(self) -> str:
        return self._record.access_token if self._record else ""

    async def current_token(self, url: httpx2.URL) -> str:
        """Return the token for a request to `url`, renewed if it expires soon; empty if none."""
        if not same_origin(url, self._url):
            return ""
        if not self._loaded:
            async with self._lock:
                if not self._loaded:
                    self._use(await self._load())
        record = self._record
        if record is None or not record.access_token:
            return ""
        if record.renew_at is not None and self.clock() >= record.renew_at:
            return await self.other_token(record.access_token) or record.access_token
        return record.access_token

    async def other_token(self, refused: str, *, renew: bool = True) -> str:
        """Return a token that replaces the refused one, perhaps another process's; "" for none.

        Without `renew` the token only lacks a permission.
        """
        async with self._lock:
            # Without a login there is no file to lock. The user may have logged in since.
            if not self._current or (not renew and self._current == refused):
                record = await self._load()
                if renew or (record is not None and record.access_token):
                    self._use(record)
            due = renew and self.clock() >= self._not_before
            if self._current and self._current == refused and due:
                try:
                    async with self.store.locked(self._key):
                        await self._renew(refused)
                except TokenStoreError as error:
                    self._fail(str(error))
            return "" if self._current == refused else self._current

    async def remember_scope(self, scope: str) -> None:
        """Store the scopes that the server demands and the login lacks, for the next login."""
        async with self._lock:
            record = self._record
            if record is None or not scope or joined_scopes(record.wanted, scope) == record.wanted:
                return
            with suppress(TokenStoreError):
                async with self.store.locked(self._key):
                    if (stored := await self.store.load(self._key)) is not None:
                        wanted = replace(stored, wanted=joined_scopes(stored.wanted, scope))
                        await self.store.save(self._key, wanted)
                        self._use(wanted)

    async def _load(self) -> TokenRecord | None:
        try:
            record = await self.store.load(self._key)
        except TokenStoreError as error:
            self._fail(str(error))
            return None
        own = self._hints.client_id if self._hints else ""
        if record is not None and own and own != record.client_id:
            self._fail("it was made for another client id than the configuration has now")
            return None
        return record

    def _use(self, record: TokenRecord | None) -> None:
        self._loaded = True
        self._record = record
        if record is not None and record.access_token:
            self.problem, self._over = "", False
        if record is not None and self.on_tokens is not None:
            tokens = {
                "OAuth access token": record.access_token,
                "OAuth refresh token": record.refresh_token,
                "OAuth client secret": record.client_secret,
            }
            self.on_tokens(self._key.server, {name: text for name, text in tokens.items() if text})

    def _fail(self, problem: str, *, over: bool = False) -> None:
        self.problem, self._over = problem, over
        # Hundreds of requests may come before the next attempt.
        self._not_before = self.clock() + 5.0

    async def _renew(self, refused: str) -> None:
        stored = await self._load()
        if stored is None or stored.access_token != refused:
            self._use(stored)
            return
        if not stored.refresh_token or not stored.token_endpoint:
            self._fail(f"it has expired{explain_no_renewal(stored, self.spec)}", over=True)
            return
        # Sending the request may use up the old refresh token, so the new one is stored even if
        # the caller is cancelled meanwhile. Everything in here has a timeout.
        with anyio.CancelScope(shield=True):
            try:
                data = {"grant_type": "refresh_token", "refresh_token": stored.refresh_token}
                if stored.resource:
                    data["resource"] = stored.resource
                request = client_request(stored.token_endpoint, data, stored, self.spec)
                async with WebClient(timeout=None) as client:
                    response = await fetch(client, request, self._url)
                record = with_token(stored, read_tokens(response), self.clock())
                self._use(record)
                # A server that refuses every token would cause renewals without end.
                self._not_before = self.clock() + 1.0
            except WebError as error:
                if error.name not in UNKNOWN_CLIENT | {"invalid_grant"}:
                    self._fail(f"it could not be renewed: {error}")
                    return
                record = replace(stored, access_token="", refresh_token="", renew_at=None)
                problem = f"the authorization server does not renew it any more ({error.name})"
                if error.name in UNKNOWN_CLIENT and not (self._hints and self._hints.client_id):
                    record = replace(record, redirect_uri="")
                    problem += ", and the next login registers the bridge there again"
                self._use(record)
                self._fail(problem, over=True)
            # If storing fails, this process can still use the tokens.
            try:
                await self.store.save(self._key, record)
            except TokenStoreError as error:
                logger.warning("the renewed login to %r is not stored: %s", self._key.server, error)


def sets_authorization(spec: ServerSpec) -> bool:
    authority = spec.url.partition("://")[2].partition("/")[0]
    return "@" in authority or any(name.strip().lower() == "authorization" for name in spec.headers)


def with_token(record: TokenRecord, token: OAuthToken, now: float) -> TokenRecord:
    """Return a login with new tokens; fields missing in the response are unchanged."""
    renew_at = None
    if (life := token.expires_in) is not None:
        # The margin covers slow requests and wrong clocks, but not the whole life of a token.
        renew_at = now + life - min(30.0, life * 0.25)
    return replace(
        record,
        access_token=token.access_token,
        refresh_token=token.refresh_token or record.refresh_token,
        renew_at=renew_at,
        scope=record.scope if token.scope is None else joined_scopes(token.scope),
    )


def explain_no_renewal(record: TokenRecord, spec: ServerSpec) -> str:
    """Return why a login cannot be renewed, and the remedy, as the end of a text."""
    text = ", and the authorization server gave no `refresh_token`"
    if "offline_access" not in record.scope.split():
        text += f": `offline_access` is not in its scopes ({record.scope}). Add it to them as"
        text += f" `scopes` of the login in {spec.source.path}, and log in again"
    return text


def client_request(
    url: str, data: dict[str, str], record: TokenRecord, spec: ServerSpec
) -> httpx2.Request:
    form, headers = {**data, "client_id": record.client_id}, dict[str, str]()
    secret = record.client_secret or (spec.oauth.client_secret if spec.oauth else "")
    if secret and record.auth_method == "client_secret_basic":
        pair = f"{quote(record.client_id, safe='')}:{quote(secret, safe='')}"
        headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
    elif secret and record.auth_method == "client_secret_post":
        form["client_secret"] = secret
    return httpx2.Request("POST", url, data=form, headers=headers)
