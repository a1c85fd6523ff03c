"""What watches over all runs' calls: made once for a bridge, and for each run what is its own.

Owns which parts a run's `GateContext` is put together from, when the policy's file is read again,
and what holds while it cannot be: nothing runs. Decides nothing.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from bridge.callers.client import RunCaller
from bridge.errors import AuditError, SettingsError, UnknownRunError, UpstreamError
from bridge.gate.approval import Approver, Grants
from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.budget import Rates, RunBudget
from bridge.gate.canonical import digest
from bridge.gate.context import GateContext
from bridge.gate.flow import Flow, FlowState
from bridge.gate.journal import Journals, Replay
from bridge.gate.pins import Pins
from bridge.gate.pipeline import Gate
from bridge.gate.plans import Holding, Plans
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault, Vaults
from bridge.gate.result_redaction import NOT_SHOWN, clear_value
from bridge.gate.server_questions import ServerQuestions
from bridge.gate.server_starts import Asker, Starts
from bridge.guest.protocol.wire import Done
from bridge.model import ApplyRequest, Json, Receipt, RunRequest, RunResult, Tool
from bridge.offload import offload
from bridge.render.plan import plan_summary
from bridge.render.receipt import bytes_returned
from bridge.servers.servers import Servers
from bridge.settings import Settings, reload_policy, store_of
from bridge.settings.policy import PolicySpec
from bridge.text import without_values
from bridge.upstream.asking import current_caller

logger = logging.getLogger(__name__)

HELD_RESULT_ERROR = "HeldResultError"
"""What a guest stops a program with that looks at the result of a held call."""

MAX_STOPPED = 2_000
"""Characters of what it says of that; the words are the guest's."""

BYTES_PER_TOKEN = 4
"""Of English and of JSON, about, for all the models whose tokenisers are public."""


@dataclass(frozen=True, kw_only=True)
class Watch:
    """One run's oversight, and what is wanted of it when the run is over."""

    oversight: GateContext
    run: RunCaller
    owner: str

    def in_session(self, flow: FlowState) -> Watch:
        """Return it for a run of a session, for which counts what its earlier runs have read."""
        journal = self.oversight.journal
        # A retry brings along what the run before it read.
        flow.absorb(journal.flow)
        journal.flow = flow
        return replace(self, oversight=replace(self.oversight, flow_state=flow))

    @asynccontextmanager
    async def recording(
        self,
        request: RunRequest | ApplyRequest,
        servers: Sequence[str],
        more: Mapping[str, Json] | None = None,
    ) -> AsyncIterator[Callable[[RunResult], None]]:
        """Record the beginning of a program, or of a plan, and its end however that comes.

        Args:
            more: To be recorded with the beginning.

        Yields:
            What takes the result, if there is one.

        Raises:
            AuditError: The beginning cannot be recorded, so the program must not begin.
        """
        audit = self.oversight.audit
        facts: dict[str, Json] = {
            "principal": request.principal,
            "owner": request.owner,
            "clientSays": request.client,
            "servers": list(servers),
            **(more or {}),
        }
        if isinstance(request, ApplyRequest):
            await audit.began({**facts, "plan": request.plan_id}, "apply")
        else:
            facts |= {"mode": request.mode, "retryOf": request.retry_of}
            await audit.began({**facts, "code": code_digest(request.code)})
        async with audit.until_end() as end:
            with self.oversight.journal.recording():
                yield lambda result: end(
                    {**_ending(result), "questionsRefused": self.run.asking.refused or None}
                )


def log_of(settings: Settings) -> AuditLog:
    """Return the audit log as it is set."""
    return AuditLog(
        None if settings.audit == "off" else settings.state_dir / "audit",
        sync=settings.audit == "sync",
        days=settings.audit_days,
        quota=settings.audit_bytes,
    )


