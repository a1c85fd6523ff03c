"""The tables, their migrations, and the connections to databases.

SQLAlchemy is slow to import, so other modules import this one where they use it.
"""

from __future__ import annotations

import atexit
import errno
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from bridge.store.store import BUSY_SECONDS, StoreError, too_new

metadata = sa.MetaData()

migrations = sa.Table(
    "migrations", metadata, sa.Column("number", sa.Integer, primary_key=True, autoincrement=False)
)

# One value each: memories, servers' listings, learned shapes, pins.
documents = sa.Table(
    "documents",
    metadata,
    sa.Column("kind", sa.String(20), primary_key=True),
    sa.Column("owner", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(80), primary_key=True),
    sa.Column("updated", sa.Float, nullable=False, index=True),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)

artifacts = sa.Table(
    "artifacts",
    metadata,
    sa.Column("id", sa.String(20), primary_key=True),
    sa.Column("owner", sa.String(64), nullable=False, index=True),
    sa.Column("created", sa.BigInteger, nullable=False, index=True),
    sa.Column("run_id", sa.String(40), nullable=False, index=True),
    sa.Column("kind", sa.String(10), nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("mime_type", sa.String(100), nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("provenance", sa.Text),
    sa.Index("contents", "digest", "size"),
)
"""Files and outputs of runs. `digest` names the content. `created` is in milliseconds since the
epoch, and unique within one bridge."""

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("owner", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("saved", sa.Float, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.String(64), nullable=False, index=True),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("state", sa.LargeBinary),
    sa.Column("bridge", sa.Text),
    sa.Column("process", sa.String(16)),
    sa.Column("renewed", sa.Float),
    sa.Column("gone", sa.Text),
)
"""Saved sessions and their claims.

A session that no bridge has saved yet has an empty `digest`, which is that of `state`. `bridge` and
`process` name the bridge that runs something in it, `renewed` is when that one last said so. `gone`
names the bridge whose claim lapsed before."""

# What is known of runs by every bridge of a server; `ended` is null while a run goes.
runs = sa.Table(
    "runs",
    metadata,
    sa.Column("owner", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("bridge", sa.Text, nullable=False),
    sa.Column("process", sa.String(16), nullable=False),
    sa.Column("began", sa.Float, nullable=False, index=True),
    sa.Column("ended", sa.Float),
    sa.Column("facts", sa.Text, nullable=False),
)

# The bridges of a server; `renewed` is when each was last alive.
bridges = sa.Table(
    "bridges",
    metadata,
    sa.Column("name", sa.String(64), primary_key=True),
    sa.Column("process", sa.String(16), primary_key=True),
    sa.Column("renewed", sa.Float, nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
)

# Contents on a server: each has at least one row, and only the last row may be smaller.
pieces = sa.Table(
    "pieces",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
)


def _add_missing(connection: sa.Connection) -> None:
    """Add the tables, and the columns that may be null, that an earlier version lacks."""
    metadata.create_all(connection)
    preparer = connection.dialect.identifier_preparer
    for table in metadata.sorted_tables:
        known = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                kind = column.type.compile(connection.dialect)
                named = f"{preparer.format_table(table)} ADD COLUMN {column.name} {kind}"
                connection.exec_driver_sql(f"ALTER TABLE {named}")


MIGRATIONS: tuple[Callable[[sa.Connection], None], ...] = (metadata.create_all, _add_missing)
"""Each migrates a database from one version to the next. A released one never changes; a change of
the schema is a new one at the end, and only adds: bridges of both versions use the database."""


def _prepare(connection: sa.Connection, *, migrates: bool) -> None:
    """Bring a database to this version; one of an earlier version only if `migrates`."""
    version = 0
    if sa.inspect(connection).has_table(migrations.name):
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
    """The SQLite and PostgreSQL databases of this process, each with a pool of connections.

    One connection stays open, so that SQLite does not create and remove its log each time.
    """

    def __init__(self) -> None:
        self._engines: dict[str, tuple[sa.Engine, tuple[int, int]]] = {}
        self._failed: dict[str, tuple[float, BaseException]] = {}
        # By address: a server that does not answer must not hold up other databases.
        self._changing = defaultdict[str, threading.Lock](threading.Lock)

    def engine(
        self,
        url: str,
        make: Callable[[str], sa.Engine] | None = None,
        *,
        file: tuple[int, int] = (0, 0),
        migrates: bool = True,
    ) -> sa.Engine:
        """Return the engine of a database of this version; `migrates` changes an earlier one.

        Args:
            make: Returns a new engine; None for SQLite's.
            file: Device and inode of its file: a replaced file gets a new engine.
        """
        with self._changing[url]:
            engine, known_file = self._engines.get(url, (None, None))
            if engine is not None and known_file == file:
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
                options = {"writes": True, "durable": make is not None, "migrates": True}
                with engine.execution_options(**options).begin() as connection:
                    _prepare(connection, migrates=migrates)
            except BaseException as error:
                engine.dispose()
                if make is not None:
                    self._failed[url] = time.monotonic(), error
                raise
            self._engines[url] = engine, file
            return engine

    def close(self, url: str) -> None:
        with self._changing[url]:
            self._failed.pop(url, None)
            engine, _ = self._engines.pop(url, (None, None))
            if engine is not None:
                engine.dispose()

    def forget(self, *, close: bool = True) -> None:
        """Forget all connections; a forked child must not close them."""
        while self._engines:
            self._engines.popitem()[1][0].dispose(close=close)


databases = Databases()
atexit.register(databases.forget)


def _engine(url: str) -> sa.Engine:
    engine = sa.create_engine(
        url,
        poolclass=QueuePool,
        pool_size=1,
        max_overflow=-1,
        connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False},
    )
    sa.event.listen(engine, "connect", _on_connect)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _on_connect(connection: Any, _: Any) -> None:
    # Transactions begin in `_begin`, not where the driver sees the first change.
    connection.isolation_level = None
    # Overwrite deleted data, which may have held a secret.
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA journal_mode=WAL")


def _begin(connection: sa.Connection) -> None:
    options = connection.get_execution_options()
    if not options["writes"]:
        connection.exec_driver_sql("BEGIN")
        return
    # NORMAL does not wait for the disk. After a power cut the database is consistent, but may lack
    # the last changes.
    level = "FULL" if options.get("durable") else "NORMAL"
    if connection.info.get("durable") != level:
        connection.exec_driver_sql(f"PRAGMA synchronous={level}")
        connection.info["durable"] = level
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
