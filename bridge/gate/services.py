"""Builds the gate's parts: those that outlive runs, and the `GateContext` of each run.

Owns the policy's file, which is read again when it changes, and the budgets of runs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import time
from collections import Counter, defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from bridge.errors import RefusedError, SettingsError, UnknownError, UpstreamError, UsageError
from bridge.event_loop import Clock, background_tasks
from bridge.gate.approval import Approver, Grants
from bridge.gate.audit.log import AuditLog, RunAudit
from bridge.gate.fates import Fates, RunFate
from bridge.gate.held_calls import HeldCalls
from bridge.gate.journal import Journals, Replay, RunJournal, digest
from bridge.gate.pins import Pins
from bridge.gate.policy import Flow, FlowState, Policy
from bridge.gate.privacy import MAX_OWNERS, NOT_SHOWN, Marks, Replaced, Vault, Vaults, clear_value
from bridge.gate.redaction import Redactor
from bridge.gate.server_questions import ServerQuestions
from bridge.gate.server_starts import StartApprover, Starts
from bridge.model import ApplyRequest, Json, RunRequest, RunResult, Tool
from bridge.settings import Settings, reload_policy, store_of
from bridge.settings.policy import Budgets, PolicySpec, matcher
from bridge.text import without_values

logger = logging.getLogger(__name__)


class Caller(Protocol):
    """The client of a run, as the gate needs it; see `bridge.callers.client.RunCaller`."""

    identified: bool
    asker: StartApprover | None
    server_questions: ServerQuestions
    redact_for_person: Callable[[str, Json], Json]
    redact_for_client: Callable[[str, Json], Json]

    @property
    def clock(self) -> Clock: ...

    async def elicit(self, params: Mapping[str, Json]) -> Mapping[str, Json]: ...


class Inventory(Protocol):
    """The known servers; see `bridge.inventory.servers.Servers`."""

    def definition(self, server: str) -> str: ...

    def is_own(self, server: str) -> bool: ...

    def is_current(self, server: str) -> bool: ...

    async def define(self, server: str, tool: str) -> Tool | None: ...

    async def define_now(self, asked: set[str], server: str, tool: str) -> Tool | None: ...


Call = Callable[[], Awaitable[dict[str, Json]]]


async def no_definition(server: str, tool: str) -> Tool | None:
    return None


class OngoingCalls:
    """Calls that continue when the program stops waiting; use `open` around all of them.

    A server sees the cancellations of its calls. After a program has read what a flow rule keeps
    from the server, it could use them as messages. So the call runs to its end or its time limit.
    """

    def __init__(self) -> None:
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Run calls while this is open. Leaving cancels the remaining calls."""
        async with background_tasks() as self._tasks:
            yield

    async def finish(self, call: Call, may_cancel: Callable[[], bool]) -> dict[str, Json]:
        """Return a call's result. A cancelled wait cancels the call if `may_cancel`."""
        if self._tasks is None:
            return await call()
        answer: asyncio.Future[dict[str, Json]] = asyncio.get_running_loop().create_future()
        # The audit log has the errors that no program waits for.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        scope = anyio.CancelScope()

        async def make() -> None:
            try:
                with scope:
                    answer.set_result(await call())
            except Exception as error:
                answer.set_exception(error)
            finally:
                # Has no effect unless other code cancelled the call.
                answer.cancel()

        self._tasks.start_soon(make)
        try:
            await asyncio.wait([answer])
        except anyio.get_cancelled_exc_class():
            if may_cancel():
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await asyncio.wait([answer])
            raise
        return answer.result()


WINDOW = 60  # Seconds of a minute.


