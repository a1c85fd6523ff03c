"""`install`, `uninstall` and `installed`: the bridge in the files of other programs."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import anyio
import anyio.to_thread

from bridge.cli.moving import (
    ALL,
    lines_of,
    with_moves,
    with_restores,
    write_moved,
    write_proposal,
    write_stays,
)
from bridge.cli.output import visible, write_diff, write_err_line, write_json, write_out
from bridge.cli.person import Person
from bridge.clients.entry import (
    NAME,
    Entry,
    address,
    command_line,
    is_local,
    network_variables,
    own_entry,
    shown_address,
)
from bridge.clients.install import (
    Change,
    Standing,
    apply,
    plan_install,
    plan_uninstall,
    read_target,
    record_of,
    standings,
)
from bridge.clients.journal import Journal
from bridge.clients.own_commands import Planned, listing, own_commands, run_own
from bridge.clients.writers import (
    WRITERS,
    Machine,
    Scope,
    Target,
    detected,
    machine_of,
    targets,
    writer_for,
)
from bridge.errors import BridgeError, UsageError
from bridge.servers.configuration import context_for
from bridge.settings import Settings, http_token

_FAILED = re.compile(r"✗|✘|fail|error|disabled|disconnected", re.IGNORECASE)
"""What clients say of a server that they list and do not use."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Of the bridge's entry: what every client takes for a server's name, and in a tool's."""

_ADDRESS = re.compile(r"https?://[!#-&(-;=?-\[\]_a-z~]+", re.IGNORECASE)
"""With the characters of addresses only: each file and command spells these as they are."""

_YOUR_PATH = "<your PATH>"

NO_CLIENT = (
    "Nothing was changed: no client was found here. Name one to write its file all the same: "
    "`mcp-code-bridge install cursor`, say."
)

STOPPED = (
    "Stopped in the middle: `mcp-code-bridge installed` says where the bridge is now. The same "
    "command goes on, and `uninstall CLIENT --restore` goes back."
)

RESTART = "Restart the clients. `mcp-code-bridge uninstall CLIENT --restore` undoes it."


@contextmanager
def nothing_written() -> Iterator[None]:
    """Say that nothing was changed if a person leaves with Ctrl-C."""
    try:
        yield
    except anyio.get_cancelled_exc_class():
        write_err_line("Nothing was changed.")
        raise


async def install(arguments: SimpleNamespace, settings: Settings) -> int:
    """Show what would be written into the files of some clients, ask, and write it.

    Returns:
        1 if a person says no, if there is no client, or if one does not list the bridge then.
    """
    machine = _machine(settings)
    if not arguments.clients:
        return _list_detected(machine)
    if arguments.name and not _NAME.fullmatch(arguments.name):
        message = f"{visible(arguments.name)!r:.100} is no name that every client takes."
        raise UsageError(message, remedy="Use up to 64 letters, digits, dots, dashes and _.")
    if arguments.http and (arguments.name or NAME) != NAME:
        message = f"With --http the name is {NAME}: by it, the bridge knows its own address."
        raise UsageError(message, remedy="Leave --name out.")
    if arguments.http and not _ADDRESS.fullmatch(arguments.http):
        message = f"{visible(shown_address(arguments.http))!r:.100} is no address."
        remedy = "Give it whole, other characters as %XX: --http http://127.0.0.1:8000/mcp."
        raise UsageError(message, remedy=remedy)
    network = await ask_network(settings, arguments)
    own = arguments.http and arguments.scope == "user" and is_local(arguments.http)
    token = http_token(settings) if own else ""
    name, url = arguments.name or "", arguments.http or ""
    entry = own_entry(settings.environ, name=name, url=url, token=token, network=network)
    clients = arguments.clients
    if list(clients) == [ALL]:
        clients = clients_of(detected(machine))
        if not clients:
            write_err_line(NO_CLIENT)
            return 1
    planned = plan(clients, arguments.scope, entry, machine)
    if arguments.move:
        planned = await with_moves(planned, arguments.move, settings, machine)
    if not await carry_out(planned, settings, machine, arguments):
        return 1
    if arguments.dry_run:
        return 0
    status = await check((change for change, _ in planned), machine) if arguments.check else 0
    if any(change.before != change.after for change, _ in planned):
        write_err_line(RESTART)
    return status


async def ask_network(
    settings: Settings, arguments: SimpleNamespace, person: Person | None = None
) -> dict[str, str]:
    """Return the variables of the network for the entry: clients pass on none of them.

    Without a person to ask it gets those without logins with --yes, and none otherwise.
    """
    found = network_variables(settings.environ, secrets=True)
    person = person or Person(sys.stdin, sys.stderr)
    if arguments.yes or arguments.dry_run:
        return network_variables(settings.environ, secrets=False)
    if not found or not person.attended:
        return {}
    names = visible(", ".join(found), keep="")
    prompt = f"Clients pass {names} on to no server, and packages need them. Copy them?"
    return found if await person.confirm(prompt) else {}


