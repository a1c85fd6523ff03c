"""Translates exceptions of the SDK, the HTTP client and the system into `UpstreamError`s: pure.

No other exception leaves `server.py`. The SDK reports several failures with one code, so its texts
distinguish them (mcp 2.x).
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import ssl
from collections.abc import Iterator

import httpx2
from mcp import MCPError, types

from bridge.errors import (
    BridgeError,
    LoginRequiredError,
    ServerStartError,
    ToolCallError,
    UpstreamError,
)
from bridge.model import ServerSpec
from bridge.upstream.framing import TooLarge
from bridge.upstream.oauth_web import explain_route, safe_url
from bridge.upstream.process import broken_cache
from bridge.upstream.transport import UNAUTHORIZED, Endpoint, Refusal, refusal_in

_OVERSIZE = re.compile(r"exceeded the (\d+) (byte|value) limit")

_PROTOCOL_CODES = {
    *(types.PARSE_ERROR, types.INVALID_REQUEST, types.METHOD_NOT_FOUND, types.INVALID_PARAMS),
    *(types.REQUEST_TIMEOUT, types.HEADER_MISMATCH, types.UNSUPPORTED_PROTOCOL_VERSION),
    *(types.MISSING_REQUIRED_CLIENT_CAPABILITY, types.URL_ELICITATION_REQUIRED),
}
"""Codes with a meaning of their own in the protocol."""

LIST_PREFIX = "the list of its "  # In messages. A list request cannot be made smaller.

_SDK_CLOSED = "Connection closed"


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, its causes and the members of groups, outermost first."""
    seen: set[int] = set()
    queue = [error]
    while queue:
        current = queue.pop(0)
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            queue.extend(current.exceptions)
        queue.extend(e for e in (current.__cause__, current.__context__) if e is not None)


def reason(error: BaseException) -> str:
    """Return a short reason for a failure, from the most specific of its causes."""
    plain = ""
    for cause in causes(error):
        if isinstance(cause, socket.gaierror):
            return "the host name cannot be resolved"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {cause.reason or cause}"
        if isinstance(cause, OSError) and cause.errno:
            return os.strerror(cause.errno).lower()
        if not plain and not isinstance(cause, BaseExceptionGroup):
            plain = str(cause) or type(cause).__name__
    return plain or type(error).__name__


def start_error(spec: ServerSpec, error: BaseException, endpoint: Endpoint) -> UpstreamError:
    remedy, end_report = _start_remedy(spec), endpoint.end_report()
    refused: Refusal | None = None
    for cause in causes(error):
        if isinstance(cause, UpstreamError):
            return cause
        if isinstance(cause, httpx2.HTTPStatusError):
            refused = refused or endpoint.refusal
        elif isinstance(cause, MCPError):
            refused = refused or refusal_in(cause)[0]
    if refused is not None and refused.status in UNAUTHORIZED:
        return unauthorized_error(spec, refused)
    why = reason(error)
    if refused is not None and not refused.own:
        why = f"it answered with {refused}"
    elif spec.transport == "stdio" and end_report and why == _SDK_CLOSED:
        why = "it ended before it was ready"
    if spec.transport != "stdio":
        why += explain_route(httpx2.URL(spec.url), RuntimeError(why))
        end_report = f"It is expected at {safe_url(httpx2.URL(spec.url))}. {end_report}".strip()
    text = f"Server {spec.name!r} did not start: {why}."
    if directory := broken_cache(end_report):
        text += " A package that it was started from seems to be installed incompletely."
        remedy = f"Delete the directory {directory}, and run this again. {remedy}"
    return ServerStartError(text, server=spec.name, remedy=remedy, host_detail=end_report)


def _start_remedy(spec: ServerSpec) -> str:
    if spec.transport == "stdio":
        return f"Run its command by hand to see more, and check its entry in {spec.source.path}."
    return f"Check that it is running, and its `url` in {spec.source.path}."


def start_timeout(spec: ServerSpec, seconds: float, endpoint: Endpoint) -> ServerStartError:
    remedy = (
        f"{_start_remedy(spec)} A first start may download what it starts: "
        "MCP_BRIDGE_START_TIMEOUT sets how long the bridge waits, in seconds; "
        "MCP_BRIDGE_START_PATIENCE how long package runners such as npx and uvx may take."
    )
    why = explain_route(httpx2.URL(spec.url or "http://localhost"), TimeoutError())
    text = f"Server {spec.name!r} did not start: it was not ready within {seconds:g} s{why}."
    end = endpoint.end_report()
    return ServerStartError(text, server=spec.name, remedy=remedy, host_detail=end)


def still_starting(
    spec: ServerSpec, earlier: BridgeError | None, endpoint: Endpoint
) -> ServerStartError:
    if earlier is not None:
        text = f"{earlier.message} It is being started again; run this again in a minute."
        return ServerStartError(
            text, server=spec.name, remedy=earlier.remedy, host_detail=earlier.host_detail
        )
    doing = "being installed" if endpoint.installing else "starting"
    text = f"Server {spec.name!r} is still {doing}; run this again in a minute."
    return ServerStartError(text, server=spec.name, host_detail=endpoint.end_report())


def login_at(spec: ServerSpec, address: str = "") -> LoginRequiredError:
    """Report a server that waits for its user at `address`, or has stopped waiting."""
    ask = f"open {address} and then run this again" if address else "log in when this is run again"
    text = f"Server {spec.name!r} wants its user to log in. Ask the user to {ask}."
    return LoginRequiredError(text, server=spec.name)


def lost_error(
    server: str, end_report: str, *, sent: bool = True, what: str = "the call", cause: str = ""
) -> UpstreamError:
    """Report a connection that ended during a request; `cause` and `end_report` are sentences."""
    if _OVERSIZE.search(end_report):
        return UpstreamError(
            f"Server {server!r} was disconnected: it sent more than the bridge takes.",
            server=server,
            host_detail=end_report,
            remedy="Ask it for less at a time. The next call connects again.",
            doubtful=sent,
            code="message_too_large",
        )
    effect = "Whether this one had an effect is unknown." if sent else "This one was never sent."
    end = f"went away during {what}" if sent else f"cannot be reached for {what}"
    return UpstreamError(
        f"Server {server!r} {end}. {cause}".rstrip(),
        server=server,
        host_detail=end_report,
        remedy=f"The next call connects again. {effect}",
        doubtful=sent,
        code="server_lost",
    )


def is_lost(error: MCPError) -> bool:
    return error.code == types.CONNECTION_CLOSED and error.message == _SDK_CLOSED


def call_error(spec: ServerSpec, what: str, error: MCPError) -> UpstreamError:
    """Translate the protocol error of the request `what`, as in "tool 'x'"."""
    server = spec.name
    if isinstance(error.data, TooLarge) or _OVERSIZE.search(error.message):
        return UpstreamError(
            f"Server {server!r}, {what}: {error.message}",
            server=server,
            remedy="The server has to list less, or in more pages; its other answers still arrive."
            if what.startswith(LIST_PREFIX)
            else "Ask for less at a time; the connection stays open.",
            code="message_too_large",
        )
    # Servers use this code for their own errors too. Only the SDK's texts begin so.
    if error.code == types.CONNECTION_CLOSED and error.message.startswith("SSE stream "):
        return lost_error(server, f"{error.message}.")
    refusal, data = refusal_in(error)
    if refusal is not None and not refusal.status:
        cause = f"{refusal.text}.".capitalize()
        return lost_error(server, cause, sent=refusal.sent, what=what, cause=cause)
    by_http = refusal is not None and not refusal.own
    of_tool = error.code == types.INTERNAL_ERROR or error.code not in _PROTOCOL_CODES
    # Many servers report a tool's own failure as a protocol error.
    by_tool = what.startswith("tool ") and not by_http and of_tool
    if refusal is not None and by_http:
        text = f"Server {server!r} answered {what} with {refusal}."
    elif by_tool:
        text = error.message
    elif error.code in (types.METHOD_NOT_FOUND, types.INVALID_PARAMS):
        text = f"Server {server!r} refused {what}: {error.message} (code {error.code})"
    else:
        text = f"Server {server!r}, {what}: {error.message} (code {error.code})"
    if refusal is not None:
        data = refusal.describe(data)
    # A body that is not a response, and a proxy's error about a closed or slow connection, are not
    # the server's own errors.
    doubtful = error.code in (types.PARSE_ERROR, types.REQUEST_TIMEOUT)
    doubtful |= error.code == types.CONNECTION_CLOSED and "closed" in error.message.casefold()
    return ToolCallError(
        text,
        server=server,
        rpc_code=error.code,
        data=data,
        doubtful=refusal.doubtful if refusal and by_http else doubtful,
        by_tool=by_tool,
    )


def login_command(server: str) -> str:
    name = shlex.quote(server)
    return f"mcp-code-bridge login {'-- ' if name.startswith('-') else ''}{name}"


def unauthorized_error(spec: ServerSpec, refused: Refusal) -> ServerStartError:
    """Return the error of status 401 or 403. The model sees only its message."""
    ask = f"Ask the user to run: {login_command(spec.name)}"
    entry = f"`headers` in {spec.source.path}"

    def fail(text: str, remedy: str) -> ServerStartError:
        where = f"It is expected at {safe_url(httpx2.URL(spec.url))}."
        text = f"Server {spec.name!r} {text}."
        return ServerStartError(text, server=spec.name, host_detail=where, remedy=remedy)

    if refused.sets_authorization:
        return fail(
            f"refused the Authorization header of its configuration: it answered with {refused}",
            f"Renew it in {entry}; or take it out and run: {login_command(spec.name)}",
        )
    if refused.insufficient_scope:
        more = f" ({refused.scope})" if refused.scope else ""
        text = f"Server {spec.name!r} wants you to log in with more permissions{more}. {ask}"
        return LoginRequiredError(text, server=spec.name)
    if refused.status == httpx2.codes.FORBIDDEN and not refused.challenged:
        who = "the account that is logged in" if refused.logged_in else "the bridge"
        remedy = "" if refused.logged_in else f"If it takes a token, give that in {entry}."
        return fail(f"does not let {who} do this: it answered with {refused}", remedy)
    if refused.logged_in and refused.login_problem:
        kept = f"cannot be used: its login is kept, but {refused.login_problem}"
        return fail(kept, "Run this again later.")
    wants, remedy = "wants you to log in", ""
    if not refused.challenged and not refused.logged_in:
        wants = f"wants authorization: it answered with {refused}"
        remedy = f"(If it takes a token instead, give that in {entry}, for example "
        remedy += '"Authorization": "Bearer ${TOKEN}".)'
    return LoginRequiredError(
        f"Server {spec.name!r} {wants}. {ask}",
        server=spec.name,
        host_detail=refused.login_problem and f"(There is a login, but {refused.login_problem}.)",
        remedy=remedy,
    )
