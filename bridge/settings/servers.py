"""What the user sets for single servers, from `[servers.NAME]` of `config.toml`. Pure.

For what no client's configuration has a field for. A server is named as the clients' files name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast, get_args

from bridge.errors import SettingsError
from bridge.model import Era, Json

MAX_SERVERS = 500
"""More than anybody configures."""


def parse_eras(tables: Json, place: str) -> Mapping[str, Era]:
    """Return the `protocol` of each table in the `servers` table at `place`.

    Raises:
        SettingsError: One has a key or a value that cannot be.
    """
    if not isinstance(tables, Mapping) or len(tables) > MAX_SERVERS:
        message = f"{place} must hold at most {MAX_SERVERS} tables, such as [servers.github]."
        raise SettingsError(message)
    eras: dict[str, Era] = {}
    for name, table in tables.items():
        if not isinstance(table, Mapping):
            raise SettingsError(f"{place}.{name} must be a table, such as [servers.github].")
        for key in table.keys() - {"protocol"}:
            raise SettingsError(f"{place}.{name}.{key} is no setting of a server. Known: protocol.")
        era = table.get("protocol", "auto")
        if era not in get_args(Era):
            known = ", ".join(get_args(Era))
            message = f"{place}.{name}.protocol must be one of {known}, not {era!r:.100}."
            raise SettingsError(message)
        eras[name] = cast("Era", era)
    return eras
