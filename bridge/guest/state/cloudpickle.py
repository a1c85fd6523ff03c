"""The `cloudpickle` package where a guest's modules are imported on the host, as tests do.

In a sandbox the package's own source goes by this name instead: `bridge.sandbox.bundle` takes it
from what is installed. So a program that imports `cloudpickle` gets its own, or none.
"""

from __future__ import annotations

from cloudpickle import Pickler  # type: ignore[import-untyped]

__all__ = ["Pickler"]
