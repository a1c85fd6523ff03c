"""One sandbox's control groups: made, limited, entered, counted, removed.

Owns the file operations on control groups, and the removal of what dead bridges left. Everything
here blocks and is called in threads; each operation takes milliseconds.

Moving a process to a group makes the kernel wait until no CPU is in a fork or an exit: some 10 ms,
whatever the machine does. A thread that moves itself, which version 1 allows, need not wait, and
what it starts begins its life in the group. So processes are started by a thread of their own that
is in the group for that moment.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bridge.errors import CgroupError
from bridge.model import Limits
from bridge.sandbox.process import groups
from bridge.sandbox.process.groups import Place
from bridge.sandbox.reaper import Owner, is_dead

logger = logging.getLogger(__name__)

REMOVE_SECONDS = 5.0
"""For killed processes to leave a group; milliseconds, unless they write out a lot of memory."""

_PAUSE_SECONDS = 0.005

_MYSELF = "0"
"""Written to a list of threads, it is the one that writes."""


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """Where this bridge's groups go: one directory per controller, one for all on version 2."""

    places: tuple[Place, ...] = ()

    @property
    def controllers(self) -> frozenset[str]:
        """What groups made here will bound."""
        return frozenset().union(*(place.controllers for place in self.places))


@dataclass(frozen=True, kw_only=True)
class Door:
    """Where a thread goes into a group by itself, and where it comes out again.

    Attributes:
        inside: The group.
        home: The bridge's own group of the same hierarchy.
    """

    inside: Path
    home: Path


