"""Runs the clients' own commands: to change a file that the client itself rewrites, and to list.

Each is bounded in time and in what it prints.
"""

from __future__ import annotations

import json
import re
import subprocess

import anyio

from bridge.clients.install import Change
from bridge.clients.writers import Machine, Writer
from bridge.errors import BridgeError

SECONDS = 60.0  # For a client to start, and to connect to each of its servers.

Commands = tuple[tuple[str, ...], ...]

Planned = tuple[Change, Commands]
"""A change, and the client's own commands that make it in place of us; none for most."""


def own_commands(change: Change, machine: Machine) -> Commands:
    """Return the client's commands that make a change; none where its file is written."""
    target = change.target
    program = machine.program(target.writer.program)
    if not (target.writer.contended and target.scope == "user" and program):
        return ()
    # Other users of this machine read a command's arguments, so none has the bridge's token.
    if len(target.table) > 1 or (isinstance(change.value, dict) and "headers" in change.value):
        return ()
    of_user = ("mcp", "remove", "-s", "user", change.name)
    remove = ((program, *of_user),) if change.before is not None else ()
    if change.action == "uninstall":
        return remove
    text = json.dumps(change.value, ensure_ascii=False)
    add = (program, "mcp", "add-json", "-s", "user", change.name, text)
    return (*(remove if change.replaces else ()), add)


def listing(writer: Writer, machine: Machine) -> tuple[str, ...]:
    """Return the command with which a client lists its servers; empty if there is none here."""
    program = machine.program(writer.program)
    return (program, *writer.listing) if program and writer.listing else ()


async def run_own(argv: tuple[str, ...], machine: Machine) -> str:
    """Run a client's command; return what it prints.

    It runs in the home directory: to list servers, some clients start those of the project that
    they are in, approved or not.

    Raises:
        BridgeError: It failed, or did not end.
    """
    environ = {**machine.context.environ, "NO_COLOR": "1", "FORCE_COLOR": "0"}
    try:
        with anyio.fail_after(SECONDS):
            done = await anyio.run_process(
                argv,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                check=False,
                env=environ,
                cwd=machine.context.home,
            )
    except TimeoutError:
        message = f"{argv[0]} did not end within {SECONDS:.0f} seconds."
        raise BridgeError(message, remedy="Run it yourself.") from None
    except OSError as error:
        raise BridgeError(f"{argv[0]} does not start: {error.strerror}.") from None
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout.decode("utf-8", "replace"))[:20_000]
    if done.returncode:
        message = f"{' '.join(argv[:3])} failed with status {done.returncode}."
        raise BridgeError(message, host_detail=said.strip()[-1000:])
    return said
