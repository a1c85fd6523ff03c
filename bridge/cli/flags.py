"""The command line's flags and commands, and which function each command is.

Owns names and help texts; imports no command, for most of them take long to import.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from bridge import __version__
from bridge.settings import REMOVED_SETTINGS

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
Add = Callable[[str, str, str], argparse.ArgumentParser]

FLAGS = {
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
    "--roots": "directories that servers are told of when they ask for roots",
    "--output-mode": "compact, toon, json or auto",
    "--structured": "where results have their record for programs: meta or content",
    "--max-timeout": "longest timeout a run may ask for, in seconds",
    "--servers-config": "one more configuration file, read first",
    "--state-dir": "where logs and caches are kept",
    "--log-level": "DEBUG, INFO, WARNING or ERROR",
}

REMOVED_FLAGS = tuple(f"--{name.replace('_', '-')}" for name in REMOVED_SETTINGS if "." not in name)
"""Still taken, so that the settings can say what replaces them."""


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Return what a command line says; one with a mistake ends the process, as argparse does."""
    arguments, unknown = parser().parse_known_args(with_default(argv))
    if unknown:
        # By itself argparse shows the usage of no command here.
        arguments.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return arguments


def with_default(argv: Sequence[str]) -> list[str]:
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
        own = [action for action in actions if FLAGS.keys().isdisjoint(action.option_strings)]
        super().add_usage(usage, own, groups, prefix)


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    shared = argparse.ArgumentParser(add_help=False)
    group = shared.add_argument_group("settings (each also an MCP_BRIDGE_* variable)")
    for flag, text in FLAGS.items():
        group.add_argument(flag, help=text, metavar="VALUE", default=None)
    for flag in REMOVED_FLAGS:
        group.add_argument(flag, nargs="?", const="", help=argparse.SUPPRESS)
    whole = argparse.ArgumentParser(
        prog="mcp-code-bridge",
        description="One MCP tool, run_python, in front of all your MCP servers.",
        epilog="Without a command it serves MCP over stdio.",
    )
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = _adder(commands, shared)
    command = add(
        "serve", "Serve MCP over stdio, or over HTTP on this machine.", "bridge.cli.serve:serve"
    )
    command.add_argument("--http", metavar="HOST:PORT", help="serve streamable HTTP instead")
    _add_run(add)
    _add_lists(add)
    _add_policy(commands, shared)
    _add_audit(commands, shared)
    _add_artifacts(commands, shared)
    _add_skills(commands, shared)
    _add_logins(add)
    command = add(
        "doctor", "Try each engine and say what would be used.", "bridge.cli.doctor:doctor"
    )
    command.add_argument("--json", action="store_true", help="print JSON")
    _add_image(add)
    return whole


def _add_run(add: Add) -> None:
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
    command.add_argument(
        "--file",
        action="append",
        dest="files",
        metavar="NAME=PATH",
        help="a file of yours for the program's directory; may be repeated",
    )
    command.add_argument(
        "--package",
        action="append",
        dest="packages",
        metavar="REQUIREMENT",
        help="a package that the settings allow; may be repeated",
    )
    command.add_argument(
        "--session", metavar="NAME", help="keep variables, imports and files under this name"
    )
    command.add_argument(
        "--end-session", action="store_true", help="end the session after this; alone, only that"
    )
    command.add_argument("--out", metavar="DIR", help="where to put what the program left in out/")
    command.add_argument("--force", action="store_true", help="with --out: replace files there")
    command.add_argument("--json", action="store_true", help="print the structured result")
    command.add_argument("argv", nargs="*", metavar="ARG", help="after --: the program's sys.argv")


def _add_lists(add: Add) -> None:
    text = "List every discovered server, or approve what a project's files define."
    command = add("servers", text, "bridge.cli.servers:servers")
    command.add_argument(
        "action", nargs="?", choices=("approve",), help="let a project's, or a changed one, be used"
    )
    command.add_argument(
        "names", nargs="*", metavar="NAME[@DIGEST]", help="shown, and you are asked; or by digest"
    )
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


def _adder(commands: Commands, shared: argparse.ArgumentParser) -> Add:
    """Return what adds a command of a name and a text, done by a function."""

    def add(name: str, text: str, handler: str) -> argparse.ArgumentParser:
        command = commands.add_parser(
            name, help=text, description=text, parents=[shared], formatter_class=_BriefUsage
        )
        command.set_defaults(handler=handler, parser=command)
        return command

    return add


def _group(commands: Commands, shared: argparse.ArgumentParser, name: str, text: str) -> Add:
    """Return what adds actions to a command that has several."""
    command = commands.add_parser(name, help=text, description=text)
    # Without a metavar, usage names the actions.
    actions = command.add_subparsers(dest="action", required=True)
    return _adder(actions, shared)


def _add_policy(commands: Commands, shared: argparse.ArgumentParser) -> None:
    text = "Say what the policy decides, and why; or write a first one."
    add = _group(commands, shared, "policy", text)
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
    add = _group(commands, shared, "audit", text)
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


def _add_artifacts(commands: Commands, shared: argparse.ArgumentParser) -> None:
    text = "List, fetch or remove what runs left: files, whole outputs, pictures."
    add = _group(commands, shared, "artifacts", text)
    command = add("list", "List what is kept, the newest first.", "bridge.cli.artifacts:list_kept")
    command.add_argument("--run", metavar="RUN", help="only this run's; the beginning of its id")
    command.add_argument("--json", action="store_true", help="print JSON")
    command = add("get", "Write one to stdout, or to a file.", "bridge.cli.artifacts:get")
    command.add_argument("uri", metavar="URI", help="or the beginning of an id or a digest")
    command.add_argument("-o", dest="output", default="-", metavar="FILE", help="- for stdout")
    command.add_argument("--force", action="store_true", help="replace FILE if it is there")
    command = add("rm", "Remove some, those of a run, or all.", "bridge.cli.artifacts:remove")
    command.add_argument(
        "uris", nargs="*", metavar="URI", help="or the beginning of an id or a digest"
    )
    command.add_argument("--run", metavar="RUN", help="what this run left")
    command.add_argument("--all", action="store_true", help="everything, of all runs")


def _add_skills(commands: Commands, shared: argparse.ArgumentParser) -> None:
    text = "List, show, approve or remove the functions that programs have saved."
    add = _group(commands, shared, "skills", text)
    command = add("list", "List them.", "bridge.cli.skills:list_skills")
    command.add_argument("--json", action="store_true", help="print JSON")
    command = add("show", "Print one.", "bridge.cli.skills:show")
    command.add_argument("name", metavar="NAME")
    command.add_argument("--json", action="store_true", help="print JSON")
    command = add("approve", "Let programs use some without asking.", "bridge.cli.skills:approve")
    command.add_argument(
        "names", nargs="+", metavar="NAME[@DIGEST]", help="as `show` prints it; else you are asked"
    )
    command = add("rm", "Remove some, with all their versions.", "bridge.cli.skills:remove")
    command.add_argument("names", nargs="+", metavar="NAME")


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
