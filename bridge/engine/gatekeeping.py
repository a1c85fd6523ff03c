"""What watches over all runs' calls: made once for a bridge, and for each run what is its own.

Owns which parts a run's `Oversight` is put together from, and the policy file being read again
when it has changed. Decides nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from bridge.engine.client import OneRun
from bridge.engine.program import Facts
from bridge.engine.servers import Servers
from bridge.errors import AuditError, SettingsError, UpstreamError
from bridge.gate.approval import Approver, Grants
from bridge.gate.audit import AuditLog, RunAudit
from bridge.gate.budget import Rates, RunBudget
from bridge.gate.calls import Gate
from bridge.gate.flow import Flow
from bridge.gate.journal import Journals, Replay
from bridge.gate.oversight import Oversight
from bridge.gate.pins import Pins
from bridge.gate.plans import Holding, Plans
from bridge.gate.policy import Policy
from bridge.gate.privacy import Vault
from bridge.gate.redaction import Redactor
from bridge.model import Json, Receipt, RunRequest, RunResult, Tool
from bridge.render.receipt import bytes_kept_out, bytes_returned
from bridge.settings import Settings, reload_policy
from bridge.settings.policy import PolicySpec

logger = logging.getLogger(__name__)

BYTES_PER_TOKEN = 4
"""Of English and of JSON, about, for all the models whose tokenisers are public."""


class PolicyFile:
    """The policy as its file has it now."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._state: tuple[int, ...] | None = _state(settings.policy.path)
        self._policy = Policy(settings.policy)
        self._flow = Flow(settings.policy.flows)
        self._error: SettingsError | None = None

    def now(self) -> tuple[Policy, Flow]:
        """Return the policy, read again if its file has changed.

        Raises:
            SettingsError: The file does not parse; nothing runs until it does.
        """
        state = _state(self._settings.policy.path)
        if state != self._state:
            self._state = state
            try:
                spec: PolicySpec = reload_policy(self._settings)
            except SettingsError as error:
                self._error = error
            else:
                logger.info("the policy was read again")
                self._policy, self._flow = Policy(spec), Flow(spec.flows)
                self._error = None
        if self._error is not None:
            raise self._error
        return self._policy, self._flow


def _state(path: Path | None) -> tuple[int, ...] | None:
    if path is None:
        return None
    try:
        found = os.stat(path)  # noqa: PTH116 - a tenth of what it costs as a Path's method
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True, kw_only=True)
class Watch:
    """One run's oversight, and what is wanted of it when the run is over."""

    oversight: Oversight
    run: OneRun
    owner: str

    @asynccontextmanager
    async def recording(
        self, request: RunRequest, servers: Sequence[str]
    ) -> AsyncIterator[Callable[[RunResult], None]]:
        """Record the beginning of a program, and its end however that comes.

        Yields:
            What takes the result, if there is one.

        Raises:
            AuditError: The beginning cannot be recorded, so the program must not begin.
        """
        audit = self.oversight.audit
        await audit.began(
            {
                "principal": request.principal,
                "owner": request.owner,
                "mode": request.mode,
                "retryOf": request.retry_of,
                "code": code_digest(request.code),
                "servers": list(servers),
            }
        )
        results: list[RunResult] = []
        try:
            yield results.append
        finally:
            ending: dict[str, Json] = {"status": "lost"}
            for result in results:
                ending = {
                    "status": result.status,
                    "reason": result.reason,
                    "calls": result.usage.tool_calls,
                    "resultBytes": result.usage.tool_result_bytes,
                    "wallMs": result.usage.wall_ms,
                }
            with anyio.CancelScope(shield=True):
                await self._end(ending)

    async def _end(self, ending: Mapping[str, Json]) -> None:
        try:
            await self.oversight.audit.ended(ending)
        except AuditError as error:
            # All it did is recorded; only that it ended is not.
            logger.warning("the end of a run could not be recorded: %s", error)


