"""`policy init` and `policy add`: rules that are proposed from what is configured."""

from __future__ import annotations

from typing import Annotated

import anyio.to_thread

from bridge.catalog.policy_proposal import propose, server_table
from bridge.cli.engine import open_engine
from bridge.cli.options import Server, Yes, flag
from bridge.cli.output import visible, write_err, write_out, write_warning
from bridge.cli.person import Person
from bridge.cli.status import waiting
from bridge.errors import UsageError
from bridge.model import Tool
from bridge.settings import Settings
from bridge.settings.globs import literal
from bridge.settings.policy_edit import append_policy


async def init(
    settings: Settings,
    *,
    printed: Annotated[bool, flag("--print", "print it, and write nothing")] = False,
) -> int:
    """Create a policy for your servers.

    Asks the servers for their tools, and adds a policy to config.toml.

    Examples:
        policy init --print
    """
    path = settings.policy.path
    if not printed and settings.policy.present:
        message = f"{path} already has a [policy]; left unchanged."
        raise UsageError(message, remedy="Use `policy init --print` to see a new one.")
    text = await _proposal(settings)
    if printed or path is None:
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


async def add(settings: Settings, *, server: Server, yes: Yes = False) -> int:
    """Propose rules for one more server.

    Shows them, asks, and adds them to config.toml.

    Examples:
        policy add github
    """
    path, policy = settings.policy.path, settings.policy
    if not policy.present or path is None:
        raise UsageError("There is no policy to add to.", remedy="`policy init` writes one.")
    async with open_engine(settings) as engine:
        name = engine.servers.resolve(server)
        if any(table.servers == literal(name) for table in policy.servers):
            message = f"{path} has a table [policy.servers] about {name} already."
            raise UsageError(message, remedy="Edit it there.")
        for error in (await engine.servers.load_unknown([name], patient=True)).values():
            raise error
        text = server_table(name, engine.servers.inventory.tools(name) or ())
    write_out(visible(text))
    question = f"Add this to {path}?"
    if not await Person().agrees(question, yes=yes, nothing="Nothing was written"):
        return 1
    await anyio.to_thread.run_sync(append_policy, path, f"\n{text}")
    write_err(visible(f"Added to {path}.\n"))
    return 0


async def _proposal(settings: Settings) -> str:
    async with open_engine(settings) as engine:
        names = engine.servers.names()
        with waiting(f"asking {', '.join(names)} for their tools"):
            errors = await engine.servers.load_unknown(names, patient=True)
        tools: dict[str, tuple[Tool, ...]] = {}
        silent = {name: visible(error.message, keep="") for name, error in errors.items()}
        for name in names:
            found = engine.servers.inventory.tools(name)
            if name not in silent and found is not None:
                tools[name] = found
    for name, error in errors.items():
        write_warning(f"{name}: {error}")
    return propose(tools, silent)
