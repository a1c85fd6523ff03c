"""What programs keep for later programs: skills and memories.

Owns the helpers' names and argument checks; what is kept is the host's business.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bridge.guest.client import Client


class Library:
    """The helpers of `runtime` for that."""

    _client: Client
