"""The table of commands, their typer application and their help, and the settings.

A command is an async function `f(settings, *, ...)` whose parameters typer reads. The table has its
summary, and its docstring continues the help. Its module is imported when the command is called.
Functions of commands import what help does without, such as the engine, the MCP SDK and rich.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand
from typer.exceptions import TyperException

from bridge import __version__
from bridge.cli.options import AsJson, Code, arg, complete_sessions, flag, opt
from bridge.cli.output import terminal_width, visible, write_help, write_json, write_list, write_out
from bridge.errors import UsageError
from bridge.model import Json
from bridge.settings import FLAGS, SETTINGS, Settings, config_path, variable
from bridge.settings.values import STRICT_CAPS, STRICT_VALUES

PROGRAM = "mcp-code-bridge"

SERVE = "serve:serve"

RUNNING = "Running programs"
LOOKING = "Servers and tools"
KEEPING = "Control and inspect"
SETTING_UP = "Setting up"

_ENGINE = ("runtime", "runtime_order", "oci_runtime", "image")
_SOURCES = ("sources", "servers_config")
_RUN = ("profile", *_ENGINE, "memory", "pids", "cpus", "max_timeout", "guard", "preflight")


@dataclass(frozen=True, kw_only=True)
class Invocation:
    """A parsed command line: the function, as "module:function", its arguments, and settings."""

    handler: str
    arguments: Mapping[str, object] = field(default_factory=dict)
    flags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """A row of the table: the command's function, and the settings that its help lists.

    A group has no `handler`. `panel` is the section of the help; commands of a group have none.
    """

    handler: str
    summary: str
    panel: str = ""
    settings: tuple[str, ...] = ()


COMMANDS = {
    "serve": Command(
        SERVE, "Serve MCP over stdio, or over HTTP on this machine", RUNNING, (*FLAGS,)
    ),
    "run": Command(
        "run:run_program", "Run one program and exit with its status", RUNNING, (*_RUN, *_SOURCES)
    ),
    "servers": Command("servers:servers", "List or approve servers", LOOKING, _SOURCES),
    "servers approve": Command(
        "servers:approve", "Approve a project's server, or a changed one", "", _SOURCES
    ),
    "tools": Command("servers:tools", "List or search tools across servers", LOOKING, _SOURCES),
    "logs": Command("servers:logs", "Show what a server wrote to stderr", LOOKING),
    "login": Command("servers:login", "Log in to a remote server", LOOKING, _SOURCES),
    "logout": Command("servers:logout", "Remove the login to a server", LOOKING, _SOURCES),
    "runs": Command("records:list_runs", "List the last runs", KEEPING),
    "runs show": Command("records:show_run", "Show a run's program, calls and output"),
    "sessions": Command("records:list_sessions", "List saved sessions", KEEPING),
    "policy": Command("", "Create, check and explain the policy", KEEPING),
    "policy explain": Command("policy:explain", "Explain the decision on one call", "", _SOURCES),
    "policy check": Command(
        "policy:check", "Check the policy, and the calls of a program", "", _SOURCES
    ),
    "policy init": Command("policy:init", "Create a policy for your servers", "", _SOURCES),
    "policy add": Command("policy:add", "Propose rules for one more server", "", _SOURCES),
    "audit": Command("", "Verify and read the log of calls", KEEPING),
    "audit verify": Command("records:verify_log", "Check that no record was changed"),
    "audit tail": Command("records:tail", "Print the last records"),
    "audit show": Command("records:show", "Show the records of a run or plan"),
    "audit stats": Command("records:stats", "Count calls by server, tool, day or decision"),
    "artifacts": Command("", "List, fetch or remove files and outputs of runs", KEEPING),
    "artifacts list": Command("kept:list_kept", "List artifacts, the newest first"),
    "artifacts get": Command("kept:get", "Write an artifact to stdout, or to a file"),
    "artifacts rm": Command("kept:remove_artifacts", "Remove artifacts"),
    "skills": Command("", "List, show, approve or remove saved functions", KEEPING),
    "skills list": Command("kept:list_skills", "List skills"),
    "skills show": Command("kept:show_skill", "Print a skill"),
    "skills approve": Command("kept:approve_skills", "Let programs use skills without asking"),
    "skills rm": Command("kept:remove_skills", "Remove skills, with all their versions"),
    "background": Command("", "Show or stop the bridge that your clients share", KEEPING),
    "background status": Command("background:status", "Show its clients and servers"),
    "background stop": Command("background:stop", "Let its runs end, and stop it"),
    "background restart": Command("background:stop", "Stop it; its clients start another one"),
    "background logs": Command("background:logs", "Print its log"),
    "store": Command("", "Show, migrate or limit a shared store", KEEPING),
    "store status": Command("store:show_status", "Show the store and its bridges"),
    "store migrate": Command("store:migrate", "Bring its tables to this version"),
    "store limits": Command("store:limits", "Show or set the limits of all bridges"),
    "setup": Command(
        "setup:setup",
        "Find clients and servers, and install the bridge step by step",
        SETTING_UP,
        (*_ENGINE, *_SOURCES),
    ),
    "install": Command(
        "install:install",
        "Add the bridge to MCP clients (shows a diff and asks first)",
        SETTING_UP,
        _SOURCES,
    ),
    "uninstall": Command("install:uninstall", "Remove the bridge from MCP clients", SETTING_UP),
    "installed": Command(
        "install:list_installed", "List the clients that have the bridge", SETTING_UP
    ),
    "purge": Command("purge:purge", "Remove all that the bridge keeps on this machine", SETTING_UP),
    "config": Command("app:show_config", "Show each setting and where it comes from", SETTING_UP),
    "doctor": Command(
        "doctor:doctor",
        "Check sandboxes and settings",
        SETTING_UP,
        ("profile", *_ENGINE, *_SOURCES),
    ),
    "image": Command("", "Build the runtime image, or show its state", SETTING_UP),
    "image build": Command("doctor:build_image", "Build the runtime image", "", _ENGINE),
    "image status": Command("doctor:show_status", "Show the image on every engine", "", _ENGINE),
    "help": Command("", "Explain a command; `help settings` lists all settings", SETTING_UP),
    "help settings": Command("app:print_settings", "List all settings"),
    "version": Command("", "Print the version", SETTING_UP),
}


def read_words(words: Sequence[str]) -> Invocation | int:
    """Parse a command line; return an exit status if it only printed help."""
    app = typer.Typer(name=PROGRAM, help=ABOUT, rich_markup_mode=None)
    app.callback(invoke_without_command=True, add_help_option=False)(_root)
    root: Any = typer.main.get_command(app)  # `get_group` would lack shell completion.
    for path in COMMANDS:
        if " " not in path:
            root.add_command(_Lazy(path))
    read: Callable[..., Invocation | int] = root.main
    try:
        given = _with_default(words)
        return read(given, prog_name=PROGRAM, standalone_mode=False, terminal_width=width())
    except TyperException as error:
        raise _usage_error(error) from None


def _with_default(words: Sequence[str]) -> list[str]:
    """Complete a command line that has no command.

    No words, or flags alone, mean `serve`. `help COMMAND` means `COMMAND --help`.
    """
    first = words[0].partition("=")[0] if words else ""
    if not words or first in {"--http", "--no-token", *map(flag_of, FLAGS)}:
        return ["serve", *words]
    if first == "help" and words[1:2] != ["settings"]:
        return [*words[1:], "--help"]
    if words == ["version"]:
        return ["--version"]
    return list(words)


def flag_of(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def handler_of(name: str) -> Callable[..., Any]:
    """Return a command's function; its module may take a second to import."""
    module, _, function = name.partition(":")
    command: Callable[..., Any] = getattr(import_module(f"bridge.cli.{module}"), function)
    return command


