"""The tables, their migrations, and the connections to databases.

SQLAlchemy is slow to import, so other modules import this one where they use it.
"""

from __future__ import annotations

import atexit
import errno
import sqlite3
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    inspect,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from bridge.store.database import BUSY_SECONDS, StoreError, too_new

# Execution options of transactions.
WRITES = "bridge_writes"  # The transaction takes the write lock before it reads.
LOCKED = "bridge_locked"  # If false, a transaction on a server writes without the lock.
MIGRATES = "bridge_migrates"  # The transaction may create the tables.
DURABLE = "bridge_durable"  # The transaction waits for the disk, to survive a power cut.

metadata = MetaData()

migrations = Table(
    "migrations", metadata, Column("number", Integer, primary_key=True, autoincrement=False)
)

# One value each: memories, servers' listings, learned shapes, pins.
documents = Table(
    "documents",
    metadata,
    Column("kind", String(20), primary_key=True),
    Column("owner", String(64), primary_key=True),
    Column("name", String(80), primary_key=True),
    Column("updated", Float, nullable=False, index=True),
    Column("size", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
)

artifacts = Table(
    "artifacts",
    metadata,
    Column("id", String(20), primary_key=True),
    Column("owner", String(64), nullable=False, index=True),
    Column("created", BigInteger, nullable=False, index=True),
    Column("run_id", String(40), nullable=False, index=True),
    Column("kind", String(10), nullable=False),
    Column("name", Text, nullable=False),
    Column("mime_type", String(100), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("provenance", Text),
    Index("contents", "digest", "size"),
)
"""Files and outputs of runs. `digest` names the content. `created` is in milliseconds since the
epoch, and unique within one bridge."""

sessions = Table(
    "sessions",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("id", String(64), primary_key=True),
    Column("name", Text, nullable=False),
    Column("saved", Float, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False, index=True),
    Column("facts", Text, nullable=False),
    Column("state", LargeBinary),
    Column("bridge", Text),
    Column("process", String(16)),
    Column("renewed", Float),
    Column("gone", Text),
)
"""Saved sessions and their claims.

A session that no bridge has saved yet has an empty `digest`, which is that of `state`. `bridge` and
`process` name the bridge that runs something in it, `renewed` is when that one last said so. `gone`
names the bridge whose claim lapsed before."""

# What is known of runs by every bridge of a server; `ended` is null while a run goes.
runs = Table(
    "runs",
    metadata,
    Column("owner", String(64), primary_key=True),
    Column("id", String(40), primary_key=True),
    Column("bridge", Text, nullable=False),
    Column("process", String(16), nullable=False),
    Column("began", Float, nullable=False, index=True),
    Column("ended", Float),
    Column("facts", Text, nullable=False),
)

# The bridges of a server; `renewed` is when each was last alive.
bridges = Table(
    "bridges",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("process", String(16), primary_key=True),
    Column("renewed", Float, nullable=False),
    Column("version", Integer, nullable=False),
    Column("settings", Text, nullable=False),
)

# Contents on a server: each has at least one row, and only the last row may be smaller.
pieces = Table(
    "pieces",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("data", LargeBinary, nullable=False),
)


def _add_missing(connection: Connection) -> None:
    """Add the tables, and the columns that may be null, that an earlier version lacks."""
    metadata.create_all(connection)
    preparer = connection.dialect.identifier_preparer
    for table in metadata.sorted_tables:
        known = {column["name"] for column in inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                named = f"{preparer.format_table(table)} ADD COLUMN {column.name} {kind}"
                connection.exec_driver_sql(f"ALTER TABLE {named}")


MIGRATIONS: tuple[Callable[[Connection], None], ...] = (metadata.create_all, _add_missing)
"""Each migrates a database from one version to the next. A released one never changes; a change of
the schema is a new one at the end, and only adds: bridges of both versions use the database."""


def _prepare(connection: Connection, *, migrates: bool) -> None:
    """Bring the database to this version.

    Args:
        migrates: Whether to change a database that an earlier version has made.

    Raises:
        StoreError: The database has another version.
    """
    version = 0
    if inspect(connection).has_table(migrations.name):
        version = max((row.number for row in connection.execute(migrations.select())), default=0)
    if version > len(MIGRATIONS):
        raise too_new(shared=connection.dialect.name != "sqlite")
    if 0 < version < len(MIGRATIONS) and not migrates:
        message = f"its tables are of version {version}, and this bridge needs {len(MIGRATIONS)}"
        raise StoreError(errno.ESTALE, message, "Run `mcp-code-bridge store migrate` once.")
    for number, migrate in enumerate(MIGRATIONS[version:], start=version + 1):
        migrate(connection)
        connection.execute(migrations.insert().values(number=number))


class Databases:
    """The databases of this process, each with a pool of connections.

    One connection stays open, so that SQLite does not create and remove its log each time.
    """

    def __init__(self) -> None:
        self._engines: OrderedDict[str, tuple[Engine, tuple[int, int]]] = OrderedDict()
        self._failed: dict[str, tuple[float, BaseException]] = {}
        self._changing = threading.Lock()

    def engine(
        self,
        url: str,
        file: tuple[int, int],
        make: Callable[[str], Engine] | None = None,
        *,
        migrates: bool = True,
    ) -> Engine:
        """Return the engine of a database of this version.

        Args:
            file: Device and inode of its file: a replaced file gets a new engine.
            make: Returns a new engine; None for SQLite's.
            migrates: Whether to change a database that an earlier version has made.
        """
        with self._changing:
            engine, known_file = self._engines.get(url, (None, None))
            if engine is not None and known_file == file:
                self._engines.move_to_end(url)
                return engine
            if engine is not None:
                engine.dispose()
            moment, failure = self._failed.pop(url, (0.0, None))
            # No new attempt within a second: each of many threads would wait.
            if failure is not None and time.monotonic() - moment < 1.0:
                self._failed[url] = moment, failure
                raise failure
            engine = (make or _engine)(url)
            try:
                options = {WRITES: True, DURABLE: make is not None, MIGRATES: True}
                with engine.execution_options(**options).begin() as connection:
                    _prepare(connection, migrates=migrates)
            except BaseException as error:
                engine.dispose()
                if make is not None:
                    self._failed[url] = time.monotonic(), error
                raise
            self._engines[url] = engine, file
            while len(self._engines) > 8:
                self._engines.popitem(last=False)[1][0].dispose()
            return engine

    def close(self, url: str) -> None:
        with self._changing:
            self._failed.pop(url, None)
            engine, _ = self._engines.pop(url, (None, None))
            if engine is not None:
                engine.dispose()

    def forget(self, *, close: bool = True) -> None:
        """Forget all connections; a forked child must not close them."""
        with self._changing:
            while self._engines:
                self._engines.popitem()[1][0].dispose(close=close)


databases = Databases()
atexit.register(databases.forget)


def _engine(url: str) -> Engine:
    engine = create_engine(
        url,
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=-1,
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
    )
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _begin)
    return engine


def _on_connect(connection: Any, _: Any) -> None:
    # Transactions begin in `_begin`, not where the driver sees the first change.
    connection.isolation_level = None
    cursor = connection.cursor()
    # Overwrite deleted data, which may have held a secret.
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.close()


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get(WRITES):
        connection.exec_driver_sql("BEGIN")
        return
    # NORMAL does not wait for the disk. After a power cut the database is consistent, but may lack
    # the last changes.
    level = "FULL" if options.get(DURABLE) else "NORMAL"
    if connection.info.get(DURABLE) != level:
        connection.exec_driver_sql(f"PRAGMA synchronous={level}")
        connection.info[DURABLE] = level
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def as_store_error(error: SQLAlchemyError) -> StoreError:
    original = error.orig if isinstance(error, DBAPIError) else None
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreError(errno.ENOSPC, "the disk is full")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(errno.EBUSY, "another bridge keeps the database locked")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(errno.EIO, "the database is damaged; remove it to begin again")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(errno.EACCES, f"the database cannot be opened ({original})")
    return StoreError(errno.EIO, f"the database failed: {original or error}")
