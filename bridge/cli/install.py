"""`install`, `uninstall` and `installed`: the bridge's entry in clients' files."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import anyio.to_thread

from bridge.cli import moving
from bridge.cli.options import AsJson, Clients, DryRun, InScope, Yes, flag, opt
from bridge.cli.output import (
    visible,
    waiting,
    write_diff,
    write_err_line,
    write_json,
    write_out,
    write_prose,
)
from bridge.cli.terminal import Person
from bridge.client_configs import install as edits
from bridge.client_configs.entry import (
    NAME,
    Entry,
    address,
    command_line,
    is_local,
    network_variables,
    own_entry,
    shown_address,
)
from bridge.client_configs.journal import Journal
from bridge.client_configs.writers import (
    WRITERS,
    Scope,
    Target,
    detect_targets,
    targets,
    writer_for,
)
from bridge.discovery.finder import Discovery, discover
from bridge.discovery.locations import Machine, machine_of
from bridge.errors import BridgeError, UsageError
from bridge.inventory.configuration import consents_of, context_for
from bridge.settings import Settings, http_token
from bridge.text import counted

_FAILED = re.compile(r"✗|✘|fail|error|disabled|disconnected", re.IGNORECASE)
"""Matches a client's line about a server that does not work."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""A name that every client accepts for a server and as a part of a tool's name."""

_ADDRESS = re.compile(r"https?://[!#-&(-;=?-\[\]_a-z~]+", re.IGNORECASE)
"""A URL without characters that a file format or a command line would have to escape."""

_YOUR_PATH = "<your PATH>"

NO_CLIENT = (
    "No changes made: no client was found. To write a client's file anyway, name the client: "
    "`mcp-code-bridge install cursor`."
)

STOPPED = (
    "Stopped before all changes were made. `mcp-code-bridge installed` shows where the bridge is. "
    "Run the command again to continue, or `uninstall CLIENT --restore` to undo."
)


@contextmanager
def nothing_written() -> Iterator[None]:
    try:
        yield
    except anyio.get_cancelled_exc_class():
        write_err_line("No changes made.")
        raise


async def install(
    settings: Settings,
    *,
    clients: Clients = None,
    scope: InScope = "user",
    http: Annotated[str | None, opt("URL", "address of a bridge that serves HTTP")] = None,
    name: Annotated[str | None, opt("NAME", f"name of the entry; {NAME}")] = None,
    check: Annotated[bool, flag("--check", "let the client list its servers afterwards")] = False,
    move: Annotated[
        str | None, opt("NAMES", "servers to move behind the bridge: A,B or all")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Examples:
    install
    install claude-code cursor
    install codex --move all --dry-run
    """
    if not clients:
        machine = machine_here(settings)
        here = detect_targets(machine)
        discovery = await anyio.to_thread.run_sync(consents_of(settings).discover, machine.context)
        write_found(here, discovery, machine)
        hint = "No changes made. Run `mcp-code-bridge install CLIENT`."
        write_err_line(hint if here else NO_CLIENT)
        return 0
    return await install_into(
        settings, clients, scope, http or "", name or "", move, check, dry_run=dry_run, yes=yes
    )


async def install_into(
    settings: Settings,
    clients: Sequence[str],
    scope: Scope,
    http: str = "",
    name: str = "",
    move: str | None = None,
    check: bool = False,
    *,
    dry_run: bool,
    yes: bool,
    default: bool = False,
) -> int:
    machine = machine_here(settings)
    _check_names(name or NAME, http)
    network = await ask_network(settings, Person(), asks=not (yes or dry_run))
    own = http and scope == "user" and is_local(http)
    token = http_token(settings) if own else ""
    entry = own_entry(settings.environ, name=name, url=http, token=token, network=network)
    if list(clients) == [moving.ALL]:
        clients = [*clients_of(detect_targets(machine))]
        if not clients:
            write_err_line(NO_CLIENT)
            return 1
    planned = plan(clients, scope, entry, machine)
    if move:
        planned = await moving.with_moves(planned, move, settings, machine)
    if not await carry_out(planned, settings, machine, dry_run=dry_run, yes=yes, default=default):
        return 1
    if dry_run:
        return 0
    named = (change for change in planned if change.name)
    status = await check_clients(named, machine) if check else 0
    for change in planned:
        same = (each for each in planned if each.target.path == change.target.path)
        moving.write_still_started(change, {name for each in same for name in each.moved})
    if any(change.before != change.after for change in planned):
        undo = "`mcp-code-bridge uninstall CLIENT --restore` undoes it."
        write_err_line(f"Restart the clients. {undo}")
    return status


