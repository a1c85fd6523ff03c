"""States of sessions: as their guests send them, and as the store keeps them.

Only another guest interprets a state. A malformed part makes this state unusable, and the session
continues. A session has a row and a blob, which are replaced together; a blob with another digest
is refused. A disk error loses the state and no run. After a power cut the state is the old or the
new one. The state is readable by this user only, and is not encrypted.

A claim is a document with the name of the replica that runs something in the session, which renews
it meanwhile. Between runs, once the state is saved, no replica has the session. A claim that is not
renewed lapses; the replica that waits for it measures that on its own clock. A live replica that
lost its claim detects that when it saves, and does not overwrite newer state.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import time
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from bridge.errors import InvalidRequestError
from bridge.guest.protocol.wire import State
from bridge.model import Json, Loss, owner_digest
from bridge.store import Store, Transaction
from bridge.store.retention import RetentionLimits, StoredItem, items_to_remove
from bridge.text import valid_text, visible

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Row, Table

logger = logging.getLogger(__name__)

# A guest can send a state of any size, with any number of names of any length.
MAX_STATE_BYTES = 44 * 1024 * 1024
"""The largest state, and the largest restored state with a run's files. As base64 they fit into one
frame of 64 MB. Guests are asked for at most 32 MB and add the sources."""

MAX_NAMES = 40  # The other names are counted.
MAX_NAME_CHARS = 80


class StateParts:
    """Collects the parts of one state; `problem` says why they are unusable."""

    def __init__(self) -> None:
        self.lost: tuple[Loss, ...] = ()
        self.problem = ""
        self._data = bytearray()

    def add(self, frame: State) -> None:
        if self.problem:
            return
        if len(self._data) + len(frame.data) > MAX_STATE_BYTES:
            self.refuse(f"it is larger than {MAX_STATE_BYTES:,} bytes")
            return
        self._data += frame.data
        if frame.lost:
            self.lost = losses(frame.lost)

    @property
    def data(self) -> bytes | None:
        return bytes(self._data) or None

    def refuse(self, problem: str) -> None:
        """Drop the state and record the reason."""
        self.problem = problem
        self._data.clear()


def losses(*said: object) -> tuple[Loss, ...]:
    """Return the losses that a possibly hostile guest reports, each name once."""
    found: dict[str, Loss] = {}
    more = 0
    for entry in (entry for each in said if isinstance(each, list | tuple) for entry in each):
        match entry:
            case Loss(name=name, why=why) | [str(name), str(why)]:
                name = shown_line(name, MAX_NAME_CHARS)
            case _:
                continue
        if name not in found and len(found) >= MAX_NAMES:
            more += 1
        elif name not in found:
            found[name] = Loss(name=name, why=shown_line(why, 300))
    if more:
        found["..."] = Loss(name="...", why=f"and {more:,} more")
    return tuple(found.values())


def shown_line(text: str, most: int) -> str:
    """Return a guest's text in one bounded line."""
    shown = visible(valid_text(text[: most + 1]), keep="")
    return shown if len(shown) <= most else f"{shown[:most]}..."


MAX_OF_OWNER = 500  # Sessions: a client can make any number.

_DAY = 24 * 3600.0

