"""Batches of protocol 2025-03-26, over both transports; no other version has them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from bridge.runs import Engine
from bridge.server.batches import MAX_BATCH, MAX_BATCH_BYTES, MAX_OPEN, VERSION
from bridge.upstream.framing import MAX_VALUES
from tests.server.pipe_rig import hello, piped, request
from tests.server.web_rig import served

Send = Callable[[Any], Awaitable[list[dict[str, Any]]]]
"""Sends a batch, and returns what answers it, ordered by id."""

NOTICE = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}


def run(number: int | str, code: str) -> dict[str, Any]:
    """Return a request to run a program."""
    return request(number, "tools/call", {"name": "run_python", "arguments": {"code": code}})


@asynccontextmanager
async def over_stdio(engine: Engine, version: str) -> AsyncIterator[Send]:
    """Serve one client over pipes."""
    async with piped(engine, version) as peer:

        async def send(batch: Any) -> list[dict[str, Any]]:
            answer = await peer.answer(batch)
            assert isinstance(answer, list)
            return sorted(answer, key=lambda each: str(each["id"]))

        yield send


@asynccontextmanager
async def over_http(engine: Engine, version: str) -> AsyncIterator[Send]:
    """Serve one client over HTTP."""
    async with served(engine) as (_, web):
        opened = await web.post("/mcp", json=hello(version))
        headers = {"mcp-session-id": opened.headers["mcp-session-id"]}
        if version != VERSION:
            headers["mcp-protocol-version"] = version

        async def send(batch: Any) -> list[dict[str, Any]]:
            answer = await web.post("/mcp", json=batch, headers=headers)
            if answer.status_code != 200:
                return [answer.json()]
            events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
            return sorted(map(json.loads, events), key=lambda each: str(each["id"]))

        yield send


TRANSPORTS = pytest.mark.parametrize("over", [over_stdio, over_http])


@TRANSPORTS
async def test_each_request_of_a_batch_is_answered(engine: Engine, over: Any) -> None:
    """Also one that fails; notifications among them are taken."""
    async with over(engine, VERSION) as send:
        batch = [request(1, "ping"), NOTICE, run("two", "print(40 + 2)"), request(3, "no/such")]
        ping, unknown, result = await send(batch)
        assert ping == {"jsonrpc": "2.0", "id": 1, "result": {}}
        assert unknown["error"]["code"] == -32601
        assert result["id"] == "two"
        assert result["result"]["content"][0]["text"].startswith("42")


@TRANSPORTS
@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ([request(n, "ping") for n in range(MAX_BATCH + 1)], f"the limit is {MAX_BATCH}"),
        ([request(1, "ping"), hello(VERSION)], "sent alone"),
        ([request(1, "ping"), request(1, "ping")], "same id"),
        ([request(1, "ping"), request("1", "ping")], "same id"),
        ([request(1, "ping"), 7], "no message"),
        ([request(1, "ping"), {"jsonrpc": "2.0"}], "no JSON-RPC message"),
        ([request(1, "ping"), request("x", "ping", "y" * MAX_BATCH_BYTES)], "4,194,304"),
        ([], "empty"),
    ],
)
async def test_a_batch_that_is_not_taken_is_refused_with_the_reason(
    engine: Engine, over: Any, batch: Any, why: str
) -> None:
    """And nothing of it is done; what comes next is served."""
    async with over(engine, VERSION) as send:
        answers = await send(batch)
        assert answers
        assert all(why in each["error"]["message"] for each in answers)
        assert (await send([request(5, "ping")]))[0]["result"] == {}


@TRANSPORTS
@pytest.mark.parametrize("number", [1.5, 1.0, None, True, [], {}])
async def test_an_id_that_is_none_is_refused_rather_than_never_answered(
    engine: Engine, over: Any, number: Any
) -> None:
    """With null in its place, as JSON-RPC has it."""
    async with over(engine, VERSION) as send:
        answers = await send([request(number, "ping"), request(number, "ping")])
        assert [each["id"] for each in answers] == [None]
        assert "no text or whole number" in answers[0]["error"]["message"]


@TRANSPORTS
async def test_ids_that_look_alike_are_answered_each(engine: Engine, over: Any) -> None:
    """Whatever whole number or text they are."""
    ids: list[int | str] = [1, 0, -1, "", "1.0", 2**53 + 1, 10**100]
    async with over(engine, VERSION) as send:
        answers = await send([request(each, "ping") for each in ids])
        assert {repr(each["id"]) for each in answers} == set(map(repr, ids))
        assert all(each["result"] == {} for each in answers)


@TRANSPORTS
async def test_a_batch_that_is_no_json_is_answered(engine: Engine, over: Any) -> None:
    """Or nests more deeply than any parser goes."""
    nested: Any = []
    for _ in range(300):
        nested = [nested]
    async with over(engine, VERSION) as send:
        (answer,) = await send([request(1, "ping", nested)])
        assert (answer["id"], answer["error"]["code"]) == (None, -32700)


async def test_other_versions_have_no_batches(engine: Engine) -> None:
    """Each request is told so, rather than left without an answer."""
    async with over_stdio(engine, "2025-06-18") as send:
        (answer,) = await send([request(1, "ping")])
        assert "Only protocol 2025-03-26 has batches" in answer["error"]["message"]
    async with over_http(engine, "2025-06-18") as send:
        (answer,) = await send([request(1, "ping")])
        assert "error" in answer


async def test_a_cancelled_request_of_a_batch_holds_the_others_up_no_more(engine: Engine) -> None:
    """It has no answer; the rest is the answer to the batch."""
    async with piped(engine, VERSION) as peer:
        await peer.send([run(1, "import time\ntime.sleep(60)"), request(2, "ping")])
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}
        answer = await peer.answer(cancel)
        assert [each["id"] for each in answer] == [2]


async def test_batches_without_end_are_refused(engine: Engine) -> None:
    """Their answers are collected, which takes memory."""
    async with piped(engine, VERSION) as peer:
        for number in range(MAX_OPEN):
            await peer.send([run(number, "import time\ntime.sleep(60)")])
        (answer,) = await peer.answer([request("more", "ping")])
        assert f"{MAX_OPEN} batches are under way" in answer["error"]["message"]
        assert (await peer.answer(request("single", "ping")))["result"] == {}


async def test_notifications_alone_have_no_answer(engine: Engine) -> None:
    """As JSON-RPC has it."""
    async with piped(engine, VERSION) as peer:
        await peer.send([NOTICE, NOTICE])
        assert (await peer.answer(request(1, "ping")))["id"] == 1
    async with served(engine) as (_, web):
        opened = await web.post("/mcp", json=hello(VERSION))
        headers = {"mcp-session-id": opened.headers["mcp-session-id"]}
        assert (await web.post("/mcp", json=[NOTICE], headers=headers)).status_code == 202


async def test_a_batch_of_a_session_that_has_ended_is_answered_with_that(engine: Engine) -> None:
    """By the status, at which its client begins a new one."""
    async with served(engine) as (_, web):
        batch = [request(1, "ping"), NOTICE, request(2, "ping")]
        answer = await web.post("/mcp", json=batch, headers={"mcp-session-id": "gone"})
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Session not found")


async def test_a_body_beyond_the_limit_is_refused_with_it_and_large_ones_are_counted(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many clients send them at once."""
    async with served(engine) as (_, web):

        async def chunks(size: int) -> AsyncIterator[bytes]:
            yield b" " * size

        crowded = await web.post("/mcp", content=b"[" + b"0," * MAX_VALUES + b"0]")
        assert (crowded.status_code, f"{MAX_VALUES:,}" in crowded.text) == (400, True)
        monkeypatch.setattr("bridge.server.bodies.MAX_MESSAGE_BYTES", 3000)
        monkeypatch.setattr("bridge.server.bodies.LARGE_BODY", 1000)
        monkeypatch.setattr("bridge.server.bodies.MAX_LARGE", 1)
        for content in (b" " * 3001, chunks(3001)):
            answer = await web.post("/mcp", content=content)
            assert (answer.status_code, "3000 bytes" in answer.text) == (413, True)
        opened = await web.post("/mcp", json=hello("2025-06-18"))
        headers = {"mcp-session-id": opened.headers["mcp-session-id"]}

        async def linger(begun: anyio.Event) -> AsyncIterator[bytes]:
            yield b" " * 1001
            begun.set()
            await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            begun = anyio.Event()
            tasks.start_soon(lambda: web.post("/mcp", content=linger(begun)))
            await begun.wait()
            # Until the first has been counted.
            while "Try again" not in (await web.post("/mcp", content=b" " * 1001)).text:
                pass
            ping = await web.post("/mcp", json=request(1, "ping"), headers=headers)
            assert ping.status_code == 200
            tasks.cancel_scope.cancel()


