"""Starts a server process, and stops it with all processes that it started.

A process belongs to the server's tree by its session, its group, the tag in its environment, or a
parent in the tree; without /proc (macOS) by its group. If the bridge is killed, the server reads
end of file on its stdin. The next bridge finds servers that ignore that by their tag.
PR_SET_PDEATHSIG fires when the spawning *thread* ends, and reaches no grandchild.

A package runner such as `npx`, `uvx` or `docker run` may install the server when it starts. A small
process guards such an installation beyond the bridge's end.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import signal
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio.to_thread

from bridge.descriptor_reader import Reader

logger = logging.getLogger(__name__)


TAG_VARIABLE = "MCP_CODE_BRIDGE_TREE"  # Identifies the bridge process that started a server.

KEPT_VARIABLE = "MCP_CODE_BRIDGE_KEEPS"  # A keeper's: the tag and definition of its server.

PROC = Path("/proc")

HAS_PROC = (PROC / "self" / "stat").exists()


@dataclass(frozen=True)
class ProcessStat:
    """Fields of /proc/<pid>/stat."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


@dataclass(frozen=True)
class TreeProcess:
    """A process of a tree, with an open descriptor so that no reused pid is signalled."""

    pid: int
    pidfd: int | None  # None where the kernel has no pidfds.

    def send(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.pidfd is not None and sys.platform == "linux":
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)

    def close(self) -> None:
        if self.pidfd is not None:
            os.close(self.pidfd)


def parse_stat(text: str) -> ProcessStat | None:
    # The second field may hold spaces and brackets.
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    pid = head.partition(" ")[0]
    if len(fields) < 20 or not pid.isdigit():
        return None
    parent, group, session, *others = map(int, fields[1:20])
    return ProcessStat(int(pid), fields[0], parent, group, session, others[-1])


def new_tag() -> str:
    return f"{_own_tag()}.{secrets.token_hex(8)}"


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended; None without pidfds."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


def _open_processes(find: Callable[[], set[int]]) -> list[TreeProcess]:
    if not HAS_PROC:
        return []
    opened = {pid: TreeProcess(pid, open_pidfd(pid)) for pid in find()}
    # A pid may be reused between `find` and opening it: keep those that a second `find` returns.
    confirmed = find()
    for pid in [pid for pid in opened if pid not in confirmed]:
        opened.pop(pid).close()
    return list(opened.values())


def _tree(leader: int, tag: str) -> set[int]:
    # The leader is not reaped yet, so its pid names no other process or group.
    entries = _live_processes()
    marker = f"{TAG_VARIABLE}={tag}".encode()
    found = {
        entry.pid
        for entry in entries
        if leader in (entry.pid, entry.session, entry.group) or marker in _environ(entry.pid)
    }
    size = 0
    while size != len(found):
        size = len(found)
        found.update(entry.pid for entry in entries if entry.parent in found)
    return found - {1, os.getpid()}


def _orphan_pids() -> set[int]:
    entries = _live_processes()
    alive = {(entry.pid, entry.started) for entry in entries}
    space = _own_tag().split(".")[0]
    kept = {_variable(entry.pid, KEPT_VARIABLE).partition(" ")[0] for entry in entries}
    found = set()
    for entry in entries:
        value = _variable(entry.pid, TAG_VARIABLE)
        parts = value.split(".") if value not in kept else []
        if len(parts) != 4 or parts[0] != space or not (parts[1] + parts[2]).isdigit():
            continue
        if (int(parts[1]), int(parts[2])) not in alive:
            found.add(entry.pid)
    return found - {1, os.getpid()}


def _live_processes() -> list[ProcessStat]:
    entries = []
    for path in PROC.iterdir():
        if not path.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            entry = parse_stat((path / "stat").read_text("utf-8", "replace"))
            if entry and entry.state not in "ZX":
                entries.append(entry)
    return entries


