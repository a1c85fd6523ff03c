"""What decides whether a server is started or connected to, as the pool sees it."""

from __future__ import annotations

from typing import Protocol

from bridge.model import ServerSpec


class Admission(Protocol):
    """Every start passes it twice: who needs the server may be asked, and then it is recorded."""

    async def permit(self, spec: ServerSpec) -> None:
        """Have a start allowed, in the task that needs it; ask whoever it works for if need be.

        Raises:
            BridgeError: It is not allowed.
        """

    async def start(self, spec: ServerSpec) -> None:
        """Decide on a start that happens next, and record it.

        Raises:
            BridgeError: It must not happen.
        """


class Open:
    """Allows every start and records none: a pool that no engine has."""

    async def permit(self, spec: ServerSpec) -> None:
        """Allow it."""

    async def start(self, spec: ServerSpec) -> None:
        """Allow it."""
