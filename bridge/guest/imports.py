"""What is imported before a program needs it, and what happens when it is imported.

Owns the lists of modules, the steps in which a waiting worker works through them, and the one
module that is changed as it is loaded. Nobody waits for a step: a run that arrives ends them, and
what was not imported by then is imported when the program asks for it.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any, Iterator, Sequence, Tuple

OWN = (
    "bridge.guest.worker.program",
    "bridge.guest.api.runtime",
    "bridge.guest.api.values",
    "bridge.guest.worker.surroundings",
    "bridge.guest.api.client",
)
"""What every program needs of the guest."""

STANDARD = (
    "traceback",
    "typing",
    "inspect",
    "dataclasses",
    "threading",
    "logging",
    "socket",
    "subprocess",
    "concurrent.futures",
    "ssl",
    "asyncio",
    "base64",
    "copy",
    "csv",
    "ctypes",
    "datetime",
    "decimal",
    "hashlib",
    "json",
    "pathlib",
    "queue",
    "random",
    "shutil",
    "statistics",
    "string",
    "tempfile",
    "urllib.parse",
    "uuid",
)
"""Together about 100 ms. What others are made of comes first, so that each step is a short one;
what the guest or one of these imports by itself is left out."""

DATA = ("numpy", "pandas", "matplotlib.pyplot")
"""Imported, where the image has them, by a worker of their own: they take about a second."""

DATA_SECONDS = 20.0
"""After which such a worker begins no further step, however slow the machine."""

DATA_MEMORY_BYTES = 384 * 1024 * 1024
"""Least memory of a sandbox in which they are imported unasked; they take about 150 MB of it."""


def steps(names: Sequence[str], seconds: float = DATA_SECONDS) -> Iterator[None]:
    """Import the modules, one each time the iterator is asked, for as long as there is time."""
    deadline = time.monotonic() + seconds
    for name in names:
        if name not in sys.modules:
            try:
                __import__(name)
            except Exception:
                # A trimmed interpreter, or a package that is broken: the program that asks for it
                # shall get the error, and nobody else.
                continue
            yield
        if time.monotonic() > deadline:
            return


def installed(names: Sequence[str], path: Sequence[str]) -> "Tuple[str, ...]":
    """Return those of the packages that an import would find, without importing any."""
    roots = [(name, name.partition(".")[0]) for name in names]
    return tuple(
        name
        for name, root in roots
        if any(os.path.isdir(os.path.join(entry, root)) for entry in path)
    )


class OnImport:
    """Calls `action` once, as soon as the module `name` is loaded, or now if it is."""

    def __init__(self, name: str, action: Any) -> None:
        self._name = name
        self._action = action
        if name in sys.modules:
            action()
        else:
            sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> "ModuleSpec | None":
        """Find the module as if this were not here; that it is looked for loads nothing yet."""
        if name != self._name or self not in sys.meta_path:
            return None
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec: "ModuleSpec | None" = finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Announced(spec.loader, self._loaded)  # type: ignore[assignment]
                return spec
        return None

    def _loaded(self, module: "ModuleType") -> None:
        if self in sys.meta_path and sys.modules.get(self._name) is module:
            sys.meta_path.remove(self)
            self._action()


class _Announced:
    """A loader that says when it is through, and else is the real one, which the module shows."""

    def __init__(self, loader: Any, action: Any) -> None:
        self._loader = loader
        self._action = action

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def create_module(self, spec: "ModuleSpec") -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: "ModuleType") -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._action(module)
