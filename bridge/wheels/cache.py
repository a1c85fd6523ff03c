"""What is kept of packages: wheels by their digest, what versions were chosen, what was unpacked.

Below one directory:

    wheels/<sha256>.whl
    locks/<digest>.json     which wheels a set of requirements comes to, for one Python
    sets/<digest>/          wheels unpacked together, as programs see them
    turns/<digest>          held by the bridge that fills in the two above
    resolvers/              directories of resolvers that are at work

Owns the names, who writes when, and what is removed. Everything is written beside its place and
renamed, so that there is never half of it. What nobody used for a while goes when room is needed.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.errors import PackageUnavailableError
from bridge.saving import UNFINISHED, replace_file
from bridge.wheels.unpacking import unpack

MAX_LOCK_BYTES = 4 * 1024 * 1024
"""Of one file in `locks`; a large one has some kilobytes."""

KEPT_SECONDS = 2 * 24 * 3600.0
"""For which what was used stays whatever happens: nothing is taken from under a program."""

LEFT_SECONDS = 2 * 3600.0
"""After which what somebody began to write was left by a dead bridge: no run waits as long."""

MAX_LOCKS = 2000
"""Choices that are remembered, of some kilobytes each. A program can wish for anything allowed."""

TOUCHED_SECONDS = 3600.0
"""How exactly it is known when something was used last."""

_TURN_PAUSE_SECONDS = 0.1

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Locked:
    """One wheel that was chosen.

    Attributes:
        sha256: Of the wheel, as it was counted here.
    """

    name: str
    version: str
    url: str
    file: str
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """Which wheels a set of requirements comes to.

    Attributes:
        made: When that was found out.
        needed: Name to that of a package that needs it; empty for what was asked for.
    """

    wheels: tuple[Locked, ...]
    needed: dict[str, str]
    made: float


class Cache:
    """The directory. Methods block, and are for threads, unless they are async.

    Args:
        directory: Made when needed.
        most: Bytes that may be kept.
    """

    def __init__(self, directory: Path, most: int) -> None:
        self._directory = directory
        self._most = most

    @property
    def wheels(self) -> Path:
        """Where wheels are."""
        return self._directory / "wheels"

    @property
    def resolvers(self) -> Path:
        """Where resolvers have directories of their own."""
        return self._directory / "resolvers"

    def tree(self, lock: Lock) -> Path:
        """Return where a set of wheels is unpacked, whether or not it is yet."""
        return self._directory / "sets" / digest_of(wheel.sha256 for wheel in lock.wheels)

    def make(self) -> None:
        """Make the directory.

        Raises:
            PackageUnavailableError: It cannot be made.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for name in ("wheels", "locks", "sets", "turns", "resolvers"):
                (self._directory / name).mkdir(exist_ok=True)
            # Where a bridge is root, its programs are nobody, who must get as far as the sets.
            (self._directory / "sets").chmod(0o755)
        except OSError as error:
            raise self._unwritable(error) from None

    @asynccontextmanager
    async def turn(self, key: str) -> AsyncIterator[None]:
        """Hold the one turn that there is to fill in a set, among all bridges. Waits for it."""
        descriptor = os.open(
            self._directory / "turns" / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
        )
        try:
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    await anyio.sleep(_TURN_PAUSE_SECONDS)
            yield
        finally:
            os.close(descriptor)

    def read(self, key: str) -> Lock | None:
        """Return what a set of requirements came to; None if that is not known."""
        try:
            with (self._directory / "locks" / f"{key}.json").open("rb") as file:
                document = json.loads(file.read(MAX_LOCK_BYTES))
            wheels = tuple(Locked(**wheel) for wheel in document["wheels"])
            needed = {str(name): str(parent) for name, parent in document["needed"].items()}
            made = float(document["made"])
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
        if not all(_DIGEST.fullmatch(wheel.sha256) for wheel in wheels):
            return None
        return Lock(wheels=wheels, needed=needed, made=made)

    def write(self, key: str, lock: Lock) -> None:
        """Keep what a set of requirements came to.

        Raises:
            PackageUnavailableError: It cannot be written.
        """
        text = json.dumps(asdict(lock), indent=1)
        try:
            replace_file(self._directory / "locks" / f"{key}.json", text.encode())
        except OSError as error:
            raise self._unwritable(error) from None

    def has_wheel(self, sha256: str) -> bool:
        """Tell whether a wheel is here, whole and as it was."""
        path = self.wheels / f"{sha256}.whl"
        try:
            with path.open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == sha256
        except OSError:
            return False

    def unpacked(self, lock: Lock, max_bytes: int) -> Path:
        """Unpack a set of wheels that are here, unless it is unpacked; return where.

        Raises:
            PackageRefusedError: A wheel is not what one may be.
            PackageUnavailableError: There is no room, or it cannot be written.
        """
        tree = self.tree(lock)
        if tree.is_dir():
            return tree
        pairs = [(wheel.file, self.wheels / f"{wheel.sha256}.whl") for wheel in lock.wheels]
        made = ""
        try:
            made = tempfile.mkdtemp(dir=tree.parent, prefix=UNFINISHED)
            unpack(pairs, Path(made), max_bytes)
            Path(made).chmod(0o755)
            with suppress(FileExistsError):
                Path(made).rename(tree)
        except OSError as error:
            if not tree.is_dir():
                raise self._unwritable(error) from None
        finally:
            if made:
                shutil.rmtree(made, ignore_errors=True)
        return tree

    def touch(self, tree: Path) -> None:
        """Note that a set is used."""
        now = time.time()
        with suppress(OSError):
            if now - tree.stat().st_mtime > TOUCHED_SECONDS:
                os.utime(tree)

    def make_room(self) -> None:
        """Remove what a dead bridge began, and what was not used for longest where all is too much.

        Raises:
            PackageUnavailableError: All that is here was used lately, and there is too much of it.
        """
        now = time.time()
        found: list[tuple[float, int, Path]] = []
        for name in ("locks", "turns"):
            self._forget(self._directory / name, now)
        for path in _inside(self.resolvers):
            with suppress(OSError):
                if now - path.stat().st_mtime > LEFT_SECONDS:
                    _remove(path)
        for path in (*_inside(self.wheels), *_inside(self._directory / "sets")):
            with suppress(OSError):
                used = path.stat().st_mtime
                if path.name.startswith(UNFINISHED):
                    if now - used > LEFT_SECONDS:
                        _remove(path)
                    continue
                found.append((used, _size(path), path))
        total = sum(size for _, size, _ in found)
        for used, size, path in sorted(found):
            if total <= self._most or now - used < KEPT_SECONDS:
                break
            _remove(path)
            total -= size
        if total > self._most:
            message = (
                f"The packages that are kept take {total // 1024**2:,} MiB, which is too much."
            )
            remedy = "The person who runs the bridge can raise `cache_bytes` of [dependencies]."
            raise PackageUnavailableError(
                message, host_detail=f"They are in {self._directory}.", remedy=remedy
            )

    def _forget(self, directory: Path, now: float) -> None:
        """Remove the oldest of many small files, as far as nobody can be at work with them."""
        paths = _inside(directory)
        if len(paths) <= MAX_LOCKS:
            return
        ages = []
        for path in paths:
            with suppress(OSError):
                ages.append((path.stat().st_mtime, path))
        for made, path in sorted(ages)[: len(paths) - MAX_LOCKS]:
            if now - made > LEFT_SECONDS:
                path.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> PackageUnavailableError:
        message = f"Packages cannot be kept: {error.strerror or error}."
        return PackageUnavailableError(message, host_detail=f"It is about {self._directory}.")


def digest_of(texts: Iterable[str]) -> str:
    """Return a name for a list of texts, the same for the same list only."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _inside(directory: Path) -> Sequence[Path]:
    try:
        return list(directory.iterdir())
    except OSError:
        return []


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(
        os.lstat(os.path.join(place, name)).st_size  # noqa: PTH118 - many, and joined at once
        for place, _, names in os.walk(path)
        for name in names
    )


def _remove(path: Path) -> None:
    if path.is_dir():
        # Out of sight first: half a set must never be taken for one.
        away = path.with_name(f"{UNFINISHED}{path.name}")
        with suppress(OSError):
            path.rename(away)
            shutil.rmtree(away, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
