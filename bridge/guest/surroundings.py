"""What a program finds around it that its run brings along, and what is shown for it at its end.

Owns the order only. Each part imports what it needs when there is something for it to do: most runs
need nothing of it, and begin a millisecond sooner for that.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict

    from bridge.guest.client import Client
    from bridge.guest.wire import Run

    # Sends a frame that needs no answer.
    Send = Callable[[Any], None]


def arrange(run: Run, client: Client, namespace: Dict[str, Any]) -> None:
    """Do what a run asks for, before its program is compiled. In a session, before each.

    Args:
        namespace: The program's globals.
    """


def conclude(client: Client) -> None:
    """Show what a program left to be shown, once it has ended well or badly."""
