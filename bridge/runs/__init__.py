"""One run from request to result: the only place where the peers meet."""

from bridge.runs.engine import Engine, open_engine

__all__ = ["Engine", "open_engine"]
