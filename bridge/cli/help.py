"""Formats help texts for terminals and pipes, and lists the settings."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

from bridge.cli.line import PROGRAM, flag_of
from bridge.cli.options import AsJson
from bridge.cli.output import terminal_width, visible, write_help, write_json, write_list
from bridge.model import Json
from bridge.settings import SETTINGS, Settings, config_path, variable
from bridge.settings.values import STRICT_CAPS, STRICT_VALUES

ABOUT = "One MCP tool, run_python, in front of all your MCP servers."
SETTINGS_PANEL = "Settings"

_ORDER = ("Arguments", "Options", SETTINGS_PANEL)

_SECTION = re.compile(r"^(?:Args|Returns|Raises):\n(?:    .*\n?|\n)*", re.MULTILINE)
_EXAMPLES = re.compile(r"^Examples:\n((?:    .*\n?)*)", re.MULTILINE)


def width() -> int:
    """Return the width of help: the terminal's, up to 100 columns; 80 in a pipe."""
    return min(terminal_width() or 80, 100)


def usage(context: Any) -> str:
    words = [context.command_path, "[OPTIONS]"]
    if getattr(context.command, "commands", None):
        words.append("[COMMAND]")
    for each in context.command.params:
        if each.param_type_name == "argument":
            word = f"{_word(each)}..." if each.nargs == -1 else _word(each)
            words.append(word if each.required else f"[{word}]")
    return f"Usage: {' '.join(words)}"


def help_text(context: Any, *, whole: bool) -> str:
    command = context.command
    formatter = context.make_formatter()
    formatter.write(f"{usage(context)}\n\n")
    summary, prose, examples = describe_command(command.callback or command)
    if context.parent is None or not summary:
        summary = command.help or command.short_help or ""
    formatter.write_text(summary)
    if whole and prose:
        formatter.write_paragraph()
        formatter.write_text(prose)
    panels: dict[str, list[tuple[str, str]]] = {}
    for each in getattr(command, "commands", {}).values():
        row = (each.name, each.short_help)
        panels.setdefault(each.rich_help_panel or "Commands", []).append(row)
    shown = [each for each in command.params if not each.hidden]
    for each in sorted(shown, key=lambda one: _ORDER.index(_panel(one))):
        if whole or _panel(each) != SETTINGS_PANEL:
            panels.setdefault(_panel(each), []).append(row_of(each))
    for panel, rows in panels.items():
        with formatter.section(panel):
            formatter.write_dl(rows)
    if whole and examples:
        with formatter.section("Examples"):
            formatter.write("".join(f"  {PROGRAM} {line}\n" for line in examples))
    return str(formatter.getvalue())


def _panel(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return parameter.rich_help_panel or "Options"


def describe_command(function: Any) -> tuple[str, str, list[str]]:
    text = f"{inspect.getdoc(function) or ''}\n"
    examples = [line.strip() for block in _EXAMPLES.findall(text) for line in block.splitlines()]
    text = _SECTION.sub("", _EXAMPLES.sub("", text))
    summary, _, prose = text.partition("\n\n")
    return " ".join(summary.split()), prose.strip(), examples


def row_of(parameter: Any) -> tuple[str, str]:
    text = parameter.help or ""
    if parameter.param_type_name == "argument":
        return _word(parameter), text
    words = ", ".join(sorted(parameter.opts, key=len))
    if not parameter.is_flag:
        words += f" {_word(parameter)}"
    if parameter.default not in (None, False, ()):
        text += f" [default: {parameter.default}]"
    return words, text


def _word(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def default_of(name: str) -> str:
    return "" if name == "state_dir" else value_text(getattr(Settings, name)).lower()


def value_text(value: Any) -> str:
    """Return a setting's value as a user writes it; empty for none."""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if value in (None, "", ()):
        return ""
    if type(value) is int and value and value % 1024**2 == 0:
        return f"{value // 1024**2}m"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


async def print_settings(settings: Settings) -> int:
    """List all settings.

    A flag wins over a variable, and a variable wins over `config.toml`.
    """
    lines = []
    # The docstring of `Settings` explains each setting.
    _, *pieces = re.split(r"^    (\w+): ", inspect.getdoc(Settings) or "", flags=re.MULTILINE)
    meanings = zip(pieces[::2], pieces[1::2], strict=True)
    for name, text in ((name, text) for name, text in meanings if name in SETTINGS):
        flag = f"{flag_of(name)}, " if SETTINGS[name]["flag"] else ""
        default = f" [default: {value}]" if (value := default_of(name)) else ""
        lines += [f"{flag}{variable(name)}{default}"]
        lines += textwrap.wrap(
            " ".join(text.split()), width(), initial_indent="    ", subsequent_indent="    "
        )
    write_help(
        "Every command but `help` and `version` takes each flag. config.toml has the names in "
        "lower case, without MCP_BRIDGE_.\n\n" + "\n".join(lines) + "\n"
    )
    return 0


async def show_config(settings: Settings, *, as_json: AsJson = False) -> int:
    """Show each setting and where it comes from.

    A setting comes from a flag, a variable, a line of the settings file, or the default. Passwords
    in addresses are left out.
    """
    path = config_path(settings.environ)
    values: dict[str, Json] = {name: _plain(getattr(settings, name)) for name in SETTINGS}
    places = {name: settings.places.get(name, "default") for name in SETTINGS}
    if settings.strict:
        capped = {name for name, cap in STRICT_CAPS.items() if values[name] == cap}
        places |= dict.fromkeys(STRICT_VALUES.keys() | capped, "profile strict")
    if as_json:
        rows = {name: {"value": value, "from": places[name]} for name, value in values.items()}
        write_json({"file": str(path), "settings": rows}, indent=2)
        return 0
    columns: dict[str, Callable[[str], str]] = {
        "SETTING": str,
        "VALUE": lambda name: value_text(values[name]) or "-",
        "FROM": lambda name: places[name],
    }
    missing = "" if path.exists() else " (there is none)"
    below = visible(f"\nSettings file: {path}{missing}\n")
    return write_list([*SETTINGS], columns, "", as_json=False, below=below)


def _plain(value: object) -> Json:
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    # `str` of an address omits its password.
    return value if value is None or isinstance(value, bool | int | float) else str(value)
