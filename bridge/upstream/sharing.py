"""The connections of a bridge, and which of its clients share one.

Clients share a server's process if each would start it in the same way. A server that keeps
something for each client is not shared. Neither is one that has asked a client something, since
the protocol does not say to whose call a question belongs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from typing import Any

import anyio
from anyio.abc import TaskGroup

from bridge.event_loop import background_tasks
from bridge.model import ServerSpec
from bridge.upstream.connection import Connection, ListsChanged, PoolSettings
from bridge.upstream.launch import server_environment
from bridge.upstream.process import STOP_SECONDS, reap_orphans

logger = logging.getLogger(__name__)

LINGER_SECONDS = 60.0  # Of a shared process whose last client has gone: clients restart.


def share_key(spec: ServerSpec, pool: PoolSettings) -> str:
    """Return a key that is equal for clients that can share a process; empty for none."""
    share = pool.share_of(spec)
    if spec.transport != "stdio" or share == "client":
        return ""
    identity = [
        *(spec.name, spec.command, spec.executable, spec.args, spec.cwd, spec.apart),
        *(spec.source.scope, sorted(server_environment(pool.environ, spec).items())),
        *("" if share == "user" else pool.cwd, [str(root) for root in pool.roots]),
    ]
    text = json.dumps(identity).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


_OF_WINDOW = re.compile(
    r"_|SHLVL|(OLD)?PWD|TERM(_.*|INAL_EMULATOR)?|COLORTERM|COLUMNS|LINES|WINDOWID|TMUX(_.*)?|STY|GPG_TTY"
    r"|(ITERM|KITTY|WEZTERM|ALACRITTY|GHOSTTY|WT|KONSOLE|VTE|VSCODE|SSH|XDG_SESSION|npm|INIT)_.*"
    r"|CLAUDECODE|(CLAUDE_CODE|CODEX|GEMINI_CLI|QWEN_CODE|OPENCODE|CURSOR)(_.*)?"
)
"""Matches variables of a terminal's window and of a client's process, which servers do not get."""


def without_window(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what tells a client's window from another one."""
    return {name: value for name, value in environ.items() if not _OF_WINDOW.fullmatch(name)}


class Connections:
    """All connections of a bridge, as an async context manager; leaving it closes them.

    Args:
        are_shared: Whether pools of several clients use them.
    """

    def __init__(self, *, are_shared: bool = False) -> None:
        self.are_shared = are_shared
        self._all: dict[Connection, str] = {}
        self._tasks: TaskGroup | None = None
        self._context = background_tasks()

    def __len__(self) -> int:
        return len(self._all)

    async def __aenter__(self) -> Connections:
        self._tasks = await self._context.__aenter__()
        self._tasks.start_soon(_reap_orphans)
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self._all:
            connection.stop()
        # The longest stop of one process, and a margin.
        with anyio.move_on_after(STOP_SECONDS + 2.0, shield=True) as scope:
            for connection in tuple(self._all):
                await connection.ended.wait()
        if scope.cancelled_caught:
            logger.warning("gave up waiting for %d connections to close", len(self._all))
        self._tasks = None
        await self._context.__aexit__(None, None, None)

    def find(self, key: str) -> Connection | None:
        """Return a connection that another client with this key may use."""
        found = (each for each, its in self._all.items() if its == key and self.are_shared and key)
        return next((each for each in found if each.usable and not each.asks), None)

    def start(self, connection: Connection, key: str) -> None:
        if self._tasks is None:
            raise RuntimeError("the pool has to be entered before its servers can be used")
        self._all[connection] = key
        self._tasks.start_soon(self._own, connection)

    def leave(self, connection: Connection, user: ListsChanged, *, drain: bool) -> None:
        """End a server's use of a connection, and close it if it was the last."""
        connection.servers.pop(user, None)
        if connection.servers:
            return
        if drain:
            connection.retire()
        elif self.are_shared and self._all.get(connection) and self._tasks is not None:
            self._tasks.start_soon(self._linger, connection)
        else:
            connection.stop()

    async def _linger(self, connection: Connection) -> None:
        with anyio.move_on_after(LINGER_SECONDS):
            await connection.ended.wait()
        if not connection.servers:
            connection.retire()

    async def _own(self, connection: Connection) -> None:
        try:
            await connection.serve()
        finally:
            del self._all[connection]

    def report(self) -> list[dict[str, Any]]:
        """Return each process with the count of clients that use it."""
        return [
            {
                **{"server": each.spec.name, "definition": each.spec.definition},
                **{"pid": each.endpoint.pid, "clients": len(each.servers)},
            }
            for each in self._all
        ]


async def _reap_orphans() -> None:
    try:
        count = await reap_orphans()
    except OSError as error:
        logger.warning("could not look for processes of earlier bridges: %s", error)
        return
    if count:
        logger.warning("ended %d processes that an earlier bridge had left behind", count)
