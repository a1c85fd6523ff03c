"""The interface of a transport: streams of JSON-RPC messages, and how a connection ended.

A transport answers an HTTP response with an error status, or a request without a response, with a
JSON-RPC error that carries its `Refusal`.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx2
from mcp import MCPError
from mcp.client import Transport
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth
from mcp_types.jsonrpc import INTERNAL_ERROR

from bridge.guest.schema.schemas import as_mapping
from bridge.model import Json, ServerSpec
from bridge.model import Transport as TransportName
from bridge.upstream.direct_dispatcher import DirectDispatcher
from bridge.upstream.framing import excerpt
from bridge.upstream.oauth import Login, sets_authorization
from bridge.upstream.oauth_web import joined_scopes

UNAUTHORIZED = frozenset({401, 403})

_KEY = f"mcp-code-bridge/{secrets.token_hex(16)}"  # The secret key of a `Refusal`.

_DATA = f"{_KEY}/data"  # The member that holds data other than an object.


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """An HTTP response with an error status, or the failure to get a response."""

    status: int  # 0 if there was no response.
    text: str = ""  # The beginning of the body, or why there was no response.
    retry_after: float | None = None  # Seconds.
    own: bool = False  # Whether the body is a JSON-RPC error, so the server's own answer.
    sent: bool = True  # Whether a part of the request may have been sent.
    challenged: bool = False  # Whether it asks for a bearer token, and so for a login.
    insufficient_scope: bool = False  # Whether the login is valid, but lacks permissions.
    scope: str = ""  # The permissions that it lacks, if the response names them.
    sets_authorization: bool = False
    logged_in: bool = False
    login_problem: str = ""  # Why the login gave no token.

    @property
    def wants_login(self) -> bool:
        """Whether it asks for a login, or for one with more permissions."""
        refused = self.status in UNAUTHORIZED and self.challenged
        return refused or self.status == httpx2.codes.UNAUTHORIZED

    @property
    def doubtful(self) -> bool:
        """Whether the server may have acted on the request, if a gateway answered for it."""
        failing = self.status >= 500 or self.status in (0, httpx2.codes.REQUEST_TIMEOUT)
        return self.sent and failing and not self.own

    @property
    def suspect(self) -> bool:
        """Whether it may mean that the server has lost the session."""
        about_session = self.status not in (408, 413, 429) and not self.login_problem
        return 400 <= self.status < 500 and about_session

    def __str__(self) -> str:
        """Return status and body as the end of a sentence, without a full stop."""
        phrase = f" ({HTTPStatus(self.status).phrase})" if self.status in set(HTTPStatus) else ""
        said = f"HTTP status {self.status}{phrase}{self.text and f': {self.text}'}"
        later = "" if self.retry_after is None else f". Try again after {self.retry_after:g} s"
        return said.rstrip(".") + later

    def describe(self, data: Json) -> Json:
        """Return the data of an error for programs, with the server's own data, if any."""
        if data is not None and not isinstance(data, Mapping):
            return data
        body = None if self.own else self.text
        facts = {"status": self.status, "retryAfter": self.retry_after, "body": body}
        known = {name: value for name, value in facts.items() if value is not None}
        return {**known, **(data or {})}

    def answer(self, request_id: int | str, error: Mapping[str, Json] | None = None) -> bytes:
        """Return the JSON-RPC error that answers the request; `error` is the server's own."""
        given = error or {"code": INTERNAL_ERROR, "message": f"{self}."}
        data = given.get("data")
        # The SDK reads the fields of some errors' data.
        fields = data if isinstance(data, Mapping) else {_DATA: data}
        given = {**given, "data": {**fields, _KEY: asdict(self)}}
        return json.dumps({"jsonrpc": "2.0", "id": request_id, "error": given}).encode()


def refusal_in(error: MCPError) -> tuple[Refusal | None, Json]:
    data = error.data
    if not isinstance(data, Mapping) or _KEY not in data:
        return None, data
    fields = {name: value for name, value in data.items() if name != _KEY}
    return Refusal(**data[_KEY]), fields[_DATA] if fields.keys() == {_DATA} else fields


def refusal_of(
    response: httpx2.Response, spec: ServerSpec, login: Login | None, body: bytes = b""
) -> Refusal:
    forbidden = response.status_code == httpx2.codes.FORBIDDEN
    problem = extract_field_from_www_auth(response, "error") if forbidden else None
    insufficient_scope = problem == "insufficient_scope"
    scopes = extract_scope_from_www_auth(response) if insufficient_scope else None
    return Refusal(
        status=response.status_code,
        text=excerpt(body),
        own=own_error(body) is not None,
        retry_after=_seconds(response.headers.get("retry-after", "")),
        challenged="bearer" in response.headers.get("www-authenticate", "").lower(),
        insufficient_scope=insufficient_scope,
        scope=joined_scopes(scopes or ""),
        sets_authorization=sets_authorization(spec),
        logged_in=login is not None and login.exists,
        login_problem=login.problem if login else "",
    )


def own_error(body: bytes) -> dict[str, Any] | None:
    """Return the error of a body that is a JSON-RPC error response, else None."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    error: Any = as_mapping(document).get("error")
    given = as_mapping(error)
    valid = type(given.get("code")) is int and isinstance(given.get("message"), str)
    return error if valid and "jsonrpc" in document else None


def _seconds(retry_after: str) -> float | None:
    """Return the seconds of a `Retry-After` header, which is a number or a date."""
    if re.fullmatch(r"\d{1,9}", retry_after.strip()):
        return float(retry_after)
    try:
        return max(0.0, round(parsedate_to_datetime(retry_after).timestamp() - time.time()))
    except (ValueError, OverflowError):
        return None


class Endpoint:
    """One server's address for one connection, opened again only after `fall_back`."""

    transport: TransportName
    last_heard: float = -math.inf  # Time of the server's last data, by `current_time`.
    direct: DirectDispatcher | None = None  # Over stdio; None before `open`.
    refusal: Refusal | None = None  # The last HTTP response that was an error.
    # Receives the address at which a starting server waits for its user to log in.
    on_login: Callable[[str], None] | None = None
    pid: int | None = None

    @property
    def installing(self) -> bool:
        """Whether a package runner is still installing the server."""
        return False

    @property
    def last_line(self) -> str:
        """The server process's last line on stderr; may be empty."""
        return ""

    @property
    def cause_of_end(self) -> str:
        """Why the connection ended, as sentences for programs; may be empty."""
        return ""

    def noise_since(self, begun: float) -> str:
        """Return the last line since `begun` that is not a message; may be empty."""
        return ""

    def end_report(self) -> str:
        return ""

    async def prepare(self) -> None:
        """Wait for another installation of this server, and clean up after ended bridges."""

    def open(self, until: float) -> Transport:
        """Connect before the time `until`; leaving the context closes everything."""
        raise NotImplementedError

    def finish_start(self) -> None:
        """Note that the start has succeeded or failed."""

    def fall_back(self) -> bool:
        """Change the transport if the failure suggests that; return whether it changed."""
        return False
