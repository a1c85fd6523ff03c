"""The channel to a session's sandbox, over which one run follows another.

Owns the knowledge whether everything that was ever sent has gone out whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from bridge.rpc.channel import Channel


class SessionChannel(Channel):
    """A channel that knows whether another run can be sent over it."""

    _unfinished = 0

    async def write(self, pieces: Iterable[bytes]) -> None:
        """Write a frame; if that is cut short, nothing can follow it."""
        self._unfinished += 1
        await super().write(pieces)
        self._unfinished -= 1

    @property
    def whole(self) -> bool:
        """Whether no frame was left half written."""
        return not self._unfinished
