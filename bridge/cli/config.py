"""`config`: the settings in force, and where each comes from."""

from __future__ import annotations

from bridge.cli.help import value_text
from bridge.cli.options import AsJson
from bridge.cli.output import visible, write_json, write_out, write_table
from bridge.model import Json
from bridge.settings import SETTINGS, Settings, config_path
from bridge.settings.values import STRICT_CAPS

_BY_STRICT = frozenset({"listed_servers_only", "guard", "project_servers"})
"""What a strict profile sets, whatever else is said."""


async def show_config(settings: Settings, *, as_json: AsJson = False) -> int:
    """Show each setting and where it comes from.

    The place is a flag, a variable, a line of the settings file, or the default. Passwords in
    addresses are left out.
    """
    path = config_path(settings.environ)
    values: dict[str, Json] = {name: _plain(getattr(settings, name)) for name in SETTINGS}
    places = {name: settings.places.get(name, "default") for name in SETTINGS}
    if settings.strict:
        capped = {name for name, cap in STRICT_CAPS.items() if values[name] == cap}
        places |= dict.fromkeys(_BY_STRICT | capped, "profile strict")
    if as_json:
        found = {name: {"value": value, "from": places[name]} for name, value in values.items()}
        write_json({"file": str(path), "settings": found}, indent=2)
        return 0
    rows = [(name, value_text(value) or "-", places[name]) for name, value in values.items()]
    write_table(("SETTING", "VALUE", "FROM"), rows)
    missing = "" if path.exists() else " (there is none)"
    write_out(visible(f"\nSettings file: {path}{missing}\n"))
    return 0


def _plain(value: object) -> Json:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    # An address as text is without its password.
    return value if value is None or isinstance(value, bool | int | float) else str(value)