class Gatekeeping:
    """The parts that outlive runs."""

    def __init__(self, settings: Settings, servers: Servers) -> None:
        state = settings.state_dir
        self._settings = settings
        self._servers = servers
        self._policy = PolicyFile(settings)
        self._pins = Pins(state / "pins.json")
        self._grants = Grants()
        self._rates = Rates()
        self._vaults: dict[str, Vault] = {}
        self.journals = Journals()
        self.plans = Plans()
        self.audit = AuditLog(
            None if settings.audit == "off" else state / "audit",
            sync=settings.audit == "sync",
            days=settings.audit_days,
        )
        self.redactor = Redactor()

    def policy(self) -> Policy:
        """Return the policy in force.

        Raises:
            SettingsError: Its file does not parse.
        """
        return self._policy.now()[0]

    def watch(self, run_id: str, request: RunRequest, run: OneRun) -> Watch:
        """Return what one run's calls go through.

        Raises:
            SettingsError: The policy does not parse.
            UnknownRunError: There is nothing to retry.
        """
        policy, flow = self._policy.now()
        replay = None
        if request.retry_of:
            replay = Replay(self.journals.find(request.retry_of, request.owner), request.reads)
        oversight = Oversight(
            define=self.define,
            lists=lambda server: self._servers.known.tools(server) is not None,
            policy=policy,
            flow=flow,
            budget=RunBudget(policy.spec.budgets, self._rates),
            pins=self._pins,
            approver=Approver(
                run.elicit,
                grants=self._grants,
                owner=request.owner,
                mask=self.redactor.arguments,
            ),
            audit=RunAudit(self.audit, run_id),
            journal=self.journals.begin(run_id, request.owner),
            vault=self._vault(request.owner, policy),
            replay=replay,
            holding=Holding() if request.mode == "plan" else None,
        )
        return Watch(oversight=oversight, run=run, owner=request.owner)

    def concluded(self, result: RunResult, facts: Facts, watch: Watch) -> RunResult:
        """Return the result of a program with the plan that it made, if it was to make one."""
        holding = watch.oversight.holding
        if holding is None:
            return result
        plan = self.plans.keep(holding, watch.owner, run_id=result.run_id, stopped="")
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

    def _vault(self, owner: str, policy: Policy) -> Vault:
        if not policy.spec.privacy.detect:
            return Vault()
        return self._vaults.setdefault(owner, Vault(policy.spec.privacy))


def code_digest(code: str) -> str:
    """Return what a program is recorded by."""
    return f"sha256:{hashlib.sha256(code.encode('utf-8', 'surrogatepass')).hexdigest()}"


def accounted(result: RunResult, gate: Gate, watch: Watch) -> RunResult:
    """Return a result with what became of the run's calls."""
    tally = gate.tally
    return replace(
        result,
        replayed=tally.replayed,
        refused=tally.refused,
        unknown=tally.unknown,
        receipt=receipt_of(result, gate, watch),
    )


def receipt_of(result: RunResult, gate: Gate, watch: Watch) -> Receipt:
    """Return what a run did, and what of it stays out of the conversation."""
    tally, waiting = gate.tally, watch.run.clock.stood * 1000
    calls_ms = max(0.0, tally.busy_seconds * 1000)
    holding = watch.oversight.holding
    return Receipt(
        calls=dict(tally.made),
        replayed=sum(found.count for found in tally.replayed),
        held=0 if holding is None else holding.count,
        refused=sum(found.count for found in tally.refused),
        unknown=sum(found.count for found in tally.unknown),
        result_bytes=gate.result_bytes,
        returned_bytes=bytes_returned(result),
        tokens_kept=bytes_kept_out(result) // BYTES_PER_TOKEN,
        code_ms=max(0, round(result.usage.wall_ms - calls_ms - waiting)),
        calls_ms=round(calls_ms),
        waiting_ms=round(waiting),
        audit=watch.oversight.audit.head,
    )
