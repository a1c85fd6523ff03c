"""Decides how a server's process starts: its command line, its directory and its environment.

The bridge often runs in a repository that may be hostile. So `npx`, `npm exec` and `python -m` of
the user's servers start in a way that runs none of the repository's code.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import anyio

from bridge.model import ServerSpec
from bridge.upstream.process import starts_others

PRIVATE_PREFIX = "MCP_BRIDGE_"  # Prefix of the bridge's own settings, which servers do not inherit.

START_DIRECTORY = f"{PRIVATE_PREFIX}START_DIRECTORY"
NPM_SHELL = Path(__file__).with_name("npm_shell.sh")

_RUN_MODULE = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy._run_module_as_main(sys.argv.pop(1))"
)
"""Replaces `-P -m` for a Python before 3.11, which has no `-P`."""

# Words end with a NUL.
_PYTHON = re.compile(r"(?:python|pypy)[0-9.]*t?")
_MODULE = re.compile(
    r"((?:-[^-\0mcWX]+\0|-[^-\0mcWX]*[WX]\0?[^\0]+\0|--check-hash-based-pycs\0[^\0]+\0|--[^\0]+\0)*)"
    r"-([^-\0mcWX]*)m\0?(.+)\0",
    re.DOTALL,
)
"""Matches Python's `-m`: options before it, letters joined to it, module and the rest."""

_NPM_WORDS = re.compile(
    r"((?:(?:-p|--package|-c|--call|--registry|--cache|--loglevel|--userconfig)\0[^\0]*\0|-[^\0]*\0)*)"
    r"([^\0]*)\0?(.*)",
    re.DOTALL,
)
"""Matches npm's first options, the next word, and the rest."""

_OF_PROJECT = re.compile(
    r"\0(?:--prefix|-C|-w|-ws|--workspaces?|--script-shell)[=\0]"
    r"|\0(?:(?:-p|--package)[=\0])?(?:\.|file:(?!/)|(?![-/]|\w+:)[^\0]*\.(?:tgz|tar|tar\.gz)\0)"
)
"""Matches npm's options for a project or a shell, and packages of the current directory."""


_RUN = re.compile(
    r"(?<![^\0\s;&|(/])(docker|podman)[\0\s]+"
    r"(?:--?(?:[cHl]|config|connection|context|host|identity|log-level|module|root|runroot|runtime"
    r"|storage-driver|storage-opt|tls\w+|tmpdir|url)[\0\s]+[^\0\s]+[\0\s]+|-[^\0\s]*[\0\s]+)*"
    r"(?:container[\0\s]+)?run([\0\s])"
)
"""Matches an engine's `run` and its options. Words end with a NUL, or a space in a script."""

TREE_LABEL = "org.mcp-code-bridge.tree"  # Its value is the tag of the server's processes.


class Containers:
    """Labels and removes the containers that servers run in. This class does neither."""

    def labels(self) -> Mapping[str, str]:
        return {}

    async def reap(self, engine: str, environ: Mapping[str, str], ended: str) -> None:
        """Remove the containers with the label `ended`; if it is empty, those of ended bridges."""


class Launch(NamedTuple):
    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str | None = None
    hint: str = ""


def label_container(argv: Sequence[str], labels: Mapping[str, str]) -> tuple[list[str], str]:
    """Return a command line with labels for its container, and the engine if any."""
    text = "\0".join(argv)
    run = _RUN.search(text)
    if run is None or ("\0" in text[: run.start()] and not starts_others(argv[0])):
        return [*argv], ""
    words = [word for label in labels.items() for word in ("--label", "=".join(label))]
    added = "\0".join(words) if run[2] == "\0" else shlex.join(words)
    return f"{text[: run.end()]}{added}{run[2]}{text[run.end() :]}".split("\0"), run[1]


def server_environment(environ: Mapping[str, str], spec: ServerSpec) -> dict[str, str]:
    """Return a server's environment: the bridge's own without its settings, and the entry's.

    Clients pass theirs too, and entries rely on its proxies, tokens and version managers.
    """
    inherited = {k: v for k, v in environ.items() if not k.startswith(PRIVATE_PREFIX)}
    return {**inherited, **spec.env, **spec.changes}


async def plan_launch(
    spec: ServerSpec, environ: Mapping[str, str], empty: Path, here: Path = Path()
) -> Launch:
    """Return how to start a server so that it runs no code of a foreign directory.

    Args:
        here: The client's working directory.
        empty: A directory without a project, to create.
    """
    command = spec.executable or spec.command
    launch = Launch([command, *spec.args], environ, spec.cwd)
    directory, _, name = spec.command.rpartition("/")
    belongs = spec.cwd is not None or (spec.source.scope in ("project", "local") and not spec.apart)
    if belongs or (directory and not directory.startswith("/")):
        return launch
    text = "".join(f"{word}\0" for word in spec.args)
    if _runs_package(name, text):
        return _launch_package(spec, environ, empty, here, await _find_npm(command, environ, here))
    module = _MODULE.fullmatch(text) if _PYTHON.fullmatch(name) else None
    if module is None:
        return launch
    hint = (
        "The current directory's modules are not used, because this server does not belong to it. "
        f'If the module is there, add that directory as "cwd" to the entry in {spec.source.path}. '
    )
    probe = [command, "-P", "-V"]
    done = await anyio.run_process(probe, stdin=subprocess.DEVNULL, env=environ, check=False)
    if done.returncode == 0:
        return Launch([command, "-P", *spec.args], environ, hint=hint)
    before, letters, after = module.groups()
    options = [*before.split("\0")[:-1], *([f"-{letters}"] if letters else [])]
    return Launch([command, *options, "-c", _RUN_MODULE, *after.split("\0")], environ, hint=hint)


