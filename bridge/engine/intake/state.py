"""What a session's process made of its state: bytes that only another guest reads.

Owns the bound on them. The host never looks inside.
"""

from __future__ import annotations

from bridge.guest.wire import State
from bridge.model import Loss


class StateParts:
    """Takes the parts of one state.

    Attributes:
        lost: What is not in it, as the guest says.
    """

    def __init__(self) -> None:
        self.lost: tuple[Loss, ...] = ()

    def take(self, frame: State) -> None:
        """Add a part."""
