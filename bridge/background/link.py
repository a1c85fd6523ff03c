"""A background bridge's end of the socket of a front."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

import anyio
from mcp.shared.dispatcher import as_request_id
from mcp.types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest
from mcp_types.jsonrpc import RequestId

from bridge.descriptor_reader import READ_BYTES, Reader
from bridge.errors import ChannelClosedError
from bridge.server.stdio import CANCELLED, Witness
from bridge.upstream.framing import OversizeLine

_SET_UP = ("initialize", "notifications/initialized", "logging/setLevel")
"""Methods whose last message sets up a client's session."""


class Link(Witness):
    """Reads the frames with a client's input, and tells its front what has become of it."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = bytearray()
        self._left = 0  # Bytes of the frame that is being read.
        self._ended = False
        self._unsent = bytearray()
        self._open = set[RequestId]()
        self._leaving = False
        self.scope = anyio.CancelScope()  # Of the client's session.
        self._reader = Reader(connection, self._receive)

    async def hello(self) -> tuple[dict[str, Any], list[int]]:
        """Return a front's first message, and the descriptors that it passes.

        Raises:
            ChannelClosedError: It sends none.
        """
        await anyio.wait_readable(self._socket)
        data, descriptors, _, _ = socket.recv_fds(self._socket, READ_BYTES, 3)
        try:
            self._buffer += data
            while b"\n" not in self._buffer:
                if not (data := await self._reader.read()):
                    raise ChannelClosedError("A front has not said what it wants.")
                self._buffer += data
            line, _, rest = bytes(self._buffer).partition(b"\n")
            self._buffer = bytearray(rest)
            said: dict[str, Any] = json.loads(line)
        except BaseException:
            for descriptor in descriptors:
                socket.close(descriptor)
            raise
        return said, descriptors

    def tell(self, **facts: object) -> None:
        """Send a line to the front, without waiting for it."""
        self._unsent += json.dumps(facts, separators=(",", ":")).encode() + b"\n"
        self._flush()

    def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            del self._unsent[: self._socket.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()
        if self._unsent:
            # The front is slow, or was stopped.
            loop.add_writer(self._socket, self._flush)
        else:
            loop.remove_writer(self._socket)

    async def take(self, line: bytes | OversizeLine, message: JSONRPCMessage | None) -> None:
        if self._leaving and isinstance(message, JSONRPCRequest):
            # The next bridge gets it.
            await anyio.sleep_forever()
        size = line.size if isinstance(line, OversizeLine) else len(line)
        facts: dict[str, object] = {"taken": size + 1}
        if isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
            number = as_request_id((message.params or {}).get("requestId"))
            if number in self._open:
                # It gets no response.
                self.note_response(number)
        if isinstance(message, JSONRPCRequest):
            facts["begun"] = json.dumps(message.id)
            self._open.add(message.id)
        if isinstance(message, JSONRPCRequest | JSONRPCNotification) and isinstance(line, bytes):
            name = message.method
            if name in ("resources/subscribe", "resources/unsubscribe"):
                name = f"subscribe {(message.params or {}).get('uri')}"
            if name in _SET_UP or name != message.method:
                facts["line"] = name, line.decode("utf-8", "replace")
        self.tell(**facts)

    def note_run(self, number: RequestId, run_id: str) -> None:
        """Note which run a request has begun."""
        self.tell(begun=json.dumps(number), run=run_id)

    def note_writing(self, *, long: bool) -> None:
        self.tell(torn=long)

    def note_response(self, number: RequestId) -> None:
        self.tell(ended=json.dumps(number))
        self._open.discard(number)
        if self._leaving and not self._open:
            self.scope.cancel()

    def leave(self) -> None:
        """End the session once its open requests are answered; the front takes another bridge."""
        self._leaving = True
        if not self._open:
            self.scope.cancel()

    async def read(self) -> bytes:
        """Return the next bytes of the client's input; empty when it has ended or gone."""
        while not (data := self._next()) and not self._ended:
            received = await self._reader.read()
            self._buffer += received
            self._ended = not received
        return data

    def _next(self) -> bytes:
        while not self._left and not self._ended:
            header, newline, _ = bytes(self._buffer[:24]).partition(b"\n")
            if not newline:
                return b""
            del self._buffer[: len(header) + 1]
            self._left, self._ended = int(header[1:]), header[:1] == b"E"
        data = bytes(self._buffer[: self._left])
        del self._buffer[: len(data)]
        self._left -= len(data)
        return data

    def _receive(self) -> bytes | None:
        with suppress(BlockingIOError):
            try:
                return self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
            except ConnectionResetError:
                return b""
        return None

    def close(self) -> None:
        self._reader.close()
        asyncio.get_running_loop().remove_writer(self._socket)
