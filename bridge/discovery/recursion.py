"""Would this command start the bridge again? Pure.

A bridge that is listed among the user's servers would start itself, and that one again. Owns the
recognition, through the usual launchers and shells. It looks only at what is executed, never at
other arguments: a server that is merely pointed at a directory of the bridge's name is not the
bridge. A launcher it does not know is taken to start something else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

OWN_PROGRAMS = frozenset({"mcp-code-bridge", "mcp-server-code-execution-mode"})
"""Console scripts of this bridge and of the first public bridge of this kind, which would load the
same configuration and start this one."""

OWN_MODULES = frozenset({"bridge", "mcp_server_code_execution_mode"})
"""What those are called after `python -m`; submodules count too."""

MAX_DEPTH = 8
"""Launchers inside launchers; a command line that nests deeper is not looked through."""

_SCRIPT_SUFFIXES = (".exe", ".cmd", ".bat", ".ps1", ".pyz", ".pex", ".py")
_PYTHON = re.compile(r"(python|pypy|pythonw)(\d+(\.\d+)*)?t?|py")
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ash", "ksh", "fish", "busybox"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SEPARATORS = frozenset(";&|()\n")
_URL_END = re.compile(r"(\.git)?(@[^/@]*)?(#.*)?$")
_REQUIREMENT_END = re.compile(r"[\[@=<>!~;\s]")


@dataclass(frozen=True, kw_only=True)
class _Launcher:
    """A program that runs the command among its arguments.

    Attributes:
        valued: Options that take the next argument.
        operands: Arguments of its own before the command.
        assignments: Whether `NAME=value` may come before the command.
        subcommands: Words that must come first; empty when none does.
        package: Whether the command may carry a version, as in `name@1.2`.
    """

    valued: frozenset[str] = frozenset()
    operands: int = 0
    assignments: bool = False
    subcommands: tuple[tuple[str, ...], ...] = ()
    package: bool = False


_UV_VALUED = frozenset(
    {
        *("--from", "--with", "-w", "--with-editable", "--with-requirements", "--python", "-p"),
        *("--directory", "--project", "--index", "--index-url", "-i", "--extra-index-url"),
        *("--default-index", "--find-links", "-f", "--cache-dir", "--config-file", "--env-file"),
        *("--extra", "--group", "--only-group", "--package", "--color", "--refresh-package"),
        *("--constraints", "-c", "--overrides", "--exclude-newer", "--upgrade-package", "-P"),
    }
)

_LAUNCHERS: Mapping[str, _Launcher] = {
    "env": _Launcher(valued=frozenset({"-u", "--unset", "-C", "--chdir", "-P"}), assignments=True),
    "uvx": _Launcher(valued=_UV_VALUED, package=True),
    "uv": _Launcher(valued=_UV_VALUED, subcommands=(("tool", "run"), ("run",)), package=True),
    "pipx": _Launcher(
        valued=frozenset({"--spec", "--python", "--index-url", "-i", "--pip-args", "--with"}),
        subcommands=(("run",),),
        package=True,
    ),
    "poetry": _Launcher(
        valued=frozenset({"-C", "--directory", "-P", "--project"}), subcommands=(("run",),)
    ),
    "pdm": _Launcher(valued=frozenset({"-p", "--project"}), subcommands=(("run",),)),
    "hatch": _Launcher(valued=frozenset({"-e", "--env", "-p"}), subcommands=(("run",),)),
    "timeout": _Launcher(valued=frozenset({"-k", "--kill-after", "-s", "--signal"}), operands=1),
    "nice": _Launcher(valued=frozenset({"-n", "--adjustment"})),
    "ionice": _Launcher(valued=frozenset({"-c", "--class", "-n", "--classdata"})),
    "stdbuf": _Launcher(valued=frozenset({"-i", "-o", "-e"})),
    "sudo": _Launcher(
        valued=frozenset({"-u", "--user", "-g", "--group", "-D", "--chdir"}), assignments=True
    ),
    "doas": _Launcher(valued=frozenset({"-u", "-C"})),
    "nohup": _Launcher(),
    "setsid": _Launcher(),
    "exec": _Launcher(valued=frozenset({"-a"})),
    "time": _Launcher(),
    "command": _Launcher(),
    "caffeinate": _Launcher(valued=frozenset({"-t", "-w"})),
}


def starts_bridge(command: str, args: Sequence[str]) -> bool:
    """Whether running this command starts the bridge."""
    return _starts((command, *args), MAX_DEPTH)


def _starts(argv: Sequence[str], depth: int) -> bool:
    if not argv or depth == 0:
        return False
    program, rest = _program(argv[0]), argv[1:]
    if program in OWN_PROGRAMS or program.replace("_", "-") in OWN_PROGRAMS:
        return True
    if _PYTHON.fullmatch(program):
        return _python_starts(rest)
    if program in _SHELLS:
        return _shell_starts(rest, depth)
    if program == "cmd":
        inner = [word for word in rest if not word.startswith("/")]
        return _starts(inner, depth - 1)
    launcher = _LAUNCHERS.get(program)
    return launcher is not None and _launched(launcher, rest, depth)


def _program(path: str) -> str:
    name = re.split(r"[/\\]", path)[-1].lower()
    for suffix in _SCRIPT_SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    return name


def _python_starts(args: Sequence[str]) -> bool:
    """Look at the module or script that an interpreter is asked to run."""
    words = iter(args)
    for word in words:
        if word == "--":
            continue
        if not word.startswith("-") or word == "-":
            return _program(word).replace("_", "-") in OWN_PROGRAMS
        if word.startswith("--"):
            continue
        # Short options may be joined; m and c take the rest of the word or the next one.
        for at, letter in enumerate(word[1:], start=1):
            value = word[at + 1 :]
            if letter == "m":
                return _is_own_module(value or next(words, ""))
            if letter == "c":
                return False
            if letter in "WX":
                if not value:
                    next(words, "")
                break
    return False


def _is_own_module(module: str) -> bool:
    return module.split(".")[0] in OWN_MODULES


def _shell_starts(args: Sequence[str], depth: int) -> bool:
    """Look at a shell's script, or at every simple command of its `-c` text."""
    for at, word in enumerate(args):
        if not word.startswith("-"):
            return _starts(args[at:], depth - 1)
        if not word.startswith("--") and "c" in word:
            script = next((text for text in args[at + 1 :] if not text.startswith("-")), "")
            return any(_starts(argv, depth - 1) for argv in _simple_commands(script))
    return False


