"""The connections of a bridge, and which of its clients share one.

Clients share a server's process if each would start it in the same way. A server that keeps a state
for its client is not shared. Once a server has asked a client, no further client shares it, because
the protocol does not say to which call a question belongs.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
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

LINGER_SECONDS = 60.0  # From the last client's end to its process's: clients restart.


def share_key(spec: ServerSpec, pool: PoolSettings) -> str:
    """Return a key that is equal for clients that share a process; empty if none do."""
    share = pool.share_of(spec)
    if spec.transport != "stdio" or share == "client":
        return ""
    environ = {name: value for name, value in pool.environ.items() if name != PROJECT}
    identity = [
        *(spec.name, spec.command, spec.executable, spec.args, spec.cwd, spec.apart),
        *(spec.source.scope, sorted(server_environment(environ, spec).items())),
        *("" if share == "user" else pool.cwd, [str(root) for root in pool.roots]),
    ]
    text = json.dumps(identity).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


_OF_WINDOW = re.compile(
    r"_|SHLVL|(OLD)?PWD|TERM(_.*|INAL_EMULATOR)?|COLORTERM|(NO|FORCE)_COLOR|COLUMNS|LINES|WINDOWID"
    r"|TMUX(_.*)?|STY|GPG_TTY|SSH_(CLIENT|CONNECTION|TTY)|npm_(?!config_).*|npm_config_user_agent"
    r"|(ITERM|KITTY|WEZTERM|ALACRITTY|GHOSTTY|WT|KONSOLE|VTE|VSCODE|XDG_SESSION|INIT)_.*"
    # A person sets CODEX_HOME, CURSOR_API_KEY and the like.
    r"|(CLAUDE_CODE|CODEX|GEMINI_CLI|QWEN_CODE|OPENCODE|CURSOR)(_(?!(HOME|API_KEY|OAUTH_TOKEN)$).*)?"
    r"|CLAUDECODE|COPILOT_(AGENT|CLI)_.*|(AI_)?AGENT|COREPACK_ENABLE_AUTO_PIN|NoDefaultCurrentDirectoryInExePath"
)
"""Matches variables of a terminal's window and of a client's process, which servers do not get."""

_OF_CODEX = re.compile(r"[^:]*/(\.codex/tmp/arg0|@openai/codex-)[^:]*:")
"""Matches the directories that each process of Codex puts in front of PATH for its own use."""

PROJECT = "CLAUDE_PROJECT_DIR"
"""Claude Code's variable with the client's directory, on which servers may rely."""


def shared_environment(environ: Mapping[str, str], cwd: str) -> dict[str, str]:
    """Return the part of a client's environment that does not differ by window or process."""
    common = {name: value for name, value in environ.items() if not _OF_WINDOW.fullmatch(name)}
    return {**common, "PATH": _OF_CODEX.sub("", environ.get("PATH", os.defpath)), PROJECT: cwd}


class Connections:
    """All connections of a bridge, as an async context manager; leaving it closes them."""

    def __init__(self, *, are_shared: bool = False) -> None:
        self.are_shared = are_shared  # Whether the pools of several clients use them.
        self._all: dict[Connection, str] = {}
        self._asking = set[str]()  # Keys of ended connections whose server asked a client.
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

    def find(self, key: str, roots: list[str] | None) -> Connection | None:
        """Return a connection that a further client with this key and these roots may use.

        Without a key there is none. Roots are URIs, or None if they are not known.
        """
        same = [each for each, its_key in self._all.items() if its_key == key]
        asks = key in self._asking or any(each.callers.have_been_asked for each in same)
        for each in same if key and not asks else ():
            its_roots = each.expected_roots if each.given_roots is None else each.given_roots
            if each.usable and roots in (None, its_roots):
                return each
        return None

    def start(self, connection: Connection, key: str) -> None:
        if self._tasks is None:
            raise RuntimeError("the pool has to be entered before its servers can be used")
        self._all[connection] = key
        self._tasks.start_soon(self._own, connection)

    def leave(self, connection: Connection, user: ListsChanged, *, drain: bool) -> None:
        """End a client's use. Unused connections close: later if shared, unless `drain`."""
        connection.users.pop(user, None)
        if connection.users:
            return
        connection.inherited = True
        if drain:
            connection.retire()
        elif self._all.get(connection) and self._tasks is not None:
            self._tasks.start_soon(self._linger, connection)
        else:
            connection.stop()

    async def _linger(self, connection: Connection) -> None:
        with anyio.move_on_after(LINGER_SECONDS):
            await connection.ended.wait()
        if not connection.users:
            connection.retire()

    async def _own(self, connection: Connection) -> None:
        try:
            await connection.serve()
        finally:
            key = self._all.pop(connection)
            if connection.callers.have_been_asked:
                self._asking.add(key)

    def report(self) -> list[dict[str, Any]]:
        """Return each connection's server and definition, process id and count of clients."""
        return [
            {
                "server": each.spec.name,
                "definition": each.spec.definition,
                "pid": each.endpoint.pid,
                "clients": len(each.users),
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