def _usage_error(error: TyperException) -> UsageError:
    context: Any = getattr(error, "ctx", None)
    message = error.format_message().strip()
    if context is None:
        return UsageError(message)
    more = f"`{context.command_path} --help` explains the command."
    wrong = getattr(error, "option_name", "")
    if not message.startswith("No such option"):
        return UsageError(message, remedy=f"{usage(context)}. {more}")
    options = [name for each in context.command.params if not each.hidden for name in each.opts]
    options += map(flag_of, FLAGS)
    near = get_close_matches(wrong, options, n=1, cutoff=0.7)
    guess = f"Did you mean {near[0]}? " if near else ""
    return UsageError(f"No such option: {wrong}", remedy=f"{guess}{more}")


class _Lazy(TyperCommand):
    def __init__(self, path: str) -> None:
        entry = COMMANDS[path]
        super().__init__(
            path.rpartition(" ")[2], short_help=entry.summary, rich_help_panel=entry.panel
        )
        self._path = path

    def make_context(self, *args: Any, **extra: Any) -> Any:
        return make_command(self._path).make_context(*args, **extra)


def make_command(path: str) -> Any:
    """Return a command, or a group that imports its commands when they are called."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    function = _typer_function(path) if COMMANDS[path].handler else _group
    inner = [each for each in COMMANDS if each.startswith(f"{path} ")]
    if not inner:
        app.command(path.rpartition(" ")[2], add_help_option=False)(function)
        return typer.main.get_command(app)
    summary = COMMANDS[path].summary
    app.callback(invoke_without_command=True, add_help_option=False, short_help=summary)(function)
    group = typer.main.get_group(app)
    for each in inner:
        group.add_command(_Lazy(each))
    return group


def _typer_function(path: str) -> Callable[..., Invocation]:
    entry = COMMANDS[path]
    declared = _SIGNATURES.get(path) or handler_of(entry.handler)

    def invocation(**given: Any) -> Invocation:
        flags = {key: given[key] for key in FLAGS if given[key] is not None}
        arguments = {name: given[name] for name in own}
        return Invocation(handler=entry.handler, arguments=arguments, flags=flags)

    signature = inspect.signature(declared, eval_str=True)
    own = {name: each for name, each in signature.parameters.items() if name != "settings"}
    settings = [_setting_option(name, shown=name in entry.settings) for name in FLAGS]
    helping = list(inspect.signature(_group, eval_str=True).parameters.values())[1:]
    parameters = [*own.values(), *settings, *helping]
    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    invocation.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    # typer would mistake these for the command's own parameter types.
    invocation.__annotations__ = {}
    invocation.__doc__ = f"{entry.summary}.\n\n    {declared.__doc__ or ''}"
    return invocation


def _setting_option(name: str, *, shown: bool) -> inspect.Parameter:
    default = default_of(name)
    facts = variable(name) + (f", default: {default}" if default else "")
    option = Option(
        flag_of(name),
        metavar="VALUE",
        help=f"{SETTINGS[name]['flag']} [{facts}]",
        hidden=not shown,
        rich_help_panel=SETTINGS_PANEL,
    )
    kind, annotation = inspect.Parameter.KEYWORD_ONLY, Annotated[str | None, option]
    return inspect.Parameter(name, kind, default=None, annotation=annotation)


def _print_help(context: typer.Context, parameter: typer.CallbackParam, value: bool) -> None:
    if value:
        write_help(help_text(context, whole=parameter.name == "whole_help"))
        raise typer.Exit


def _print_version(wanted: bool) -> None:
    if wanted:
        write_out(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


ShortHelp = Annotated[
    bool, Option("-h", is_eager=True, callback=_print_help, help="show a short help")
]
WholeHelp = Annotated[
    bool, Option("--help", is_eager=True, callback=_print_help, help="show the whole help")
]
Version = Annotated[
    bool,
    Option("--version", "-V", is_eager=True, callback=_print_version, help="print the version"),
]


def _root(
    version: Version = False, short_help: ShortHelp = False, whole_help: WholeHelp = False
) -> None:
    """Declare the root's flags; a call without a command becomes `serve` earlier."""


