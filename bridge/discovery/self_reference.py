"""Recognizes commands that start this bridge, which would start itself again: pure.

Only the executed program counts, not its arguments: a server for a directory with the bridge's name
is not the bridge. Unknown launchers are assumed not to start the bridge.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

OWN_PROGRAMS = frozenset({"mcp-code-bridge", "mcp-server-code-execution-mode"})
"""Console scripts of this bridge and of the first public bridge of this kind, which would load the
same configuration and start this one.
"""

OWN_NAME = "code-bridge"
"""The name that `install` gives the bridge. A remote entry of this name is the bridge."""

_PYTHON = re.compile(r"(python|pypy|pythonw)(\d+(\.\d+)*)?t?|py")
_LAUNCHERS = frozenset(
    ("env", "uvx", "uv", "pipx", "poetry", "pdm", "hatch", "timeout", "nice", "ionice", "stdbuf")
    + ("sudo", "doas", "nohup", "setsid", "exec", "time", "command", "caffeinate")
)

_PASSED_OVER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*|[0-9.]+[smhd]?|run|tool", re.DOTALL)
"""Words before that command that are not options: variables, times and subcommands."""


def starts_bridge(command: str, args: Sequence[str]) -> bool:
    # Nested launchers up to eight levels.
    return _starts((command, *args), 8)


def _starts(argv: Sequence[str], depth: int) -> bool:
    if not argv or depth == 0:
        return False
    program, rest = _program(argv[0]), argv[1:]
    if program.replace("_", "-") in OWN_PROGRAMS:
        return True
    if program in {"sh", "bash", "zsh", "dash", "ash", "ksh", "fish", "busybox"}:
        return _shell_starts(rest, depth)
    is_python = _PYTHON.fullmatch(program) is not None
    if is_python or program in _LAUNCHERS:
        return _launcher_starts(rest, depth, is_python=is_python)
    return False


def _program(path: str) -> str:
    name = re.split(r"[/\\]", path)[-1].lower()
    return re.sub(r"\.(exe|cmd|bat|ps1|pyz|pex|py)$", "", name)


def _launcher_starts(args: Sequence[str], depth: int, *, is_python: bool) -> bool:
    """Return whether the module, script or command among a launcher's arguments is the bridge.

    It is unknown which options take a value: the word after an option counts as its value.
    """
    is_value = False
    for at, word in enumerate(args):
        if module := re.fullmatch(r"-[bBdEhiIOPqRsSuvVx]*m(.*)|--module", word, flags=re.DOTALL):
            named = module[1] or next(iter(args[at + 1 :]), "")
            return named.split(".")[0] in {"bridge", "mcp_server_code_execution_mode"}
        if is_python and word.startswith("-c"):
            return False
        if word.startswith("-"):
            valued = word in ("-X", "-W") if is_python else "=" not in word
            is_value = valued and word != "--"
        elif is_value or _PASSED_OVER.fullmatch(word):
            is_value = False
        elif is_python:
            return _program(word).replace("_", "-") in OWN_PROGRAMS
        else:
            plain = re.split(r"[\[@=<>!~;\s]", word, maxsplit=1)[0]
            if "://" in word:
                plain = re.sub(r"(\.git)?(@[^/@]*)?(#.*)?$", "", word, count=1)
            return _starts((plain, *args[at + 1 :]), depth - 1)
    return False


def _shell_starts(args: Sequence[str], depth: int) -> bool:
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
            if set(token) <= frozenset(";&|()\n"):
                commands.append([])
            elif commands[-1] or not re.match(r"[A-Za-z_][A-Za-z0-9_]*=", token):
                commands[-1].append(token)
    except ValueError:
        # An unclosed quote. The shell would refuse it, too; use the words before it.
        pass
    return commands
