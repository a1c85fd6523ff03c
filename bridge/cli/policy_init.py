"""`policy init` and `policy add`: rules that are proposed from what is configured."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import anyio.to_thread

from bridge.catalog.policy_proposal import propose, server_table
from bridge.cli.output import visible, write_err, write_out
from bridge.cli.person import Person
from bridge.errors import UsageError
from bridge.model import Tool
from bridge.runs import open_engine
from bridge.settings import Settings
from bridge.settings.globs import literal
from bridge.settings.policy_edit import append_policy


async def init(arguments: SimpleNamespace, settings: Settings) -> int:
    """Write a policy into the settings file, or print it.

    Raises:
        UsageError: The file has a policy.
        SettingsError: The file cannot be written.
    """
    path = settings.policy.path
    if not arguments.print and settings.policy.present:
        message = f"{path} has a policy already, which is not changed."
        raise UsageError(message, remedy="`policy init --print` prints a new one to take from.")
    text = await _proposal(settings)
    if arguments.print or path is None:
        write_out(text)
        return 0
    await anyio.to_thread.run_sync(append_policy, path, text)
    write_err(
        visible(
            f"Written to {path}. Read it through before you rely on it: it goes by names and by "
            "what the servers say. `mcp-code-bridge policy explain SERVER TOOL` shows what a line "
            "comes to.\n"
        )
    )
    return 0


async def add(arguments: SimpleNamespace, settings: Settings) -> int:
    """Show what a policy could say of one more server, ask, and write it.

    Returns:
        1 if a person says no.

    Raises:
        UsageError: There is no policy, or it says something of the server, or no one can be asked.
        UpstreamError: The server does not list its tools.
    """
    path, policy = settings.policy.path, settings.policy
    if not policy.present or path is None:
        raise UsageError("There is no policy to add to.", remedy="`policy init` writes one.")
    async with open_engine(settings) as engine:
        name = engine.servers.resolve(arguments.server)
        if any(table.servers == literal(name) for table in policy.servers):
            message = f"{path} has a table [policy.servers] about {name} already."
            raise UsageError(message, remedy="Edit it there.")
        for error in (await engine.servers.load_unknown([name], patient=True)).values():
            raise error
        text = server_table(name, engine.servers.inventory.tools(name) or ())
    write_out(visible(text))
    if not arguments.yes:
        person = Person(sys.stdin, sys.stderr)
        if not person.attended:
            raise UsageError("Nothing was written: no person can be asked.", remedy="Pass --yes.")
        if not await person.confirm(f"Add this to {path}?"):
            return 1
    await anyio.to_thread.run_sync(append_policy, path, f"\n{text}")
    write_err(visible(f"Added to {path}.\n"))
    return 0


async def _proposal(settings: Settings) -> str:
    async with open_engine(settings) as engine:
        names = engine.servers.names()
        errors = await engine.servers.load_unknown(names, patient=True)
        tools: dict[str, tuple[Tool, ...]] = {}
        silent = {name: visible(error.message, keep="") for name, error in errors.items()}
        for name in names:
            found = engine.servers.inventory.tools(name)
            if name not in silent and found is not None:
                tools[name] = found
    for name, error in errors.items():
        write_err(visible(f"warning: {name}: {error}\n"))
    return propose(tools, silent)