CLAIM = "claim"  # The kind of documents that say which of several bridges has a session.


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The saved state of one session.

    Attributes:
        data: The state for a guest; empty in lists.
        facts: The session's record.
        moment: The time of the save, in seconds since the epoch.
        size: The size of the state, in bytes.
    """

    session_id: str
    name: str
    run: int
    data: bytes = field(default=b"", repr=False)
    lost: tuple[Loss, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)
    moment: float = 0.0
    size: int = field(default=0, compare=False)


class Checkpoints:
    """The saved states. Methods that are not async block, and need a thread.

    Args:
        now: Returns seconds since the epoch.
        claims: The claims of several bridges; None if there is one bridge.
    """

    def __init__(
        self,
        store: Store,
        *,
        days: int,
        total_bytes: int = 1024**3,  # of all sessions of all owners
        now: Callable[[], float] = time,
        claims: Claims | None = None,
    ) -> None:
        self._store = store
        self._claims = claims
        self._seconds = days * _DAY
        self._total_bytes = total_bytes
        self._now = now
        self._tidied = -inf
        self._written = 0

    async def find(self, owner: str, key: str) -> tuple[Saved | None, str]:
        """Return a session without its data, by id or by name, or why sessions cannot be read.

        Of several sessions with one name it is the last saved.
        """
        every = await self.listed(owner)
        if every is None:
            return None, "what is saved of sessions cannot be read"
        by_id = next((each for each in every if each.session_id == key), None)
        return by_id or next((each for each in every if each.name == key), None), ""

    async def listed(self, owner: str) -> tuple[Saved, ...] | None:
        """Return an owner's sessions without their data; None if they cannot be read."""
        try:
            return await anyio.to_thread.run_sync(self.all, owner)
        except OSError as error:
            logger.warning("saved sessions cannot be read: %s", error)
            return None

    async def save(self, owner: str, saved: Saved) -> str:
        """Replace a saved session; return why that failed, empty on success."""
        try:
            await anyio.to_thread.run_sync(partial(self.write, owner, saved))
        except OSError as error:
            return f"the bridge could not write it down ({error.strerror or error})"
        return ""

    async def forget(self, owner: str, session_id: str) -> None:
        try:
            await anyio.to_thread.run_sync(self.remove, owner, session_id)
        except OSError as error:
            logger.warning("what was saved of a session cannot be removed: %s", error)

    async def describe(self, owner: str, session_id: str) -> Saved | None:
        """Return a session without its data."""

        def read() -> Saved | None:
            with self._store.reading() as kept:
                row = _row(kept, _key(owner, session_id))
            return None if row is None else _parse_row(row)

        return await anyio.to_thread.run_sync(read)

    def write(self, owner: str, saved: Saved) -> None:
        """Replace a saved session.

        Raises:
            OSError: The save failed; the previous state is unchanged.
        """
        if len(saved.data) > min(MAX_STATE_BYTES, self._total_bytes):
            raise OSError(errno.EFBIG, "the state is larger than the limit")
        lost = [[loss.name, loss.why] for loss in saved.lost]
        told = {"id": saved.session_id, "run": saved.run, "lost": lost, "facts": dict(saved.facts)}
        digest, before = hashlib.sha256(saved.data).hexdigest(), None
        key = _key(owner, saved.session_id)
        row = {
            "owner": key[0],
            "id": key[1],
            # PostgreSQL's text has no NUL.
            "name": saved.name.encode("utf-8", "replace").decode().replace("\0", "\ufffd"),
            "saved": self._now(),
            "size": len(saved.data),
            "digest": digest,
            "facts": json.dumps(told),
        }
        unfinished = self._store.blobs.begin()
        try:
            unfinished.write(saved.data)
            with self._store.writing_blob(unfinished, digest, durable=True) as kept:
                assert kept.connection is not None
                if self._claims is not None:
                    self._claims.check(kept, owner, saved.session_id)
                found = _row(kept, key)
                before = None if found is None else found.digest
                kept.connection.execute(_sessions().delete().where(_has_key(*key)))
                kept.connection.execute(_sessions().insert(), row)
        finally:
            self._store.blobs.discard(unfinished)
        if before is not None and before != digest:
            with suppress(OSError):
                self._store.drop([before])
        self._written += len(saved.data)
        if self._now() - self._tidied > 600.0 or self._written > self._total_bytes // 16:
            self.tidy()

    def loaded(self, owner: str, session_id: str) -> tuple[Saved | None, str]:
        """Return a session with its data, or why that is unusable; (None, "") if there is none."""
        try:
            with self._store.reading() as kept:
                row = _row(kept, _key(owner, session_id))
            if row is None or row.saved < self._oldest():
                return None, ""
            pieces, size = [], 0
            with closing(self._store.blobs.open(row.digest)) as blob:
                while size <= MAX_STATE_BYTES and (piece := blob.read(1024 * 1024, size)):
                    pieces.append(piece)
                    size += len(piece)
        except OSError as error:
            return None, f"its checkpoint cannot be read: {error.strerror or error}"
        data = b"".join(pieces)
        found = _parse_row(row, data)
        if found is None or hashlib.sha256(data).hexdigest() != row.digest:
            return None, "its checkpoint is damaged, or somebody changed it"
        return found, ""

    def all(self, owner: str | None) -> tuple[Saved, ...]:
        """Return an owner's sessions without data, or all owners'; the last saved first."""
        with self._store.reading() as kept:
            if kept.connection is None:
                return ()
            table = _sessions()
            chosen = table.select().where(table.c.saved >= self._oldest())
            if owner is not None:
                chosen = chosen.where(table.c.owner == owner_digest(owner)).limit(MAX_OF_OWNER)
            rows = kept.connection.execute(chosen.order_by(table.c.saved.desc())).all()
        found = (_parse_row(row) for row in rows)
        return tuple(each for each in found if each is not None)

    def remove(self, owner: str, session_id: str) -> bool:
        """Remove a session; return whether it existed."""
        key = _key(owner, session_id)
        with self._store.reading() as kept:
            if _row(kept, key) is None:
                return False
        with self._store.writing(durable=True) as kept:
            assert kept.connection is not None
            row = _row(kept, key)
            if row is None:
                return False
            kept.connection.execute(_sessions().delete().where(_has_key(*key)))
        self._store.drop([row.digest])
        return True

    def tidy(self) -> int:
        """Remove expired and excess sessions; return how many."""
        self._tidied, self._written = self._now(), 0
        table = _sessions()
        with self._store.writing() as kept:
            assert kept.connection is not None
            columns = (table.c.owner, table.c.id, table.c.saved, table.c.digest, table.c.size)
            rows = kept.connection.execute(table.select().with_only_columns(*columns))
            bounds = RetentionLimits(
                total_bytes=self._total_bytes,
                oldest=self._oldest(),
                entries=10_000,
                owner_entries=MAX_OF_OWNER,
            )
            goes = items_to_remove([StoredItem(*row) for row in rows], bounds) or []
            for one in goes:
                kept.connection.execute(table.delete().where(_has_key(one.owner, one.id)))
            if self._claims is not None:
                kept.prune(CLAIM, most=bounds.entries, oldest=self._oldest())
        self._store.drop(one.digest for one in goes)
        return len(goes)

    def _oldest(self) -> float:
        return self._now() - self._seconds


