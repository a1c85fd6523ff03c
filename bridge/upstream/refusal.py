"""Reads an HTTP response with an error status: whether it asks for a login, and for which: pure.

`failure.py` turns it into an error for people.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import httpx2
from mcp_types.jsonrpc import INVALID_REQUEST

from bridge.model import ServerSpec
from bridge.upstream.oauth import Login, sets_authorization
from bridge.upstream.oauth_web import joined_scopes

UNAUTHORIZED = frozenset({401, 403})

UNKNOWN_SESSION = (INVALID_REQUEST, -32001)
"""Error codes for an unknown session; servers on the TypeScript SDK send the second."""

_SCOPES = re.compile(r"\bscope=(?:\"([^\"]{0,4096})\"|([^\s,\"]{1,256}))", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An HTTP response with an error status.

    Attributes:
        challenged: It asks for a bearer token, which is how a server asks for a login.
        insufficient_scope: The login is valid, but lacks permissions.
        scope: The permissions that it lacks, if the response names them.
        sets_authorization: The server's configuration sets the Authorization header itself.
        logged_in: There is a login to this server.
        login_problem: Why that login gave no token.
        server_failing: Over this connection the server, or a gateway in front of it, has failed or
            timed out at this request or an earlier one.
    """

    status: int
    challenged: bool = False
    insufficient_scope: bool = False
    scope: str = ""
    sets_authorization: bool = False
    logged_in: bool = False
    login_problem: str = ""
    server_failing: bool = False

    @property
    def wants_login(self) -> bool:
        """Whether it asks for a login, or for one with more permissions."""
        return self.status == httpx2.codes.UNAUTHORIZED or (
            self.status in UNAUTHORIZED and self.challenged
        )


def refusal_of(
    response: httpx2.Response, spec: ServerSpec, login: Login | None, earlier: Refusal | None = None
) -> Refusal:
    """Return a response with an error status as a `Refusal`.

    Args:
        earlier: The previous one over this connection.
    """
    status = response.status_code
    failing = status >= 500 or status == httpx2.codes.REQUEST_TIMEOUT
    challenge = response.headers.get("www-authenticate", "")
    insufficient_scope = response.status_code == httpx2.codes.FORBIDDEN and bool(
        re.search(r"\berror=\"?insufficient_scope\b", challenge, flags=re.IGNORECASE)
    )
    scopes = _SCOPES.search(challenge) if insufficient_scope else None
    return Refusal(
        status=response.status_code,
        challenged="bearer" in challenge.lower(),
        insufficient_scope=insufficient_scope,
        scope=joined_scopes(scopes[1] or scopes[2] or "") if scopes else "",
        sets_authorization=sets_authorization(spec),
        logged_in=login is not None and login.exists,
        login_problem=login.problem if login else "",
        server_failing=failing or (earlier is not None and earlier.server_failing),
    )


def says_unknown_session(body: bytes) -> bool:
    """Whether the body of a 404 within a session is a JSON-RPC error for an unknown session."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return False
    error = document.get("error") if isinstance(document, dict) else None
    return isinstance(error, dict) and error.get("code") in UNKNOWN_SESSION
