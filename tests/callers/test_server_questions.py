"""Servers that ask whatever they like: by the policy, within bounds, and recorded."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.callers.client import MAX_QUESTIONS
from bridge.errors import CannotAskError
from bridge.gate.server_questions import (
    MAX_NAME_CHARS,
    MAX_TEXT_CHARS,
    ServerQuestions,
    elicitation,
    sampling_request,
)
from bridge.model import Json, RunRequest, RunResult
from bridge.settings import Settings
from bridge.settings.policy import parse_policy
from bridge.text import visible
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


Ask = Callable[..., Awaitable[tuple[list[Any], list[dict[str, Any]], RunResult]]]


@pytest.fixture
def ask(settings: Settings, tmp_path: Path) -> Ask:
    """Have the server ask; return its replies, the records of its questions, and the result."""

    async def run(
        client: FakeClient,
        method: str = "elicitation/create",
        policy: str = "",
        principal: str = "me",
        **arguments: Any,
    ) -> tuple[list[Any], list[dict[str, Any]], RunResult]:
        params = QUESTION if method == "elicitation/create" else THOUGHT
        arguments = {"method": method, "params": params, **arguments}
        code = f"(await mcp_shop.ask(**{arguments!r}))['replies']"
        async with opened(settings, [INQUIRER], policy=policy, tmp_path=tmp_path) as engine:
            with anyio.fail_after(120):
                result = await engine.run(RunRequest(code=code, principal=principal), client)
        assert result.status == "success", result.error
        records = [json.loads(line) for line in audited(settings).splitlines()]
        return result.result, records, result

    return run


def _questions(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [record for record in records if record["kind"] == "question"]


async def test_questions_are_recorded(ask: Ask) -> None:
    client = FakeClient(answer=accept)
    params = {**QUESTION, "message": "One\x1b[2J? " + "x" * 500}
    replies, records, result = await ask(client, params=params)
    assert replies == [{"action": "accept", "content": {"name": "Ann"}}]
    [record] = _questions(records)
    facts = [record[name] for name in ("server", "what", "outcome", "run")]
    assert facts == ["shop", "elicitation", "accept", result.run_id]
    assert record["question"].startswith("sha256:")
    assert record["head"].startswith("One\\x1b[2J? xxx")
    assert len(record["head"]) < 120
    assert "Ann" not in json.dumps(records)


async def test_sampling_needs_a_yes(ask: Ask) -> None:
    sample = partial(ask, method="sampling/createMessage", policy='[policy]\nsampling = "ask"\n')
    client = FakeClient(answer=accept)
    replies, records, _ = await sample(client, count=1)
    assert [reply["content"]["text"] for reply in replies] == ["four"]
    first, second = client.asked
    assert "Let server shop ask your model?" in first["message"]
    assert "two\\x1b and two" in first["message"]
    assert second["systemPrompt"].startswith("(The MCP server shop asks this")
    assert [record["outcome"] for record in _questions(records)] == ["answered"]
    unknown = FakeClient(answer=accept)
    replies, _, _ = await sample(unknown, principal="")
    assert "not identified does not count" in replies[0]
    assert unknown.asked == []
    replies, _, _ = await sample(FakeClient())
    assert "did not allow it" in replies[0]


async def test_huge_questions_are_refused(ask: Ask) -> None:
    deep: Json = "x"
    for _ in range(70):
        deep = [deep]
    for extra, why in (("x" * 70_000, "bytes; at most 65,536"), (deep, "64 levels deep")):
        client = FakeClient(answer=accept)
        form = {"type": "object", "properties": {"a": {"default": extra}}}
        replies, records, _ = await ask(client, params={"message": "?", "requestedSchema": form})
        assert [why in reply for reply in replies] == [True]
        assert client.asked == []
        assert why in _questions(records)[-1]["why"]


async def test_a_flood_of_questions_is_cut(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "bridge")
    client = FakeClient(answer=accept)
    replies, records, _ = await ask(client, count=FLOOD)
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


RUN = "5f0c9a2b" + "0" * 24
LAST = "(The server shop asks this in run 5f0c9a2b; mcp-code-bridge passes it on.)"


def form(**fields: Json) -> dict[str, Json]:
    return {"type": "object", "properties": fields}


def test_a_servers_words_stand_on_lines_of_its_own() -> None:
    """It can begin none with anything else, nor push what stands there out of sight."""
    message = (
        "One?\r\n\n\n \nmcp-code-bridge: may it?\x1b[2J\u202e\u200b\u2028\x9b"
        + " " * 500
        + "y\n\n\n"
    )
    shown = elicitation("shop", RUN, {"message": message})["message"]
    assert shown.split("\n") == [
        "[shop] One?",
        "[shop] mcp-code-bridge: may it?\\x1b[2J\\u202e\\u200b\\u2028\\x9b[500 spaces]y",
        LAST,
    ]
    assert visible(shown) == shown
    odd = elicitation("mcp-code-bridge]\n[x", "", {"message": "?"})["message"]
    assert odd.startswith('["mcp-code-bridge]\\n[x"] ?\n(The server "mcp-code-bridge]\\n[x" asks')
    assert elicitation("shop", RUN, {})["message"] == f"[shop] (no text)\n{LAST}"


def test_what_is_only_shown_of_a_form_is_made_visible() -> None:
    values = {"type": "string", "enum": ["x", "größer"], "default": "x"}
    field = {**values, "title": "a\nb", "description": "c\x1b[2J", "enumNames": ["X\u202e", "y"]}
    choice = {"type": "string", "oneOf": [{"const": "x", "title": "X\n1."}]}
    asked = elicitation("shop", RUN, {"message": "?", "requestedSchema": form(a=field, b=choice)})
    shown = asked["requestedSchema"]["properties"]
    visible = {"title": "a\\nb", "description": "c\\x1b[2J", "enumNames": ["X\\u202e", "y"]}
    assert shown["a"] == {**values, **visible}
    assert shown["b"]["oneOf"] == [{"const": "x", "title": "X\\n1."}]


def _nest(levels: int) -> Json:
    value: Json = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (form(**{f"f{n}": {} for n in range(50 + 1)}), "51 fields; at most 50"),
        (form(a={"enum": ["x"] * (200 + 1)}), "201 members; at most 200"),
        (form(a={"oneOf": [{"const": "x"}] * (200 + 1)}), "201 members; at most 200"),
        (form(a={"title": "x" * (MAX_TEXT_CHARS + 1)}), "1,001 characters; at most 1,000"),
        (form(a=_nest(8)), "nested more than 8 levels"),
        (form(**{"n" * (MAX_NAME_CHARS + 1): {}}), "too long or cannot be shown"),
        (form(**{"a\nb": {}}), "'a\\\\\\\\nb', which is too long or cannot be shown"),
        (form(a={"enum": ["x\u202e"]}), "with characters that cannot be shown"),
        (form(a={"default": "x\x1b"}), "with characters that cannot be shown"),
        ({f"n{number}": 1 for number in range(200 + 1)}, "201 members; at most 200"),
    ],
)
def test_a_form_beyond_its_bounds_is_refused(schema: Json, why: str) -> None:
    with pytest.raises(CannotAskError, match=why):
        elicitation("shop", RUN, {"message": "?", "requestedSchema": schema})


@pytest.mark.parametrize("message", ["x" * (4000 + 1), "x\n" * (40 + 1)])
def test_a_message_beyond_its_bounds_is_refused(message: str) -> None:
    with pytest.raises(CannotAskError, match=r"message has .* at most"):
        elicitation("shop", RUN, {"message": message})


@pytest.mark.parametrize(
    ("url", "shown", "host"),
    [
        ("https://example.com/login?a=b#c", "https://example.com/login?a=b#c", "example.com"),
        ("https://exаmple.com/ü", "https://xn--exmple-4nf.com/%C3%BC", "xn--exmple-4nf.com"),
        ("http://[::1]:80/x", "http://[::1]:80/x", "::1"),
    ],
)
def test_an_address_is_shown_whole_with_its_host(url: str, shown: str, host: str) -> None:
    asked = elicitation("shop", RUN, {"mode": "url", "message": "Go.", "url": url})
    assert asked["url"] == shown
    assert f"\nIt is about an address of the host {host}: {shown}\n{LAST}" in asked["message"]


@pytest.mark.parametrize(
    "url",
    [
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://",
        "https://bank.example@evil.example/",
        "https://bank.example\\.evil.example/",
        "https://bank.example/\u202e",
        "https://a..b/",
        "https://[",
        "https://bank.example/ x",
        "https://x/" + "x" * 2000,
        "",
        None,
    ],
)
def test_what_is_no_plain_address_is_refused(url: Json) -> None:
    with pytest.raises(CannotAskError, match="address"):
        elicitation("shop", RUN, {"mode": "url", "message": "Go.", "url": url})


def test_a_model_is_told_who_asks_and_nothing_hidden() -> None:
    def messages(text: str) -> Json:
        return [{"role": "user", "content": {"type": "text", "text": text}}]

    params: dict[str, Json] = {"systemPrompt": "Be brief.", "maxTokens": 5}
    params |= {"messages": messages("a\u202eb\x1b\n\n \n\n\n\nc\r\nd"), "includeContext": "all"}
    origin = "(The MCP server shop asks this through mcp-code-bridge, in run 5f0c9a2b.)"
    assert sampling_request("shop", RUN, params) == {
        "messages": messages("a\\u202eb\\x1b\n\nc\nd"),
        "systemPrompt": f"{origin}\nBe brief.",
        "maxTokens": 5,
    }


@pytest.mark.parametrize(
    "params",
    [
        {"messages": [{}] * (100 + 1)},
        {"messages": [], "tools": [{}] * (64 + 1)},
        {"messages": [], "maxTokens": 65_536 + 1},
    ],
)
def test_a_sampling_request_beyond_its_bounds_is_refused(params: dict[str, Json]) -> None:
    with pytest.raises(CannotAskError, match="at most"):
        sampling_request("shop", RUN, params)


def test_a_policy_decides_on_questions_for_each_server() -> None:
    assert ServerQuestions().decide("shop", "elicitation") == "allow"
    servers = {"shop": {"elicitation": "allow"}, "s*": {"sampling": "deny"}}
    policy = {"elicitation": "deny", "sampling": "ask", "servers": servers}
    asked = ServerQuestions(parse_policy(policy, "p"))
    assert asked.decide("shop", "elicitation") == "allow"
    assert asked.decide("shop", "sampling") == asked.decide("other", "sampling") == "ask"
    for name, asking in (("sea", "elicitation"), ("sea", "sampling"), ("other", "elicitation")):
        with pytest.raises(CannotAskError, match=f"denies {asking} to the server {name}"):
            asked.decide(name, asking)  # type: ignore[arg-type]
