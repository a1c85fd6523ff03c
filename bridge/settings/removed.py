"""Settings that were removed, and what replaces each.

To set one is an error, in a flag, the environment or `config.toml`, so that no user believes that
it has an effect. An entry stays here for one release.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.errors import SettingsError

REMOVED_SETTINGS: Mapping[str, str] = {
    "dependencies.require_hashes": "Hashes are always recorded, and always demanded.",
    "isolation": "Each run has a sandbox of its own; MCP_BRIDGE_WARM says how many wait ready.",
    "type_checker": "Programs are checked before they run; MCP_BRIDGE_PREFLIGHT says whether.",
}
"""Removed keys of `config.toml`, as TABLE.KEY if they were in a table, with their replacements. A
key without a dot was a variable and a flag too."""


def reject_removed(name: str, place: str) -> None:
    """Raise if a setting was removed.

    Args:
        name: As in `REMOVED_SETTINGS`.
        place: Where it is set: a flag, a variable, or a line of the file.

    Raises:
        SettingsError: It was removed; the remedy says what replaces it.
    """
    if name in REMOVED_SETTINGS:
        message = f"{place}: this setting no longer exists; remove it."
        raise SettingsError(message, remedy=REMOVED_SETTINGS[name])
