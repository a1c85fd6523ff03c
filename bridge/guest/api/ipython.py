"""Provides `IPython.display` for programs written for notebooks, through the bridge's `display`.

It takes precedence over an installed IPython, whose `display` prints object names here.
"""

from __future__ import annotations

import builtins
import json
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType, SimpleNamespace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict


class _Shown:
    """Content in one form: data, or a file that holds it."""

    form: str

    def __init__(self, data: Any = None, url: Any = "", filename: Any = "", **more: Any) -> None:
        self.data = data
        path = filename or (data if type(self) is Image and isinstance(data, str) else None)
        if url or "://" in str(path):
            raise OSError("the sandbox has no network: %s" % (url or path))
        if path:
            with open(path, "rb") as file:
                self.data = file.read()
        if self.form != "image/png" and isinstance(self.data, bytes):
            self.data = self.data.decode("utf-8", "replace")

    def _repr_mimebundle_(self, **more: Any) -> Dict[str, Any]:
        return {self.form: self.data}


class Image(_Shown):
    form = "image/png"


class JSON(_Shown):
    form = "text/plain"

    def _repr_mimebundle_(self, **more: Any) -> Dict[str, Any]:
        return {self.form: json.dumps(self.data, indent=1, ensure_ascii=False, default=str)}


HTML = type("HTML", (_Shown,), {"form": "text/html"})
Markdown = type("Markdown", (_Shown,), {"form": "text/markdown"})
SVG = type("SVG", (_Shown,), {"form": "image/svg+xml"})


def display(*values: Any, **options: Any) -> Any:
    """Display values; return a handle whose `update` displays one if `display_id` is set."""
    builtins.display(*values)  # type: ignore[attr-defined]
    return SimpleNamespace(display=display, update=display) if options.get("display_id") else None


def clear_output(wait: bool = False) -> None:
    """Do nothing: displayed values stay."""


def install(modules: Dict[str, ModuleType]) -> None:
    """Make this module importable as `IPython` and `IPython.display`."""
    if "IPython" in modules:
        return
    own = {name: value for name, value in globals().items() if name[0] != "_"}
    found = PathFinder.find_spec("IPython")
    path = list(found.submodule_search_locations or ()) if found else []
    packages = ("IPython",) if path else ("IPython", "IPython.core")
    for name in (*packages, "IPython.display", "IPython.core.display"):
        module = modules[name] = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=name in packages)
        module.__dict__.update(own)
        if name in packages:
            module.__path__ = path
    # matplotlib and tqdm ask whether they run in a notebook.
    told = {"display": modules["IPython.display"], "get_ipython": lambda: None}
    modules["IPython"].__dict__.update(told, version_info=(9, 0, 0), __version__="9.0.0")
