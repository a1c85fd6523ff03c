"""The channel to a session's sandbox, over which one run follows another.

Owns the knowledge whether everything that was ever sent has gone out whole.
"""

from __future__ import annotations

from bridge.rpc.channel import Channel


class SessionChannel(Channel):
    """A channel that knows whether another run can be sent over it."""

    _unfinished = 0

    async def send_bytes(self, data: bytes) -> None:
        """Write bytes; if that is cut short, nothing can follow them."""
        self._unfinished += 1
        await super().send_bytes(data)
        self._unfinished -= 1

    @property
    def whole(self) -> bool:
        """Whether no frame was left half written."""
        return not self._unfinished
