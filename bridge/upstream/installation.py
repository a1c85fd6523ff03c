"""Servers that are installed when they start: package runners such as `npx`, `uvx`, `docker run`.

A small process guards an installation beyond the bridge's end.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence

from bridge.upstream.process import KEPT_VARIABLE, Child

logger = logging.getLogger(__name__)

_RUNNERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("npx", "pnpx", "bunx", "uvx"), frozenset()),
    **dict.fromkeys(("docker", "podman", "nerdctl", "deno", "pipx"), frozenset(("run",))),
    "npm": frozenset(("exec", "x")),
    "pnpm": frozenset(("dlx",)),
    "yarn": frozenset(("dlx",)),
    "bun": frozenset(("x",)),
    "uv": frozenset(("run", "x")),
}
"""Programs that install and start a package, and the subcommands that do."""

_WRAPPERS = frozenset(
    ("env", "sh", "bash", "dash", "zsh", "exec", "nice", "nohup", "setsid", "stdbuf", "timeout")
)
"""Programs that start a command given in their arguments."""

_CACHE_ENTRY = re.compile(
    r"/[^\s'\"]*?/(?:_npx|dlx|archive-v\d+|environments-v\d+|pipx/\.cache)/[^/\s'\"]+"
)
"""A directory with one installation, in the caches of npm, pnpm, uv and pipx."""

_INCOMPLETE = re.compile(
    r"Cannot find (?:module|package)|ERR_MODULE_NOT_FOUND|ModuleNotFoundError|No module named"
    r"|ENOTEMPTY|ECOMPROMISED|ENOENT|No such file or directory|EJSONPARSE|Invalid package config"
)
"""Error texts of programs whose installation is incomplete."""

_KEEPER = """
until=$(($(date +%s) + $2))
read -r _
cat </dev/fd/2 >/dev/null 2>/dev/null &
cat </dev/fd/1 >/dev/null 2>&1 &
lives() { kill -s 0 -- "-$1" && { [ ! -e /proc/self ] || kill -s 0 "$2"; }; }
while [ "$(date +%s)" -lt "$until" ] && lives "$1" $!; do sleep 1; done
kill -s KILL -- "-$1"
"""
"""A shell script, because a shell takes a tenth of an interpreter's memory.

Its stdin ends when the bridge ends. It inherits the reading ends of the server's output and drains
them, because a broken pipe may end an installation. It detects the server's end by the end of the
output, because where nothing reaps zombies, signals still reach them.
"""


def installs_packages(command: str, args: Sequence[str]) -> bool:
    """Return whether a command may first download and install the program that it starts."""
    words = [command, *args]
    if not starts_others(command):
        return _runs_package(words)
    words = [part for word in words for part in re.split(r"[\s;&|()]+", word)]
    return any(_runs_package(words[at:]) for at in range(len(words)))


def starts_others(command: str) -> bool:
    """Return whether a command starts the command in its arguments, as `env` and `sh` do."""
    return _name(command) in _WRAPPERS


def _runs_package(words: Sequence[str]) -> bool:
    needed = _RUNNERS.get(_name(words[0]))
    return needed is not None and (not needed or not needed.isdisjoint(words[1:]))


def _name(command: str) -> str:
    return command.rpartition("/")[2]


def broken_cache(report: str) -> str:
    """Return the directory of an incomplete installation named in stderr; empty for none."""
    found = _CACHE_ENTRY.search(report)
    return found[0] if found and _INCOMPLETE.search(report) else ""


def keep(child: Child, definition: str, seconds: float) -> InstallationKeeper | None:
    """Guard a starting server with a process for at most `seconds`; None if that cannot start.

    While the keeper runs, no bridge takes the server's processes for orphans. No bridge starts
    the definition a second time either, which would break npm's cache.
    """
    try:
        process = subprocess.Popen(
            ["/bin/sh", "-c", _KEEPER, "sh", str(child.pid), str(round(seconds))],
            stdin=subprocess.PIPE,
            stdout=child.stdout,
            stderr=child.stderr,
            env={
                KEPT_VARIABLE: f"{child.tag} {definition}",
                "PATH": os.environ.get("PATH", os.defpath),
            },
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        logger.warning("if the bridge ends, an installation ends too: /bin/sh: %s", error)
        return None
    return InstallationKeeper(child, process)


class InstallationKeeper:
    def __init__(self, child: Child, process: subprocess.Popen[bytes]) -> None:
        self._child, self._process = child, process

    @property
    def installing(self) -> bool:
        """Whether the first request is still unread: a runner leaves it to the server."""
        unread = bytearray(4)
        try:
            fcntl.ioctl(self._child.stdin, termios.FIONREAD, unread)
        except OSError:
            return False
        return any(unread)

    def dismiss(self) -> None:
        self._process.kill()
        self._process.communicate()

    def take_over(self) -> None:
        """Leave the processes to the keeper, as the bridge's own end does."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._child.close_stdin()
        for ended in (self._process.wait, self._child.reap):
            # A bridge that continues, as after a changed definition, must leave no zombies.
            threading.Thread(target=ended, daemon=True).start()
