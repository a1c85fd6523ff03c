"""The commands with their options, help and examples, on typer.

Owns the table of names and texts; of each command it has the function that does it, which is
imported only when it is called: most of them take long to import. What serves needs nothing of
this.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option
from typer.exceptions import TyperException

from bridge import __version__
from bridge.cli.line import PROGRAM, Invocation
from bridge.cli.output import NEVER_FULL, is_drawn, write_err, write_out
from bridge.errors import UsageError
from bridge.settings import FLAGS

SETTINGS_PANEL = "Settings (each also an MCP_BRIDGE_* variable)"
RUNNING = "Running programs"
LOOKING = "Servers and tools"
KEEPING = "What programs did and left"
SETTING_UP = "Setting up"


Parameters = Mapping[str, str]
"""What a command takes, each with its help: "name: WORD" for a word that is needed, "name: [WORD]"
for one that is not, "name: [WORD...]" for any number; "name: --flag" for a switch,
"name: --option WORD" for an option, with "WORD=default" for its default and "WORD..." for one that
may be repeated."""


@dataclass(frozen=True)
class _Command:
    """One command.

    Attributes:
        handler: What does it, as "module:function" of this package.
        examples: Command lines, for the end of its help.
        panel: Under which heading help has it; for commands of no group.
    """

    handler: str
    help: str
    parameters: Parameters
    examples: tuple[str, ...] = ()
    panel: str | None = None


GROUPS = {
    "servers": (LOOKING, "List every discovered server, or approve what a project's files define."),
    "policy": (KEEPING, "Say what the policy decides, and why; or write a first one."),
    "audit": (KEEPING, "Check the log of what programs did, or read it."),
    "artifacts": (KEEPING, "List, fetch or remove what runs left: files, whole outputs, pictures."),
    "skills": (
        KEEPING,
        "List, show, approve or remove the functions that programs have saved.",
    ),
    "image": (SETTING_UP, "Build the runtime image, or say how it is."),
}
"""Commands with several actions: under which heading help has them, and what it says."""

_JSON = {"json: --json": "print JSON"}
_JSON_LINES = {"json: --json": "print JSON lines"}
_SERVER = {"server: SERVER": "its name or alias"}
_CODE = {"code: -c CODE": "the program itself"}
_URI_HELP = "or the beginning of an id or a digest"

_RUN = {
    "file: [FILE]": "a file, or - for stdin",
    "argv: [ARG...]": "after --: the program's sys.argv",
    **_CODE,
    "servers: --servers A,B": "servers to load",
    "timeout: --timeout SECONDS": "time limit of the program",
    "plan: --plan": ("hold back what changes something, list it, and in a terminal ask and do it"),
    "files: --file NAME=PATH...": "a file of yours for the program's directory; may be repeated",
    "packages: --package REQUIREMENT...": "a package that the settings allow; may be repeated",
    "session: --session NAME": "keep variables, imports and files under this name",
    "end_session: --end-session": "end the session after this; alone, only that",
    "out: --out DIR": "where to put what the program left in out/",
    "force: --force": "with --out: replace files there",
    "json: --json": "print the structured result",
}

_CLIENTS = {"clients: [CLIENT...]": "or all; without one, they are listed"}
_SCOPE = {"scope: --scope <user|project>=user": "your files, or those of the project"}
_CHANGE = {
    "dry_run: --dry-run": "only show what would change",
    "yes: --yes": "change it without a question",
}
_SETUP = {
    "clients: --clients A,B": "which get it, or all; asked otherwise",
    **_SCOPE,
    "move: --move NAMES": "servers to move behind the bridge: A,B, all or none; asked otherwise",
    "skip_cost: --skip-cost": "start no server to count what its tools cost",
    **_CHANGE,
}
_RESTORE = {"restore: --restore": "put back the servers that moved behind the bridge"}
_INSTALL = {
    "http: --http URL": "the address of a bridge that serves HTTP",
    "name: --name NAME": "what the entry is called; code-bridge",
    "check: --check": "let the client list its servers afterwards",
    "move: --move NAMES": "servers to take out of the client, behind the bridge: A,B or all",
}

COMMANDS = {
    "serve": _Command(
        "serve:serve",
        "Serve MCP over stdio, or over HTTP on this machine.",
        {
            "http: --http HOST:PORT": "serve streamable HTTP instead; or unix:/PATH, for a proxy",
            "no_token: --no-token": "serve HTTP to every user of this machine",
        },
        ("serve --http 127.0.0.1:8000",),
        RUNNING,
    ),
    "run": _Command(
        "run:run",
        "Run one program and exit with its status.",
        _RUN,
        (
            "run -c 'print(await mcp_github.list_issues(repo=\"o/r\"))'",
            "run report.py --servers github --out results -- 2026",
        ),
        RUNNING,
    ),
    "servers": _Command(
        "servers:servers",
        GROUPS["servers"][1],
        {"check: --check --start": "start each, and say what it has and what it costs", **_JSON},
        ("servers --check", "servers approve github"),
    ),
    "servers approve": _Command(
        "servers_approve:approve",
        "Let a project's server, or a changed one, be used.",
        {"names: [NAME[@DIGEST]...]": "shown, and you are asked; or by digest"},
        ("servers approve github",),
    ),
    "tools": _Command(
        "tools:tools",
        "List or search tools across servers.",
        {
            "words: [QUERY...]": "words to search for, or SERVER.TOOL",
            "server: --server NAME": "only this server's",
            "stub: --stub": "as typed Python",
            "fresh: --fresh": "ask the servers again",
            **_JSON,
        },
        ("tools 'create issue'", "tools github.create_issue"),
        LOOKING,
    ),
    "login": _Command(
        "login:login",
        "Log in to a remote server.",
        {
            **_SERVER,
            "no_browser: --no-browser": "only print the address",
            "timeout: --timeout SECONDS": "how long to wait for you",
        },
        ("login linear",),
        LOOKING,
    ),
    "logout": _Command("login:logout", "Forget the login to a server.", _SERVER, (), LOOKING),
    "policy explain": _Command(
        "policy_explain:explain",
        "Explain the decision on one call.",
        {
            **_SERVER,
            "tool: TOOL": "its name or alias",
            "given: [ARGS...]": "arguments: a JSON object, or KEY=VALUE words",
            **_JSON,
        },
        ("policy explain github create_issue repo=o/r",),
    ),
    "policy check": _Command(
        "policy_check:check",
        "Check the policy file; with a program, the calls that it can be seen to make.",
        {"file: [FILE]": "a program, or - for stdin", **_CODE, **_JSON},
        ("policy check report.py",),
    ),
    "policy init": _Command(
        "policy_init:init",
        "Write a first policy for the servers there are.",
        {"print: --print": "print it, and write nothing"},
        ("policy init --print",),
    ),
    "policy add": _Command(
        "policy_init:add",
        "Propose rules for one more server, ask, and write them.",
        {**_SERVER, "yes: --yes": "write it without asking"},
        ("policy add github",),
    ),
    "audit verify": _Command(
        "audit:verify_log",
        "Check that nothing in it was changed.",
        {"expect: --expect HASH": "has to be in it, such as a receipt's", **_JSON},
    ),
    "audit tail": _Command(
        "audit:tail",
        "Print its last records.",
        {"number: -n N=20": "how many", "follow: -f": "and those that come", **_JSON_LINES},
        ("audit tail -n 100 -f",),
    ),
    "audit show": _Command(
        "audit:show",
        "Print what it has of a run or a plan.",
        {"run: RUN": "its id, or the beginning of one", **_JSON_LINES},
    ),
    "audit stats": _Command(
        "audit:stats",
        "Count the calls that are in it.",
        {
            "by: --by WHAT=server": "day, server, tool, decision, outcome",
            "since: --since DAY": "only from this day on: 2026-12-31",
            **_JSON,
        },
        ("audit stats --by day,server --since 2026-12-31",),
    ),
    "artifacts list": _Command(
        "artifacts:list_kept",
        "List what is kept, the newest first.",
        {"run: --run RUN": "only this run's; the beginning of its id", **_JSON},
    ),
    "artifacts get": _Command(
        "artifacts:get",
        "Write one to stdout, or to a file.",
        {
            "uri: URI": _URI_HELP,
            "output: -o FILE=-": "- for stdout",
            "force: --force": "replace FILE if it is there",
        },
        ("artifacts get 3f9a -o report.csv",),
    ),
    "artifacts rm": _Command(
        "artifacts:remove",
        "Remove some, those of a run, or all.",
        {
            "uris: [URI...]": _URI_HELP,
            "run: --run RUN": "what this run left",
            "everything: --all": "everything, of all runs",
        },
    ),
    "skills list": _Command("skills:list_skills", "List them.", _JSON),
    "skills show": _Command("skills:show", "Print one.", {"name: NAME": "its name", **_JSON}),
    "skills approve": _Command(
        "skills:approve",
        "Let programs use some without asking.",
        {"names: NAME[@DIGEST]...": "as `show` prints it; else you are asked"},
        ("skills approve tidy_names",),
    ),
    "skills rm": _Command(
        "skills:remove", "Remove some, with all their versions.", {"names: NAME...": "their names"}
    ),
    "setup": _Command(
        "setup:setup",
        "Find clients and servers, and put the bridge in: asks step by step.",
        _SETUP,
        ("setup", "setup --clients all --move all --skip-cost --yes"),
        SETTING_UP,
    ),
    "install": _Command(
        "install:install",
        "Put the bridge into clients: shows the change, asks, writes it.",
        {**_CLIENTS, **_SCOPE, **_INSTALL, **_CHANGE},
        ("install", "install claude-code cursor", "install codex --move all --dry-run"),
        SETTING_UP,
    ),
    "uninstall": _Command(
        "install:uninstall",
        "Take the bridge out of clients again.",
        {**_CLIENTS, "scope: --scope <user|project>": "only there", **_RESTORE, **_CHANGE},
        ("uninstall cursor", "uninstall cursor --restore"),
        SETTING_UP,
    ),
    "installed": _Command(
        "install:installed", "List the clients that have the bridge.", _JSON, (), SETTING_UP
    ),
    "doctor": _Command(
        "doctor:doctor",
        "Try each engine and say what would be used.",
        _JSON,
        ("doctor --runtime podman",),
        SETTING_UP,
    ),
    "image build": _Command(
        "image:build_image",
        "Build the image on the first engine that answers.",
        {
            "flavour: --flavour <slim|data>=slim": (
                "data adds numpy, pandas, matplotlib, scikit-learn and a dozen more"
            ),
            "packages: --package NAME...": "a package to add; may be repeated",
            "offline: --offline": "from Debian packages, no registry",
            "fresh: --fresh": "build though it is up to date",
            **_JSON,
        },
        ("image build --flavour data", "image build --flavour data --package seaborn"),
    ),
    "image status": _Command(
        "image:show_status", "Show the image on every engine that answers.", _JSON
    ),
}

_KINDS: Mapping[str, Any] = {
    "N": int,
    "SECONDS": float,
    "<slim|data>": Literal["slim", "data"],
    "<user|project>": Literal["user", "project"],
}
"""What the words are that stand for something else than text."""


def _parameter(written: str, text: str, panel: str | None = None) -> inspect.Parameter:
    """Return a parameter for typer to read; see `Parameters`."""
    name, _, usage = written.partition(": ")
    flags = [word for word in usage.split() if word.startswith("-")]
    word = "" if usage.endswith(tuple(flags)) and flags else usage.split()[-1]
    needed = not flags and not word.startswith("[")
    many = "..." in word
    word = (word if flags or needed else word[1:-1]).replace("...", "")
    default: Any = inspect.Parameter.empty if needed else None
    if flags and word and not many:
        word, has_default, given = word.partition("=")
        default = given if has_default else None
    kind = list[str] if many else _KINDS.get(word, str)
    if not flags:
        described: Any = Argument(metavar=word, help=text or None)
    elif word:
        described = Option(*flags, metavar=word, help=text, rich_help_panel=panel)
    else:
        described, kind, default = Option(*flags, help=text), bool, False
    kind = kind | None if default is None else kind
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=int(default) if kind is int else default,
        annotation=Annotated[kind, described],
    )


def read_words(words: Sequence[str]) -> Invocation | int:
    """Return what a command line asks for; an exit status where only help was asked for.

    Raises:
        UsageError: There is no such command or option; says which comes nearest.
    """
    command = typer.main.get_command(_app())
    width: dict[str, Any] = {} if is_drawn(sys.stdout) else {"terminal_width": NEVER_FULL}
    try:
        found: Invocation | int = command.main(
            list(words), prog_name=PROGRAM, standalone_mode=False, **width
        )
    except TyperException as error:
        context = getattr(error, "ctx", None)
        message = error.format_message().strip()
        if context is None:
            raise UsageError(message) from None
        if type(error).__name__ == "NoArgsIsHelpError":
            write_err(f"{context.get_help()}\n")
            return UsageError.exit_status
        usage = " ".join(context.get_usage().split())
        more = f"`{context.command_path} --help` tells more."
        raise UsageError(f"{message}\n{usage}\n{more}") from None
    return found


def _app() -> typer.Typer:
    """Return all commands, in which help is plain text where no terminal shows it."""
    app = typer.Typer(
        name=PROGRAM,
        help="One MCP tool, run_python, in front of all your MCP servers.",
        epilog="Without a command it serves MCP over stdio.",
        rich_markup_mode="rich" if is_drawn(sys.stdout) else None,
        no_args_is_help=True,
    )
    app.callback()(_main)
    groups: dict[str, typer.Typer] = {}
    for name, (panel, text) in GROUPS.items():
        groups[name] = typer.Typer(name=name, help=text, no_args_is_help=name not in COMMANDS)
        app.add_typer(groups[name], rich_help_panel=panel)
    for path, command in COMMANDS.items():
        group, _, name = path.rpartition(" ")
        shown = "\n\n".join(f"  {PROGRAM} {example}" for example in command.examples)
        epilog = f"Examples:\n\n{shown}" if shown else None
        if name in groups:
            added = groups[name].callback(invoke_without_command=True, epilog=epilog)
        else:
            parent = groups[group] if group else app
            added = parent.command(name, epilog=epilog, rich_help_panel=command.panel)
        added(_typer_function(command))
    return app


def _typer_function(command: _Command) -> Callable[..., Invocation]:
    """Return a function as typer reads it: parameters with their types, and a docstring."""

    def invocation(**given: object) -> Invocation:
        flags = {key: given.pop(key) for key in FLAGS}
        return Invocation(
            handler=command.handler,
            arguments=SimpleNamespace(**given),
            flags={key: str(value) for key, value in flags.items() if value is not None},
        )

    own = (_parameter(*each) for each in command.parameters.items())
    settings = (
        _parameter(f"{name}: --{name.replace('_', '-')} VALUE", text, SETTINGS_PANEL)
        for name, text in FLAGS.items()
    )
    invocation.__signature__ = inspect.Signature([*own, *settings])  # type: ignore[attr-defined]
    # Else typer would take what stands here for the types of the command's own.
    invocation.__annotations__ = {}
    invocation.__doc__ = command.help
    return invocation


def _print_version(wanted: bool) -> None:
    if wanted:
        write_out(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


def _main(
    version: bool = Option(
        False, "--version", help="print the version", is_eager=True, callback=_print_version
    ),
) -> None:
    """Handle a call without a command."""
