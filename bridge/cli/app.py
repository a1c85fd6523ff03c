"""The commands with their options, help and examples, on typer.

Declares names and texts, and for each command the function that does it, which is imported only
when it is called: most of them take long to import. What serves needs nothing of this.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
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

Declaration = Callable[..., None]

SETTINGS_PANEL = "Settings (each also an MCP_BRIDGE_* variable)"
RUNNING = "Running programs"
LOOKING = "Servers and tools"
KEEPING = "What programs did and left"
SETTING_UP = "Setting up"

RUN_EXAMPLES = (
    "run -c 'await mcp_github.list_issues(repo=\"o/r\")'",
    "run report.py --servers github --out results -- 2026",
)

Json = Annotated[bool, Option("--json", help="print JSON")]
JsonLines = Annotated[bool, Option("--json", help="print JSON lines")]
Server = Annotated[str, Argument(metavar="SERVER", help="its name or alias")]
Code = Annotated[str | None, Option("-c", metavar="CODE", help="the program itself")]
_URI_HELP = "or the beginning of an id or a digest"


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
    for add in (_add_running, _add_looking, _add_policy, _add_keeping, _add_setting_up):
        add(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        write_out(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


def _main(
    version: bool = Option(
        False, "--version", help="print the version", is_eager=True, callback=_print_version
    ),
) -> None:
    """Take what is of no command."""


def _group(
    app: typer.Typer, name: str, text: str, *, panel: str = KEEPING, alone: bool = False
) -> typer.Typer:
    """Return what has the actions of a command that has several.

    Args:
        alone: Whether it does something without an action, too.
    """
    group = typer.Typer(name=name, help=text, no_args_is_help=not alone)
    app.add_typer(group, rich_help_panel=panel)
    return group


def _command(
    app: typer.Typer,
    handler: str,
    *examples: str,
    name: str = "",
    panel: str | None = None,
    alone: bool = False,
) -> Callable[[Declaration], None]:
    """Return a decorator that adds a command of a function's parameters and docstring.

    Args:
        handler: What does it, as "module:function" of this package.
        examples: Command lines, for the end of its help.
        alone: Whether it is what a group does without an action.
    """

    def add(declared: Declaration) -> None:
        parameters = inspect.signature(declared, eval_str=True).parameters.values()

        def invocation(**given: object) -> Invocation:
            flags = {key: given.pop(key) for key in FLAGS}
            return Invocation(
                handler=handler,
                arguments=SimpleNamespace(**given),
                flags={key: str(value) for key, value in flags.items() if value is not None},
            )

        named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
        invocation.__signature__ = inspect.Signature([*named, *_settings()])  # type: ignore[attr-defined]
        # Else typer would take what stands here for the types of the command's own.
        invocation.__annotations__ = {}
        invocation.__doc__ = declared.__doc__
        shown = "\n\n".join(f"  {PROGRAM} {example}" for example in examples)
        epilog = f"Examples:\n\n{shown}" if examples else None
        if alone:
            app.callback(invoke_without_command=True, epilog=epilog)(invocation)
        else:
            app.command(name or declared.__name__, epilog=epilog, rich_help_panel=panel)(invocation)

    return add


def _settings() -> list[inspect.Parameter]:
    """Return the flags that every command takes."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                str | None,
                Option(
                    f"--{name.replace('_', '-')}",
                    help=text,
                    metavar="VALUE",
                    rich_help_panel=SETTINGS_PANEL,
                ),
            ],
        )
        for name, text in FLAGS.items()
    ]


def _add_running(app: typer.Typer) -> None:
    @_command(app, "serve:serve", "serve --http 127.0.0.1:8000", panel=RUNNING)
    def serve(
        http: str | None = Option(None, metavar="HOST:PORT", help="serve streamable HTTP instead"),
    ) -> None:
        """Serve MCP over stdio, or over HTTP on this machine."""

    _add_run(app)


