"""The host's replies as they arrive: lines of JSON, and large texts beside them.

Owns the framing of this one direction after the program has been started; `bridge.rpc.replies` is
the other end. A text stands before the line of its reply, behind a line of "+" and its size in
bytes. The host is trusted: what it sends is taken as it is.
"""

from __future__ import annotations

import json

from bridge.guest.values import MCPError, Result

TYPE_CHECKING = False
if TYPE_CHECKING:
    import asyncio
    from typing import Any, Iterator, List, Optional, Tuple, Union

    from bridge.guest.blocking import Box

    Waiter = Union[Tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]"], Box]

_BESIDE = b"+"

_DECODER = json.JSONDecoder(object_hook=Result)
# Straight into `Result`: a walk over a large value afterwards would take long.


class Replies:
    """Bytes in any portions to replies. Each byte of a long one is moved once or twice."""

    def __init__(self) -> None:
        self._parts: List[bytes] = []
        self._texts: List[bytearray] = []
        self._missing = 0

    def feed(self, data: bytes) -> Iterator[Tuple[bytes, List[bytearray]]]:
        """Yield each line that `data` completes, with the texts that belong to it.

        Exhaust the iterator before feeding again.
        """
        start = 0
        while start < len(data):
            if self._missing:
                part = data[start : start + self._missing]
                self._texts[-1] += part
                self._missing -= len(part)
                start += len(part)
                continue
            end = data.find(b"\n", start)
            stop = len(data) if end < 0 else end
            if stop > start:
                self._parts.append(data[start:stop])
            start = stop + 1
            if end < 0:
                return
            line = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._parts = []
            if line.startswith(_BESIDE):
                self._missing = int(line)
                self._texts.append(bytearray())
            elif line:
                texts, self._texts = self._texts, []
                yield line, texts


def read_reply(line: bytes, texts: List[bytearray]) -> Any:
    """Return the reply that a line and its texts hold.

    Raises:
        RecursionError, MemoryError: It cannot be held here.
    """
    reply = _DECODER.decode(line.decode("utf-8", "surrogatepass"))
    if texts:
        value = reply["value"]
        for path in value["texts"]:
            target = value
            for name in ["rest", *path[:-1]]:
                target = target[name]
            target[path[-1]] = texts.pop(0).decode()
        reply["value"] = value["rest"]
    return reply


def broken(error: Exception) -> str:
    """Say why nothing more can be read."""
    # Whatever it is (no memory for a reply, say), nobody may wait for ever.
    return "the connection to the bridge broke: %s" % (str(error) or type(error).__name__)


def settle(waiter: Waiter, outcome: Any, here: Optional[asyncio.AbstractEventLoop] = None) -> None:
    """Give whoever waits what came, or have it raised there.

    Args:
        here: The loop in which this is called, if it is called in one.
    """
    if not isinstance(waiter, tuple):
        waiter.fill(outcome)
        return
    loop, future = waiter

    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, MCPError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    if loop is here:
        settle()
        return
    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop has ended, and whoever waited in it.
        return
