"""What a program finds around it that its run brings along, and what is shown for it at its end.

Owns the order only. Each part imports what it needs when there is something for it to do: most runs
need nothing of it, and begin a millisecond sooner for that.
"""

from __future__ import annotations

import binascii
import builtins
import os
import sys

from bridge.guest.api import library, tracebacks
from bridge.guest.imports import OnImport
from bridge.guest.protocol.wire import Done

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional

    from bridge.guest.api.client import Client
    from bridge.guest.api.display import Display
    from bridge.guest.protocol.wire import Done, Run


_SKILLS_IMPORT = "bridge.guest.api.skill_modules"
_SHOWING = "show"

_offer: Any = None
"""What is shown to, and the run's limits, until something is; the `Display` from then on."""


def arrange(run: Run, client: Client, namespace: Dict[str, Any]) -> Optional[Done]:
    """Do what a run asks for, before its program is compiled. In a session, before each.

    Args:
        namespace: The program's globals.

    Returns:
        How the run ended because that could not be done; the program must not begin then.
    """
    _offer_display(run, client)
    if run.skills or "skill" in run.code or _SKILLS_IMPORT in sys.modules:
        from bridge.guest.api.skill_modules import finder

        finder.take(run, client, namespace)
    if _SHOWING in run.code:
        offer_screens()
    tracebacks.packages_offered = run.packages
    if run.paths:
        # For Pythons that the program starts: process pools of joblib's, `python -m pytest`.
        os.environ["PYTHONPATH"] = os.pathsep.join(run.paths)
    return _bring_files(run)


def conclude(client: Client) -> None:
    """Show what a program left to be shown, once it has ended well or badly."""
    library.conclude(client)
    if "matplotlib.pyplot" in sys.modules:
        shower().show_left()


# --- files ---------------------------------------------------------------------------------------


_workspace = ""
"""Where the first program began; a session's may go elsewhere."""


def _bring_files(run: Run) -> Optional[Done]:
    global _workspace
    _workspace = _workspace or os.getcwd()
    _make_out(os.path.join(_workspace, "out"))
    if not run.files:
        return None
    return put(run.files, _workspace)


def _make_out(path: str) -> None:
    try:
        os.mkdir(path)
    except OSError:
        # There already, as in a session, or a place where nothing can be written.
        return


# --- pictures and tables ------------------------------------------------------------------------


def display(*values: Any) -> None:
    """Show pictures, figures, data frames and the like to whoever asked for this run."""
    shower().show(*values)


def show_help(*things: Any) -> None:
    """Print what there is to know of something."""
    from bridge.guest.api.tool_search import show_help

    show_help(*things)


def shower() -> Display:
    """Return what shows things for the run that goes on."""
    global _offer
    if isinstance(_offer, tuple):
        from bridge.guest.api.display import Display

        client, limits = _offer
        given = {
            name: int(limits[name]) for name in ("shown_bytes", "frame_bytes") if name in limits
        }
        _offer = Display(client, **given)
    shown: Display = _offer
    return shown


def prepare_pyplot() -> None:
    """Replace `show`: the library's own opens windows, and would leave the figures open here."""
    pyplot: Any = sys.modules["matplotlib.pyplot"]

    def show(*args: Any, **kwargs: Any) -> None:
        """Show all open figures, and close them."""

        shower().show_figures()

    pyplot.show = show


def _offer_display(run: Run, client: Client) -> None:
    global _offer
    _offer = (client, run.limits)
    # Found by modules of the program, too, and no part of what a session holds.
    builtins.display = display  # type: ignore[attr-defined]
    builtins.help = show_help  # type: ignore[assignment]


def put(files: List[Dict[str, str]], root: str = ".") -> Optional[Done]:
    """Write the files, and forget their content: as text it takes more room than the files do.

    Returns:
        What a run ends with of which one cannot be written; None if all of them are there.
    """
    files.reverse()
    while files:
        given = files.pop()
        try:
            _write(os.path.join(root, *given["name"].split("/")), given["data"])
        except OSError as error:
            message = "%s: the file %r could not be put into the working directory: %s"
            name = type(error).__name__
            text = message % (name, given["name"], error.strerror or error)
            return Done("exception", 1, error=text, error_type=name)
    return None


def _write(path: str, data: str) -> None:
    directory = os.path.dirname(path)
    os.makedirs(directory or ".", exist_ok=True)
    if os.path.islink(path):
        # What it leads to was not meant.
        os.unlink(path)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK, 0o644)
    try:
        content = memoryview(binascii.a2b_base64(data))
        while content:
            content = content[os.write(fd, content) :]
    finally:
        os.close(fd)


# --- what libraries would show on a screen, of which there is none here ---------------------------
#
# The few places where they would open a window or a browser. matplotlib's is in `display`, because
# it also shows what nobody asked for.

MAX_PAGE_BYTES = 2 * 1024 * 1024
"""Of a file that is looked at; of fewer bytes may come more than is shown, but not much."""

_offered = False

_METHODS = {"PIL.Image": "Image", "plotly.basedatatypes": "BaseFigure"}
"""Modules to a class whose `show` would open something."""


def offer_screens() -> None:
    """Have them show here, those that are imported already and those that will be."""
    global _offered
    if _offered:
        return
    _offered = True
    for module, kind in _METHODS.items():
        OnImport(module, lambda module=module, kind=kind: _patch(module, kind))
    OnImport("webbrowser", _register)


def _patch(module: str, kind: str) -> None:
    found = getattr(sys.modules[module], kind, None)
    if found is not None:
        found.show = _show


def _show(self: Any, *args: Any, **options: Any) -> None:
    """Show it; what a window would do with the options is nobody's concern here."""
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
        display(_Page(page))
        return True

    def open_new(self, url: str) -> bool:
        """Likewise."""
        return self.open(url)

    def open_new_tab(self, url: str) -> bool:
        """Likewise."""
        return self.open(url)
