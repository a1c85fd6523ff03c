"""A port of this machine that no other test is given."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Lend a port on which no one listens yet; whoever names it may, as servers do."""
    with socket.socket() as held:
        # With this a server can have the address as well, and the kernel gives it to no one else.
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]
