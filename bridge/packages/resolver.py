"""Turns requirements into a directory of packages, by a recorded resolution or by uv."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.packages.requirements import Wanted, check_resolved, check_wanted, constraints
from bridge.packages.sets import Lock, Locked, StoredSet, make_room, too_large
from bridge.packages.target import Installed, PackageTarget
from bridge.packages.uv import Say, Uv
from bridge.private_files import in_use
from bridge.settings.dependencies import Dependencies
from bridge.store import Store

logger = logging.getLogger(__name__)

_DAY = 24 * 3600.0

Find = Callable[[Uv], Awaitable[tuple[Locked, ...]]]


@dataclass
class Resolver:
    dependencies: Dependencies
    directory: Path
    store: Store
    environ: Mapping[str, str]  # The bridge's own, for the network and uv.
    place: str  # The settings file, for errors.
    executable: str = ""  # Replaces the uv of this machine.
    # By set: one of several concurrent runs resolves it.
    _finding: WeakValueDictionary[str, anyio.Lock] = field(default_factory=WeakValueDictionary)

    async def provide(
        self,
        wanted: Sequence[Wanted],
        target: PackageTarget,
        say: Say,
        *,
        installed: Sequence[Installed] = (),
        pins: Sequence[str] = (),
    ) -> tuple[Path | None, Lock]:
        """Return a directory of the requested packages, and its lock; None for no packages.

        Args:
            installed: The sandbox's own packages.
            pins: Constraints that fix the versions of a session.
        """
        check_wanted(wanted, self.dependencies.allow, self.place)
        texts = [one.text for one in wanted]
        index = self.dependencies.index.rpartition("@")[2]
        around = [*pins, *(f"{one.name}=={one.version}" for one in installed)]
        stored = StoredSet(self.directory, self.store, [*texts, target.digest, index, *around])

        async def find(uv: Uv) -> tuple[Locked, ...]:
            await say(f"resolving {', '.join(texts)}"[:200])
            limits = constraints([one.name for one in wanted], self.dependencies.allow)
            return await _find(uv, wanted, {one.name: one for one in installed}, [*limits, *pins])

        try:
            with anyio.fail_after(self.dependencies.timeout):
                async with self._finding.setdefault(stored.name, anyio.Lock()):
                    lock = await self._provide(stored, find, target, say)
        except TimeoutError:
            seconds = self.dependencies.timeout
            message = f"{', '.join(texts):.200} could not be installed within {seconds:g} s."
            remedy = "Try again, or raise `timeout` of [dependencies]."
            raise PackageUnavailableError(message, remedy=remedy) from None
        return stored.tree(lock) if lock.packages else None, lock

    def _stale(self, lock: Lock) -> bool:
        days = self.dependencies.lock_days
        return bool(days) and time.time() - lock.made > days * _DAY

    async def _provide(
        self, stored: StoredSet, find: Find, target: PackageTarget, say: Say
    ) -> Lock:
        old = await anyio.to_thread.run_sync(stored.read)
        try:
            if old is not None:  # `allow` may have changed since.
                check_resolved(old.versions, self.dependencies.allow)
        except PackageRefusedError:
            old = None
        there = old is not None and (not old.packages or stored.touch(old))
        if old is not None and there and not self._stale(old):
            return old
        place = await anyio.to_thread.run_sync(stored.begin)
        try:
            cache = self.directory / "uv"
            uv = Uv(self.dependencies, self.environ, place, target, say, self.executable, cache)
            lock = old
            if lock is None or self._stale(lock):
                lock = Lock(packages=await find(uv), made=time.time())
                check_resolved(lock.versions, self.dependencies.allow)
            if not there:  # If the set is too large, later runs do not resolve it again.
                await anyio.to_thread.run_sync(stored.remember, lock)
            await self._install(stored, lock, uv, say, place)
            await anyio.to_thread.run_sync(stored.remember, lock)
        except PackageUnavailableError as error:
            if old is None or not there:
                raise
            logger.warning("the earlier packages are used again: %s", error.message)
            return old
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(partial(shutil.rmtree, place, ignore_errors=True))
        room = partial(make_room, self.directory, self.dependencies.cache_bytes)
        await anyio.to_thread.run_sync(room)
        return lock

    async def _install(self, stored: StoredSet, lock: Lock, uv: Uv, say: Say, place: Path) -> None:
        most = self.dependencies.max_bytes
        sizes = {f"{each.name} {each.version}": each.size for each in lock.packages}
        try:
            if sum(sizes.values()) > most:
                raise too_large(most, sizes)
            with ExitStack() as stack:
                # No other bridge may evict the new wheels before they are in a set.
                wheels = in_use(self.directory / "wheels", wait=True)
                await anyio.to_thread.run_sync(stack.enter_context, wheels)
                missing = [each for each in lock.packages if not stored.wheel(each).exists()]
                into = place / "installed"
                if missing:
                    await say(f"installing {', '.join(each.name for each in missing)}"[:200])
                    await uv.install(missing, into)
                for each in missing:
                    made = into / each.sha256
                    await anyio.to_thread.run_sync(stored.keep_wheel, each, made, most)
                if lock.packages and not stored.touch(lock):
                    await anyio.to_thread.run_sync(stored.keep, lock, place, most)
        except PackageRefusedError as error:
            if "max_bytes" in error.message and "largest" not in error.message:
                # The unpacking was stopped, so the error has no sizes.
                raise too_large(most, sizes) from None
            raise


async def _find(
    uv: Uv, wanted: Sequence[Wanted], installed: Mapping[str, Installed], limits: Sequence[str]
) -> tuple[Locked, ...]:
    """Return the packages to add to the installed ones."""
    texts = [one.text for one in wanted]
    if installed:
        fixed = [f"{one.name}=={one.version}" for one in installed.values()]
        # If this fails, some installed packages must be replaced.
        with suppress(PackageUnavailableError):
            return _select(await uv.resolve(texts, [*limits, *fixed], explain=False), installed)
    resolved = await uv.resolve(texts, limits)
    more: set[str] = set()
    while new := _broken_by(resolved, installed) - {each.name for each in resolved} - more:
        more |= new
        try:
            resolved = await uv.resolve([*texts, *sorted(more)], limits, explain=False)
        except PackageUnavailableError as error:
            logger.warning("%s cannot be replaced: %s", ", ".join(more), error.message)
            break
    return _select(resolved, installed)


def _select(resolved: Sequence[Locked], installed: Mapping[str, Installed]) -> tuple[Locked, ...]:
    broken = _broken_by(resolved, installed)
    return tuple(one for one in resolved if one.name in broken or not _has(one, installed))


def _has(package: Locked, installed: Mapping[str, Installed]) -> bool:
    return package.name in installed and installed[package.name].version == package.version


def _broken_by(resolved: Sequence[Locked], installed: Mapping[str, Installed]) -> set[str]:
    """Return the installed packages that depend, transitively, on a replaced one."""
    replaced = {each.name for each in resolved if not _has(each, installed)} & installed.keys()
    broken: set[str] = set()
    while more := {
        one.name
        for one in installed.values()
        if one.name not in broken and {*one.requires} & (replaced | broken)
    }:
        broken |= more
    return broken
