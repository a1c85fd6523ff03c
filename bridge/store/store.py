"""The store: a SQLite database, a directory of contents, and transactions on both.

A write transaction holds the database's only write lock, so that no other writer changes what it
has read; a read transaction sees one snapshot. Everything here blocks: call it in threads.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bridge.private_files import make_directory
from bridge.store.blobs import Blobs, Unfinished

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Engine, Row, Table
    from sqlalchemy.exc import SQLAlchemyError

# The database, in the state directory; SQLite adds two more files while it is in use.
FILE = "store.db"

# The directory of contents next to `FILE`; next to a database `NAME` it is `NAME-blobs`.
BLOBS = "blobs"

VERSION = 1  # The number of the last of `schema.MIGRATIONS`.
BUSY_SECONDS = 30.0  # For another bridge's transaction. Most take a millisecond.
BATCH = 500  # Contents removed in one transaction.


SCHEMES = ("postgresql", "postgres")

# What cannot be taken for another address, in which a part of the password is shown.
_ADDRESS = re.compile(
    r"""
    \w+://
    ((?P<user> LETTER*) (: (LETTER | :)*)? (?P<at> @))?
    (?P<hosts> HOST (, HOST)*)
    (?P<path> /[^@?]*)?
    (\?[^@]*)?
    """.replace("LETTER", r"([^]%/?\#@:[\x80-\U0010FFFF] | %[0-9A-Fa-f]{2})").replace(
        "HOST", r"(\[[0-9A-Fa-f:.]*\] | [^][%/?\#@:,]*) (:\d*)?"
    ),
    re.VERBOSE,
)


@dataclass(frozen=True)
class ServerUrl:
    """An address as libpq reads it; as text it is without password and parameters."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        found = _ADDRESS.fullmatch(self.text)
        shown = found.group("user", "at", "hosts", "path") if found else ()
        return f"postgresql://{''.join(part or '' for part in shown)}"


def server_url(text: str) -> ServerUrl:
    """Return an address; raise ValueError if libpq cannot read it, or the driver is missing."""
    if not _ADDRESS.fullmatch(text):
        raise ValueError(
            "has characters in its login that must be escaped, such as / as %2F, or no number as "
            "its port"
        )
    if find_spec("psycopg") is None:
        raise ValueError("needs psycopg: install mcp-code-bridge[postgresql]")
    return ServerUrl(text)


class StoreError(OSError):
    """The database cannot be used: full, damaged, locked, out of reach, or too new."""

    def __init__(self, number: int, message: str, remedy: str = "") -> None:
        super().__init__(number, message)
        self.remedy = remedy


class Document(NamedTuple):
    """The columns of a document without its data."""

    owner: str
    name: str
    updated: float
    size: int


def owner_digest(owner: str) -> str:
    """Return the digest that identifies an owner in a store and reveals no credential."""
    return hashlib.sha256(owner.encode("utf-8", "surrogatepass")).hexdigest()[:32]


