"""This bridge's row among those of a database server, and what it learns there of itself."""

from __future__ import annotations

import logging
import secrets
import time
from contextlib import suppress

import anyio

from bridge.store.store import VERSION, Store, StoreError, table

logger = logging.getLogger(__name__)

BEAT_SECONDS = 5.0  # Between statements of an idle bridge.
ALIVE = 15.0  # Seconds; a bridge that was not heard of for longer counts as gone.


class Heartbeat:
    """Renews the row of one bridge; inactive if it shares no store."""

    def __init__(self, store: Store, name: str) -> None:
        self.process = secrets.token_hex(8)  # A random name of this process.
        # What keeps this bridge from serving: a word each, with a sentence.
        self.problems: dict[str, str] = {}
        self.silence = ""  # Why the store cannot be used at the moment; empty if it can.
        self._store = store
        self._name = name
        self._others: dict[str, float] = {}

    async def beat(self) -> None:
        """Renew the row until cancelled, then remove it."""
        if not self._store.shared:
            return
        try:
            while True:
                await self._look()
                await anyio.sleep(BEAT_SECONDS)
        finally:
            # The end does not wait for a silent server.
            if not self.silence:
                own = table("bridges").c.process == self.process
                with anyio.CancelScope(shield=True), suppress(StoreError):
                    await self._store.run(self._store.execute, table("bridges").delete().where(own))

    async def _look(self) -> None:
        try:
            problems, silence = await self._store.run(self._renew), ""
        except StoreError as error:
            problems, silence = self.problems, f"{error.strerror}"
            if error.is_too_new:
                problems = {"schema": silence}
        for said in {*problems.values(), silence} - {*self.problems.values(), self.silence, ""}:
            logger.warning("the shared store: %s", said)
        self.problems, self.silence = problems, silence

    def _renew(self) -> dict[str, str]:
        bridges, runs = table("bridges"), table("runs")
        row = {"renewed": self._store.moment(0), "version": VERSION}
        keys = {"name": self._name, "process": self.process}
        new = self._store.upsert(bridges).values(**keys, **row)
        changed = new.on_conflict_do_update(index_elements=list(keys), set_=row)
        alike = bridges.select().where(bridges.c.name == self._name)
        before = time.time()
        # With the lock of all writers, to notice one that no writer gets.
        with self._store.writing() as kept:
            skew = kept.now() - (before + time.time()) / 2
            kept.execute(changed)
            kept.execute(bridges.delete().where(bridges.c.renewed < kept.now() - 86_400.0))
            kept.execute(runs.delete().where(runs.c.began < kept.now() - 14 * 86_400.0))
            found = {row.process: row.renewed for row in kept.execute(alike)}
        problems: dict[str, str] = {}
        # It would date what all bridges read.
        if abs(skew) > 60.0:
            problems["clock"] = f"this machine's clock is {-skew:+.0f} s off the database server's"
        # A dead bridge's row stays for a while, and does not change.
        known, self._others = self._others, found
        if any(known.get(who, when) != when for who, when in found.items() if who != self.process):
            problems["name"] = f"another bridge is called {self._name!r} too: MCP_BRIDGE_REPLICA"
        return problems