def _environ(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return []


def _variable(pid: int, name: str) -> str:
    prefix = f"{name}=".encode()
    for item in _environ(pid):
        if item.startswith(prefix):
            return item[len(prefix) :].decode("ascii", "replace")
    return ""


def _own_tag() -> str:
    if not HAS_PROC:
        return f"0.{os.getpid()}.0"
    space = "".join(filter(str.isdigit, str((PROC / "self" / "ns" / "pid").readlink())))
    entry = parse_stat((PROC / "self" / "stat").read_text("utf-8", "replace"))
    started = entry.started if entry else 0
    return f"{space}.{os.getpid()}.{started}"


STOP_SECONDS = 9.0  # Longest `Child.stop`, with a second for reading /proc on a busy machine.

READ_BYTES = 256 * 1024  # Bytes of one read, and of the pipe where it can be set, for few wake-ups.

_EXISTENCE_SIGNAL = 0  # Signal 0 only checks whether a process exists.


class Child:
    """A running server process in a session of its own; `tag` marks all processes of its tree."""

    def __init__(self, popen: subprocess.Popen[bytes], tag: str) -> None:
        if popen.stdin is None or popen.stdout is None or popen.stderr is None:
            raise ValueError("the process has to be spawned with three pipes")
        self.pid = popen.pid
        self._popen = popen
        self.tag = tag
        self._pipes = (popen.stdin, popen.stdout, popen.stderr)
        self._stdin_open = True
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        if sys.platform == "linux":
            # The kernel refuses if the user's pipes are too large. The default size is only slower.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.stdout, fcntl.F_SETPIPE_SZ, READ_BYTES)
        self.output, self.errors = _reader(self.stdout), _reader(self.stderr)
        self._pidfd = open_pidfd(self.pid)
        self._exit_code: int | None = None
        self._ended = anyio.Event()

    def has_exited(self) -> bool:
        """Return whether it has ended, without reaping it.

        Until it is reaped, its pid cannot be reused, so a signal to its group or session reaches
        no other process. Without `waitid` (macOS before Python 3.13) it is reaped.
        """
        if self._exit_code is None:
            self._exit_code = self._poll_exit()
        return self._exit_code is not None

    async def watch(self) -> None:
        """Wait for its end and wake the tasks in `wait_exited`. Run by exactly one task."""
        while not self.has_exited():
            if self._pidfd is None:
                await anyio.sleep(0.25)
            else:
                await anyio.wait_readable(self._pidfd)
        self._ended.set()

    async def wait_exited(self) -> None:
        await self._ended.wait()

    def describe_exit(self) -> str:
        if not self.has_exited() or self._exit_code is None:
            return "closed its end of the connection"
        if self._exit_code >= 0:
            return f"exited with status {self._exit_code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-self._exit_code).name}"
        return f"was killed by signal {-self._exit_code}"

    def close_stdin(self) -> None:
        """Close its stdin, to which no task may be writing."""
        if self._stdin_open:
            self._stdin_open = False
            with contextlib.suppress(OSError):
                self._pipes[0].close()

    async def stop(self) -> None:
        """Stop it and all processes that it started, within `STOP_SECONDS`.

        Call it shielded, while other tasks run `watch` and read its output: a server that is
        blocked writing does not notice that its stdin is closed.
        """
        self.close_stdin()
        with anyio.move_on_after(2.0):  # As in the specification. Real servers take 10 to 500 ms.
            await self.wait_exited()
        if await self._signal_tree(_EXISTENCE_SIGNAL, 0.0):
            await self._signal_tree(signal.SIGTERM, 2.0)
            for _ in range(4):  # The tree may fork meanwhile.
                if not await self._signal_tree(signal.SIGKILL, 1.0):
                    break
        if self._popen.poll() is None:
            logger.warning("process %d survives SIGKILL and is abandoned", self.pid)

    def close(self) -> None:
        self.close_stdin()
        for reader in (self.output, self.errors):
            reader.close()
        for pipe in self._pipes[1:]:
            pipe.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def reap(self) -> None:
        self._popen.wait()

    def _poll_exit(self) -> int | None:
        if not hasattr(os, "waitid"):
            return self._popen.poll()
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        try:
            result = os.waitid(os.P_PID, self.pid, flags)
        except ChildProcessError:
            return self._popen.poll()
        if result is None:
            return None
        return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status

    async def _signal_tree(self, number: int, wait_seconds: float) -> bool:
        """Signal the tree's processes and wait for their end; return whether there were any."""
        # A separate limiter, because all threads of the shared one may be busy.
        find = partial(_tree, self.pid, self.tag)
        limiter = anyio.CapacityLimiter(1)
        tree = await anyio.to_thread.run_sync(_open_processes, find, limiter=limiter)
        try:
            if not tree and HAS_PROC:
                return False
            # A signal to the group reaches processes that were just forked too.
            try:
                os.killpg(self.pid, number)
            except (ProcessLookupError, PermissionError):
                if not tree:
                    return False
            await signal_and_wait(tree, number, wait_seconds)
            return True
        finally:
            for member in tree:
                member.close()


def spawn(argv: Sequence[str], *, environ: Mapping[str, str], cwd: str | None, tag: str) -> Child:
    """Start a process, or raise OSError or ValueError. No cancellation can follow the spawn."""
    popen = subprocess.Popen(
        list(argv),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=cwd,
        env={**environ, TAG_VARIABLE: tag},
        start_new_session=True,
    )
    return Child(popen, tag)


def _reader(fd: int) -> Reader:
    def attempt() -> bytes | None:
        with contextlib.suppress(BlockingIOError):
            return os.read(fd, READ_BYTES)
        return None

    return Reader(fd, attempt)


async def signal_and_wait(tree: Sequence[TreeProcess], number: int, seconds: float) -> None:
    """Signal processes, and wait at most `seconds` for their end."""
    for member in tree:
        member.send(number)
    with anyio.move_on_after(seconds):
        for member in tree:
            if member.pidfd is not None:
                await anyio.wait_readable(member.pidfd)
        if any(member.pidfd is None for member in tree) or not HAS_PROC:
            await anyio.sleep(seconds)


async def wait_for_installation(definition: str) -> None:
    """Wait until no bridge is starting, and perhaps installing, this server."""

    def keepers() -> set[int]:
        kept = {entry.pid: _variable(entry.pid, KEPT_VARIABLE) for entry in _live_processes()}
        return {pid for pid, value in kept.items() if value.partition(" ")[2] == definition}

    while found := await anyio.to_thread.run_sync(_open_processes, keepers):
        try:
            await signal_and_wait(found, _EXISTENCE_SIGNAL, 2.0)
        finally:
            for member in found:
                member.close()


async def reap_orphans() -> int:
    """Stop the processes left by bridges that died; return how many there were."""
    found = await anyio.to_thread.run_sync(_open_processes, _orphan_pids)
    try:
        if found:
            await signal_and_wait(found, signal.SIGTERM, 2.0)
            for member in found:
                member.send(signal.SIGKILL)
    finally:
        for member in found:
            member.close()
    return len(found)


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
