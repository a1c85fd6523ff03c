"""What libraries would show on a screen, of which there is none here: it is shown as by `display`.

Owns the few places where they would open a window or a browser. Imported by programs that mention
showing something. matplotlib's is `display_pictures`', because it also shows what nobody asked for.
"""

from __future__ import annotations

import sys

from bridge.guest.imports import OnImport

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Of a file that is looked at; of fewer bytes may come more than is shown, but not much."""

_METHODS = {"PIL.Image": "Image", "plotly.basedatatypes": "BaseFigure"}
"""Modules to a class whose `show` would open something."""


class _State:
    offered = False


def offer() -> None:
    """Have them show here, those that are imported already and those that will be."""
    if _State.offered:
        return
    _State.offered = True
    for module, kind in _METHODS.items():
        OnImport(module, lambda module=module, kind=kind: _patch(module, kind))
    OnImport("webbrowser", _register)


def _patch(module: str, kind: str) -> None:
    found = getattr(sys.modules[module], kind, None)
    if found is not None:
        found.show = _show


def _show(self: Any, *args: Any, **options: Any) -> None:
    """Show it; what a window would do with the options is nobody's concern here."""
    from bridge.guest.surroundings import display

    display(self)


def _register() -> None:
    webbrowser: Any = sys.modules["webbrowser"]
    webbrowser.register("run_python", None, Browser(), preferred=True)


class _Page:
    """A file that a browser would show."""

    def __init__(self, html: str) -> None:
        self._html = html

    def _repr_html_(self) -> str:
        return self._html


class Browser:
    """Stands in for a browser: shows the files that it is to open, and nothing else."""

    name = "run_python"

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        """Show a file; return whether that could be done."""
        from urllib.parse import unquote, urlsplit

        parts = urlsplit(url)
        if parts.scheme not in ("file", "") or parts.netloc not in ("localhost", ""):
            return False
        try:
            with open(unquote(parts.path), encoding="utf-8", errors="replace") as file:
                page = file.read(MAX_PAGE_BYTES)
        except OSError:
            return False
        from bridge.guest.surroundings import display

        display(_Page(page))
        return True

    def open_new(self, url: str) -> bool:
        """Likewise."""
        return self.open(url)

    def open_new_tab(self, url: str) -> bool:
        """Likewise."""
        return self.open(url)