async def uninstall(arguments: SimpleNamespace, settings: Settings) -> int:
    """Show what would be taken out of the files of some clients, ask, and take it out."""
    machine = _machine(settings)
    found = [
        each
        for each in standings(machine)
        if arguments.scope is None or each.target.scope == arguments.scope
    ]
    if not arguments.clients:
        write_out(_table(found) or "The bridge is in no client's file.\n")
        write_err_line("Nothing was changed. Name the clients: uninstall CLIENT...")
        return 0
    named = WRITERS if list(arguments.clients) == [ALL] else arguments.clients
    wanted = tuple(dict.fromkeys(writer_for(client).id for client in named))
    journal = Journal(settings.state_dir / "clients")
    planned: list[Planned] = []
    for each in found:
        if each.target.writer.id in wanted:
            raw = read_target(each.target)
            record = record_of(journal, each.target, each.name, raw)
            change = plan_uninstall(each.target, each.name, raw, record)
            planned.append((change, own_commands(change, machine)))
    if arguments.restore or await _wants_restore(planned, settings, arguments):
        planned = with_restores(planned, wanted, arguments.scope, settings, machine)
    there = {change.target.writer.id for change, _ in planned}
    for client in () if named is WRITERS else (each for each in wanted if each not in there):
        write_out(f"{WRITERS[client].name}: the bridge is in none of its files.\n")
    return 0 if await carry_out(planned, settings, machine, arguments) else 1


async def _wants_restore(
    planned: Sequence[Planned], settings: Settings, arguments: SimpleNamespace
) -> bool:
    """Say which servers the clients will lack, and return whether they are to come back."""
    person = Person(sys.stdin, sys.stderr)
    if not write_stays(planned, settings) or arguments.yes or not person.attended:
        return False
    with nothing_written():
        return await person.confirm("Put them back?", default=True)


async def installed(arguments: SimpleNamespace, settings: Settings) -> int:
    """Print where the bridge stands; 1 if a command is gone."""
    found = list(standings(_machine(settings)))
    if arguments.json:
        write_json([_record(each) for each in found])
    else:
        nowhere = "The bridge is in no client's file; `mcp-code-bridge install` puts it there.\n"
        write_out(_table(found) or nowhere)
    return 1 if any(each.is_broken for each in found) else 0


def clients_of(found: Iterable[Target]) -> tuple[str, ...]:
    """Return the ids of the clients whose files these are."""
    return tuple(dict.fromkeys(target.writer.id for target in found))


def plan(clients: Sequence[str], scope: Scope, entry: Entry, machine: Machine) -> list[Planned]:
    """Return the changes that put the bridge into some clients; reads their files.

    Raises:
        UsageError: One of them cannot be changed; then none is.
    """
    planned = []
    for client in dict.fromkeys(clients):
        for target in targets(writer_for(client), scope, machine):
            change = plan_install(target, entry, read_target(target))
            planned.append((change, own_commands(change, machine)))
    return planned


async def carry_out(
    planned: Sequence[Planned],
    settings: Settings,
    machine: Machine,
    arguments: SimpleNamespace,
    person: Person | None = None,
    *,
    default: bool = False,
) -> bool:
    """Show changes, ask, and make them; return whether all is as planned.

    Args:
        default: What an empty answer means.
    """
    changing = [each for each in planned if each[0].before != each[0].after]
    path = _common_path(changing)
    for file in dict.fromkeys(change.target.path for change, _ in planned):
        _show([each for each in planned if each[0].target.path == file], path=path)
    if path:
        write_out(visible(f"{_YOUR_PATH} stands for: {path}", keep="") + "\n")
    if not changing:
        write_err_line("There is nothing to change.")
        return True
    if arguments.dry_run:
        write_err_line("Nothing was changed: --dry-run.")
        return True
    if not arguments.yes:
        person = person or Person(sys.stdin, sys.stderr)
        if not person.attended:
            message = "Nothing was changed: no person can be asked here."
            raise UsageError(message, remedy="--yes changes it as shown.")
        with nothing_written():
            agreed = await person.confirm("Apply these changes?", default=default)
        if not agreed:
            write_err_line("Nothing was changed.")
            return False
    journal = Journal(settings.state_dir / "clients")
    try:
        for change, commands in changing:
            for argv in commands:
                await run_own(argv, machine)
            if not commands:
                await anyio.to_thread.run_sync(apply, change, journal)
            if change.action != "move":
                _confirm(change, machine)
            write_moved(change)
    except anyio.get_cancelled_exc_class():
        write_err_line(STOPPED)
        raise
    made = [change for change, _ in changing if change.moved]
    await anyio.to_thread.run_sync(write_proposal, made, settings, machine)
    return True


