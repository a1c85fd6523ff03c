"""A server that has lost a session is found out however it says so."""

from __future__ import annotations

import json
import sys
from collections.abc import Coroutine, Generator, Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from bridge.errors import CallTimeoutError, LoginRequiredError, ToolCallError, UpstreamError
from bridge.gate.journal import Outcome, outcome_after
from bridge.model import Transport
from bridge.upstream.pool import Pool
from tests.raised import raises_code
from tests.upstream.odd_web import Answer, OddWeb, error, rpc
from tests.upstream.rig import SERVERS, Rig
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
    web = OddWeb(transport)
    web.lost = SPELLINGS[spelling]
    async with web.pool(rig) as pool:
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


@pytest.mark.parametrize("status", [400, 404, 408, 413, 429, 500, 503])
async def test_a_refused_call_does_not_cost_the_session(rig: Rig, status: int) -> None:
    web = OddWeb()
    web.tools["refuse"] = Answer(status)
    async with web.pool(rig) as pool:
        await pool.server("server").tools()
        web.received.clear()
        with pytest.raises(ToolCallError, match=f"HTTP status {status}"):
            await pool.call_tool("server", "refuse", {})
        await pool.call_tool("server", "echo", {})
    # With these statuses servers report a lost session too.
    probe = ["tools/list"] if status in (400, 404) else []
    assert web.received == ["refuse", *probe, "echo"]


async def test_a_login_is_asked_for_if_connecting_again_needs_one(rig: Rig) -> None:
    """Status 401 may mean the session or the login; only a new connection tells."""
    web = OddWeb()
    web.lost = Answer(401, "", headers={"www-authenticate": "Bearer"})
    async with web.pool(rig) as pool:
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
                UpstreamError, match=r"cannot be reached.*Connection refused"
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
    async with web.pool(rig, start_timeout=6.0) as pool:
        for _ in range(3):
            await pool.call_tool("server", "forget", {})
            await pool.call_tool("server", "echo", {})
    assert web.received.count("initialize") == 4
    assert web.received.count("server/discover") == 1


ProtocolMode = Literal["newer", "older"]

PAGE = "<html>no</html>"
EVENTS = "text/event-stream"

ANSWERS: dict[str, tuple[Answer, Outcome]] = {
    "cut": (Answer(0), "unknown"),
    "cut-stream": (Answer(200, "event: message\ndata: {", EVENTS, ends=False), "unknown"),
    "cut-resumable": (Answer(200, "id: 1\nretry: 1\ndata:\n\n", EVENTS, ends=False), "unknown"),
    "cut-json": (Answer(200, '{"jsonrpc": "2.0", "id"'), "unknown"),
    "accepted": (Answer(202, PAGE, "text/html"), "unknown"),
    "page": (Answer(200, PAGE, "text/html"), "unknown"),
    "gateway": (Answer(504, PAGE, "text/html"), "unknown"),
    "busy": (Answer(503, PAGE, "text/html"), "unknown"),
    "slow": (Answer(408, PAGE, "text/html"), "unknown"),
    "proxy": (Answer(200, error(-32001, "Request timed out")), "unknown"),
    "limited": (Answer(429, PAGE, "text/html"), "tool-error"),
    "fail": (Answer(200, error(-32603, "Internal error")), "tool-error"),
    "moved": (Answer(301, headers={"location": "http://127.0.0.2:1/mcp"}), "refused"),
    "refuse": (Answer(200, error(-32602, "no such tool")), "refused"),
}


async def _error(pool: Pool, tool: str) -> UpstreamError:
    with anyio.fail_after(PATIENCE_SECONDS), pytest.raises(UpstreamError) as caught:
        await pool.call_tool("server", tool, {})
    return caught.value


def calls(web: OddWeb) -> list[str]:
    return [each for each in web.received if each in ANSWERS or each in ("echo", "task")]


@pytest.mark.parametrize("era", ["newer", "older"])
async def test_over_http_a_call_is_sent_once(rig: Rig, era: ProtocolMode) -> None:
    web = OddWeb()
    web.tools.update({tool: answer for tool, (answer, _) in ANSWERS.items()})
    if era == "newer":
        web.speak_newer()
    found: dict[str, Outcome] = {}
    async with web.pool(rig) as pool:
        for tool in ANSWERS:
            found[tool] = outcome_after(await _error(pool, tool))
            await pool.call_tool("server", "echo", {})
            assert calls(web)[-2:] == [tool, "echo"]
    assert found == {tool: outcome for tool, (_, outcome) in ANSWERS.items()}
    assert len(calls(web)) == 2 * len(ANSWERS)


async def test_a_call_that_times_out_behind_the_server_is_not_made_again(rig: Rig) -> None:
    """Its cancellation is answered with the status for a session that is not known."""
    web = OddWeb()

    def hang(_: object) -> Answer:
        web.cancelled.wait(PATIENCE_SECONDS)
        return Answer(200, rpc(id="$ID", result={"content": []}))

    web.tools |= {"cut": hang, "proxy": ANSWERS["proxy"][0]}
    async with web.pool(rig) as pool:
        with pytest.raises(CallTimeoutError):
            await pool.call_tool("server", "cut", {}, timeout=1.0)
        assert outcome_after(await _error(pool, "proxy")) == "unknown"
    assert calls(web) == ["cut", "proxy"]


