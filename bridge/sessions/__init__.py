"""Sessions: programs that follow each other with what they define kept."""

from bridge.sessions.session import Turn
from bridge.sessions.table import Listed, Sessions

__all__ = ["Listed", "Sessions", "Turn"]