@dataclass(kw_only=True)
class Group:
    """The control groups of one sandbox.

    Attributes:
        doors: Those of the groups that a thread can visit.
        visitor: The one thread that does, if any. It outlives what it starts, whose end the kernel
            ties to its own.
    """

    name: str
    directories: tuple[Path, ...]
    counter: Path | None = field(default=None)
    doors: tuple[Door, ...] = ()
    visitor: Executor | None = field(default=None, repr=False)

    @property
    def others(self) -> tuple[Path, ...]:
        """The groups that what `spawn` started is not in, and has to be moved to."""
        visited = {door.inside for door in self.doors} if self.visitor is not None else set()
        return tuple(path for path in self.directories if path not in visited)

    def spawn(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        """Start a process, inside as many of the groups as can be visited.

        Raises:
            CgroupError: One could not be entered or left; the process does not run.
        """
        if self.visitor is None or not self.doors:
            return start()
        return self.visitor.submit(self._visit, start).result()

    def _visit(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        entered: list[Door] = []
        try:
            self._go_in(entered)
            process = start()
        except BaseException:
            self._come_home(entered, None)
            raise
        self._come_home(entered, process)
        return process

    def _go_in(self, entered: list[Door]) -> None:
        for door in self.doors:
            entered.append(door)
            try:
                _write(door.inside / "tasks", _MYSELF)
            except OSError as error:
                message = f"Cannot enter the control group {door.inside}: {error}."
                raise CgroupError(message) from error

    def _come_home(self, entered: list[Door], process: subprocess.Popen[bytes] | None) -> None:
        try:
            for door in entered:
                _write(door.home / "tasks", _MYSELF)
        except OSError as error:
            if process is not None:
                process.kill()
                process.wait()
            message = f"Cannot leave a control group: {error}."
            raise CgroupError(message) from error

    def enter(self, pid: int) -> None:
        """Move a process to the `others`; what it starts from now on is in as well.

        Raises:
            CgroupError: It could not be moved.
        """
        for directory in self.others:
            try:
                _write(directory / "cgroup.procs", str(pid))
            except OSError as error:
                message = f"Cannot move a process to the control group {directory}: {error}."
                raise CgroupError(message) from error

    def oom_kills(self) -> int | None:
        """Return how many processes were killed for memory; None if the kernel does not say."""
        if self.counter is None:
            return None
        try:
            return groups.oom_kills(self.counter.read_text(encoding="ascii"))
        except OSError:
            return None

    def remove(self) -> bool:
        """Kill what is inside and remove the groups; tell whether they are gone."""
        deadline = time.monotonic() + REMOVE_SECONDS
        # Every one of them, whether or not the first can be removed.
        gone = [_remove(directory, deadline) for directory in self.directories]
        return all(gone)


def find_shelf(own: str, mounts: str, owner: Owner) -> Shelf:
    """Find where groups can be made, by making one and removing it again."""
    found: list[Place] = []
    for place in groups.places(own, mounts):
        had = frozenset().union(*(known.controllers for known in found))
        usable = _try(place, owner, had)
        if usable is not None:
            found.append(usable)
    return Shelf(places=tuple(found))


def make_group(shelf: Shelf, owner: Owner, limits: Limits) -> Group:
    """Make a sandbox's groups and set their limits.

    Raises:
        CgroupError: It could not be done; nothing is left of the attempt.
    """
    name = groups.group_name(owner, secrets.token_hex(4))
    made: list[Path] = []
    doors: list[Door] = []
    counter: Path | None = None
    try:
        for place in shelf.places:
            if place.controllers == {"cpu"} and limits.cpus is None:
                continue  # entering a group costs milliseconds
            directory = Path(place.directory) / name
            directory.mkdir()
            made.append(directory)
            if place.visited:
                doors.append(Door(inside=directory, home=Path(place.directory)))
            for controller in sorted(place.controllers):
                _limit(directory, limits, controller, unified=place.unified)
                if controller == "memory":
                    file = "memory.events" if place.unified else "memory.oom_control"
                    counter = directory / file
    except OSError as error:
        Group(name=name, directories=tuple(made)).remove()
        message = f"Cannot make a control group: {error}."
        raise CgroupError(message) from error
    return Group(name=name, directories=tuple(made), counter=counter, doors=tuple(doors))


def reap(shelf: Shelf, judge: Owner, *, dead: Callable[[Owner], bool] | None = None) -> int:
    """Remove the groups of dead bridges; return how many sandboxes that were.

    Args:
        dead: Decides; the real judgement unless a test says otherwise.
    """
    gone: set[str] = set()
    for place in shelf.places:
        for directory in _directories(Path(place.directory)):
            owner = groups.group_owner(directory.name)
            if owner is None or owner == judge:
                continue
            if not (dead(owner) if dead is not None else is_dead(owner, judge=judge)):
                continue
            logger.info("removing the control group of a bridge that died: %s", directory)
            if _remove(directory, time.monotonic() + REMOVE_SECONDS):
                gone.add(directory.name)
    return len(gone)


def _try(place: Place, owner: Owner, had: frozenset[str]) -> Place | None:
    wanted = frozenset(groups.CONTROLLERS) - had
    directory = Path(place.directory) / groups.group_name(owner, "try")
    try:
        directory.mkdir()
    except OSError:
        return None
    try:
        if place.unified:
            offered = (directory / "cgroup.controllers").read_text(encoding="ascii").split()
        else:
            offered = list(place.controllers)
        usable = frozenset(name for name in offered if name in wanted)
        usable = frozenset(name for name in usable if _writable(directory, name, place.unified))
    except OSError:
        usable = frozenset()
    finally:
        with suppress(OSError):
            directory.rmdir()
    if not usable or not os.access(directory.parent / "cgroup.procs", os.W_OK):
        return None
    visited = not place.unified and os.access(directory.parent / "tasks", os.W_OK)
    return Place(
        directory=place.directory, controllers=usable, unified=place.unified, visited=visited
    )


def _writable(directory: Path, controller: str, unified: bool) -> bool:
    try:
        _limit(directory, Limits(cpus=1.0), controller, unified=unified)
    except OSError:
        return False
    return True


def _limit(directory: Path, limits: Limits, controller: str, *, unified: bool) -> None:
    for file, text, required in groups.settings(limits, controller, unified=unified):
        try:
            _write(directory / file, text)
        except OSError:
            if required:
                raise


def _remove(directory: Path, deadline: float) -> bool:
    while True:
        _kill(directory)
        try:
            directory.rmdir()
        except FileNotFoundError:
            return True
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                logger.warning("the control group %s was not removed: %s", directory, error)
                return False
            time.sleep(_PAUSE_SECONDS)
        else:
            return True


def _kill(directory: Path) -> None:
    with suppress(OSError):
        _write(directory / "cgroup.kill", "1")
        return
    with suppress(OSError):
        for pid in (directory / "cgroup.procs").read_text(encoding="ascii").split():
            # A thread of ours that could not leave is no reason to end all the others.
            if int(pid) == os.getpid():
                continue
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(pid), signal.SIGKILL)


def _directories(parent: Path) -> Iterable[Path]:
    try:
        return [path for path in parent.iterdir() if path.name.startswith(groups.PREFIX)]
    except OSError:
        return []


def _write(file: Path, text: str) -> None:
    # Never creating: these files are there or they are not.
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode("ascii"))
    finally:
        os.close(descriptor)
