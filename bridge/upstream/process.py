"""One server process, from its spawn to the end of its whole tree.

Owns the process, its three pipes and the order in which it is stopped. What travels through the
pipes is `stdio.py`'s affair.

A process belongs to a server's tree when its session or process group is the server's, when its
environment carries the server's tag, or when its parent belongs. The tag finds what made a session
of its own and lost its parent. Out of reach: a process that did all of that and also cleared its
environment, or that runs as another user. Without /proc (macOS) only the process group is known.

If the bridge itself is killed with SIGKILL, the server reads end of file on its stdin, which is
how MCP servers are told to go. PR_SET_PDEATHSIG is not used: without `preexec_fn` (unsafe in a
process with threads) it needs a helper program, it fires when the spawning *thread* ends, and it
reaches no grandchild. What ignores the end of file is found by its tag when the next bridge starts.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from bridge.descriptor_reader import Reader

logger = logging.getLogger(__name__)


TAG_VARIABLE = "MCP_CODE_BRIDGE_TREE"
"""In the environment of every server. Its value says which bridge process started it."""

PROC = Path("/proc")

HAS_PROC = (PROC / "self" / "stat").exists()


@dataclass(frozen=True)
class ProcessStat:
    """One live process, as /proc/<pid>/stat has it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


@dataclass(frozen=True)
class TreeProcess:
    """A process of a tree, held by a descriptor so that a reused pid is never signalled.

    Attributes:
        pidfd: None where the kernel has no pidfds.
    """

    pid: int
    pidfd: int | None

    def send(self, number: int) -> None:
        """Signal it; one that is gone is no fault."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.pidfd is not None and sys.platform == "linux":
                signal.pidfd_send_signal(self.pidfd, number)
            else:
                os.kill(self.pid, number)

    def close(self) -> None:
        """Release the descriptor."""
        if self.pidfd is not None:
            os.close(self.pidfd)


def parse_stat(text: str) -> ProcessStat | None:
    """Parse /proc/<pid>/stat, whose second field may hold spaces and brackets."""
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    pid = head.partition(" ")[0]
    if len(fields) < 20 or not pid.isdigit():
        return None
    return ProcessStat(
        pid=int(pid),
        state=fields[0],
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        started=int(fields[19]),
    )


def new_tag() -> str:
    """Return a value for `TAG_VARIABLE`: this process, told apart from any other that ever ran."""
    return f"{_own_tag()}.{secrets.token_hex(8)}"


def open_pidfd(pid: int) -> int | None:
    """Return a descriptor that is readable once the process has ended, if the kernel has them."""
    if sys.platform != "linux":
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def tree_processes(leader: int, tag: str) -> list[TreeProcess]:
    """Return the live processes of the tree whose first process is `leader`.

    `leader` must not have been reaped: until then its pid names no other process or group.
    """
    if not HAS_PROC:
        return []
    return _open_processes(lambda: _tree(leader, tag))


def orphans() -> list[TreeProcess]:
    """Return processes that a bridge started which has since died without stopping them."""
    if not HAS_PROC:
        return []
    return _open_processes(_orphan_pids)


def signal_group(leader: int, number: int) -> bool:
    """Signal the process group of an unreaped leader; say whether anybody was in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
        return True
    return False


def _open_processes(find: Callable[[], set[int]]) -> list[TreeProcess]:
    opened = {pid: TreeProcess(pid, open_pidfd(pid)) for pid in find()}
    # A pid can end and be reused between being found and being opened: look again, keep both.
    confirmed = find()
    for pid in [pid for pid in opened if pid not in confirmed]:
        opened.pop(pid).close()
    return list(opened.values())


def _tree(leader: int, tag: str) -> set[int]:
    entries = _live_processes()
    marker = f"{TAG_VARIABLE}={tag}".encode()
    found = {
        entry.pid
        for entry in entries
        if leader in (entry.pid, entry.session, entry.group) or marker in _environ(entry.pid)
    }
    _add_descendants(found, entries)
    return found - {1, os.getpid()}


