"""Packages on disk: each wheel once, and sets of wheels, which programs see.

- `wheels/<sha256>/`: one unpacked wheel
- `sets/<digest>/`: hard links to the files of a set's wheels
- `sets/work-*/`: a working directory of uv
- `uv/`: uv's cache, with answers of indexes

A wheel or set is complete before it gets its name. Later only bytecode is added.
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
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.guest.protocol.distributions import LIGHTER
from bridge.private_files import in_use
from bridge.store import Store

MAX_ENTRIES = 50_000  # Packages may have any number of files; large sets have half of this.
KEPT_SECONDS = 60.0  # The sandbox of a set that was used this recently may not have mounted it yet.

_KIND = "packages"
_WORK = "work-"


@dataclass(frozen=True, kw_only=True)
class Locked:
    """One resolved package: its wheel's hash and size in bytes, 0 if unknown."""

    name: str
    version: str
    sha256: str
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Lock:
    """The resolution of requirements, at the time `made`."""

    packages: tuple[Locked, ...]
    made: float

    @property
    def versions(self) -> dict[str, str]:
        return {package.name: package.version for package in self.packages}


@contextmanager
def _explain_failure() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"Packages cannot be stored: {error.strerror or error}."
        remedy = "The bridge's user can set `cache` of [dependencies], or free space there."
        raise PackageUnavailableError(message, remedy=remedy) from None


class StoredSet:
    """A package set on disk, named by a digest of its request. All but `tree` and `touch` block."""

    def __init__(self, directory: Path, store: Store, texts: Iterable[str]) -> None:
        self._directory = directory
        self._store = store
        self.name = digest_of(texts)

    def tree(self, lock: Lock) -> Path:
        return self._directory / "sets" / digest_of(package.sha256 for package in lock.packages)

    def wheel(self, package: Locked) -> Path:
        return self._directory / "wheels" / package.sha256

    def touch(self, lock: Lock) -> bool:
        with suppress(OSError):
            os.utime(self.tree(lock))
            return True
        return False

    @_explain_failure()
    def begin(self) -> Path:
        # Programs of root's bridge run as another user, who must be able to read packages.
        for path in (self._directory, self._directory / "wheels", self._directory / "sets"):
            path.mkdir(parents=True, exist_ok=True)
            if path.stat().st_uid == os.geteuid():
                path.chmod(0o755)
        return Path(tempfile.mkdtemp(dir=self._directory / "sets", prefix=_WORK))

    def read(self) -> Lock | None:
        try:
            with self._store.reading() as transaction:
                document = json.loads(transaction.get(_KIND, "", self.name) or b"null")
            packages = tuple(Locked(**each) for each in document["packages"])
            return Lock(**{**document, "packages": packages})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    @_explain_failure()
    def remember(self, lock: Lock) -> None:
        with self._store.writing() as transaction:
            transaction.put(_KIND, "", self.name, json.dumps(asdict(lock)).encode())
            transaction.prune(_KIND, most=2000)

    @_explain_failure()
    def keep_wheel(self, package: Locked, made: Path, max_bytes: int) -> None:
        tidy(made, max_bytes)
        # Another bridge may have stored it first.
        if not self.wheel(package).exists():
            made.rename(self.wheel(package))

    @_explain_failure()
    def keep(self, lock: Lock, work: Path, max_bytes: int) -> None:
        """Make the set from stored wheels; raise PackageRefusedError if it is too large."""
        made, tree = work / "set", self.tree(lock)
        sizes, entries = {}, 0
        for package in lock.packages:
            counted = list(_entries(self.wheel(package)))
            sizes[f"{package.name} {package.version}"] = sum(one.st_size for one in counted)
            entries += len(counted)
            link_tree(self.wheel(package), made)
        if sum(sizes.values()) > max_bytes or entries > MAX_ENTRIES:
            raise too_large(max_bytes, sizes, "unpacked")
        made.chmod(0o755)
        if not tree.exists():
            made.rename(tree)
        os.utime(tree)


