"""From what a program asks for to a directory with it.

Owns the order: the recorded choice if there is one, else uv; the judgement on all that it found;
installing. What may be used is `allowed`'s business, what is kept `sets`', how uv is asked `uv`'s.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from bridge.errors import BridgeError, PackageUnavailableError
from bridge.packages.allow_list import check_resolved, check_wanted, constraints
from bridge.packages.requirements import Wanted
from bridge.packages.sets import Lock, PackageSet, make_room, tidy
from bridge.packages.target import Target
from bridge.packages.uv import Say, Uv
from bridge.settings.dependencies import Dependencies
from bridge.store import Store

logger = logging.getLogger(__name__)

MAX_KNOWN = 100
"""Sets that are remembered in memory, so that a run which uses one again looks at one directory."""

_DAY = 24 * 3600.0


class Resolver:
    """Provides packages. Makes no I/O until it is asked.

    Args:
        directory: Where packages are kept.
        store: Where it is kept what requirements came to.
        environ: The bridge's environment: how the network is reached, and where uv is.
        place: The settings file, for errors.
        executable: Stands in for the uv of this machine.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        directory: Path,
        store: Store,
        environ: Mapping[str, str],
        place: str,
        executable: str = "",
    ) -> None:
        self._dependencies = dependencies
        self._sets = directory / "sets"
        self._store = store
        self._environ = environ
        self._place = place
        self._executable = executable
        self._known: dict[str, Lock] = {}
        # By set: of several runs one finds it.
        self._finding: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def provide(self, wanted: Sequence[Wanted], target: Target, say: Say) -> Path | None:
        """Return a directory with what is asked for; None where a target needs none of it.

        Raises:
            PackageRefusedError: Something may not be used.
            PackageUnavailableError: Something could not be had.
        """
        check_wanted(wanted, self._dependencies.allow, self._place)
        texts = [one.text for one in wanted]
        index = self._dependencies.index.rpartition("@")[2]
        kept = PackageSet(self._sets, self._store, [*texts, target.digest, index])
        lock = self._known.get(kept.name)
        if lock is None or self._stale(lock) or (lock.packages and not kept.touch(lock)):
            turn = self._finding.setdefault(kept.name, anyio.Lock())
            try:
                with anyio.fail_after(self._dependencies.timeout):
                    async with turn:
                        lock = await self._provided(kept, wanted, target, say)
            except TimeoutError:
                seconds = self._dependencies.timeout
                message = f"{', '.join(texts):.200} could not be had within {seconds:g} s."
                remedy = "Try again; `timeout` of [dependencies] sets how long that may take."
                raise PackageUnavailableError(message, remedy=remedy) from None
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[kept.name] = lock
        return kept.tree(lock) if lock.packages else None

    def _stale(self, lock: Lock) -> bool:
        days = self._dependencies.lock_days
        return bool(days) and time.time() - lock.made > days * _DAY

    def _judge(self, lock: Lock) -> None:
        check_resolved(
            {package.name: package.version for package in lock.packages},
            {package.name: package.parent for package in lock.packages},
            self._dependencies.allow,
            self._place,
        )

    def _permitted(self, lock: Lock) -> bool:
        """Return whether all of a recorded set is still allowed: `allow` may have changed since."""
        try:
            self._judge(lock)
        except BridgeError:
            return False
        return True

    async def _provided(
        self, kept: PackageSet, wanted: Sequence[Wanted], target: Target, say: Say
    ) -> Lock:
        """Return what a set came to, once it is installed."""
        old = await anyio.to_thread.run_sync(kept.read)
        if old is not None and not self._permitted(old):
            old = None
        there = old is not None and (not old.packages or kept.touch(old))
        if old is not None and there and not self._stale(old):
            return old
        place = await anyio.to_thread.run_sync(kept.begin)
        try:
            uv = Uv(self._dependencies, self._environ, place, target, say, self._executable)
            if old is not None and not self._stale(old):
                return await self._installed(kept, old, uv, say, place)
            return await self._found(kept, wanted, uv, say, place)
        except PackageUnavailableError as error:
            if old is None or not there:
                raise
            logger.warning("the packages chosen before are used again: %s", error.message)
            return old
        finally:
            with anyio.CancelScope(shield=True):
                remove = partial(shutil.rmtree, place, ignore_errors=True)
                await anyio.to_thread.run_sync(remove)

    async def _found(
        self, kept: PackageSet, wanted: Sequence[Wanted], uv: Uv, say: Say, place: Path
    ) -> Lock:
        await say(f"resolving {', '.join(one.text for one in wanted)}"[:200])
        limits = constraints([one.name for one in wanted], self._dependencies.allow)
        packages = await uv.resolve([one.text for one in wanted], limits)
        lock = Lock(packages=packages, made=time.time())
        self._judge(lock)
        return await self._installed(kept, lock, uv, say, place)

    async def _installed(self, kept: PackageSet, lock: Lock, uv: Uv, say: Say, place: Path) -> Lock:
        into = place / "installed" if lock.packages else None
        if into is not None:
            dependencies = self._dependencies
            await say(f"installing {', '.join(package.name for package in lock.packages)}"[:200])
            room = partial(make_room, self._sets, dependencies.cache_bytes)
            await anyio.to_thread.run_sync(room)
            await uv.install(lock.packages, into)
            await anyio.to_thread.run_sync(tidy, into, dependencies.max_bytes)
        await anyio.to_thread.run_sync(kept.keep, lock, into)
        return lock