def _check_names(name: str, http: str) -> None:
    if not _NAME.fullmatch(name):
        message = f"{visible(name)!r:.100} is not a name that every client accepts."
        raise UsageError(message, remedy="Use up to 64 letters, digits, dots, dashes and _.")
    if http and name != NAME:
        message = f"With --http the name must be {NAME}: the bridge recognises its entry by it."
        raise UsageError(message, remedy="Leave --name out.")
    if http and not _ADDRESS.fullmatch(http):
        message = f"{visible(shown_address(http))!r:.100} is not an address."
        remedy = "Give a whole URL, such as http://127.0.0.1:8000/mcp; escape others as %XX."
        raise UsageError(message, remedy=remedy)


async def ask_network(settings: Settings, person: Person, *, asks: bool) -> dict[str, str]:
    """Return the network variables for the entry, since clients do not pass them on.

    Without a question, variables that hold a login are left out. Without a terminal, all are.
    """
    variables = network_variables(settings.environ, secrets=True)
    if not asks:
        return network_variables(settings.environ, secrets=False)
    if not variables or not person.attended:
        return {}
    names = visible(", ".join(variables), keep="")
    prompt = f"Clients don't pass {names} on to servers, and packages need them. Copy them?"
    return variables if await person.confirm(prompt) else {}


