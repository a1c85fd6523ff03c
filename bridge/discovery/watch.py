"""Detects a changed configuration in a few microseconds.

Owns the list of directories for a file system watcher, and a shortcut for `Survey.stamp`: the stamp
stays valid while no existing file and no directory in which one could appear has changed. Those are
far fewer than all possible files. If one has changed, or so recently that another change might not
show in its times, the stamp is computed anew.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from bridge.discovery.files import fingerprint
from bridge.discovery.finder import DiscoveryContext, Stamp, survey

QUIET_NS = 1_000_000_000
"""File systems store times in steps of up to this, so that of two changes within one step the
second may not be visible."""

MAX_WATCHED = 512
"""Directories given to a watcher; a system gives a user some thousands in all."""

_States = tuple[tuple[int, ...], ...]


class Watch:
    """Returns the same as `Survey.stamp`, usually much faster.

    Attributes:
        surveys: How often `Survey.stamp` had to be asked.
    """

    def __init__(self, context: DiscoveryContext) -> None:
        self._context = context
        # One value, since two threads may survey at once: paths, states and stamp belong together.
        self._seen: tuple[tuple[str, ...], _States | None, Stamp] = ((), None, ())
        self._references: tuple[Path, ...] = ()
        self.surveys = 0

    def add_references(self, references: tuple[Path, ...]) -> None:
        """Include the files that the configurations name (`Discovery.references`)."""
        if references != self._references:
            self._references = references
            self._seen = ((), None, ())

    def stamp(self) -> Stamp:
        """Return a value that changes when any file of the configuration does."""
        paths, look, stamp = self._seen
        return stamp if look is not None and _read_states(paths) == look else self._survey()

    def _survey(self) -> Stamp:
        self.surveys += 1
        followed = self._references
        # Found first, so that a change during the survey is noticed by the next comparison.
        found = survey(self._context)
        paths = _paths_to_stat((*found.paths, *followed))
        look = _read_states(paths)
        stamp = (*found.stamp(), *map(fingerprint, followed))
        # What appeared while `paths` were found changed one of them just now.
        settled = time.time_ns() - max((entry[0] for entry in look), default=0) > QUIET_NS
        self._seen = (paths, look if settled else None, stamp)
        return stamp


def watched_paths(context: DiscoveryContext, references: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Return the directories to watch for changes, without their subdirectories.

    Directories only: a client that saves a file replaces it, and a watch on the old file would miss
    that. For a missing directory its nearest existing parent is returned, and for a link its target
    as well. They may differ after a change.

    Args:
        references: `Discovery.references`.
    """
    found: dict[Path, None] = {}
    for path in (*survey(context).paths, *references):
        for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
            directory = place
            while not _is_directory(directory) and directory != directory.parent:
                directory = directory.parent
            found[directory] = None
            if directory == place:
                # The directory itself may be replaced, which changes its parent.
                found[place.parent] = None
        if len(found) >= MAX_WATCHED:
            break
    return tuple(found)[:MAX_WATCHED]


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _read_states(paths: Iterable[str]) -> _States:
    return tuple(map(_state, paths))


def _state(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path takes longer to make than this to do
    except OSError as error:
        return (0, error.errno or 0)
    except ValueError:
        return (0,)
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFDIR:
        # Its size says nothing of what is in it.
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, kind)
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, kind, found.st_size)


def _paths_to_stat(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return the paths whose change shows a change of `paths`: they themselves, or a parent."""
    found: dict[str, None] = {}
    known: set[str] = set()
    for path in paths:
        place = str(path)
        while place not in known:
            known.add(place)
            # Not a Path's methods: they take ten times as long, for some hundred places.
            if _exists(place):
                found[place] = None
                break
            if os.path.lexists(place):
                # A broken link or an inaccessible path: no directory changes when that changes.
                found[place] = None
            place = os.path.dirname(place)  # noqa: PTH120
    return tuple(found)


def _exists(place: str) -> bool:
    try:
        os.stat(place)  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return True