def _group(
    context: typer.Context, short_help: ShortHelp = False, whole_help: WholeHelp = False
) -> None:
    if context.invoked_subcommand is None:
        write_help(help_text(context, whole=True))
        raise typer.Exit


def _serve(
    http: Annotated[
        str | None, Option(metavar="HOST:PORT", help="serve streamable HTTP instead; or unix:/PATH")
    ] = None,
    no_token: Annotated[
        bool, Option("--no-token", help="serve HTTP to every user of this machine")
    ] = False,
) -> None:
    """An MCP client starts this command without any words.

    Examples:
        serve --http 127.0.0.1:8000
    """


def _run(
    file: Annotated[str | None, arg("FILE", "a file, or - for stdin")] = None,
    argv: Annotated[list[str] | None, arg("ARG", "after --: the program's sys.argv")] = None,
    code: Code = None,
    servers: Annotated[str | None, opt("A,B", "servers to load")] = None,
    timeout: Annotated[
        float | None, opt("SECONDS", "time limit of the program [MCP_BRIDGE_TIMEOUT, default: 30]")
    ] = None,
    plan: Annotated[
        bool, flag("--plan", "list writes instead of making them, then ask whether to apply them")
    ] = False,
    files: Annotated[
        list[str] | None,
        opt("NAME=PATH", "copy a file into the program's directory; may be repeated", "--file"),
    ] = None,
    packages: Annotated[
        list[str] | None,
        opt("REQUIREMENT", "a package that your settings allow; may be repeated", "--package"),
    ] = None,
    session: Annotated[
        str | None, opt("NAME", "keep variables, imports and files", completes=complete_sessions)
    ] = None,
    end_session: Annotated[
        bool, flag("--end-session", "end the session after the run; without a program, just end it")
    ] = False,
    out: Annotated[str | None, opt("DIR", "copy the program's files in out/ to DIR")] = None,
    force: Annotated[bool, flag("--force", "with --out: replace files that exist")] = False,
    as_json: Annotated[bool, flag("--json", "print the structured result")] = False,
) -> None:
    """stdout, stderr and the exit status are the program's own. 124 means that its time limit ended
    it, 130 that you did.

    Examples:
        run -c 'print(await mcp_github.list_issues(repo="o/r"))'
        run report.py --servers github --out results -- 2026
    """


_SIGNATURES: Mapping[str, Callable[..., Any]] = {"serve": _serve, "run": _run}
"""The parameters of commands whose modules are slow to import."""


ABOUT = "One MCP tool, run_python, in front of all your MCP servers."
SETTINGS_PANEL = "Settings"


def width() -> int:
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
    order = ("Arguments", "Options", SETTINGS_PANEL)
    for each in sorted(shown, key=lambda one: order.index(_panel(one))):
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
    text, _, examples = (inspect.getdoc(function) or "").partition("Examples:")
    summary, _, prose = text.partition("\n\n")
    return summary, prose.strip(), [*filter(None, map(str.strip, examples.splitlines()))]


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
    """A flag wins over a variable, and a variable wins over `config.toml`."""
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
    """A setting comes from a flag, a variable, a line of the settings file, or the default.
    Passwords in addresses are left out.
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
