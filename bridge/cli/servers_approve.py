"""`servers approve`: a project's servers, shown exactly as they are defined, and approved."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from bridge.cli.output import visible, write_err
from bridge.cli.person import Person
from bridge.discovery.consents import ConsentError
from bridge.discovery.find import ProposedServer
from bridge.engine.consenting import consents_of
from bridge.engine.proposed import called, described
from bridge.engine.servers import context_for
from bridge.errors import UnknownServerError, UsageError
from bridge.settings import Settings
from bridge.text import counted

LEAST_DIGITS = 32
"""Of a digest: with fewer a program could make two definitions that begin alike, and show one."""


async def approve_of(names: Sequence[str], settings: Settings, person: Person) -> int:
    """Have servers of the working directory's files used; 1 if one is not to be.

    Args:
        names: NAME, which is shown and asked about, or NAME@DIGEST as `servers --json` has it.

    Raises:
        UsageError: None of that name waits for approval, it is not the one that was seen, or nobody
            can be asked.
    """
    if not names:
        message = "Which server is to be approved?"
        raise UsageError(message, remedy="`mcp-code-bridge servers` lists those that wait.")
    consents = consents_of(settings)
    refused = False
    for wanted in names:
        context = context_for(settings, str(Path.cwd()), sys.platform)
        found = await anyio.to_thread.run_sync(consents.discover, context)
        for warning in found.warnings:
            if warning.unread or not warning.key:
                write_err(visible(f"warning: {warning}", keep="") + "\n")
        proposal, agreed = _meant(wanted, found.proposed)
        if not agreed and not person.attended:
            message = f"Which definition of {proposal.name} may be used? The file may have changed."
            remedy = f"Look at it, and name it: `servers approve {_with_digest(proposal)}`."
            person.say(_shown(proposal))
            raise UsageError(message, remedy=remedy)
        if not agreed:
            person.say(_shown(proposal))
            lines = counted(proposal.spec.written.count("\n") + 1, "line")
            answer = await person.ask(
                f"May {proposal.name} be used, as defined here in {lines}? yes or no: "
            )
            agreed = (answer or "").strip().lower() in ("y", "yes")
        if not agreed:
            write_err(visible(f"{proposal.name} was not approved.", keep="") + "\n")
            refused = True
            continue
        try:
            await anyio.to_thread.run_sync(consents.allow, proposal.definition)
        except ConsentError as error:
            message = f"It cannot be approved: {error}."
            raise UsageError(message) from None
        told = f"{proposal.name} may be used here as long as its definition stays as it is."
        write_err(visible(told, keep="") + "\n")
    return 1 if refused else 0


def _meant(wanted: str, proposed: Sequence[ProposedServer]) -> tuple[ProposedServer, bool]:
    """Return the definition that somebody means, and whether they said so by its digest."""
    # A name may hold an "@" itself.
    whole = [each for each in proposed if wanted in called(each.name)]
    if whole:
        return whole[0], False
    name, at, _ = wanted.rpartition("@")
    named = [each for each in proposed if at and name in called(each.name)]
    digits = _digits(wanted)
    if named and len(digits) < LEAST_DIGITS:
        message = f"{wanted}: a digest takes {LEAST_DIGITS} digits at least."
        raise UsageError(message)
    for each in named:
        if each.definition.digest.removeprefix("sha256:").startswith(digits):
            return each, True
    if named:
        message = f"The definition of {named[0].name} is not that which was shown."
        remedy = f"Look at it: `mcp-code-bridge servers approve {named[0].name}` shows it."
        raise UsageError(message, remedy=remedy)
    waiting = ", ".join(dict.fromkeys(each.name for each in proposed)) or "none"
    message = f"No server {wanted!r:.200} of this directory waits for approval. Waiting: {waiting}."
    raise UnknownServerError(message, remedy="`mcp-code-bridge servers` says what there is.")


def _digits(wanted: str) -> str:
    return wanted.rpartition("@")[2].lower().removeprefix("sha256:")


def _with_digest(proposal: ProposedServer) -> str:
    return f"{proposal.name}@{proposal.definition.digest.removeprefix('sha256:')[:LEAST_DIGITS]}"


def _shown(proposal: ProposedServer) -> str:
    """Return everything that a person approves; the definition is JSON with nothing hidden."""
    head = "".join(f"  {line}\n" for line in described(proposal))
    return (
        f"{proposal.name}, a server that a file in this directory defines. It is started without "
        f"a sandbox.\n{head}  The definition, exactly as it is written there:\n"
        f"{proposal.spec.written}\n"
    )
