"""What a server says instead of an answer has its labels, like an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import pytest

from bridge.errors import ServerStartError, UpstreamError
from bridge.gate.flow import FlowState
from bridge.gate.pipeline import READ_RESOURCE, Gate, Grant
from bridge.gate.policy import Policy
from bridge.gate.services import GateContext
from bridge.model import Json, Tool
from bridge.settings.policy import PRIVATE_DATA, PolicySpec, ServerPolicy

READS = {"read": "allow", "write": "allow", "destructive": "allow", "untrusted": "allow"}
MAIL = ServerPolicy(servers="mail", labels=frozenset({PRIVATE_DATA}))


async def _fail(*_: object) -> Tool | None:
    message = "no mail of Ada's today"
    raise ServerStartError(message, server="mail")


async def _nothing() -> Sequence[dict[str, Json]]:
    return ()


async def _fails() -> Sequence[dict[str, Json]]:
    await _fail()
    return ()


async def _called(server: str, tool: str, arguments: Mapping[str, Json]) -> dict[str, Json]:
    return {}


async def _hears(gate: Gate) -> None:
    async with gate.noting_errors("mail"):
        await _fail()


WAYS: Mapping[str, Callable[[Gate], Awaitable[object]]] = {
    "its tools cannot be listed before a call": lambda gate: gate.call("mail", "t", {}),
    "its resources cannot be listed": lambda gate: gate.list_offers("mail", READ_RESOURCE, _fails),
    "it lists none": lambda gate: gate.list_offers("mail", READ_RESOURCE, _nothing),
    "its documentation is asked for": _hears,
}


@pytest.mark.guarantee("kept-names")
@pytest.mark.parametrize("way", WAYS)
async def test_an_error_counts_as_read_before_the_program_has_it(way: str) -> None:
    state = FlowState()
    spec = PolicySpec(present=True, defaults=READS, servers=(MAIL,))  # type: ignore[arg-type]
    seen = GateContext(policy=Policy(spec), flow_state=state, define=_fail)
    gate = Gate(Grant(servers=None, calls=5), _called, seen)
    with suppress(UpstreamError):
        await WAYS[way](gate)
    assert state.read([PRIVATE_DATA])
