"""Which of several bridges on one store has a session live.

Owns the claim: a document in the store with the name of the replica that runs something in the
session, renewed while it does. Between runs, once its state is saved, a session is no one's, and
continues wherever its next run arrives. A claim that is not renewed lapses; that is measured by who
waits, on one clock, so that the replicas' clocks need not agree. Who lost a claim in spite of being
alive finds out when it saves, and does not overwrite what the next has saved.
"""

from __future__ import annotations

import errno
import logging
import secrets

import anyio
import anyio.to_thread

from bridge.errors import InvalidRequestError
from bridge.sessions.checkpoints import CLAIM as KIND
from bridge.sessions.checkpoints import id_digest
from bridge.store import Store, Transaction, owner_digest

logger = logging.getLogger(__name__)

LEASE_SECONDS = 16.0
"""A claim that has not been renewed for so long is of a replica that is dead or stands still. Each
renews its own four times as often."""

_Key = tuple[str, str]  # A session's document: its owner's digest, and the digest of its id.


class Claims:
    """The claims of one replica, whose name is for the others' errors."""

    def __init__(self, store: Store, replica: str) -> None:
        self._store = store
        self._replica = replica
        # One of the same name after a restart is another.
        self._process = secrets.token_hex(8)
        self._beat = 0
        self._held: set[_Key] = set()

    def holds(self, owner: str, session_id: str) -> bool:
        """Return whether a session is claimed, as far as is known."""
        return _key(owner, session_id) in self._held

    async def take(self, owner: str, session_id: str) -> str:
        """Claim a session; return the dead replica from which it was taken over, or ""."""
        key, wait = _key(owner, session_id), 0.05
        start = since = anyio.current_time()
        seen: bytes | None = None
        while True:
            lapsed = seen if anyio.current_time() - since >= LEASE_SECONDS else None
            found = await anyio.to_thread.run_sync(self._try, key, lapsed)
            if found is None:
                return _holder(lapsed)
            # One that still saves the session's state, or died, is waited for.
            alive = seen not in (None, found)
            if alive and anyio.current_time() - start > 1.5 * LEASE_SECONDS:
                raise _elsewhere(session_id, _holder(found))
            if found != seen:
                seen, since = found, anyio.current_time()
            await anyio.sleep(wait)
            wait = min(2 * wait, 0.5)

    async def release(self, owner: str, session_id: str) -> None:
        """Give a session to the bridge that asks next."""
        key = _key(owner, session_id)
        self._held.discard(key)
        try:
            await anyio.to_thread.run_sync(self._release, key)
        except OSError as error:
            logger.warning("a session's claim is left to lapse: %s", error)

    async def renewing(self) -> None:
        """Renew what is held, until cancelled."""
        while True:
            await anyio.sleep(LEASE_SECONDS / 4)
            if self._held:
                try:
                    await anyio.to_thread.run_sync(self._renew)
                except OSError as error:
                    logger.warning("claims of sessions cannot be renewed: %s", error)

    def check(self, kept: Transaction, owner: str, session_id: str) -> None:
        """Raise OSError if another replica has taken a session over; `owner` is a digest."""
        if not self._has(kept, (owner, id_digest(session_id))):
            raise OSError(errno.ESTALE, "another replica of the bridge has taken the session over")

    def _try(self, key: _Key, lapsed: bytes | None) -> bytes | None:
        """Claim a session, and return None; or return another's claim."""
        with self._store.writing() as kept:
            found = kept.get(KIND, *key)
            if found not in (None, lapsed) and not self._is_own(found):
                return found
            kept.put(KIND, *key, self._document())
            self._held.add(key)
        return None

    def _release(self, key: _Key) -> None:
        with self._store.writing() as kept:
            if self._has(kept, key):
                kept.delete(KIND, *key)

    def _renew(self) -> None:
        with self._store.writing() as kept:
            for key in tuple(self._held):
                if self._has(kept, key):
                    kept.put(KIND, *key, self._document())

    def _has(self, kept: Transaction, key: _Key) -> bool:
        """Return whether a claim is still this replica's; forget it if not."""
        found = kept.get(KIND, *key)
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
    return owner_digest(owner), id_digest(session_id)


def _holder(found: bytes | None) -> str:
    return (found or b"").partition(b" ")[0].decode(errors="replace")


def _elsewhere(session_id: str, replica: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"Session {session_id} is in use in replica {replica!r} of the bridge: a run uses it in "
        "it there, or its state could not be saved and is there alone. Nothing was run.",
        remedy="Wait for the session's run to end, or send the request to that replica.",
        code="elsewhere",
    )
