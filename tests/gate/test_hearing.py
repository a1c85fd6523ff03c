"""What a server says instead of an answer has its labels, like an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from bridge.errors import ServerStartError, UpstreamError
from bridge.gate.flow import FlowState
from bridge.gate.pipeline import READ_RESOURCE, Gate, Grant
from bridge.gate.policy import Policy
from bridge.gate.services import GateContext
from bridge.model import Json
from bridge.settings.policy import PRIVATE_DATA, parse_policy


async def _fail(*_: object) -> Any:
    raise ServerStartError("no mail of Ada's today", server="mail")


async def _succeed(*_: object) -> dict[str, Json]:
    return {}


async def _list_nothing() -> Sequence[dict[str, Json]]:
    return ()


async def _note_error(gate: Gate) -> None:
    async with gate.noting_errors("mail"):
        await _fail()


SPEC = {
    "defaults": dict.fromkeys(("read", "write", "destructive", "untrusted"), "allow"),
    "servers": {"mail": {"labels": [PRIVATE_DATA]}},
}


WAYS: Mapping[str, Callable[[Gate], Awaitable[object]]] = {
    "its tools cannot be listed before a call": lambda gate: gate.call("mail", "t", {}),
    "its resources cannot be listed": lambda gate: gate.list_offers("mail", READ_RESOURCE, _fail),
    "it lists none": lambda gate: gate.list_offers("mail", READ_RESOURCE, _list_nothing),
    "its documentation is asked for": _note_error,
}


@pytest.mark.guarantee("kept-names")
@pytest.mark.parametrize("way", WAYS)
async def test_an_error_counts_as_read_before_the_program_has_it(way: str) -> None:
    state, policy = FlowState(), Policy(parse_policy(SPEC, "policy"))
    gate = Gate(
        Grant(servers=None, calls=5),
        _succeed,
        GateContext(policy=policy, flow_state=state, define=_fail),
    )
    with suppress(UpstreamError):
        await WAYS[way](gate)
    assert state.read([PRIVATE_DATA])