class Rates:
    """Calls per minute and server, over all runs of a bridge.

    Calls without a limit count too, so that a new limit applies to them.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)

    def take(self, server: str, limit: int | None) -> float:
        """Count a call to a server, or return the seconds until there is room for one."""
        recent, now = self._recent[server], self._now()
        while recent and recent[0] + WINDOW <= now:
            recent.popleft()
        if limit is not None and len(recent) >= limit:
            return recent[-limit] + WINDOW - now
        recent.append(now)
        return 0.0


class RunBudget:
    """The rest of one run's budgets. `bytes` counts what servers returned."""

    def __init__(self, budgets: Budgets | None = None, rates: Rates | None = None) -> None:
        self._budgets = budgets or Budgets()
        self._rates = rates or Rates()
        self._made: Counter[str] = Counter()
        self.bytes = 0

    def spend(self, server: str) -> None:
        """Count the next call. A refused call does not count."""
        uses = {
            "run_calls": (self._made.total(), "made all of the {most:,} calls"),
            "server_calls": (self._made[server], "made all of the {most:,} calls to {server!r}"),
            "run_bytes": (self.bytes, "been returned {used:,} bytes, of the {most:,}"),
        }
        for budget, (used, what) in uses.items():
            most = getattr(self._budgets, budget)
            if most is not None and used >= most:
                spent = what.format(most=most, server=server, used=used)
                message = f"This run has {spent} it may (budgets.{budget} of the policy)."
                remedy = "Use the results so far, or continue in another run."
                raise RefusedError(message, remedy=remedy, code="call_budget")
        rates = (rate for rate in self._budgets.per_minute if matcher(rate[0])(server))
        glob, limit = next(rates, ("", None))
        if wait := self._rates.take(server, limit):
            raise RefusedError(
                f"All runs together have made the {limit:,} calls a minute that {server!r} may "
                f"have (budgets.per_minute {glob!r}). There is room again in {math.ceil(wait)} s.",
                code="call_budget",
            )
        self._made[server] += 1


@dataclass(frozen=True, kw_only=True)
class GateContext:
    """The parts that judge and record the calls of one run."""

    # Returns the definition of a server's tool, from the server if needed.
    define: Callable[[str, str], Awaitable[Tool | None]] = no_definition
    identify: Callable[[str], str] = lambda server: ""  # The digest of a server's definition.
    is_own: Callable[[str], bool] = lambda server: False  # The user's file defines the server.
    lists: Callable[[str], bool] = lambda server: False  # The list of its tools is known.
    now: Callable[[], float] = time.monotonic  # Seconds, which stop during questions.
    policy: Policy = field(default_factory=Policy)
    flow: Flow = field(default_factory=Flow)
    flow_state: FlowState = field(default_factory=FlowState)  # In a session of all its runs.
    budget: RunBudget = field(default_factory=RunBudget)
    pins: Pins = field(default_factory=Pins)
    approver: Approver = field(default_factory=Approver)
    audit: RunAudit = field(default_factory=RunAudit)
    journal: RunJournal = field(default_factory=RunJournal)
    fate: RunFate | None = None  # None unless bridges share the store.
    marks: Marks = field(default_factory=Marks)
    vault: Vault = field(default_factory=Vault)
    ongoing_calls: OngoingCalls = field(default_factory=OngoingCalls)
    replay: Replay | None = None
    held_calls: HeldCalls | None = None

    async def send(self, call: Call, server: str, labels: frozenset[str]) -> dict[str, Json]:
        """Make a call. A cancellation reaches it unless a flow rule would stop it now."""
        if not self.flow.judges(server, labels):
            return await call()
        return await self.ongoing_calls.finish(
            call, lambda: self.flow.decide(self.flow_state, server, labels) is None
        )


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """A run's caller and owner, and the `GateContext` that judges and records its calls."""

    caller: Caller
    owner: str
    context: GateContext

    def in_session(self, flow: FlowState) -> RunContext:
        """Return the context for a session, whose earlier labels apply."""
        # A retry keeps the labels of the run before it.
        flow.absorb(self.context.journal.flow)
        self.context.journal.flow = flow
        return replace(self, context=replace(self.context, flow_state=flow))

    @asynccontextmanager
    async def recording(
        self,
        request: RunRequest | ApplyRequest,
        servers: Sequence[str],
        more: Mapping[str, Json] | None = None,
    ) -> AsyncIterator[Callable[[RunResult], None]]:
        """Record the start of a program or plan, with `more` facts, and its end.

        Yields a function that takes the result. Raises `AuditError` if it cannot record the start:
        the program must not start.
        """
        audit = self.context.audit
        facts: dict[str, Json] = {
            "principal": request.principal,
            "owner": request.owner,
            "clientSays": request.client,
            "servers": list(servers),
            **(more or {}),
        }
        if isinstance(request, ApplyRequest):
            await audit.record_start({**facts, "plan": request.plan_id}, "apply")
        else:
            facts["code"] = digest(request.code.encode("utf-8", "surrogatepass"))
            facts |= {"mode": request.mode, "retryOf": request.retry_of, "profile": request.profile}
            await audit.record_start(facts)
        async with audit.until_end() as end:
            with self.context.journal.recording():
                questions = self.caller.server_questions
                try:
                    yield lambda result: end(
                        {**_end_facts(result), "questionsRefused": questions.refused or None}
                    )
                finally:
                    if self.context.fate is not None:
                        await self.context.fate.end()


