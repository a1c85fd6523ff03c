"""A session's state as its guest sends it: bounded bytes that only another guest reads.

A malformed part makes this checkpoint unusable. The session continues.
"""

from __future__ import annotations

from bridge.guest.protocol.wire import State
from bridge.model import Loss
from bridge.text import valid_text, visible

# A guest can send a state of any size, with any number of names of any length.
MAX_STATE_BYTES = 44 * 1024 * 1024
"""The largest state, and the largest restored state with a run's files. As base64 they fit into one
frame of 64 MB. Guests are asked for at most 32 MB and add the sources."""

MAX_NAMES = 40  # The other names are counted.
MAX_NAME_CHARS = 80


class StateParts:
    """Collects the parts of one state; `problem` says why they are unusable."""

    def __init__(self) -> None:
        self.lost: tuple[Loss, ...] = ()
        self.problem = ""
        self._data = bytearray()

    def add(self, frame: State) -> None:
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
        """Drop the state and record the reason."""
        self.problem = problem
        self._data.clear()


def losses(*said: object) -> tuple[Loss, ...]:
    """Return the losses that a possibly hostile guest reports, each name once."""
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
    """Return a guest's text in one bounded line."""
    shown = visible(valid_text(text[: most + 1]), keep="")
    return shown if len(shown) <= most else f"{shown[:most]}..."
