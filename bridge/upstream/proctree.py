"""Which processes belong to a server, and signals for them.

Owns the reading of /proc and the sending of signals; all functions block briefly and hold no state.
When to signal is `process.py`'s decision.

A process belongs to a server's tree when its session or process group is the server's, when its
environment carries the server's tag, or when its parent belongs. The tag finds what made a session
of its own and lost its parent. Out of reach: a process that did all of that and also cleared its
environment, or that runs as another user. Without /proc (macOS) only the process group is known.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

TAG_VARIABLE = "MCP_CODE_BRIDGE_TREE"
"""In the environment of every server. Its value says which bridge process started it."""

PROC = Path("/proc")

HAS_PROC = (PROC / "self" / "stat").exists()


@dataclass(frozen=True)
class Entry:
    """One live process, as /proc/<pid>/stat has it."""

    pid: int
    state: str
    parent: int
    group: int
    session: int
    started: int


@dataclass(frozen=True)
class Member:
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


def parse_stat(text: str) -> Entry | None:
    """Parse /proc/<pid>/stat, whose second field may hold spaces and brackets."""
    head, _, rest = text.rpartition(")")
    fields = rest.split()
    pid = head.partition(" ")[0]
    if len(fields) < 20 or not pid.isdigit():
        return None
    return Entry(
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


def members(leader: int, tag: str) -> list[Member]:
    """Return the live processes of the tree whose first process is `leader`.

    `leader` must not have been reaped: until then its pid names no other process or group.
    """
    if not HAS_PROC:
        return []
    return _hold(lambda: _tree(leader, tag))


def orphans() -> list[Member]:
    """Return processes that a bridge started which has since died without stopping them."""
    if not HAS_PROC:
        return []
    return _hold(_orphan_pids)


def signal_group(leader: int, number: int) -> bool:
    """Signal the process group of an unreaped leader; say whether anybody was in it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
        return True
    return False


def _hold(find: Callable[[], set[int]]) -> list[Member]:
    held = {pid: Member(pid, open_pidfd(pid)) for pid in find()}
    # A pid can end and be reused between being found and being opened: look again, keep both.
    confirmed = find()
    for pid in [pid for pid in held if pid not in confirmed]:
        held.pop(pid).close()
    return list(held.values())


def _tree(leader: int, tag: str) -> set[int]:
    entries = _entries()
    marker = f"{TAG_VARIABLE}={tag}".encode()
    found = {
        entry.pid
        for entry in entries
        if leader in (entry.pid, entry.session, entry.group) or marker in _environ(entry.pid)
    }
    _add_descendants(found, entries)
    return found - {1, os.getpid()}


def _orphan_pids() -> set[int]:
    entries = _entries()
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


def _add_descendants(found: set[int], entries: Iterable[Entry]) -> None:
    children: dict[int, list[int]] = {}
    for entry in entries:
        children.setdefault(entry.parent, []).append(entry.pid)
    queue = list(found)
    while queue:
        for child in children.get(queue.pop(), ()):
            if child not in found:
                found.add(child)
                queue.append(child)


def _entries() -> list[Entry]:
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
