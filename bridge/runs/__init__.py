"""One run from request to result; joins packages that do not import each other."""

from bridge.runs.engine import Engine, open_engine

__all__ = ["Engine", "open_engine"]
