"""Large texts of results: counted and limited like others, and read where a rule wants that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bridge.gate.pipeline import Gate, Grant, result_size
from bridge.gate.privacy import Vault
from bridge.gate.services import GateContext
from bridge.large_text import LargeText, with_plain_text
from bridge.offload import LARGE, estimated_size
from bridge.settings.policy import Privacy

MAIL = "ann@example.org"


def result(*pieces: bytes) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": LargeText(pieces)}]}


def gate(vault: Vault | None = None) -> Gate:
    async def answer(server: str, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return result(b"write to ann@exa", b"mple.org")

    context = GateContext() if vault is None else GateContext(vault=vault)
    return Gate(Grant(servers=None, calls=1), answer, context)


def test_it_is_counted_by_its_bytes() -> None:
    size = result_size(with_plain_text(result(b"x" * LARGE, "ä".encode())))
    assert result_size(result(b"x" * LARGE, "ä".encode())) == size > LARGE


def test_it_takes_as_much_room_and_work_as_it_has_bytes() -> None:
    assert estimated_size(result(b"x" * LARGE), LARGE) > LARGE


async def test_it_passes_the_gate_as_it_is() -> None:
    found = await gate().call("shop", "mails", {})
    assert isinstance(found["content"][0]["text"], LargeText)


async def test_personal_data_in_it_is_hidden() -> None:
    found = await gate(Vault(Privacy(detect=("email",)))).call("shop", "mails", {})
    text = found["content"][0]["text"]
    assert text.startswith("write to ")
    assert MAIL not in text
