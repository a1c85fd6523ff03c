"""Sets of packages: what requirements come to, in the store, and what that is on disk.

    <digest>/   packages, installed, as programs see them
    work-*/     where a bridge's uv works meanwhile

Owns the names, what installed packages may be, and what is removed when room is needed. What is
installed is complete before it has its name, and never changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.store import Store

MAX_ENTRIES = 50_000  # Files and directories of a set: the largest have half of that.
MAX_SETS = 2000  # Choices that are remembered, of some kilobytes each.

KEPT_SECONDS = 2 * 24 * 3600.0
"""A set used this recently is never removed: a program may be using it."""

LEFT_SECONDS = 2 * 3600.0
"""After which what was begun was left by a dead bridge: no run waits as long."""

_KIND = "packages"
_WORK = "work-"


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
    """One set. Methods block, and are for threads, but for `tree` and `touch`.

    Args:
        directory: Of all sets; made when needed.
        store: Where what it came to is kept.
        texts: What the set is of; equal for the same set only.
    """

    def __init__(self, directory: Path, store: Store, texts: Iterable[str]) -> None:
        self._directory = directory
        self._store = store
        self.name = digest_of(texts)

    def tree(self, lock: Lock) -> Path:
        """Return the directory of the installed packages, which may not exist yet."""
        return self._directory / digest_of([self.name, *map(repr, lock.packages)])

    def touch(self, lock: Lock) -> bool:
        """Record that the installed packages are used; return False if they are not there."""
        tree = self.tree(lock)
        try:
            if time.time() - tree.stat().st_mtime > 3600.0:
                os.utime(tree)
        except OSError:
            return False
        return True

    def begin(self) -> Path:
        """Return a new directory to work in, which the caller removes.

        Raises:
            PackageUnavailableError: It cannot be made.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            # Where a bridge is root, its programs are "nobody", who must be able to read packages.
            for path in (self._directory.parent, self._directory):
                if path.stat().st_uid == os.geteuid():
                    path.chmod(0o755)
            return Path(tempfile.mkdtemp(dir=self._directory, prefix=_WORK))
        except OSError as error:
            raise self._unwritable(error) from None

    def read(self) -> Lock | None:
        """Return what the set came to; None if that is not known."""
        try:
            with self._store.reading() as kept:
                document = json.loads(kept.get(_KIND, "", self.name) or b"null")
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
        tree = self.tree(lock)
        try:
            # Another bridge may have been faster, with the same.
            if made is not None and not tree.exists():
                made.rename(tree)
            with self._store.writing() as kept:
                kept.put(_KIND, "", self.name, json.dumps(asdict(lock)).encode())
                kept.prune(_KIND, most=MAX_SETS)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> PackageUnavailableError:
        message = f"Packages cannot be kept: {error.strerror or error}."
        remedy = "The person who runs the bridge can set `cache` of [dependencies]."
        return PackageUnavailableError(message, host_detail=f"In {self._directory}.", remedy=remedy)


def make_room(directory: Path, most: int) -> None:
    """Remove what was not used for longest, where the sets in a directory take too much. Blocks.

    Raises:
        PackageUnavailableError: All of it was used lately, and there is too much.
    """
    now = time.time()
    found = []
    for path in directory.iterdir():
        with suppress(OSError):
            used = path.stat().st_mtime
            if path.name.startswith(_WORK) and now - used > LEFT_SECONDS:
                shutil.rmtree(path, ignore_errors=True)
            found.append((used, sum(one.st_size for one in _entries(path)), path))
    total = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if total > most and now - used > KEPT_SECONDS:
            # Out of sight first: half a set must never be taken for one.
            away = path.with_name(f"{_WORK}{path.name}")
            with suppress(OSError):
                path.rename(away)
            shutil.rmtree(away, ignore_errors=True)
            total -= size
    if total > most:
        message = f"The packages that are kept take {total // 1024**2:,} MiB, which is too much."
        remedy = "The person who runs the bridge can raise `cache_bytes` of [dependencies]."
        raise PackageUnavailableError(message, host_detail=f"In {directory}.", remedy=remedy)


def tidy(tree: Path, max_bytes: int) -> None:
    """Make what was installed plain files of fixed modes that everybody may read. Blocks.

    What an interpreter would run at its start is removed.

    Raises:
        PackageRefusedError: There is a link or a device, or too much.
    """
    for path in tree.iterdir():
        # What an interpreter with `site` would run at its start, and uv's own lock file.
        if re.fullmatch(
            r".*\.pth|(site|user)customize(\..*)?|\.lock", path.name, flags=re.IGNORECASE
        ):
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
    """Return whether what uv has written is within `most` bytes, and a bound on files. Blocks.

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
