"""Detects a changed configuration in microseconds, and lists the directories to watch.

The stamp stays valid while no path of the survey, and no parent of a missing path, changes. Only
the identity of directories that delimit the project counts. After a change within the last second
the stamp is always recomputed, since equal times may hide another change.
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
    """A survey with its stamp and state, and the few paths that change with any of its paths."""

    found: ConfigurationSurvey
    stamp: Stamp
    state: Stamp
    nearest: tuple[Path, ...] = ()
    nearest_state: Stamp = ()


class Watch:
    """Computes the stamp of `ConfigurationSurvey`, mostly without a survey. Counts surveys."""

    def __init__(self, context: DiscoveryContext) -> None:
        self._context = context
        # A single value, so that stamp and state match even if two threads survey at once.
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
            # In this order, so that the next comparison detects a change in between.
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

    Clients save a file by replacing it, which a watch on the file would miss. A missing directory
    is replaced by its nearest existing parent. Link targets are included.
    """
    found: dict[Path, None] = {}
    for path in (*survey(context).paths, *references):
        for place in dict.fromkeys((path, Path(os.path.realpath(path)))):
            directory = place
            while not _is_directory(directory) and directory != directory.parent:
                directory = directory.parent
            found[directory] = None
            if directory == place:
                # A replaced directory changes its parent.
                found[place.parent] = None
    return tuple(found)


def _state(paths: Iterable[Path], around: Iterable[Path]) -> Stamp:
    """Return the state of paths; empty if it could hide another change."""
    state = [*map(fingerprint, paths)]
    # Some file systems store times in steps of a second.
    recent = time.time_ns() - 1_000_000_000
    if any(each[1] > recent for each in state):
        return ()
    return (*state, *map(_identity, around))


def _nearest(path: Path) -> Path:
    name = str(path)
    # Strings, since Path's methods take ten times as long for hundreds of paths.
    while not os.path.lexists(name) and name != os.path.dirname(name):  # noqa: PTH120
        name = os.path.dirname(name)  # noqa: PTH120
    return Path(name)


def _is_directory(path: str | Path) -> bool:
    # Unlike `Path.is_dir`, this never raises.
    return os.path.isdir(path)  # noqa: PTH112


def _identity(path: Path) -> Fingerprint:
    found = fingerprint(path)
    return (found[0], 0, 0, *found[3:5], 0) if _is_directory(path) else found
