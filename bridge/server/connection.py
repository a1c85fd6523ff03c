"""One HTTP connection: whose it is, and how long it may wait for the head of a request."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from bridge.server.admission import RequestAdmission

HEAD_SECONDS = 10.0  # For the head of a request to arrive: a client may never send it.


class HttpConnection(H11Protocol):
    """One connection; it ends if the head of a request does not arrive in time.

    Attributes:
        caller: Whose it is; empty until a request with a token came.
        user: The user id at its other end, if it is a Unix socket's.
    """

    def __init__(self, admission: RequestAdmission, **others: Any) -> None:
        super().__init__(**others)
        self.app_state = {**self.app_state, "connection": self}
        self.caller = self.user = ""
        self._admission = admission
        self._timer: asyncio.TimerHandle | None = None

    @property
    def busy(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX and hasattr(socket, "SO_PEERCRED"):
            found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            self.caller = self.user = f"uid {struct.unpack('3i', found)[1]}"
        self._timer = self.loop.call_later(HEAD_SECONDS, transport.abort)
        self._admission.accept(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.busy and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        elif not self.busy and self._timer is None:
            self._timer = self.loop.call_later(HEAD_SECONDS, self.transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._admission.connections.pop(self, None)
        super().connection_lost(exc)
