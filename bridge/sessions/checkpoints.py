"""States of sessions: as their guests send them, and as the store keeps them.

Only another guest interprets a state. A malformed part makes this state unusable, and the session
continues. A session is a row with its state; a state with another digest is refused. A disk error
loses the state and no run, but of several bridges it refuses the run. After a power cut the state
is the old or the new one. The state is readable by this user only, and is not encrypted.

Of several bridges, the one that runs something in a session has claimed its row, and renews the
claim meanwhile. The save releases it. A claim that is not renewed lapses by the database's clock.
A bridge that lost its claim learns that when it renews or saves. It overwrites no newer state.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import anyio

from bridge.errors import BridgeError, InvalidRequestError
from bridge.guest.protocol.wire import State
from bridge.model import Json, Loss, owner_digest
from bridge.store import Store
from bridge.store.retention import RetentionLimits, StoredItem, items_to_remove, may_remove
from bridge.store.store import select, table
from bridge.text import counted, valid_text, visible

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Row

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


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The saved state of one session."""

    session_id: str
    name: str
    run: int
    data: bytes = field(default=b"", repr=False)  # For a guest; empty in lists.
    lost: tuple[Loss, ...] = ()
    facts: Mapping[str, Json] = field(default_factory=dict)  # The session's record.
    moment: float = 0.0  # The time of the save, in seconds since the epoch.
    size: int = field(default=0, compare=False)  # Bytes of the state.


class Checkpoints:
    """The saved states. The methods block: call them with `run`."""

    def __init__(
        self,
        store: Store,
        *,
        days: int,
        total_bytes: int = 1024**3,  # of all sessions of all owners
        now: Callable[[], float] = time,
        claims: Claims | None = None,  # None if there is one bridge.
    ) -> None:
        self.run = store.run
        self.limits = {"bytes": total_bytes, "days": days}
        self._store = store
        self._claims = claims
        self._seconds = days * 86_400.0
        self._total_bytes = total_bytes
        self._now = now
        self._tidied = -inf
        self._written = 0

    def find(self, owner: str, key: str) -> tuple[Saved | None, str]:
        """Return a session without its data, by id or by name, or why sessions cannot be read.

        Of several sessions with one name it is the last saved.
        """
        try:
            every = self.all(owner)
        except OSError as error:
            return None, self.explain(error)
        by_id = next((each for each in every if each.session_id == key), None)
        return by_id or next((each for each in every if each.name == key), None), ""

    def load(self, owner: str, session_id: str) -> tuple[Saved | None, str]:
        """Return a session with its data, or why that is unusable; (None, "") if there is none."""
        ours = _has_key(*session_key(owner, session_id)) & self._is_fresh()
        try:
            rows = self._store.query(table("sessions").select().where(ours))
        except OSError as error:
            return None, self.explain(error)
        if not rows:
            return None, ""
        data = bytes(rows[0].state or b"")
        saved = _parse_row(rows[0], data)
        if saved is None or hashlib.sha256(data).hexdigest() != rows[0].digest:
            return None, "its checkpoint is damaged, or somebody changed it"
        return saved, ""

    def explain(self, error: OSError) -> str:
        """Return why saved sessions cannot be read; of several bridges, raise BridgeError."""
        why = f"what is saved of sessions cannot be read: {error.strerror or error}"
        if self._claims is None:
            return why
        # A session that begins again would replace the saved one.
        raise BridgeError(f"Nothing was run: {why}.", code="store_unavailable") from error

    def save(self, owner: str, saved: Saved, *, release: bool = False) -> str:
        """Replace a saved session, and release its claim; return why that failed, or "".

        A failure leaves the previous state.
        """
        try:
            self._write(session_key(owner, saved.session_id), saved, release=release)
        except OSError as error:
            return f"the bridge could not write it down ({error.strerror or error})"
        self._written += len(saved.data)
        if self._now() - self._tidied > 600.0 or self._written > self._total_bytes // 16:
            try:
                self.tidy()
            except OSError as error:
                # The state is saved all the same.
                logger.warning("saved sessions cannot be tidied: %s", error)
        return ""

    def _write(self, key: SessionKey, saved: Saved, *, release: bool) -> None:
        if len(saved.data) > min(MAX_STATE_BYTES, self._total_bytes):
            raise OSError(errno.EFBIG, "the state is larger than the limit")
        lost = [[loss.name, loss.why] for loss in saved.lost]
        facts = {"id": saved.session_id, "run": saved.run, "lost": lost, "facts": dict(saved.facts)}
        row = {
            # PostgreSQL's text has no NUL.
            "name": saved.name.encode("utf-8", "replace").decode().replace("\0", "\ufffd"),
            "saved": self._store.moment(self._now()),
            "size": len(saved.data),
            "digest": hashlib.sha256(saved.data).hexdigest(),
            "facts": json.dumps(facts),
            "state": saved.data,
        }
        if self._claims is not None:
            self._claims.save(key, row, release=release)
            return
        new = self._store.upsert(table("sessions")).values(owner=key[0], id=key[1], **row)
        changed = new.on_conflict_do_update(index_elements=["owner", "id"], set_=row)
        self._store.execute(changed, durable=True)

    def all(self, owner: str | None) -> tuple[Saved, ...]:
        """Return an owner's sessions without data, or all owners'; the last saved first."""
        sessions = table("sessions")
        chosen = select("sessions", *_PARSED).where(self._is_fresh())
        if owner is not None:
            chosen = chosen.where(sessions.c.owner == owner_digest(owner)).limit(MAX_OF_OWNER)
        parsed = map(_parse_row, self._store.query(chosen.order_by(sessions.c.saved.desc())))
        return tuple(each for each in parsed if each is not None)

    def remove(self, owner: str, session_id: str) -> bool:
        """Remove a session; return whether it existed."""
        ours = _has_key(*session_key(owner, session_id))
        exists = bool(self._store.query(select("sessions", "size").where(ours)))
        if exists:
            self._store.execute(table("sessions").delete().where(ours), durable=True)
        return exists

    def tidy(self) -> int:
        """Remove expired and excess sessions, unless a bridge runs something in them."""
        self._tidied, self._written = self._now(), 0
        sessions = table("sessions")
        with self._store.writing() as kept:
            if not may_remove(kept, "sessions", self.limits):
                return 0
            moment = kept.now(self._now)
            idle = (sessions.c.process.is_(None)) | (sessions.c.process == "")
            free = idle | (sessions.c.renewed < moment - LEASE_SECONDS)
            # Two sessions with one state have two rows of it, so an item's content is its id.
            chosen = select("sessions", "owner", "id", "saved", "id", "size").where(free)
            items = list(map(StoredItem._make, kept.execute(chosen)))
            bounds = RetentionLimits(
                total_bytes=self._total_bytes,
                oldest=moment - self._seconds,
                entries=10_000,
                owner_entries=MAX_OF_OWNER,
            )
            surplus = items_to_remove(items, bounds) or []
            for one in surplus:
                kept.execute(sessions.delete().where(_has_key(one.owner, one.id), free))
        if surplus and self._store.shared:
            logger.warning("removed %s", counted(len(surplus), "saved session"))
        return len(surplus)

    def _is_fresh(self) -> ColumnElement[bool]:
        """Return the SQL condition for sessions that were saved and have not expired."""
        columns, now = table("sessions").c, self._store.moment(self._now())
        return (columns.saved >= now - self._seconds) & (columns.digest != "")