class PolicyFile:
    """The policy of a file, which is read again when the file changes.

    `changed` receives the audit record of a change. `digest` is that of the active policy.
    """

    def __init__(self, settings: Settings, changed: Callable[[Mapping[str, Json]], None]) -> None:
        self._settings = settings
        self._changed = changed
        # Read at the first run, since the file may have changed.
        self._state: tuple[int, ...] | None = None
        self._policy = Policy(settings.policy)
        self._error: SettingsError | None = None
        self.digest = policy_digest(settings.policy)

    def now(self) -> Policy:
        """Return the policy. Raise `SettingsError` while the file is invalid."""
        state = _state(self._settings.policy.path)
        if state != self._state:
            self._state = state
            try:
                self._reload(state)
                self._error = None
            except SettingsError as error:
                logger.warning("the policy cannot be read: %s", error)
                # Models read this error, so it has no host paths.
                message, remedy = without_values(error.message), without_values(error.remedy)
                self._error = SettingsError(message, remedy=remedy)
        if self._error is not None:
            raise self._error
        return self._policy

    def _reload(self, state: tuple[int, ...] | None) -> None:
        """Activate the file's policy and report a change."""
        # Some editors empty or remove the file while they save.
        if self._policy.spec.present and not (state and state[1] > 0):
            message = f"{self._settings.policy.path} held a policy, and now is empty or gone."
            remedy = "Restore it. To continue without a policy, remove [policy] or restart."
            raise SettingsError(message, remedy=remedy)
        spec = reload_policy(self._settings)
        if spec == self._policy.spec:
            return
        logger.info("the policy was read again")
        self._policy = Policy(spec)
        was, self.digest = self.digest, policy_digest(spec)
        self._changed({"kind": "policy", "policy": self.digest, "was": was})


def policy_digest(spec: PolicySpec) -> str:
    if not spec.present:
        return ""
    # Positions do not change the meaning.
    rules = tuple(replace(rule, place="") for rule in spec.rules)
    meant = asdict(replace(spec, path=None, rules=rules))
    return digest(json.dumps(meant, default=sorted, sort_keys=True).encode("ascii"))


def _state(path: Path | None) -> tuple[int, ...] | None:
    """Return a value that changes with the file; empty if unreadable, None without a file."""
    if path is None:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116 - ten times as fast as Path.stat
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


