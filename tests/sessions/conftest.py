"""The fixtures of sessions: an engine on the fake backend, and runs in sessions of it."""

from tests.engine_rig import backend, engine, finder, settings

__all__ = ["backend", "engine", "finder", "settings"]
