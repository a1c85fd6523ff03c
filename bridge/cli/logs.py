"""`logs`: what servers wrote to stderr, as the bridge kept it."""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import anyio
import anyio.to_thread

from bridge.cli.audit_lines import local_time
from bridge.cli.options import arg, flag, opt
from bridge.cli.output import write_err, write_out, write_table
from bridge.errors import UnknownServerError, UsageError
from bridge.render.text import size_text
from bridge.settings import Settings, parsers
from bridge.upstream.server_log import log_path

MAX_LINES = 100_000

_Place = tuple[int, int]  # A file's inode, and how far it was read.


async def logs(
    settings: Settings,
    server: Annotated[str | None, arg("SERVER", "its name; else logs are listed")] = None,
    *,
    number: Annotated[int, opt("N", "how many lines", "-n")] = 100,
    follow: Annotated[bool, flag("-f", "keep printing new lines", "--follow")] = False,
) -> int:
    """Show what a server wrote to stderr.

    The bridge keeps the last 1 to 2 MiB of each server.
    """
    directory = settings.state_dir / "logs"
    if not 0 <= number <= MAX_LINES:
        raise UsageError(f"-n must be between 0 and {MAX_LINES:,}, not {number}.")
    if server is None:
        return _list(directory)
    path = log_path(directory, server)
    if not path.exists() and not follow:
        raise _unknown(server, directory)
    text, place = _last(path, number)
    write_out(text)
    while follow:
        await anyio.sleep(0.25)
        text, place = await anyio.to_thread.run_sync(_since, path, place)
        write_out(text)
    return 0


def _last(path: Path, count: int) -> tuple[str, _Place]:
    """Return the last lines of a log, and the place of its end."""
    last = deque[str](maxlen=count)
    place = (0, 0)
    # The older file ends where the newer one begins.
    for part in (path.with_name(f"{path.name}.1"), path):
        with suppress(FileNotFoundError), part.open("rb") as file:
            last.extend(line.decode("utf-8", "replace") for line in file)
            place = os.fstat(file.fileno()).st_ino, file.tell()
    return "".join(last), place


def _since(path: Path, place: _Place) -> tuple[str, _Place]:
    """Return what was written after a place, and the place of its end."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        inode = os.fstat(file.fileno()).st_ino
        file.seek(place[1] if inode == place[0] else 0)
        return file.read().decode("utf-8", "replace"), (inode, file.tell())
    return "", place


def _list(directory: Path) -> int:
    rows = []
    for path in sorted(directory.glob("*.log")):
        found = path.stat()
        moment = datetime.fromtimestamp(found.st_mtime, UTC).isoformat()
        rows.append((path.stem, local_time(moment), size_text(found.st_size)))
    if rows:
        write_table(("SERVER", "WRITTEN", "SIZE"), rows)
    else:
        write_err("No server has written to stderr.\n")
    return 0


def _unknown(server: str, directory: Path) -> UnknownServerError:
    names = [path.stem for path in directory.glob("*.log")]
    near = parsers.nearest(server, names)
    remedy = f"Did you mean {near}?" if near else "`logs` lists the logs."
    return UnknownServerError(f"There is no log of a server {server!r:.80}.", remedy=remedy)