async def check(changes: Iterable[Change], machine: Machine) -> int:
    """Let the clients list their servers; return 1 if one has the bridge not at all or broken."""
    status = 0
    for change in {each.target.writer.id: each for each in changes}.values():
        argv = listing(change.target.writer, machine)
        if not argv:
            write_out(f"{change.target.writer.name} has no command here that lists its servers.\n")
            continue
        if change.target.scope == "project":
            write_out(
                f"{change.target.writer.name} may start the project's servers when it lists them, "
                f"so run it yourself: {shlex.join(argv)}\n"
            )
            continue
        said = await run_own(argv, machine)
        if url := address(change.value, change.target.location.dialect):
            said = said.replace(url, shown_address(url))
        lines = [line for line in said.splitlines() if change.name in line]
        head = f"{change.target.writer.name} lists:\n" if lines else ""
        write_out(visible(head + "".join(f"  {line.strip()}\n" for line in lines)))
        if lines and re.search(r"folder is (?:untrusted|not trusted)", said, flags=re.IGNORECASE):
            write_out(
                f"{change.target.writer.name} has it, and uses servers only in folders that you "
                "let it trust; the home directory, where it was asked, is none.\n"
            )
        elif not lines or any(map(_FAILED.search, lines)):
            status = 1
            state = "has trouble with" if lines else "does not list"
            why = f"`{shlex.join(argv)}` may say why."
            write_err_line(visible(f"{change.target.writer.name} {state} {change.name}. {why}"))
    return status


def _machine(settings: Settings) -> Machine:
    return machine_of(context_for(settings, str(Path.cwd()), sys.platform))


def _common_path(changing: Sequence[Planned]) -> str:
    """Return the PATH that several changes write, to be shown once; empty for none."""
    environs = (
        change.value.get(change.target.location.dialect.env_keys[0]) for change, _ in changing
    )
    paths = [each.get("PATH", "") for each in environs if isinstance(each, Mapping)]
    return paths[0] if len(paths) > 1 and len(set(paths)) == 1 else ""


def _show(planned: Sequence[Planned], *, path: str) -> None:
    """Print the changes of one file: the whole command that the client will run, and one diff.

    Args:
        path: What is shown as `_YOUR_PATH`.
    """
    target = planned[0][0].target
    write_out(visible(f"{target.writer.name} ({target.scope}): {target.path}\n"))
    changing = [each for each, _ in planned if each.before != each.after]
    diff = changing[0].diff(*changing[1:]) if changing else ""
    for change, commands in planned:
        url = address(change.value, target.location.dialect)
        words = shlex.join(command_line(change.value, target.location.dialect)) or url
        lines = [f"  {change.name}: {words}"] if words and change in changing else []
        lines += [f"  through its own command: {shlex.join(argv)}" for argv in commands]
        lines += [*lines_of(change), *(f"  {note}" for note in change.notes)]
        text = visible("".join(f"{line}\n" for line in lines))
        for hidden, shown in ((path, _YOUR_PATH), (url, shown_address(url))):
            text, diff = (each.replace(hidden, shown) if hidden else each for each in (text, diff))
        write_out(text)
    if diff:
        write_diff(f"{diff}\n")
    elif not any(change.refused for change, _ in planned):
        write_out("  is as it should be.\n")


def _confirm(change: Change, machine: Machine) -> None:
    """Look for the entry where it should be now."""
    there = [
        each
        for each in standings(machine)
        if each.target.path == change.target.path and each.name == change.name
    ]
    if bool(there) is (change.action == "uninstall"):
        state = "still" if there else "not"
        raise BridgeError(f"{change.name} is {state} in {change.target.path}.")
    verb = "is in" if there else "is no longer in"
    write_err_line(f"{change.name} {verb} {change.target.path}.")


def _list_detected(machine: Machine) -> int:
    found = detected(machine)
    there = {(each.target.path): each.name for each in standings(machine)}
    for target in found:
        state = f"has {there[target.path]}" if target.path in there else ""
        line = f"{target.writer.id:<20} {target.writer.name:<22} {target.path}  {state}"
        write_out(visible(line.rstrip(), keep="") + "\n")
    named = "Nothing was changed. Name the clients: install CLIENT..."
    write_err_line(named if found else NO_CLIENT)
    return 0


def _table(found: Sequence[Standing]) -> str:
    lines = []
    for each in found:
        started = shlex.join(each.command) or shown_address(each.url)
        gone = "  (there is no such program now)" if each.is_broken else ""
        target = each.target
        lines.append(f"{target.writer.id} ({target.scope}) {target.path}\n")
        lines.append(f"  {each.name}: {started}{gone}\n")
    return visible("".join(lines))


def _record(each: Standing) -> dict[str, object]:
    return {
        "client": each.target.writer.id,
        "scope": each.target.scope,
        "path": str(each.target.path),
        "name": each.name,
        "command": list(each.command),
        "url": shown_address(each.url),
        "broken": each.is_broken,
    }
