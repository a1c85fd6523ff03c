"""The arguments of held calls as people read them. Pure.

Owns how much of arguments is shown, since a plan is put before a person and into a model's context
and what it will send may be megabytes; and that no text can pass for a placeholder, which reads as
`bridge.guest.placeholders.label` has it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from bridge.gate.decision import CallFacts, Mask
from bridge.gate.plans.references import stands_whole
from bridge.guest import placeholders
from bridge.guest.placeholders import LABEL, WHOLE, label
from bridge.model import Json
from bridge.text import unlike

MAX_CALL_CHARACTERS = 8_000
"""Shown of one call's arguments."""

MAX_PLAN_CHARACTERS = 64 * 1024
"""Shown of all calls' arguments, in equal parts where they would be more."""

MIN_CALL_CHARACTERS = 64
"""Shown of each, however many there are."""

_NO_LABEL = LABEL.replace("result", "the text: result", 1)


def readable(value: Json, names: Mapping[int, str]) -> Json:
    """Return arguments, which were checked before, with what placeholders stand for written out.

    Args:
        names: Server and tool of each held call.
    """
    if isinstance(value, str):
        return _text(value, names)
    if isinstance(value, Mapping):
        if stands_whole(value):
            return _text(str(value[WHOLE]), names)
        found: dict[str, Json] = {}
        for key, item in value.items():
            found[unlike(_literal(key), found)] = readable(item, names)
        return found
    if isinstance(value, list | tuple):
        return [readable(item, names) for item in value]
    return value


def shown(
    call: CallFacts,
    names: Mapping[int, str],
    mask: Mask,
    characters: int,
) -> tuple[dict[str, Json], bool]:
    """Return a call's arguments as they are shown, readable and without secrets; whether cut.

    Args:
        mask: Takes secrets out. It gets readable arguments: to it a placeholder may look like one.
    """
    masked = mask(readable(call.arguments, names), call.schema)
    if not isinstance(masked, Mapping):
        return {}, False
    if len(json.dumps(masked, ensure_ascii=False, default=str)) <= characters:
        return dict(masked), False
    cutter = _Cutter(characters)
    cut = cutter.value(masked)
    return cut if isinstance(cut, dict) else {}, True


def characters_each(calls: int) -> int:
    """Return how much is shown of each of so many calls."""
    share = MAX_PLAN_CHARACTERS // max(1, calls)
    return max(MIN_CALL_CHARACTERS, min(MAX_CALL_CHARACTERS, share))


def _text(text: str, names: Mapping[int, str]) -> str:
    pieces, position = [], 0
    for found in placeholders.find(text):
        pieces.append(_literal(text[position : found.start]))
        pieces.append(label(found.number, names.get(found.number, ""), found.path))
        position = found.end
    return "".join([*pieces, _literal(text[position:])])


def _literal(text: str) -> str:
    # A text that only reads like a placeholder would be shown as what it is not.
    return text.replace(LABEL, _NO_LABEL)


class _Cutter:
    """Cuts a value to about so many characters, and says what it left out."""

    def __init__(self, characters: int) -> None:
        self._left = characters

    def value(self, value: Json) -> Json:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return self._object(value)
        if isinstance(value, list | tuple):
            items: list[Json] = []
            for item in value:
                if self._left <= 0:
                    items.append(f"… ({len(value) - len(items):,} more items)")
                    break
                items.append(self.value(item))
            self._left -= 2
            return items
        self._left -= len(str(value))
        return value

    def _object(self, value: Mapping[str, Json]) -> dict[str, Json]:
        found: dict[str, Json] = {}
        for key, item in value.items():
            if self._left <= 0:
                found["…"] = f"({len(value) - len(found):,} more keys)"
                break
            found[unlike(self._text(key), found)] = self.value(item)
        self._left -= 2
        return found

    def _text(self, text: str) -> str:
        room = max(self._left, 20)
        self._left -= min(len(text), room) + 2
        if len(text) <= room:
            return text
        tail = room // 4
        more = f"{len(text) - room:,} more characters"
        return f"{text[: room - tail]}… ({more}) …{text[-tail:]}"
