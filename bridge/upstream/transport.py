"""What every way of reaching a server has in common.

Owns the shape only: streams of JSON-RPC messages, and words about how a connection ended.
"""

from __future__ import annotations

from typing import Protocol

from mcp.client import Transport

from bridge.model import Transport as TransportName
from bridge.upstream.direct import Direct
from bridge.upstream.refusal import Refusal


class Endpoint(Protocol):
    """One server's address. Opened once; a new connection needs a new endpoint."""

    @property
    def pid(self) -> int | None:
        """The server's process, where there is one of ours."""

    @property
    def refusal(self) -> Refusal | None:
        """The last HTTP response that was an error."""

    @property
    def expired(self) -> bool:
        """Whether the server has said that it no longer knows the session."""

    @property
    def transport(self) -> TransportName:
        """What is spoken to the server."""

    @property
    def direct(self) -> Direct | None:
        """The short way for requests, while it is open and if it has one."""

    def alternative(self) -> Endpoint | None:
        """Return another way to the same server, if how this one failed suggests it."""

    def open(self) -> Transport:
        """Connect; leaving the context leaves nothing of the connection."""

    def account(self) -> str:
        """Say what is known about how the connection ended, in sentences; may be empty."""