def _orphan_pids() -> set[int]:
    entries = _live_processes()
    alive = {(entry.pid, entry.started) for entry in entries}
    space = _own_tag().split(".")[0]
    found = set()
    for entry in entries:
        value = _tag_of(entry.pid)
        parts = value.split(".") if value else []
        if len(parts) != 4 or parts[0] != space or not (parts[1] + parts[2]).isdigit():
            continue
        if (int(parts[1]), int(parts[2])) not in alive:
            found.add(entry.pid)
    return found - {1, os.getpid()}


def _add_descendants(found: set[int], entries: Iterable[ProcessStat]) -> None:
    children: dict[int, list[int]] = {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry.pid)
    queue = list(found)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)


def _live_processes() -> list[ProcessStat]:
    """Return all live processes; zombies hold nothing and cannot be signalled."""
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


def _tag_of(pid: int) -> str:
    prefix = f"{TAG_VARIABLE}=".encode()
    for item in _environ(pid):
        if item.startswith(prefix):
            return item[len(prefix) :].decode("ascii", "replace")
    return ""


def _own_tag() -> str:
    """Name this process by pid namespace, pid and start time, as a value without spaces."""
    if not HAS_PROC:
        return f"0.{os.getpid()}.0"
    space = "".join(filter(str.isdigit, str((PROC / "self" / "ns" / "pid").readlink())))
    entry = parse_stat((PROC / "self" / "stat").read_text("utf-8", "replace"))
    started = entry.started if entry else 0
    return f"{space}.{os.getpid()}.{started}"


EXIT_SECONDS = 2.0
"""After stdin is closed. The specification's polite way out; real servers take 10 to 500 ms."""

TERM_SECONDS = 2.0
"""After SIGTERM: time for a server's own handlers, as in the SDK."""

KILL_SECONDS = 1.0
"""After SIGKILL, per round: only the kernel has to act."""

KILL_ROUNDS = 4
"""How often the tree is looked at again, in case it forked while it was being killed."""

STOP_SECONDS = EXIT_SECONDS + TERM_SECONDS + KILL_ROUNDS * KILL_SECONDS + 1.0
"""Longest that `Child.stop` takes; the last second is for reading /proc on a busy machine."""

POLL_SECONDS = 0.25
"""How often an exit is looked for where the kernel has no pidfds (macOS, old Linux)."""

READ_BYTES = 256 * 1024
"""One read, and the pipe's size where it can be set: big results need fewer wake-ups."""

_EXISTENCE_SIGNAL = 0
"""The signal that only asks whether somebody is there."""


