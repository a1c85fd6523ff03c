"""Host directories inside sandboxes: their layers, and the user that accesses them.

Each backend mounts them itself, and `layers` checks read-only ones from inside.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable

from bridge.errors import LaunchError
from bridge.sandbox.backend import Bind

NOBODY_ID = 65534  # A user and a group that own nothing anywhere.
READ_ONLY = "read-only:"  # Start of the layer of a read-only directory; its path inside follows.


def bind_layers(binds: Iterable[Bind]) -> tuple[list[str], list[str]]:
    """Return the layers of a sandbox's directories, and their weaknesses."""
    layers, weaker = [], []
    for bind in binds:
        if bind.writable:
            name = bind.inside.rpartition("/")[2]
            weaker.append(f"directory {name}: the host's own, writable at {bind.inside}")
        else:
            layers.append(f"{READ_ONLY}{bind.inside}")
    return layers, weaker


def has_user_directories(binds: Iterable[Bind]) -> bool:
    """Return whether any is the user's own directory, which other users may be unable to read."""
    return any(not bind.executable for bind in binds)


def reject_binds(backend: str, binds: Iterable[Bind]) -> None:
    """Reject host directories for a backend that cannot mount them."""
    found = [bind.inside for bind in binds]
    if found:
        message = f"{backend} has no mounts, so it cannot show programs {', '.join(found)}."
        remedy = (
            "Set MCP_BRIDGE_RUNTIME to bubblewrap, podman or docker; or do without packages, and "
            "without [directories]."
        )
        raise LaunchError(message, remedy=remedy)


def group_of(uid: int) -> int:
    """Return a user's primary group, or `NOBODY_ID` instead of root's. Blocks.

    A directory's group is not used: it may give access to more than the directory.
    """
    try:
        found = pwd.getpwuid(uid).pw_gid
    except KeyError:
        return NOBODY_ID
    return found or NOBODY_ID
