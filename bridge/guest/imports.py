"""Imports modules before a program needs them, and runs hooks when a module is imported.

Owns the lists of modules and the steps in which a waiting worker imports them. A run that arrives
ends the steps; modules not imported by then are imported when the program needs them.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Iterator, Sequence

OWN = (
    "bridge.guest.worker.program", "bridge.guest.api.runtime", "bridge.guest.api.values",
    "bridge.guest.worker.environment", "bridge.guest.api.client", "bridge.guest.api.results",
)  # fmt: skip

STANDARD = (
    "traceback", "typing", "inspect", "dataclasses", "threading", "logging", "socket",
    "subprocess", "concurrent.futures", "ssl", "asyncio", "base64", "copy", "csv", "ctypes",
    "datetime", "decimal", "hashlib", "json", "pathlib", "queue", "random", "shutil", "statistics",
    "string", "tempfile", "urllib.parse", "uuid",
)  # fmt: skip
"""Together about 100 ms. Modules that others import come first, so that each step is short; modules
that the guest or one of these imports are left out."""


def steps(names: Sequence[str]) -> Iterator[None]:
    """Import one module per iteration."""
    for name in names:
        if name not in sys.modules:
            try:
                __import__(name)
            except Exception:
                # A trimmed interpreter or a broken package: only a program that imports it gets
                # the error.
                continue
            yield


class OnImport:
    """Calls `action` once, when the module `name` is loaded, or now if it is already."""

    def __init__(self, name: str, action: Any) -> None:
        self._name = name
        self._action = action
        if name in sys.modules:
            action()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "ModuleSpec | None":
        """Return the spec from the other finders; its loader calls `action` in the end."""
        if name != self._name or self not in sys.meta_path:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(name, path, target) for finder in later)
        spec: "ModuleSpec | None" = next(filter(None, specs), None)
        if spec is None:
            return None
        loader: Any = spec.loader
        load = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            load(module)
            if self in sys.meta_path and sys.modules.get(self._name) is module:
                sys.meta_path.remove(self)
                self._action()

        loader.exec_module = exec_module
        return spec
