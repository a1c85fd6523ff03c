"""The interface of a transport: streams of JSON-RPC messages, and how a connection ended.

Implemented by `stdio.StdioEndpoint` and `http.HttpEndpoint`.
"""

from __future__ import annotations

from typing import Protocol

from mcp.client import Transport

from bridge.model import Transport as TransportName
from bridge.upstream.direct_dispatcher import DirectDispatcher
from bridge.upstream.refusal import Refusal


class Endpoint(Protocol):
    """One server's address. Opened once; a new connection needs a new endpoint."""

    @property
    def pid(self) -> int | None:
        """The server's process id, over stdio."""

    @property
    def refusal(self) -> Refusal | None:
        """The last HTTP response that was an error."""

    @property
    def expired(self) -> bool:
        """Whether the server has rejected the session (HTTP 404 to an `Mcp-Session-Id`)."""

    @property
    def transport(self) -> TransportName:
        """The transport's name."""

    @property
    def direct(self) -> DirectDispatcher | None:
        """Sends requests past the SDK's session, over stdio; None before `open`."""

    def alternative(self) -> Endpoint | None:
        """Return another transport to the same server, if this one's failure suggests it."""

    def open(self) -> Transport:
        """Connect; leaving the context closes everything."""

    def end_report(self) -> str:
        """Return how the connection ended, in sentences; may be empty."""
