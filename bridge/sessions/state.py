"""A session's state as its guest sends it: bytes that only another guest reads.

Owns the bound on them. The host never looks inside. A malformed part makes the checkpoint unusable,
and nothing else: the session continues, and its next checkpoint may be good.
"""

from __future__ import annotations

from bridge.guest.protocol.wire import State
from bridge.model import Loss
from bridge.text import valid_text, visible

# A guest can send a state of any size, with any number of names of any length.
MAX_STATE_BYTES = 44 * 1024 * 1024
"""Of a state, and of a restored one with the run's files: as base64 they go into one frame, and
those hold 64 MB. Guests are asked for no more than 32 MB, to which the sources come."""

MAX_NAMES = 40  # Listed; the others are counted.
MAX_NAME_CHARS = 80


class StateParts:
    """Takes the parts of one state; `problem` says why they are none."""

    def __init__(self) -> None:
        self.lost: tuple[Loss, ...] = ()
        self.problem = ""
        self._data = bytearray()

    def take(self, frame: State) -> None:
        if self.problem:
            return
        if len(self._data) + len(frame.data) > MAX_STATE_BYTES:
            self.refuse(f"it is larger than {MAX_STATE_BYTES:,} bytes")
            return
        self._data += frame.data
        if frame.lost:
            self.lost = losses(frame.lost)

    @property
    def data(self) -> bytes | None:
        return bytes(self._data) or None

    def refuse(self, problem: str) -> None:
        """Drop the state, for a reason."""
        self.problem = problem
        self._data.clear()


def losses(*said: object) -> tuple[Loss, ...]:
    """Return the losses that a hostile guest reports as pairs of texts, each name once."""
    found: dict[str, Loss] = {}
    more = 0
    for entry in (entry for each in said if isinstance(each, list | tuple) for entry in each):
        match entry:
            case Loss(name=name, why=why) | [str(name), str(why)]:
                name = shown_line(name, MAX_NAME_CHARS)
            case _:
                continue
        if name not in found and len(found) >= MAX_NAMES:
            more += 1
        elif name not in found:
            found[name] = Loss(name=name, why=shown_line(why, 300))
    if more:
        found["..."] = Loss(name="...", why=f"and {more:,} more")
    return tuple(found.values())


def shown_line(text: str, most: int) -> str:
    """Return a text of a guest's in one line, and bounded."""
    shown = visible(valid_text(text[: most + 1]), keep="")
    return shown if len(shown) <= most else f"{shown[:most]}..."
