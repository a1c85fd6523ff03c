"""Settings that are gone, and what replaces each.

To set one is a mistake like any other, in a flag, the environment or `config.toml`, so that nobody
goes on believing that it does something. An entry stays here for one release.
"""

from __future__ import annotations

from collections.abc import Mapping

from bridge.errors import SettingsError

REMOVED_SETTINGS: Mapping[str, str] = {
    "dependencies.require_hashes": "Hashes are always recorded, and always demanded.",
    "isolation": "Each run has a sandbox of its own; MCP_BRIDGE_WARM says how many wait ready.",
    "type_checker": "Programs are checked before they run; MCP_BRIDGE_PREFLIGHT says whether.",
}
"""What was a key of `config.toml`, with its table's name and a dot before it if it stood in one, to
what replaces it. One without a dot was a variable and a flag too."""


def reject_removed(name: str, place: str) -> None:
    """Refuse a setting that is gone.

    Args:
        name: As in `REMOVED_SETTINGS`.
        place: Where it is set: a flag, a variable, or a line of the file.

    Raises:
        SettingsError: It is gone; says what replaces it.
    """
    if name in REMOVED_SETTINGS:
        message = f"{place}: this setting is gone; remove it."
        raise SettingsError(message, remedy=REMOVED_SETTINGS[name])
