"""An MCP server behind a login, and the authorization server that it trusts, on real sockets.

Authorization is the SDK's server side: metadata, registration, PKCE, tokens, revocation. What a
person would decide on a page is decided by an attribute, and so is what goes wrong.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlencode

import uvicorn
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
)
from mcp.server.auth.routes import create_auth_routes, create_protected_resource_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.fakes.servers.toolbox import make_server, sse_app


class Authority(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    """Grants, refuses and remembers.

    Attributes:
        denies: The person at the page says no.
        lifetime: Of access tokens, in seconds.
        renews: Whether refresh tokens are honoured.
        counts: How often each thing was done.
        errors: What clients are told instead of a code, by their ids.
        secrets: Everything that must not be seen anywhere else.
    """

    def __init__(self) -> None:
        self.denies = False
        self.lifetime = 3600
        self.renews = True
        self.counts: Counter[str] = Counter()
        self.secrets: set[str] = set()
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.errors: dict[str, str] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.access: dict[str, AccessToken] = {}

    def _secret(self, kind: str) -> str:
        made = f"{kind}-{secrets.token_urlsafe(24)}"
        self.secrets.add(made)
        return made

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.counts["registered"] += 1
        self.clients[client_info.client_id] = client_info
        if client_info.client_secret:
            self.secrets.add(client_info.client_secret)

    async def authorize(
        self, client: OAuthClientInformationFull, params: AuthorizationParams
    ) -> str:
        self.counts["authorized"] += 1
        answer = {"state": params.state or ""}
        if self.denies:
            answer |= {"error": "access_denied", "error_description": "<b>not today</b>"}
        elif client.client_id in self.errors:
            answer["error"] = self.errors[client.client_id]
        else:
            code = self._secret("code")
            answer["code"] = code
            self.codes[code] = AuthorizationCode(
                code=code,
                scopes=params.scopes or [],
                expires_at=time.time() + 60,
                client_id=client.client_id,
                code_challenge=params.code_challenge,
                redirect_uri=params.redirect_uri,
                redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
                resource=params.resource,
            )
        return f"{params.redirect_uri}?{urlencode(answer)}"

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        self.counts["exchanged"] += 1
        del self.codes[authorization_code.code]
        return self._grant(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        self.counts["renewals tried"] += 1
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if not self.renews:
            raise TokenError("invalid_grant")
        self.counts["renewed"] += 1
        # Used once: who comes with the old one later gets nothing.
        del self.refresh[refresh_token.token]
        return self._grant(client, scopes, refresh_token.resource)

    def _grant(
        self, client: OAuthClientInformationFull, scopes: list[str], resource: str | None
    ) -> OAuthToken:
        access, refresh = self._secret("access"), self._secret("refresh")
        self.access[access] = AccessToken(
            token=access,
            client_id=client.client_id,
            scopes=scopes,
            expires_at=int(time.time()) + self.lifetime,
            resource=resource,
        )
        self.refresh[refresh] = RefreshToken(
            token=refresh, client_id=client.client_id, scopes=scopes, resource=resource
        )
        return OAuthToken(
            access_token=access,
            expires_in=self.lifetime,
            refresh_token=refresh,
            scope=" ".join(scopes),
        )

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return found if found and (found.expires_at or 0) > time.time() else None

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.counts["revoked"] += 1
        self.access.clear()
        self.refresh.clear()

    def expire(self) -> None:
        """End all access tokens; they can be renewed."""
        self.access.clear()

    def revoke(self) -> None:
        """End everything, as a person does on the server's own page."""
        self.access.clear()
        self.refresh.clear()


class Guarded:
    """The server and its authority.

    Attributes:
        needs: Scopes that requests need.
        replaced: Paths that are answered otherwise, such as with hostile metadata.
        seen: The Authorization headers that came, of all requests.
        modern_only: Whether a request without the headers of 2026 is refused before any login.
    """

    def __init__(self, kind: str) -> None:
        self.modern_only = False
        self.authority = Authority()
        self.kind = kind
        self.needs: list[str] = ["read"]
        self.replaced: dict[str, Response] = {}
        self.seen: list[str] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.origin = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.url = f"{self.origin}/mcp"
        self._app = self._make_app()

    def _make_app(self) -> Starlette:
        inner = sse_app() if self.kind == "sse" else make_server().streamable_http_app()
        scopes = ["read", "write"]
        routes = create_auth_routes(
            self.authority,
            AnyHttpUrl(self.origin),
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=scopes, default_scopes=scopes
            ),
            revocation_options=RevocationOptions(enabled=True),
        )
        routes += create_protected_resource_routes(
            AnyHttpUrl(self.url), [AnyHttpUrl(self.origin)], scopes_supported=["read"]
        )
        inner.router.routes[:0] = routes
        return inner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = self._app
        if scope["type"] == "http":
            self.seen.append(Request(scope).headers.get("authorization", ""))
            app = self.replaced.get(scope["path"], app)
            if app is self._app and scope["path"].startswith(("/mcp", "/messages")):
                app = await self._guard(Request(scope)) or app
        await app(scope, receive, send)

    async def _guard(self, request: Request) -> Response | None:
        """Refuse what carries no token that is good enough."""
        if self.modern_only and request.headers.get("mcp-protocol-version") != "2026-07-28":
            body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32020,"message":"No header"}}'
            return Response(body, 400, media_type="application/json")
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        found = await self.authority.load_access_token(token) if scheme == "Bearer" else None
        where = f'resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp"'
        if found is None:
            challenge = f'Bearer error="invalid_token", scope="read", {where}'
            # Such a body is what some servers send, and must not hide the status.
            body = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32001,"message":"Who?"}}'
            return self._refusal(401, challenge, body)
        if set(self.needs) - set(found.scopes):
            challenge = (
                f'Bearer error="insufficient_scope", scope="{" ".join(self.needs)}", {where}'
            )
            return self._refusal(403, challenge, b"{}")
        return None

    def _refusal(self, status: int, challenge: str, body: bytes) -> Response:
        headers = {"www-authenticate": challenge}
        return Response(body, status, headers, media_type="application/json")


@contextmanager
def guarded(kind: str = "http") -> Iterator[Guarded]:
    """Serve in a thread until the block ends."""
    fake = Guarded(kind)
    config = uvicorn.Config(fake, log_level="critical", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [fake.listener]})
    thread.start()
    try:
        yield fake
    finally:
        server.force_exit = server.should_exit = True
        thread.join()
        fake.listener.close()
