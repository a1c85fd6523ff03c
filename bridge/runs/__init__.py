"""One run from request to result: the only place where the peers meet."""

from bridge.runs.engine import Engine
from bridge.runs.opening import open_engine

__all__ = ["Engine", "open_engine"]
