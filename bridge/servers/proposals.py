"""Asking about a project's servers that nobody has approved, when a run names one.

Owns whom an answer is taken from and for how long it holds. What may be used is decided by
discovery, from what was approved.
"""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import anyio.to_thread

from bridge.callers.client import RunCaller
from bridge.discovery.consents import ConsentError
from bridge.discovery.report import ProposedServer
from bridge.errors import ApprovalRefusedError, CannotAskError
from bridge.gate.audit import AuditLog
from bridge.gate.question import read_answer, safe_name
from bridge.gate.server_starts import Starts, approved_record
from bridge.servers.proposed import question, unapproved
from bridge.servers.servers import Servers


class Proposals:
    """Asks about them; one question at a time."""

    def __init__(self, servers: Servers, audit: AuditLog, starts: Starts) -> None:
        self._servers = servers
        self._audit = audit
        self._starts = starts
        self._turn = anyio.Lock()

    async def settle(self, names: Iterable[str], run: RunCaller) -> bool:
        """See that what a run names is approved, asking a person if need be.

        Args:
            names: Names or aliases, also of what is no server at all.

        Returns:
            Whether there are now servers that were not there before.

        Raises:
            RefusedError: One is not approved.
            AuditError: That one is cannot be recorded; it is not used.
        """
        settled = False
        for name in dict.fromkeys(names):
            if not self._servers.proposals(name):
                continue
            async with self._turn:
                # Somebody else may have been asked meanwhile.
                await self._servers.refresh()
                for proposal in self._servers.proposals(name)[:1]:
                    await self._ask(proposal, run)
                settled = True
        return settled

    async def _ask(self, proposal: ProposedServer, run: RunCaller) -> None:
        asked, consents = question(proposal), self._servers.consents
        try:
            if consents is None:
                raise CannotAskError("Nobody can be asked: this bridge keeps no approvals.")
            if not run.identified:
                raise CannotAskError("Nobody can be asked: nobody knows whose run this is.")
            if asked is None:
                message = "Nobody can be asked: its definition is too long for a question."
                raise CannotAskError(message)
            answer = await run.elicit(asked)
        except CannotAskError as error:
            raise unapproved(proposal, f" {error.why}") from None
        decision = read_answer(answer, ("session", "always"), "session")
        if decision not in ("session", "always"):
            what = "declined" if decision else "gave no answer"
            message = (
                f"The server {safe_name(proposal.name)} of this project was not started: "
                f"the client, which was asked, {what}."
            )
            raise ApprovalRefusedError(message, remedy="Do without it.")
        # Before the run begins, so that it has no id yet.
        if decision == "always":
            # Of exactly this one, so that the policy has nothing left to ask about its start.
            await self._starts.approve(proposal.spec, "client")
        else:
            await self._audit.append(approved_record(proposal.spec, "client", decision))
        consents.allow_for_now(proposal.definition)
        if decision == "always":
            try:
                await anyio.to_thread.run_sync(consents.allow, proposal.definition)
            except ConsentError as error:
                # It holds for this bridge, and is asked about again by the next.
                await run.say(f"The approval is not kept: {error}")
        await self._servers.refresh()
