"""`servers approve`: servers shown exactly as they are defined, and approved.

A project's, so that they are used, and the user's own where the policy asks before they start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import anyio.to_thread

from bridge.cli.output import visible, write_err
from bridge.cli.person import Person
from bridge.discovery.consents import ConsentError
from bridge.discovery.find import ProposedServer
from bridge.engine.consenting import consents_of
from bridge.engine.gatekeeping import log_of
from bridge.engine.proposed import called, described
from bridge.engine.servers import context_for
from bridge.errors import UnknownServerError, UsageError
from bridge.gate.audit import AuditLog
from bridge.gate.decision import REDEFINED
from bridge.gate.pins import Pins
from bridge.gate.policy import Policy
from bridge.gate.question import because, server_lines
from bridge.gate.starts import Starts
from bridge.model import ServerSpec
from bridge.settings import Settings, store_of
from bridge.text import counted

LEAST_DIGITS = 32
"""Of a digest: with fewer a program could make two definitions that begin alike, and show one."""


async def approve(arguments: SimpleNamespace, settings: Settings) -> int:
    """Approve of servers that somebody has seen; see `approve_of`."""
    return await approve_of(arguments.names or (), settings, Person(sys.stdin, sys.stderr))


async def approve_of(names: Sequence[str], settings: Settings, person: Person) -> int:
    """Have servers of the working directory's files used, or any started; 1 if one is not to be.

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
        own = None if _names(wanted, found.proposed) else _own(wanted, found.servers)
        if own is not None:
            refused |= not await approve_start(own, wanted, settings, person)
            continue
        proposal, agreed = _meant(wanted, found.proposed)
        starts = _starts(settings)
        before = starts.decide(proposal.spec)
        if before.rule == REDEFINED:
            person.say(
                f"About the server, the policy knows: {before.reason}. If you approve, the "
                f"policy's lines for {proposal.name} apply to this definition.\n"
            )
        if not agreed and not person.attended:
            message = f"Which definition of {proposal.name} may be used? The file may have changed."
            remedy = f"Look at it, and name it: `servers approve {_with_digest(proposal)}`."
            person.say(_shown(proposal))
            raise UsageError(message, remedy=remedy)
        if not agreed:
            person.say(_shown(proposal))
            lines = counted(proposal.spec.written.count("\n") + 1, "line")
            agreed = await person.agrees(f"May {proposal.name} be used as shown above ({lines})?")
        if not agreed:
            write_err(visible(f"{proposal.name} was not approved.", keep="") + "\n")
            refused = True
            continue
        # A person has just said so of exactly this one, whatever the name was before.
        await _approve(proposal.spec, settings)
        try:
            await anyio.to_thread.run_sync(consents.allow, proposal.definition)
        except ConsentError as error:
            raise UsageError(f"It cannot be approved: {error}.") from None
        told = f"{proposal.name} may be used here as long as its definition stays as it is."
        write_err(visible(told, keep="") + "\n")
    return 1 if refused else 0


async def approve_start(spec: ServerSpec, wanted: str, settings: Settings, person: Person) -> bool:
    """Have one of the user's servers started as it is defined now; return whether it may be.

    Raises:
        UsageError: The policy denies it, it is not the one that was seen, nobody can be asked, or
            the answer cannot be kept.
    """
    starts = _starts(settings)
    decision = starts.decide(spec)
    if decision.action == "deny":
        message = f"{spec.name} is not started: the policy denies it ({because(decision)})."
        raise UsageError(message, remedy="Change that in config.toml.")
    if decision.action == "allow":
        approved = spec.source.scope == "project"
        told = "is approved already" if approved else "needs no approval"
        write_err(visible(f"{spec.name} {told}.", keep="") + "\n")
        return True
    lines = "".join(f"  {line}\n" for line in (*server_lines(spec), because(decision)))
    shown = f"{spec.name}, which is started without a sandbox.\n{lines}"
    digits = spec.definition.removeprefix("sha256:")
    named = wanted not in called(spec.name)
    if named and (len(_digits(wanted)) < LEAST_DIGITS or not digits.startswith(_digits(wanted))):
        message = f"{wanted}: that is not the definition of {spec.name}."
        remedy = f"It takes {LEAST_DIGITS} digits at least; `servers --json` has it."
        raise UsageError(message, remedy=remedy)
    if not named:
        person.say(shown)
        if not person.attended:
            message = f"May {spec.name} be started as it is defined? The file may have changed."
            remedy = f"Name what you saw: `servers approve {spec.name}@{digits[:LEAST_DIGITS]}`."
            raise UsageError(message, remedy=remedy)
        if not await person.agrees(f"May {spec.name} be started as shown above?"):
            write_err(visible(f"{spec.name} was not approved.", keep="") + "\n")
            return False
    await _approve(spec, settings)
    # Anew, as another bridge reads it.
    if _starts(settings).decide(spec).action != "allow":
        message = f"That {spec.name} may be started cannot be kept."
        raise UsageError(
            message, remedy=f"See to {settings.store or settings.state_dir / 'store.db'}."
        )
    told = f"{spec.name} may be started as long as its definition stays as it is."
    write_err(visible(told, keep="") + "\n")
    return True


async def _approve(spec: ServerSpec, settings: Settings) -> None:
    """Record what a person said, and have a server start as it is defined."""
    audit = log_of(settings)
    try:
        await _starts(settings, audit).approve(spec, "terminal")
    finally:
        audit.close()


def _starts(settings: Settings, audit: AuditLog | None = None) -> Starts:
    pins = Pins(store_of(settings))
    return Starts(lambda: Policy(settings.policy), audit or AuditLog(), pins)


def _names(wanted: str, proposed: Sequence[ProposedServer]) -> bool:
    """Tell whether a word means one of those that wait."""
    words = (wanted, wanted.rpartition("@")[0])
    return any(word in called(each.name) for each in proposed for word in words if word)


def _own(wanted: str, servers: Sequence[ServerSpec]) -> ServerSpec | None:
    for word in (wanted, wanted.rpartition("@")[0]):
        for spec in servers:
            if word in called(spec.name):
                return spec
    return None


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
        raise UsageError(f"{wanted}: a digest takes {LEAST_DIGITS} digits at least.")
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
