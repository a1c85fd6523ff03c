"""Stores plans, each of which its owner can apply once.

A plan is in memory, or in the store that several bridges share. A plan with tokens for personal
data stays with the bridge that knows them. Taking a plan removes it in the same transaction.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import anyio

from bridge.errors import BridgeError, UnknownError
from bridge.gate.held_calls import HeldCalls, HeldRequest
from bridge.model import Plan, owner_digest
from bridge.store import Store, Transaction, adapter
from bridge.text import counted

logger = logging.getLogger(__name__)

PLAN_SECONDS = 30 * 60.0
"""Seconds until a plan expires: time to read it, while its reads are likely still true."""

# Limits on callers over HTTP. The oldest plans are dropped.
MAX_PLANS = 50
MAX_OWN_CHARACTERS = 32 * 1024 * 1024  # Of one owner: plans, and characters of their arguments.
MAX_ALL_PLANS = 500
MAX_ALL_CHARACTERS = 128 * 1024 * 1024  # Of all owners.


@dataclass(frozen=True, kw_only=True, eq=False)
class StoredPlan:
    """A plan that expires at `until`: by the process's clock, or Unix time in a shared store."""

    plan: Plan
    owner: str
    run_id: str
    requests: tuple[HeldRequest, ...]
    characters: int
    until: float

    @property
    def plan_id(self) -> str:
        return self.plan.plan_id

    @property
    def servers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(request.call.server for request in self.requests))


class Plans:
    """The plans that can be applied. They are in memory unless bridges share the store."""

    def __init__(self, store: Store, now: Callable[[], float] = time.monotonic) -> None:
        self._store = store if store.shared else None
        self._now = now
        self._kept: OrderedDict[str, StoredPlan] = OrderedDict()
        self._gone: OrderedDict[str, tuple[str, str]] = OrderedDict()

    async def keep(
        self,
        held_calls: HeldCalls,
        owner: str,
        *,
        run_id: str,
        stopped: str = "",  # Why the program stopped, if it read the result of a held call.
        failed: bool = False,
        here: bool = False,  # Whether only this bridge can apply the plan.
    ) -> Plan:
        """Store the held calls of a run. A plan without an id cannot be applied."""
        calls, stale = held_calls.shown(), held_calls.stale
        stopped = held_calls.spoiled or stopped
        if failed or held_calls.spoiled or not calls:
            return Plan(plan_id="", seconds=0, calls=calls, stopped=stopped, stale=stale)
        store = None if here else self._store
        plan_id, seconds = secrets.token_hex(16), PLAN_SECONDS
        made = StoredPlan(
            plan=Plan(plan_id=plan_id, seconds=seconds, calls=calls, stopped=stopped, stale=stale),
            owner=owner,
            run_id=run_id,
            requests=tuple(held_calls.requests),
            characters=held_calls.characters,
            until=self._now() + seconds,
        )
        if store is None:
            self._drop_expired()
            self._add(made)
            return made.plan
        try:
            await store.run(_put, store, made)
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            return _withdrawn(made.plan, f"it could not be kept ({why})")
        return made.plan

    async def take(self, plan_id: str, owner: str, *, run_id: str) -> StoredPlan:
        used = f"the run {run_id} took it at {now_text()}, and a plan is used once"
        store = self._store_of(plan_id, owner)
        if store is None:
            self._drop_expired()
            kept = self._kept.get(plan_id)
            if kept is None or kept.owner != owner:
                # An owner must not learn of another owner's plans.
                whose, why = self._gone.get(plan_id, ("", ""))
                raise _unknown(plan_id, why if whose == owner else "")
            self._end(plan_id, owner, used)
            return kept
        try:
            return await store.run(_take, store, plan_id, owner, used)
        except OSError as error:
            raise BridgeError(
                f"Plans cannot be looked up: {error.strerror}.", code="store_unavailable"
            ) from error

    def knows(self, plan_id: str, owner: str) -> bool:
        """Return whether the owner has or had a plan with this id at this bridge."""
        kept, gone = self._kept.get(plan_id), self._gone.get(plan_id)
        return owner in (kept and kept.owner, gone and gone[0])

    def _store_of(self, plan_id: str, owner: str) -> Store | None:
        """Return the store that may have a plan, or None for a plan in memory."""
        return None if self.knows(plan_id, owner) else self._store

    async def withdraw(self, plan: Plan, owner: str, why: str) -> Plan:
        await self.close(plan.plan_id, owner, why)
        return _withdrawn(plan, why)

    async def give_back(self, kept: StoredPlan) -> None:
        if store := self._store_of(kept.plan_id, kept.owner):
            await _settle(store, _put, kept, kept.until)
        else:
            self._gone.pop(kept.plan_id, None)
            self._add(kept)

    async def close(self, plan_id: str, owner: str, why: str) -> None:
        if store := self._store_of(plan_id, owner):
            await _settle(store, _close_stored, plan_id, owner, why)
        else:
            self._end(plan_id, owner, why)

    def _end(self, plan_id: str, owner: str, why: str) -> None:
        self._kept.pop(plan_id, None)
        self._gone[plan_id] = (owner, why)
        self._gone.move_to_end(plan_id)
        if len(self._gone) > 1_000:
            self._gone.popitem(last=False)

    def _drop_expired(self) -> None:
        for kept in [kept for kept in self._kept.values() if kept.until <= self._now()]:
            self._end(kept.plan_id, kept.owner, _EXPIRED)

    def _add(self, made: StoredPlan) -> None:
        self._kept[made.plan_id] = made
        everyones = list(self._kept.values())
        own = [kept for kept in everyones if kept.owner == made.owner]
        for plans, count, characters in (
            (own, MAX_PLANS, MAX_OWN_CHARACTERS),
            (everyones, MAX_ALL_PLANS, MAX_ALL_CHARACTERS),
        ):
            plans = [kept for kept in plans if kept.plan_id in self._kept]
            while len(plans) > count or sum(kept.characters for kept in plans) > characters:
                oldest = plans.pop(0)
                self._end(oldest.plan_id, oldest.owner, "newer plans took its place; plan again")