def _sessions() -> Table:
    from bridge.store.schema import sessions

    return sessions


def _has_key(owner: str, which: str) -> ColumnElement[bool]:
    table = _sessions()
    return (table.c.owner == owner) & (table.c.id == which)


def _row(kept: Transaction, key: _Key) -> Row[Any] | None:
    if kept.connection is None:
        return None
    chosen = _sessions().select().where(_has_key(*key))
    return kept.connection.execute(chosen).first()


def _parse_row(row: Row[Any], data: bytes = b"") -> Saved | None:
    """Return the session of a row; None if a bridge did not write the row."""
    try:
        told = json.loads(row.facts)
    except (ValueError, RecursionError):
        return None
    match told:
        case {"id": str(session_id), "run": int(run), "lost": lost, "facts": dict(facts)}:
            return Saved(
                session_id=session_id,
                name=row.name,
                run=run,
                data=data,
                lost=losses(lost),
                facts=facts,
                moment=row.saved,
                size=row.size,
            )
        case _:
            return None


LEASE_SECONDS = 16.0
"""A claim without a renewal for this long belongs to a dead or stopped replica. Replicas renew four
times as often."""

_Key = tuple[str, str]  # The digests of a session's owner and of its id.


class Claims:
    """The claims of one replica; errors of other replicas name it."""

    def __init__(self, store: Store, replica: str) -> None:
        self._store = store
        self._replica = replica
        # After a restart a replica of the same name is another one.
        self._process = secrets.token_hex(8)
        self._beat = 0
        self._held: set[_Key] = set()

    def holds(self, owner: str, session_id: str) -> bool:
        """Return whether this replica has claimed a session and knows of no loss."""
        return _key(owner, session_id) in self._held

    async def claim(self, owner: str, session_id: str) -> str:
        """Claim a session; return the name of the dead replica that had it, or ""."""
        key, wait = _key(owner, session_id), 0.05
        start = since = anyio.current_time()
        seen: bytes | None = None
        while True:
            lapsed = seen if anyio.current_time() - since >= LEASE_SECONDS else None
            found = await anyio.to_thread.run_sync(self._try, key, lapsed)
            if found is None:
                return _holder(lapsed)
            # The other replica may be saving the state, or may be dead.
            alive = seen not in (None, found)
            if alive and anyio.current_time() - start > 1.5 * LEASE_SECONDS:
                raise InvalidRequestError(
                    f"Session {session_id} is in use in replica {_holder(found)!r} of the bridge: "
                    "a run uses it there, or its state could not be saved and is there alone. "
                    "Nothing was run.",
                    remedy="Wait for that run to end, or send the request to that replica.",
                    code="elsewhere",
                )
            if found != seen:
                seen, since = found, anyio.current_time()
            await anyio.sleep(wait)
            wait = min(2 * wait, 0.5)

    async def release(self, owner: str, session_id: str) -> None:
        """Release a session, so that any replica can claim it."""
        key = _key(owner, session_id)
        self._held.discard(key)
        try:
            await anyio.to_thread.run_sync(self._release, key)
        except OSError as error:
            logger.warning("a session's claim is left to lapse: %s", error)

    async def renewing(self) -> None:
        """Renew the held claims until cancelled."""
        while True:
            await anyio.sleep(LEASE_SECONDS / 4)
            if self._held:
                try:
                    await anyio.to_thread.run_sync(self._renew)
                except OSError as error:
                    logger.warning("claims of sessions cannot be renewed: %s", error)

    def check(self, kept: Transaction, owner: str, session_id: str) -> None:
        """Raise OSError if another replica has taken a session over."""
        if not self._has(kept, _key(owner, session_id)):
            raise OSError(errno.ESTALE, "another replica of the bridge has taken the session over")

    def _try(self, key: _Key, lapsed: bytes | None) -> bytes | None:
        """Claim a session and return None, or return another replica's claim."""
        with self._store.writing() as kept:
            found = kept.get(CLAIM, *key)
            if found not in (None, lapsed) and not self._is_own(found):
                return found
            kept.put(CLAIM, *key, self._document())
            self._held.add(key)
        return None

    def _release(self, key: _Key) -> None:
        with self._store.writing() as kept:
            if self._has(kept, key):
                kept.delete(CLAIM, *key)

    def _renew(self) -> None:
        with self._store.writing() as kept:
            for key in tuple(self._held):
                if self._has(kept, key):
                    kept.put(CLAIM, *key, self._document())

    def _has(self, kept: Transaction, key: _Key) -> bool:
        """Return whether this replica still has a claim; forget a lost one."""
        found = kept.get(CLAIM, *key)
        if found is not None and self._is_own(found):
            return True
        self._held.discard(key)
        return False

    def _document(self) -> bytes:
        self._beat += 1
        return f"{self._replica} {self._process} {self._beat}".encode()

    def _is_own(self, found: bytes) -> bool:
        return self._process.encode() in found


def _key(owner: str, session_id: str) -> _Key:
    """Return a session's key in the store, which has a fixed length."""
    session = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
    return owner_digest(owner), session


def _holder(found: bytes | None) -> str:
    return (found or b"").partition(b" ")[0].decode(errors="replace")
