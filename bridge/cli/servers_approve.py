"""`servers approve`: servers shown exactly as they are defined, and approved.

A project's, so that they are used, and the user's own where the policy asks before they start.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import anyio.to_thread

from bridge.cli import completion
from bridge.cli.options import arg
from bridge.cli.output import write_err_line
from bridge.cli.person import Person
from bridge.discovery.consents import ConsentError
from bridge.discovery.finder import Discovery, ProposedServer
from bridge.errors import UnknownServerError, UsageError
from bridge.gate.audit import AuditLog
from bridge.gate.audit.log import audit_log
from bridge.gate.decision import REDEFINED
from bridge.gate.pins import Pins
from bridge.gate.policy import Policy
from bridge.gate.question import because, server_lines
from bridge.gate.server_starts import Starts
from bridge.model import ServerSpec
from bridge.servers.configuration import context_for
from bridge.servers.consents import consents_of
from bridge.servers.project_servers import definition_lines, reference_names
from bridge.settings import Settings, store_of
from bridge.text import counted

_COMMAND = "servers approve"


async def approve(
    settings: Settings,
    *,
    names: Annotated[
        list[str] | None,
        arg("NAME[@DIGEST]", "shown, and you are asked; or by digest", completion.servers),
    ] = None,
) -> int:
    """Approve a project's server, or a changed one.

    Examples:
        servers approve github
    """
    return await approve_of(names or (), settings, Person())


async def approve_of(names: Sequence[str], settings: Settings, person: Person) -> int:
    """Approve servers of the working directory's files, or the start of any; 1 if one is not.

    Args:
        names: NAME, which is shown and asked about, or NAME@DIGEST as `servers --json` has it.
    """
    if not names:
        message = "Name a server to approve."
        raise UsageError(message, remedy="`mcp-code-bridge servers` lists those waiting.")
    consents = consents_of(settings)
    approved = True
    for wanted in names:
        context = context_for(settings, str(Path.cwd()), sys.platform)
        found = await anyio.to_thread.run_sync(consents.discover, context)
        for warning in found.warnings:
            if warning.unread or not warning.key:
                write_err_line(f"warning: {warning}")
        server, digits = _resolve_name(wanted, found)
        if isinstance(server, ServerSpec):
            approved &= await _approve_start(server, digits, settings, person)
            continue
        spec, digest = server.spec, server.definition.digest
        before = _starts(settings).decide(spec)
        if before.rule == REDEFINED:
            person.write(
                f"About the server, the policy knows: {before.reason}. If you approve, the "
                f"policy's lines for {spec.name} apply to this definition.\n"
            )
        head = "".join(f"  {line}\n" for line in definition_lines(server))
        shown = (
            f"{spec.name}, a server that a file in this directory defines. It is started without a "
            f"sandbox.\n{head}  The definition, exactly as it is written there:\n{spec.written}\n"
        )
        lines = counted(spec.written.count("\n") + 1, "line")
        question = f"May {spec.name} be used as shown above ({lines})?"
        if not await person.confirm_digest(
            spec.name, digest, digits, shown=shown, question=question, command=_COMMAND
        ):
            approved = False
            continue
        # A person has just approved exactly this definition, whatever had the name before.
        await _record(spec, settings)
        try:
            await anyio.to_thread.run_sync(consents.allow, server.definition)
        except ConsentError as error:
            raise UsageError(f"It cannot be approved: {error}.") from None
        write_err_line(f"Approved {spec.name} for this directory until its definition changes.")
    return 0 if approved else 1


async def _approve_start(spec: ServerSpec, digits: str, settings: Settings, person: Person) -> bool:
    """Approve the start of a server of the user's as it is defined now; return whether it may."""
    decision = _starts(settings).decide(spec)
    if decision.action == "deny":
        message = f"{spec.name} is not started: the policy denies it ({because(decision)})."
        raise UsageError(message, remedy="Change that in config.toml.")
    if decision.action == "allow":
        project = spec.source.scope == "project"
        write_err_line(f"{spec.name} {'is approved already' if project else 'needs no approval'}.")
        return True
    lines = "".join(f"  {line}\n" for line in (*server_lines(spec), because(decision)))
    shown = f"{spec.name}, which is started without a sandbox.\n{lines}"
    question = f"May {spec.name} be started as shown above?"
    if not await person.confirm_digest(
        spec.name, spec.definition, digits, shown=shown, question=question, command=_COMMAND
    ):
        return False
    await _record(spec, settings)
    # As another bridge reads it.
    if _starts(settings).decide(spec).action != "allow":
        store = settings.store or settings.state_dir / "store.db"
        message = f"That {spec.name} may be started cannot be kept."
        raise UsageError(message, remedy=f"See to {store}.")
    write_err_line(f"Approved {spec.name} until its definition changes.")
    return True


async def _record(spec: ServerSpec, settings: Settings) -> None:
    audit = audit_log(settings)
    try:
        await _starts(settings, audit).approve(spec, "terminal")
    finally:
        audit.close()


def _starts(settings: Settings, audit: AuditLog | None = None) -> Starts:
    pins = Pins(store_of(settings))
    return Starts(lambda: Policy(settings.policy), audit or AuditLog(), pins)


def _resolve_name(wanted: str, found: Discovery) -> tuple[ProposedServer | ServerSpec, str]:
    """Return what a word means, one that waits before others, and the digits given with it."""
    name, _, digits = wanted.rpartition("@")
    for servers in (found.proposed, found.servers):
        # A name may hold an "@" itself.
        for word, given in ((wanted, ""), (name, digits)):
            named = [each for each in servers if word and word in reference_names(each.name)]
            for each in named:
                definition = each.definition
                digest = definition if isinstance(definition, str) else definition.digest
                if each is named[-1] or digest.removeprefix("sha256:").startswith(given.lower()):
                    return each, given
    waiting = ", ".join(dict.fromkeys(each.name for each in found.proposed)) or "none"
    message = f"No server {wanted!r:.200} of this directory waits for approval. Waiting: {waiting}."
    raise UnknownServerError(message, remedy="`mcp-code-bridge servers` says what there is.")
