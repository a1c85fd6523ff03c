"""One run from request to result: the only place where the peers meet."""

from bridge.engine.engine import Engine
from bridge.engine.opening import open_engine

__all__ = ["Engine", "open_engine"]