def _launch_package(
    spec: ServerSpec, environ: Mapping[str, str], empty: Path, here: Path, npm: Path | None
) -> Launch:
    """Return how to start npm outside the project and the server inside it.

    npm takes programs (`node` and `sh` too), settings and a registry from its project. `--prefix`
    would keep the project's programs, and hide the user's global packages.
    """
    empty.mkdir(mode=0o555, parents=True, exist_ok=True)
    command = spec.executable or spec.command
    environ = {**environ, START_DIRECTORY: str(here.absolute())}
    if npm is not None and not npm.resolve().is_relative_to(here.absolute()):
        command, environ["PATH"] = str(npm), f"{npm.parent}{os.pathsep}{environ.get('PATH', '')}"
    return Launch([command, f"--script-shell={NPM_SHELL}", *spec.args], environ, str(empty))


async def _find_npm(command: str, environ: Mapping[str, str], here: Path) -> Path | None:
    """Return the npm that a shim of asdf, mise or Volta chooses for a directory."""
    shim = Path(shutil.which(command, path=environ.get("PATH")) or command)
    if _is_npm(shim):
        return None
    probe = [str(shim.with_name("node")), "-p", "process.execPath"]
    with suppress(OSError):
        done = await anyio.run_process(
            probe, stdin=subprocess.DEVNULL, env=environ, cwd=here, check=False
        )
        npm = Path(os.fsdecode(done.stdout).strip()).parent / shim.name
        return npm if _is_npm(npm) else None
    return None


def _is_npm(path: Path) -> bool:
    return path.resolve().name.endswith("-cli.js")


def _runs_package(command: str, text: str) -> bool:
    """Return whether a command is `npx` or `npm exec` of a package outside the directory."""
    options, word, rest = _NPM_WORDS.findall(text)[0]
    if command == "npm" and word in ("exec", "x"):
        options, word, _ = _NPM_WORDS.findall(options + rest)[0]
    elif command != "npx":
        return False
    return not _OF_PROJECT.search(f"\0{options}{word}\0")


_USUAL_DIRECTORIES = (
    *("~/.local/bin", "~/bin", "~/.cargo/bin", "~/.bun/bin", "~/.deno/bin", "~/.volta/bin"),
    *("~/go/bin", "~/.pyenv/shims", "~/.asdf/shims", "~/.local/share/mise/shims"),
    *("~/.nvm/versions/node/*/bin", "/usr/local/bin", "/opt/homebrew/bin"),
    *("/home/linuxbrew/.linuxbrew/bin", "/usr/local/go/bin", "/snap/bin", "/usr/bin", "/bin"),
)
"""Directories of installers, which may be missing in the PATH of a service."""


def explain_missing(
    spec: ServerSpec, environ: Mapping[str, str], here: Path = Path()
) -> tuple[str, str] | None:
    """Return why a server's command is not found, and the remedy; None if it is found."""
    command, place = spec.command, f"in {spec.source.path}"
    path, home = environ.get("PATH", os.defpath), environ.get("HOME", "~")
    if shutil.which(command, os.F_OK, path) or Path(here, spec.cwd or "", command).exists():
        return None
    first, _, rest = command.partition(" ")
    if rest and shutil.which(first, path=path):
        words = ", ".join(f'"{word}"' for word in [*rest.split(), *spec.args])
        return (
            f"`command` is a program and its arguments: {command!r}.",
            f'Write "command": "{first}", "args": [{words}] {place}.',
        )
    expanded = re.sub(r"\$(\w+)|\$\{(\w+)\}", lambda m: environ.get(m[1] or m[2], m[0]), command)
    expanded = re.sub(r"^~(?=/|$)", lambda _: home, expanded)
    if expanded != command:
        there = "" if os.path.exists(expanded) else ", once it is there"  # noqa: PTH110
        return (
            f"There is no file {command}: no shell expands it.",
            f"Write its full path, {expanded!r}, as `command` {place}{there}.",
        )
    if os.sep in command:
        return f"There is no file {command}.", f"Correct `command` {place}."
    usual = (d.replace("~", glob.escape(home), 1) for d in _USUAL_DIRECTORIES)
    directories = os.pathsep.join(d for pattern in usual for d in sorted(glob.glob(pattern))[::-1])  # noqa: PTH207
    found = shutil.which(command, path=directories)
    remedy = f"Give its full path, {found!r}," if found else "Install it, or give its full path"
    return f"There is no command {command!r} on the PATH {path}.", f"{remedy} as `command` {place}."


def explain_spawn_failure(
    spec: ServerSpec, environ: Mapping[str, str], error: OSError | ValueError, here: Path = Path()
) -> tuple[str, str]:
    command, place = spec.command, f"in {spec.source.path}"
    if spec.cwd is not None and not Path(here, spec.cwd).is_dir():
        return (
            f"Its working directory {spec.cwd} does not exist.",
            f"Create the directory, or correct `cwd` {place}.",
        )
    if isinstance(error, FileNotFoundError):
        return explain_missing(spec, environ, here) or (
            f"The interpreter that {command} names is missing.",
            "Install that interpreter, or correct the script's first line.",
        )
    if isinstance(error, PermissionError):
        found = shutil.which(command, os.F_OK, environ.get("PATH", os.defpath)) or command
        return (
            f"{found} cannot be executed.",
            f"Make it executable, or correct `command` {place}.",
        )
    if isinstance(error, OSError) and error.errno == errno.ENOEXEC:
        return (
            f"{command} is neither a program nor a script.",
            "Give it a `#!` line, or name its interpreter as `command`.",
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return (f"The system says: {reason}.", f"Correct `command`, `args` and `env` {place}.")
