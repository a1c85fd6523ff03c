"""Sessions: runs that share a sandbox, so that later programs see earlier variables."""

from bridge.sessions.session import Turn
from bridge.sessions.table import Listed, Sessions

__all__ = ["Listed", "Sessions", "Turn"]
