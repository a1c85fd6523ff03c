"""A port that no other test uses."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a port without listening on it; servers with SO_REUSEADDR may listen."""
    with socket.socket() as held:
        # A server can then bind the port, too, and the kernel gives it to no other program.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