async def _settle(store: Store, write: Callable[..., None], *given: object) -> None:
    # Even if the applying run was cancelled.
    with anyio.CancelScope(shield=True):
        try:
            await store.run(write, store, *given)
        except OSError as error:
            logger.warning("the end of a plan cannot be stored: %s", error)


def _withdrawn(plan: Plan, why: str) -> Plan:
    return replace(plan, plan_id="", seconds=0, stopped=why)


def _unknown(plan_id: str, why: str = "") -> UnknownError:
    if why:
        return UnknownError(f"The plan {plan_id} cannot be applied: {why}.", code="unknown_plan")
    remedy = (
        "A plan is valid for its caller, for 30 minutes, or until its bridge ends. Ask the user "
        "for `mcp-code-bridge audit show PLAN`, which lists its calls, and plan again."
    )
    return UnknownError(
        f"There is no plan {plan_id!r:.80} for this caller.", remedy=remedy, code="unknown_plan"
    )


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


_EXPIRED = "it expired 30 minutes after it was made; plan again"
_ID = re.compile("[0-9a-f]{32}")
_KIND = "plan"
_ENDS = "plan-end"


def _put(store: Store, made: StoredPlan, until: float | None = None) -> None:
    # pydantic cannot write lone surrogates, and writes infinity as null.
    facts = adapter(StoredPlan).dump_python(made, exclude={"owner", "until"})
    data, whose = json.dumps(facts, default=sorted).encode("ascii"), owner_digest(made.owner)
    with store.writing(durable=True) as kept:
        kept.delete(_ENDS, whose, made.plan_id)
        updated = None if until is None else until - PLAN_SECONDS
        kept.put(_KIND, whose, made.plan_id, data, updated=updated)
        gone = kept.prune(_KIND, owner=whose, most=MAX_PLANS, most_bytes=MAX_OWN_CHARACTERS)
        old = kept.now() - PLAN_SECONDS
        gone += kept.prune(_KIND, most=MAX_ALL_PLANS, most_bytes=MAX_ALL_CHARACTERS, oldest=old)
    if gone:
        logger.warning("removed %s: expired, or beyond the limits", counted(gone, "plan"))


def _take(store: Store, plan_id: str, owner: str, used: str) -> StoredPlan:
    if not _ID.fullmatch(plan_id):
        raise _unknown(plan_id)
    whose = owner_digest(owner)
    with store.writing(durable=True) as kept:
        until = {one.name: one.updated + PLAN_SECONDS for one in kept.listed(_KIND, whose)}
        data = kept.get(_KIND, whose, plan_id)
        if data is None:
            raise _unknown(plan_id, (kept.get(_ENDS, whose, plan_id) or b"").decode())
        if until[plan_id] < kept.now():
            raise _unknown(plan_id, _EXPIRED)
        try:
            facts = {**json.loads(data), "owner": owner, "until": until[plan_id]}
            found: StoredPlan = adapter(StoredPlan).validate_python(facts)
        except (ValueError, TypeError, RecursionError):
            raise _unknown(plan_id, "another version of the bridge made it; plan again") from None
        _end(kept, plan_id, owner, used)
    return found


def _close_stored(store: Store, plan_id: str, owner: str, why: str) -> None:
    with store.writing(durable=True) as kept:
        _end(kept, plan_id, owner, why)


def _end(kept: Transaction, plan_id: str, owner: str, why: str) -> None:
    whose = owner_digest(owner)
    kept.delete(_KIND, whose, plan_id)
    kept.put(_ENDS, whose, plan_id, why.encode("utf-8", "replace"))
    kept.prune(_ENDS, most=1_000)
