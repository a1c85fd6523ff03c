"""Foreign exceptions in the bridge's own words."""

from __future__ import annotations

import errno
import socket

import httpx2
import pytest
from mcp import MCPError

from bridge.errors import MessageTooLargeError, ServerLostError, ServerStartError, ToolCallError
from bridge.model import ServerSpec, Source
from bridge.upstream.failure import call_error, is_lost, lost_error, reason, start_error
from bridge.upstream.http import may_follow

SPEC = ServerSpec(
    name="s",
    transport="http",
    source=Source(client="c", scope="user", path="/f.json", key="k"),
    url="https://u:p@example.test/mcp?k=v",
)


def test_a_reason_is_found_behind_groups_and_causes() -> None:
    """The outermost exception is seldom the telling one."""
    refused = OSError("all attempts failed")
    refused.__cause__ = ExceptionGroup("", [OSError(errno.ECONNREFUSED, "no")])
    assert reason(ExceptionGroup("", [httpx2.ConnectError("x"), refused])) == "connection refused"
    error = httpx2.ConnectError("x")
    error.__context__ = socket.gaierror(-2, "unknown")
    assert "cannot be resolved" in reason(error)
    assert reason(ExceptionGroup("", [ValueError("what it said")])) == "what it said"
    assert reason(ValueError()) == "ValueError"


def test_a_start_error_shows_no_secret_of_the_url() -> None:
    """Neither the user's part nor the query."""
    error = start_error(SPEC, OSError(errno.EHOSTUNREACH, ""), account="", refusal=None, remedy="r")
    assert isinstance(error, ServerStartError)
    assert "no route to host" in error.message
    assert "https://example.test/mcp" in error.host_detail
    assert "k=v" not in str(error)
    assert "u:p" not in str(error)


def test_one_of_our_own_errors_passes_a_start_as_it_is() -> None:
    """It already says all there is."""
    own = ServerStartError("m", server="s")
    wrapped = ExceptionGroup("", [own])
    assert start_error(SPEC, wrapped, account="", refusal=None, remedy="") is own


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("SSE stream failed: Server-sent event exceeded the 5 byte limit.", MessageTooLargeError),
        ("SSE stream ended without a response", ServerLostError),
        ("Connection closed by my database", ToolCallError),
    ],
)
def test_the_code_for_a_closed_connection_is_read_with_its_text(
    message: str, kind: type[Exception]
) -> None:
    """Servers use that code for faults of their own."""
    error = MCPError(-32000, message)
    assert not is_lost(error)
    assert isinstance(call_error(SPEC, "tool 'x'", error, refusal=None), kind)


def test_a_lost_connection_says_that_the_effect_is_unknown() -> None:
    """A retry may repeat a write."""
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
def test_redirects_are_followed_only_where_the_headers_belong(
    sent: tuple[str, str], following: tuple[str, str], followed: bool
) -> None:
    """Headers often hold a secret, and a post that became a get has lost its message."""
    assert may_follow(httpx2.Request(*sent), httpx2.Request(*following)) is followed
