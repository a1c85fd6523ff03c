"""Sessions: runs that share a sandbox, so that later programs see earlier variables."""

from bridge.sessions.table import Listed, Sessions
from bridge.sessions.turns import Turn

__all__ = ["Listed", "Sessions", "Turn"]
