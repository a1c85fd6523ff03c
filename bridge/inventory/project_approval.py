"""Asks the user to approve a project's server when a run names it."""

from __future__ import annotations

from collections.abc import Iterable

import anyio.to_thread

from bridge.callers.client import RunCaller
from bridge.discovery.documents import MalformedError
from bridge.discovery.report import ProposedServer
from bridge.errors import ApprovalRefusedError, CannotAskError
from bridge.gate.audit.log import AuditLog
from bridge.gate.question import read_answer, safe_name
from bridge.gate.server_starts import Starts, approved_record
from bridge.inventory.configuration import approval_needed, approval_question
from bridge.inventory.servers import Servers


class ProjectApproval:
    """Asks the user to approve a project's servers, one question at a time."""

    def __init__(self, servers: Servers, audit: AuditLog, starts: Starts) -> None:
        self._servers = servers
        self._audit = audit
        self._starts = starts
        self._asking = anyio.Lock()

    async def ensure_approved(self, names: Iterable[str], run: RunCaller) -> bool:
        """Ensure that the servers of a run are approved, by asking the user if needed.

        Return whether a server was approved, so that the configuration may have new servers. Raise
        `RefusedError` if one is not, and `AuditError` if an approval could not be recorded.
        """
        approved = False
        for name in dict.fromkeys(names):
            if not self._servers.proposals(name):
                continue
            async with self._asking:
                # Another run's question may have been answered meanwhile.
                await self._servers.refresh()
                for proposal in self._servers.proposals(name)[:1]:
                    await self._ask(proposal, run)
                approved = True
        return approved

    async def _ask(self, proposal: ProposedServer, run: RunCaller) -> None:
        asked, consents = approval_question(proposal), self._servers.consents
        why = "" if run.identified else "the owner of this run is unknown"
        if consents is None:
            why = "this bridge stores no approvals"
        elif asked is None:
            why = "its definition is too long for a question"
        if consents is None or asked is None or why:
            raise approval_needed(proposal, f" No user can be asked: {why}.")
        try:
            answer = await run.elicit(asked)
        except CannotAskError as error:
            raise approval_needed(proposal, f" {error.why}") from None
        decision = read_answer(answer, ("session", "always"), "session")
        if decision not in ("session", "always"):
            what = "declined" if decision else "gave no answer"
            message = (
                f"The server {safe_name(proposal.name)} of this project was not started: "
                f"the client was asked and {what}."
            )
            raise ApprovalRefusedError(message, remedy="Do without it.")
        # The run has not begun and has no id yet, so the records name none.
        if decision == "always":
            # Approves this definition's start as well, so that the policy does not ask again.
            await self._starts.approve(proposal.spec, "client")
        else:
            await self._audit.append(approved_record(proposal.spec, "client", decision))
        consents.allow_for_now(proposal.definition)
        if decision == "always":
            try:
                await anyio.to_thread.run_sync(consents.allow, proposal.definition)
            except MalformedError as error:
                # It counts for this bridge only, so the next one asks again.
                await run.report_preparation(f"The approval is not saved: {error}")
        await self._servers.refresh()
