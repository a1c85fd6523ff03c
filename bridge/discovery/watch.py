"""Detects a changed configuration in a few microseconds.

Owns the list of directories for a file system watcher, and a shortcut for `Survey.stamp`: the stamp
stays valid while no file that is there and no directory whose every file counts has changed, and
nothing that is awaited has appeared. In what directory that would be is looked at first, and only
if that has changed for the names: a home directory and a repository change all day. If something
has changed so recently that another change might not show in its times, it counts as changed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from bridge.discovery.files import fingerprint
from bridge.discovery.finder import DiscoveryContext, Stamp, survey

MAX_WATCHED = 512  # Directories given to a watcher; a system gives a user some thousands in all.

_State = tuple[int, ...]

_UNSETTLED: _State = ()  # Stands for a state that another change might leave as it is; equals none.


@dataclass(frozen=True)
class _Seen:
    """What a stamp was made of, as it was then.

    Attributes:
        files: Files, and directories whose every file counts.
        around: Directories of which only matters which they are.
        places: Directories in which something may appear.
        awaited: Paths that were not there, by the directory in which they would appear.
    """

    stamp: Stamp = ()
    files: dict[str, _State] = field(default_factory=dict)
    around: dict[str, _State] = field(default_factory=dict)
    places: dict[str, _State] = field(default_factory=dict)
    awaited: dict[str, set[str]] = field(default_factory=dict)

    def is_current(self) -> bool:
        """Return whether a stamp made now would be the same."""
        if not self.stamp or any(_state(path) != state for path, state in self.files.items()):
            return False
        if any(_identity(path) != state for path, state in self.around.items()):
            return False
        for place, state in self.places.items():
            # Before the names, so that one that appears meanwhile is noticed the next time.
            now = _settled(_state(place))
            if now != state or now == _UNSETTLED:
                if any(map(os.path.lexists, self.awaited[place])):
                    return False
                self.places[place] = now
        return True


class Watch:
    """Returns the same as `Survey.stamp`, usually much faster.

    Attributes:
        surveys: How often `Survey.stamp` had to be asked.
    """

    def __init__(self, context: DiscoveryContext) -> None:
        self._context = context
        # One value, since two threads may survey at once: what is compared belongs to the stamp.
        self._seen = _Seen()
        self._references: tuple[Path, ...] = ()
        self.surveys = 0

    def add_references(self, references: tuple[Path, ...]) -> None:
        """Count these files, too: those that the configurations name (`Discovery.references`)."""
        if references != self._references:
            self._references = references
            self._seen = _Seen()

    def stamp(self) -> Stamp:
        """Return a value that changes when any file of the configuration does."""
        seen = self._seen
        return seen.stamp if seen.is_current() else self._survey()

    def _survey(self) -> Stamp:
        self.surveys += 1
        followed = self._references
        # Found first, so that a change during the survey is noticed by the next comparison.
        found = survey(self._context)
        there, awaited = _telling((*found.paths, *followed))
        around = {str(path) for path in found.around if _is_directory(path)}
        seen = _Seen(
            files={path: _settled(_state(path)) for path in there if path not in around},
            around={path: _identity(path) for path in there if path in around},
            places={place: _settled(_state(place)) for place in awaited},
            awaited=awaited,
        )
        self._seen = replace(seen, stamp=(*found.stamp(), *map(fingerprint, followed)))
        return self._seen.stamp


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


def _is_directory(path: str | Path) -> bool:
    # Unlike `Path.is_dir` it never raises, also not without permission.
    return os.path.isdir(path)  # noqa: PTH112


def _state(path: str) -> _State:
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


def _identity(path: str) -> _State:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        return (0, error.errno or 0)
    return (found.st_dev, found.st_ino, found.st_mode, found.st_uid)


def _settled(state: _State) -> _State:
    # File systems store times in steps of up to a second: a second change in one is not visible.
    return state if time.time_ns() - state[0] > 1_000_000_000 else _UNSETTLED


def _telling(paths: Iterable[Path]) -> tuple[tuple[str, ...], dict[str, set[str]]]:
    """Return which of `paths` are there, and by directory what must appear before the others."""
    there: dict[str, None] = {}
    awaited: dict[str, set[str]] = {}
    missing: set[str] = set()
    for path in paths:
        place = str(path)
        if _exists(place):
            there[place] = None
        while place not in there and place not in missing:
            if os.path.lexists(place):
                # A link to nothing, or what we may not see: no directory tells when that ends.
                there[place] = None
                break
            missing.add(place)
            # Not a Path's methods: they take ten times as long, for some hundred places.
            above = os.path.dirname(place)  # noqa: PTH120
            if _exists(above):
                awaited.setdefault(above, set()).add(place)
                break
            place = above
    return tuple(there), awaited


def _exists(place: str) -> bool:
    try:
        os.stat(place)  # noqa: PTH116
    except (OSError, ValueError):
        return False
    return True
