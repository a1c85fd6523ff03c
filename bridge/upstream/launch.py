"""Decides how a server's process starts: its command line, its directory and its environment.

The bridge often runs in a repository that may be hostile. A server that does not belong to it must
start as it does in a terminal, but run no code of the repository by accident. So `npx`, `npm exec`
and `python -m` start differently; every other command line is used as it is written.

The environment that a server has is the bridge's, because its child processes inherit it: a
variable that protects the server would break a hook or a test that it starts.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from bridge.model import ServerSpec

PRIVATE_PREFIX = "MCP_BRIDGE_"
"""Prefix of the bridge's own settings, which servers do not inherit."""

START_DIRECTORY = "MCP_BRIDGE_START_DIRECTORY"
"""Where `NPM_SHELL` starts a server; npm and a package's installation scripts see this variable."""

NPM_SHELL = Path(__file__).with_name("npm_shell.sh")

_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")

_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy._run_module_as_main(sys.argv.pop(1))"
)
"""What `-P -m` does, for a Python without `-P`."""

_VALUED = frozenset(
    ("-p", "--package", "-c", "--call", "--registry", "--cache", "--loglevel", "--userconfig")
)
"""Options of npm that often have their value in the next word."""

_PLACES = frozenset(
    ("--prefix", "-C", "-w", "--workspace", "-ws", "--workspaces", "--script-shell")
)
"""Options of npm that choose a project, or the shell."""

_RELATIVE = re.compile(r"\.|file:(?!/)|(?!/|\w+:).*\.(?:tgz|tar|tar\.gz)$")
"""How npm's names of packages in the current directory begin."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A process to start.

    Attributes:
        cwd: Its directory; None for the bridge's own.
        hint: What to say if it ends because a module is missing.
    """

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str | None = None
    hint: str = ""


def server_environment(environ: Mapping[str, str], spec: ServerSpec) -> dict[str, str]:
    """Return the environment that a server has.

    All of the bridge's, because that is what the clients do whose configurations are imported
    (Claude Code among them), and entries rely on it: a proxy, a token, a version manager's
    variables. The server runs with the user's rights either way; the sandbox gets none of this.
    """
    inherited = {k: v for k, v in environ.items() if not k.startswith(PRIVATE_PREFIX)}
    return {**inherited, **spec.env}


async def plan_launch(spec: ServerSpec, environ: Mapping[str, str], empty: Path) -> Launch:
    """Return how to start a server so that it runs no code of a directory that is not its own.

    Args:
        environ: The environment that the server has.
        empty: A directory to create, in which there is no project.

    Raises:
        OSError: The directory cannot be created, or there is no current one.
    """
    launch = Launch(argv=[spec.command, *spec.args], environ=environ, cwd=spec.cwd)
    directory, _, name = spec.command.rpartition("/")
    belongs = spec.cwd is not None or spec.source.scope in ("project", "local")
    if belongs or (directory and not directory.startswith("/")):
        return launch
    if _runs_package(name, spec.args):
        return _launch_package(spec, environ, empty)
    position = _module_option(spec.args) if _PYTHON.fullmatch(name) else None
    if position is None:
        return launch
    before, after = spec.args[:position], spec.args[position + 1 :]
    flags, _, module = spec.args[position].partition("m")
    after = (module, *after) if module else after
    hint = _module_hint(spec, after[0]) if after else ""
    if await _has_safe_path(spec.command, environ):
        return Launch(argv=[spec.command, "-P", *spec.args], environ=environ, hint=hint)
    before = (*before, flags) if flags != "-" else before
    argv = [spec.command, *before, "-c", _RUN_MODULE, *after]
    return Launch(argv=argv, environ=environ, hint=hint)


def _launch_package(spec: ServerSpec, environ: Mapping[str, str], empty: Path) -> Launch:
    """Return how npm starts without the project, and the server in the directory all the same.

    npm takes programs (`node` and `sh` too), settings and a registry from the project that it
    starts in. `--prefix` would leave it the programs, and would take away the user's global
    packages and settings, also from what the server starts.
    """
    empty.mkdir(mode=0o555, parents=True, exist_ok=True)
    return Launch(
        argv=[spec.command, f"--script-shell={NPM_SHELL}", *spec.args],
        environ={**environ, START_DIRECTORY: str(Path.cwd())},
        cwd=str(empty),
    )


def _runs_package(command: str, arguments: Sequence[str]) -> bool:
    """Whether a command is `npx` or `npm exec`, for a package that is not in the directory."""
    words = list(arguments)
    if command == "npm":
        verb = next((word for word in words if not word.startswith("-")), "")
        if verb not in ("exec", "x"):
            return False
        words.remove(verb)
    elif command != "npx":
        return False
    while words:
        word = words.pop(0)
        option, joined, value = word.partition("=")
        if not word.startswith("-"):
            return not _RELATIVE.match(word)
        if option in _VALUED and not joined:
            value = words.pop(0) if words else ""
        if option in _PLACES or (option in ("-p", "--package") and _RELATIVE.match(value)):
            return False
    return True


def _module_option(arguments: Sequence[str]) -> int | None:
    """Return the position of the word with Python's own `-m`; None without one."""
    skip = False
    for position, word in enumerate(arguments):
        if skip:
            skip = False
            continue
        if not word.startswith("-") or word in ("-", "--"):
            return None
        if word.startswith("--"):
            skip = word == "--check-hash-based-pycs"
            continue
        # Letters can be joined: -um, -Im, -Xdev.
        letter = next((letter for letter in word[1:] if letter in "mcWX"), "")
        if letter in ("m", "c"):
            return position if letter == "m" else None
        skip = bool(letter) and word.endswith(letter)
    return None


def _module_hint(spec: ServerSpec, module: str) -> str:
    """Return what to say if a module that is in the current directory is missing."""
    top = module.partition(".")[0]
    if not any(Path(name).exists() for name in (top, f"{top}.py")):
        return ""
    here = Path.cwd()
    return (
        f"The module {top!r} in {here} is not used, because this server does not belong to that "
        f'directory. If it is yours, add "cwd": "{here}" to its entry in {spec.source.path}.'
    )


async def _has_safe_path(command: str, environ: Mapping[str, str]) -> bool:
    """Whether a Python has the option `-P`, which came with 3.11."""
    try:
        probe = await anyio.run_process(
            [command, "-P", "-V"], stdin=subprocess.DEVNULL, env=environ, check=False
        )
    except OSError:
        return True
    return probe.returncode == 0
