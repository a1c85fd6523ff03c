"""A session's state as its guest sends it: bytes that only another guest reads.

Owns the bound on them. The host never looks inside. A malformed part makes the checkpoint unusable,
and nothing else: the session goes on, and its next checkpoint may be good.
"""

from __future__ import annotations

from bridge.guest.protocol.wire import State
from bridge.model import Loss
from bridge.text import valid_text, visible

MAX_STATE_BYTES = 44 * 1024 * 1024
"""Of one state. As base64 it goes into one frame with which a session begins, and those hold 64 MB;
guests are asked for no more than 32 MB of values and files, to which the sources come."""

MAX_PART_BYTES = 1024 * 1024  # Of one part, twice what our guest sends.
MAX_PARTS = 4096  # Thirty times what our guest needs for the largest state.
MAX_LOST = 200  # Losses that are reported.

MAX_NAME_CHARS = 80


class StateParts:
    """Takes the parts of one state.

    Attributes:
        lost: What is not in it, as the guest says.
        problem: Why there is no state, if what came was none.
    """

    def __init__(self) -> None:
        self.lost: tuple[Loss, ...] = ()
        self.problem = ""
        self._parts: list[bytes] = []
        self._size = 0
        self._count = 0

    def take(self, frame: State) -> None:
        if self.problem:
            return
        self._count += 1
        if self._count > MAX_PARTS:
            self.refuse(f"it came in more than {MAX_PARTS:,} parts")
        elif len(frame.data) > MAX_PART_BYTES:
            self.refuse(f"a part of it has more than {MAX_PART_BYTES:,} bytes")
        else:
            self._add(frame.data)
        if frame.lost and not self.problem:
            self.lost = losses(frame.lost)

    @property
    def data(self) -> bytes | None:
        if self.problem or not self._parts:
            return None
        # Joined once, and asked for several times.
        self._parts = [b"".join(self._parts)]
        return self._parts[0]

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > MAX_STATE_BYTES:
            self.refuse(f"it is larger than {MAX_STATE_BYTES:,} bytes")
        elif part:
            self._parts.append(part)

    def refuse(self, problem: str) -> None:
        """Drop the state, for a reason."""
        self.problem = problem
        self._parts.clear()


def losses(*said: object, most: int = MAX_LOST) -> tuple[Loss, ...]:
    """Return the losses that a guest reports as pairs of texts, each name once.

    Args:
        said: Lists of anything: their sender is hostile.
        most: Most of them; the last says how many more there are.
    """
    found: dict[str, Loss] = {}
    more = 0
    for entry in (entry for each in said if isinstance(each, list | tuple) for entry in each):
        match entry:
            case Loss(name=name, why=why) | [str(name), str(why)]:
                name = shown_line(name, MAX_NAME_CHARS)
            case _:
                continue
        if name not in found and len(found) >= most:
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
