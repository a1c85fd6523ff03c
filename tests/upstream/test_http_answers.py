"""What an HTTP response says reaches the program: its one answer, or its status and body."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import anyio
import pytest

from bridge.errors import ToolCallError, UpstreamError
from bridge.gate.decision import outcome_after
from tests.upstream.odd_web import Answer, OddWeb, error, rpc
from tests.upstream.rig import Rig
from tests.waiting import PATIENCE_SECONDS

RESULT: dict[str, Any] = {"content": [{"type": "text", "text": "RESULT"}]}
TEXT = rpc(id="$ID", result=RESULT)

ANSWERS = {
    "another id": Answer(200, rpc(id=999, result=RESULT)),
    "a text as id": Answer(200, rpc(id="x", result=RESULT)),
    "id null": Answer(200, rpc(id=None, result=RESULT)),
    "no id": Answer(200, rpc(result=RESULT)),
    "no content type": Answer(200, TEXT, ""),
    "text/plain": Answer(200, TEXT, "text/plain; charset=utf-8"),
    "text/html": Answer(200, TEXT, "text/html"),
    "octets": Answer(201, TEXT, "application/octet-stream"),
    "a result alone": Answer(200, '{"content": [{"type": "text", "text": "RESULT"}]}'),
    "an event with id null": Answer(
        200, f"data: {rpc(id=None, result=RESULT)}\n\n", "text/event-stream"
    ),
    "an event without id": Answer(200, f"data: {rpc(result=RESULT)}\n\n", "text/event-stream"),
}


async def test_one_json_answer_to_a_request_is_its_answer(rig: Rig) -> None:
    """A response over HTTP belongs to its request, whatever it says of itself."""
    web = OddWeb()
    web.tools.update(ANSWERS)
    with anyio.fail_after(PATIENCE_SECONDS), web.serve():
        async with rig.pool(rig.remote(web.url)) as pool:
            for case in ANSWERS:
                result = await pool.call_tool("server", case, {})
                assert result["content"] == RESULT["content"], case
                assert web.received.count(case) == 1


PAGE = "<html><style>b{}</style><h1>502 Bad Gateway</h1></html>"
BUSY = {"retry-after": "17"}

REFUSALS: dict[str, tuple[Answer, str, Mapping[str, Any], str]] = {
    "429": (
        Answer(429, "Rate limit exceeded: 60 a minute", "text/plain", BUSY),
        "429 (Too Many Requests): Rate limit exceeded: 60 a minute. Try again after 17 s",
        {"status": 429, "retryAfter": 17.0, "body": "Rate limit exceeded: 60 a minute"},
        "tool-error",
    ),
    "402": (
        Answer(402, '{"error": "Insufficient credits"}'),
        'HTTP status 402 (Payment Required): {"error": "Insufficient credits"}',
        {"status": 402, "body": '{"error": "Insufficient credits"}'},
        "tool-error",
    ),
    "413": (Answer(413), "HTTP status 413", {"status": 413, "body": ""}, "tool-error"),
    "400": (
        Answer(400, '{"error": {"code": "bad", "message": "q is too long"}}'),
        "q is too long",
        {"status": 400, "body": '{"error": {"code": "bad", "message": "q is too long"}}'},
        "tool-error",
    ),
    "403": (Answer(403, "<p>You are blocked", "text/html"), "You are blocked", {}, "not-sent"),
    "502": (
        Answer(502, PAGE, "text/html"),
        "502 Bad Gateway",
        {"status": 502, "body": "502 Bad Gateway"},
        "unknown",
    ),
    "503": (
        Answer(503, "Back at ten", "text/plain", {"retry-after": "Wed, 01 Jan 2020 00:00:00 GMT"}),
        "Back at ten",
        {"status": 503, "body": "Back at ten", "retryAfter": 0.0},
        "unknown",
    ),
    "503 of the server": (
        Answer(503, error(-32000, "database is down"), headers=BUSY),
        "database is down",
        {"status": 503, "retryAfter": 17.0},
        "tool-error",
    ),
    "200 html": (Answer(200, PAGE, "text/html"), "502 Bad Gateway", {}, "unknown"),
    "200 empty": (Answer(200), "The answer is empty", {}, "unknown"),
    "204": (Answer(204), "The answer is empty", {}, "unknown"),
    "200 other JSON": (Answer(200, '{"message": "oops"}'), '{"message": "oops"}', {}, "unknown"),
    "null id": (
        Answer(200, error(-7, "no row").replace("$ID", "null")),
        "no row",
        {},
        "tool-error",
    ),
}


async def test_an_error_status_reaches_the_program_with_its_body(rig: Rig) -> None:
    """And what it leaves open: a gateway answers for a server that may have acted."""
    web = OddWeb()
    web.tools.update({case: answer for case, (answer, *_) in REFUSALS.items()})
    with anyio.fail_after(PATIENCE_SECONDS), web.serve():
        async with rig.pool(rig.remote(web.url)) as pool:
            for case, (_, text, data, outcome) in REFUSALS.items():
                with pytest.raises(UpstreamError) as caught:
                    await pool.call_tool("server", case, {})
                await pool.call_tool("server", "echo", {})
                assert text in str(caught.value), case
                assert outcome_after(caught.value) == outcome, case
                if data:
                    assert isinstance(caught.value, ToolCallError)
                    assert caught.value.data == data, case
                assert web.received.count(case) == 1
    assert web.received.count("initialize") == 1


async def test_concurrent_errors_keep_their_own_status(rig: Rig) -> None:
    web = OddWeb()
    statuses = [400, 402, 409, 429, 500, 502, 503] * 5
    web.tools = {f"t{status}": Answer(status, f"body {status}") for status in set(statuses)}
    found: list[tuple[int, Any]] = []

    async def call(status: int) -> None:
        with pytest.raises(ToolCallError) as caught:
            await pool.call_tool("server", f"t{status}", {})
        found.append((status, caught.value.data))

    with anyio.fail_after(PATIENCE_SECONDS), web.serve():
        async with rig.pool(rig.remote(web.url)) as pool, anyio.create_task_group() as tg:
            for status in statuses:
                tg.start_soon(call, status)
    assert all(data == {"status": status, "body": f"body {status}"} for status, data in found)
    assert len(found) == len(statuses)