async def test_a_large_body_that_does_not_come_takes_no_place_for_long(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sender is told so, and the place is the next one's."""
    monkeypatch.setattr("bridge.server.bodies.LARGE_BODY", 10)
    monkeypatch.setattr("bridge.server.bodies.MAX_LARGE", 1)
    monkeypatch.setattr("bridge.server.bodies.LARGE_SECONDS", 0.05)

    async with served(engine) as (_, web):
        host, port = web.base_url.host, web.base_url.port or 0
        head = f"POST /mcp HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 11\r\n\r\n".encode()
        for _again in range(2):
            async with await anyio.connect_tcp(host, port) as stream:
                await stream.send(head + b"[")
                assert b" 408 " in await stream.receive()


@pytest.mark.parametrize(
    ("header", "status"), [({"origin": "https://example.org"}, 403), ({"host": "example.org"}, 421)]
)
async def test_what_another_site_s_page_sends_takes_nobody_s_place(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, header: dict[str, str], status: int
) -> None:
    """It is refused before anything of it is read."""
    monkeypatch.setattr("bridge.server.bodies.LARGE_BODY", 10)
    monkeypatch.setattr("bridge.server.bodies.MAX_LARGE", 0)
    async with served(engine) as (_, web):
        assert (await web.post("/mcp", content=b" " * 11)).status_code == 503
        answer = await web.post("/mcp", content=b" " * 11, headers=header)
        assert answer.status_code == status
