"""Personal data replaced by tokens on its way into a sandbox, and put back on its way out.

Owns the detectors, the tokens and who they belong to.
"""

from __future__ import annotations

from bridge.model import Json
from bridge.settings.policy import Privacy


class Vault:
    """What the tokens of one owner stand for."""

    def __init__(self, privacy: Privacy | None = None) -> None:
        self._privacy = privacy or Privacy()

    def hide(self, server: str, value: dict[str, Json]) -> dict[str, Json]:
        """Return a server's result with tokens in place of personal data."""
        return value

    def reveal(self, server: str, arguments: dict[str, Json]) -> dict[str, Json]:
        """Return arguments with the data in place of tokens, where the server may have it.

        Raises:
            InvalidRequestError: A token is none of this owner's.
        """
        return arguments
