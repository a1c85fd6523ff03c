"""The client programs with known limits; docs/clients.md has the measurements. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

ANSWERED_AT = 0.9
"""Share of a client's time limit after which the bridge answers; the rest is for delivery."""


@dataclass(frozen=True, kw_only=True)
class KnownClient:
    """A client program.

    Attributes:
        source: Its name among discovery's sources, whose files may set its limit.
        seconds: How long it waits for a call despite progress; infinite if progress is enough.
        variable: The inherited variable with its limit in milliseconds.
        parses_text: Parses JSON text as structured content and refuses results that are not
            objects, such as that of `print(1+1)`; it always shows the text.
        defers: Shows its model most tools only if the model searches for them.
        shows_failures: Shows its model failed results as JSON with `_meta`: 500 tokens, not 74.
    """

    source: str = ""
    seconds: float = math.inf
    variable: str = ""
    parses_text: bool = False
    shows_failures: bool = False
    defers: bool = False

    def patience(self, configured: Mapping[str, float], environ: Mapping[str, str]) -> float:
        """Return the seconds after which the bridge must answer a call; see `own_limits`."""
        given = environ.get(self.variable, "")
        inherited = float(given) / 1000 if given.isascii() and given.isdigit() else 0.0
        return ANSWERED_AT * configured.get(self.source, inherited or self.seconds)


_CLIENTS: Mapping[str, KnownClient] = {
    "claude-code": KnownClient(source="claude-code", variable="MCP_TOOL_TIMEOUT", defers=True),
    "claude-ai": KnownClient(seconds=60),
    "codex-mcp-client": KnownClient(source="codex", seconds=300, defers=True),
    "cursor-vscode": KnownClient(seconds=300),
    "gemini-cli-mcp-client": KnownClient(
        source="gemini", seconds=600, parses_text=True, shows_failures=True
    ),
    "qwen-cli-mcp-client": KnownClient(
        source="qwen", seconds=600, shows_failures=True, defers=True
    ),
}


def find_deferring() -> frozenset[str]:
    """Return the names in discovery of the clients that defer tools."""
    return frozenset(each.source for each in _CLIENTS.values() if each.defers)


def find_client(name: str) -> KnownClient:
    """Return the client whose table name is a prefix of `name`; a default if there is none."""
    return next((_CLIENTS[each] for each in _CLIENTS if name.startswith(each)), KnownClient())
