"""`setup`: from nothing to the bridge in a person's clients, one question after another.

Each answer has a flag. Nothing is written before the last question, so that whoever leaves at one
of them leaves everything as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.to_thread

from bridge.cli.checks import check as check_servers
from bridge.cli.doctor import NEXT
from bridge.cli.install import (
    NO_CLIENT,
    RESTART,
    ask_network,
    carry_out,
    check,
    clients_of,
    nothing_written,
    plan,
)
from bridge.cli.moving import ALL, with_moves
from bridge.cli.offers import offer
from bridge.cli.output import visible, write_err_line, write_out, write_prose
from bridge.cli.person import MAX_TRIES, Person
from bridge.clients.entry import own_entry
from bridge.clients.install import standings
from bridge.clients.own_commands import Planned
from bridge.clients.writers import Machine, Target, detected, machine_of, writer_for
from bridge.discovery.finder import Discovery
from bridge.errors import BridgeError, UsageError, WrongSystemError
from bridge.runs import open_engine
from bridge.sandbox.backend import Probe
from bridge.sandbox.selection import probe_all
from bridge.servers.configuration import context_for
from bridge.servers.consents import consents_of
from bridge.settings import Settings
from bridge.text import counted

COST_SECONDS = 90.0
"""For all servers together to start and list their tools; package runners fetch them first."""

NONE = "none"  # In place of names: no client, or no server.


async def setup(arguments: SimpleNamespace, settings: Settings) -> int:
    """Say what there is, ask what is wanted, show it, and write it.

    Returns:
        1 if a person says no, if no sandbox works, or if a client does not list the bridge.

    Raises:
        UsageError: An answer is missing, and nobody can be asked.
    """
    machine = machine_of(context_for(settings, str(Path.cwd()), sys.platform))
    with nothing_written():
        planned, probes = await _asked(arguments, settings, machine)
    status = 1
    if planned and await carry_out(planned, settings, machine, arguments, default=True):
        status = 0
        if not arguments.dry_run:
            status = await check((change for change, _ in planned if change.name), machine)
            write_err_line(RESTART)
    works = any(probe.ok for probe in probes) or await _mended(probes, arguments, settings)
    return status if works else 1


async def _asked(
    arguments: SimpleNamespace, settings: Settings, machine: Machine
) -> tuple[list[Planned], Sequence[Probe]]:
    """Return the changes that a person or the flags ask for, and how each sandbox is.

    There are none if no client is to get the bridge; that has been said then.
    """
    person = Person(sys.stdin, sys.stderr)
    asks = person.attended and not arguments.yes
    found = await anyio.to_thread.run_sync(consents_of(settings).discover, machine.context)
    here = detected(machine)
    _write_found(here, found, machine)
    await _show_cost(arguments, settings, person if asks else None, found)
    probes = await _show_sandbox(settings)
    if not here and arguments.clients is None:
        write_err_line(NO_CLIENT)
        return [], probes
    clients = await _clients(arguments.clients, here, person if asks else None)
    if not clients:
        write_err_line("Nothing was changed." if here else NO_CLIENT)
        return [], probes
    network = await ask_network(settings, arguments, person)
    entry = own_entry(settings.environ, network=network)
    planned = plan(clients, arguments.scope, entry, machine)
    asked = arguments.move or NONE
    if arguments.move is None and asks:
        offered = await with_moves(planned, ALL, settings, machine)
        movable = [name for change, _ in offered for name in change.moved]
        asked = await _ask_which_move(person, movable) if movable else NONE
    if asked != NONE:
        planned = await with_moves(planned, asked, settings, machine)
    return planned, probes


def _write_found(here: Sequence[Target], found: Discovery, machine: Machine) -> None:
    """Print the clients of this machine, and how many servers each has."""
    has = {(each.target.path, each.name) for each in standings(machine)}
    write_out(f"{counted(len(here), 'client')} here{':' if here else ''}\n")
    left_out = False
    for target in here:
        path = str(target.path)
        sources = [source for spec in found.servers for source in (spec.source, *spec.also)]
        used = sum(source.path == path for source in sources)
        unused = sum(
            each.source.path == path and (target.path, each.name) not in has
            for each in found.skipped
        )
        moved = sum(source.moved_from == path for source in sources)
        left_out = left_out or unused > 0
        state = f", {unused} not used" if unused else ""
        state += f", {moved} moved behind the bridge" if moved else ""
        state += ", has the bridge" if target.path in {path for path, _ in has} else ""
        line = f"  {target.writer.id}: {counted(used + unused, 'server')} in {path}{state}"
        write_out(visible(line, keep="") + "\n")
    names = ", ".join(spec.name for spec in found.servers)
    names = names or "the clients have none yet, or none that can be used"
    why = "; `servers` says why others are not" if left_out else ""
    count = counted(len(found.servers), "server")
    write_prose(visible(f"{count} can be used through the bridge: {names}{why}\n"))


async def _show_cost(
    arguments: SimpleNamespace, settings: Settings, person: Person | None, found: Discovery
) -> None:
    """Print what the servers' tools cost a client now, and would cost behind the bridge."""
    if arguments.skip_cost or not found.servers:
        return
    question = "Start each server once to measure its tool definitions?"
    if person is not None and not await person.confirm(question, default=True):
        return
    with anyio.move_on_after(COST_SECONDS) as scope:
        try:
            async with open_engine(settings) as engine:
                await check_servers(engine, as_json=False)
        except BridgeError as error:
            write_err_line(visible(f"What they cost is not known: {error}"))
    if scope.cancelled_caught:
        write_err_line(
            f"Not all servers started within {COST_SECONDS:.0f} s; `servers --check` waits longer."
        )


