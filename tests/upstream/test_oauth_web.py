"""The addresses and the responses of a login's requests."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import anyio
import httpx2
import pytest

from bridge.errors import ServerStartError
from bridge.upstream.oauth_login import MAX_CONNECTIONS, Callback, listen
from bridge.upstream.oauth_web import (
    MAX_SCOPE_CHARS,
    WebClient,
    WebError,
    error_name,
    explain_route,
    fetch,
    joined_scopes,
    read_tokens,
    same_origin,
    url_problem,
)
from tests.ports import reserved_port
from tests.upstream.odd_web import OddWeb
from tests.upstream.rig import Rig
from tests.waiting import PATIENCE_SECONDS

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
"""Responses with tokens, and their refresh token, lifetime in seconds, and scopes."""


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
    with pytest.raises(WebError) as caught:
        read_tokens(response)
    assert str(caught.value).startswith(f"{WHERE} {problem}")
    assert [secret for secret in ("hush", "hidden", "rt-old") if secret in str(caught.value)] == []


async def ask(callback: Callback, query: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as browser:
        return await browser.get(f"{callback.redirect_uri}?{query}")


async def raw(callback: Callback, data: bytes) -> bytes:
    async with await anyio.connect_tcp("127.0.0.1", callback.port) as stream:
        answer = b""
        with anyio.fail_after(PATIENCE_SECONDS):
            try:
                await stream.send(data)
                while True:
                    answer += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return answer


async def test_it_takes_one_answer_with_the_right_state() -> None:
    async with listen() as callback:
        callback.expect("s3cret")
        page = await ask(callback, "code=c&state=s3cret&iss=https%3A%2F%2Fas.example.test")
        answer = await callback.wait()
        second = await ask(callback, "code=d&state=s3cret")
        assert await callback.wait() is answer
    assert (answer.code, answer.issuer) == ("c", "https://as.example.test")
    assert (page.status_code, second.status_code) == (200, 410)
    assert page.headers["cache-control"] == "no-store"
    assert page.headers["referrer-policy"] == "no-referrer"
    assert "s3cret" not in page.text + repr(answer)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("code=c&state=wrong", 400),
        ("code=c", 400),
        ("code=c&state=", 400),
        ("code=c&state=s3cret&state=s3cret", 400),
        ("state=s3cret", 400),
        ("&".join(f"a{n}=1" for n in range(100)), 400),
        ("code=c&state=%ff%fe", 400),
    ],
)
async def test_anything_else_changes_nothing(query: str, status: int) -> None:
    async with listen() as callback:
        assert (await ask(callback, "code=c&state=")).status_code == 400, "before expect()"
        callback.expect("s3cret")
        assert (await ask(callback, query)).status_code == status
        assert (await ask(callback, "code=c&state=s3cret")).status_code == 200


@pytest.mark.parametrize(
    ("sent", "name"),
    [("access_denied", "access_denied"), ("%1b%5b2J&code=c", "an error without a name")],
)
async def test_an_error_is_named_on_the_page_as_text(sent: str, name: str) -> None:
    async with listen() as callback:
        callback.expect("s")
        query = f"state=s&error_description=<i>{'no' * 1000}</i>%1b[2J&error={sent}"
        page = await ask(callback, query)
        answer = await callback.wait()
    assert (answer.error, answer.code, len(answer.description)) == (name, "", 301)
    assert name in page.text
    assert "<i>" not in page.text


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        ("GET /favicon.ico HTTP/1.1\r\nHost: {host}\r\n\r\n", b"404"),
        ("POST /callback?code=c&state=s HTTP/1.1\r\nHost: {host}\r\n\r\n", b"405"),
        ("GET /callback?code=c&state=s HTTP/1.1\r\nHost: evil.example.test\r\n\r\n", b"400"),
        ("GET /callback?code=c&state=s HTTP/1.1\r\n\r\n", b"400"),
        ("GET /callback?code=c&state=s\r\n\r\n", b"400"),
        ("GET http://[/callback HTTP/1.1\r\nHost: {host}\r\n\r\n", b"404"),
        ("\x00\xff\r\n\r\n", b"400"),
    ],
)
async def test_requests_of_no_browser_are_refused(request_head: str, status: bytes) -> None:
    async with listen() as callback:
        callback.expect("s")
        head = request_head.format(host=f"127.0.0.1:{callback.port}")
        head = head.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        answer = await raw(callback, head.encode("latin-1"))
        assert answer.split(b" ")[1] == status
        assert (await ask(callback, "code=c&state=s")).status_code == 200


async def test_endless_requests_and_idle_connections_do_not_pile_up() -> None:
    async with listen() as callback:
        callback.expect("s")
        answer = await raw(callback, b"GET /callback HTTP/1.1\r\nX: " + b"x" * 32 * 1024)
        assert answer == b"" or answer.split(b" ")[1] == b"400"
        idle = [await anyio.connect_tcp("127.0.0.1", callback.port) for _ in range(MAX_CONNECTIONS)]
        assert await raw(callback, b"") == b""
        for stream in idle:
            await stream.aclose()
        assert (await ask(callback, "code=c&state=s")).status_code == 200


async def test_a_registered_localhost_is_kept() -> None:
    async with listen("localhost") as callback:
        callback.expect("s")
        assert callback.redirect_uri.startswith("http://localhost:")
        url = callback.redirect_uri.replace("localhost", "127.0.0.1")
        async with httpx2.AsyncClient() as browser:
            assert (await browser.get(f"{url}?code=c&state=s")).status_code == 200


VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
CERTIFICATES = ("NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*VARIABLES, "NO_PROXY", *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.mark.parametrize("variable", VARIABLES)
async def test_loopback_is_direct(rig: Rig, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    with reserved_port() as port, rig.web("http") as url:
        monkeypatch.setenv(variable, f"http://127.0.0.1:{port}")
        for address in (url, url.replace("127.0.0.1", "localhost")):
            async with rig.pool(rig.remote(address)) as pool:
                assert await pool.server("server").tools()


def test_an_error_names_the_proxy_and_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy.example:3128")
    monkeypatch.setenv("ALL_PROXY", "user:secret@proxy.example:3128")
    monkeypatch.setenv("NO_PROXY", "example.net")
    for host in ("localhost", "127.8.9.10", "[::1]:8000", "inside.example.net"):
        assert explain_route(httpx2.URL(f"https://{host}/mcp"), OSError()) == ""
    for scheme, variable in (("http", "HTTP_PROXY"), ("https", "ALL_PROXY")):
        said = explain_route(httpx2.URL(f"{scheme}://localhost.example.org/"), OSError())
        assert said.startswith(f" (through the proxy proxy.example:3128 of {variable}; NO_PROXY")


async def test_a_silent_proxy_is_named(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    url = httpx2.URL("https://mcp.example.test/mcp")
    with reserved_port() as port:
        monkeypatch.setenv("HTTPS_PROXY", f"http://user:secret@127.0.0.1:{port}")
        async with rig.pool(rig.remote(str(url))) as pool, WebClient(timeout=None) as client:
            with pytest.raises(ServerStartError) as caught:
                await pool.server("server").start()
            with pytest.raises(WebError, match="through the proxy .* of HTTPS_PROXY"):
                await fetch(client, client.build_request("GET", url), url)
    assert f"through the proxy 127.0.0.1:{port} of HTTPS_PROXY" in caught.value.message
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("variable", CERTIFICATES)
async def test_own_certificates(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str
) -> None:
    certificate = _certificate(tmp_path)
    web = OddWeb()
    web.certificate = certificate
    async with web.pool(rig) as pool:
        with pytest.raises(ServerStartError, match="CERTIFICATE_VERIFY_FAILED.*set NODE_EXTRA"):
            await pool.server("server").start()
        monkeypatch.setenv(variable, str(certificate))
        assert await pool.server("server").tools()


def _certificate(directory: Path) -> Path:
    """Write a self-signed certificate, and its key next to it."""
    path = directory / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=server"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-out", str(path)]
    command += ["-keyout", str(path.with_suffix(".key"))]
    subprocess.run(command, check=True, capture_output=True)
    return path
