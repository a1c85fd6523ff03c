"""What sessions held when they were last saved, on disk.

Owns the files: one for each session, below a directory for each owner, replaced whole, and refused
if it is not what was written. What a state consists of only a guest knows; this is bytes with a
line that says whose they are. Everything here blocks, and is for threads.

    <digest of the rest>                 hexadecimal, one line
    <whose it is, of what, as JSON>      one line
    <the state>

Several bridges may use one directory: each file is whole at every moment, and who saves last wins.
After a power cut a file is the old one or the new.
A state is the program's data as it is: readable by this user alone, and not encrypted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import time
from typing import BinaryIO, cast

from bridge.engine.intake.state import MAX_LOST, MAX_STATE_BYTES, losses
from bridge.engine.sessions.surplus import SavedFile, owner_digest, surplus_of
from bridge.model import Json, Loss
from bridge.saving import UNFINISHED, replace_file

VERSION = 1

TOTAL_BYTES = 1024**3
"""Of all sessions of all owners; of too much the oldest of who has most go first."""

MAX_KEPT = 10_000
"""Sessions in all: their first lines are read in about a second."""

MAX_OF_OWNER = 500
"""Sessions of one owner."""

MAX_HEAD_BYTES = 1024 * 1024
"""Of the line that says whose a state is."""

_DIGEST_CHARS = 64
_SUFFIX = ".session"
_DAY = 24 * 3600.0

_LEFT_SECONDS = 3600.0
"""After which a file that nobody finished was left by a bridge that was killed."""

_TIDY_SECONDS = 600.0
"""After which a save looks at what has expired."""

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """What there is of one session, but for the state.

    Attributes:
        run: After which of its runs.
        lost: What is not in the state.
        facts: What else the engine wants to know again: servers, packages ...
        created: When the session was first saved, in seconds since the epoch.
        saved: When it was last.
        size: Of the state.
    """

    session_id: str
    name: str
    run: int
    lost: tuple[Loss, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    created: float = 0.0
    saved: float = 0.0
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What came of opening one.

    Attributes:
        checkpoint: None if there is none, or none that can be used.
        why: Why it cannot be used, as the end of a sentence; empty if there is none.
    """

    checkpoint: Checkpoint | None = None
    data: bytes = field(default=b"", repr=False)
    why: str = ""