class Store:
    """One database. Several bridges, and several of these, may use it at once.

    Attributes:
        shared: Whether it is a server's, so that only asking it tells whether it has changed.
    """

    shared = False

    def __init__(self, directory: Path, name: str = FILE) -> None:
        self.directory = directory
        self.place: Path | str = directory  # For messages.
        self.blobs = Blobs(directory / (BLOBS if name == FILE else f"{name}-{BLOBS}"))
        self._file = directory / name
        self._url = f"sqlite:///{self._file}"

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a read transaction, which is empty without a database."""
        if not self.shared and not _exists(self._file):
            yield Transaction(None)
            return
        with self.connected(writes=False) as connection:
            yield Transaction(connection)

    def documents(self, kind: str, names: Iterable[str], owner: str = "") -> dict[str, bytes]:
        """Return documents by their names, from one snapshot, without importing SQLAlchemy."""
        names = list(names)
        found: dict[str, bytes] | None = None
        if not (self.shared or "sqlalchemy" in sys.modules) and _exists(self._file):
            found = _read_without_sqlalchemy(self._file, kind, owner, names)
        if found is None:
            with self.reading() as kept:
                found = dict(kept.all(kind, owner, names))
        return found

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[Transaction]:
        """Open a write transaction, undone by an exception; a `durable` one waits for the disk."""
        if not self.shared:
            make_directory(self.directory)
            _make_private(self._file)
        with self.connected(writes=True, durable=durable) as connection:
            yield Transaction(connection)

    @contextmanager
    def writing_blob(
        self, unfinished: Unfinished, digest: str, *, durable: bool = False
    ) -> Iterator[Transaction]:
        """Open a write transaction for rows that refer to a content, and publish it at the end."""
        try:
            self.blobs.prepare(unfinished, digest)
            with self.writing(durable=durable) as kept:
                yield kept
                self.blobs.publish(kept, unfinished, digest, durable=durable)
        except BaseException as error:
            # The content may have been published although the rows were rolled back; on a server
            # it was sent before anybody decided that there is room for it.
            if self.shared or isinstance(error, OSError):
                with suppress(OSError):
                    self.drop([digest])
            raise

    def state(self) -> tuple[int, ...]:
        """Return a value that changes with every write; () without a database."""
        found: list[int] = []
        for name in (self._file.name, f"{self._file.name}-wal"):
            with suppress(OSError):
                status = self._file.with_name(name).stat()
                found += [status.st_mtime_ns, status.st_size, status.st_ino]
        return tuple(found)

    def drop(self, digests: Iterable[str]) -> int:
        """Remove those of the contents that no row refers to; return how many.

        In transactions of `BATCH` contents, so that other writers need not wait for all.
        """
        left, removed = sorted(set(digests)), 0
        while left:
            some, left = left[:BATCH], left[BATCH:]
            with self.writing() as kept:
                used = kept.used(some)
                removed += sum(self.blobs.remove(kept, one) for one in some if one not in used)
        return removed

    def close(self) -> None:
        """Close this process's connections to the database; the next use opens them again."""
        if "bridge.store.schema" in sys.modules:
            sys.modules["bridge.store.schema"].databases.close(self._url)

    def check(self) -> None:
        with self.reading():
            pass

    @contextmanager
    def connected(
        self, *, writes: bool, durable: bool = False, locked: bool = True
    ) -> Iterator[Connection]:
        """Open a transaction; on a server one that is not `locked` waits for no turn."""
        from sqlalchemy.exc import SQLAlchemyError

        from bridge.store.schema import DURABLE, LOCKED, WRITES

        ending = False
        try:
            options = {WRITES: writes, DURABLE: durable, LOCKED: locked}
            with self._engine().execution_options(**options).begin() as connection:
                yield connection
                ending = writes
        except SQLAlchemyError as error:
            # Without its cause, which could show a server's address with a password.
            raise self._as_error(error, ending=ending) from None

    def _engine(self) -> Engine:
        from bridge.store.schema import databases

        found = self._file.stat()
        return databases.engine(self._url, (found.st_dev, found.st_ino))

    def _as_error(self, error: SQLAlchemyError, *, ending: bool) -> StoreError:
        """Return the store's error; a transaction that was `ending` may have been committed."""
        from bridge.store.schema import as_store_error

        return as_store_error(error)


