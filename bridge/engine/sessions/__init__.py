"""Sessions: programs that follow each other with what they define kept."""

from bridge.engine.sessions.live import Seat
from bridge.engine.sessions.table import Listed, Sessions

__all__ = ["Listed", "Seat", "Sessions"]
