"""The table of commands, and the typer application built from it.

A command is an async function `f(settings, *, ...)` whose parameters typer reads. Its module is
imported when the command is called. `serve` never imports this module.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperCommand
from typer.exceptions import TyperException

from bridge import __version__
from bridge.cli import help as helps
from bridge.cli.line import PROGRAM, SERVE, Invocation, flag_of, handler_of
from bridge.cli.options import Code, arg, complete_sessions, flag, opt
from bridge.cli.output import write_help, write_out
from bridge.errors import UsageError
from bridge.settings import FLAGS, SETTINGS, variable

RUNNING = "Running programs"
LOOKING = "Servers and tools"
KEEPING = "Control and inspect"
SETTING_UP = "Setting up"

_ENGINE = ("runtime", "runtime_order", "oci_runtime", "image")
_SOURCES = ("sources", "servers_config")
_RUN = ("profile", *_ENGINE, "memory", "pids", "cpus", "max_timeout", "guard", "preflight")


@dataclass(frozen=True)
class Command:
    """A row of the table: the command's function, and the settings that its help lists.

    A group has no `handler`. A command of a group has no `panel`.
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
    "tools": Command("tools:tools", "List or search tools across servers", LOOKING, _SOURCES),
    "logs": Command("servers:logs", "Show what a server wrote to stderr", LOOKING),
    "login": Command("login:login", "Log in to a remote server", LOOKING, _SOURCES),
    "logout": Command("login:logout", "Remove the login to a server", LOOKING, _SOURCES),
    "runs": Command("runs:list_runs", "List the last runs", KEEPING),
    "runs show": Command("runs:show_run", "Show a run's program, calls and output"),
    "sessions": Command("runs:list_sessions", "List saved sessions", KEEPING),
    "policy": Command("", "Create, check and explain the policy", KEEPING),
    "policy explain": Command("policy:explain", "Explain the decision on one call", "", _SOURCES),
    "policy check": Command(
        "policy:check", "Check the policy, and the calls of a program", "", _SOURCES
    ),
    "policy init": Command("policy:init", "Create a policy for your servers", "", _SOURCES),
    "policy add": Command("policy:add", "Propose rules for one more server", "", _SOURCES),
    "audit": Command("", "Verify and read the log of calls", KEEPING),
    "audit verify": Command("audit:verify_log", "Check that no record was changed"),
    "audit tail": Command("audit:tail", "Print the last records"),
    "audit show": Command("audit:show", "Show the records of a run or plan"),
    "audit stats": Command("audit:stats", "Count calls by server, tool, day or decision"),
    "artifacts": Command("", "List, fetch or remove files and outputs of runs", KEEPING),
    "artifacts list": Command("artifacts:list_kept", "List artifacts, the newest first"),
    "artifacts get": Command("artifacts:get", "Write an artifact to stdout, or to a file"),
    "artifacts rm": Command("artifacts:remove", "Remove artifacts"),
    "skills": Command("", "List, show, approve or remove saved functions", KEEPING),
    "skills list": Command("skills:list_skills", "List skills"),
    "skills show": Command("skills:show", "Print a skill"),
    "skills approve": Command("skills:approve", "Let programs use skills without asking"),
    "skills rm": Command("skills:remove", "Remove skills, with all their versions"),
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
    "config": Command("help:show_config", "Show each setting and where it comes from", SETTING_UP),
    "doctor": Command(
        "doctor:doctor",
        "Check sandboxes and settings",
        SETTING_UP,
        ("profile", *_ENGINE, *_SOURCES),
    ),
    "image": Command("", "Build the runtime image, or show its state", SETTING_UP),
    "image build": Command("image:build_image", "Build the runtime image", "", _ENGINE),
    "image status": Command("image:show_status", "Show the image on every engine", "", _ENGINE),
    "help": Command("", "Explain a command; `help settings` lists all settings", SETTING_UP),
    "help settings": Command("help:print_settings", "List all settings"),
    "version": Command("", "Print the version", SETTING_UP),
}
"""The commands by their words, in the order of help."""


