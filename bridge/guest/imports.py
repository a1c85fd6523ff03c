"""The import path of runs, imports before a program needs them, and hooks on imports.

A waiting worker imports one module per step. An arriving run ends the steps.
"""

from __future__ import annotations

import os
import sys

from bridge.guest.isolation_facts import package_directories

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Iterator, List, Sequence, Tuple

    from bridge.guest.protocol.wire import Run

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
"""Together about 100 ms. Modules that others import come first, so that each step is short. Modules
that the guest or another module of the list imports are omitted."""


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


_search_path: "List[str]" = []


def search_path() -> Tuple[str, ...]:
    """Return the import path: the standard library, the working directory, then packages.

    The library comes first, so that no file can replace a library module that is not imported yet.
    `.pth` files are not read: the guest starts without `site`. Found once, before anything changes
    `sys.path`.
    """
    if _search_path:
        return tuple(_search_path)
    library = os.path.dirname(os.__file__)
    ours = (library, os.path.join(library, "lib-dynload"))
    own = [entry for entry in sys.path if entry in ours or entry.endswith(".zip")]
    order = [*own, os.getcwd(), *(entry for entry in sys.path if entry not in own)]
    _search_path.extend(dict.fromkeys([*order, *package_directories()]))
    return tuple(_search_path)


def import_path(run: Run) -> List[str]:
    """Return a run's import path: its own packages come before those of the image."""
    found = list(search_path())
    if run.paths:
        own = os.getcwd()
        index = found.index(own) + 1 if own in found else len(found)
        found[index:index] = run.paths
    return found
