"""Detects a changed configuration in some microseconds, and lists the directories to watch.

The stamp stays valid while no path of the survey, nor the directory in which a missing one would
appear, has changed. Of a directory that only delimits the project its identity counts. A change
within the last second counts always: its times may hide another change.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from bridge.discovery.files import Fingerprint, fingerprint
from bridge.discovery.finder import ConfigurationSurvey, DiscoveryContext, Stamp, survey


class _Seen(NamedTuple):
    """A survey with its stamp and state, and those few paths that change with any of its paths."""

    found: ConfigurationSurvey
    stamp: Stamp
    state: Stamp
    nearest: tuple[Path, ...] = ()
    nearest_state: Stamp = ()


class Watch:
    """Returns the same as `Survey.stamp`, usually much faster; counts its surveys."""

    def __init__(self, context: DiscoveryContext) -> None:
        self._context = context
        # One value, since two threads may survey at once: what is compared belongs to the stamp.
        self._seen: _Seen | None = None
        self._references: tuple[Path, ...] = ()
        self.surveys = 0

    def add_references(self, references: tuple[Path, ...]) -> None:
        if references != self._references:
            self._references = references
            self._seen = None

    def stamp(self) -> Stamp:
        seen = self._seen
        if seen is not None:
            around, paths = seen.found.around, self._paths(seen.found)
            if seen.nearest_state and _state(seen.nearest, around) == seen.nearest_state:
                return seen.stamp
            # Each state before the next, so that the next comparison notices a change meanwhile.
            nearest = tuple(dict.fromkeys(map(_nearest, paths)))
            nearest_state = _state(nearest, around)
            if seen.state and _state(paths, around) == seen.state:
                self._seen = seen._replace(nearest=nearest, nearest_state=nearest_state)
                return seen.stamp
        self.surveys += 1
        found = survey(self._context)
        state = _state(self._paths(found), found.around)
        stamp = (*found.stamp(), *map(fingerprint, self._references))
        self._seen = _Seen(found, stamp, state)
        return stamp

    def _paths(self, found: ConfigurationSurvey) -> tuple[Path, ...]:
        return (*found.listed, *found.files, *self._references)


def watched_paths(context: DiscoveryContext, references: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    """Return the directories to watch for changes, without their subdirectories.

    Directories only: a client that saves a file replaces it, and a watch on the old file would
    miss that. A missing directory has its nearest existing parent here, a link its target, too.
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
    return tuple(found)


def _state(paths: Iterable[Path], around: Iterable[Path]) -> Stamp:
    """Return the state of paths; empty if another change might leave it as it is."""
    state = [*map(fingerprint, paths)]
    # File systems store times in steps of up to a second.
    recent = time.time_ns() - 1_000_000_000
    if any(each[1] > recent for each in state):
        return ()
    return (*state, *map(_identity, around))


def _nearest(path: Path) -> Path:
    """Return a path if it is there, or a link to nothing; else the directory that it awaits."""
    name = str(path)
    # As strings: Path's methods take ten times as long, for some hundred paths.
    while not os.path.lexists(name) and name != os.path.dirname(name):  # noqa: PTH120
        name = os.path.dirname(name)  # noqa: PTH120
    return Path(name)


def _is_directory(path: str | Path) -> bool:
    # Unlike `Path.is_dir` it never raises, also not without permission.
    return os.path.isdir(path)  # noqa: PTH112


def _identity(path: Path) -> Fingerprint:
    found = fingerprint(path)
    return (found[0], 0, 0, *found[3:5], 0) if _is_directory(path) else found
