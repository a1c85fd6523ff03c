"""A server that has lost a session is found out however it says so."""

from __future__ import annotations

import anyio
import pytest

from bridge.errors import LoginRequiredError, ServerLostError, ToolCallError
from bridge.model import Transport
from tests.upstream.odd_web import Answer, OddWeb, error
from tests.upstream.rig import Rig
from tests.waiting import PATIENCE_SECONDS

HTML = "<html><body>Gone</body></html>"

SPELLINGS = {
    "404": Answer(404),
    "404 text": Answer(404, "Session not found", "text/plain"),
    "404 html": Answer(404, HTML, "text/html"),
    "404 -32600": Answer(404, error(-32600, "Session terminated")),
    "404 -32603": Answer(404, error(-32603, "Internal error")),
    "404 -32001": Answer(404, error(-32001, "Session not found")),
    "404 -32000": Answer(404, error(-32000, "Bad request")),
    "400 -32000": Answer(400, error(-32000, "Bad Request: No valid session ID provided")),
    "400 null id": Answer(400, error(-32000, "Server not initialized").replace("$ID", "null")),
    "400 text": Answer(400, "No transport found for sessionId", "text/plain"),
    "400 empty": Answer(400, ""),
    "401 text": Answer(401, "Unknown session", "text/plain"),
    "401 challenge": Answer(401, "", headers={"www-authenticate": 'Bearer realm="x"'}),
    "403 JSON": Answer(403, '{"error": "Forbidden"}'),
    "409": Answer(409, "Conflict", "text/plain"),
    "410": Answer(410, "Gone", "text/plain"),
    "422": Answer(422, '{"detail": "bad header"}'),
    "200 error": Answer(200, error(-32000, "Invalid session ID")),
    "200 error without id": Answer(
        200, error(-32600, "Session expired").replace('"id": $ID, ', "")
    ),
    "500 error": Answer(500, error(-32603, "Session not found")),
    "500 text": Answer(500, "Error: Session not found", "text/plain"),
}


BY_EVENTS = ("404", "400 text", "401 challenge", "500 text")
"""Over event streams the statuses are read by the same code."""


@pytest.mark.parametrize(
    ("spelling", "transport"),
    [*((each, "http") for each in SPELLINGS), *((each, "sse") for each in BY_EVENTS)],
)
async def test_a_lost_session_is_found_out(rig: Rig, spelling: str, transport: Transport) -> None:
    """The first call is repeated on status 404 alone; its error says what happened otherwise."""
    web = OddWeb(transport)
    web.lost = SPELLINGS[spelling]
    with anyio.fail_after(PATIENCE_SECONDS), web.serve():
        async with rig.pool(rig.remote(web.url, transport)) as pool:
            await pool.call_tool("server", "forget", {})
            web.received.clear()
            if web.lost.status == 404:
                await pool.call_tool("server", "echo", {"n": 1})
                expected = 2
            else:
                with pytest.raises(ToolCallError, match="connected again") as caught:
                    await pool.call_tool("server", "echo", {"n": 1})
                assert not isinstance(caught.value, LoginRequiredError)
                expected = 1
            assert web.received.count("echo") == expected
            result = await pool.call_tool("server", "echo", {"n": 2})
            assert result["content"][0]["text"] == '{"n": 2}'
            assert web.received.count("echo") == expected + 1
            assert web.received.count("initialize") == 1


@pytest.mark.parametrize("answer", [Answer(400, "q is too long", "text/plain"), Answer(404)])
async def test_a_refused_call_does_not_cost_the_session(rig: Rig, answer: Answer) -> None:
    """The server still lists its tools over it, so the answer was about the call."""
    web = OddWeb()
    web.tools["refuse"] = answer
    with anyio.fail_after(PATIENCE_SECONDS), web.serve():
        async with rig.pool(rig.remote(web.url)) as pool:
            await pool.server("server").tools()
            with pytest.raises(ToolCallError, match=f"HTTP status {answer.status}"):
                await pool.call_tool("server", "refuse", {})
            await pool.call_tool("server", "echo", {})
    assert web.received.count("refuse") == 1
    assert web.received.count("initialize") == 1


@pytest.mark.parametrize("status", [408, 413, 429, 500, 503])
async def test_other_statuses_are_not_looked_into(rig: Rig, status: int) -> None:
    web = OddWeb()
    web.tools["refuse"] = Answer(status)
    with anyio.fail_after(PATIENCE_SECONDS), web.serve():
        async with rig.pool(rig.remote(web.url)) as pool:
            await pool.server("server").tools()
            web.received.clear()
            with pytest.raises(ToolCallError):
                await pool.call_tool("server", "refuse", {})
    assert web.received == ["refuse"]


async def test_a_login_is_asked_for_if_connecting_again_needs_one(rig: Rig) -> None:
    """Status 401 may mean the session or the login; only a new connection tells."""
    web = OddWeb()
    web.lost = Answer(401, "", headers={"www-authenticate": "Bearer"})
    with anyio.fail_after(PATIENCE_SECONDS), web.serve():
        async with rig.pool(rig.remote(web.url)) as pool:
            await pool.call_tool("server", "forget", {})
            web.answer = lambda session, message: (web.lost, "")  # type: ignore[method-assign]
            with pytest.raises(LoginRequiredError, match="mcp-code-bridge login server"):
                await pool.call_tool("server", "echo", {})


async def test_a_server_that_is_down_received_nothing_of_the_call(rig: Rig) -> None:
    web = OddWeb()
    with anyio.fail_after(PATIENCE_SECONDS):
        with web.serve():
            pool = rig.pool(rig.remote(web.url))
            await pool.__aenter__()
            await pool.call_tool("server", "echo", {})
        try:
            with pytest.raises(
                ServerLostError, match=r"cannot be reached.*Connection refused"
            ) as caught:
                await pool.call_tool("server", "echo", {})
        finally:
            await pool.__aexit__(None, None, None)
    assert not caught.value.doubtful


@pytest.mark.parametrize("discover", [None, Answer(200, error(-32601, "no such method"))])
async def test_an_older_server_is_discovered_once(rig: Rig, discover: Answer | None) -> None:
    """Some never answer a method that they do not know, and each start would wait for it."""
    web = OddWeb()
    web.discover = discover
    with anyio.fail_after(PATIENCE_SECONDS), web.serve():
        async with rig.pool(rig.remote(web.url), start_timeout=6.0) as pool:
            for _ in range(3):
                await pool.call_tool("server", "forget", {})
                await pool.call_tool("server", "echo", {})
    assert web.received.count("initialize") == 4
    assert web.received.count("server/discover") == 1
