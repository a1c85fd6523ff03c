"""A background bridge's end of a front's socket."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
from collections.abc import Callable
from typing import Any

import anyio
from mcp.shared.dispatcher import as_request_id
from mcp.types import JSONRPCMessage, JSONRPCNotification, JSONRPCRequest
from mcp_types.jsonrpc import RequestId

from bridge.descriptor_reader import READ_BYTES, Reader
from bridge.errors import ChannelClosedError
from bridge.server.stdio import CANCELLED, Observer
from bridge.upstream.framing import OversizeLine

_SET_UP = ("initialize", "notifications/initialized", "logging/setLevel")
"""Methods that set up a client's session. A method's last message counts."""


class Link(Observer):
    """A front's connection: reads the client's input, and reports its handling to the front.

    `Front` describes the input and the reports. Close the link at the end.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.descriptors: list[int] = []  # Those that the front has passed.
        self._socket = connection
        self._unsent = bytearray()
        self._open = dict[RequestId, str]()  # With their methods.
        self.is_busy: Callable[[], object] = bool  # Returns what is true while the client has runs.
        self._leaving = False
        self.scope = anyio.CancelScope()  # Of the client's session.
        # Of the client's input, which ends with the client's or the front's end.
        self.reader = Reader(connection, self._receive)

    async def hello(self) -> dict[str, Any]:
        """Return a front's first message, a JSON object on one line; keep its `descriptors`.

        Raises:
            ChannelClosedError: The front ends before it has sent a line.
            ValueError: The line is not JSON.
        """
        await anyio.wait_readable(self._socket)
        data, self.descriptors, _, _ = socket.recv_fds(self._socket, READ_BYTES, 3)
        while b"\n" not in data:
            if not (more := await self.reader.read()):
                raise ChannelClosedError("A front has ended before its first message.")
            data += more
        line, _, rest = data.partition(b"\n")
        self.reader.unread(rest)
        message: dict[str, Any] = json.loads(line)
        return message

    def tell(self, **facts: object) -> None:
        """Send a report to the front without waiting for the front."""
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
            # The front is slow or stopped.
            loop.add_writer(self._socket, self._flush)
        else:
            loop.remove_writer(self._socket)

    async def take(self, line: bytes | OversizeLine, message: JSONRPCMessage | None) -> None:
        if self._leaving and isinstance(message, JSONRPCRequest):
            given = message.params or {}
            reads = isinstance(sent := given.get("arguments"), dict) and sent.keys() == {"retry_of"}
            if message.method == "tools/call" and not (reads or "requestState" in given):
                # It begins a run, and the front sends it to the next bridge.
                await anyio.sleep_forever()
        size = line.size if isinstance(line, OversizeLine) else len(line)
        facts: dict[str, object] = {"taken": size + 1}
        if isinstance(message, JSONRPCNotification) and message.method == CANCELLED:
            number = as_request_id((message.params or {}).get("requestId"))
            if number in self._open:
                # A cancelled request gets no response.
                self.note_response(number)
        if isinstance(message, JSONRPCRequest):
            facts["begun"] = json.dumps(message.id)
            self._open[message.id] = message.method
        if isinstance(message, JSONRPCRequest | JSONRPCNotification) and isinstance(line, bytes):
            name = message.method
            if name in ("resources/subscribe", "resources/unsubscribe"):
                name = f"subscribe {(message.params or {}).get('uri')}"
            if name in _SET_UP or name != message.method:
                ends = message.method == "resources/unsubscribe"
                facts["line"] = name, "" if ends else line.decode("utf-8", "replace")
        self.tell(**facts)

    def note_run(self, number: RequestId, run_id: str) -> None:
        """Report which run a request has begun, unless the client has cancelled it."""
        if number in self._open:
            self.tell(begun=json.dumps(number), run=run_id)

    def note_writing(self, *, long: bool) -> None:
        self.tell(torn=long)

    def note_response(self, number: RequestId) -> None:
        self.tell(ended=json.dumps(number))
        self._open.pop(number, None)
        if self._leaving:
            self.leave()

    def leave(self) -> None:
        """End the session if its runs and requests have ended and the front knows it.

        The front connects to another bridge. Until then the session begins no more runs.
        """
        self._leaving = True
        # A stream of notifications would stay open until the client ends it.
        is_answered = set(self._open.values()) <= {"subscriptions/listen"}
        if is_answered and not (self._unsent or self.is_busy()):
            self.scope.cancel()

    def _receive(self) -> bytes | None:
        try:
            if data := self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT):
                return data
        except BlockingIOError:
            return None
        except ConnectionResetError:
            pass
        hang_up = select.poll()
        hang_up.register(self._socket, 0)
        if hang_up.poll(0):
            # The front itself has ended, so an unfinished last line gets no answer.
            self.scope.cancel()
        return b""

    def close(self) -> None:
        self.reader.close()
        asyncio.get_running_loop().remove_writer(self._socket)
        self._socket.close()
        for descriptor in self.descriptors:
            os.close(descriptor)
