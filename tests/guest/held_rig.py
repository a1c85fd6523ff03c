"""What the tests of placeholders share."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.errors import InvalidRequestError
from bridge.gate.held_calls import find_referred, mentions
from bridge.guest.api import held_results as held
from bridge.guest.api.client import HELD_RESULT
from bridge.guest.api.held_results import Placeholder, placeholder
from bridge.guest.protocol import placeholders
from bridge.guest.protocol.wire import Call
from tests.guest.held_operations import SETUP

PLAN = "0123456789abcdef"

CREATED = {"plan": PLAN, "number": 1, "call": "git-hub.create-issue"}


def whole(*path: str | int, number: int = 1) -> dict[str, str]:
    return {"$heldResult": placeholders.write(PLAN, number, path)}


def token(*path: str | int, number: int = 1) -> str:
    return placeholders.write(PLAN, number, path)


@pytest.fixture
def x(monkeypatch: pytest.MonkeyPatch) -> Placeholder:
    monkeypatch.setattr(held, "_first", "")
    return placeholder(CREATED)


def execute(code: str, x: object) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(SETUP, names)
    names["x"] = x
    exec(compile(code, "<run_python>", "exec"), names)
    return names


def hold(guest: Any, call: Call) -> None:
    before = guest.__dict__.setdefault("held", [])
    arguments = call.params.get("arguments", {})
    if call.params.get("tool") == "create-issue":
        try:
            find_referred(arguments, PLAN, len(before))
        except InvalidRequestError as refused:
            error = {"kind": "usage", "message": str(refused), "code": HELD_RESULT}
            guest.reply(call.id, error=error)
            return
        before.append(call)
        name = f"{call.params['server']}.{call.params['tool']}"
        shape = {"plan": PLAN, "number": len(before), "call": name}
        guest.reply(call.id, {"held": shape})
    elif mentions(arguments, PLAN):
        message = "git-hub.echo would read something now, with what a held call will return."
        error = {"kind": "usage", "message": message, "code": HELD_RESULT, "server": "git-hub"}
        guest.reply(call.id, error=error)
    else:
        guest.reply(call.id, {"json": arguments})
