"""`background`: shows and ends this user's background bridges, and prints their log."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Any

import anyio.to_thread

from bridge.background_instance import (
    START_SECONDS,
    Instance,
    UnavailableError,
    ask,
    ask_or_end,
    directory_of,
    instance_for,
    instances,
    process_start,
)
from bridge.cli.options import AsJson, count
from bridge.cli.output import visible, write_err, write_json, write_out
from bridge.errors import BridgeError
from bridge.settings import Settings
from bridge.text import counted

LOG_NAME = "background.log"  # In the state directory.


async def status(settings: Settings, *, as_json: AsJson = False) -> int:
    """A client has its directory, and a server its process and its number of clients.

    In JSON `runs` is null for a bridge that does not answer.
    """
    bridges = await anyio.to_thread.run_sync(ask_all, settings.environ)
    if as_json:
        write_json(bridges, indent=2)
        return 0
    if not bridges:
        write_err("No background bridge answers. The next client starts one.\n")
    for report in bridges:
        write_out(_describe(report))
    return 0


async def stop(settings: Settings) -> int:
    """Runs get `drain_seconds` to end. An open client's next request starts another."""
    await anyio.to_thread.run_sync(end_all, settings.environ, settings.drain_seconds)
    return 0


async def logs(settings: Settings, *, number: Annotated[int, count("how many lines")] = 100) -> int:
    """Reads `background.log` and `background.log.1` in the state directory."""
    last = deque[str](maxlen=number)
    path = settings.state_dir / LOG_NAME
    for part in (path.with_name(f"{LOG_NAME}.1"), path):
        with suppress(FileNotFoundError), part.open(encoding="utf-8", errors="replace") as file:
            last.extend(file)
    write_out("".join(last))
    if not last:
        write_err(f"Nothing has been written to {visible(str(path))}.\n")
    return 0


def _instances(environ: Mapping[str, str], state: str) -> list[Instance]:
    """Return the bridges with a state directory, or all for an empty one."""
    recorded = instances(directory_of(environ))
    return [instance for instance in recorded if state in ("", instance.read_record().get("state"))]


def ask_all(environ: Mapping[str, str], state: str = "") -> list[dict[str, Any]]:
    """Return the reports of the running bridges, all or of a state directory. Blocks.

    `runs` is None for a bridge that does not answer.
    """
    reports = []
    for instance in _instances(environ, state):
        with suppress(UnavailableError, OSError):
            try:
                report = ask(instance)
            except TimeoutError:
                known = {"pid": instance.process(), "since": instance.read_record().get("since")}
                report = {**known, "clients": [], "runs": None, "servers": []}
            if report.get("pid"):
                reports.append(report)
    return reports


def end_all(environ: Mapping[str, str], drain_seconds: float, state: str = "") -> None:
    """End the background bridges, all or of a state directory. Blocks until they have ended.

    Raises:
        BridgeError: A bridge still runs 30 s after its runs have had `drain_seconds` to end.
    """
    ended = 0
    for instance in _instances(environ, state):
        number = instance.process()
        if number is None:
            continue
        with suppress(UnavailableError, OSError):
            ask_or_end(instance, stop=True)
        until = time.monotonic() + drain_seconds + START_SECONDS
        while process_start(number):
            if time.monotonic() > until:
                message = f"Process {number}, the background bridge, has not ended."
                raise BridgeError(message, remedy=f"See `background logs`, then `kill {number}`.")
            time.sleep(0.05)
        ended += 1
    if ended or not state:
        more = " The next request of an open client starts another." if ended else ""
        write_err(f"{counted(ended, 'background bridge')} stopped.{more}\n")


def check(settings: Settings) -> dict[str, Any]:
    """Return the sockets' directory, why clients do not use it, and the bridges. Blocks."""
    environ, problem = settings.environ, ""
    try:
        if (lock := instance_for((), environ).hold_lock()) is not None:
            os.close(lock)
    except (UnavailableError, OSError) as error:
        problem = str(error)
    if settings.background == "off":
        problem = f"{settings.place('background')} is off"
    return {"directory": directory_of(environ), "problem": problem, "bridges": ask_all(environ)}


def describe(facts: Mapping[str, Any]) -> str:
    """Describe the facts of `check` in lines for `doctor`."""
    bridges = facts["bridges"]
    if facts["problem"]:
        use = f"not used, so each client starts a bridge of its own: {facts['problem']}"
    elif bridges:
        use = f"{counted(len(bridges), 'bridge')} in {facts['directory']}"
    else:
        use = f"none answers, the next client starts one in {facts['directory']}"
    lines = "".join(map(_describe, bridges)).splitlines()
    return "\n      ".join([f"background: {use}", *lines]) + "\n"


def _describe(report: Mapping[str, Any]) -> str:
    state = "does not answer" if report["runs"] is None else f"runs: {report['runs']}"
    lines = [f"bridge: process {report['pid']} since {report['since']}, {state}"]
    lines += [f"  client in {each['cwd']} since {each['since']}" for each in report["clients"]]
    for each in report["servers"]:
        users = counted(each["clients"], "client")
        lines.append(f"  server {each['server']}: process {each['pid']}, {users}")
    return visible("\n".join(lines)) + "\n"