def link_tree(source: Path, into: Path) -> None:
    """Link a directory's files into another one; copy those that cannot be linked."""
    for place, _, files in os.walk(source):
        below = into / Path(place).relative_to(source)
        # If one wheel has a file and another a directory of that name, the first one stays.
        with suppress(FileExistsError, NotADirectoryError):
            below.mkdir(parents=True, exist_ok=True)
            for name in files:
                path = below / name
                try:
                    path.hardlink_to(Path(place, name))
                except FileExistsError:
                    continue
                except OSError:
                    # The file system has no hard links, or allows no more of this file.
                    shutil.copy2(Path(place, name), path)


def make_room(directory: Path, most: int) -> None:
    """Evict the least recently used sets, and unused wheels, beyond `most` bytes. Blocks."""
    with in_use(directory / "wheels", alone=True) as alone:
        # If another bridge is installing, its wheels have no set yet.
        if alone:
            _make_room(directory, most, time.time())


def _make_room(directory: Path, most: int, now: float) -> None:
    sets: list[tuple[float, Path | None]] = [(0.0, None)]
    for path in (directory / "sets").iterdir():
        with suppress(OSError):
            used = path.stat().st_mtime
            if not path.name.startswith(_WORK):
                sets.append((used, path))
            elif now - used > 7200:  # It is a dead bridge's: no run waits this long.
                shutil.rmtree(path, ignore_errors=True)
    wheels = {path: _size(path) for path in (directory / "wheels").iterdir()}
    # Without hard links a set takes space of its own.
    copies = {path: _size(path) for _, path in sets if path is not None and not _is_shared(path)}
    total = sum(wheels.values()) + sum(copies.values())
    for used, oldest in sorted(sets, key=lambda each: each[0]):
        if total <= most or now - used < KEPT_SECONDS:
            return
        if oldest is not None:
            total -= copies.get(oldest, 0) if _evict(oldest) else 0
        for wheel in [each for each in wheels if not _is_shared(each)]:
            if total > most and _evict(wheel):
                total -= wheels.pop(wheel)


def _size(place: Path) -> int:
    return sum(one.st_size for one in _entries(place))


def _is_shared(place: Path) -> bool:
    with suppress(OSError):
        return any(path.stat().st_nlink > 1 for path in place.glob("*.dist-info/METADATA"))
    return False


def _evict(path: Path) -> bool:
    with suppress(OSError), in_use(path, alone=True) as unused:
        if unused:
            # Rename it first, so that no bridge uses a half-removed set.
            away = path.parent.parent / "sets" / f"{_WORK}{path.name}"
            path.rename(away)
            shutil.rmtree(away, ignore_errors=True)
            return True
    return False


def tidy(tree: Path, max_bytes: int) -> None:
    """Give an unpacked wheel's files fixed modes that all users can read. Blocks.

    It removes files that an interpreter runs at its start, and refuses links and devices.
    """
    for path in tree.iterdir():
        # Files that `site` runs at start, and uv's lock file.
        if re.fullmatch(
            r".*\.pth|(site|user)customize(\..*)?|\.lock", path.name, flags=re.IGNORECASE
        ):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    tree.chmod(0o755)
    entries = size = 0
    for place, directories, files in os.walk(tree):
        for name in (*directories, *files):
            path = Path(place, name)
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                message = f"{path.relative_to(tree)!s:.100} is neither a file nor a directory."
                raise PackageRefusedError(message, remedy="Request another version.")
            path.chmod(0o755 if status.st_mode & 0o111 else 0o644)
            entries += 1
            size += status.st_size
    if entries > MAX_ENTRIES or size > max_bytes:
        raise too_large(max_bytes)


def too_large(
    most: int, sizes: Mapping[str, int] | None = None, what: str = "to download"
) -> PackageRefusedError:
    """Return the refusal of packages beyond `most` bytes; `sizes` are by package."""
    message = (
        f"The packages are larger than a run's may be (`max_bytes`: {_mib(most)}), or have more "
        f"than {MAX_ENTRIES:,} files."
    )
    if sizes and any(sizes.values()):
        largest = sorted(sizes.items(), key=lambda each: -each[1])[:3]
        named = ", ".join(f"{name} {_mib(size)}" for name, size in largest)
        message += f" Together they have {_mib(sum(sizes.values()))} {what}; the largest: {named}."
    names = {package.partition(" ")[0] for package in sizes or ()}
    lighter = [f'for {name} "{LIGHTER[name]}"' for name in sorted(names & LIGHTER.keys())]
    ask = f"Ask {', '.join(lighter)}" if lighter else "Request less"
    remedy = f"{ask}, or have the bridge's user raise `max_bytes`."
    return PackageRefusedError(message, remedy=remedy)


