"""Sets of packages on disk, each in a directory of its own:

    turn        locked by the bridge that fills in the rest
    lock.json   which packages a set of requirements comes to, for one Python
    packages/   those, installed, as programs see them
    work/       where uv works meanwhile

Owns the names, what installed packages may be, and what is removed when room is needed. Everything
is written beside its place and renamed, so that there is never half of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.saving import replace_file

MAX_LOCK_BYTES = 4 * 1024 * 1024
"""Of a lock.json; a large one has some kilobytes."""

MAX_ENTRIES = 50_000
"""Files and directories of a set: the largest have half of that."""

MAX_SETS = 2000
"""Choices that are remembered, of some kilobytes each."""

KEPT_SECONDS = 2 * 24 * 3600.0
"""For which what was used stays whatever happens: nothing is taken from under a program."""

LEFT_SECONDS = 2 * 3600.0
"""After which what was begun was left by a dead bridge: no run waits as long."""

TOUCHED_SECONDS = 3600.0
"""How exactly it is known when something was used last."""

_TURN_PAUSE_SECONDS = 0.1

_RUN_BY_ITSELF = re.compile(r".*\.pth|(site|user)customize(\..*)?|\.lock", re.IGNORECASE)
"""What an interpreter with `site` would run at its start, and uv's own lock file. The guest's has
no `site`; removed all the same, since a program may start another."""


@dataclass(frozen=True, kw_only=True)
class Locked:
    """One package that was chosen.

    Attributes:
        hashes: SHA-256 of each file that it may come from.
        parent: Name of a package that needs it; empty for what was asked for.
    """

    name: str
    version: str
    hashes: tuple[str, ...]
    parent: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Which packages a set of requirements comes to.

    Attributes:
        made: When that was found out.
    """

    packages: tuple[Locked, ...]
    made: float


