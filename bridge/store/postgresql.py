"""The store on a PostgreSQL server, for bridges on several machines.

A write transaction holds one advisory lock, which does what SQLite's write lock does. No other
writer changes the rows that it has read, and migrations run once.
"""

from __future__ import annotations

import errno
import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, func
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError, TimeoutError

from bridge.store.blobs import Blobs, OpenBlob, Unfinished
from bridge.store.database import BUSY_SECONDS, ServerUrl, StoreError
from bridge.store.schema import DURABLE, LOCKED, WRITES, databases, pieces
from bridge.store.store import BLOBS, Store

POOL = 8  # The most connections of one bridge; a transaction takes a few milliseconds.
ANSWER_SECONDS = 45.0  # A stopped server may never answer.
IDLE_SECONDS = 30  # A stopped bridge may never end its write transaction and release the lock.

PIECE = 1024 * 1024  # Bytes of a content in one row.

LOCK = 0x6D6362
"""The number of the advisory lock. It covers the whole database: a role's settings decide on the
schema, so that two schemas may be the same tables."""

_AWAY = "the database server cannot be reached"
_UNCONFIRMED = "the database server was lost before it confirmed a change; it may have been made"
_REMEDY = "Check the server that MCP_BRIDGE_STORE names; `mcp-code-bridge doctor` tries it."

# The meaning of SQLSTATE prefixes; the longest match counts.
_BY_CLASS = {
    "08": (errno.ENOTCONN, _AWAY),
    "28": (errno.EACCES, "the database server refuses the login"),
    "3D": (errno.EACCES, "the database server has no such database"),
    "42P01": (errno.ESTALE, "the database has no tables of the bridge; try again"),
    "42501": (errno.EACCES, "the database does not let this user read, write and make its tables"),
    "53100": (errno.ENOSPC, "the disk of the database server is full"),
    "53": (errno.EBUSY, "the database server has no room for more connections"),
    "55P03": (errno.EBUSY, "other bridges keep the database locked"),
    "57014": (errno.EBUSY, "the database server took too long"),
    "57P": (errno.ENOTCONN, _AWAY),
    "25P": (errno.EBUSY, "the database server ended a transaction that took too long"),
    "25006": (errno.EROFS, "the database server is read-only"),
}


class ServerStore(Store):
    """A store in a PostgreSQL database. Only unfinished contents are files, in `directory`."""

    shared = True

    def __init__(self, directory: Path, url: ServerUrl) -> None:
        super().__init__(directory)
        self._url, self.place = url.text, str(url)
        self.blobs = ServerBlobs(directory / BLOBS, self)

    def check(self) -> None:
        with self.connected(writes=True):
            pass

    def _engine(self) -> Engine:
        return databases.engine(self._url, (0, 0), make_engine)

    def _as_error(self, error: SQLAlchemyError, *, ending: bool) -> StoreError:
        failure = as_store_error(error)
        if ending and failure.errno == errno.ENOTCONN:
            return StoreError(failure.errno, _UNCONFIRMED, _REMEDY)
        if failure.errno == errno.ESTALE:
            databases.close(self._url)
        return failure


def make_engine(url: str) -> Engine:
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise StoreError(errno.ENOENT, f"psycopg cannot be used: {error}") from None

    given: dict[str, Any] = {
        "connect_timeout": 5,
        "fallback_application_name": "mcp-code-bridge",
        # A database without an encoding would return text as bytes.
        "client_encoding": "UTF8",
    }
    try:
        # libpq's own parser knows several hosts, services and password files.
        given |= conninfo_to_dict(url)
    except psycopg.Error:
        raise StoreError(errno.EINVAL, "MCP_BRIDGE_STORE is no address that libpq reads") from None

    class BoundedConnection(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            try:
                return super().wait(gen, interval, timeout or ANSWER_SECONDS)
            except psycopg.OperationalError as error:
                if error.sqlstate is None:
                    # The connection was lost, or timed out within a request.
                    self.pgconn.finish()
                raise

    def connect() -> psycopg.Connection[Any]:
        # No prepared statements: a pooler may not support them.
        return BoundedConnection.connect(prepare_threshold=None, **given)

    engine = create_engine(
        "postgresql+psycopg://",
        creator=connect,
        pool_size=POOL // 2,
        max_overflow=POOL - POOL // 2,
        pool_timeout=BUSY_SECONDS,
        # A restarted server has dropped the pooled connections.
        pool_pre_ping=True,
        hide_parameters=True,
    )
    event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    # A writer must see the rows that others wrote while it waited for the lock.
    level = "READ COMMITTED" if options.get(WRITES) else "REPEATABLE READ, READ ONLY"
    statements = [
        f"SET TRANSACTION ISOLATION LEVEL {level}",
        # longer than `BUSY_SECONDS`, the largest piece and the longest list
        "SET LOCAL statement_timeout = '40s'",
    ]
    if options.get(WRITES):
        statements.append(f"SET LOCAL idle_in_transaction_session_timeout = '{IDLE_SECONDS}s'")
        statements.append(f"SET LOCAL lock_timeout = '{BUSY_SECONDS:g}s'")
        if not options.get(DURABLE):
            statements.append("SET LOCAL synchronous_commit = off")
        if options.get(LOCKED, True):
            statements.append(f"SELECT pg_advisory_xact_lock({LOCK})")
    connection.exec_driver_sql("; ".join(statements))


def as_store_error(error: SQLAlchemyError) -> StoreError:
    if isinstance(error, TimeoutError):
        return StoreError(errno.EBUSY, "all connections to the database are in use", _REMEDY)
    original = error.orig if isinstance(error, DBAPIError) else None
    state = getattr(original, "sqlstate", None)
    unconnected = isinstance(error, OperationalError) and state is None
    if unconnected or (isinstance(error, DBAPIError) and error.connection_invalidated):
        # libpq's text names host, port, user and reason, and no password.
        reason = _first_line(original) if state is None else ""
        number, message = errno.ENOTCONN, f"{_AWAY}{reason}"
        if "authentication failed" in reason or "no password supplied" in reason:
            number, message = _BY_CLASS["28"]
        return StoreError(number, message, _REMEDY)
    for length in (5, 3, 2):
        if state is not None and state[:length] in _BY_CLASS:
            return StoreError(*_BY_CLASS[state[:length]], _REMEDY)
    return StoreError(errno.EIO, f"the database failed{_first_line(original or error)}", _REMEDY)


def _first_line(error: BaseException | None) -> str:
    text = str(error).strip().partition("\n")[0]
    return f": {text}" if text else ""


class ServerBlobs(Blobs):
    """Contents in the database. Only unfinished ones are files."""

    def __init__(self, root: Path, store: ServerStore) -> None:
        super().__init__(root)
        self._store = store

    def exist(self) -> bool:
        return True

    def prepare(self, unfinished: Unfinished, digest: str) -> None:
        """Send a content, in a transaction without the lock."""
        with self._store.connected(writes=True, locked=False) as connection:
            _send(connection, unfinished, digest)

    def publish(
        self, connection: Connection | None, unfinished: Unfinished, digest: str, *, durable: bool
    ) -> None:
        """Send a content again if another bridge has removed it since `prepare`."""
        assert connection is not None
        _send(connection, unfinished, digest)
        unfinished.path.unlink(missing_ok=True)

    def open(self, digest: str) -> OpenBlob:
        """Open a content in one transaction, which still reads it after a removal."""
        size = pieces.select().with_only_columns(func.sum(func.octet_length(pieces.c.data)))
        with ExitStack() as stack:
            connection = stack.enter_context(self._store.connected(writes=False))
            total = connection.execute(size.where(pieces.c.digest == digest)).scalar()
            if total is None:
                raise FileNotFoundError(errno.ENOENT, "it is not in the database")
            transaction = stack.pop_all()

        def read(wanted: int, start: int) -> bytes:
            wanted = max(min(wanted, int(total) - start), 0)
            first, last = start // PIECE, (start + wanted - 1) // PIECE
            chosen = pieces.select().with_only_columns(pieces.c.data).order_by(pieces.c.number)
            ours = (pieces.c.digest == digest, pieces.c.number.between(first, last))
            try:
                data = b"".join(connection.execute(chosen.where(*ours)).scalars())
            except SQLAlchemyError as error:
                raise as_store_error(error) from None
            return data[start - first * PIECE :][:wanted]

        def close() -> None:
            with suppress(OSError):  # a reader has nothing to commit
                transaction.close()

        return OpenBlob(size=int(total), read=read, close=close)

    def remove(self, connection: Connection | None, digest: str) -> bool:
        assert connection is not None
        removed = pieces.delete().where(pieces.c.digest == digest)
        return connection.execute(removed).rowcount > 0

    def all(self) -> set[str]:
        first = pieces.select().with_only_columns(pieces.c.digest).where(pieces.c.number == 0)
        with self._store.connected(writes=False) as connection:
            return set(connection.execute(first).scalars())


def _send(connection: Connection, unfinished: Unfinished, digest: str) -> None:
    size = os.fstat(unfinished.descriptor).st_size
    for number in range(max(1, -(-size // PIECE))):
        data = os.pread(unfinished.descriptor, PIECE, number * PIECE)
        row = insert(pieces).values(digest=digest, number=number, data=data)
        added = row.on_conflict_do_nothing().returning(pieces.c.number)
        if connection.execute(added).first() is None:
            # Another transaction has sent it. Transactions are atomic, so it is whole.
            return