def _mib(size: int) -> str:
    return f"{size / 1024**2:,.0f} MiB"


def within(place: Path, most: int) -> bool:
    """Return whether a directory is within `most` bytes and a bound on files. Blocks."""
    size = entries = 0.0
    for status in _entries(place):
        size += status.st_size / status.st_nlink if stat.S_ISREG(status.st_mode) else 0
        entries += 1
        if size > most or entries > 3 * MAX_ENTRIES:
            return False
    return True


def digest_of(texts: Iterable[str]) -> str:
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def _entries(place: Path) -> Iterator[os.stat_result]:
    for directory, directories, files in os.walk(place):
        for name in (*directories, *files):
            # uv may remove files meanwhile.
            with suppress(OSError):
                yield os.lstat(os.path.join(directory, name))  # noqa: PTH118 - many, joined at once


Compile = Callable[[Path], Awaitable[bytes | None]]  # Returns a sandbox's bytecode of a wheel.


async def compile_set(
    tree: Path, wheels: Sequence[Path], tag: str, most: int, compiled: Compile
) -> None:
    """Add missing bytecode to a set and its wheels; `tag` is the Python's cache tag."""
    for wheel in wheels:
        # Another bridge may evict the wheel.
        with suppress(OSError):
            metadata = next(wheel.glob("*.dist-info"), None)
            if metadata is None:
                continue
            marker = f"{metadata.name}/COMPILED.{tag}"
            if (tree / marker).exists():
                continue
            with in_use((wheel / marker).parent, alone=True) as alone:
                # If not alone, another bridge compiles it, for a later run.
                if alone and not (wheel / marker).exists():
                    await _compile(wheel, tag, most, compiled)
                    (wheel / marker).touch(mode=0o644)
            await anyio.to_thread.run_sync(link_tree, wheel, tree)


async def _compile(wheel: Path, tag: str, most: int, compiled: Compile) -> None:
    while data := await compiled(wheel):
        if not await anyio.to_thread.run_sync(partial(add_bytecode, wheel, data, tag, most)):
            return


async def add_fonts(tree: Path, listed: Compile) -> None:
    """Add matplotlib's list of fonts, which a sandbox makes, to a set with matplotlib."""
    place = tree / ".matplotlib"
    if not (tree / "matplotlib").is_dir() or place.exists():
        return
    name, _, content = (await listed(tree) or b"").partition(b"\n")
    if re.fullmatch(rb"fontlist-v[\w.-]{1,20}\.json", name):
        place.mkdir(mode=0o755)
        (place / name.decode()).write_bytes(content)
        (place / name.decode()).chmod(0o644)


def add_bytecode(wheel: Path, data: bytes, tag: str, most: int) -> int:
    """Write compiled files next to their sources; return how many are new.

    `data` comes from a sandbox, which may be hostile.
    """
    added = 0
    sources = {
        str(Path(place, name).relative_to(wheel))
        for place, _, names in os.walk(wheel)
        for name in names
        if name.endswith(".py")
    }
    for name, content in _read_pairs(data, most):
        if name not in sources:
            continue
        source = wheel / name
        made = source.parent / "__pycache__" / f"{source.stem}.{tag}.pyc"
        half = made.with_suffix(".half")
        with suppress(OSError):
            made.parent.mkdir(mode=0o755, exist_ok=True)
            if not made.exists():
                half.write_bytes(content)
                half.chmod(0o644)
                half.rename(made)
                added += 1
    return added


def _read_pairs(data: bytes, most: int) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents, up to the first malformed pair."""
    with suppress(zlib.error):
        rest = memoryview(zlib.decompressobj().decompress(data, most))
        while len(rest) > 4:
            pair = []
            for _ in range(2):
                end = 4 + int.from_bytes(rest[:4], "big")
                if len(rest) < end:
                    return
                pair.append(bytes(rest[4:end]))
                rest = rest[end:]
            yield os.fsdecode(pair[0]), pair[1]
