"""Where requests of a login may go, and what is taken from their answers."""

from __future__ import annotations

import httpx2
import pytest

from bridge.upstream.oauth_web import (
    MAX_SCOPE_CHARS,
    error_name,
    joined_scopes,
    same_origin,
    url_problem,
)

AWAY = "https://mcp.example.test/mcp"
HERE = "http://127.0.0.1:8000/mcp"


@pytest.mark.parametrize(
    ("server", "url", "allowed"),
    [
        (AWAY, "https://login.other.test/token", True),
        (AWAY, "https://10.1.2.3/token", True),
        (AWAY, "http://login.other.test/token", False),
        (AWAY, "http://127.0.0.1/token", False),
        (AWAY, "https://127.0.0.1/token", False),
        (AWAY, "https://[::1]/token", False),
        (AWAY, "https://[::ffff:127.0.0.1]/token", False),
        (AWAY, "https://127.1/token", False),
        (AWAY, "https://2130706433/token", False),
        (AWAY, "https://0x7f000001/token", False),
        (AWAY, "https://169.254.169.254/latest", False),
        (AWAY, "https://0.0.0.0/token", False),
        (AWAY, "https://localhost/token", False),
        (AWAY, "https://a.localhost./token", False),
        (AWAY, "https://u:p@login.other.test/token", False),
        (AWAY, "ftp://login.other.test/token", False),
        (AWAY, "file:///etc/passwd", False),
        (HERE, "http://localhost:9000/token", True),
        (HERE, "http://[::1]:9000/token", True),
        (HERE, "https://login.other.test/token", True),
        (HERE, "http://login.other.test/token", False),
    ],
)
def test_addresses_are_checked_before_anything_goes_there(
    server: str, url: str, allowed: bool
) -> None:
    """They come from the server, which may mean harm."""
    assert (url_problem(httpx2.URL(url), httpx2.URL(server)) == "") is allowed


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("https://h.test/other", True),
        ("https://h.test:444/mcp", False),
        ("https://sub.h.test/mcp", False),
        ("http://h.test/mcp", False),
    ],
)
def test_tokens_stay_within_an_origin(url: str, same: bool) -> None:
    """Whatever the path."""
    assert same_origin(httpx2.URL(url), httpx2.URL("https://h.test/mcp")) is same


def test_an_origin_may_become_encrypted() -> None:
    """And not the reverse."""
    assert same_origin(httpx2.URL("https://h.test/a"), httpx2.URL("http://h.test/a"))
    assert not same_origin(httpx2.URL("https://h.test/a"), httpx2.URL("http://h.test:8080/a"))


def test_scopes_are_joined_once_each_and_bounded() -> None:
    """What cannot be one is left out: it may be made to be pasted into a terminal."""
    assert joined_scopes("a b", "b c") == "a b c"
    assert joined_scopes('a "b" \x1b[2J c\\d é') == "a"
    assert len(joined_scopes(" ".join(f"scope{n}" for n in range(10_000)))) <= MAX_SCOPE_CHARS


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"error":"invalid_grant"}', "invalid_grant"),
        (b'{"error":"<script>"}', ""),
        (b'{"error":["x"]}', ""),
        (b"[" * 100_000, ""),
        (b"not json", ""),
        (b"[]", ""),
    ],
)
def test_an_error_is_shown_only_if_it_can_be_one(body: bytes, name: str) -> None:
    """The rest of the answer may be anything, and may hold a token."""
    assert error_name(httpx2.Response(400, content=body)) == name
