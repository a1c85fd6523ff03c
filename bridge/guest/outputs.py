"""What programs ask about outputs: those of earlier runs, and how far they are themselves."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from bridge.guest.client import Client


class Outputs:
    """The helpers of `runtime` for that."""

    _client: Client

    async def read_output(self, run_id: str, stream: str = "stdout", **part: Any) -> Any:
        """Return what an earlier run wrote."""
        raise NotImplementedError

    def progress(self, done: float, total: float = 0, message: str = "") -> None:
        """Tell whoever waits how far the program is."""
        raise NotImplementedError
