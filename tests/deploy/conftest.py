"""An engine, whose metrics the alert rules read."""

from tests.engine_rig import backend, engine, settings

__all__ = ["backend", "engine", "settings"]
