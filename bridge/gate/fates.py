"""The fate of each run that changes something, in the store that several bridges share.

A run has a complete row or none. The row says that a call is sent before it is, and with the next
statement how it was answered. A retry ends the row of a bridge that was not heard of, which then
sends no more such calls for that run.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

import anyio

from bridge.errors import AuditError, BridgeError
from bridge.event_loop import utc_text
from bridge.gate.journal import JournalEntry, Outcome, RunJournal, another_retry
from bridge.model import Json, owner_digest
from bridge.store import Store, StoreError
from bridge.store.heartbeat import ALIVE

logger = logging.getLogger(__name__)

CALLS = 1_000  # Of one run in its row; no other bridge retries a run that sent more.

_FIELDS = ("server", "tool", "effect", "number", "outcome", "run_id", "server_definition")

_ENDS: dict[Outcome, str] = {
    "ok": "was sent and answered",
    "tool-error": "was sent and failed",
    "refused": "was sent and refused",
    "unknown": "was sent without an answer",
}


class Fates:
    """The rows of all bridges' runs; `are_shared` is false without other bridges."""

    def __init__(self, store: Store, bridge: str, process: str = "") -> None:
        self.store = store
        self.are_shared = store.shared and bool(bridge)
        self.unended = set[RunFate]()  # The store did not take their ends.
        self._names = {"bridge": bridge, "process": process}

    async def find(self, run_id: str, owner: str | None) -> RunJournal | None:
        """Return what a row says of a run, or of the retry that continued it.

        Without an owner the beginning of the id is enough.
        """
        try:
            return await self.store.run(self._find, run_id, owner) if self.are_shared else None
        except StoreError as error:
            message = f"Runs of other bridges cannot be looked up: {error.strerror}."
            raise BridgeError(message, code="store_unavailable") from error

    async def explain(self, error: BridgeError, run_id: str, owner: str) -> None:
        """Add to an error what a row says of the run that it is about."""
        if fate := await self.find(run_id, owner):
            error.message += f" Of run {fate.run_id} is known: {fate.record['fate']}."
            error.message += f' A retry, retry_of="{fate.run_id}", repeats no such call.'

    def _find(self, run_id: str, owner: str | None) -> RunJournal | None:
        from sqlalchemy import select

        from bridge.store.schema import bridges, runs

        wanted = runs.c.id.startswith(run_id, autoescape=True)
        if owner is not None:
            wanted = (runs.c.id == run_id) & (runs.c.owner == owner_digest(owner))
        columns = (runs, bridges.c.renewed, self.store.moment(time.time()).label("now"))
        joined = runs.outerjoin(bridges, bridges.c.process == runs.c.process)
        chosen = select(*columns).select_from(joined).where(wanted).order_by(runs.c.began.desc())
        for row in self.store.query(chosen.limit(1)):
            lines = [json.loads(line) for line in row.facts.splitlines() if line]
            retry = next((line for line in lines if isinstance(line, str)), "")
            return self._find(retry, owner) if retry else _journal(row, dict(lines))
        return None

    def write(self, run_id: str, owner: str, text: str, *, ends: bool, continues: str) -> str:
        """Add a text to the row of a run, which is a retry if it `continues` another.

        If another retry has continued the run, add nothing, and return its id.
        """
        from sqlalchemy import func

        from bridge.store.schema import runs

        keys, now = {"owner": owner_digest(owner)}, self.store.moment(time.time())

        def append(run_id: str, text: str, ended: Any, where: Any) -> Any:
            row = {**keys, **self._names, "id": run_id, "began": now, "facts": text}
            new = self.store.upsert(runs).values(**row, ended=ended)
            both = {"facts": runs.c.facts + new.excluded.facts}
            both["ended"] = func.coalesce(runs.c.ended, new.excluded.ended)
            known = {"index_elements": [*keys, "id"], "set_": both, "where": where}
            return new.on_conflict_do_update(**known).returning(runs.c.id)

        statement = append(run_id, text, now if ends else None, runs.c.ended.is_(None))
        if not continues:
            done = bool(self.store.execute(statement, durable=True))
        else:
            # The row has this retry's line after a commit that was not confirmed.
            line = _line(run_id)
            free = runs.c.facts.contains(line) | ~runs.c.facts.contains(line[:2])
            claim = append(continues, line, now, free)
            with self.store.writing(durable=True) as kept:
                assert kept.connection is not None
                done = all(kept.connection.execute(each).all() for each in (claim, statement))
        other = None if done else self._find(continues or run_id, owner)
        return "" if other is None else other.run_id


