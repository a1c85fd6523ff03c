"""How the result of a call that is held back, or a part of it, is written inside arguments.

Owns the text that stands for it, which survives what programs do to texts on their way: quoting for
an address, for HTML, for JSON. Host and guest both import this; whether a text is one of a run's
own, and what it stands for, is the host's to say.

    heldresult PLAN n NUMBER p PATH c CHECK end

PLAN is the run's own, 16 hexadecimal digits that nobody can guess; NUMBER the call's; PATH the
names and indexes that lead into its result, as JSON in hexadecimal digits; CHECK a CRC-32 of what
stands before it. A text that begins so and does not fit was changed by the program.

Owns also the label by which people and models read of one, which stands for nothing.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator, List, Optional, Sequence, Union

    Step = Union[str, int]

PREFIX = "heldresult"

READING = "toberead"
"""Follows a placeholder in a text that is for reading only."""

WHOLE = "$heldResult"
"""The one key of an object that stands for a result, or a part of one, with its own type."""

LABEL = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}result of #"
"""How a label begins."""

MAX_LABEL_CHARS = 200
"""Of the way into a result, in a label."""

MAX_DEPTH = 200
"""Of data in which placeholders are labelled; what is deeper is left as it is."""

_TOKEN = r"heldresult([0-9a-f]{16})n([0-9]{1,6})p((?:[0-9a-f]{2})*)c([0-9a-f]{8})end"
"""Compiled where it is used, which `re` remembers: runs without plans are spared the time."""


class Unknown:
    """What stands for a value that nobody knows yet; see `held`, which few runs import."""

    __slots__ = ()


class Placeholder:
    """One occurrence in a text: from `start` to `end`, of call `number` in run `plan`."""

    __slots__ = ("end", "number", "path", "plan", "start")

    def __init__(self, start: int, end: int, plan: str, number: int, path: List[Step]) -> None:
        self.start = start
        self.end = end
        self.plan = plan
        self.number = number
        self.path = path


def write(plan: str, number: int, path: Sequence[Step] = ()) -> str:
    """Return the text that stands for a part of a call's result."""
    steps = json.dumps(list(path), separators=(",", ":")) if path else ""
    head = "%s%sn%dp%s" % (PREFIX, plan, number, steps.encode().hex())
    return "%sc%08xend" % (head, _checksum(head))


def label(number: int, call: str, path: Sequence[Step] = ()) -> str:
    """Return how people read of a part of a call's result: `‹result of #3 git.log›[0].id`.

    Args:
        call: Server and tool.
    """
    way = ""
    for step in path:
        plain = isinstance(step, str) and step.isidentifier()
        way += ".%s" % step if plain else "[%s]" % json.dumps(step, ensure_ascii=False)
    if len(way) > MAX_LABEL_CHARS:
        way = way[:MAX_LABEL_CHARS] + "..."
    end = "\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}"
    return "%s%d %s%s%s" % (LABEL, number, call, end, way)


def readable(value: Any, plan: str, call_of: Callable[[int], str], depth: int = 0) -> Any:
    """Return JSON data as people read it, with labels in place of a run's own placeholders.

    Args:
        call_of: Gives server and tool of a held call; an empty text for a number that is none.
        depth: How deep in the data this is.
    """
    if depth > MAX_DEPTH:
        return value

    def named(match: Any) -> str:
        found = _read(match)
        call = "" if found is None or found.plan != plan else call_of(found.number)
        return label(found.number, call, found.path) if found is not None and call else match[0]

    if isinstance(value, str):
        return re.sub("%s(?:%s)?" % (_TOKEN, READING), named, value) if PREFIX in value else value
    if isinstance(value, list):
        return [readable(item, plan, call_of, depth + 1) for item in value]
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(value.get(WHOLE), str):
            return readable(value[WHOLE], plan, call_of)
        return {
            readable(key, plan, call_of): readable(item, plan, call_of, depth + 1)
            for key, item in value.items()
        }
    return value


def for_reading(text: str) -> str:
    """Return a text whose placeholders are shown by name, and refused in calls."""
    return re.sub(_TOKEN, lambda match: match[0] + READING, text)


def find(text: str) -> Iterator[Placeholder]:
    """Yield the placeholders in a text.

    Raises:
        ValueError: Something was one, and was changed.
    """
    traces, token = re.compile(PREFIX, re.IGNORECASE), re.compile(_TOKEN)
    position = 0
    while True:
        trace = traces.search(text, position)
        if trace is None:
            return
        match = token.match(text, trace.start())
        found = None if match is None else _read(match)
        if found is None:
            message = "the text holds a placeholder that was changed"
            raise ValueError(message)
        yield found
        position = found.end


def _read(match: Any) -> Optional[Placeholder]:
    plan, number, steps, check = match.groups()
    # What may follow it for reading is no part of it.
    head = "%s%sn%sp%s" % (PREFIX, plan, number, steps)
    if "%08x" % _checksum(head) != check:
        return None
    try:
        path = json.loads(bytes.fromhex(steps).decode()) if steps else []
    except (ValueError, RecursionError):
        return None
    if not isinstance(path, list) or not all(type(step) in (str, int) for step in path):
        return None
    return Placeholder(match.start(), match.end(), plan, int(number), path)


def _checksum(text: str) -> int:
    import zlib  # a millisecond, which runs without plans are spared

    return zlib.crc32(text.encode())
