"""Sessions: programs that follow each other with what they define kept."""

from bridge.engine.sessions.table import Listed, Sessions
from bridge.engine.sessions.turn import Seat

__all__ = ["Listed", "Seat", "Sessions"]
