"""The stage's examination of a command's isolation, and the verdict on it.

Programs have a guest that reports what it sees of its isolation; a command has none. So the stage
runs the guest's examination after everything is in force and before it executes the command.

Enforces: the command starts only after the host has judged the report; the mandatory layers of
`layers`, and no mount that was not requested.
"""

from __future__ import annotations

import base64
import json
import marshal
import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import anyio

from bridge.errors import LaunchError
from bridge.model import Isolation
from bridge.sandbox.bundle import guest_modules
from bridge.sandbox.layers import of_command
from bridge.sandbox.process import stage
from bridge.sandbox.process.pipes import read_now, wait_ready
from bridge.sandbox.process.stage_loader import LIST_VERSION, compile_with

Judge = Callable[[Mapping[str, Any]], Isolation]


def compiled(executable: str) -> str:
    """Return the examination's code, compiled by an interpreter, in base64. Blocks.

    Compiling it in each stage would cost 8 ms there; loading it costs a tenth.
    """
    modules = guest_modules()
    texts = [
        modules["bridge.guest.supervisor.isolation_facts"],
        modules["bridge.guest.supervisor.denial_probes"],
    ]
    codes = compile_with(executable, texts, name="<examination>")
    return base64.b64encode(marshal.dumps(codes, LIST_VERSION)).decode("ascii")


def judged(isolation: Isolation, facts: Mapping[str, Any], places: Mapping[str, bool]) -> Isolation:
    """Return the isolation of a command as it was seen from inside.

    Args:
        places: The requested mounts: path inside, and whether it is writable.
    """
    strays = unexpected_mounts(facts.get("mount_table"), places)
    return of_command(isolation, {**facts, "unexpected_mounts": strays})


def unexpected_mounts(table: object, places: Mapping[str, bool]) -> list[str] | None:
    """Return mounts that were not requested, or are writable against it; None if unknown.

    Mounts below a requested host path belong to it.
    """
    if not isinstance(table, list) or not table:
        return None
    found = []
    for row in table:
        path, read_only = _unescaped(str(row[0])), row[1] is True
        place = _innermost(path, places)
        if place is None or not (read_only or places[place]):
            found.append(path)
    return found


def _innermost(path: str, places: Collection[str]) -> str | None:
    covering = [
        place
        for place in places
        if path == place or (place != "/" and path.startswith(place + "/"))
    ]
    return max(covering, key=len, default=None)


def _unescaped(text: str) -> str:
    """Undo a mount table's octal escapes."""
    for character in " \t\n":
        text = text.replace(f"\\{ord(character):03o}", character)
    return text.replace("\\134", "\\")


async def receive_examination(
    status: int, permission: int, judge: Judge
) -> tuple[Isolation | None, bytes]:
    """Read the stage's report, judge it and permit the stage to continue.

    Args:
        permission: Descriptor on which the stage waits for permission.

    Returns:
        The isolation as seen from inside, None if the stage failed before; and further bytes read.

    Raises:
        SandboxError: A mandatory layer does not hold.
    """
    os.set_blocking(status, False)
    said = b""
    while b"\n" not in said and len(said) < 512 * 1024:
        data = read_now(status)
        if data is None:
            await wait_ready(anyio.wait_readable, status)
        elif data:
            said += data
        else:
            return None, said
    line, _, rest = said.partition(b"\n")
    try:
        facts = json.loads(line)
    except ValueError:
        facts = None
    if not isinstance(facts, dict):
        message = f"The sandbox's first process sent no report of its isolation but {line[:200]!r}."
        raise LaunchError(message)
    isolation = judge(facts)
    with suppress(BrokenPipeError):  # it ended; the missing confirmation shows that
        os.write(permission, stage.PERMISSION)
    return isolation, rest
