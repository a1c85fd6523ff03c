"""The monitor: starts a program without a pid namespace, ends all its processes, reports its exit.

It has the interface of bubblewrap's outer process: `--args FD -- COMMAND`, and JSON documents about
the first process. The first line on FD is its instructions. FD ends with the bridge; the monitor
then kills everything it started. It runs as `python3 -I -S -c`, so it imports only the standard
library and supports Python 3.9.

Enforces: on Linux every process ends with the run, since orphans become the monitor's children.
Elsewhere it searches `ps` for the program's parents, process groups and command line. A program
that detaches twice and executes again between two searches can stay, confined.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any, NoReturn

EXIT_FAILED = 71
SIGNAL_BASE = 128

SWEEP_SECONDS = 8.0  # For killed processes to end; less than the bridge waits for the monitor.

_LOOKS = 5  # Most searches for new processes before it kills those found.

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

Row = tuple[int, int, int, str, str]
"""A row of `ps`: process, parent, process group, state, command line."""


def prctl(option: int, value: int) -> bool:
    import ctypes

    return bool(ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)


def start(command: list[str], instructions: dict[str, Any], dies_with: bool) -> int:
    """Start the program in a session of its own and return its id."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if dies_with:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(EXIT_FAILED)
        os.execve(command[0], command, instructions["env"])
    except BaseException as error:
        problem = f"{command[0]}: {error}"
        os.write(instructions["status"], problem.encode("utf-8", "replace")[:4000])
    os._exit(EXIT_FAILED)


class ProcessTree:
    """The program's processes: `child`, the first, and those that `child` started.

    Args:
        mark: A word on the command line of the run's processes.
        adopts: Whether orphans become children of this process (Linux).
    """

    def __init__(self, child: int, mark: str, adopts: bool) -> None:
        self.child = child
        self.status: int | None = None
        self._mark = mark
        self._adopts = adopts

    def reap(self) -> bool:
        """Reap children that have ended; return whether any are left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self.child:
                self.status = status

    def end(self) -> None:
        """Kill all processes of the tree and reap this process's children."""
        deadline = time.monotonic() + SWEEP_SECONDS
        if self.status is None:
            signal_all([self.child], signal.SIGKILL)
        if self._adopts:
            self._end_below(deadline)
        else:
            self._end_related(deadline)

    def _end_below(self, deadline: float) -> None:
        stopped: set[int] = set()
        looks = 0
        while self.reap() and time.monotonic() < deadline:
            found = descendants(os.getpid(), processes_by_proc())
            # Stop them until no new ones appear: killing one would make room for another fork.
            if found - stopped and looks < _LOOKS:
                signal_all(found - stopped, signal.SIGSTOP)
                stopped |= found
                looks += 1
                continue
            signal_all(found, signal.SIGKILL)
            time.sleep(0.002)

    def _end_related(self, deadline: float) -> None:
        groups = {self.child}
        signal_all([-self.child], signal.SIGKILL)
        for _ in range(_LOOKS):
            found = relatives(processes_by_ps(), self.child, groups, self._mark) - {os.getpid()}
            signal_all(found, signal.SIGSTOP)
            signal_all(found, signal.SIGKILL)
            if not self.reap() and not found or time.monotonic() > deadline:
                return
            time.sleep(0.002)


def signal_all(pids: Iterable[int], number: int) -> None:
    """Send a signal to each process; skip those that have ended or are another user's."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def descendants(ancestor: int, pairs: Iterable[tuple[int, int]]) -> set[int]:
    """Return a process's descendants, from pairs of process and parent."""
    children: dict[int, list[int]] = {}
    for pid, parent in pairs:
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    queue = [ancestor]
    while queue:
        for pid in children.get(queue.pop(), []):
            if pid not in found:
                found.add(pid)
                queue.append(pid)
    return found


