"""The gate: what a run was not given it cannot do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from bridge.errors import CallBudgetError, CallDeniedError
from bridge.gate.pipeline import READ_RESOURCE, Gate, Grant, result_size


async def _answer(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"{server}.{tool}"}]}


async def test_a_call_is_counted_with_the_bytes_it_kept_out_of_the_conversation() -> None:
    gate = Gate(Grant(servers=None, calls=10), _answer)
    result = await gate.call("s", "t", {})
    assert gate.calls == 1
    assert gate.result_bytes == result_size(result) > 0


def test_data_without_content_is_counted_as_what_it_is() -> None:
    """Else a server that sends no text would have no budget."""
    data = {"rows": ["x" * 100]}
    assert result_size({"structuredContent": data, "content": []}) > 100
    text = {"type": "text", "text": "y"}
    assert result_size({"structuredContent": data, "content": [text]}) < 100


async def test_a_server_outside_the_grant_is_refused_by_name() -> None:
    gate = Gate(Grant(servers=frozenset({"a"}), calls=10), _answer)
    with pytest.raises(CallDeniedError, match=r"may not use the server 'b'\. It may use: a"):
        await gate.call("b", "t", {})
    assert gate.calls == 0


async def test_calls_that_failed_changed_nothing_and_those_of_unknown_outcome_may_have() -> None:
    async def fail(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return {"content": [], "isError": True}

    async def break_off(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        raise ConnectionResetError

    for answer, changing in ((_answer, 1), (fail, 0)):
        gate = Gate(Grant(servers=None, calls=1), answer)
        await gate.call("s", "t", {})
        assert (gate.tally.made["s"], gate.tally.changing) == (1, changing)
    gate = Gate(Grant(servers=None, calls=1), break_off)
    with pytest.raises(ConnectionResetError):
        await gate.call("s", "t", {})
    assert (gate.tally.made["s"], gate.tally.changing) == (1, 1)


async def test_a_resource_is_counted_as_a_call_is() -> None:
    gate = Gate(Grant(servers=frozenset({"a"}), calls=2), _answer)

    async def read(params: Mapping[str, Any]) -> dict[str, Any]:
        return {"contents": [{"uri": "x:y", "text": "t" * 100}]}

    with pytest.raises(CallDeniedError):
        await gate.request("b", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
    await gate.request("a", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
    assert gate.calls == 1
    assert gate.result_bytes > 100
    with pytest.raises(CallBudgetError):
        await gate.request("a", READ_RESOURCE, {"uri": "x:y"}, read, "contents")
