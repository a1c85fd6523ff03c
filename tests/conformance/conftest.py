"""The engine behind the bridge as a server."""

from tests.engine_rig import backend, engine, finder, settings

__all__ = ["backend", "engine", "finder", "settings"]