def relatives(rows: Iterable[Row], child: int, groups: set[int], mark: str) -> set[int]:
    """Return the living processes that `child` started; add their process groups to `groups`.

    They have a parent in the tree, a known process group, or the run's mark on the command line,
    which forks keep.
    """
    living = [row for row in rows if not row[3].startswith("Z")]
    found: set[int] = set()
    while True:
        known = found | {child}
        more = {
            pid
            for pid, parent, group, _, command in living
            if pid in known or parent in known or group in groups or (mark and mark in command)
        }
        # This process has the mark on its own command line.
        more -= {os.getpid()}
        groups.update(group for pid, _, group, _, _ in living if pid in more and pid == group)
        if more <= found:
            return found
        found |= more


def processes_by_proc() -> Iterable[tuple[int, int]]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib would cost 5 ms
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
                # The name stands in brackets and may itself contain brackets.
                yield int(name), int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue


def processes_by_ps() -> list[Row]:
    import subprocess

    words = ["ps", "-axww", "-o", "pid=", "-o", "ppid=", "-o", "pgid=", "-o", "stat="]
    try:
        said = subprocess.run(
            [*words, "-o", "command="],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PATH": "/bin:/usr/bin", "LC_ALL": "C"},
            timeout=SWEEP_SECONDS,
            check=False,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_ps(said.decode("utf-8", "replace"))


def parse_ps(text: str) -> list[Row]:
    rows: list[Row] = []
    for line in text.splitlines():
        words = line.split(None, 4)
        if len(words) >= 4 and all(word.isdigit() for word in words[:3]):
            pid, parent, group = (int(word) for word in words[:3])
            rows.append((pid, parent, group, words[3], words[4] if len(words) > 4 else ""))
    return rows


def wait(tree: ProcessTree, lifeline: int, wake: int) -> None:
    """Wait for the end of the first process or of the bridge (`lifeline`), or SIGTERM (`wake`)."""
    poller = select.poll()
    poller.register(lifeline, select.POLLIN)
    poller.register(wake, select.POLLIN)
    while True:
        for descriptor, _ in poller.poll():
            data = os.read(descriptor, 4096)
            if descriptor == lifeline and not data:
                return
            if descriptor == wake and signal.SIGTERM in data:
                return
        tree.reap()
        if tree.status is not None:
            return


def main() -> NoReturn:
    """Start the program, wait, kill the remaining processes, report."""
    lifeline, command = int(sys.argv[2]), sys.argv[4:]
    said = b""
    while b"\n" not in said and len(said) < 1024 * 1024:
        data = os.read(lifeline, 65536)
        if not data:
            os._exit(EXIT_FAILED)  # The bridge ended before it sent its instructions.
        said += data
    instructions: dict[str, Any] = json.loads(said.partition(b"\n")[0])
    info = int(instructions["info"])
    for descriptor in (lifeline, info):
        os.set_inheritable(descriptor, False)
    adopts = bool(instructions["adopts"])
    if adopts and not (prctl(_PR_SET_CHILD_SUBREAPER, 1) and prctl(_PR_SET_DUMPABLE, 0)):
        os.write(instructions["status"], b"this kernel does not let a process adopt orphans")
        os._exit(EXIT_FAILED)
    wake, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, lambda number, frame: None)
    child = start(command, instructions, adopts)
    # Only the program may keep the streams and the status pipe open, so that they end with it.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(int(instructions["status"]))
    tree = ProcessTree(child, str(instructions["mark"]), adopts)
    report(info, "child-pid", child)
    wait(tree, lifeline, wake)
    tree.end()
    if tree.status is not None:
        status = tree.status
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        report(info, "exit-code", SIGNAL_BASE + ended_by if ended_by else os.WEXITSTATUS(status))
    os._exit(0)


def report(info: int, name: str, value: int) -> None:
    """Write one document about the first process, unless the bridge has stopped reading."""
    try:
        os.write(info, json.dumps({name: value}).encode("ascii") + b"\n")
    except BrokenPipeError:
        return


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main()
