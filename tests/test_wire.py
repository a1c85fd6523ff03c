"""What holds the bridge's messages against the official schemas notices what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from tests.wire import NEWEST, OLDER, Wire, problems, schemas


def test_there_is_a_schema_of_every_version() -> None:
    """Of five."""
    assert sorted(schemas()) == [*OLDER, NEWEST]


def _answer(**result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "result": result}


@pytest.mark.parametrize("version", OLDER)
def test_a_right_message_passes(version: str) -> None:
    """A result, and a request."""
    text = {"type": "text", "text": "hello"}
    assert problems(version, _answer(content=[text]), "tools/call") == []
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}
    assert problems(version, call) == []


@pytest.mark.parametrize(
    ("version", "message", "answers"),
    [
        *((version, _answer(content="hello"), "tools/call") for version in (*OLDER, NEWEST)),
        *((version, {"id": 1, "result": {}}, "") for version in (*OLDER, NEWEST)),
        ("2025-03-26", {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create"}, ""),
        (NEWEST, {"jsonrpc": "2.0", "id": 1, "method": "ping"}, ""),
        (NEWEST, _answer(content=[]), "tools/call"),
        (
            "2024-11-05",
            _answer(content=[{"type": "audio", "data": "", "mimeType": "audio/wav"}]),
            "tools/call",
        ),
    ],
)
def test_a_wrong_message_is_noticed(version: str, message: Any, answers: str) -> None:
    """A wrong type, what the version does not have yet or any more, and what it demands."""
    assert problems(version, message, answers) != []


def test_a_wrong_message_to_a_server_is_noted() -> None:
    """Once, however often it is sent."""
    wire = Wire()
    wire.client_sends({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}})
    wire.client_sends({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {}})
    assert len(wire.wrong) == len(OLDER)
