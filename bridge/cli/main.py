"""The command line's flags, and how errors leave it.

Owns parsing, the mapping from flags to settings, logging set-up and exit statuses. Each command is
one function in a module of its own.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

import anyio

from bridge import __version__
from bridge.cli.output import VisibleFormatter, visible
from bridge.errors import BridgeError
from bridge.settings import Settings, load

logger = logging.getLogger(__name__)

INTERRUPTED = 130
"""What shells report for a command ended by Ctrl-C."""

Command = Callable[[argparse.Namespace, Settings], Awaitable[int]]
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Add = Callable[[str, str, str], argparse.ArgumentParser]

_FLAGS = {
    "--runtime": "auto, podman, docker, bubblewrap, seatbelt, landlock or an engine's path",
    "--runtime-order": "what auto tries, in order, such as docker,bubblewrap",
    "--oci-runtime": "runc, crun, runsc, kata ...: used or refused, never downgraded",
    "--image": "the container image",
    "--memory": "memory limit, such as 512m",
    "--pids": "limit on processes and threads",
    "--cpus": "limit on CPUs, such as 1.5",
    "--profile": "standard, strict or one of config.toml",
    "--guard": "what the static guard does: off, advise or enforce",
    "--sources": "clients whose configurations are read, or -NAME,-NAME for all but those",
    "--description-tokens": "what the description of run_python may cost",
    "--preflight": "check programs before they run: check or off",
    "--type-checker": "off, auto, or a type checker for programs, such as ty",
    "--roots": "directories that servers are told of when they ask for roots",
    "--output-mode": "compact, toon, json or auto",
    "--max-timeout": "longest timeout a run may ask for, in seconds",
    "--servers-config": "one more configuration file, read first",
    "--state-dir": "where logs and caches are kept",
    "--log-level": "DEBUG, INFO, WARNING or ERROR",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    arguments = _parser().parse_args(_with_default(sys.argv[1:] if argv is None else argv))
    try:
        settings = load(_flags(arguments))
        _set_up_logging(settings, arguments)
        command = _command(arguments.handler)
        status = anyio.run(partial(_until_signalled, command, arguments, settings))
    except BridgeError as error:
        print(f"mcp-code-bridge: {visible(str(error))}", file=sys.stderr)  # noqa: T201
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _unheard()
    except BaseExceptionGroup as group:
        if not _is_unheard(group):
            raise
        return _unheard()
    return status


def _is_unheard(group: BaseExceptionGroup[BaseException]) -> bool:
    """Tell whether nothing went wrong but that the reader of our output went away."""
    gone, rest = group.split((BrokenPipeError, ConnectionResetError))
    return gone is not None and rest is None


def _unheard() -> int:
    """Let what is still buffered go nowhere: there is nobody left to tell."""
    logger.debug("the reader of our output went away", exc_info=True)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 1


async def _until_signalled(
    command: Command, arguments: argparse.Namespace, settings: Settings
) -> int:
    """Run the command; a signal to end cancels it, so that everything it holds is released."""
    status = INTERRUPTED
    received: list[int] = []

    async def watch(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                received.append(number)
                scope.cancel()

    failure: BridgeError | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, tasks.cancel_scope)
        try:
            status = await command(arguments, settings)
        except BridgeError as error:
            # Raised through the task group it would arrive wrapped.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    if received:
        # A thread of the stdio transport may still wait for a line that never comes, and would
        # keep the interpreter from ending; everything has been released by now.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + received[0])
    return status


def _command(name: str) -> Command:
    """Return the function that a command is, importing its module only now.

    The MCP SDK takes most of a second to import, which `--help` and a typing mistake need not.
    """
    module, _, function = name.partition(":")
    # What importing makes is there to stay. To look through it for garbage time and again is an
    # eighth of the start, and later a pause of tens of milliseconds in the middle of some run.
    gc.disable()
    try:
        found: Command = getattr(importlib.import_module(module), function)
        gc.freeze()
    finally:
        gc.enable()
    return found


def _with_default(argv: Sequence[str]) -> list[str]:
    """Put `serve` ahead when no command is given, so that flags alone work."""
    if argv and (not argv[0].startswith("-") or argv[0] in ("-h", "--help", "--version")):
        return list(argv)
    return ["serve", *argv]


class _BriefUsage(argparse.HelpFormatter):
    """Keeps the settings, which every command takes, out of the usage line that errors repeat."""

    def add_usage(
        self,
        usage: str | None,
        actions: Iterable[argparse.Action],
        groups: Iterable[argparse._MutuallyExclusiveGroup],
        prefix: str | None = None,
    ) -> None:
        """Leave the settings to the list below it."""
        own = [action for action in actions if _FLAGS.keys().isdisjoint(action.option_strings)]
        super().add_usage(usage, own, groups, prefix)


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    group = shared.add_argument_group("settings (each also an MCP_BRIDGE_* variable)")
    for flag, text in _FLAGS.items():
        group.add_argument(flag, help=text, metavar="VALUE", default=None)
    parser = argparse.ArgumentParser(
        prog="mcp-code-bridge",
        description="One MCP tool, run_python, in front of all your MCP servers.",
        epilog="Without a command it serves MCP over stdio.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = _adder(commands, shared)
    command = add(
        "serve", "Serve MCP over stdio, or over HTTP on this machine.", "bridge.cli.serve:serve"
    )
    command.add_argument("--http", metavar="HOST:PORT", help="serve streamable HTTP instead")
    command = add("run", "Run one program and exit as it does.", "bridge.cli.run:run")
    command.add_argument("file", nargs="?", metavar="FILE", help="a file, or - for stdin")
    command.add_argument("-c", dest="code", metavar="CODE", help="the program itself")
    command.add_argument("--servers", metavar="A,B", help="servers to load")
    command.add_argument("--timeout", metavar="SECONDS", help="time limit of the program")
    command.add_argument(
        "--plan",
        action="store_true",
        help="hold back what changes something, list it, and in a terminal ask and do it",
    )
    command.add_argument("--json", action="store_true", help="print the structured result")
    command.add_argument("argv", nargs="*", metavar="ARG", help="after --: the program's sys.argv")
    command = add("servers", "List every discovered server.", "bridge.cli.servers:servers")
    command.add_argument(
        *("--check", "--start"),
        action="store_true",
        help="start each, and say what it has and what it costs",
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command = add("tools", "List or search tools across servers.", "bridge.cli.tools:tools")
    command.add_argument(
        "query", nargs="?", metavar="QUERY", help="words to search for, or SERVER.TOOL"
    )
    command.add_argument("--server", metavar="NAME", help="only this server's")
    command.add_argument("--stub", action="store_true", help="as typed Python")
    command.add_argument("--fresh", action="store_true", help="ask the servers again")
    command.add_argument("--json", action="store_true", help="print JSON")
    _add_policy(commands, shared)
    _add_audit(commands, shared)
    _add_logins(add)
    command = add(
        "doctor", "Try each engine and say what would be used.", "bridge.cli.doctor:doctor"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    _add_image(add)
    return parser


def _adder(commands: Commands, shared: argparse.ArgumentParser) -> Add:
    """Return what adds a command of a name and a text, done by a function."""

    def add(name: str, text: str, handler: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=text, description=text, parents=[shared], formatter_class=_BriefUsage
        )
        command.set_defaults(handler=handler)
        return command

    return add


def _add_policy(commands: Commands, shared: argparse.ArgumentParser) -> None:
    text = "Say what the policy decides, and why; or write a first one."
    command = commands.add_parser("policy", help=text, description=text)
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = _adder(actions, shared)
    command = add(
        "explain", "Explain the decision on one call.", "bridge.cli.policy_explain:explain"
    )
    command.add_argument("server", metavar="SERVER", help="its name or alias")
    command.add_argument("tool", metavar="TOOL", help="its name or alias")
    command.add_argument(
        "given", nargs="*", metavar="ARGS", help="arguments: a JSON object, or KEY=VALUE words"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    command = add(
        "check",
        "Check the policy file; with a program, the calls that it can be seen to make.",
        "bridge.cli.policy_check:check",
    )
    command.add_argument("file", nargs="?", metavar="FILE", help="a program, or - for stdin")
    command.add_argument("-c", dest="code", metavar="CODE", help="the program itself")
    command.add_argument("--json", action="store_true", help="print JSON")
    command = add(
        "init", "Propose a policy for the servers there are.", "bridge.cli.policy_init:init"
    )
    command.add_argument("--print", action="store_true", help="print it, and write nothing")


def _add_audit(commands: Commands, shared: argparse.ArgumentParser) -> None:
    text = "Check the log of what programs did, or read it."
    command = commands.add_parser("audit", help=text, description=text)
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    add = _adder(actions, shared)
    command = add("verify", "Check that nothing in it was changed.", "bridge.cli.audit:verify_log")
    command.add_argument("--expect", metavar="HASH", help="has to be in it, such as a receipt's")
    command.add_argument("--json", action="store_true", help="print JSON")
    command = add("tail", "Print its last records.", "bridge.cli.audit:tail")
    command.add_argument("-n", dest="number", type=int, default=20, metavar="N", help="how many")
    command.add_argument("-f", dest="follow", action="store_true", help="and those that come")
    command.add_argument("--json", action="store_true", help="print JSON lines")
    command = add("show", "Print what it has of a run or a plan.", "bridge.cli.audit:show")
    command.add_argument("run", metavar="RUN", help="its id, or the beginning of one")
    command.add_argument("--json", action="store_true", help="print JSON lines")
    command = add("stats", "Count the calls that are in it.", "bridge.cli.audit:stats")
    command.add_argument(
        "--by", default="server", metavar="WHAT", help="day, server, tool, decision, outcome"
    )
    command.add_argument("--since", metavar="DAY", help="only from this day on: 2026-12-31")
    command.add_argument("--json", action="store_true", help="print JSON")


def _add_logins(add: Add) -> None:
    command = add("login", "Log in to a remote server.", "bridge.cli.login:login")
    command.add_argument("server", metavar="SERVER", help="its name or alias")
    command.add_argument("--no-browser", action="store_true", help="only print the address")
    command.add_argument("--timeout", metavar="SECONDS", help="how long to wait for you")
    command = add("logout", "Forget the login to a server.", "bridge.cli.login:logout")
    command.add_argument("server", metavar="SERVER", help="its name or alias")


def _add_image(add: Add) -> None:
    command = add("image", "Build the runtime image, or say how it is.", "bridge.cli.image:image")
    command.add_argument("action", choices=("build", "status"))
    command.add_argument(
        "--flavour",
        choices=("slim", "data"),
        default="slim",
        help="data adds numpy, pandas, matplotlib and openpyxl",
    )
    command.add_argument("--offline", action="store_true", help="from Debian packages, no registry")
    command.add_argument("--fresh", action="store_true", help="build though it is up to date")
    command.add_argument("--json", action="store_true", help="print JSON")


def _flags(arguments: argparse.Namespace) -> dict[str, str]:
    names = [flag.removeprefix("--").replace("-", "_") for flag in _FLAGS]
    given = {name: getattr(arguments, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _set_up_logging(settings: Settings, arguments: argparse.Namespace) -> None:
    level = settings.log_level
    if arguments.command != "serve" and level == "INFO":
        # A person at a terminal wants the command's own output; a server's log wants the story.
        level = "WARNING"
    line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    if arguments.command != "serve" and level == "WARNING":
        line = "%(levelname)s: %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(VisibleFormatter(line))
    logging.basicConfig(level=level, handlers=[handler])
    for noisy in ("mcp", "httpx2", "httpcore2", "urllib3", "docker", "uvicorn", "watchfiles"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))
