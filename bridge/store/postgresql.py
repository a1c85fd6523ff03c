"""The store on a PostgreSQL server, for bridges on several machines.

A write transaction holds one advisory lock, which does what SQLite's write lock does. No other
writer changes the rows that it has read, and migrations run once.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from bridge.event_loop import count_metric
from bridge.store.blobs import Blobs, OpenBlob, Unfinished
from bridge.store.schema import databases, pieces
from bridge.store.store import BLOBS, NOW, VERSION, ServerUrl, Store, StoreError, too_new

ANSWER_SECONDS = 10.0  # A stopped server may never answer.

PIECE = 1024 * 1024  # Bytes of a content in one row.

LOCK = 0x6D6362
"""The number of the advisory lock. It covers the whole database: a role's settings decide on the
schema, so that two schemas may be the same tables."""

_AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}

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
    "40": (errno.EDEADLK, "other bridges change the same rows"),
    "25006": (errno.EROFS, "the database server is read-only"),
}


class ServerStore(Store):
    """A store in a PostgreSQL database. Only unfinished contents are files, in `directory`."""

    shared = True

    def __init__(self, directory: Path, url: ServerUrl, pool: int = 8) -> None:
        super().__init__(directory)
        self.pool, self._make = pool, partial(make_engine, pool)
        self._url, self.place = url.text, str(url)
        self._silence = _silences[url.text]
        self.blobs = ServerBlobs(directory / BLOBS, self)

    def check(self) -> None:
        with self.connected(writes=True):
            pass

    def execute(self, statement: sa.Executable, *, durable: bool = False) -> Sequence[sa.Row[Any]]:
        attempts = 10
        while True:
            try:
                return self._execute_alone(statement, writes=True)
            except StoreError as error:
                attempts -= 1
                # The server undid it, as a deadlock or by its default isolation level.
                if error.errno != errno.EDEADLK or not attempts:
                    raise

    def query(self, statement: sa.Executable) -> Sequence[sa.Row[Any]]:
        return self._execute_alone(statement, writes=False)

    def _execute_alone(self, statement: sa.Executable, *, writes: bool) -> Sequence[sa.Row[Any]]:
        # One round trip: the server makes a transaction of each statement, and waits for its disk.
        with self.connected(writes=writes, **_AUTOCOMMIT) as connection:
            result = connection.execute(statement)
            return result.all() if result.returns_rows else ()

    def moment(self, now: float) -> sa.ColumnElement[Any]:
        return sa.extract("epoch", sa.func.clock_timestamp())

    def upsert(self, table: sa.Table) -> Any:
        return insert(table)

    @contextmanager
    def connected(self, *, writes: bool, **options: Any) -> Iterator[sa.Connection]:
        with (
            self._silence.attempt() as note_answer,
            super().connected(writes=writes, **options) as connection,
        ):
            if options == _AUTOCOMMIT:
                yield connection
                note_answer()
            else:
                note_answer()
                yield connection

    def _engine(self) -> sa.Engine:
        return databases.engine(self._url, self._make, migrates=False)

    def migrate(self) -> None:
        """Bring the database to this version."""
        databases.close(self._url)
        databases.engine(self._url, self._make)

    def _as_error(self, error: sa.exc.SQLAlchemyError, *, ending: bool) -> StoreError:
        failure = as_store_error(error)
        if ending and failure.errno == errno.ENOTCONN:
            failure = StoreError(failure.errno, _UNCONFIRMED, _REMEDY)
            failure.is_unconfirmed = True
        if failure.errno == errno.ESTALE:
            databases.close(self._url)
        return failure


def make_engine(pool: int, url: str) -> sa.Engine:
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
        "prepare_threshold": None,  # A pooler may not support prepared statements.
    }
    try:
        # libpq's own parser knows several hosts, services and password files.
        given |= conninfo_to_dict(url)
    except psycopg.Error:
        raise StoreError(errno.EINVAL, "MCP_BRIDGE_STORE is no address that libpq reads") from None

    class BoundedConnection(psycopg.Connection[Any]):
        share = 1.0  # Of the seconds for an answer.

        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            try:
                return super().wait(gen, interval, timeout or self.share * ANSWER_SECONDS)
            except psycopg.OperationalError as error:
                if error.sqlstate is None:
                    # The connection was lost, or timed out within a request.
                    self.pgconn.finish()
                raise

        def __del__(self, *_: Any) -> None:
            self.pgconn.finish()  # SQLAlchemy closes no connection whose first requests fail.

    engine = sa.create_engine(
        "postgresql+psycopg://",
        creator=lambda: BoundedConnection.connect(**given),
        pool_size=pool // 2,
        max_overflow=pool - pool // 2,
        pool_timeout=ANSWER_SECONDS,
        hide_parameters=True,
    )
    sa.event.listen(engine, "begin", _begin)
    sa.event.listen(engine, "checkin", lambda _, record: record.info.update(used=time.monotonic()))
    sa.event.listen(engine, "checkout", _try_idle)
    return engine


def _try_idle(connection: Any, record: sa.pool.ConnectionPoolEntry, _: Any) -> None:
    """Try a connection that was idle: a restarted server has dropped it."""
    if time.monotonic() - record.info.get("used", inf) > 5.0:
        # Half of the time is for another connection.
        connection.share, connection.autocommit = 0.5, True
        try:
            connection.execute("")
        except Exception:
            raise sa.exc.DisconnectionError from None
        connection.share, connection.autocommit = 1.0, False


class Silence:
    """Lets one call at a time try a database that does not answer; the others fail at once."""

    def __init__(self) -> None:
        self._problem = ""
        self._trying = threading.Lock()

    @contextmanager
    def attempt(self) -> Iterator[Callable[[], None]]:
        """Let a call try the database; it calls the yielded function once it has an answer."""
        problem, began = self._problem, time.monotonic()
        tries = bool(problem) and self._trying.acquire(blocking=False)
        if problem and not tries:
            raise StoreError(errno.ENOTCONN, problem, _REMEDY)

        def note_answer() -> None:
            nonlocal tries
            count_metric("store_seconds", time.monotonic() - began)
            if tries:
                self._problem, tries = "", False
                self._trying.release()

        try:
            yield note_answer
        except StoreError as error:
            if error.errno == errno.ENOTCONN:
                # That a change may have been made is true of this call only.
                text = error.strerror or ""
                self._problem = text if text.startswith(_AWAY) else _AWAY
            elif error.errno != errno.EAGAIN:
                note_answer()
            raise
        finally:
            if tries:
                self._trying.release()


_silences = defaultdict[str, Silence](Silence)  # By address.


def _begin(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if _AUTOCOMMIT.items() <= options.items():
        return
    # A writer must see the rows that others wrote while it waited for the lock.
    level = "READ COMMITTED" if options["writes"] else "REPEATABLE READ, READ ONLY"
    statements = [
        f"SET TRANSACTION ISOLATION LEVEL {level}",
        # Less than `ANSWER_SECONDS`, so that the server says why a transaction waits.
        f"SET LOCAL statement_timeout = '{ANSWER_SECONDS * 900:.0f}ms'",
    ]
    if options["writes"]:
        # A stopped bridge may never end its write transaction and release the lock.
        statements += (
            "SET LOCAL idle_in_transaction_session_timeout = '5s'",
            f"SET LOCAL lock_timeout = '{ANSWER_SECONDS * 800:.0f}ms'",
        )
        if not options.get("durable"):
            statements.append("SET LOCAL synchronous_commit = off")
        if options.get("locked", True):
            statements.append(f"SELECT pg_advisory_xact_lock({LOCK})")
    if not options.get("migrates"):
        statements.append(
            "SELECT max(number), extract(epoch FROM clock_timestamp()) FROM migrations"
        )
    row = _execute_all(connection, "; ".join(statements))
    if not options.get("migrates"):
        version, now = row
        connection.info[NOW] = float(now)
        if version > VERSION:
            raise too_new(shared=True)


def _execute_all(connection: sa.Connection, statements: str) -> Any:
    """Execute statements in one round trip; return the last one's row."""
    dbapi: Any = connection.dialect.dbapi
    raw: Any = connection.connection.dbapi_connection
    try:
        with raw.cursor() as cursor:
            cursor.execute(statements)
            while cursor.nextset():
                pass
            return cursor.fetchone() if cursor.description else None
    except dbapi.Error as error:
        if raw.closed:
            # What ended this connection has ended the idle ones too.
            connection.invalidate()
            connection.engine.dispose()
        raise sa.exc.OperationalError("BEGIN", None, error) from None


