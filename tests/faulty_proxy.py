"""A TCP proxy on loopback that delays, hangs or refuses, for a server behind it."""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Fault = Literal["", "hang", "refuse"]

_LOOK_SECONDS = 0.02


@dataclass(eq=False)
class _Way:
    """One direction of a connection: the pieces that wait until they are due."""

    source: socket.socket
    target: socket.socket
    pieces: deque[tuple[float, bytes]] = field(default_factory=deque)


class FaultyProxy:
    """Forwards connections to a port of this machine.

    Attributes:
        delay: Seconds that each piece waits, in each direction.
    """

    def __init__(self, port: int) -> None:
        self.delay = 0.0
        self._target = port
        self._fault: Fault = ""
        self._ways: dict[socket.socket, _Way] = {}
        self._changing = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def fault(self) -> Fault:
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        """Set what happens to connections: `hang` forwards nothing, `refuse` closes all."""
        with self._changing:
            self._fault = fault
            if fault == "refuse":
                self._drop_all()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._drop_all()
        self._selector.close()
        self._listener.close()

    def _serve(self) -> None:
        while not self._ending.is_set():
            if self._fault == "hang":
                self._ending.wait(_LOOK_SECONDS)
                continue
            ready = self._selector.select(self.delay / 8 or _LOOK_SECONDS)
            with self._changing:
                for key, _ in ready:
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._receive(key.fileobj)
                self._send_due()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        if self._fault == "refuse":
            client.close()
            return
        try:
            server = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            client.close()
            return
        for source, target in ((client, server), (server, client)):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._ways[source] = _Way(source, target)
            self._selector.register(source, selectors.EVENT_READ)

    def _receive(self, source: socket.socket) -> None:
        way = self._ways.get(source)
        if way is None:
            return
        try:
            data = source.recv(1 << 18)
        except OSError:
            data = b""
        way.pieces.append((time.monotonic() + self.delay, data))
        if not data:
            self._selector.unregister(source)

    def _send_due(self) -> None:
        now = time.monotonic()
        for way in tuple(self._ways.values()):
            while way.pieces and way.pieces[0][0] <= now:
                _, data = way.pieces.popleft()
                try:
                    if not data:
                        raise ConnectionError
                    way.target.sendall(data)
                except OSError:
                    self._drop(way)
                    break

    def _drop(self, way: _Way) -> None:
        for end in (way.source, way.target):
            self._ways.pop(end, None)
            with suppress(KeyError, ValueError):
                self._selector.unregister(end)
            end.close()

    def _drop_all(self) -> None:
        for way in tuple(self._ways.values()):
            self._drop(way)


@contextmanager
def faulty_proxy(port: int) -> Iterator[FaultyProxy]:
    proxy = FaultyProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