def _has_key(owner: str, which: str) -> ColumnElement[bool]:
    columns = table("sessions").c
    return (columns.owner == owner) & (columns.id == which)


_PARSED = ("name", "saved", "size", "facts")


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
"""A claim without a renewal for this long belongs to a dead or stopped bridge. Bridges renew four
times as often."""

SessionKey = tuple[str, str]  # The digests of a session's owner and of its id.


class Claims:
    """The claims of one bridge; errors of other bridges name it."""

    def __init__(self, store: Store, bridge: str) -> None:
        self._store = store
        self._bridge = bridge
        # After a restart a bridge of the same name is another one.
        self._process = secrets.token_hex(8)
        # An object for each claim tells it from a later one of the same session.
        self._held: dict[SessionKey, object] = {}
        self._unreleased: set[SessionKey] = set()
        self._releasing = anyio.Lock()
        self._renewed = -inf

    def holds(self, owner: str, session_id: str) -> bool:
        """Return whether this bridge has claimed a session and knows of no loss."""
        return session_key(owner, session_id) in self._held

    def are_fresh(self) -> bool:
        """Return whether no claim of this bridge can have lapsed."""
        return monotonic() - self._renewed < LEASE_SECONDS

    async def claim(self, owner: str, session_id: str) -> tuple[Saved | None, str]:
        """Claim a session that no other living bridge has.

        Returns the session without its data, None if none is saved; and whose claim lapsed, as a
        clause, or "".
        """
        key, wait = session_key(owner, session_id), 0.05
        start = anyio.current_time()
        if key in self._unreleased:
            async with self._releasing:
                self._unreleased.discard(key)
        while (row := await self._store.run(self._try, key)) is None:
            if anyio.current_time() - start > 1.5 * LEASE_SECONDS:
                raise elsewhere_error(session_id, await self._store.run(self.holder, key))
            # The other bridge may be saving the state, or may be dead.
            await anyio.sleep(wait)
            wait = min(2 * wait, 0.5)
        lapsed = f"replica {row.gone!r} of the bridge had it, and was not heard of for"
        return _parse_row(row), row.gone and f"{lapsed} {LEASE_SECONDS:g} s"

    async def release(self, owner: str, session_id: str) -> None:
        """Release a session, so that any bridge can claim it."""
        key = session_key(owner, session_id)
        self._held.pop(key, None)
        self._unreleased.add(key)
        await self._release_all()

    async def renew(self, note_loss: Callable[[SessionKey, str], None]) -> None:
        """Renew the held claims until cancelled.

        `note_loss` takes the key of a lost session, and the bridge that has it.
        """
        while True:
            await anyio.sleep(LEASE_SECONDS / 4)
            await self._release_all()
            try:
                for key, holder, claim in await self._store.run(self._renew):
                    # A claim that was released or made again meanwhile is not lost.
                    if self._held.get(key) is claim:
                        del self._held[key]
                        note_loss(key, holder)
            except OSError as error:
                logger.warning("claims of sessions cannot be renewed: %s", error)

    def save(self, key: SessionKey, row: Mapping[str, Any], *, release: bool) -> None:
        """Save a claimed session; raise OSError if another bridge has it."""
        sessions = table("sessions")
        # The answer to an earlier attempt may have been lost, which released the claim.
        done = (sessions.c.facts == row["facts"]) & (sessions.c.digest == row["digest"])
        ours = (sessions.c.process == self._process) | (done & (sessions.c.process == ""))
        process = {"process": "" if release else self._process}
        changed = sessions.update().where(_has_key(*key), ours).values(**row, **process)
        kept = select("sessions", "id").where(_has_key(*key), done)
        claim = self._held.pop(key, None)
        saved: bool | None = None
        try:
            saved = bool(self._store.execute(changed.returning(sessions.c.id), durable=True))
            saved = saved or bool(self._store.query(kept))
        finally:
            # Without an answer the claim may still be this bridge's.
            if claim is not None and (saved is None or (saved and not release)):
                self._held[key] = claim
        if not saved:
            raise OSError(errno.ESTALE, takeover(self.holder(key)))

    def holder(self, key: SessionKey) -> str:
        """Return the name of the bridge that claimed a session last; "" if none did."""
        rows = self._store.query(select("sessions", "bridge").where(_has_key(*key)))
        return next((row.bridge or "" for row in rows), "")

    def _try(self, key: SessionKey) -> Row[Any] | None:
        """Claim a session and return its row; None if another bridge has it."""
        from sqlalchemy import case, func

        sessions, now = table("sessions"), self._store.moment(time())
        mine = {"bridge": self._bridge, "process": self._process, "renewed": now}
        empty = {"name": "", "saved": now, "size": 0, "digest": "", "facts": "", "gone": ""}
        unclaimed = func.coalesce(sessions.c.process, "").in_(("", self._process))
        new = self._store.upsert(sessions).values(owner=key[0], id=key[1], **empty, **mine)
        claimed = new.on_conflict_do_update(
            index_elements=["owner", "id"],
            set_={**mine, "gone": case((unclaimed, ""), else_=sessions.c.bridge)},
            where=unclaimed | (sessions.c.renewed < now - LEASE_SECONDS),
        )
        columns = (sessions.c[name] for name in (*_PARSED, "gone"))
        rows = self._store.execute(claimed.returning(*columns))
        if not rows:
            return None
        self._held[key] = object()
        return rows[0]

    async def _release_all(self) -> None:
        """Release claims; `renew` tries again what the store cannot do now."""
        async with self._releasing:
            for key in tuple(self._unreleased):
                try:
                    await self._store.run(self._release, key)
                except OSError as error:
                    logger.warning("a session's claim is not released yet: %s", error)
                    return
                self._unreleased.discard(key)

    def _release(self, key: SessionKey) -> None:
        sessions = table("sessions")
        ours = (_has_key(*key), sessions.c.process == self._process)
        freed = sessions.update().where(*ours, sessions.c.digest != "").values(process="")
        self._store.execute(freed)
        self._store.execute(sessions.delete().where(*ours, sessions.c.digest == ""))

    def _renew(self) -> list[tuple[SessionKey, str, object]]:
        """Renew the claims; return the lost ones, each with the bridge that has it."""
        sessions, held = table("sessions"), dict(self._held)
        if not held:
            return []
        began = monotonic()
        renewed = sessions.update().where(sessions.c.process == self._process)
        renewed = renewed.values(renewed=self._store.moment(time()))
        for row in self._store.execute(renewed.returning(sessions.c.owner, sessions.c.id)):
            held.pop((row.owner, row.id), None)
        self._renewed = began
        return [(key, self.holder(key), claim) for key, claim in held.items()]


def session_key(owner: str, session_id: str) -> SessionKey:
    """Return a session's key in the store, which has a fixed length."""
    session = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()
    return owner_digest(owner), session


def takeover(bridge: str = "") -> str:
    """Return why a session is another bridge's now."""
    which = f"replica {bridge!r}" if bridge else "another replica"
    return f"{which} of the bridge has taken the session over"


def elsewhere_error(session_id: str, bridge: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Session {session_id} is in use in replica {bridge!r} of the bridge: a run uses it "
        "there, or its state could not be saved and is there alone. Nothing was run.",
        remedy="Wait for that run to end, or send the request to that replica.",
        code="elsewhere",
    )
