"""The engine's fixtures."""

from tests.engine_rig import backend, engine, finder, opened, settings

__all__ = ["backend", "engine", "finder", "opened", "settings"]
