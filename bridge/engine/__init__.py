"""One run from request to result: the only place where the peers meet."""

from bridge.engine.engine import Engine, Progress, open_engine

__all__ = ["Engine", "Progress", "open_engine"]