def _add_run(app: typer.Typer) -> None:
    @_command(app, "run:run", *RUN_EXAMPLES, panel=RUNNING)
    def run(
        file: str | None = Argument(None, metavar="FILE", help="a file, or - for stdin"),
        argv: list[str] | None = Argument(
            None, metavar="ARG", help="after --: the program's sys.argv"
        ),
        code: Code = None,
        servers: str | None = Option(None, metavar="A,B", help="servers to load"),
        timeout: float | None = Option(None, metavar="SECONDS", help="time limit of the program"),
        plan: bool = Option(
            False,
            "--plan",
            help="hold back what changes something, list it, and in a terminal ask and do it",
        ),
        files: list[str] | None = Option(
            None,
            "--file",
            metavar="NAME=PATH",
            help="a file of yours for the program's directory; may be repeated",
        ),
        packages: list[str] | None = Option(
            None,
            "--package",
            metavar="REQUIREMENT",
            help="a package that the settings allow; may be repeated",
        ),
        session: str | None = Option(
            None, metavar="NAME", help="keep variables, imports and files under this name"
        ),
        end_session: bool = Option(
            False, "--end-session", help="end the session after this; alone, only that"
        ),
        out: str | None = Option(
            None, metavar="DIR", help="where to put what the program left in out/"
        ),
        force: bool = Option(False, "--force", help="with --out: replace files there"),
        json: bool = Option(False, "--json", help="print the structured result"),
    ) -> None:
        """Run one program and exit as it does."""


def _add_looking(app: typer.Typer) -> None:
    text = "List every discovered server, or approve what a project's files define."
    group = _group(app, "servers", text, panel=LOOKING, alone=True)

    @_command(group, "servers:servers", "servers --check", "servers approve github", alone=True)
    def servers(
        check: bool = Option(
            False, "--check", "--start", help="start each, and say what it has and what it costs"
        ),
        json: Json = False,
    ) -> None:
        """List every discovered server, or approve what a project's files define."""

    @_command(group, "servers_approve:approve", "servers approve github")
    def approve(
        names: list[str] | None = Argument(
            None, metavar="NAME[@DIGEST]", help="shown, and you are asked; or by digest"
        ),
    ) -> None:
        """Let a project's server, or a changed one, be used."""

    @_command(
        app, "tools:tools", "tools 'create issue'", "tools github.create_issue", panel=LOOKING
    )
    def tools(
        query: str | None = Argument(
            None, metavar="QUERY", help="words to search for, or SERVER.TOOL"
        ),
        server: str | None = Option(None, metavar="NAME", help="only this server's"),
        stub: bool = Option(False, "--stub", help="as typed Python"),
        fresh: bool = Option(False, "--fresh", help="ask the servers again"),
        json: Json = False,
    ) -> None:
        """List or search tools across servers."""

    @_command(app, "login:login", "login linear", panel=LOOKING)
    def login(
        server: Server,
        no_browser: bool = Option(False, "--no-browser", help="only print the address"),
        timeout: str | None = Option(None, metavar="SECONDS", help="how long to wait for you"),
    ) -> None:
        """Log in to a remote server."""

    @_command(app, "login:logout", panel=LOOKING)
    def logout(server: Server) -> None:
        """Forget the login to a server."""


def _add_policy(app: typer.Typer) -> None:
    group = _group(app, "policy", "Say what the policy decides, and why; or write a first one.")

    @_command(group, "policy_explain:explain", "policy explain github create_issue repo=o/r")
    def explain(
        server: Server,
        tool: str = Argument(..., metavar="TOOL", help="its name or alias"),
        given: list[str] | None = Argument(
            None, metavar="ARGS", help="arguments: a JSON object, or KEY=VALUE words"
        ),
        json: Json = False,
    ) -> None:
        """Explain the decision on one call."""

    @_command(group, "policy_check:check", "policy check report.py")
    def check(
        file: str | None = Argument(None, metavar="FILE", help="a program, or - for stdin"),
        code: Code = None,
        json: Json = False,
    ) -> None:
        """Check the policy file; with a program, the calls that it can be seen to make."""

    @_command(group, "policy_init:init", "policy init --print")
    def init(
        print: bool = Option(False, "--print", help="print it, and write nothing"),
    ) -> None:
        """Propose a policy for the servers there are."""


