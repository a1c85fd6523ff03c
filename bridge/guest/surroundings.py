"""What a program finds around it that its run brings along, and what is shown for it at its end.

Owns the order only. Each part imports what it needs when there is something for it to do: most runs
need nothing of it, and begin a millisecond sooner for that.
"""

from __future__ import annotations

import builtins
import os
import sys

from bridge.guest import outputs, tracebacks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, Optional

    from bridge.guest.client import Client
    from bridge.guest.display import Display
    from bridge.guest.wire import Done, Run


_SKILLS_IMPORT = "bridge.guest.skills_import"
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
        from bridge.guest.skills_import import finder

        finder.take(run, client, namespace)
    if _SHOWING in run.code:
        from bridge.guest import screens

        screens.offer()
    tracebacks.packages_offered = run.packages
    if run.paths:
        # For Pythons that the program starts: process pools of joblib's, `python -m pytest`.
        os.environ["PYTHONPATH"] = os.pathsep.join(run.paths)
    return _bring_files(run)


def conclude(client: Client) -> None:
    """Show what a program left to be shown, once it has ended well or badly."""
    outputs.conclude(client)
    if "matplotlib.pyplot" in sys.modules:
        shower().show_left()


# --- files ---------------------------------------------------------------------------------------


_workspace = ""
"""Where the first program began; a session's may go elsewhere."""


def workspace() -> str:
    """Return the directory that the run's files are in; empty before there is one."""
    return _workspace


def _bring_files(run: Run) -> Optional[Done]:
    global _workspace
    _workspace = _workspace or os.getcwd()
    _make_out(os.path.join(_workspace, "out"))
    if not run.files:
        return None
    from bridge.guest.workspace import put

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
    from bridge.guest.helping import show_help

    show_help(*things)


def shower() -> Display:
    """Return what shows things for the run that goes on."""
    global _offer
    if isinstance(_offer, tuple):
        from bridge.guest.display import Display

        client, limits = _offer
        given = {
            name: int(limits[name]) for name in ("shown_bytes", "frame_bytes") if name in limits
        }
        _offer = Display(client, **given)
    shown: Display = _offer
    return shown


def _offer_display(run: Run, client: Client) -> None:
    global _offer
    _offer = (client, run.limits)
    # Found by modules of the program, too, and no part of what a session holds.
    builtins.display = display  # type: ignore[attr-defined]
    builtins.help = show_help  # type: ignore[assignment]