class PolicyFile:
    """The policy as its file has it now.

    Args:
        changed: Takes the audit log's record of a change.

    Attributes:
        digest: What the audit log knows it by.
    """

    def __init__(self, settings: Settings, changed: Callable[[Mapping[str, Json]], None]) -> None:
        self._settings = settings
        self._changed = changed
        # Read once more at the first run: it may have changed since the settings were read.
        self._state: tuple[int, ...] | None = None
        self._policy = Policy(settings.policy)
        self._flow = Flow(settings.policy.flows)
        self._error: SettingsError | None = None
        self.digest = policy_digest(settings.policy)

    def now(self) -> tuple[Policy, Flow]:
        """Return the policy, read again if its file has changed.

        Raises:
            SettingsError: The file does not parse; nothing runs until it does.
        """
        state = _state(self._settings.policy.path)
        if state != self._state:
            self._state = state
            try:
                self._insist_on_file(state)
                self._take(reload_policy(self._settings))
                self._error = None
            except SettingsError as error:
                logger.warning("the policy cannot be read: %s", error)
                # Models read this one.
                message, remedy = without_values(error.message), without_values(error.remedy)
                self._error = SettingsError(message, remedy=remedy)
        if self._error is not None:
            raise self._error
        return self._policy, self._flow

    def _insist_on_file(self, state: tuple[int, ...] | None) -> None:
        """Accept no file that is gone or empty, as editors leave one for a moment, as no policy."""
        if not self._policy.spec.present or (state and state[1] > 0):
            return
        message = f"{self._settings.policy.path} held a policy, and now is empty or gone."
        remedy = "Restore it; to go on without a policy, leave its [policy] out or start again."
        raise SettingsError(message, remedy=remedy)

    def _take(self, spec: PolicySpec) -> None:
        if spec == self._policy.spec:
            return
        logger.info("the policy was read again")
        self._policy, self._flow = Policy(spec), Flow(spec.flows)
        was, self.digest = self.digest, policy_digest(spec)
        self._changed({"kind": "policy", "policy": self.digest, "was": was})


def policy_digest(spec: PolicySpec) -> str:
    """Return what changes when a policy means something else; empty if there is none."""
    if not spec.present:
        return ""
    # Where the file and its rules stand is no part of what they mean.
    rules = tuple(replace(rule, place="") for rule in spec.rules)
    meant = asdict(replace(spec, path=None, rules=rules))
    return digest(json.dumps(meant, default=sorted, sort_keys=True).encode("ascii"))


