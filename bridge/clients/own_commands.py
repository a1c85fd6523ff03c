"""Runs the clients' own commands: to change a file that the client itself rewrites, and to list.

Each is bounded in time and in what it prints.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace

import anyio

from bridge.clients.install import Change
from bridge.clients.writers import Machine, Writer
from bridge.errors import BridgeError


def with_own_commands(change: Change, machine: Machine) -> Change:
    """Return a change with the client's commands that make it, where its file is not written."""
    target = change.target
    program = machine.program(target.writer.program)
    if not (target.writer.contended and target.scope == "user" and program):
        return change
    # Other users of this machine read a command's arguments, so none has the bridge's token.
    if len(target.table) > 1 or (isinstance(change.value, dict) and "headers" in change.value):
        return change
    remove = (program, "mcp", "remove", "-s", "user", change.name)
    if change.action == "uninstall":
        return replace(change, commands=(remove,) if change.before is not None else ())
    text = json.dumps(change.value, ensure_ascii=False)
    add = (program, "mcp", "add-json", "-s", "user", change.name, text)
    return replace(change, commands=(remove, add) if change.replaces else (add,))


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
        with anyio.fail_after(60):
            done = await anyio.run_process(
                argv,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                check=False,
                env=environ,
                cwd=machine.context.home,
            )
    except TimeoutError:
        message = f"{argv[0]} did not end within 60 seconds."
        raise BridgeError(message, remedy="Run it yourself.") from None
    except OSError as error:
        raise BridgeError(f"{argv[0]} does not start: {error.strerror}.") from None
    said = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stdout.decode("utf-8", "replace"))[:20_000]
    if done.returncode:
        message = f"{' '.join(argv[:3])} failed with status {done.returncode}."
        raise BridgeError(message, host_detail=said.strip()[-1000:])
    return said
