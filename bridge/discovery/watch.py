"""Detects a changed configuration in less than a millisecond.

Owns the list of directories for a file system watcher, and a shortcut for `Survey.stamp`: the stamp
stays valid while none of the survey's paths has changed. A directory that only delimits the project
counts as changed when it is another one: a home directory and a repository change all day. If
something has changed so recently that another change might not show in its times, it counts as
changed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from bridge.discovery.files import Fingerprint, fingerprint
from bridge.discovery.finder import ConfigurationSurvey, DiscoveryContext, Stamp, survey


class Watch:
    """Returns the same as `Survey.stamp`, usually much faster.

    Attributes:
        surveys: How often the files had to be looked for.
    """

    def __init__(self, context: DiscoveryContext) -> None:
        self._context = context
        # One value, since two threads may survey at once: what is compared belongs to the stamp.
        self._seen: tuple[ConfigurationSurvey, Stamp, Stamp] | None = None
        self._references: tuple[Path, ...] = ()
        self.surveys = 0

    def add_references(self, references: tuple[Path, ...]) -> None:
        """Count these files, too: those that the configurations name (`Discovery.references`)."""
        if references != self._references:
            self._references = references
            self._seen = None

    def stamp(self) -> Stamp:
        """Return a value that changes when any file of the configuration does."""
        if self._seen is not None:
            found, state, stamp = self._seen
            if state and self._state(found) == state:
                return stamp
        self.surveys += 1
        found = survey(self._context)
        # Before the stamp, so that a change meanwhile is noticed by the next comparison.
        state = self._state(found)
        stamp = (*found.stamp(), *map(fingerprint, self._references))
        self._seen = (found, state, stamp)
        return stamp

    def _state(self, found: ConfigurationSurvey) -> Stamp:
        """Return the state of all paths; empty if another change might leave it as it is."""
        paths = (*found.listed, *found.files, *self._references)
        state = [*map(fingerprint, paths)]
        # File systems store times in steps of up to a second.
        recent = time.time_ns() - 1_000_000_000
        if any(each[1] > recent for each in state):
            return ()
        return (*state, *map(_identity, found.around))


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
    return tuple(found)


def _is_directory(path: str | Path) -> bool:
    # Unlike `Path.is_dir` it never raises, also not without permission.
    return os.path.isdir(path)  # noqa: PTH112


def _identity(path: Path) -> Fingerprint:
    """Return a value that changes when a directory is another one; as a file's, for any other."""
    found = fingerprint(path)
    return (found[0], 0, 0, *found[3:5], 0) if _is_directory(path) else found
