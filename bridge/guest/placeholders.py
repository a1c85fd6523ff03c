"""How the result of a call that is held back, or a part of it, is written inside arguments.

Owns the text that stands for it, which survives what programs do to texts on their way: quoting for
an address, for HTML, for JSON. Host and guest both import this; whether a text is one of a run's
own, and what it stands for, is the host's to say.

    heldresult PLAN n NUMBER p PATH c CHECK end

PLAN is the run's own, 16 hexadecimal digits that nobody can guess; NUMBER the call's; PATH the
names and indexes that lead into its result, as JSON in hexadecimal digits; CHECK a CRC-32 of what
stands before it. A text that begins so and does not fit was changed by the program.
"""

from __future__ import annotations

import json
import re
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator, List, Optional, Sequence, Union

    Step = Union[str, int]

PREFIX = "heldresult"

WHOLE = "$heldResult"
"""The one key of an object that stands for a result, or a part of one, with its own type."""

_TOKEN = re.compile(r"heldresult([0-9a-f]{16})n([0-9]{1,6})p((?:[0-9a-f]{2})*)c([0-9a-f]{8})end")

_TRACE = re.compile("heldresult", re.IGNORECASE)


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
    return "%sc%08xend" % (head, zlib.crc32(head.encode()))


def find(text: str) -> Iterator[Placeholder]:
    """Yield the placeholders in a text.

    Raises:
        ValueError: Something was one, and was changed.
    """
    position = 0
    while True:
        trace = _TRACE.search(text, position)
        if trace is None:
            return
        match = _TOKEN.match(text, trace.start())
        found = None if match is None else _read(match)
        if found is None:
            message = "the text holds a placeholder that was changed"
            raise ValueError(message)
        yield found
        position = found.end


def _read(match: Any) -> Optional[Placeholder]:
    plan, number, steps, check = match.groups()
    head = match.group(0)[: -len("c" + check + "end")]
    if "%08x" % zlib.crc32(head.encode()) != check:
        return None
    try:
        path = json.loads(bytes.fromhex(steps).decode()) if steps else []
    except (ValueError, RecursionError):
        return None
    if not isinstance(path, list) or not all(type(step) in (str, int) for step in path):
        return None
    return Placeholder(match.start(), match.end(), plan, int(number), path)