def read_words(words: Sequence[str]) -> Invocation | int:
    """Parse a command line; return an exit status if it only printed help."""
    app = typer.Typer(name=PROGRAM, help=helps.ABOUT, rich_markup_mode=None)
    app.callback(invoke_without_command=True, add_help_option=False)(_root)
    root: Any = typer.main.get_command(app)  # `get_group` would lack shell completion.
    for path in COMMANDS:
        if " " not in path:
            root.add_command(_Lazy(path))
    read: Callable[..., Invocation | int] = root.main
    try:
        return read(
            list(words), prog_name=PROGRAM, standalone_mode=False, terminal_width=helps.width()
        )
    except TyperException as error:
        raise _usage_error(error) from None


def _usage_error(error: TyperException) -> UsageError:
    context: Any = getattr(error, "ctx", None)
    message = error.format_message().strip()
    if context is None:
        return UsageError(message)
    more = f"`{context.command_path} --help` explains the command."
    wrong = getattr(error, "option_name", "")
    if not message.startswith("No such option"):
        return UsageError(message, remedy=f"{helps.usage(context)}. {more}")
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
    """Wrap a command's function for typer, with flags for settings and for help."""
    entry = COMMANDS[path]
    declared = _SIGNATURES.get(path) or handler_of(entry.handler)

    def invocation(**given: Any) -> Invocation:
        flags = {key: given.pop(key) for key in FLAGS}
        arguments = {name: given[name] for name in own}
        set_flags = {key: value for key, value in flags.items() if value is not None}
        return Invocation(handler=entry.handler, arguments=arguments, flags=set_flags)

    signature = inspect.signature(declared, eval_str=True)
    own = {name: each for name, each in signature.parameters.items() if name != "settings"}
    settings = [_setting_option(name, shown=name in entry.settings) for name in FLAGS]
    helping = list(inspect.signature(_group, eval_str=True).parameters.values())[1:]
    parameters = [*own.values(), *settings, *helping]
    keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    invocation.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    # typer would mistake these for the command's own parameter types.
    invocation.__annotations__ = {}
    invocation.__doc__ = declared.__doc__
    return invocation


def _setting_option(name: str, *, shown: bool) -> inspect.Parameter:
    default = helps.default_of(name)
    facts = variable(name) + (f", default: {default}" if default else "")
    option = Option(
        flag_of(name),
        metavar="VALUE",
        help=f"{SETTINGS[name]['flag']} [{facts}]",
        hidden=not shown,
        rich_help_panel=helps.SETTINGS_PANEL,
    )
    annotation = Annotated[str | None, option]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=annotation)


def _print_help(context: typer.Context, parameter: typer.CallbackParam, value: bool) -> None:
    if value:
        write_help(helps.help_text(context, whole=parameter.name == "whole_help"))
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
        write_help(helps.help_text(context, whole=True))
        raise typer.Exit


def _serve(
    http: Annotated[
        str | None,
        Option(metavar="HOST:PORT", help="serve streamable HTTP instead; or unix:/PATH"),
    ] = None,
    no_token: Annotated[
        bool, Option("--no-token", help="serve HTTP to every user of this machine")
    ] = False,
) -> None:
    """Serve MCP over stdio, or over HTTP on this machine.

    An MCP client starts this command without any words.

    Examples:
        serve --http 127.0.0.1:8000
    """


def _run(
    file: Annotated[str | None, arg("FILE", "a file, or - for stdin")] = None,
    argv: Annotated[list[str] | None, arg("ARG", "after --: the program's sys.argv")] = None,
    code: Code = None,
    servers: Annotated[str | None, opt("A,B", "servers to load")] = None,
    timeout: Annotated[
        float | None,
        opt("SECONDS", "time limit of the program [MCP_BRIDGE_TIMEOUT, default: 30]"),
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
        str | None,
        opt("NAME", "keep variables, imports and files", completes=complete_sessions),
    ] = None,
    end_session: Annotated[
        bool, flag("--end-session", "end the session after the run; without a program, just end it")
    ] = False,
    out: Annotated[str | None, opt("DIR", "copy the program's files in out/ to DIR")] = None,
    force: Annotated[bool, flag("--force", "with --out: replace files that exist")] = False,
    as_json: Annotated[bool, flag("--json", "print the structured result")] = False,
) -> None:
    """Run one program and exit with its status.

    stdout, stderr and the exit status are the program's own. 124 means that its time limit ended
    it, 130 that you did.

    Examples:
        run -c 'print(await mcp_github.list_issues(repo="o/r"))'
        run report.py --servers github --out results -- 2026
    """


_SIGNATURES: Mapping[str, Callable[..., Any]] = {"serve": _serve, "run": _run}
"""The parameters of commands whose modules are slow to import."""