class PackageSet:
    """One directory. Methods block, and are for threads, unless they are async.

    Args:
        directory: Of all sets; made when needed.
        texts: What the set is of; equal for the same set only.
    """

    def __init__(self, directory: Path, texts: Iterable[str]) -> None:
        self._all = directory
        self.name = digest_of(texts)
        self._path = directory / self.name
        self.tree = self._path / "packages"
        self.work = self._path / "work"

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Hold the one turn that there is to fill it in, among all bridges. Waits for it.

        Raises:
            PackageUnavailableError: The directory cannot be written to.
        """
        try:
            descriptor = await anyio.to_thread.run_sync(self._open)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await anyio.sleep(_TURN_PAUSE_SECONDS)
            yield
        finally:
            # Before the turn ends, so that all that is in it is of the one that has it.
            with anyio.CancelScope(shield=True):
                remove = partial(shutil.rmtree, self.work, ignore_errors=True)
                await anyio.to_thread.run_sync(remove)
            os.close(descriptor)

    def _open(self) -> int:
        self._path.mkdir(parents=True, exist_ok=True)
        # Where a bridge is root, its programs are nobody, who must get as far as the packages.
        for path in (self._all.parent, self._all, self._path):
            if path.stat().st_uid == os.geteuid():
                path.chmod(0o755)
        return os.open(self._path / "turn", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def begin(self) -> Path:
        """Return a new directory to work in; whoever has the turn may.

        Raises:
            PackageUnavailableError: It cannot be made.
        """
        try:
            shutil.rmtree(self.work, ignore_errors=True)
            self.work.mkdir(mode=0o700)
        except OSError as error:
            raise self._unwritable(error) from None
        return self.work

    def read(self) -> Lock | None:
        """Return what the set came to; None if that is not known."""
        try:
            with (self._path / "lock.json").open("rb") as file:
                document = json.loads(file.read(MAX_LOCK_BYTES))
            packages = [
                Locked(**{**each, "hashes": tuple(each["hashes"])}) for each in document["packages"]
            ]
            return Lock(packages=tuple(packages), made=float(document["made"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def keep(self, lock: Lock, made: Path | None) -> None:
        """Keep what the set came to, and what was installed, for programs from now on.

        Raises:
            PackageUnavailableError: It cannot be written.
        """
        try:
            if made is not None:
                if self.tree.exists():
                    # A program may still look at it, and finds it gone.
                    self.tree.rename(self.work / "old")
                made.rename(self.tree)
            replace_file(self._path / "lock.json", json.dumps(asdict(lock)).encode())
        except OSError as error:
            raise self._unwritable(error) from None

    def touch(self) -> bool:
        """Note that the installed packages are used; False if they are not there."""
        try:
            if time.time() - self.tree.stat().st_mtime > TOUCHED_SECONDS:
                os.utime(self.tree)
        except OSError:
            return False
        return True

    def _unwritable(self, error: OSError) -> PackageUnavailableError:
        message = f"Packages cannot be kept: {error.strerror or error}."
        remedy = "The person who runs the bridge can set `cache` of [dependencies]."
        return PackageUnavailableError(message, host_detail=f"In {self._all}.", remedy=remedy)


def make_room(directory: Path, most: int) -> None:
    """Remove what was not used for longest, where the sets in a directory take too much. Blocks.

    Raises:
        PackageUnavailableError: All of it was used lately, and there is too much.
    """
    now = time.time()
    found = []
    for path in directory.iterdir():
        with suppress(OSError):
            tree = path / "packages"
            used = (tree if tree.is_dir() else path).stat().st_mtime
            found.append((used, sum(one.st_size for one in _entries(path)), path))
    total = sum(size for _, size, _ in found)
    for number, (used, size, path) in enumerate(sorted(found)):
        if total > most and now - used > KEPT_SECONDS:
            with suppress(OSError):
                # Out of sight first: half a set must never be taken for one.
                (path / "packages").rename(path / "work")
            # Earlier bridges had no turns here.
            away = path / "work" if (path / "turn").exists() else path
            shutil.rmtree(away, ignore_errors=True)
            total -= size
        if len(found) - number > MAX_SETS and now - used > LEFT_SECONDS:
            shutil.rmtree(path, ignore_errors=True)
    if total > most:
        message = f"The packages that are kept take {total // 1024**2:,} MiB, which is too much."
        remedy = "The person who runs the bridge can raise `cache_bytes` of [dependencies]."
        raise PackageUnavailableError(message, host_detail=f"In {directory}.", remedy=remedy)


def tidy(tree: Path, max_bytes: int) -> None:
    """Make what was installed plain files of fixed modes that everybody may read. Blocks.

    What an interpreter would run by itself is removed.

    Raises:
        PackageRefusedError: There is a link or a device, or too much.
    """
    for path in tree.iterdir():
        if _RUN_BY_ITSELF.fullmatch(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    tree.chmod(0o755)
    entries = size = 0
    for place, directories, files in os.walk(tree):
        for name in (*directories, *files):
            path = Path(place, name)
            found = path.lstat()
            if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
                message = f"{path.relative_to(tree)!s:.100} is neither a file nor a directory."
                raise PackageRefusedError(message, remedy="Ask for another version.")
            path.chmod(0o755 if found.st_mode & 0o111 else 0o644)
            entries += 1
            size += found.st_size
    if entries > MAX_ENTRIES or size > max_bytes:
        raise too_large()


def too_large() -> PackageRefusedError:
    """Return the refusal of packages beyond the bounds."""
    message = (
        "The packages are larger than a run's may be (`max_bytes`), or have more than "
        f"{MAX_ENTRIES:,} files."
    )
    remedy = "Ask for less; or the person who runs the bridge raises `max_bytes`."
    return PackageRefusedError(message, remedy=remedy)


def within(place: Path, most: int) -> bool:
    """Tell whether what uv has written is within `most` bytes, and a bound on files. Blocks.

    Called while it grows. A file of several names counts once.
    """
    size = entries = 0.0
    for found in _entries(place):
        size += found.st_size / found.st_nlink if stat.S_ISREG(found.st_mode) else 0
        entries += 1
        if size > most or entries > 3 * MAX_ENTRIES:
            return False
    return True


def digest_of(texts: Iterable[str]) -> str:
    """Return a name for a list of texts, the same for the same list only."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _entries(place: Path) -> Iterator[os.stat_result]:
    for directory, directories, files in os.walk(place):
        for name in (*directories, *files):
            # What is gone again meanwhile counts no more.
            with suppress(OSError):
                yield os.lstat(os.path.join(directory, name))  # noqa: PTH118 - many, joined at once
