"""`background`: shows and ends the background bridges of this user."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import anyio.to_thread

from bridge.background.front import START_SECONDS, connect
from bridge.background.place import (
    Place,
    UnavailableError,
    directory_of,
    place_for,
    places,
    process_start,
)
from bridge.cli.options import AsJson, count
from bridge.cli.output import visible, write_err, write_json, write_out
from bridge.errors import BridgeError
from bridge.settings import Settings
from bridge.text import counted

LOG_NAME = "background.log"  # In the state directory.


async def status(settings: Settings, *, as_json: AsJson = False) -> int:
    """Show the running background bridges, their clients and their servers' processes."""
    found = await anyio.to_thread.run_sync(running, settings.environ)
    if as_json:
        write_json(found, indent=2)
        return 0
    if not found:
        write_err("No background bridge runs. The next client starts one.\n")
    for each in found:
        write_out(_described(each))
    return 0


async def stop(settings: Settings) -> int:
    """Let runs end, and stop; an attached client starts another one when it needs it."""
    await anyio.to_thread.run_sync(end_all, settings.environ, settings.drain_seconds)
    return 0


async def logs(settings: Settings, *, number: Annotated[int, count("how many lines")] = 100) -> int:
    """Print the end of the background bridge's log."""
    last = deque[str](maxlen=number)
    path = settings.state_dir / LOG_NAME
    for part in (path.with_name(f"{LOG_NAME}.1"), path):
        with suppress(FileNotFoundError), part.open(encoding="utf-8", errors="replace") as file:
            last.extend(file)
    write_out("".join(last))
    if not last:
        write_err(f"Nothing has been written to {visible(str(path))}.\n")
    return 0


def places_of(environ: Mapping[str, str], state: str = "") -> list[Place]:
    """Return the places of bridges with a state directory, or of all."""
    found = places(directory_of(environ))
    return [each for each in found if state in ("", each.read_record().get("state"))]


def running(environ: Mapping[str, str], state: str = "") -> list[dict[str, Any]]:
    """Return what each running bridge, or each of a state directory, says of itself; blocks."""
    found = []
    for place in places_of(environ, state):
        with suppress(UnavailableError, OSError):
            if said := ask(place):
                found.append(said)
    return found


def ask(place: Place, **wish: bool) -> dict[str, Any]:
    """Return a bridge's report; empty if none listens there. Blocks for 2 s at most."""
    said: dict[str, Any] = {}
    if (link := connect(place, wish, [], said.update)) is not None:
        link.close()
    return said


def end_all(environ: Mapping[str, str], drain_seconds: float, state: str = "") -> None:
    """End the background bridges, all or of a state directory; blocks until they have ended.

    Raises:
        BridgeError: One does not end.
    """
    ended = 0
    for place in places_of(environ, state):
        number = place.process()
        if number is None:
            continue
        with suppress(UnavailableError, OSError):
            ask(place, stop=True)
        until = time.monotonic() + drain_seconds + START_SECONDS
        while process_start(number):
            if time.monotonic() > until:
                message = f"Process {number}, the background bridge, has not ended."
                raise BridgeError(message, remedy=f"See `background logs`, then `kill {number}`.")
            time.sleep(0.05)
        ended += 1
    if ended or not state:
        write_err(f"{counted(ended, 'background bridge')} stopped.\n")


def check(settings: Settings) -> dict[str, Any]:
    """Return which background bridges run where, or why clients use none; blocks."""
    environ, problem = settings.environ, ""
    try:
        place_for((), environ)
    except UnavailableError as error:
        problem = str(error)
    if settings.background == "off":
        problem = f"{settings.place('background')} is off"
    bridges = running(environ)
    return {"directory": directory_of(environ), "problem": problem, "bridges": bridges}


def describe(found: Mapping[str, Any]) -> str:
    """Describe what `check` has found."""
    if found["problem"]:
        said = f"not used, so each client starts a bridge of its own: {found['problem']}"
    elif found["bridges"]:
        said = f"{counted(len(found['bridges']), 'bridge')} in {found['directory']}"
    else:
        said = f"none runs; the next client starts one in {found['directory']}"
    lines = "".join(map(_described, found["bridges"])).splitlines()
    return "\n      ".join([f"background: {said}", *lines]) + "\n"


def _described(each: Mapping[str, Any]) -> str:
    lines = [f"process {each['pid']} since {each['since']}, {counted(each['runs'], 'run')}"]
    lines += [f"  client in {client['cwd']} since {client['since']}" for client in each["clients"]]
    lines += [
        f"  server {server['server']}: process {server['pid']}, "
        f"{counted(server['clients'], 'client')}"
        for server in each["servers"]
    ]
    return visible("\n".join(lines)) + "\n"
