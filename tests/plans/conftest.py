"""An engine with a recorder, and the fixtures that it is made with."""

from tests.engine_rig import backend, finder, settings
from tests.plans.plan_rig import bench, engine, log

__all__ = ["backend", "bench", "engine", "finder", "log", "settings"]
