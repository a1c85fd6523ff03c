"""Reads runs for a worker and builds its exit notice."""

from __future__ import annotations

import os
import resource
import sys
import time

from bridge.guest.processes import EXIT_NOTICE, RSS_UNIT
from bridge.guest.protocol.installed import package_directories
from bridge.guest.protocol.wire import Run, WireError, decode_host_frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List, Tuple

    from bridge.guest.protocol.wire import Done

LENGTH_BYTES = 8


def read_run(fd: int) -> Run:
    """Return the next run; the descriptor has its length, then its line."""
    size = int.from_bytes(_read_exactly(fd, LENGTH_BYTES), "big")
    frame = decode_host_frame(_read_exactly(fd, size))
    if not isinstance(frame, Run):
        raise WireError("the first frame is no run")
    return frame


def _read_exactly(fd: int, size: int) -> bytes:
    parts = []
    while size:
        data = os.read(fd, min(size, (1024 * 1024)))
        if not data:
            # The supervisor closed the descriptor: no run will come.
            os._exit(0)
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


_search_path: "List[str]" = []


def search_path() -> Tuple[str, ...]:
    """Return the import path: the standard library, the working directory, then packages.

    The library comes first, so that no file can replace a library module that is not imported yet.
    The packages are those of the host's environment that a backend adds, and the image's. `.pth`
    files are not read: the guest starts without `site`. Found once, before anything changes
    `sys.path`.
    """
    if _search_path:
        return tuple(_search_path)
    own = [entry for entry in sys.path if _is_library(entry)]
    order = [*own, os.getcwd(), *(entry for entry in sys.path if entry not in own)]
    _search_path.extend(dict.fromkeys([*order, *package_directories()]))
    return tuple(_search_path)


def _is_library(entry: str) -> bool:
    library = os.path.dirname(os.__file__)
    return entry.endswith(".zip") or entry in (library, os.path.join(library, "lib-dynload"))


def import_path(run: Run) -> List[str]:
    """Return a run's import path: its own packages come before those of the image."""
    found = list(search_path())
    if run.paths:
        own = os.getcwd()
        index = found.index(own) + 1 if own in found else len(found)
        found[index:index] = run.paths
    return found


def exit_notice(code: int, before: float) -> bytes:
    """Return the worker's last line; `before` is `cpu_seconds()` when the program began."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = cpu_seconds() - before
    peak = max(own.ru_maxrss, children.ru_maxrss) * RSS_UNIT
    return b'%s"code":%d,"cpu_ms":%d,"peak_memory_bytes":%d}\n' % (
        EXIT_NOTICE,
        code,
        cpu * 1000,
        peak,
    )


def cpu_seconds() -> float:
    """Return the CPU seconds used by this process and its reaped children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def show_uncaught(done: Done) -> None:
    """Print an exception as the interpreter does, unless the program has its own hook."""
    if done.outcome != "exception" or sys.excepthook is not sys.__excepthook__:
        return
    try:
        print(done.error, file=sys.stderr, flush=True)
    except Exception:
        # The program may have replaced or closed its stderr.
        return
