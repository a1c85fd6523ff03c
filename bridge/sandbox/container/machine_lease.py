"""Which bridges use a podman machine, and which of them has to stop it.

Owns the lease files: one small file per bridge under the state directory, read and written under
one lock. Whether a bridge still lives is for `reaper` to say. A machine is stopped by the bridge
that started it, and only when no other living bridge holds a lease. One that leaves while others
stay hands the duty on; one that is killed takes the duty with it, and the machine stays up:
stopping somebody's machine by mistake is the worse error.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from bridge.errors import EngineDownError
from bridge.sandbox.reaper import Owner, current_owner, is_dead

LOCK_SECONDS = 240.0
"""Longest wait for another bridge to let go of the lock. It holds it while it stops the machine,
which podman itself gives up on after about two minutes."""

LOCK_POLL_SECONDS = 0.2
"""Pause between tries; `flock` cannot be waited for without a thread that cannot be cancelled."""

MAX_LEASES = 256
"""Lease files looked at; more than a few are leftovers."""

MAX_LEASE_BYTES = 4096
"""A lease is about a hundred bytes; anything larger is not one."""

Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, kw_only=True)
class Lease:
    """One bridge's use of one machine.

    Attributes:
        holder: The bridge's process.
        machine: The machine's name.
        owner: Whether that bridge has to stop the machine.
    """

    holder: Owner
    machine: str
    owner: bool


class LeaseBook:
    """The lease files of one state directory, as one bridge sees them."""

    def __init__(self, state_dir: Path, *, sleep: Sleep = anyio.sleep) -> None:
        self._dir = state_dir / "podman-machine"
        self._sleep = sleep
        self._self: Owner | None = None
        # One process may hold several leases (a backend each), so the pid alone does not do.
        self._file = self._dir / f"{os.getpid()}-{secrets.token_hex(4)}.json"

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Hold the lock that every change to a lease, and stopping the machine, needs.

        Raises:
            EngineDownError: Another bridge held it for too long, or the directory is unusable.
        """
        try:
            self._dir.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self._dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            message = f"The state directory cannot be written: {error}."
            raise EngineDownError(message, remedy="Set MCP_BRIDGE_STATE_DIR elsewhere.") from error
        try:
            await self._acquire(descriptor)
            yield
        finally:
            os.close(descriptor)  # releases the lock with it

    async def _acquire(self, descriptor: int) -> None:
        for _ in range(int(LOCK_SECONDS / LOCK_POLL_SECONDS)):
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            await self._sleep(LOCK_POLL_SECONDS)
        message = "Another bridge has been busy with the podman machine for too long."
        raise EngineDownError(message, remedy="See `podman machine list`; stop a hanging podman.")

    async def write(self, machine: str, *, owner: bool) -> None:
        """Record that this bridge uses `machine`. Call it under the lock."""
        _store(self._file, Lease(holder=await self._me(), machine=machine, owner=owner))

    def own(self) -> Lease | None:
        """Return this bridge's lease, which another one may have changed. Under the lock."""
        return _load(self._file)

    async def others(self, machine: str) -> tuple[Path, ...]:
        """Return the living others' leases on `machine`; remove dead ones. Under the lock."""
        me = await self._me()
        alive = []
        for path in sorted(self._dir.glob("*.json"))[:MAX_LEASES]:
            if path == self._file:
                continue
            lease = _load(path)
            if lease is None or await anyio.to_thread.run_sync(
                partial(is_dead, lease.holder, judge=me)
            ):
                path.unlink(missing_ok=True)
            elif lease.machine == machine and lease.holder.host == me.host:
                # A home directory may be shared between hosts; machines are not.
                alive.append(path)
        return tuple(alive)

    async def _me(self) -> Owner:
        if self._self is None:
            # In a thread: without /proc it runs `ps` and `sysctl`.
            self._self = await anyio.to_thread.run_sync(current_owner)
        return self._self

    def hand_over(self, path: Path) -> None:
        """Make the bridge of the lease at `path` the one to stop the machine. Under the lock."""
        if lease := _load(path):
            _store(path, replace(lease, owner=True))

    def remove(self) -> None:
        """Forget this bridge's lease. Harmless when there is none."""
        self._file.unlink(missing_ok=True)


def _load(path: Path) -> Lease | None:
    try:
        with path.open("rb") as file:
            value: Any = json.loads(file.read(MAX_LEASE_BYTES))
        holder = Owner.from_labels(value["holder"])
        if holder is None:
            return None
        return Lease(holder=holder, machine=str(value["machine"]), owner=value["owner"] is True)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(path: Path, lease: Lease) -> None:
    """Write atomically: a bridge killed half-way leaves the old lease, never half of one."""
    value = {"holder": lease.holder.labels(), "machine": lease.machine, "owner": lease.owner}
    partial_file = path.with_suffix(".partial")
    partial_file.write_text(json.dumps(value), encoding="utf-8")
    partial_file.replace(path)