def as_store_error(error: sa.exc.SQLAlchemyError) -> StoreError:
    if isinstance(error, sa.exc.TimeoutError):
        return StoreError(errno.EAGAIN, "all connections to the database are in use", _REMEDY)
    original = error.orig if isinstance(error, sa.exc.DBAPIError) else None
    state = getattr(original, "sqlstate", None)
    unconnected = isinstance(error, sa.exc.OperationalError) and state is None
    if unconnected or (isinstance(error, sa.exc.DBAPIError) and error.connection_invalidated):
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
        self, connection: sa.Connection | None, unfinished: Unfinished, digest: str
    ) -> None:
        """Send a content again if another bridge has removed it since `prepare`."""
        assert connection is not None
        _send(connection, unfinished, digest)
        unfinished.path.unlink(missing_ok=True)

    def open(self, digest: str) -> OpenBlob:
        """Open a content in one transaction, which still reads it after a removal."""
        size = pieces.select().with_only_columns(sa.func.sum(sa.func.octet_length(pieces.c.data)))
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
            except sa.exc.SQLAlchemyError as error:
                raise as_store_error(error) from None
            return data[start - first * PIECE :][:wanted]

        def close() -> None:
            with suppress(OSError):  # a reader has nothing to commit
                transaction.close()

        return OpenBlob(size=int(total), read=read, close=close)

    def remove(self, connection: sa.Connection | None, digest: str) -> bool:
        assert connection is not None
        return connection.execute(pieces.delete().where(pieces.c.digest == digest)).rowcount > 0

    def all(self) -> set[str]:
        first = pieces.select().with_only_columns(pieces.c.digest).where(pieces.c.number == 0)
        with self._store.connected(writes=False) as connection:
            return set(connection.execute(first).scalars())


def _send(connection: sa.Connection, unfinished: Unfinished, digest: str) -> None:
    size = os.fstat(unfinished.descriptor).st_size
    for number in range(max(1, -(-size // PIECE))):
        data = os.pread(unfinished.descriptor, PIECE, number * PIECE)
        row = insert(pieces).values(digest=digest, number=number, data=data)
        added = row.on_conflict_do_nothing().returning(pieces.c.number)
        if connection.execute(added).first() is None:
            # Another transaction has sent it. Transactions are atomic, so it is whole.
            return