class RunFate:
    """The row of one run."""

    def __init__(self, fates: Fates, journal: RunJournal, owner: str) -> None:
        self._fates, self._journal, self._owner = fates, journal, owner
        # The run whose row has the calls that this one took over, until its own row has them.
        self._continues = journal.chain.stored if journal.chain.stored != journal.run_id else ""
        # The outcomes in the row, in the order of the calls' numbers; None before the first write.
        self._written: dict[JournalEntry, Outcome | None] = {}
        self._may_exist = False
        self._writing = anyio.Lock()

    async def sending(self, entry: JournalEntry) -> None:
        """Write that a call is sent next, if it may change something; raise if it must not be."""
        if entry.effect == "read" or len(self._written) > CALLS:
            return
        changing = (each for each in self._journal.entries() if each.effect != "read")
        new = [entry] if self._written else changing
        self._written |= dict.fromkeys(islice(new, CALLS + 1 - len(self._written)))
        other, call = "", f"{entry.server}.{entry.tool}"
        async with self._writing:
            # The statement of another call may have written it.
            if self._written.get(entry) is not None:
                return
            try:
                other = await self._write()
            except StoreError as error:
                self._may_exist |= error.is_unconfirmed
                if self._may_exist:
                    message = f"{call} is not made: the shared store cannot record it"
                    remedy = "Retry this run once the store answers."
                    raise AuditError(f"{message}: {error.strerror}.", remedy=remedy) from error
                logger.warning("a run has no row in the shared store: %s", error.strerror)
        if other:
            raise another_retry(call, other)

    async def end(self) -> None:
        unended = self._fates.unended
        if (self._written or self._continues) and len(unended) < CALLS:
            unended.add(self)
        with anyio.CancelScope(shield=True), suppress(StoreError):
            for fate in tuple(unended):
                await fate._write(ends=True)
                unended.discard(fate)

    async def _write(self, *, ends: bool = False) -> str:
        journal, text, new = self._journal, "", dict[JournalEntry, Outcome | None]()
        for number, (entry, written) in enumerate(self._written.items()):
            if entry.outcome != written:
                new[entry] = entry.outcome
                facts = {name: getattr(entry, name) for name in _FIELDS}
                text += _line([number, {**facts, "key": entry.key.hex()}])
        continues = self._continues if new else ""
        # A retry that sent nothing is found as the other run.
        text = text if self._written else _line(self._continues)
        write = partial(self._fates.write, ends=ends, continues=continues)
        other = await self._fates.store.run(write, journal.run_id, self._owner, text)
        if new and not other:
            self._may_exist, self._continues, journal.chain.stored = True, "", journal.run_id
            self._written |= new
        return other


def _line(value: Json) -> str:
    return "\n" + json.dumps(value, separators=(",", ":"))


def _journal(row: Any, facts: dict[int, dict[str, Any]]) -> RunJournal:
    calls = [JournalEntry(**{**each, "key": bytes.fromhex(each["key"])}) for each in facts.values()]
    quiet = math.inf if row.renewed is None else max(0.0, float(row.now) - row.renewed)
    status, text = "ended", f"bridge {row.bridge!r} has ended it"
    if row.ended is None and quiet <= ALIVE:
        status, text = (
            "running",
            f"bridge {row.bridge!r} was heard of {quiet:.0f} s ago, and has not ended it",
        )
    elif row.ended is None:
        status, text = "lost", f"the bridge {row.bridge!r} was not heard of for {quiet:,.0f} s"
        # The rows of bridges go when they end, or a day later.
        text = text if quiet < math.inf else f"the bridge {row.bridge!r} is gone"
    ends = [(each, _ENDS.get(each.outcome, "")) for each in calls]
    counts = Counter(f"{each.server}.{each.tool} {end}" for each, end in ends if end)
    sent = [f"{call} ({n:,} times)" if n > 1 else call for call, n in counts.items()]
    sent[10:] = ["and others"] if len(sent) > 10 else []
    if len(calls) > CALLS:
        status, sent = "long", [*sent, f"it sent more than the {CALLS:,} calls that are recorded"]
    text = "; ".join([text, *(sent or ["it sent no call that changes anything"])])
    for entry in calls:
        entry.fate = text
    record = {"run": row.id, "time": utc_text(row.began), "status": status, "fate": text}
    return RunJournal(row.id, calls=calls, record={**record, "calls": len(calls)})
