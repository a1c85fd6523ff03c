"""A pod's stdin, stdout and stderr over one websocket.

Speaks `v5.channel.k8s.io`, which can end stdin alone, and `v4.channel.k8s.io`, which cannot. Each
message begins with its channel's number.
"""

from __future__ import annotations

import anyio
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from bridge.errors import ChannelClosedError

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")

SEND_BYTES = 512 * 1024  # Most of stdin in one message; servers take a megabyte.
DIAGNOSTIC_BYTES = 16 * 1024  # Kept of stderr's end.
CLOSE_SECONDS = 0.5  # A kubelet may not answer; the pod is gone by then.

_STDIN, _STDOUT, _STDERR, _STATUS = b"\0", b"\1", b"\2", b"\3"


class PodStream:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._stderr = self._unread = b""
        self._closed = self._finished = self._input_ended = False

    @property
    def stderr(self) -> str:
        return self._stderr.decode("utf-8", "backslashreplace")

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            for start in range(0, len(view), SEND_BYTES):
                await self._socket.send(_STDIN + view[start : start + SEND_BYTES])
        except ConnectionClosed as error:
            raise ChannelClosedError("The pod's stream has ended.") from error

    def end_input(self) -> None:
        """End stdin with the next `receive`, if the protocol can."""
        self._input_ended = self._socket.subprotocol == PROTOCOLS[0]

    async def receive(self) -> bytes:
        """Return the next of stdout, empty at the end; ConnectionError if the stream broke."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        while not self._closed:
            try:
                if self._input_ended:
                    self._input_ended = False
                    await self._socket.send(b"\xff\0")
                message = await self._socket.recv(decode=False)
            except ConnectionClosedOK:
                break
            except ConnectionClosed as error:
                if self._finished or self._closed:
                    break
                raise ConnectionError(str(error)) from error
            channel, data = message[:1], message[1:]
            if channel == _STDOUT and data:
                return data
            if channel == _STDERR:
                self._stderr = (self._stderr + data)[-DIAGNOSTIC_BYTES:]
            self._finished = self._finished or channel == _STATUS
        self._closed = True
        return b""

    def unread(self, data: bytes) -> None:
        self._unread = data

    async def close(self) -> None:
        self._closed = True
        await close_socket(self._socket)


async def close_socket(socket: ClientConnection) -> None:
    """Close a websocket, also one whose other end takes nothing more. Idempotent."""
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(2 * CLOSE_SECONDS):
            await socket.close()
        socket.transport.abort()
