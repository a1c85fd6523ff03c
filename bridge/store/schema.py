"""The tables, their migrations, and how a database is reached.

Nothing here is particular to SQLite but what is done when a connection is made or begins to write,
so that another database is another URL. Imported by `bridge.store.store` alone, when it is needed.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    inspect,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from bridge.store.earlier import carry_over

BUSY_SECONDS = 30.0
"""For which a writer waits for another's turn. Most take a millisecond."""

WRITES = "bridge_writes"
"""The execution option of connections that write: they wait for their turn before they read."""

_ADVISORY_LOCK = 0x6D637062
"""Names the one turn there is, where a database has locks by number."""

metadata = MetaData()

migrations = Table(
    "migrations",
    metadata,
    Column("number", Integer, primary_key=True, autoincrement=False),
)

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
"""Small things, one value each: memories, what servers listed, learnt shapes, pins."""


def _first(connection: Connection, directory: Path) -> None:
    metadata.create_all(connection)
    carry_over(connection, documents, directory)


MIGRATIONS: tuple[Callable[[Connection, Path], None], ...] = (_first,)
"""What makes a database of one version one of the next, in order. One is never changed once it was
released: what differs is another at the end. The first makes an empty one complete."""


class StoreError(OSError):
    """The database cannot be used as it is asked to: full, damaged, kept by another, too new."""


def prepare(connection: Connection, directory: Path) -> None:
    """Bring the database to this version, in the transaction that is open.

    Raises:
        StoreError: A later version of the bridge has written it.
    """
    found = number(connection)
    if found > len(MIGRATIONS):
        message = "a later version of the bridge has written it; use that one, or remove it"
        raise StoreError(errno.EINVAL, message)
    for each, migrate in enumerate(MIGRATIONS[found:], start=found + 1):
        migrate(connection, directory)
        connection.execute(migrations.insert().values(number=each))


def number(connection: Connection) -> int:
    """Return the number of the last migration that was made; 0 for an empty database."""
    if not inspect(connection).has_table(migrations.name):
        return 0
    return max((row.number for row in connection.execute(migrations.select())), default=0)


@lru_cache(maxsize=16)
def engine_for(url: str) -> Engine:
    """Return what connects to a database. There is one per process, and nothing stays open."""
    if not url.startswith("sqlite:"):
        engine = create_engine(url, poolclass=NullPool)
        event.listen(engine, "begin", _begin_locked)
        return engine
    engine = create_engine(url, poolclass=NullPool, connect_args={"timeout": BUSY_SECONDS})
    event.listen(engine, "connect", _connected)
    event.listen(engine, "begin", _begin)
    return engine


def _connected(connection: Any, _: Any) -> None:
    # Transactions begin where `_begin` says, and not where the driver sees the first change.
    connection.isolation_level = None
    cursor = connection.cursor()
    # What is deleted is overwritten: it may have been somebody's secret.
    cursor.execute("PRAGMA secure_delete=ON")
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.close()


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _begin_locked(connection: Connection) -> None:
    if connection.get_execution_options().get(WRITES):
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_LOCK})")


def translated(error: SQLAlchemyError) -> StoreError:
    """Return what a database's refusal is, as an error of the system."""
    original = error.orig if isinstance(error, DBAPIError) else None
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreError(errno.ENOSPC, "the disk is full")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreError(errno.EBUSY, "another bridge keeps the database to itself")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreError(errno.EIO, "the database is damaged; remove it to begin anew")
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
        return StoreError(errno.EACCES, f"the database cannot be opened ({original})")
    return StoreError(errno.EIO, f"the database failed: {original or error}")
