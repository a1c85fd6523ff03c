"""What is sent is sent once: over connections that break in the middle of a call, in either era.

The servers here write down what they get; the outcome is what the journal of a run would say.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Literal

import anyio
import pytest

from bridge.errors import CallTimeoutError, ServerLostError, UpstreamError
from bridge.gate.outcomes import Outcome, outcome_after
from bridge.upstream.pool import Pool
from tests.raised import raises_code
from tests.upstream.odd_web import Answer, OddWeb, error, rpc
from tests.upstream.rig import SERVERS, Rig
from tests.waiting import PATIENCE_SECONDS

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
    """And only what the server said no to is not counted among what may have happened."""
    web = OddWeb()
    web.tools.update({tool: answer for tool, (answer, _) in ANSWERS.items()})
    if era == "newer":
        web.speak_newer()
    found: dict[str, Outcome] = {}
    with web.serve():
        async with rig.pool(rig.remote(web.url)) as pool:
            for tool in ANSWERS:
                found[tool] = outcome_after(await _error(pool, tool))
                # The connection is there, or is made again, and nothing is left over.
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
    with web.serve():
        async with rig.pool(rig.remote(web.url)) as pool:
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
    with web.serve():
        async with rig.pool(rig.remote(web.url)) as pool:
            assert outcome_after(await _error(pool, "task")) == "unknown"
    assert calls(web) == ["task"]


@pytest.mark.parametrize("era", ["newer", "older"])
@pytest.mark.parametrize("tool", ["killed", "crash_holding_stdout"])
async def test_over_stdio_a_call_is_sent_once(
    rig: Rig, tmp_path: Path, era: ProtocolMode, tool: str
) -> None:
    """What the process read is written down on the way."""
    log = tmp_path / "sent"
    mode = "newer-only" if era == "newer" else ""
    script = f'exec "$0" "$@" < <(exec tee -a {log})'
    spec = rig.spec("bash", "-c", script, sys.executable, str(SERVERS / "raw.py"), mode)
    async with rig.pool(spec) as pool:
        lost = await _error(pool, tool)
        assert isinstance(lost, ServerLostError)
        assert outcome_after(lost) == "unknown"
        assert (await pool.call_tool("server", "echo", {"n": 1}))["content"]
    sent = [json.loads(line) for line in log.read_text().splitlines()]
    called = [one["params"]["name"] for one in sent if one["method"] == "tools/call"]
    assert called == [tool, "echo"]


async def test_what_was_not_sent_is_known_not_to_have_happened(rig: Rig, tmp_path: Path) -> None:
    """Arguments beyond the bound, and a server that is configured no more."""
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
