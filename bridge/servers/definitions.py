"""Tools and servers as they are defined now, for the gate."""

from __future__ import annotations

import logging

from bridge.errors import UpstreamError
from bridge.model import Tool
from bridge.servers.servers import Servers

logger = logging.getLogger(__name__)


class Definitions:
    """What the gate asks about servers; see `bridge.gate.services.Inventory`."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers

    def definition(self, server: str) -> str:
        """Return the digest of a server's definition; empty if there is no such server."""
        return self._servers.definition(server)

    def is_own(self, server: str) -> bool:
        """Return whether a file of the user's, not of a project, defines a server."""
        return self._servers.is_own(server)

    def is_current(self, server: str) -> bool:
        """Return whether a server's tools are known as it lists them now."""
        return self._servers.is_current(server)

    async def define(self, server: str, tool: str) -> Tool | None:
        """Return a tool as its server describes it, asking the server if it never was asked."""
        known = self._servers.inventory
        if known.tools(server) is None:
            try:
                await self._servers.load([server])
            except UpstreamError as error:
                # The call itself will say what is the matter.
                logger.debug("the tools of %s are not known: %s", server, error)
        return known.tool(server, tool)

    async def define_now(self, asked: set[str], server: str, tool: str) -> Tool | None:
        """Return a tool as its server describes it now, for a policy that decides by that.

        Args:
            asked: Servers that were asked once more in this run.

        Raises:
            UpstreamError: The server cannot be reached, so that no call could be made.
        """
        try:
            await self._servers.ensure_current(server)
        except UpstreamError as error:
            if self._servers.pool.server(server).connection_epoch is None:
                raise
            # It lists nothing, but may take calls; what it said before is not believed any more.
            logger.debug("the tools of %s are not known: %s", server, error)
            return None
        found = self._servers.inventory.tool(server, tool)
        if found is None and server not in asked:
            # A call of what is not listed is denied, and some do not say that they list more.
            asked.add(server)
            await self._servers.ask_again([server])
            found = self._servers.inventory.tool(server, tool)
        return found
