"""Processes of this machine, found by their command lines and environments."""

from __future__ import annotations

import os
from pathlib import Path


def processes(text: str = "", *, variable: str = "") -> dict[int, str]:
    """Return the command lines of other processes that have a text in it, by process id.

    Args:
        variable: `NAME=value` that the processes have in their environment, too.
    """
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environ = (entry / "environ").read_bytes().split(b"\0") if variable else []
        except OSError:
            continue
        if text in line and (not variable or os.fsencode(variable) in environ):
            found[int(entry.name)] = line
    found.pop(os.getpid(), None)
    return found
