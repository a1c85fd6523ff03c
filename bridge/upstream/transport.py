"""The interface of a transport: streams of JSON-RPC messages, and how a connection ended."""

from __future__ import annotations

import math
from collections.abc import Callable

from mcp.client import Transport

from bridge.model import Transport as TransportName
from bridge.upstream.direct_dispatcher import DirectDispatcher
from bridge.upstream.refusal import Refusal


class Endpoint:
    """One server's address for one connection, opened again only after `fall_back`.

    Attributes:
        last_heard: Time of the server's last data, by `clock.current_time`.
        direct: Sends requests past the SDK's session, over stdio; None before `open`.
        refusal: The last HTTP response that was an error.
        on_login: Receives the address at which a starting server waits for its user to log in.
    """

    transport: TransportName
    last_heard: float = -math.inf
    direct: DirectDispatcher | None = None
    refusal: Refusal | None = None
    on_login: Callable[[str], None] | None = None
    pid: int | None = None

    @property
    def installing(self) -> bool:
        """Whether a package runner is still installing the server."""
        return False

    @property
    def last_line(self) -> str:
        """The server process's last line on stderr; may be empty."""
        return ""

    @property
    def cause_of_end(self) -> str:
        """Why the connection ended, as sentences for programs; may be empty."""
        return ""

    def noise_since(self, begun: float) -> str:
        """Return the last line since `begun` that is not a message; may be empty."""
        return ""

    def end_report(self) -> str:
        return ""

    async def prepare(self) -> None:
        """Wait for another installation of this server, and clean up after ended bridges."""
        return

    def open(self, until: float) -> Transport:
        """Connect before the time `until`; leaving the context closes everything."""
        raise NotImplementedError

    def finish_start(self) -> None:
        """Note that the start has succeeded or failed."""
        return

    def fall_back(self) -> bool:
        """Change the transport if the failure suggests that; return whether it changed."""
        return False
