"""Plans where several bridges apply them: in the store that they share, else in memory.

A plan with tokens in place of personal data stays with the bridge that knows what these stand for.
Whoever takes a plan removes it in the same transaction, so that it is used once, by one bridge.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from bridge.errors import StoreUnavailableError
from bridge.gate.held_calls import HeldCalls
from bridge.model import Plan
from bridge.plans.plan_store import (
    MAX_ALL_CHARACTERS,
    MAX_ALL_PLANS,
    MAX_OWN_CHARACTERS,
    MAX_PLANS,
    PLAN_SECONDS,
    PlanStore,
    StoredPlan,
    now_in_words,
    unknown,
)
from bridge.store import Store, Transaction, owner_digest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

logger = logging.getLogger(__name__)

_ID = re.compile("[0-9a-f]{32}")
_KIND = "plan"
_ENDS = "plan-end"


class Plans:
    """Plans that can be applied, each once, by the caller that made it.

    Args:
        store: Where they are if several bridges share it; see `Store.shared`.

    Attributes:
        local: Those of this bridge alone.
    """

    def __init__(self, store: Store) -> None:
        self.local = PlanStore()
        self._store = store if store.shared else None

    async def keep(
        self,
        held_calls: HeldCalls,
        owner: str,
        *,
        run_id: str,
        stopped: str = "",
        failed: bool = False,
        here: bool = False,
    ) -> Plan:
        """Keep the calls that a run held back; if `here`, only this bridge can apply them."""
        plan = self.local.keep(held_calls, owner, run_id=run_id, stopped=stopped, failed=failed)
        if self._store is None or here or not plan.plan_id:
            return plan
        made = replace(self.local.take_out(plan.plan_id), until=time.time() + PLAN_SECONDS)
        try:
            await anyio.to_thread.run_sync(_put, self._store, made)
        except (OSError, ValueError, RecursionError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            return self.local.withdraw(plan, f"it could not be kept ({why})")
        return plan

    async def take(self, plan_id: str, owner: str, *, run_id: str) -> StoredPlan:
        """Return a plan to be applied; it cannot be taken again, by no bridge.

        Raises:
            UnknownPlanError: It was used, has expired, or is not this owner's.
            StoreUnavailableError: The store cannot be asked. The plan is as it was.
        """
        store = self._shared(plan_id, owner)
        if store is None:
            return self.local.take(plan_id, owner, run_id=run_id)
        try:
            return await anyio.to_thread.run_sync(_take, store, plan_id, owner, run_id)
        except OSError as error:
            raise StoreUnavailableError(f"Plans cannot be looked up: {error.strerror}.") from error

    async def withdraw(self, plan: Plan, owner: str, why: str) -> Plan:
        """Drop a plan, and return it as one that cannot be applied."""
        if store := self._shared(plan.plan_id, owner):
            await self._settle(partial(_closed, store, plan.plan_id, owner, why))
        return self.local.withdraw(plan, why)

    async def give_back(self, kept: StoredPlan) -> None:
        """Keep a plan again that was taken but not begun."""
        if store := self._shared(kept.plan_id, kept.owner):
            await self._settle(partial(_put, store, kept))
        else:
            self.local.give_back(kept)

    async def close(self, kept: StoredPlan, why: str) -> None:
        if store := self._shared(kept.plan_id, kept.owner):
            await self._settle(partial(_closed, store, kept.plan_id, kept.owner, why))
        else:
            self.local.close(kept, why)

    def _shared(self, plan_id: str, owner: str) -> Store | None:
        """Return the store for a plan that is not of this bridge alone."""
        return None if self.local.knows(plan_id, owner) else self._store

    async def _settle(self, write: Callable[[], None]) -> None:
        # Also where the run that applied it was cancelled.
        with anyio.CancelScope(shield=True):
            try:
                await anyio.to_thread.run_sync(write)
            except OSError as error:
                logger.warning("how a plan ended cannot be kept: %s", error)


@cache
def _adapter() -> TypeAdapter[StoredPlan]:
    from pydantic import TypeAdapter

    return TypeAdapter(StoredPlan)


def _put(store: Store, made: StoredPlan) -> None:
    # Not written by pydantic, which has no text for half a surrogate pair, and null for infinity.
    facts = _adapter().dump_python(made, exclude={"owner", "until"})
    data, whose = json.dumps(facts, default=sorted).encode("ascii"), owner_digest(made.owner)
    with store.writing(durable=True) as kept:
        kept.delete(_ENDS, whose, made.plan_id)
        kept.put(_KIND, whose, made.plan_id, data, updated=made.until - PLAN_SECONDS)
        kept.prune(_KIND, owner=whose, most=MAX_PLANS, most_bytes=MAX_OWN_CHARACTERS)
        oldest = time.time() - PLAN_SECONDS
        kept.prune(_KIND, most=MAX_ALL_PLANS, most_bytes=MAX_ALL_CHARACTERS, oldest=oldest)


def _take(store: Store, plan_id: str, owner: str, run_id: str) -> StoredPlan:
    """Return a plan, which nobody can take any more."""
    if not _ID.fullmatch(plan_id):
        raise unknown(plan_id)
    whose = owner_digest(owner)
    with store.writing(durable=True) as kept:
        until = {one.name: one.updated + PLAN_SECONDS for one in kept.listed(_KIND, whose)}
        data = kept.get(_KIND, whose, plan_id)
        if data is None:
            raise unknown(plan_id, (kept.get(_ENDS, whose, plan_id) or b"").decode())
        if until[plan_id] < time.time():
            raise unknown(plan_id, "it expired 30 minutes after it was made; plan again")
        try:
            facts = {**json.loads(data), "owner": owner, "until": until[plan_id]}
            found = _adapter().validate_python(facts)
        except (ValueError, TypeError, RecursionError):
            raise unknown(plan_id, "another version of the bridge made it; plan again") from None
        why = f"the run {run_id} took it at {now_in_words()}, and a plan is used once"
        _end(kept, plan_id, owner, why)
    return found


def _closed(store: Store, plan_id: str, owner: str, why: str) -> None:
    with store.writing(durable=True) as kept:
        _end(kept, plan_id, owner, why)


def _end(kept: Transaction, plan_id: str, owner: str, why: str) -> None:
    whose = owner_digest(owner)
    kept.delete(_KIND, whose, plan_id)
    kept.put(_ENDS, whose, plan_id, why.encode("utf-8", "replace"))
    kept.prune(_ENDS, most=1_000)
