"""Which clients' configurations are read: pure.

Owns the meaning of `MCP_BRIDGE_SOURCES`: names of sources to read, or names with a "-" in front for
all but those. What `MCP_SERVERS_CONFIG` names is always read.
"""

from __future__ import annotations

import difflib

from bridge.discovery.clients import LOCATIONS, SOURCE_IDS, Location, Platform
from bridge.discovery.report import ConfigWarning, shown

VARIABLE = "MCP_BRIDGE_SOURCES"


def locations_read(sources: tuple[str, ...], platform: Platform) -> tuple[Location, ...]:
    """The rows of the table that count, strongest first."""
    named = {name.removeprefix("-") for name in sources}
    without = any(name.startswith("-") for name in sources)
    return tuple(
        row
        for row in LOCATIONS
        if platform in row.platforms
        and (not row.id or not sources or (row.id in named) is not without)
    )


def unknown_sources(sources: tuple[str, ...], place: str = VARIABLE) -> tuple[ConfigWarning, ...]:
    """What to say of names that are none, each with the nearest that is one."""
    said = []
    for name in sources:
        bare = name.removeprefix("-")
        if bare not in SOURCE_IDS:
            near = difflib.get_close_matches(bare, SOURCE_IDS, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            reason = f'"{shown(bare)}" is no source; {guess}known are {", ".join(SOURCE_IDS)}'
            said.append(ConfigWarning(path=place, key="", reason=reason, own=True))
    return tuple(said)