async def _show_sandbox(settings: Settings) -> Sequence[Probe]:
    """Print where programs run, or why they cannot; return how each sandbox is."""
    probes = await probe_all(settings)
    chosen = next((probe.backend for probe in probes if probe.ok), "")
    if chosen:
        write_out(f"Programs run in: {chosen}\n")
        return probes
    write_out("Programs cannot run here yet: no sandbox works.\n")
    here = [probe for probe in probes if probe.error_code != WrongSystemError.code]
    for probe in here or probes:
        write_prose(visible(f"  {probe.backend}: {probe.summary}\n"))
    return probes


async def _mended(probes: Sequence[Probe], arguments: SimpleNamespace, settings: Settings) -> bool:
    """Offer what makes a sandbox work, after the clients' files; return whether one works then."""
    write_err_line("The bridge is of no use before a sandbox works.")
    asks = not arguments.dry_run and not arguments.yes
    if asks and await offer(probes, settings):
        probes = await probe_all(settings)
    chosen = next((probe.backend for probe in probes if probe.ok), "")
    if chosen:
        write_out(f"Programs run in: {chosen}\n")
    else:
        write_prose(NEXT, sys.stderr)
    return bool(chosen)


async def _clients(
    given: str | None, here: Sequence[Target], person: Person | None
) -> tuple[str, ...]:
    """Return the ids of the clients that get the bridge."""
    if given is not None:
        return _named(given, here)
    if person is None:
        message = "Nothing was changed: which clients are to get the bridge?"
        raise UsageError(message, remedy="Say --clients A,B or --clients all.")
    for _ in range(MAX_TRIES):
        line = await person.ask("Which clients should use the bridge? all, none, or names [all]: ")
        try:
            return _named(NONE if line is None else line.strip() or ALL, here)
        except UsageError as error:
            person.write(f"  {error}\n")
    return ()


def _named(text: str, here: Sequence[Target]) -> tuple[str, ...]:
    words = [word for word in text.replace(",", " ").split() if word != NONE]
    if words == [ALL]:
        return clients_of(here)
    return tuple(writer_for(word).id for word in words)


async def _ask_which_move(person: Person, moved: Sequence[str]) -> str:
    """Return which of the clients' servers go behind the bridge, as `--move` has them."""
    names = list(dict.fromkeys(moved))
    person.write(
        "These clients also start the servers themselves, so the model sees every tool twice: "
        f"{', '.join(names)}\n`mcp-code-bridge uninstall CLIENT --restore` undoes a move.\n"
    )
    for _ in range(MAX_TRIES):
        line = await person.ask("Which move behind the bridge? all, none, or names [all]: ")
        words = [word.strip() for word in (NONE if line is None else line or ALL).split(",")]
        chosen = [name for name in names if name in words] or words[:1]
        if set(words) <= {*names, ALL, NONE}:
            return ",".join(chosen)
        person.write("  Name servers of the list, or all, or none.\n")
    return NONE
