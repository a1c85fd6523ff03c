"""`logs`: what servers wrote to stderr, as the bridge kept it."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import Annotated

from bridge.cli import completion
from bridge.cli.options import arg, count
from bridge.cli.output import write_err, write_out
from bridge.errors import UnknownError
from bridge.settings import Settings, parsers
from bridge.upstream.server_log import log_path


async def logs(
    settings: Settings,
    server: Annotated[
        str | None, arg("SERVER", "its name; else logs are listed", completion.servers)
    ] = None,
    *,
    number: Annotated[int, count("how many lines")] = 100,
) -> int:
    """Show what a server wrote to stderr.

    The bridge keeps the last 1 to 2 MiB of each server.
    """
    directory = settings.state_dir / "logs"
    names = sorted(path.stem for path in directory.glob("*.log"))
    if server is None:
        write_out("".join(f"{name}\n" for name in names))
        write_err("" if names else "No server has written to stderr.\n")
        return 0
    path, last = log_path(directory, server), deque[str](maxlen=number)
    if path.stem not in names:
        near = parsers.nearest(server, names)
        remedy = f"Did you mean {near}?" if near else "`logs` lists the logs."
        raise UnknownError(
            f"There is no log of a server {server!r:.80}.", remedy=remedy, code="unknown_server"
        )
    # The older file ends where the newer one begins.
    for part in (path.with_name(f"{path.name}.1"), path):
        with suppress(FileNotFoundError), part.open(encoding="utf-8", errors="replace") as file:
            last.extend(file)
    write_out("".join(last))
    return 0