def _state(path: Path | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116 - a tenth of what it costs as a Path's method
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


class GateServices:
    """The parts that outlive runs."""

    def __init__(self, settings: Settings, servers: Servers) -> None:
        self._settings = settings
        self._servers = servers
        self.audit = log_of(settings)
        self._policy = PolicyFile(settings, self.audit.later)
        self._pins = Pins(store_of(settings))
        self.starts = Starts(self.policy, self.audit, self._pins, _current_asker)
        servers.pool.admission = self.starts
        self._grants = Grants()
        self._rates = Rates()
        self._vaults = Vaults()
        self.journals = Journals()
        self.plans = Plans()
        self.redactor = servers.secrets.redactor

    def audit_of(self, run_id: str) -> RunAudit:
        """Return the records of something that no policy decides on, as of a command."""
        return RunAudit(self.audit, run_id, mask=self.redactor.arguments)

    def policy(self) -> Policy:
        """Return the policy in force.

        Raises:
            SettingsError: Its file does not parse.
        """
        return self._policy.now()[0]

    def watch(
        self,
        run_id: str,
        request: RunRequest | ApplyRequest,
        run: RunCaller,
        *,
        planned_by: str = "",
    ) -> Watch:
        """Return what one run's calls go through.

        Args:
            planned_by: The run that made the plan which this one applies.

        Raises:
            SettingsError: The policy does not parse.
            UnknownRunError: There is nothing to retry.
        """
        policy, flow = self._policy.now()
        self._grants.keep_to(policy.spec)
        replay = self._replay(run_id, request)
        vault = self._vaults.of(request.owner, policy.spec.privacy)
        self._watch_over(run, vault)
        run.asker = Asker(run=run_id, ask=run.elicit, lasting=bool(request.principal))
        if planned_by:
            journal = self.journals.begin_plan(run_id, request.owner, planned_by)
        else:
            journal = self.journals.begin(run_id, request.owner, replay)
        audit = RunAudit(
            self.audit, run_id, mask=self.redactor.arguments, policy=self._policy.digest
        )
        run.asking = ServerQuestions(policy.spec, audit, run_id)
        alone = isinstance(request, RunRequest) and request.ends_bridge
        oversight = GateContext(
            define=partial(self.define_now, set()) if policy.spec.present else self.define,
            identify=self._servers.definition,
            lists=self._servers.is_current,
            now=run.clock.now,
            policy=policy,
            flow=flow,
            budget=RunBudget(policy.spec.budgets, self._rates),
            pins=self._pins,
            approver=Approver(
                run.elicit,
                grants=self._grants,
                owner="" if alone else request.owner,
                mask=self.redactor.arguments,
                # Whoever cannot be told from others has no say in what holds for all.
                policy=policy.spec if request.principal else None,
            ),
            audit=audit,
            journal=journal,
            flow_state=journal.flow,
            vault=vault,
            replay=replay,
            holding=Holding(self.redactor.arguments) if _plans(request) else None,
        )
        return Watch(oversight=oversight, run=run, owner=request.owner)

    def _replay(self, run_id: str, request: RunRequest | ApplyRequest) -> Replay | None:
        if not isinstance(request, RunRequest) or not request.retry_of:
            return None
        if self.plans.knows(request.retry_of, request.owner):
            message = f"{request.retry_of} is a plan's id, and `retry_of` takes a run's."
            remedy = "To make the plan's calls, give the id alone, as `apply`."
            raise UnknownRunError(message, remedy=remedy)
        return Replay(
            self.journals.find(request.retry_of, request.owner),
            request.reads,
            run_id=run_id,
            mask=self.redactor.arguments,
        )

    async def concluded(self, result: RunResult, done: Done | None, watch: Watch) -> RunResult:
        """Return the result of a program with the plan that it made, if it was to make one."""
        holding = watch.oversight.holding
        if holding is None:
            return result
        if result.status == "error" and done is not None and done.error_type == HELD_RESULT_ERROR:
            # It stopped where a plan does: what it would do after that depends on the results.
            result = replace(result, status="success", reason=None, exit_code=None, error="")
            stopped = done.error.rpartition(f"{HELD_RESULT_ERROR}: ")[2].strip()[:MAX_STOPPED]
        else:
            stopped = ""
        result, stopped = _readable(result, stopped, holding)
        # Here it is done beside the event loop; what keeps the plan takes it from there.
        await offload([request.call.arguments for request in holding.requests], holding.shown)
        failed = result.status != "success"
        plan = self.plans.keep(
            holding, watch.owner, run_id=result.run_id, stopped=stopped, failed=failed
        )
        plan = replace(plan, askable=watch.run.identified)
        if plan.plan_id:
            known = {
                "plan": plan.plan_id,
                "owner": watch.owner,
                "calls": len(plan.calls),
                "seconds": plan.seconds,
            }
            try:
                await watch.oversight.audit.event("plan", known)
            except AuditError as error:
                plan = self.plans.withdraw(plan, error.message)
        if not failed:
            result = replace(result, summary=plan_summary(plan))
        return replace(result, plan=plan)

    async def define(self, server: str, tool: str) -> Tool | None:
        """Return a tool as its server describes it, asking the server if it never was asked."""
        known = self._servers.known
        if known.tools(server) is None:
            try:
                await self._servers.load([server])
            except UpstreamError as error:
                # The call itself will say what is the matter.
                logger.debug("the tools of %s are not known: %s", server, error)
        return known.tool(server, tool)

    async def define_now(self, looked: set[str], server: str, tool: str) -> Tool | None:
        """Return a tool as its server describes it now, for a policy that decides by that.

        Args:
            looked: Servers that were asked once more in this run.

        Raises:
            UpstreamError: The server cannot be reached, so that no call could be made.
        """
        try:
            await self._servers.keep_current(server)
        except UpstreamError as error:
            if self._servers.pool.moment(server) is None:
                raise
            # It lists nothing, but may take calls; what it said before is not believed any more.
            logger.debug("the tools of %s are not known: %s", server, error)
            return None
        found = self._servers.known.tool(server, tool)
        if found is None and server not in looked:
            # A call of what is not listed is denied, and some do not say that they list more.
            looked.add(server)
            await self._servers.look_again([server])
            found = self._servers.known.tool(server, tool)
        return found

    def _watch_over(self, run: RunCaller, vault: Vault) -> None:
        """Have what servers say to a run's client cleared; who is asked sees personal data."""
        redactor = self.redactor

        def secretless(server: str, value: Json) -> Json:
            return clear_value(value, redactor)

        def tell(server: str, value: Json) -> Json:
            try:
                return clear_value(vault.hidden(server, value), redactor)
            except UpstreamError:
                # Too large to be searched for personal data.
                return NOT_SHOWN

        run.secretless, run.tell = secretless, tell


def _current_asker() -> Asker | None:
    caller = current_caller()
    return caller.asker if isinstance(caller, RunCaller) else None


def _readable(result: RunResult, stopped: str, holding: Holding) -> tuple[RunResult, str]:
    """Return what the program wrote, and why it stopped, with results of held calls by name."""
    shown = holding.labelled
    result = replace(
        result,
        summary=shown(result.summary),
        stdout=shown(result.stdout),
        stderr=shown(result.stderr),
        result=shown(result.result),
        result_repr=shown(result.result_repr),
        error=shown(result.error),
        shown=tuple(replace(item, text=shown(item.text)) for item in result.shown),
    )
    return result, shown(stopped)


def _plans(request: RunRequest | ApplyRequest) -> bool:
    return isinstance(request, RunRequest) and request.mode == "plan"


def _ending(result: RunResult) -> dict[str, Json]:
    """Return what is recorded of a run's end."""
    ending: dict[str, Json] = {
        "status": result.status,
        "reason": result.reason,
        "calls": result.usage.tool_calls,
        "resultBytes": result.usage.tool_result_bytes,
        "wallMs": result.usage.wall_ms,
    }
    if result.plan is not None:
        ending |= {"plan": result.plan.plan_id, "held": len(result.plan.calls)}
    return ending


def code_digest(code: str) -> str:
    """Return what a program is recorded by."""
    return digest(code.encode("utf-8", "surrogatepass"))


def accounted(result: RunResult, gate: Gate, watch: Watch) -> RunResult:
    """Return a result with what became of the run's calls."""
    tally = gate.tally
    return replace(
        result,
        replayed=tally.replayed,
        unused=() if watch.oversight.replay is None else watch.oversight.replay.unused(),
        refused=tally.refused,
        unknown=tally.unknown,
        receipt=receipt_of(result, gate, watch),
    )


def receipt_of(result: RunResult, gate: Gate, watch: Watch) -> Receipt:
    """Return what a run did, and what of it stays out of the conversation."""
    tally, waiting = gate.tally, watch.run.clock.stood * 1000
    calls_ms = max(0.0, tally.busy_seconds * 1000)
    holding = watch.oversight.holding
    # Once only: the run's value is written as JSON to be counted.
    returned = bytes_returned(result)
    return Receipt(
        calls=dict(tally.made),
        changing=tally.changing,
        replayed=sum(found.count for found in tally.replayed),
        held=0 if holding is None else holding.count,
        refused=sum(found.count for found in tally.refused),
        unknown=sum(found.count for found in tally.unknown),
        result_bytes=gate.result_bytes,
        returned_bytes=returned,
        tokens_kept=max(0, result.usage.tool_result_bytes - returned) // BYTES_PER_TOKEN,
        code_ms=max(0, round(result.usage.wall_ms - calls_ms - waiting)),
        calls_ms=round(calls_ms),
        waiting_ms=round(waiting),
        audit=watch.oversight.audit.head,
    )