async def uninstall(
    settings: Settings,
    *,
    clients: Clients = None,
    scope: Annotated[
        Scope | None, opt("<user|project>", "only your files, or the project's")
    ] = None,
    restore: Annotated[
        bool, flag("--restore", "put back the servers that moved behind the bridge")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> int:
    """Examples:
    uninstall cursor
    uninstall cursor --restore
    """
    machine = machine_here(settings)
    broken: dict[Path, tuple[Target, str]] = {}
    entries = [
        each
        for each in edits.installed_entries(machine, broken)
        if scope is None or each.target.scope == scope
    ]
    if not clients:
        write_out(_table(entries) or "The bridge isn't installed in any client.\n")
        write_err_line("No changes made. Run `mcp-code-bridge uninstall CLIENT`.")
        return _name_broken(broken.values(), 0)
    named = WRITERS if list(clients) == [moving.ALL] else clients
    wanted = tuple(dict.fromkeys(writer_for(client).id for client in named))
    journal = Journal(settings.state_dir / "clients")
    planned: list[edits.Change] = []
    for each in entries:
        if each.target.writer.id in wanted:
            change = edits.plan_uninstall(
                each.target, each.name, edits.read_target(each.target), journal
            )
            planned.append(edits.with_own_commands(change, machine))
    if not restore and moving.write_stays(planned, settings):
        with nothing_written():
            restore = not (yes or dry_run) and Person().attended
            restore = restore and await Person().confirm("Put them back?", default=True)
    if restore:
        planned = moving.with_restores(planned, wanted, scope, settings, machine)
    unread = [each for each in broken.values() if each[0].writer.id in wanted]
    present = {change.target.writer.id for change in planned}
    present |= {target.writer.id for target, _ in unread}
    for client in () if named is WRITERS else (each for each in wanted if each not in present):
        write_out(f"{WRITERS[client].name}: the bridge isn't installed.\n")
    done = await carry_out(planned, settings, machine, dry_run=dry_run, yes=yes)
    return _name_broken(unread, 0 if done else 1)


async def list_installed(settings: Settings, *, as_json: AsJson = False) -> int:
    """The exit status is 1 if a client starts a program that no longer exists, and 2 if a file
    cannot be read.
    """
    broken: dict[Path, tuple[Target, str]] = {}
    entries = list(edits.installed_entries(machine_here(settings), broken))
    if as_json:
        records = [
            {
                "client": each.target.writer.id,
                "scope": each.target.scope,
                "path": str(each.target.path),
                "name": each.name,
                "command": list(each.command),
                "url": shown_address(each.url),
                "broken": each.is_broken,
            }
            for each in entries
        ]
        write_json(records)
    else:
        nowhere = "The bridge isn't installed in any client. Run `mcp-code-bridge install`.\n"
        write_out(_table(entries) or ("" if broken else nowhere))
    return _name_broken(broken.values(), 1 if any(each.is_broken for each in entries) else 0)


def _name_broken(broken: Iterable[tuple[Target, str]], status: int) -> int:
    """Report files that cannot be read and may have the bridge; return 2 if there is one."""
    for _, reason in broken:
        write_err_line(f"{reason} The file may have the bridge.")
        status = UsageError.exit_status
    return status


def clients_of(files: Iterable[Target]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(target.writer.id for target in files))


def plan(
    clients: Sequence[str], scope: Scope, entry: Entry, machine: Machine
) -> list[edits.Change]:
    lists = discover(machine.context).restrictions
    planned = []
    for client in dict.fromkeys(clients):
        for target in targets(writer_for(client), scope, machine):
            change = edits.plan_install(target, entry, edits.read_target(target), lists)
            planned.append(edits.with_own_commands(change, machine))
    return planned


async def carry_out(
    planned: Sequence[edits.Change],
    settings: Settings,
    machine: Machine,
    *,
    dry_run: bool = False,
    yes: bool = False,
    person: Person | None = None,
    default: bool = False,
) -> bool:
    """Show changes, ask, and make them; return False if the user refuses."""
    changing = [each for each in planned if each.before != each.after]
    # A PATH that is equal in all changes is shown once.
    environs = (change.value.get(change.target.location.dialect.env_keys[0]) for change in changing)
    paths = [each.get("PATH", "") for each in environs if isinstance(each, Mapping)]
    path = paths[0] if len(paths) > 1 and len(set(paths)) == 1 else ""
    for file in dict.fromkeys(change.target.path for change in planned):
        _show([each for each in planned if each.target.path == file], path=path)
    if path:
        write_out(visible(f"{_YOUR_PATH} is {path}", keep="") + "\n")
    if not changing:
        write_err_line("Nothing to change.")
        return True
    if dry_run:
        write_err_line("No changes made (--dry-run).")
        return True
    with nothing_written():
        agreed = await (person or Person()).agrees("Apply these changes?", yes=yes, default=default)
    if not agreed:
        write_err_line("No changes made.")
        return False
    journal = Journal(settings.state_dir / "clients")
    try:
        for change in changing:
            for argv in change.commands:
                with waiting(f"waiting for {change.target.writer.name}"):
                    await edits.run_own(argv, machine)
            if not change.commands:
                await anyio.to_thread.run_sync(edits.apply, change, journal)
            if change.action != "move":
                _confirm(change, machine)
            if change.moved:
                write_err_line(f"Moved {', '.join(change.moved)} out of {change.target.path}.")
            if change.restored:
                write_err_line(f"Restored {', '.join(change.restored)} to {change.target.path}.")
    except anyio.get_cancelled_exc_class():
        write_err_line(STOPPED)
        raise
    return True


async def check_clients(changes: Iterable[edits.Change], machine: Machine) -> int:
    """Let the clients list their servers; return 1 if the bridge is missing or broken in one."""
    status = 0
    for change in {each.target.writer.id: each for each in changes}.values():
        client = change.target.writer.name
        argv = edits.listing_command(change.target.writer, machine)
        command = shlex.join(argv)
        if not argv:
            write_out(f"{client} has no command that lists its servers.\n")
            continue
        if change.target.scope == "project":
            write_out(
                f"{client} may start the project's servers when it lists them, so run it yourself: "
                f"{command}\n"
            )
            continue
        with waiting(f"waiting for {client}: {command}"):
            output = await edits.run_own(argv, machine)
        if url := address(change.value, change.target.location.dialect):
            output = output.replace(url, shown_address(url))
        lines = [line for line in output.splitlines() if change.name in line]
        head = f"{client} lists:\n" if lines else ""
        write_out(visible(head + "".join(f"  {line.strip()}\n" for line in lines)))
        if lines and re.search(r"folder is (?:untrusted|not trusted)", output, flags=re.IGNORECASE):
            write_out(
                f"{client} has the entry but runs servers only in trusted folders, and your home "
                "directory isn't one.\n"
            )
        elif not lines or any(map(_FAILED.search, lines)):
            status = 1
            state = "reports a problem with" if lines else "does not list"
            write_err_line(f"{client} {state} {change.name}. `{command}` may show why.")
    return status


def machine_here(settings: Settings) -> Machine:
    return machine_of(context_for(settings))


def _show(planned: Sequence[edits.Change], *, path: str) -> None:
    """Print the changes of one file: the command that the client will run, and one diff."""
    target = planned[0].target
    write_out(visible(f"{target.writer.name} ({target.scope}): {target.path}\n"))
    changing = [each for each in planned if each.before != each.after]
    diff = changing[0].diff(*changing[1:]) if changing else ""
    for change in planned:
        url = address(change.value, target.location.dialect)
        words = shlex.join(command_line(change.value, target.location.dialect)) or url
        lines = [f"  {change.name}: {words}"] if words and change in changing else []
        lines += [f"  through its own command: {shlex.join(argv)}" for argv in change.commands]
        for way, names in (("behind the bridge", change.moved), ("back", change.restored)):
            if names:
                lines.append(f"  {way} ({counted(len(names), 'server')}): {', '.join(names)}")
        lines += [f"  {name} stays: {reason}" for name, reason in change.refused]
        lines += [f"  {note}" for note in change.notes]
        text = visible("".join(f"{line}\n" for line in lines))
        for hidden, shown in ((path, _YOUR_PATH), (url, shown_address(url))):
            text, diff = (each.replace(hidden, shown) if hidden else each for each in (text, diff))
        write_out(text)
    if diff:
        write_diff(f"{diff}\n")
    elif not any(change.refused for change in planned):
        write_out("  already up to date.\n")


def _confirm(change: edits.Change, machine: Machine) -> None:
    path, name = change.target.path, change.name
    entries = edits.installed_entries(machine)
    present = any((each.target.path, each.name) == (path, name) for each in entries)
    if present is (change.action == "uninstall"):
        raise BridgeError(f"{name} is {'still' if present else 'not'} in {path}.")
    write_err_line(f"Added {name} to {path}." if present else f"Removed {name} from {path}.")


def write_found(here: Sequence[Target], discovery: Discovery, machine: Machine) -> None:
    has = {(each.target.path, each.name) for each in edits.installed_entries(machine)}
    write_out(f"{counted(len(here), 'client')} found{':' if here else ''}\n")
    sources = [source for spec in discovery.servers for source in (spec.source, *spec.also)]
    left_out = False
    for target in here:
        path = str(target.path)
        used = sum(source.path == path for source in sources)
        unused = sum(
            not each.foreign and each.source.path == path and (target.path, each.name) not in has
            for each in discovery.skipped
        )
        moved = sum(source.moved_from == path for source in sources)
        left_out |= unused > 0
        state = f", {unused} not used" if unused else ""
        state += f", {moved} moved behind the bridge" if moved else ""
        state += ", has the bridge" if target.path in {path for path, _ in has} else ""
        line = f"  {target.writer.id}: {counted(used + unused, 'server')} in {path}{state}"
        write_out(visible(line, keep="") + "\n")
    names = ", ".join(spec.name for spec in discovery.servers)
    names = names or "the clients have none yet, or none that can be used"
    why = "; `servers` shows why others are not" if left_out else ""
    count = counted(len(discovery.servers), "server")
    write_prose(visible(f"{count} can be used through the bridge: {names}{why}\n"))


def _table(entries: Sequence[edits.InstalledEntry]) -> str:
    text = ""
    for each in entries:
        target, started = each.target, shlex.join(each.command) or shown_address(each.url)
        gone = "  (this program no longer exists)" if each.is_broken else ""
        text += f"{target.writer.id} ({target.scope}) {target.path}\n"
        text += f"  {each.name}: {started}{gone}\n"
    return visible(text)
