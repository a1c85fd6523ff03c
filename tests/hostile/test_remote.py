"""Hostile servers behind URLs: what they answer is read by the SDK, on the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.model import RunRequest
from bridge.runs import Engine
from tests.hostile.conftest import cases, engine_over
from tests.hostile.test_servers import CALL, PATIENCE_SECONDS, RESULTS, M, text, with_structure
from tests.upstream.odd_web import Answer, OddWeb
from tests.watchdog import Watchdog


@pytest.fixture
def web() -> Iterator[OddWeb]:
    with OddWeb().serve() as server:
        yield server


@pytest.fixture
async def engine(tmp_path: Path, web: OddWeb) -> AsyncIterator[Engine]:
    web.tools["t"] = Answer()
    async with engine_over(tmp_path, transport="http", url=web.url) as opened:
        yield opened


LIMIT = "200000 value limit"

ANSWERS = {
    "3,000,000 items": (RESULTS["3,000,000 items"][0], LIMIT),
    "3,000 numbers of 4,000 digits": (RESULTS["3,000 numbers of 4,000 digits"][0], LIMIT),
    "190,000 items": (lambda: with_structure(b"[" + b"1," * 190_000 + b"1]"), "{'a': [1, 1,"),
    "95,000 objects": (lambda: with_structure(b"[" + b'{"a":1},' * 95_000 + b"1]"), "{'a': [{"),
    "45,000 blocks": (
        lambda: b'{"content":[' + b'{"type":"text","text":"x"},' * 45_000 + b"{}]}",
        "['x', 'x',",
    ),
    "12 MB of text": (lambda: text("x" * 12 * M), "xxx"),
    "100,000 levels": RESULTS["100,000 levels"],
}


@pytest.mark.guarantee("loop-never-stalls")
@pytest.mark.parametrize("events", [False, True], ids=["body", "event"])
@cases(ANSWERS)
async def test_no_answer_over_http_keeps_the_loop(
    engine: Engine, web: OddWeb, watchdog: Watchdog, events: bool, made: Any, told: str
) -> None:
    await engine.servers.load(["pb"])
    body = f'{{"jsonrpc":"2.0","id":$ID,"result":{made().decode()}}}'
    event = Answer(200, f"event: message\ndata: {body}\n\n", "text/event-stream")
    web.tools["t"] = event if events else Answer(200, body)
    with anyio.fail_after(PATIENCE_SECONDS), watchdog.watching():
        result = await engine.run(RunRequest(code=CALL, timeout=120))
    assert told in result.stdout, result.error
