"""The `cloudpickle` package when guest modules are imported on the host, as in tests.

In a sandbox this name is the package's own source, which `bridge.sandbox.bundle` copies from the
installed one. A program that imports `cloudpickle` gets the image's package or none.
"""

from __future__ import annotations

from cloudpickle import Pickler  # type: ignore[import-untyped]

__all__ = ["Pickler"]
