"""Logging in to servers, against a real authorization server on loopback."""

from __future__ import annotations

import json
import logging
import socket
from dataclasses import replace
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from mcp.server.auth.provider import AccessToken
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyUrl
from starlette.responses import JSONResponse, RedirectResponse, Response

from bridge.errors import LoginFailedError, LoginRequiredError, ServerStartError
from bridge.model import OAuthHints, ServerSpec, Transport
from bridge.upstream.oauth import Logins
from bridge.upstream.oauth_login import Callback, log_in, log_out
from bridge.upstream.oauth_web import MAX_DOCUMENT_BYTES
from bridge.upstream.token_store import TokenRecord
from tests.fakes.servers.guarded import guarded
from tests.upstream.login_rig import Desk, browse, do_login
from tests.upstream.rig import Rig
from tests.upstream.test_oauth_web import TOKEN_FORMS, T
from tests.waiting import PATIENCE_SECONDS

PRM = "/.well-known/oauth-protected-resource/mcp"
METADATA = "/.well-known/oauth-authorization-server"


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_login_lets_calls_through(
    rig: Rig, logins: Logins, transport: Transport, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with guarded(transport) as fake:
        spec = rig.remote(fake.url, transport)
        async with rig.pool(spec, logins=logins) as pool:
            with pytest.raises(LoginRequiredError) as caught:
                await pool.server("server").start()
            assert str(caught.value) == (
                "Server 'server' wants you to log in. "
                "Ask the user to run: mcp-code-bridge login server"
            )
            assert pool.states()["server"].state == "login required"
            done = await do_login(spec, logins)
            assert (done.scope, done.place) == ("read", "file")
            result = await pool.call_tool("server", "echo", {"a": 1})
            assert result["structuredContent"] == {"a": 1}
    assert fake.authority.counts["registered"] == 1
    # The browser, which has a code in its address, shares this process and its logs.
    hidden = [text for text in fake.authority.secrets if not text.startswith("code")]
    assert hidden
    assert [text for text in hidden if text in caplog.text] == []


async def test_a_server_of_2026_alone_asks_for_a_login(desk: Desk) -> None:
    desk.fake.modern_only = True
    async with desk.pool() as pool:
        with pytest.raises(LoginRequiredError, match="wants you to log in"):
            await pool.server("server").start()
        assert (await desk.log_in()).scope == "read"
        assert (await pool.call_tool("server", "echo", {"a": 1}))["structuredContent"] == {"a": 1}
        desk.fake.needs.append("write")
        with pytest.raises(LoginRequiredError, match="more permissions"):
            await pool.call_tool("server", "echo", {"a": 2})
        assert (await desk.log_in()).scope == "read write"
        assert (await pool.call_tool("server", "echo", {"a": 3}))["structuredContent"] == {"a": 3}


async def test_a_refused_or_abandoned_login_ends(desk: Desk) -> None:
    desk.authority.denies = True
    pages: list[str] = []

    async def refuse(url: str, callback: Callback) -> None:
        pages.append((await browse(url)).text)

    with pytest.raises(LoginFailedError, match="access_denied"):
        await desk.log_in(refuse)
    assert "access_denied" in pages[0]
    assert "<b>" not in pages[0]
    assert await desk.logins.store.load(desk.key) is None

    async def ignore(url: str, callback: Callback) -> None:
        return

    with pytest.raises(LoginFailedError, match="no user logged in within 0.05 s"):
        await log_in(desk.spec, desk.logins.store, ignore, seconds=0.05)


async def log_in_again(desk: Desk, seconds: float) -> list[str]:
    """Log in; return the reason for a new registration, for each address shown."""
    notices: list[str] = []

    async def show(url: str, callback: Callback) -> None:
        notices.append(callback.notice)
        await browse(url, callback)

    await log_in(desk.spec, desk.logins.store, show, seconds=seconds)
    return notices


async def test_only_a_taken_port_costs_a_registration(desk: Desk, record: TokenRecord) -> None:
    await desk.log_in()
    second, address = await desk.record(), record.redirect_uri
    assert desk.authority.counts["registered"] == 1
    assert second.redirect_uri == address
    assert second.access_token != record.access_token
    with socket.create_server(("127.0.0.1", urlsplit(address).port or 0)):
        (notice,) = await log_in_again(desk, PATIENCE_SECONDS)
    assert desk.authority.counts["registered"] == 2
    assert f"instead of {address}. The bridge registers again" in notice


@pytest.mark.parametrize("spoilt", ["forgotten", "invalid_client", "unauthorized_client"])
async def test_lost_registrations_are_remade(desk: Desk, record: TokenRecord, spoilt: str) -> None:
    if spoilt == "forgotten":
        desk.authority.clients.clear()
    desk.authority.errors[record.client_id] = spoilt
    by_page = spoilt == "forgotten"
    before, notice = await log_in_again(desk, 3.0 if by_page else PATIENCE_SECONDS)
    assert desk.authority.counts["registered"] == 2
    assert (await desk.record()).client_id != record.client_id
    assert before == ""
    assert ("no user logged in within 3 s" if by_page else spoilt) in notice
    assert notice.endswith(" The bridge registers again at the authorization server.")


@pytest.mark.usefixtures("record")
async def test_a_registration_refused_with_the_code_is_made_again_once(desk: Desk) -> None:
    desk.fake.replaced["/token"] = document(error="invalid_client")
    with pytest.raises(LoginFailedError, match="token answered with HTTP status 200, invalid_cli"):
        await desk.log_in()
    assert desk.authority.counts["registered"] == 2


async def test_an_interrupted_login_drops_its_registration(desk: Desk, record: TokenRecord) -> None:
    """The user may have seen an error page; the earlier login continues meanwhile."""

    async def interrupt(url: str, callback: Callback) -> None:
        scope.cancel()

    with anyio.CancelScope() as scope:
        await desk.log_in(interrupt)
    assert await desk.record() == replace(record, redirect_uri="")
    await desk.log_in()
    assert desk.authority.counts["registered"] == 2


@pytest.mark.parametrize("name", ["shop", "urn:example:shop"])
async def test_a_resource_that_is_no_url_is_sent_unchanged(desk: Desk, name: str) -> None:
    desk.fake.replaced[PRM] = resource(name, f"{desk.fake.origin}/")
    await desk.log_in()
    assert {token.resource for token in desk.authority.access.values()} == {name}
    assert (await desk.record()).resource == name


async def test_a_login_that_cannot_be_renewed_says_so(desk: Desk) -> None:
    granted = AccessToken(token=T, client_id="c", scopes=["read"], expires_at=2**33)
    desk.authority.access[T] = granted
    response, refresh, _, _ = TOKEN_FORMS[0]
    desk.fake.replaced["/token"] = Response(response.content, response.status_code)
    done = await desk.log_in()
    record = await desk.record()
    assert (record.access_token, record.refresh_token, record.scope) == (T, refresh, "read")
    assert "gave no `refresh_token`" in done.end


@pytest.mark.parametrize("method", ["client_secret_post", "client_secret_basic"])
async def test_a_client_registered_beforehand_is_used(desk: Desk, method: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
    desk.authority.clients["by-hand"] = OAuthClientInformationFull(
        client_id="by-hand",
        client_secret="hush",
        token_endpoint_auth_method=method,
        redirect_uris=[AnyUrl(f"http://localhost:{port}/callback")],
        scope="read write",
    )
    if method == "client_secret_post":
        async with httpx2.AsyncClient() as web:
            metadata = (await web.get(f"{desk.fake.origin}{METADATA}")).json()
        metadata["token_endpoint_auth_methods_supported"] = [method]
        desk.fake.replaced[METADATA] = JSONResponse(metadata)
    hints = OAuthHints(
        client_id="by-hand", client_secret="hush", scopes=("read", "write"), callback_port=port
    )
    spec = desk.rig.remote(desk.fake.url, oauth=hints)
    assert (await do_login(spec, desk.logins)).scope == "read write"
    assert desk.authority.counts["registered"] == 0
    assert "hush" not in desk.logins.store.path(desk.key).read_text()
    desk.authority.expire()
    async with desk.rig.pool(spec, logins=desk.logins) as pool:
        await pool.server("server").start()
    assert desk.authority.counts["renewed"] == 1


@pytest.mark.usefixtures("record")
async def test_a_configured_authorization_header_counts_alone(desk: Desk) -> None:
    spec = desk.rig.remote(desk.fake.url, headers={"authorization": "Bearer stale-secret"})
    async with desk.rig.pool(spec, logins=desk.logins) as pool:
        with pytest.raises(ServerStartError) as caught:
            await pool.server("server").start()
        assert pool.states()["server"].state == "failed"
    assert not isinstance(caught.value, LoginRequiredError)
    assert "refused the Authorization header of its configuration" in caught.value.message
    assert "/tmp/servers.json" in caught.value.remedy
    assert "stale-secret" not in str(caught.value)
    with pytest.raises(LoginFailedError, match="sets the Authorization header"):
        await do_login(spec, desk.logins)


@pytest.mark.usefixtures("record")
async def test_tokens_go_to_no_other_server(desk: Desk) -> None:
    with guarded() as other:
        async with desk.rig.pool(desk.rig.remote(other.url), logins=desk.logins) as pool:
            with pytest.raises(LoginRequiredError):
                await pool.server("server").start()
        assert set(other.seen) == {""}
    renamed = ServerSpec(
        name="another", transport="http", source=desk.rig.remote("").source, url=desk.fake.url
    )
    async with desk.rig.pool(renamed, logins=desk.logins) as pool:
        with pytest.raises(LoginRequiredError, match="login another"):
            await pool.server("another").start()


@pytest.mark.usefixtures("record")
async def test_tokens_do_not_follow_a_redirect(desk: Desk) -> None:
    with guarded() as other:
        desk.authority.expire()
        desk.fake.replaced["/token"] = RedirectResponse(f"{other.origin}/token", 307)
        async with desk.pool() as pool:
            with pytest.raises(ServerStartError, match="login is kept, but .* status 307"):
                await pool.server("server").start()
        del desk.fake.replaced["/token"]
        desk.fake.replaced["/mcp"] = RedirectResponse(other.url, 307)
        async with desk.pool() as pool:
            with pytest.raises(ServerStartError):
                await pool.server("server").start()
        assert other.seen == []


def document(**fields: object) -> Response:
    return Response(json.dumps(fields), media_type="application/json")


def resource(name: str, authority: str) -> Response:
    return document(resource=name, authorization_servers=[authority])


PLAIN_LOGIN = "http://login.example.test/"
ENDPOINTS = {
    "issuer": "{origin}/",
    "authorization_endpoint": "{origin}/authorize",
    "token_endpoint": "{origin}/token",
    "registration_endpoint": "{origin}/register",
}


@pytest.mark.parametrize(
    ("path", "answer", "problem"),
    [
        (PRM, Response(b" " * (MAX_DOCUMENT_BYTES + 1)), "more than"),
        (PRM, Response(b"{}", headers={"content-encoding": "gzip"}), "compressed"),
        (
            PRM,
            resource("{url}", PLAIN_LOGIN),
            "login.example.test.* is not used: it is not encrypted",
        ),
        (PRM, resource("https://other.example.test", "{origin}/"), "does not match"),
        (METADATA, {"issuer": "https://other.example.test"}, "issuer mismatch"),
        (METADATA, {"authorization_endpoint": PLAIN_LOGIN}, "login.example.test.* is not opened"),
        (METADATA, {"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ("/register", document(error="invalid_redirect_uri"), "does not register"),
        ("/token", document(access_token="a\r\nX-More: b"), "without a usable `access_token`"),
        ("/token", document(surprise="secret-surprise"), "without a usable `access_token`"),
        ("/token", Response("<b>Maintenance</b>", 503), "token answered with .* 503: <b>Mainte"),
        ("/token", document(error="invalid_request"), "status 200, invalid_request"),
        ("/mcp", Response(status_code=503), "HTTP status 503"),
    ],
)
async def test_an_error_names_the_fault_of_an_authorization_server(
    desk: Desk,
    path: str,
    answer: Response | dict[str, object],
    problem: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if isinstance(answer, dict):
        answer = document(**{**ENDPOINTS, **answer})
    body = bytes(answer.body).replace(b"{url}", desk.fake.url.encode())
    body = body.replace(b"{origin}", desk.fake.origin.encode())
    headers = {k: v for k, v in answer.headers.items() if k != "content-length"}
    desk.fake.replaced[path] = Response(body, answer.status_code, headers)
    with pytest.raises(LoginFailedError, match=problem) as caught:
        await desk.log_in()
    assert "surprise" not in str(caught.value) + caplog.text
    assert await desk.logins.store.load(desk.key) is None


async def test_a_server_without_a_login_says_so(rig: Rig, logins: Logins, desk: Desk) -> None:
    desk.fake.replaced["/register"] = Response(status_code=404)
    with pytest.raises(LoginFailedError, match="register this program") as caught:
        await desk.log_in()
    assert "did not ask" not in str(caught.value)
    assert "need none" not in caught.value.remedy
    with rig.web("http") as url, pytest.raises(LoginFailedError, match="register") as caught:
        await do_login(rig.remote(url), logins)
    assert "it did not ask for a login, and" in str(caught.value)
    assert caught.value.remedy.startswith(
        "It may need none: check with `mcp-code-bridge servers --check`"
    )
    assert "/tmp/servers.json" in caught.value.remedy


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://192.0.2.7/mcp", "not encrypted"),
        ("https://user:word@h.example.test/mcp", "Authorization header"),
        ("ftp://h.example.test/mcp", "not an http or https URL"),
    ],
)
async def test_unsafe_addresses_fail(rig: Rig, logins: Logins, url: str, problem: str) -> None:
    with pytest.raises(LoginFailedError, match=problem):
        await do_login(rig.remote(url), logins)


@pytest.mark.usefixtures("record")
async def test_a_logout_ends_the_login_on_both_sides(desk: Desk) -> None:
    assert await log_out(desk.spec, desk.logins.store) == (True, True)
    assert desk.authority.counts["revoked"] == 1
    assert await log_out(desk.spec, desk.logins.store) == (False, False)
    async with desk.pool() as pool:
        with pytest.raises(LoginRequiredError):
            await pool.server("server").start()
