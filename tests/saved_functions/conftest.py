"""The fixtures of tests that open an engine."""

from tests.engine_rig import backend, engine, finder, settings

__all__ = ["backend", "engine", "finder", "settings"]
