"""What a refused HTTP request says about getting in: pure.

Owns the reading of a response with an error status. The words for it are `failure.py`'s.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import httpx2
from mcp_types.jsonrpc import INVALID_REQUEST

from bridge.model import ServerSpec
from bridge.upstream.oauth import Login, own_header
from bridge.upstream.oauth_web import joined_scopes

UNAUTHORIZED = frozenset({401, 403})

UNKNOWN_SESSION = (INVALID_REQUEST, -32001)
"""Codes of the error; the latter is that of servers on the TypeScript SDK."""

_LACKING = re.compile(r"\berror=\"?insufficient_scope\b", re.IGNORECASE)
_SCOPES = re.compile(r"\bscope=(?:\"([^\"]{0,4096})\"|([^\s,\"]{1,256}))", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """A response that was an error, as far as it tells what to do about it.

    Attributes:
        challenged: It asks for a bearer token, which is how a server asks for a login.
        lacking: The login is good, and was not granted enough.
        scope: What more is wanted, if it says so.
        own_header: What it refused is the Authorization header of the server's configuration.
        logged_in: There is a login to this server.
        trouble: Why that login gave no token.
        failing: The server itself, or what is in front of it, has failed or run out of time over
            this connection, with this request or an earlier one.
    """

    status: int
    challenged: bool = False
    lacking: bool = False
    scope: str = ""
    own_header: bool = False
    logged_in: bool = False
    trouble: str = ""
    failing: bool = False

    @property
    def wants_login(self) -> bool:
        """Whether it asks for a login, or for a better one."""
        return self.status == httpx2.codes.UNAUTHORIZED or (
            self.status in UNAUTHORIZED and self.challenged
        )


def refusal_of(
    response: httpx2.Response,
    spec: ServerSpec,
    login: Login | None,
    earlier: Refusal | None = None,
) -> Refusal:
    """Return what a response with an error status says.

    Args:
        earlier: The one before it.
    """
    status = response.status_code
    failing = status >= 500 or status == httpx2.codes.REQUEST_TIMEOUT
    challenge = response.headers.get("www-authenticate", "")
    lacking = response.status_code == httpx2.codes.FORBIDDEN and bool(_LACKING.search(challenge))
    scopes = _SCOPES.search(challenge) if lacking else None
    return Refusal(
        status=response.status_code,
        challenged="bearer" in challenge.lower(),
        lacking=lacking,
        scope=joined_scopes(scopes[1] or scopes[2] or "") if scopes else "",
        own_header=own_header(spec),
        logged_in=login is not None and login.known,
        trouble=login.trouble if login else "",
        failing=failing or (earlier is not None and earlier.failing),
    )


def says_unknown_session(body: bytes) -> bool:
    """Whether the body of a 404 within a session is a JSON-RPC error that says so."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    error = said.get("error") if isinstance(said, dict) else None
    return isinstance(error, dict) and error.get("code") in UNKNOWN_SESSION
