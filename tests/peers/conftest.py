"""The engine under the MCP surface."""

from tests.engine_rig import backend, engine, finder, settings
from tests.wire import wire

__all__ = ["backend", "engine", "finder", "settings", "wire"]
