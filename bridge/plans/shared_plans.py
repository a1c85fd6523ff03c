"""Plans where several bridges apply them: in the store that they share, else in memory.

A plan with tokens in place of personal data stays with the bridge that knows what these stand for.
Whoever takes a plan removes it in the same transaction, so that it is used once, by one bridge.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from bridge.errors import StoreUnavailableError, UnknownPlanError
from bridge.gate.decision import CallFacts, Decision
from bridge.gate.flow import FlowState
from bridge.gate.held_calls import HeldCalls, HeldRequest
from bridge.model import Effect, Plan
from bridge.plans.plan_store import (
    MAX_ALL_CHARACTERS,
    MAX_ALL_PLANS,
    MAX_OWN_CHARACTERS,
    MAX_PLANS,
    MAX_REMEMBERED,
    PLAN_SECONDS,
    PlanStore,
    StoredPlan,
    now_in_words,
)
from bridge.store import Store, owner_digest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

logger = logging.getLogger(__name__)

_ID = re.compile("[0-9a-f]{32}")
_KIND = "plan"
_ENDS = "plan-end"

_REMEDY = (
    "Plans are for their makers, for 30 minutes. Run the program in plan mode again, after "
    "asking the user what `mcp-code-bridge audit show PLAN` says was done of this one."
)


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
        # By id, while they are applied.
        self._taken: dict[str, tuple[bytes, float]] = {}

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
        """Keep the calls that a run held back; see `PlanStore.keep`.

        Args:
            here: Whether only this bridge can apply them.
        """
        plan = self.local.keep(held_calls, owner, run_id=run_id, stopped=stopped, failed=failed)
        if self._store is None or here or not plan.plan_id:
            return plan
        made = self.local.take_out(plan.plan_id)
        try:
            await anyio.to_thread.run_sync(partial(_put, self._store, owner, made))
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
        if self._store is None or self.local.knows(plan_id, owner):
            return self.local.take(plan_id, owner, run_id=run_id)
        if not _ID.fullmatch(plan_id):
            raise _unknown(plan_id)
        end = f"the run {run_id} took it at {now_in_words()}, and a plan is used once"
        try:
            take = partial(_take, self._store, owner, plan_id, end)
            found, self._taken[plan_id] = await anyio.to_thread.run_sync(take)
        except OSError as error:
            raise StoreUnavailableError(f"Plans cannot be looked up: {error.strerror}.") from error
        return found

    async def withdraw(self, plan: Plan, owner: str, why: str) -> Plan:
        """Drop a plan, and return it as one that cannot be applied."""
        if self._store is not None and not self.local.knows(plan.plan_id, owner):
            with suppress(UnknownPlanError, StoreUnavailableError):
                await self.take(plan.plan_id, owner, run_id="")
                del self._taken[plan.plan_id]
        return self.local.withdraw(plan, why)

    async def give_back(self, kept: StoredPlan) -> None:
        """Keep a plan again that was taken but not begun."""
        taken = self._taken.pop(kept.plan_id, None)
        if taken is None:
            self.local.give_back(kept)
        else:
            await self._end(kept.owner, kept.plan_id, "", taken)

    async def close(self, kept: StoredPlan, why: str) -> None:
        """Remember the end of a plan."""
        if self._taken.pop(kept.plan_id, None) is None:
            self.local.close(kept, why)
        else:
            await self._end(kept.owner, kept.plan_id, why)

    async def _end(
        self, owner: str, plan_id: str, why: str, back: tuple[bytes, float] | None = None
    ) -> None:
        if self._store is None:
            return
        # Also where the run that applied it was cancelled.
        with anyio.CancelScope(shield=True):
            try:
                end = partial(_end, self._store, owner_digest(owner), plan_id, why, back)
                await anyio.to_thread.run_sync(end)
            except OSError as error:
                logger.warning("how the plan %s ended cannot be kept: %s", plan_id, error)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """A `HeldRequest` of values alone."""

    number: int
    call: CallFacts
    decision: Decision
    effect: Effect
    asked: frozenset[str]
    digest: str
    uses: frozenset[int]
    flow: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class _Document:
    """A plan as it is stored."""

    plan: Plan
    run_id: str
    requests: tuple[_Request, ...]
    characters: int


@cache
def _adapter() -> TypeAdapter[_Document]:
    from pydantic import TypeAdapter

    return TypeAdapter(_Document)


def _put(store: Store, owner: str, made: StoredPlan) -> None:
    requests = (_Request(**{**vars(one), "flow": one.flow.document()}) for one in made.requests)
    document = _Document(
        plan=made.plan, run_id=made.run_id, requests=tuple(requests), characters=made.characters
    )
    # Not written by pydantic, which has no text for half a surrogate pair, and null for infinity.
    data = json.dumps(_adapter().dump_python(document), default=sorted).encode("ascii")
    with store.writing(durable=True) as kept:
        kept.put(_KIND, owner_digest(owner), made.plan_id, data)
        size = 0
        for number, each in enumerate(kept.listed(_KIND, owner_digest(owner)), start=1):
            size += each.size
            if number > MAX_PLANS or (size > MAX_OWN_CHARACTERS and number > 1):
                kept.delete(_KIND, each.owner, each.name)
        oldest = time.time() - PLAN_SECONDS
        kept.prune(_KIND, most=MAX_ALL_PLANS, most_bytes=MAX_ALL_CHARACTERS, oldest=oldest)


def _take(
    store: Store, owner: str, plan_id: str, end: str
) -> tuple[StoredPlan, tuple[bytes, float]]:
    """Return a plan, which nobody can take any more, and its document with when it was made.

    Raises:
        UnknownPlanError: It cannot be taken; says why. Nothing has changed.
    """
    whose = owner_digest(owner)
    with store.writing(durable=True) as kept:
        made = {each.name: each.updated for each in kept.listed(_KIND, whose)}.get(plan_id)
        data = kept.get(_KIND, whose, plan_id)
        if data is None or made is None:
            raise _unknown(plan_id, (kept.get(_ENDS, whose, plan_id) or b"").decode())
        if made < time.time() - PLAN_SECONDS:
            raise _unknown(plan_id, "it expired 30 minutes after it was made; plan again")
        try:
            found = _read(data, owner)
        except (ValueError, RecursionError):
            raise _unknown(plan_id, "another version of the bridge made it; plan again") from None
        kept.delete(_KIND, whose, plan_id)
        kept.put(_ENDS, whose, plan_id, end.encode())
        kept.prune(_ENDS, most=MAX_REMEMBERED)
    return found, (data, made)


def _unknown(plan_id: str, why: str = "") -> UnknownPlanError:
    if why:
        return UnknownPlanError(f"The plan {plan_id} cannot be applied: {why}.")
    return UnknownPlanError(f"There is no plan {plan_id!r:.80} for this caller.", remedy=_REMEDY)


def _end(
    store: Store, owner: str, plan_id: str, why: str, back: tuple[bytes, float] | None
) -> None:
    with store.writing(durable=True) as kept:
        kept.delete(_ENDS, owner, plan_id)
        if why:
            kept.put(_ENDS, owner, plan_id, why.encode("utf-8", "replace"))
        if back:
            kept.put(_KIND, owner, plan_id, back[0], updated=back[1])


def _read(data: bytes, owner: str) -> StoredPlan:
    document = _adapter().validate_python(json.loads(data))
    requests = (
        HeldRequest(**{**vars(one), "flow": FlowState.of(one.flow)}) for one in document.requests
    )
    given = {**vars(document), "requests": tuple(requests), "owner": owner, "until": 0.0}
    return StoredPlan(**given)
