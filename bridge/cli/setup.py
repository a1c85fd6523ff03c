"""`setup`: installs the bridge step by step. Each question has a flag."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

import anyio.to_thread

from bridge.cli.doctor import find_working, offer
from bridge.cli.install import (
    NO_CLIENT,
    clients_of,
    install_into,
    machine_here,
    nothing_written,
    plan,
    write_found,
)
from bridge.cli.moving import ALL, with_moves
from bridge.cli.options import DryRun, InScope, Yes, flag, opt
from bridge.cli.output import open_engine, visible, waiting, write_err_line, write_out, write_prose
from bridge.cli.terminal import Person
from bridge.client_configs.entry import own_entry
from bridge.client_configs.writers import Scope, Target, detect_targets, writer_for
from bridge.discovery.locations import Machine
from bridge.errors import BridgeError, UsageError
from bridge.inventory.configuration import consents_of
from bridge.sandbox.backend import Probe
from bridge.sandbox.selection import probe_all
from bridge.settings import Settings

T = TypeVar("T")

NONE = "none"  # The word for no client, or no server.


async def setup(
    settings: Settings,
    *,
    clients: Annotated[
        str | None, opt("A,B", "clients to add the bridge to, or all; else asks")
    ] = None,
    scope: InScope = "user",
    move: Annotated[
        str | None, opt("NAMES", "servers to move behind the bridge: A,B, all or none; else asks")
    ] = None,
    skip_cost: Annotated[
        bool, flag("--skip-cost", "do not start servers to measure their tools")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Asks at each step, unless an option answers. Nothing is written before the last question.

    Examples:
        setup
        setup --clients all --move all --skip-cost --yes
    """
    machine = machine_here(settings)
    person = None if yes or not Person().attended else Person()
    status = 1
    with nothing_written():
        with waiting("reading your clients' files"):
            discover = consents_of(settings).discover
            discovery = await anyio.to_thread.run_sync(discover, machine.context)
        here = detect_targets(machine)
        write_found(here, discovery, machine)
        question = "Start each server once to measure its tool definitions?"
        measures = bool(discovery.servers) and not skip_cost
        if measures and (person is None or await person.confirm(question, default=True)):
            await _show_cost(settings)
        with waiting("trying each sandbox"):
            probes = await probe_all(settings)
        works = _write_sandbox(probes)
        named = await _clients(clients, here, person) if here or clients else ()
        if named and move is None and person is not None:
            move = await _ask_move(named, scope, settings, machine, person)
    if named:
        move = None if move == NONE else move
        status = await install_into(
            settings, named, scope, move=move, check=True, dry_run=dry_run, yes=yes, default=True
        )
    else:
        write_err_line("No changes made." if here else NO_CLIENT)
    if not works:
        write_err_line("The bridge can't run programs until a sandbox works.")
        if not (dry_run or yes) and await offer(probes, settings):
            works = _write_sandbox(await probe_all(settings))
    if works:
        return status
    write_err_line("Next: run `mcp-code-bridge doctor`. It prints the commands that fix this.")
    return 1


def _write_sandbox(probes: Sequence[Probe]) -> str:
    works = find_working(probes)
    if works:
        write_out(f"Programs run in: {works}\n")
        return works
    write_out("No sandbox works yet, so programs cannot run here.\n")
    own = [probe for probe in probes if probe.error_code != "wrong_system"]
    for probe in own or probes:
        write_prose(visible(f"  {probe.backend}: {probe.summary}\n"))
    return ""


async def _show_cost(settings: Settings) -> None:
    # Imported here: it imports the server, whose tools' tokens it counts.
    from bridge.cli.checks import check_servers

    with anyio.move_on_after(90) as scope:
        try:
            async with open_engine(settings) as engine:
                await check_servers(engine, as_json=False)
        except BridgeError as error:
            write_err_line(f"Could not measure their tools: {error}")
    if scope.cancelled_caught:
        write_err_line("Not all servers started within 90 s; `servers --check` waits longer.")


async def _answer(person: Person, prompt: str, read: Callable[[str], T]) -> T:
    """Ask until `read` accepts the answer; an empty line means all, the end of input none."""
    while True:
        line = await person.ask(f"{prompt} all, none, or names [all]: ")
        try:
            return read(NONE if line is None else line.strip() or ALL)
        except UsageError as error:
            person.write(f"  {error}\n")


async def _clients(
    given: str | None, here: Sequence[Target], person: Person | None
) -> tuple[str, ...]:

    def read_clients(text: str) -> tuple[str, ...]:
        words = [word for word in text.replace(",", " ").split() if word != NONE]
        if words == [ALL]:
            return clients_of(here)
        return tuple(writer_for(word).id for word in words)

    if given is not None:
        return read_clients(given)
    if person is None:
        message = "No changes made: no client was named."
        raise UsageError(message, remedy="Pass --clients A,B or --clients all.")
    return await _answer(person, "Which clients should use the bridge?", read_clients)


async def _ask_move(
    clients: Sequence[str], scope: Scope, settings: Settings, machine: Machine, person: Person
) -> str:
    planned = plan(clients, scope, own_entry(settings.environ), machine)
    if any(change.barred for change in planned):
        return NONE
    offered = await with_moves(planned, ALL, settings, machine)
    names = list(dict.fromkeys(name for change in offered for name in change.moved))
    if not names:
        return NONE

    def read_servers(text: str) -> str:
        words = [word.strip() for word in text.split(",")]
        if not set(words) <= {*names, ALL, NONE}:
            raise UsageError("Name servers of the list, or all, or none.")
        return ",".join([name for name in names if name in words] or words[:1])

    person.write(
        "These clients also start the servers themselves, so the model sees every tool twice: "
        f"{', '.join(names)}\n`mcp-code-bridge uninstall CLIENT --restore` undoes a move.\n"
    )
    return await _answer(person, "Which move behind the bridge?", read_servers)