def _add_keeping(app: typer.Typer) -> None:
    _add_audit(_group(app, "audit", "Check the log of what programs did, or read it."))
    _add_artifacts(
        _group(
            app,
            "artifacts",
            "List, fetch or remove what runs left: files, whole outputs, pictures.",
        )
    )
    _add_skills(
        _group(
            app, "skills", "List, show, approve or remove the functions that programs have saved."
        )
    )


def _add_audit(group: typer.Typer) -> None:
    @_command(group, "audit:verify_log")
    def verify(
        expect: str | None = Option(
            None, metavar="HASH", help="has to be in it, such as a receipt's"
        ),
        json: Json = False,
    ) -> None:
        """Check that nothing in it was changed."""

    @_command(group, "audit:tail", "audit tail -n 100 -f")
    def tail(
        number: int = Option(20, "-n", metavar="N", help="how many"),
        follow: bool = Option(False, "-f", help="and those that come"),
        json: JsonLines = False,
    ) -> None:
        """Print its last records."""

    @_command(group, "audit:show")
    def show(
        run: str = Argument(..., metavar="RUN", help="its id, or the beginning of one"),
        json: JsonLines = False,
    ) -> None:
        """Print what it has of a run or a plan."""

    @_command(group, "audit:stats", "audit stats --by day,server --since 2026-12-31")
    def stats(
        by: str = Option("server", metavar="WHAT", help="day, server, tool, decision, outcome"),
        since: str | None = Option(None, metavar="DAY", help="only from this day on: 2026-12-31"),
        json: Json = False,
    ) -> None:
        """Count the calls that are in it."""


def _add_artifacts(group: typer.Typer) -> None:
    @_command(group, "artifacts:list_kept", name="list")
    def list_kept(
        run: str | None = Option(
            None, metavar="RUN", help="only this run's; the beginning of its id"
        ),
        json: Json = False,
    ) -> None:
        """List what is kept, the newest first."""

    @_command(group, "artifacts:get", "artifacts get 3f9a -o report.csv")
    def get(
        uri: str = Argument(..., metavar="URI", help=_URI_HELP),
        output: str = Option("-", "-o", metavar="FILE", help="- for stdout"),
        force: bool = Option(False, "--force", help="replace FILE if it is there"),
    ) -> None:
        """Write one to stdout, or to a file."""

    @_command(group, "artifacts:remove", name="rm")
    def remove(
        uris: list[str] | None = Argument(None, metavar="URI", help=_URI_HELP),
        run: str | None = Option(None, metavar="RUN", help="what this run left"),
        everything: bool = Option(False, "--all", help="everything, of all runs"),
    ) -> None:
        """Remove some, those of a run, or all."""


def _add_skills(group: typer.Typer) -> None:
    @_command(group, "skills:list_skills", name="list")
    def list_skills(json: Json = False) -> None:
        """List them."""

    @_command(group, "skills:show")
    def show(name: str = Argument(..., metavar="NAME"), json: Json = False) -> None:
        """Print one."""

    @_command(group, "skills:approve", "skills approve tidy_names")
    def approve(
        names: list[str] = Argument(
            ..., metavar="NAME[@DIGEST]", help="as `show` prints it; else you are asked"
        ),
    ) -> None:
        """Let programs use some without asking."""

    @_command(group, "skills:remove", name="rm")
    def remove(names: list[str] = Argument(..., metavar="NAME")) -> None:
        """Remove some, with all their versions."""


def _add_setting_up(app: typer.Typer) -> None:
    @_command(app, "doctor:doctor", "doctor --runtime podman", panel=SETTING_UP)
    def doctor(json: Json = False) -> None:
        """Try each engine and say what would be used."""

    text = "Build the runtime image, or say how it is."
    group = _group(app, "image", text, panel=SETTING_UP)

    @_command(group, "image:build_image", "image build --flavour data", name="build")
    def build(
        flavour: Literal["slim", "data"] = Option(
            "slim", help="data adds numpy, pandas, matplotlib and openpyxl"
        ),
        offline: bool = Option(False, "--offline", help="from Debian packages, no registry"),
        fresh: bool = Option(False, "--fresh", help="build though it is up to date"),
        json: Json = False,
    ) -> None:
        """Build the image on the first engine that answers."""

    @_command(group, "image:show_status", name="status")
    def status(json: Json = False) -> None:
        """Show the image on every engine that answers."""