class GateServices:
    """The parts of the gate that outlive runs."""

    def __init__(
        self,
        settings: Settings,
        inventory: Inventory,
        redactor: Redactor,
        current_asker: Callable[[], StartApprover | None],  # For servers that the run starts.
        is_plan: Callable[[str, str], bool],  # Takes an id and its owner.
        audit: AuditLog,
        process: str = "",  # The name of this process in a shared store.
    ) -> None:
        self._inventory = inventory
        self._is_plan = is_plan
        self.redactor = redactor
        self.audit = audit
        self._policy = PolicyFile(settings, self.audit.later)
        self._pins = Pins(store_of(settings))
        self.policy = self._policy.now
        self.starts = Starts(self.policy, self.audit, self._pins, current_asker)
        self._grants = Grants()
        self._rates = Rates()
        self._vaults = Vaults()
        self._replaced: Callable[[str], Replaced] = lru_cache(MAX_OWNERS)(lambda owner: {})
        self._mask = partial(redactor.arguments, marks=True)
        self.fates = Fates(store_of(settings), settings.replica, process)
        self.journals = Journals()
        self.ongoing_calls = OngoingCalls()

    def audit_of(self, run_id: str, owner: str, policy: str = "") -> RunAudit:
        return RunAudit(self.audit, run_id, mask=self._mask, policy=policy, owner=owner)

    async def begin(
        self,
        run_id: str,
        request: RunRequest | ApplyRequest,
        caller: Caller,
        *,
        planned_by: str = "",
    ) -> RunContext:
        """Build the context of a run, which may apply the plan of the run `planned_by`."""
        policy = self.policy()
        self._grants.keep_to(policy.spec)
        self._pins.fully = policy.pins_fully
        replay, owner = await self._replay(run_id, request), request.owner
        earlier = await self._plans_calls(run_id, planned_by, owner) if planned_by else replay
        journal = self.journals.begin(run_id, owner, earlier, planned_by=planned_by)
        audit, privacy = self.audit_of(run_id, owner, self._policy.digest), policy.spec.privacy
        self._redact_for(caller, partial(self._vaults.of, owner, privacy))
        caller.asker = StartApprover(run=run_id, ask=caller.elicit, for_all=bool(request.principal))
        caller.server_questions = ServerQuestions(policy.spec, audit, run_id)
        inventory = self._inventory
        define = partial(inventory.define_now, set()) if policy.spec.present else inventory.define
        plans = isinstance(request, RunRequest) and request.mode == "plan"
        alone = isinstance(request, RunRequest) and request.ends_bridge
        approver = Approver(
            caller.elicit,
            grants=self._grants,
            owner="" if alone else owner,
            mask=self.redactor.arguments,
            # Callers without a name cannot change the policy.
            policy=policy.spec if request.principal else None,
        )
        context = GateContext(
            define=define,
            identify=inventory.definition,
            is_own=inventory.is_own,
            lists=inventory.is_current,
            now=caller.clock.now,
            policy=policy,
            flow=policy.flow,
            budget=RunBudget(policy.spec.budgets, self._rates),
            pins=self._pins,
            approver=approver,
            audit=audit,
            journal=journal,
            fate=RunFate(self.fates, journal, owner) if self.fates.are_shared else None,
            flow_state=journal.flow,
            marks=Marks(self.redactor, self._replaced(owner)),
            vault=self._vaults.of(owner, privacy),
            ongoing_calls=self.ongoing_calls,
            replay=replay,
            held_calls=HeldCalls(self._mask) if plans else None,
        )
        return RunContext(caller=caller, owner=owner, context=context)

    async def _plans_calls(self, run_id: str, planned_by: str, owner: str) -> Replay | None:
        """Return the calls of the run that made a plan: a retry of either run knows them."""
        try:
            earlier = Replay(await self._journal(planned_by, owner), run_id=run_id)
            earlier.claim_retry("the plan")
        except UsageError as error:
            # The plan can be applied, but not retried.
            logger.info("the journal of a plan stands alone: %s", error.message)
            return None
        return earlier

    async def _journal(self, run_id: str, owner: str) -> RunJournal:
        """Return a run's journal, or what a row of another bridge says of it."""
        try:
            return self.journals.find(run_id, owner)
        except UnknownError:
            fate = await self.fates.find(run_id, owner)
            if fate is None:
                raise
        if self.journals.knows(fate.run_id, owner):
            return self.journals.find(fate.run_id, owner)
        fate.check()
        return fate

    async def _replay(self, run_id: str, request: RunRequest | ApplyRequest) -> Replay | None:
        if not isinstance(request, RunRequest) or not request.retry_of:
            return None
        if self._is_plan(request.retry_of, request.owner):
            message = f"{request.retry_of} is a plan's id, and `retry_of` takes a run's."
            remedy = "To make the plan's calls, give the id alone, as `apply`."
            raise UnknownError(message, remedy=remedy, code="unknown_run")
        journal = await self._journal(request.retry_of, request.owner)
        return Replay(journal, request.reads, run_id=run_id, mask=self._mask)

    def _redact_for(self, caller: Caller, vault: Callable[[], Vault]) -> None:
        """Set the redaction of servers' texts for the run's client. A person sees personal data."""
        redactor = self.redactor

        def without_secrets_or_personal_data(server: str, value: Json) -> Json:
            try:
                return clear_value(vault().hide(server, value), redactor)
            except UpstreamError:
                # Too large to search.
                return NOT_SHOWN

        caller.redact_for_person = lambda server, value: clear_value(value, redactor)
        caller.redact_for_client = without_secrets_or_personal_data


def _end_facts(result: RunResult) -> dict[str, Json]:
    plan = result.plan
    return {
        "status": result.status,
        "reason": result.reason,
        "calls": result.usage.tool_calls,
        "resultBytes": result.usage.tool_result_bytes,
        "wallMs": result.usage.wall_ms,
        "plan": plan and plan.plan_id,
        "held": plan and len(plan.calls),
    }