@pytest.mark.parametrize(
    "answer",
    [Answer(404, error(-32600, "what session?")), Answer(200, error(-32602, "no such task"))],
    ids=["with its session", "alone"],
)
async def test_a_tool_whose_task_is_forgotten_is_not_called_again(rig: Rig, answer: Answer) -> None:
    web = OddWeb()
    web.capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}
    task = {"task": {"taskId": "t", "status": "working"}}
    web.tools["task"] = Answer(200, rpc(id="$ID", result=task))
    web.methods["tasks/result"] = answer
    async with web.pool(rig) as pool:
        assert outcome_after(await _error(pool, "task")) == "unknown"
    assert calls(web) == ["task"]


async def test_a_list_that_fails_before_a_call_is_no_failure_of_the_tool(rig: Rig) -> None:
    web = OddWeb()
    web.capabilities["tasks"] = {"requests": {"tools": {"call": {}}}}
    web.methods["tools/list"] = Answer(200, error(-32603, "no list"))
    async with web.pool(rig) as pool:
        failure = await _error(pool, "task")
    assert "the list of its tools: no list" in failure.message
    assert isinstance(failure, ToolCallError)
    assert not failure.by_tool
    assert calls(web) == []


@pytest.mark.parametrize("era", ["newer", "older"])
@pytest.mark.parametrize("tool", ["killed", "crash_holding_stdout"])
async def test_stdio_sends_calls_once(
    rig: Rig, tmp_path: Path, era: ProtocolMode, tool: str
) -> None:
    log = tmp_path / "sent"
    mode = "newer-only" if era == "newer" else ""
    script = f'exec "$0" "$@" < <(exec tee -a {log})'
    spec = rig.spec("bash", "-c", script, sys.executable, str(SERVERS / "raw.py"), mode)
    async with rig.pool(spec) as pool:
        lost = await _error(pool, tool)
        assert lost.code == "server_lost"
        assert outcome_after(lost) == "unknown"
        assert (await pool.call_tool("server", "echo", {"n": 1}))["content"]
    sent = [json.loads(line) for line in log.read_text().splitlines()]
    called = [one["params"]["name"] for one in sent if one["method"] == "tools/call"]
    assert called == [tool, "echo"]


async def test_what_was_not_sent_is_known_not_to_have_happened(rig: Rig, tmp_path: Path) -> None:
    async with rig.pool(rig.raw(), max_message_bytes=10_000) as pool:
        with raises_code("message_too_large") as arguments:
            await pool.call_tool("server", "echo", {"text": "x" * 20_000})
        assert outcome_after(arguments.value) == "not-sent"
        with raises_code("message_too_large") as result:
            await pool.call_tool("server", "big", {"size": 20_000})
        assert outcome_after(result.value) == "unknown"
        # As when it is taken out of the configuration.
        pool._servers["server"].close(drain=False)
        assert outcome_after(await _error(pool, "echo")) == "not-sent"


MANY = 60
"""More awaits than any of the scenarios has; reaching it means that one waits in small steps."""


class CancelAtAwait:
    """Runs a coroutine and cancels its scope where it suspends for the n-th time."""

    def __init__(self, number: int) -> None:
        self._left = number
        self.reached = False

    def __call__(self, coroutine: Coroutine[Any, Any, None]) -> CancelAtAwait:
        self._coroutine = coroutine
        return self

    def __await__(self) -> Generator[Any, Any, None]:
        with anyio.CancelScope() as scope:
            inner = self._coroutine.__await__()
            try:
                waited = next(inner)
                while True:
                    self._left -= 1
                    if self._left == 0:
                        self.reached = True
                        scope.cancel()
                    try:
                        sent = yield waited
                    except BaseException as error:
                        waited = inner.throw(error)
                    else:
                        waited = inner.send(sent)
            except StopIteration:
                pass


def cancellations(rig: Rig, least: int = 0) -> Iterator[CancelAtAwait]:
    """Cancel a scenario at its 1st, 2nd, … await, until it has no more."""
    for number in range(1, MANY):
        cancel = CancelAtAwait(number)
        with anyio.fail_after(PATIENCE_SECONDS):
            yield cancel
        assert rig.survivors() == [], f"cancelled at await {number}"
        if not cancel.reached:
            assert number > least
            return
    pytest.fail("the scenario never ended by itself")


async def test_cancelling_at_any_await_of_a_whole_life_leaves_no_process(rig: Rig) -> None:
    async def live() -> None:
        async with rig.pool(rig.raw()) as pool:
            await pool.call_tool("server", "spawn", {"kind": "setsid"})

    for cancel in cancellations(rig, 3):
        await cancel(live())


async def test_a_cancelled_request_leaves_the_session_to_the_next(rig: Rig) -> None:
    async def call(pool: Pool) -> None:
        await pool.call_tool("server", "echo", {"a": 1})

    for cancel in cancellations(rig):
        async with rig.pool(rig.raw()) as pool:
            await cancel(call(pool))
            result = await pool.call_tool("server", "echo", {"still": "here"})
            assert result["structuredContent"] == {"still": "here"}
            assert pool.states()["server"].restarts == 0
