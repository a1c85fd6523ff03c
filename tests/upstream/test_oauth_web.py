"""Where requests of a login may go, and what is taken from their answers."""

from __future__ import annotations

import json

import httpx2
import pytest

from bridge.upstream.oauth_web import (
    MAX_SCOPE_CHARS,
    WebError,
    error_name,
    joined_scopes,
    read_tokens,
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
def test_addresses_are_checked_before_use(server: str, url: str, allowed: bool) -> None:
    assert (url_problem(httpx2.URL(url), httpx2.URL(server)) == "") is allowed


@pytest.mark.parametrize(
    ("url", "of", "same"),
    [
        ("https://h.test/other", "https://h.test/mcp", True),
        ("https://h.test:444/mcp", "https://h.test/mcp", False),
        ("https://sub.h.test/mcp", "https://h.test/mcp", False),
        ("http://h.test/mcp", "https://h.test/mcp", False),
        ("https://h.test/a", "http://h.test/a", True),
        ("https://h.test/a", "http://h.test:8080/a", False),
    ],
)
def test_tokens_stay_within_an_origin(url: str, of: str, same: bool) -> None:
    assert same_origin(httpx2.URL(url), httpx2.URL(of)) is same


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


T, R = "new-access", "new-refresh"


def answer(status: int, body: object) -> httpx2.Response:
    content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    form = {"refresh_token": "rt-old", "client_id": "c"}
    request = httpx2.Request("POST", "https://as.test/token?key=hush", data=form)
    return httpx2.Response(status, content=content, request=request)


TOKEN_FORMS: list[tuple[httpx2.Response, str, int | None, str | None]] = [
    (answer(200, {"access_token": T, "token_type": "Bearer", "expires_in": 60}), "", 60, None),
    (answer(201, {"access_token": T, "refresh_token": R, "token_type": "user"}), R, None, None),
    (answer(200, {"access_token": T, "expires_in": 59.5, "scope": ["a", "b", 1]}), "", 60, "a b"),
    (answer(200, {"access_token": T, "expires_in": "59.5", "scope": "a b"}), "", 60, "a b"),
    (answer(200, {"access_token": T, "expires_in": "soon", "scope": None}), "", None, None),
    (answer(200, {"access_token": T, "expires_in": -5, "refresh_token": None}), "", None, None),
    (answer(200, f'{{"access_token":"{T}","expires_in":1e999}}'), "", 366 * 86400, None),
    (answer(200, f'{{"access_token":"{T}","expires_in":NaN}}'), "", None, None),
    (answer(200, f"access_token={T}&refresh_token={R}&expires_in=60&scope=a"), R, 60, "a"),
    (answer(200, {"ok": True, "authed_user": {"access_token": T, "scope": "a"}}), "", None, "a"),
    (answer(200, {"access_token": T, "authed_user": {"access_token": "x"}}), "", None, None),
]
"""Responses with tokens, and the refresh token, life and scopes that they mean."""


@pytest.mark.parametrize(("response", "refresh", "life", "scope"), TOKEN_FORMS)
def test_tokens_are_read_in_every_form(
    response: httpx2.Response, refresh: str, life: int | None, scope: str | None
) -> None:
    tokens = read_tokens(response)
    assert (tokens.access_token, tokens.refresh_token or "") == (T, refresh)
    assert (tokens.expires_in, tokens.scope) == (life, scope)


WHERE = "https://as.test/token answered with HTTP status"


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (answer(200, {"ok": False, "error": "bad_code"}), "200, bad_code, without a usable `acc"),
        (answer(200, {"id_token": "hidden"}), "200, without a usable `access_token`"),
        (answer(200, {"access_token": "a\nb"}), "200, without a usable `access_token`"),
        (answer(200, "error=bad&hidden=1"), "200, without a usable `access_token`"),
        (answer(200, '{"access_token": "hidden"'), "200"),
        (answer(200, "<h1>Sign in\n to the hotel</h1>"), "200: <h1>Sign in to the"),
        (answer(204, ""), "204 and an empty body"),
        (answer(302, {"access_token": "x"}), "302: {"),
        (answer(403, "<html>Forbidden by proxy</html>"), "403: <html>Forbidden by"),
        (answer(400, {"error": "invalid_request"}), '400: {"error": "invalid_request"}'),
        (answer(500, f"Traceback: {'Ab1' * 9} and rt-old\x1b[2J"), "500: Traceback: … and … [2J"),
        (answer(502, "x" * 100_000), f"502: {'x' * 300}…"),
        (answer(200, "[" * 100_000), "200: [[["),
    ],
)
def test_a_response_without_tokens_is_described(response: httpx2.Response, problem: str) -> None:
    """By its address, its status and what it lacks or how it begins, and by no secret."""
    with pytest.raises(WebError) as caught:
        read_tokens(response)
    assert str(caught.value).startswith(f"{WHERE} {problem}")
    assert [secret for secret in ("hush", "hidden", "rt-old") if secret in str(caught.value)] == []