class Child:
    """A running server process in a session of its own.

    Made by `spawn`, ended by `stop`; in between its pipes are non-blocking descriptors.

    Attributes:
        output, errors: What reads its stdout and its stderr.
    """

    def __init__(self, popen: subprocess.Popen[bytes], tag: str) -> None:
        if popen.stdin is None or popen.stdout is None or popen.stderr is None:
            raise ValueError("the process has to be spawned with three pipes")
        self.pid = popen.pid
        self._popen = popen
        self._tag = tag
        self._pipes = (popen.stdin, popen.stdout, popen.stderr)
        self._stdin_open = True
        self.stdin, self.stdout, self.stderr = (pipe.fileno() for pipe in self._pipes)
        for fd in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)
        if sys.platform == "linux":
            # Refused once a user's pipes hold too much; the default size works, only slower.
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.stdout, fcntl.F_SETPIPE_SZ, READ_BYTES)
        self.output, self.errors = _reader(self.stdout), _reader(self.stderr)
        self._pidfd = open_pidfd(self.pid)
        self._exit_code: int | None = None
        self._ended = anyio.Event()

    def exited(self) -> bool:
        """Say whether it has ended, without reaping it.

        Unreaped, its pid keeps naming its process group and session, so that no signal can go
        astray. Where `waitid` is missing (macOS before Python 3.13) it is reaped.
        """
        if self._exit_code is None:
            self._exit_code = self._poll_exit()
        return self._exit_code is not None

    async def watch(self) -> None:
        """Wait for its end and tell those in `wait_exited`. Exactly one task runs this."""
        while not self.exited():
            if self._pidfd is None:
                await anyio.sleep(POLL_SECONDS)
            else:
                await anyio.wait_readable(self._pidfd)
        self._ended.set()

    async def wait_exited(self) -> None:
        """Wait until it has ended."""
        await self._ended.wait()

    def describe_exit(self) -> str:
        """Say how it ended, as the end of a sentence that starts with the server."""
        if not self.exited() or self._exit_code is None:
            return "closed its end of the connection"
        if self._exit_code >= 0:
            return f"exited with status {self._exit_code}"
        with contextlib.suppress(ValueError):
            return f"was killed by {signal.Signals(-self._exit_code).name}"
        return f"was killed by signal {-self._exit_code}"

    def close_stdin(self) -> None:
        """End its input. Nobody may be writing to it."""
        if self._stdin_open:
            self._stdin_open = False
            with contextlib.suppress(OSError):
                self._pipes[0].close()

    async def stop(self) -> None:
        """End it and all that it started.

        Bounded by `STOP_SECONDS`. Meant to run shielded from cancellation, while other tasks go on
        with `watch` and with reading its output: a server that is stuck writing cannot see its
        stdin close.
        """
        self.close_stdin()
        with anyio.move_on_after(EXIT_SECONDS):
            await self.wait_exited()
        if await self._signal_tree(_EXISTENCE_SIGNAL, 0.0):
            await self._signal_tree(signal.SIGTERM, TERM_SECONDS)
            for _ in range(KILL_ROUNDS):
                if not await self._signal_tree(signal.SIGKILL, KILL_SECONDS):
                    break
        if self._popen.poll() is None:
            logger.warning("process %d survives SIGKILL and is abandoned", self.pid)

    def close(self) -> None:
        """Release the descriptors. Nobody may be using them."""
        self.close_stdin()
        for reader in (self.output, self.errors):
            reader.close()
        for pipe in self._pipes[1:]:
            pipe.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

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
        """Signal the live processes of the tree and wait for them; say whether there were any."""
        # A limiter of its own: the shared one may be full of threads that wait for something else.
        tree = await anyio.to_thread.run_sync(
            tree_processes, self.pid, self._tag, limiter=anyio.CapacityLimiter(1)
        )
        try:
            if not tree and HAS_PROC:
                return False
            # The group too: one signal to all of it cannot be outrun by a fork.
            if not signal_group(self.pid, number) and not tree:
                return False
            await signal_and_wait(tree, number, wait_seconds)
            return True
        finally:
            for member in tree:
                member.close()


def spawn(argv: Sequence[str], *, environ: Mapping[str, str], cwd: str | None) -> Child:
    """Start a server.

    Synchronous, so that no cancellation can fall between the spawn and its ownership.

    Raises:
        OSError: The command or the directory cannot be used.
        ValueError: An argument or a variable holds a NUL.
    """
    tag = new_tag()
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
        try:
            return os.read(fd, READ_BYTES)
        except BlockingIOError:
            return None

    return Reader(fd, attempt)


async def signal_and_wait(tree: Sequence[TreeProcess], number: int, seconds: float) -> None:
    """Signal processes and wait, no longer than `seconds`, until they have ended."""
    for member in tree:
        member.send(number)
    with anyio.move_on_after(seconds):
        for member in tree:
            if member.pidfd is not None:
                await anyio.wait_readable(member.pidfd)
        if any(member.pidfd is None for member in tree) or not HAS_PROC:
            await anyio.sleep(seconds)


async def reap_orphans() -> int:
    """End what bridges left behind that died without stopping their servers; return how many."""
    found = await anyio.to_thread.run_sync(orphans)
    try:
        if found:
            await signal_and_wait(found, signal.SIGTERM, TERM_SECONDS)
            for member in found:
                member.send(signal.SIGKILL)
    finally:
        for member in found:
            member.close()
    return len(found)
