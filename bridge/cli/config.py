"""`config`: the settings in force, and where each comes from."""

from __future__ import annotations

from collections.abc import Mapping

from bridge.cli.options import AsJson
from bridge.cli.output import visible, write_json, write_out, write_table
from bridge.model import Json
from bridge.settings import SETTINGS, Settings, config_path

_BY_STRICT = frozenset({"listed_servers_only", "guard", "project_servers"})
"""What a strict profile sets, whatever else is said."""

_TABLES = {
    "policy": "rules", "commands": "profiles", "directories": "directories",
    "server_settings": "servers",
}  # fmt: skip


async def show_config(settings: Settings, *, as_json: AsJson = False) -> int:
    """Show each setting and where it comes from.

    The place is a flag, a variable, a line of the settings file, or the default. Passwords in
    addresses are left out.
    """
    path = config_path(settings.environ)
    places = {name: _place(name, settings) for name in SETTINGS}
    if as_json:
        values: Mapping[str, Json] = {
            name: {"value": _plain(getattr(settings, name)), "from": place}
            for name, place in places.items()
        }
        write_json({"file": str(path), "settings": values}, indent=2)
        return 0
    rows = [(name, _text(getattr(settings, name)), place) for name, place in places.items()]
    write_table(("SETTING", "VALUE", "FROM"), rows)
    there = "" if path.exists() else " (there is none)"
    write_out(visible(f"\nSettings file: {path}{there}\n"))
    for name, what in _TABLES.items():
        table = getattr(settings, name)
        count = len(table.rules if name == "policy" else table)
        if count:
            write_out(f"It has {count} {what}.\n")
    return 0


def _place(name: str, settings: Settings) -> str:
    if settings.strict and name in _BY_STRICT:
        return "profile strict"
    return settings.places.get(name, "default")


def _plain(value: object) -> Json:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value and value % 1024**2 == 0:
        return f"{value // 1024**2}m"
    return "-" if value in (None, "") else str(value)