class Transaction:
    """One transaction, with operations on documents; without a connection there is no database."""

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection

    def get(self, kind: str, owner: str, name: str) -> bytes | None:
        return dict(self.all(kind, owner, [name])).get(name)

    def put(
        self, kind: str, owner: str, name: str, data: bytes, *, updated: float | None = None
    ) -> None:
        """Insert or replace a document, `updated` at those seconds since the epoch, or now."""
        assert self.connection is not None
        self.delete(kind, owner, name)
        row = {"kind": kind, "owner": owner, "name": name, "data": data, "size": len(data)}
        moment = time.time() if updated is None else updated
        self.connection.execute(_documents().insert().values(updated=moment, **row))

    def delete(self, kind: str, owner: str, name: str) -> bool:
        if self.connection is None:
            return False
        removed = _documents().delete().where(*_where(kind, owner, name))
        return self.connection.execute(removed).rowcount > 0

    def listed(self, kind: str, owner: str | None = None) -> list[Document]:
        """Return a kind's documents of one owner or of all, newest first."""
        return [Document._make(row) for row in self._rows(Document._fields, kind, owner)]

    def owners(self, kind: str) -> set[str]:
        return {row.owner for row in self._rows(("owner",), kind)}

    def all(self, kind: str, owner: str, names: list[str] | None = None) -> list[tuple[str, bytes]]:
        """Return names and data of an owner's documents, of all or of those named."""
        rows = self._rows(("name", "data"), kind, owner, names)
        return [(row.name, bytes(row.data)) for row in rows]

    def _rows(
        self,
        columns: Iterable[str],
        kind: str,
        owner: str | None = None,
        names: list[str] | None = None,
    ) -> Sequence[Row[Any]]:
        if self.connection is None:
            return ()
        table = _documents()
        chosen = table.select().with_only_columns(*(table.c[each] for each in columns))
        ordered = chosen.order_by(table.c.updated.desc(), table.c.name)
        if names is not None:
            ordered = ordered.where(table.c.name.in_(names))
        return self.connection.execute(ordered.where(*_where(kind, owner))).all()

    def used(self, digests: Iterable[str] | None = None) -> set[str]:
        """Return those of the digests that a row refers to; None means all digests."""
        if self.connection is None:
            return set()
        from bridge.store.schema import CONTENTS

        found, wanted = set[str](), None if digests is None else list(digests)
        for table in CONTENTS:
            column = table.c.digest
            chosen = table.select().with_only_columns(column).distinct()
            if wanted is not None:
                chosen = chosen.where(column.in_(wanted))
            found.update(row.digest for row in self.connection.execute(chosen))
        return found

    def prune(
        self,
        kind: str,
        *,
        most: int,
        most_bytes: float = inf,
        oldest: float = 0.0,
        owner: str | None = None,
    ) -> None:
        """Remove a kind's documents that are too old or beyond the limits; the newest stay.

        Args:
            most, most_bytes: Limits on the number of documents and on the bytes of their data,
                which the newest one may exceed.
            oldest: Documents written before this are removed; in seconds since the epoch.
            owner: Whose; None for those of all.
        """
        size = 0
        for number, each in enumerate(self.listed(kind, owner), start=1):
            size += each.size
            beyond = number > most or (size > most_bytes and number > 1)
            if beyond or each.updated < oldest:
                self.delete(kind, each.owner, each.name)


def _where(kind: str, owner: str | None, name: str | None = None) -> list[ColumnElement[bool]]:
    given = {"kind": kind, "owner": owner, "name": name}
    columns = _documents().c
    return [columns[key] == value for key, value in given.items() if value is not None]


def _documents() -> Table:
    from bridge.store.schema import documents

    return documents


def _exists(file: Path) -> bool:
    try:
        return file.stat().st_size > 0
    except (FileNotFoundError, NotADirectoryError):
        return False


def _read_without_sqlalchemy(
    file: Path, kind: str, owner: str, names: Iterable[str]
) -> dict[str, bytes] | None:
    """Return documents from one snapshot; None if the database is not of this version."""
    import sqlite3

    found: dict[str, bytes] = {}
    wanted = "SELECT data FROM documents WHERE kind = ? AND owner = ? AND name = ?"
    try:
        with closing(sqlite3.connect(file, BUSY_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN")
            if database.execute("SELECT max(number) FROM migrations").fetchone() != (VERSION,):
                return None
            for name in names:
                for (data,) in database.execute(wanted, (kind, owner, name)):
                    found[name] = bytes(data)
    except sqlite3.Error:
        return None
    return found


def _make_private(file: Path) -> None:
    """Make the database's file, for this user alone, if it does not exist.

    An existing file is never opened here: closing it would release SQLite's locks on it.
    """
    with suppress(FileExistsError):
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        os.close(os.open(file, flags, 0o600))
    places = [(file, stat.S_IFREG)]
    if file.name == FILE:
        # A database elsewhere is in a directory of the user, which `bridge.settings` has checked.
        places.append((file.parent, stat.S_IFDIR))
    for place, kind in places:
        found = place.stat(follow_symlinks=place == file.parent)
        if stat.S_IFMT(found.st_mode) != kind:
            raise OSError(errno.EINVAL, "the database is no plain file")
        if found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "the database belongs to another user")
        if found.st_mode & 0o077:
            place.chmod(found.st_mode & 0o700)
