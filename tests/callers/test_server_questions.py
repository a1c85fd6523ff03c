"""Servers that ask whatever they like: by the policy, within bounds, and recorded."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.callers.client import MAX_QUESTIONS
from bridge.model import Json, RunRequest, RunResult
from bridge.settings import Settings
from tests.asker_rig import ASKER, asker
from tests.fakes.client import FakeClient
from tests.plans.plan_rig import audited, opened

pytestmark = pytest.mark.guarantee("servers-questions")

INQUIRER = replace(
    asker(), name="shop", command=sys.executable, args=(str(ASKER.parent / "inquirer.py"),)
)

FORM: Json = {"type": "object", "properties": {"name": {"type": "string"}}}
QUESTION: dict[str, Json] = {"message": "One?", "requestedSchema": FORM}
THOUGHT: dict[str, Json] = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "two\x1b and two"}}],
    "maxTokens": 5,
}

FLOOD = 900
"""Questions of one that asks them all at once; of one that asks more the connection ends."""


async def accept(params: Mapping[str, Json]) -> Mapping[str, Json]:
    if "messages" in params:
        content: Json = {"type": "text", "text": "four"}
        return {"role": "assistant", "content": content, "model": "m"}
    properties = params["requestedSchema"]["properties"]
    value = "run" if "decision" in properties else "Ann"
    return {"action": "accept", "content": dict.fromkeys(properties, value)}


async def asked(
    settings: Settings,
    tmp_path: Path,
    client: FakeClient,
    *,
    sampling: bool = False,
    policy: str = "",
    principal: str = "me",
    **arguments: Any,
) -> tuple[list[Any], list[dict[str, Any]], RunResult]:
    """Have the server ask; return the replies that it got, the records, and the result."""
    if sampling:
        arguments = {"method": "sampling/createMessage", "params": THOUGHT, **arguments}
    else:
        arguments = {"method": "elicitation/create", "params": QUESTION, **arguments}
    code = f"(await mcp_shop.ask(**{arguments!r}))['replies']"
    async with opened(settings, [INQUIRER], policy=policy, tmp_path=tmp_path) as engine:
        with anyio.fail_after(120):
            result = await engine.run(RunRequest(code=code, principal=principal), client)
    assert result.status == "success", result.error
    records = [json.loads(line) for line in audited(settings).splitlines()]
    return result.result, records, result


def _questions(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == "question"]


async def test_questions_are_recorded(settings: Settings, tmp_path: Path) -> None:
    client = FakeClient(answer=accept)
    params = {**QUESTION, "message": "One\x1b[2J? " + "x" * 500}
    replies, records, result = await asked(settings, tmp_path, client, params=params)
    assert replies == [{"action": "accept", "content": {"name": "Ann"}}]
    [record] = _questions(records)
    assert (record["server"], record["what"], record["outcome"]) == (
        "shop",
        "elicitation",
        "accept",
    )
    assert record["run"] == result.run_id
    assert record["question"].startswith("sha256:")
    assert record["head"].startswith("One\\x1b[2J? xxx")
    assert len(record["head"]) < 120
    assert "Ann" not in json.dumps(records)


async def test_sampling_needs_a_yes(settings: Settings, tmp_path: Path) -> None:
    policy = '[policy]\nsampling = "ask"\n'
    client = FakeClient(answer=accept)
    replies, records, _ = await asked(
        settings, tmp_path, client, sampling=True, policy=policy, count=1
    )
    assert [reply["content"]["text"] for reply in replies] == ["four"]
    first, second = client.asked
    assert "Let server shop ask your model?" in first["message"]
    assert "two\\x1b and two" in first["message"]
    assert second["systemPrompt"].startswith("(The MCP server shop asks this")
    assert [record["outcome"] for record in _questions(records)] == ["answered"]
    unknown = FakeClient(answer=accept)
    replies, _, _ = await asked(
        settings, tmp_path, unknown, sampling=True, policy=policy, principal=""
    )
    assert "not identified does not count" in replies[0]
    assert unknown.asked == []
    no = FakeClient()
    replies, _, _ = await asked(settings, tmp_path, no, sampling=True, policy=policy)
    assert "did not allow it" in replies[0]


async def test_huge_questions_are_refused(settings: Settings, tmp_path: Path) -> None:
    deep: Json = "x"
    for _ in range(70):
        deep = [deep]
    for extra, why in (("x" * 70_000, "bytes; at most 65,536"), (deep, "64 levels deep")):
        client = FakeClient(answer=accept)
        form = {"type": "object", "properties": {"a": {"default": extra}}}
        replies, records, _ = await asked(
            settings, tmp_path, client, params={"message": "?", "requestedSchema": form}
        )
        assert [why in reply for reply in replies] == [True]
        assert client.asked == []
        assert why in _questions(records)[-1]["why"]


async def test_a_flood_of_questions_reaches_nobody_whole_and_writes_little(
    settings: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "bridge")
    client = FakeClient(answer=accept)
    replies, records, _ = await asked(settings, tmp_path, client, count=FLOOD)
    assert len(client.asked) <= MAX_QUESTIONS
    assert {"action": "accept", "content": {"name": "Ann"}} in replies
    assert any("open already" in str(reply) or "enough" in str(reply) for reply in replies)
    told = [text for text in caplog.messages if "request refused" in text]
    assert 1 <= len(told) <= 5
    assert "1 refusal" in told[0]
    assert sum(map(len, caplog.messages)) < 50_000
    assert len(_questions(records)) <= MAX_QUESTIONS + 20
    # None of them is forgotten.
    assert len(client.asked) + records[-1]["questionsRefused"] == FLOOD
