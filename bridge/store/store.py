"""The store: a SQLite database, a directory of contents, and transactions on both.

A write transaction holds the database's only write lock, so that no other writer changes the rows
that it has read. A read transaction sees one snapshot. Everything here blocks: call it in threads.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import anyio.to_thread
from anyio.lowlevel import RunVar

from bridge.private_files import make_directory, restrict
from bridge.store.blobs import Blobs, Unfinished

if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from sqlalchemy import ColumnElement, Connection, Engine, Executable, Row, Select, Table
    from sqlalchemy.exc import SQLAlchemyError

FILE = "store.db"  # In the state directory. SQLite adds two files while the database is in use.
BLOBS = "blobs"  # The directory of contents; that of a database `NAME` is `NAME-blobs`.

VERSION = 2  # The number of the last of `schema.MIGRATIONS`.
NOW = "bridge_now"  # The key of a connection's facts: when its transaction began, by the server.
BUSY_SECONDS = 30.0  # The most to wait for another bridge's transaction; most take a millisecond.
BATCH = 500  # Contents that one transaction removes, so that other writers wait for no more.

# By address, for each event loop.
_limiters = RunVar[dict[str, anyio.CapacityLimiter]]("limiters")

T = TypeVar("T")

SCHEMES = ("postgresql", "postgres")

# Strict, so that no part of a password can be taken for a host and shown.
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
    """An address as libpq reads it. Its text has neither password nor parameters."""

    text: str = field(repr=False)

    def __str__(self) -> str:
        match = _ADDRESS.fullmatch(self.text)
        shown = match.group("user", "at", "hosts", "path") if match else ()
        return f"postgresql://{''.join(part or '' for part in shown)}"


def server_url(text: str) -> ServerUrl:
    """Return an address; raise ValueError if libpq cannot read it or the driver is missing."""
    if not _ADDRESS.fullmatch(text):
        raise ValueError(
            "has unescaped characters in its login (write / as %2F), or a port that is no number"
        )
    if find_spec("psycopg") is None:
        raise ValueError("needs psycopg: install mcp-code-bridge[postgresql]")
    return ServerUrl(text)


class StoreError(OSError):
    """The database is full, damaged, locked, unreachable or too new."""

    is_too_new = False
    is_unconfirmed = False  # Whether the change may have been made.

    def __init__(self, number: int, message: str, remedy: str = "") -> None:
        super().__init__(number, message)
        self.remedy = remedy


def too_new(*, shared: bool) -> StoreError:
    """Return the error of a bridge whose database a later version has changed."""
    remedy = "Use that version, or remove the file."
    if shared:
        remedy = "Replace this bridge by one of that version."
    error = StoreError(errno.ESTALE, "a later version of the bridge has changed its tables", remedy)
    error.is_too_new = True
    return error


class Document(NamedTuple):
    owner: str
    name: str
    updated: float
    size: int


@cache
def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Return what reads and writes documents of a type. The first use imports pydantic."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


class Store:
    """One database, which several bridges and stores may use at once."""

    shared = False  # Whether it is a server's, which has no `state`.
    pool = 0  # The most connections to a server.

    def __init__(self, directory: Path, name: str = FILE) -> None:
        self.directory = directory
        self.place: Path | str = directory  # For messages.
        self.blobs = Blobs(directory / (BLOBS if name == FILE else f"{name}-{BLOBS}"))
        self._file = directory / name
        self._url = f"sqlite:///{self._file}"

    @contextmanager
    def reading(self) -> Iterator[Transaction]:
        """Open a read transaction, which finds nothing if there is no database."""
        if not self.shared and not _exists(self._file):
            yield Transaction(None)
            return
        with self.connected(writes=False) as connection:
            yield Transaction(connection)

    def documents(self, kind: str, names: Iterable[str], owner: str = "") -> dict[str, bytes]:
        names = list(names)
        if not (self.shared or "sqlalchemy" in sys.modules) and _exists(self._file):
            documents = _read_without_sqlalchemy(self._file, kind, owner, names)
            if documents is not None:
                return documents
        with self.reading() as transaction:
            return dict(transaction.all(kind, owner, names))

    @contextmanager
    def writing(self, *, durable: bool = False) -> Iterator[Transaction]:
        """Open a write transaction; an exception rolls it back, `durable` waits for the disk."""
        if not self.shared:
            make_directory(self.directory)
            _make_private(self._file)
        with self.connected(writes=True, durable=durable) as connection:
            yield Transaction(connection)

    @contextmanager
    def writing_blob(self, unfinished: Unfinished, digest: str) -> Iterator[Transaction]:
        """Open a write transaction for rows that refer to a content; publish it at the end."""
        try:
            self.blobs.prepare(unfinished, digest)
            with self.writing(durable=self.shared) as transaction:
                yield transaction
                self.blobs.publish(transaction.connection, unfinished, digest)
        except BaseException as error:
            # The content may be published although the rows are rolled back. A server has it since
            # `prepare`, and gets no second request after it has failed.
            if isinstance(error, OSError) != self.shared:
                with suppress(OSError):
                    self.drop([digest])
            raise

    def state(self) -> tuple[int, ...]:
        """Return a value that changes with every write; () without a database."""
        facts: list[int] = []
        for name in (self._file.name, f"{self._file.name}-wal"):
            with suppress(OSError):
                status = self._file.with_name(name).stat()
                facts += [status.st_mtime_ns, status.st_size, status.st_ino]
        return tuple(facts)

    def drop(self, digests: Iterable[str]) -> int:
        left, removed = sorted(set(digests)), 0
        while left:
            some, left = left[:BATCH], left[BATCH:]
            with self.writing() as transaction:
                used = transaction.used(some)
                unused = (digest for digest in some if digest not in used)
                removed += sum(self.blobs.remove(transaction.connection, one) for one in unused)
        return removed

    def execute(self, statement: Executable, *, durable: bool = False) -> Sequence[Row[Any]]:
        """Execute one writing statement in a transaction of its own; return its rows."""
        with self.writing(durable=durable) as transaction:
            return transaction.execute(statement)

    def query(self, statement: Executable) -> Sequence[Row[Any]]:
        """Return the rows of one reading statement; none if there is no database."""
        with self.reading() as transaction:
            return transaction.execute(statement)

    async def run(self, function: Callable[..., T], *arguments: Any, abandon: bool = False) -> T:
        """Return a blocking function's value; `abandon` leaves it alone on cancellation.

        No more threads wait for a server than it has connections, so that the threads for other
        work stay free.
        """
        limiter = None
        if self.shared:
            limiters = _limiters.get({})
            _limiters.set(limiters)
            limiter = limiters.setdefault(self._url, anyio.CapacityLimiter(self.pool))
        return await anyio.to_thread.run_sync(
            function, *arguments, abandon_on_cancel=abandon, limiter=limiter
        )

    def moment(self, now: float) -> ColumnElement[Any]:
        """Return the SQL of the current time, in seconds since the epoch: `now`, or a server's."""
        from sqlalchemy import literal

        return literal(now)

    def upsert(self, table: Table) -> Any:
        """Return an INSERT that can update on a conflict."""
        from sqlalchemy.dialects.sqlite import insert

        return insert(table)

    def close(self) -> None:
        if "bridge.store.schema" in sys.modules:
            sys.modules["bridge.store.schema"].databases.close(self._url)

    def migrate(self) -> None:
        """Bring the database to this version; SQLite's is migrated when it is opened."""

    def check(self) -> None:
        with self.reading():
            pass

    @contextmanager
    def connected(self, *, writes: bool, **options: Any) -> Iterator[Connection]:
        """Open a transaction, which takes the write lock before it reads if it writes.

        Args:
            options: `durable` waits for the disk, to survive a power cut. On a server
                `locked=False` writes without the lock, and an isolation level is possible.
        """
        from sqlalchemy.exc import SQLAlchemyError

        ending = False
        try:
            with self._engine().execution_options(writes=writes, **options).begin() as connection:
                # Without a transaction, each statement is sent with its commit.
                ending = writes and "isolation_level" in options
                yield connection
                ending = writes
        except SQLAlchemyError as error:
            # No cause: it could show a server's address with a password.
            raise self._as_error(error, ending=ending) from None

    def _engine(self) -> Engine:
        from bridge.store.schema import databases

        status = self._file.stat()
        return databases.engine(self._url, file=(status.st_dev, status.st_ino))

    def _as_error(self, error: SQLAlchemyError, *, ending: bool) -> StoreError:
        """Return the store's error; a server may have committed a transaction that was `ending`."""
        from bridge.store.schema import as_store_error

        return as_store_error(error)


class Transaction:
    """One transaction on documents; `connection` is None if there is no database."""

    def __init__(self, connection: Connection | None) -> None:
        self.connection = connection

    @property
    def is_shared(self) -> bool:
        """Whether it is a server's, whose clock and limits hold for all bridges."""
        return self.connection is not None and NOW in self.connection.info

    def now(self, local: Callable[[], float] | None = None) -> float:
        """Return the seconds since the epoch, by a server's clock or by this machine's."""
        known = None if self.connection is None else self.connection.info.get(NOW)
        return (local or time.time)() if known is None else float(known)

    def execute(self, statement: Executable, values: Any = None) -> Sequence[Row[Any]]:
        """Execute a statement; return its rows, none without a database."""
        if self.connection is None:
            return ()
        result = self.connection.execute(statement, values)
        return result.all() if result.returns_rows else ()

    def get(self, kind: str, owner: str, name: str) -> bytes | None:
        return dict(self.all(kind, owner, [name])).get(name)

    def put(
        self, kind: str, owner: str, name: str, data: bytes, *, updated: float | None = None
    ) -> None:
        """Insert or replace a document; `updated` is in seconds since the epoch, or now."""
        self.delete(kind, owner, name)
        row = {"kind": kind, "owner": owner, "name": name, "data": data, "size": len(data)}
        moment = self.now() if updated is None else updated
        self.execute(table("documents").insert().values(updated=moment, **row))

    def delete(self, kind: str, owner: str, name: str) -> bool:
        documents = table("documents")
        removed = documents.delete().where(*_where(kind, owner, [name]))
        return bool(self.execute(removed.returning(documents.c.name)))

    def listed(self, kind: str, owner: str | None = None) -> list[Document]:
        return list(map(Document._make, self._rows(Document._fields, kind, owner)))

    def owners(self, kind: str) -> set[str]:
        return {row.owner for row in self._rows(("owner",), kind)}

    def all(self, kind: str, owner: str, names: list[str] | None = None) -> list[tuple[str, bytes]]:
        rows = self._rows(("name", "data"), kind, owner, names)
        return [(row.name, bytes(row.data)) for row in rows]

    def _rows(self, columns: Iterable[str], *which: Any) -> Sequence[Row[Any]]:
        if self.connection is None:
            return ()
        documents = table("documents").c
        ordered = select("documents", *columns).order_by(documents.updated.desc(), documents.name)
        return self.execute(ordered.where(*_where(*which)))

    def used(self, digests: Iterable[str] | None = None) -> set[str]:
        if self.connection is None:
            return set()
        chosen = select("artifacts", "digest").distinct()
        if digests is not None:
            chosen = chosen.where(table("artifacts").c.digest.in_(list(digests)))
        return {row.digest for row in self.execute(chosen)}

    def prune(
        self,
        kind: str,
        *,
        most: int,
        most_bytes: float = inf,
        oldest: float = 0.0,
        owner: str | None = None,
    ) -> int:
        """Remove documents of one owner, or of all, beyond these limits; return how many.

        The newest document may exceed `most_bytes`. `oldest` is in seconds since the epoch.
        """
        size = removed = 0
        for number, each in enumerate(self.listed(kind, owner), start=1):
            size += each.size
            beyond = number > most or (size > most_bytes and number > 1)
            if beyond or each.updated < oldest:
                removed += self.delete(kind, each.owner, each.name)
        return removed


def _where(
    kind: str, owner: str | None = None, names: list[str] | None = None
) -> Iterator[ColumnElement[bool]]:
    columns = table("documents").c
    yield columns.kind == kind
    if owner is not None:
        yield columns.owner == owner
    if names is not None:
        yield columns.name.in_(names)


def table(name: str) -> Table:
    """Return a table of the schema; the first use imports SQLAlchemy."""
    from bridge.store.schema import metadata

    return metadata.tables[name]


def select(name: str, *columns: str) -> Select[Any]:
    """Return a query of some columns of a table."""
    chosen = table(name)
    return chosen.select().with_only_columns(*(chosen.c[each] for each in columns))


def _exists(file: Path) -> bool:
    with suppress(FileNotFoundError, NotADirectoryError):
        return file.stat().st_size > 0
    return False


def _read_without_sqlalchemy(
    file: Path, kind: str, owner: str, names: Iterable[str]
) -> dict[str, bytes] | None:
    """Return documents from one snapshot; None if the database has another version."""
    import sqlite3

    documents: dict[str, bytes] = {}
    wanted = "SELECT data FROM documents WHERE kind = ? AND owner = ? AND name = ?"
    try:
        with closing(sqlite3.connect(file, BUSY_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN")
            if database.execute("SELECT max(number) FROM migrations").fetchone() != (VERSION,):
                return None
            for name in names:
                for (data,) in database.execute(wanted, (kind, owner, name)):
                    documents[name] = bytes(data)
    except sqlite3.Error:
        return None
    return documents


def _make_private(file: Path) -> None:
    """Create the database's file if it is missing; check its owner and restrict its mode.

    This never opens an existing file: closing it would release SQLite's locks on it.
    """
    with suppress(FileExistsError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    restrict(file, stat.S_IFREG)
    if file.name == FILE:
        # `bridge.settings` has checked the directory of a database that the user names.
        restrict(file.parent, follow=True)
