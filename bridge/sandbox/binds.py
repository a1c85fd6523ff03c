"""Directories of the host inside of sandboxes: what is said of them, and as whom they are used.

Owns the account of layers for them. How a backend mounts them is its own business.
"""

from __future__ import annotations

import pwd
from collections.abc import Iterable

from bridge.errors import LaunchError
from bridge.sandbox.backend import Bind

STRANGER = 65534
"""A user and a group that own nothing anywhere."""

READ_ONLY = "read-only:"
"""How the layers of directories that cannot be written to begin; the place inside follows."""


def bind_layers(binds: Iterable[Bind]) -> tuple[list[str], list[str]]:
    """Return the layers that a sandbox's directories have, and what is weaker for them."""
    layers, weaker = [], []
    for bind in binds:
        if bind.writable:
            name = bind.inside.rpartition("/")[2]
            weaker.append(f"directory {name}: the host's own, writable at {bind.inside}")
        else:
            layers.append(f"{READ_ONLY}{bind.inside}")
    return layers, weaker


def has_directories(binds: Iterable[Bind]) -> bool:
    """Tell whether any is the user's own, and not packages that the bridge unpacked.

    Those belong to the user, who may have closed them to everybody else.
    """
    return any(not bind.executable for bind in binds)


def refuse_binds(backend: str, binds: Iterable[Bind]) -> None:
    """Refuse what a backend without mounts of its own would have to show where the host has it.

    Raises:
        LaunchError: There is something of the kind.
    """
    found = [bind.inside for bind in binds]
    if found:
        message = f"{backend} has no mounts, so it cannot show programs {', '.join(found)}."
        remedy = (
            "Set MCP_BRIDGE_RUNTIME to bubblewrap, podman or docker; or do without packages, and "
            "without [directories]."
        )
        raise LaunchError(message, remedy=remedy)


def group_of(uid: int) -> int:
    """Return the group of whoever runs as that user: the user's own, never root's. Blocks.

    A directory's group is no answer: it may be one that opens more than the directory.
    """
    try:
        found = pwd.getpwuid(uid).pw_gid
    except KeyError:
        return STRANGER
    return found or STRANGER