class Checkpoints:
    """The sessions that were saved.

    Args:
        root: Where; made when something is first saved.
        days: For how long.
        total_bytes: Of all of them.
        now: Seconds since the epoch.
    """

    def __init__(
        self,
        root: Path,
        *,
        days: int,
        total_bytes: int = TOTAL_BYTES,
        now: Callable[[], float] = time,
    ) -> None:
        self._root = root
        self._seconds = days * _DAY
        self._total_bytes = total_bytes
        self._now = now
        self._tidied = -_TIDY_SECONDS
        self._written = 0

    def save(self, owner: str, checkpoint: Checkpoint, data: bytes) -> None:
        """Save a session in place of what was saved of it before.

        Sets when it was saved and the size; and when it was created, as long as it is there.

        Raises:
            OSError: It cannot be. What was saved before is as it was.
        """
        if len(data) > min(MAX_STATE_BYTES, self._total_bytes):
            raise OSError(errno.EFBIG, "the state is larger than what is kept")
        moment = self._now()
        folder = self._folder(owner)
        created = checkpoint.created
        with suppress(OSError, ValueError):
            created = _checkpoint(
                owner, _first_lines(folder / _file_name(checkpoint.session_id))
            ).created
        head = _head(owner, replace(checkpoint, created=created), len(data), moment)
        digest = _digest(head, data)
        # Each level by itself: parents are made with the usual mode.
        for place in (self._root, folder):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            if place.stat().st_mode & 0o077:
                place.chmod(0o700)
        # Nobody waits for it but the session's next run: a few milliseconds for the disk.
        whole = b"\n".join((digest, head, data))
        replace_file(folder / _file_name(checkpoint.session_id), whole, durable=True)
        self._written += len(data)
        if moment - self._tidied > _TIDY_SECONDS or self._written > self._total_bytes // 16:
            self.tidy()

    def load(self, owner: str, session_id: str) -> Opened:
        """Return a session as it was saved, if nothing has changed that since."""
        try:
            whole = self._read(owner, session_id)
        except FileNotFoundError:
            return Opened()
        except OSError as error:
            return Opened(why=f"its checkpoint cannot be read: {error.strerror or error}")
        digest, _, rest = whole.partition(b"\n")
        head, _, data = rest.partition(b"\n")
        if len(digest) != _DIGEST_CHARS or _digest(head, data) != digest:
            return Opened(why="its checkpoint is damaged, or somebody changed it")
        try:
            found = _checkpoint(owner, head)
        except ValueError as error:
            return Opened(why=str(error))
        if found.session_id != session_id or found.size != len(data):
            return Opened(why="its checkpoint is another session's")
        if found.saved < self._oldest():
            return Opened()
        return Opened(checkpoint=found, data=data)

    def find(self, owner: str, key: str) -> Opened:
        """Return what is saved by an id or a name, but for its data; of a name the last saved.

        Whether its state can be used is not known before it is loaded. Where nothing is found and
        something of the owner's is damaged, `why` says so: it may have been this.
        """
        every, damaged = self._heads(owner)
        by_id = next((each for each in every if each.session_id == key), None)
        found = by_id or next((each for each in every if each.name == key), None)
        if found is not None or not damaged:
            return Opened(checkpoint=found)
        if _file_name(key) in damaged:
            return Opened(why=damaged[_file_name(key)])
        return Opened(why="the checkpoint of one of your sessions is damaged, maybe of this one")

    def listed(self, owner: str) -> tuple[Checkpoint, ...]:
        """Return what is saved of an owner's sessions, the last saved first."""
        return self._heads(owner)[0]

    def _heads(self, owner: str) -> tuple[tuple[Checkpoint, ...], dict[str, str]]:
        """Return what files say whose they are, and by name why others are of no use."""
        found, damaged = list[Checkpoint](), dict[str, str]()
        oldest = self._oldest()
        for place in _files(self._folder(owner)):
            try:
                checkpoint = _checkpoint(owner, _first_lines(place))
            except FileNotFoundError:
                continue  # It has ended since.
            except ValueError as error:
                damaged[place.name] = str(error)
            except OSError as error:
                damaged[place.name] = f"its checkpoint cannot be read: {error.strerror or error}"
            else:
                if checkpoint.saved >= oldest:
                    found.append(checkpoint)
        found.sort(key=lambda each: -each.saved)
        return tuple(found[:MAX_OF_OWNER]), damaged

    def forget(self, owner: str, session_id: str) -> bool:
        """Keep nothing of a session; tell whether there was anything.

        Raises:
            OSError: It cannot be removed.
        """
        try:
            (self._folder(owner) / _file_name(session_id)).unlink()
        except FileNotFoundError:
            return False
        return True

    def tidy(self) -> int:
        """Remove what has expired, is too much, or was left unfinished; return how many."""
        self._tidied, self._written = self._now(), 0
        goes = surplus_of(
            tuple(self._every()),
            oldest=self._oldest(),
            total_bytes=self._total_bytes,
            most=MAX_KEPT,
            most_of_owner=MAX_OF_OWNER,
        )
        removed = sum(_remove(file) for file in goes)
        for folder in _folders(self._root):
            with suppress(OSError):
                folder.rmdir()  # refused if anything is in it
        return removed

    # --- where everything is ----------------------------------------------------------------------

    def _folder(self, owner: str) -> Path:
        return self._root / owner_digest(owner)

    def _oldest(self) -> float:
        return self._now() - self._seconds

    def _read(self, owner: str, session_id: str) -> bytes:
        place = self._folder(owner) / _file_name(session_id)
        limit = _DIGEST_CHARS + MAX_HEAD_BYTES + MAX_STATE_BYTES + 2
        with _opened(place) as file:
            return file.read(limit + 1)

    def _every(self) -> Iterator[SavedFile]:
        """Yield what files there are; remove what is unfinished."""
        for folder in _folders(self._root):
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.endswith(_SUFFIX):
                        yield SavedFile(status.st_mtime, status.st_size, Path(entry.path))
                    elif (
                        entry.name.startswith(UNFINISHED)
                        and status.st_mtime < time() - _LEFT_SECONDS
                    ):
                        with suppress(OSError):
                            Path(entry.path).unlink()


