"""The listener that the browser comes back to: what it takes, and what it lets no one do."""

from __future__ import annotations

import anyio
import httpx2
import pytest

from bridge.upstream.oauth_callback import MAX_CONNECTIONS, Callback, listen
from tests.waiting import PATIENCE_SECONDS


async def ask(callback: Callback, query: str) -> httpx2.Response:
    async with httpx2.AsyncClient() as browser:
        return await browser.get(f"{callback.redirect_uri}?{query}")


async def raw(callback: Callback, data: bytes) -> bytes:
    """Send bytes and return all that comes back."""
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
    """And shows a page that neither is kept nor tells where it was."""
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
        callback.expect("s3cret")
        assert (await ask(callback, query)).status_code == status
        assert (await ask(callback, "code=c&state=s3cret")).status_code == 200


async def test_nothing_is_taken_before_it_is_known_what_to_expect() -> None:
    async with listen() as callback:
        assert (await ask(callback, "code=c&state=")).status_code == 400


async def test_an_error_is_named_on_the_page_as_text() -> None:
    async with listen() as callback:
        callback.expect("s")
        query = f"state=s&error=access_denied&error_description=<i>{'no' * 1000}</i>%1b[2J"
        page = await ask(callback, query)
        answer = await callback.wait()
    assert (answer.error, answer.code, len(answer.description)) == ("access_denied", "", 301)
    assert "access_denied" in page.text
    assert "<i>" not in page.text


async def test_an_error_without_a_proper_name_has_none() -> None:
    async with listen() as callback:
        callback.expect("s")
        await ask(callback, "state=s&error=%1b%5b2J&code=c")
        assert (await callback.wait()).error == "an error without a name"


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
    """Such as those of a page whose host name was made to lead here."""
    async with listen() as callback:
        callback.expect("s")
        head = request_head.format(host=f"127.0.0.1:{callback.port}")
        head = head.replace("\r\n\r\n", "\r\nConnection: close\r\n\r\n")
        answer = await raw(callback, head.encode("latin-1"))
        assert answer.split(b" ")[1] == status
        assert (await ask(callback, "code=c&state=s")).status_code == 200


async def test_a_request_without_an_end_is_dropped() -> None:
    async with listen() as callback:
        answer = await raw(callback, b"GET /callback HTTP/1.1\r\nX: " + b"x" * 32 * 1024)
        assert answer == b"" or answer.split(b" ")[1] == b"400"


async def test_idle_connections_do_not_pile_up() -> None:
    """Beyond a number the next is closed at once, until one of them goes."""
    async with listen() as callback:
        callback.expect("s")
        idle = [await anyio.connect_tcp("127.0.0.1", callback.port) for _ in range(MAX_CONNECTIONS)]
        assert await raw(callback, b"") == b""
        for stream in idle:
            await stream.aclose()
        assert (await ask(callback, "code=c&state=s")).status_code == 200


async def test_it_says_localhost_to_those_who_registered_that() -> None:
    async with listen("localhost") as callback:
        callback.expect("s")
        assert callback.redirect_uri.startswith("http://localhost:")
        url = callback.redirect_uri.replace("localhost", "127.0.0.1")
        async with httpx2.AsyncClient() as browser:
            assert (await browser.get(f"{url}?code=c&state=s")).status_code == 200