def _simple_commands(script: str) -> list[list[str]]:
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";&|()\n")
    lexer.whitespace = " \t\r"
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    try:
        for token in lexer:
            if set(token) <= _SEPARATORS:
                commands.append([])
            elif commands[-1] or not _ASSIGNMENT.match(token):
                commands[-1].append(token)
    except ValueError:
        # An unclosed quote: the shell would refuse it as well; judge what came before.
        pass
    return commands


def _launched(launcher: _Launcher, args: Sequence[str], depth: int) -> bool:
    """Look at the command among a launcher's arguments."""
    words = _after_options(launcher, args)
    for path in launcher.subcommands:
        if tuple(words[: len(path)]) == path:
            if _runs_own_module(words[len(path) :]):
                return True
            words = _after_options(launcher, words[len(path) :])
            break
    else:
        if launcher.subcommands:
            return False
    words = words[launcher.operands :]
    if not words:
        return False
    first = _without_version(words[0]) if launcher.package else words[0]
    return _starts((first, *words[1:]), depth - 1)


def _without_version(requirement: str) -> str:
    if "://" in requirement:
        return _URL_END.sub("", requirement, count=1)
    return _REQUIREMENT_END.split(requirement, maxsplit=1)[0]


def _runs_own_module(words: Sequence[str]) -> bool:
    """`uv run -m bridge`, before anything else is looked at."""
    return len(words) > 1 and words[0] in ("-m", "--module") and _is_own_module(words[1])


def _after_options(launcher: _Launcher, args: Sequence[str]) -> Sequence[str]:
    at = 0
    while at < len(args):
        word = args[at]
        if word == "--":
            return args[at + 1 :]
        if word in ("-S", "--split-string") and launcher.assignments and at + 1 < len(args):
            return _after_options(launcher, (*_split(args[at + 1]), *args[at + 2 :]))
        if word.startswith("-"):
            at += 2 if word in launcher.valued else 1
        elif launcher.assignments and _ASSIGNMENT.match(word):
            at += 1
        else:
            return args[at:]
    return ()


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []
