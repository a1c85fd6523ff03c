"""Foreign exceptions in the bridge's own words."""

from __future__ import annotations

import errno
import json
import socket
from dataclasses import replace

import httpx2
import pytest
from mcp import MCPError
from mcp.shared._httpx_utils import next_request_within_origin

from bridge.errors import LoginRequiredError, ServerStartError, ToolCallError
from bridge.model import ServerSpec, Source
from bridge.upstream.failure import (
    call_error,
    is_lost,
    login_command,
    lost_error,
    reason,
    start_error,
    unauthorized_error,
)
from bridge.upstream.transport import Endpoint, Refusal, refusal_of

SPEC = ServerSpec(
    name="s",
    transport="http",
    source=Source(client="c", scope="user", path="/f.json", key="k"),
    url="https://u:p@example.test/mcp?k=v",
)


def test_a_reason_is_found_behind_groups_and_causes() -> None:
    refused = OSError("all attempts failed")
    refused.__cause__ = ExceptionGroup("", [OSError(errno.ECONNREFUSED, "no")])
    assert reason(ExceptionGroup("", [httpx2.ConnectError("x"), refused])) == "connection refused"
    error = httpx2.ConnectError("x")
    error.__context__ = socket.gaierror(-2, "unknown")
    assert "cannot be resolved" in reason(error)
    assert reason(ExceptionGroup("", [ValueError("what it said")])) == "what it said"
    assert reason(ValueError()) == "ValueError"


def test_a_start_error_shows_no_secret_of_the_url() -> None:
    error = start_error(SPEC, OSError(errno.EHOSTUNREACH, ""), Endpoint())
    assert isinstance(error, ServerStartError)
    assert "no route to host" in error.message
    assert "https://example.test/mcp" in error.host_detail
    assert "k=v" not in str(error)
    assert "u:p" not in str(error)
    own = ServerStartError("m", server="s")
    assert start_error(SPEC, ExceptionGroup("", [own]), Endpoint()) is own


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ("SSE stream failed: Server-sent event exceeded the 5 byte limit.", "message_too_large"),
        ("SSE stream ended without a response", "server_lost"),
        ("Connection closed by my database", "tool_call_refused"),
    ],
)
def test_a_closed_connection_is_recognized_by_its_text(message: str, code: str) -> None:
    error = MCPError(-32000, message)
    assert not is_lost(error)
    assert call_error(SPEC, "tool 'x'", error).code == code
    assert "unknown" in lost_error("s", "It exited with status 1.").remedy


@pytest.mark.parametrize(
    ("sent", "following", "followed"),
    [
        (("POST", "http://h/a"), ("POST", "http://h/a/"), True),
        (("POST", "http://h/a"), ("POST", "https://h/a"), True),
        (("POST", "http://h:81/a"), ("POST", "https://h/a"), False),
        (("POST", "https://h/a"), ("POST", "http://h/a"), False),
        (("POST", "http://h/a"), ("GET", "http://h/a/"), False),
        (("GET", "http://h/a"), ("GET", "http://other/a"), False),
        (("GET", "http://h/a"), ("GET", "http://x:y@h/a"), False),
    ],
)
def test_redirect_origin(sent: tuple[str, str], following: tuple[str, str], followed: bool) -> None:
    """Headers often hold a secret, and a post that became a get has lost its message."""
    response = httpx2.Response(307, request=httpx2.Request(*sent))
    response.next_request = httpx2.Request(*following)
    assert (next_request_within_origin(response) is not None) is followed


PLAIN = replace(SPEC, url="https://example.test/mcp")


def refusal_with(status: int, challenge: str = "") -> Refusal:
    headers = {"www-authenticate": challenge} if challenge else {}
    return refusal_of(httpx2.Response(status, headers=headers), PLAIN, None)


@pytest.mark.parametrize(
    ("refusal", "login", "message"),
    [
        (refusal_with(401, 'Bearer realm="x"'), True, "wants you to log in. Ask the user to run"),
        (
            refusal_with(401),
            True,
            "HTTP status 401 (Unauthorized). Ask the user to run: mcp-code-bridge login s",
        ),
        (refusal_with(401, "Basic"), True, "wants authorization"),
        (refusal_with(403), False, "does not let the bridge do this"),
        (Refusal(status=403, logged_in=True), False, "does not let the account that is logged in"),
        (Refusal(status=401, sets_authorization=True), False, "refused the Authorization header"),
        (
            refusal_with(403, 'Bearer error="insufficient_scope", scope="a \x1b[2J b"'),
            True,
            "more permissions (a b). Ask",
        ),
        (refusal_with(403, "Bearer error=insufficient_scope"), True, "with more permissions. Ask"),
    ],
)
def test_a_refusal_tells_programs_what_to_do(refusal: Refusal, login: bool, message: str) -> None:
    answered = json.loads(refusal.answer(1))["error"]
    error = MCPError(answered["code"], answered["message"], answered["data"])
    for found in (start_error(PLAIN, error, Endpoint()), unauthorized_error(PLAIN, refusal)):
        assert isinstance(found, LoginRequiredError) is login
        assert isinstance(found, ServerStartError)
        assert message in found.message
        assert "/f.json" not in found.message
        assert ("mcp-code-bridge login s" in found.message) is login
    # Users paste the command into a shell.
    assert login_command("git hub;") == "mcp-code-bridge login 'git hub;'"
    assert login_command("-x") == "mcp-code-bridge login -- -x"


@pytest.mark.parametrize(
    ("code", "what", "message", "by_tool"),
    [
        (-32603, "tool 'x'", "fetch failed", True),
        (-32000, "tool 'x'", "fetch failed", True),
        (404, "tool 'x'", "fetch failed", True),
        (-32601, "tool 'x'", "Server 's' refused tool 'x': fetch failed (code -32601)", False),
        (-32602, "tool 'x'", "Server 's' refused tool 'x': fetch failed (code -32602)", False),
        (-32001, "tool 'x'", "Server 's', tool 'x': fetch failed (code -32001)", False),
        (-32603, "the list of its tools", "Server 's', the list of its tools: fetch failed", False),
        (-32002, "resource 'a:b'", "Server 's', resource 'a:b': fetch failed", False),
    ],
)
def test_a_servers_error_is_the_tools(code: int, what: str, message: str, by_tool: bool) -> None:
    failure = call_error(SPEC, what, MCPError(code=code, message="fetch failed"))
    assert isinstance(failure, ToolCallError)
    assert failure.message.startswith(message)
    assert failure.by_tool is by_tool