def _file_name(session_id: str) -> str:
    # Ids are ours, and yet never part of a path.
    return hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:32] + _SUFFIX


def _digest(head: bytes, data: bytes) -> bytes:
    made = hashlib.sha256(head)
    made.update(b"\n")
    made.update(data)
    return made.hexdigest().encode("ascii")


def _head(owner: str, checkpoint: Checkpoint, size: int, moment: float) -> bytes:
    head = json.dumps(
        {
            "version": VERSION,
            "id": checkpoint.session_id,
            "name": checkpoint.name,
            "owner": owner_digest(owner),
            "run": checkpoint.run,
            "created": checkpoint.created or moment,
            "saved": moment,
            "size": size,
            "lost": [[loss.name, loss.why] for loss in checkpoint.lost[:MAX_LOST]],
            "facts": dict(checkpoint.facts),
        }
    ).encode("ascii")
    if len(head) > MAX_HEAD_BYTES:
        raise OSError(errno.EFBIG, "what is to be known of the session is larger than what is kept")
    return head


def _checkpoint(owner: str, head: bytes) -> Checkpoint:
    """Return what a first line says.

    Raises:
        ValueError: It is none of this owner's, or of another version; the message says so.
    """
    damaged = "its checkpoint is damaged"
    try:
        told = json.loads(head)
    except (ValueError, RecursionError):
        raise ValueError(damaged) from None
    match told:
        case {"version": int(version)} if version != VERSION:
            message = (
                f"its checkpoint is of version {version}, and this bridge reads version {VERSION}"
            )
            raise ValueError(message)
        case {
            "id": str(session_id),
            "name": str(name),
            "owner": str(digest),
            "run": int(run),
            "created": float(created) | int(created),
            "saved": float(saved) | int(saved),
            "size": int(size),
            "lost": lost,
            "facts": dict(facts),
        } if "version" in told:
            if digest != owner_digest(owner):
                message = "its checkpoint is somebody else's"
                raise ValueError(message)
            return Checkpoint(
                session_id=session_id,
                name=name,
                run=run,
                lost=losses(lost),
                facts=cast("Mapping[str, Json]", facts),
                created=created,
                saved=saved,
                size=size,
            )
        case _:
            pass
    raise ValueError(damaged)


def _first_lines(place: Path) -> bytes:
    """Return the line that says whose a state is.

    Raises:
        ValueError: There is none.
        OSError: It cannot be read.
    """
    with _opened(place) as file:
        file.readline(_DIGEST_CHARS + 1)
        head = file.readline(MAX_HEAD_BYTES + 1)
    if not head.endswith(b"\n"):
        message = "its checkpoint ends in the middle"
        raise ValueError(message)
    return head[:-1]


def _opened(place: Path) -> BinaryIO:
    descriptor = os.open(place, _READ)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file")
    return os.fdopen(descriptor, "rb")


def _files(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.name.endswith(_SUFFIX)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _folders(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            return [Path(each.path) for each in entries if each.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _remove(file: SavedFile) -> int:
    """Remove a file, unless another bridge has replaced it since it was looked at."""
    try:
        if file.place.lstat().st_mtime > file.saved:
            return 0
        file.place.unlink()
    except OSError:
        return 0
    return 1
