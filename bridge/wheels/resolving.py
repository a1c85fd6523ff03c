"""From what a program asks for to a directory with it.

Owns the order: the recorded choice if there is one, else a resolver; the judgement on all that it
found; fetching, unpacking. One bridge at a time does it for one set. Asking a resolver is
`asking`'s business, what may be used `allowed`'s, what is kept `cache`'s.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx2
from packaging.requirements import Requirement

from bridge.errors import BridgeError, PackageUnavailableError
from bridge.settings.dependencies import Dependencies
from bridge.wheels import fetching, offers, tools
from bridge.wheels.allowed import check_resolved, check_wanted, constraints
from bridge.wheels.asking import Paced, Question, Say, ask
from bridge.wheels.cache import Cache, Lock, Locked, digest_of
from bridge.wheels.pins import Closure, Pin, applying, closure
from bridge.wheels.requirements import Wanted
from bridge.wheels.target import Target, environment
from bridge.wheels.tools import Tool

logger = logging.getLogger(__name__)

MAX_ROUNDS = 5
"""Times that a resolver is asked for one set: again for what it judged by another Python."""

_DAY = 24 * 3600.0

_LARGE = 2_000_000
"""Bytes of a wheel from which on it is told how much of it has come."""


class Resolver:
    """Provides packages. Makes no I/O until it is asked.

    Args:
        directory: Where packages are kept.
        environ: The bridge's environment: how the network is reached, and where uv is.
        place: The settings file, for errors.
        tool: Stands in for what is found on this machine.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        directory: Path,
        environ: Mapping[str, str],
        place: str,
        tool: Tool | None = None,
    ) -> None:
        self._dependencies = dependencies
        self._environ = environ
        self._place = place
        self._tool = tool
        self._cache = Cache(directory, dependencies.cache_bytes)
        self._known: dict[str, tuple[Lock, Path]] = {}

    async def provide(self, wanted: Sequence[Wanted], target: Target, say: Say) -> Path | None:
        """Return a directory with what is asked for; None where a target needs none of it.

        Raises:
            PackageRefusedError: Something may not be used.
            PackageUnavailableError: Something could not be had.
        """
        check_wanted(wanted, self._dependencies.allow, self._place)
        if not applying(wanted, environment(target)):
            return None
        key = self._key(wanted, target)
        known = self._known.get(key)
        # Kept in memory, so that a run that uses it again looks at one directory only.
        if known is not None and not self._stale(known[0]) and self._usable(known[1]):
            return known[1]
        try:
            with anyio.fail_after(self._dependencies.timeout):
                await anyio.to_thread.run_sync(self._cache.make)
                async with self._cache.turn(key):
                    lock, tree = await self._provide(key, wanted, target, say)
        except TimeoutError:
            names = ", ".join(one.text for one in wanted)
            seconds = self._dependencies.timeout
            message = f"{names:.200} could not be had within {seconds:g} s."
            remedy = "Try again; `timeout` of [dependencies] sets how long that may take."
            raise PackageUnavailableError(message, remedy=remedy) from None
        if len(self._known) >= 100:
            self._known.clear()
        self._known[key] = lock, tree
        return tree

    def _key(self, wanted: Sequence[Wanted], target: Target) -> str:
        index = self._dependencies.index.rpartition("@")[2]
        hashed = str(self._dependencies.require_hashes)
        return digest_of([*(one.text for one in wanted), target.digest, index, hashed])

    def _usable(self, tree: Path) -> bool:
        if not tree.is_dir():
            return False
        self._cache.touch(tree)
        return True

    def _stale(self, lock: Lock) -> bool:
        days = self._dependencies.lock_days
        return bool(days) and time.time() - lock.made > days * _DAY

    def _permitted(self, lock: Lock) -> bool:
        """Whether all of a recorded set may still be used: `allow` may have changed since."""
        found = {wheel.name: wheel.version for wheel in lock.wheels}
        try:
            check_resolved(found, lock.needed, self._dependencies.allow, self._place)
        except BridgeError:
            return False
        return True

    async def _provide(
        self, key: str, wanted: Sequence[Wanted], target: Target, say: Say
    ) -> tuple[Lock, Path]:
        lock = await anyio.to_thread.run_sync(self._cache.read, key)
        if lock is not None and not self._permitted(lock):
            lock = None
        if lock is None or self._stale(lock):
            lock = await self._renewed(key, lock, wanted, target, say)
        tree = self._cache.tree(lock)
        if not await anyio.to_thread.run_sync(self._usable, tree):
            lock = await self._fetched(lock, say)
            await say("unpacking packages")
            # Not left behind when cancelled: half a set is nobody's.
            tree = await anyio.to_thread.run_sync(
                self._cache.unpacked, lock, self._dependencies.max_bytes
            )
        return lock, tree

    async def _renewed(
        self, key: str, old: Lock | None, wanted: Sequence[Wanted], target: Target, say: Say
    ) -> Lock:
        """Return what the requirements come to now, and record it; the old, if nobody can tell."""
        await say(f"resolving {', '.join(one.text for one in wanted)}"[:200])
        try:
            pins, found = await self._resolved(wanted, target, say)
            lock = _unlocked(pins, found)
            if old is None and all(wheel.sha256 for wheel in lock.wheels):
                # Whoever tries again after a time-out goes on from there.
                await anyio.to_thread.run_sync(self._cache.write, key, lock)
            lock = await self._fetched(lock, say)
        except PackageUnavailableError as error:
            if old is None:
                raise
            logger.warning("the packages chosen before are used again: %s", error.message)
            return old
        await anyio.to_thread.run_sync(self._cache.write, key, lock)
        return lock

    async def _resolved(
        self, wanted: Sequence[Wanted], target: Target, say: Say
    ) -> tuple[dict[str, Pin], Closure]:
        tool = self._tool or _tool(self._environ)
        around = environment(target)
        asked = applying(wanted, around)
        names = [one.name for one in wanted]
        limits = constraints(names, self._dependencies.allow)
        question = Question(texts=tuple(map(str, asked)), limits=limits, target=target)
        pins, found = await self._closed(tool, asked, question, names, say)
        if found.missing:
            text, parent = next(iter(found.missing.items()))
            message = f"{parent or 'The program'} needs {text}, which does not fit with the rest."
            raise PackageUnavailableError(message)
        versions = {name: pin.version for name, pin in pins.items()}
        check_resolved(versions, found.needed, self._dependencies.allow, self._place)
        return pins, found

    async def _closed(
        self,
        tool: Tool,
        asked: Sequence[Requirement],
        question: Question,
        names: Sequence[str],
        say: Say,
    ) -> tuple[dict[str, Pin], Closure]:
        """Ask a resolver until nothing that is needed is missing, or it gets no further."""
        further: dict[str, str] = {}
        pins: dict[str, Pin] = {}
        found = Closure(needed={}, missing={})
        for _ in range(MAX_ROUNDS):
            more = replace(question, texts=(*question.texts, *further))
            answer = await ask(
                tool, more, self._dependencies, self._environ, self._cache.resolvers, say
            )
            pins = {pin.name: pin for pin in answer}
            if any(pin.requires is None for pin in pins.values()):
                # What it left out it left out by the right Python's markers.
                parents = ", ".join(names)
                needed = {name: "" if name in names else parents for name in pins}
                return pins, Closure(needed=needed, missing={})
            found = closure(asked, pins, environment(question.target))
            pins = {name: pin for name, pin in pins.items() if name in found.needed}
            if not set(found.missing) - set(further):
                break
            self._judge_names(found)
            further |= found.missing
        return pins, found

    def _judge_names(self, found: Closure) -> None:
        """Refuse what is missing and may not be used, before it is looked for."""
        allow = self._dependencies.allow
        for text, parent in found.missing.items():
            requirement = Requirement(text)
            name = requirement.name
            if requirement.url is not None:
                raise tools.by_address(name)
            entries = [replace(entry, versions="") for entry in allow]
            check_resolved({name: "0"}, {name: parent}, entries, self._place)

    async def _fetched(self, lock: Lock, say: Say) -> Lock:
        """Bring the wheels that are not here; return the lock with their digests."""
        await anyio.to_thread.run_sync(self._cache.make_room)
        room = self._dependencies.max_bytes
        wheels = []
        async with fetching.client(self._dependencies) as http:
            for wheel in lock.wheels:
                if await anyio.to_thread.run_sync(self._cache.has_wheel, wheel.sha256):
                    wheels.append(wheel)
                    continue
                await say(f"fetching {wheel.name} {wheel.version}")
                if self._dependencies.require_hashes and self._dependencies.directory is None:
                    await self._insist_on_hash(wheel, http)
                pin = Pin(
                    name=wheel.name,
                    version=wheel.version,
                    url=wheel.url,
                    file=wheel.file,
                    sha256=wheel.sha256,
                )
                digest, size = await fetching.fetch(
                    pin,
                    self._dependencies,
                    self._cache.wheels,
                    room,
                    http,
                    partial(_come, Paced(say), f"fetching {wheel.name} {wheel.version}"),
                )
                room -= size
                wheels.append(replace(wheel, sha256=digest))
        return replace(lock, wheels=tuple(wheels))

    async def _insist_on_hash(self, wheel: Locked, http: httpx2.AsyncClient) -> None:
        has = await offers.offer(wheel.name, self._dependencies, http)
        given = next((file.sha256 for file in has.files if file.name == wheel.file), "")
        if given and given == (wheel.sha256 or given):
            return
        message = f"The index gives no SHA-256 for {wheel.file}, which `require_hashes` demands."
        raise PackageUnavailableError(message)


async def _come(paced: Paced, what: str, size: int, whole: int) -> None:
    """Tell how much of a wheel has come; of small ones it is not worth telling."""
    if whole > _LARGE:
        await paced.say(f"{what}: {size / 1e6:.0f} of {whole / 1e6:.0f} MB")


def _unlocked(pins: Mapping[str, Pin], found: Closure) -> Lock:
    wheels = tuple(
        Locked(name=pin.name, version=pin.version, url=pin.url, file=pin.file, sha256=pin.sha256)
        for pin in sorted(pins.values(), key=lambda pin: pin.name)
    )
    needed = {name: found.needed[name] for name in sorted(found.needed)}
    return Lock(wheels=wheels, needed=needed, made=time.time())


def _tool(environ: Mapping[str, str]) -> Tool:
    """Return the resolver of this machine: uv if there is one, else this Python's pip."""
    tool = find_tool(environ)
    if tool is None:
        message = "There is neither uv nor pip on this machine to look for packages with."
        raise PackageUnavailableError(message, remedy="Install uv, or pip beside the bridge.")
    return tool


def find_tool(environ: Mapping[str, str]) -> Tool | None:
    """Return the resolver of this machine; None if there is none."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("uv", path=environ.get("PATH", "")) or shutil.which("uv", path=beside)
    if found is not None:
        return tools.uv(found, sys.executable)
    if importlib.util.find_spec("pip") is not None:
        return tools.pip(sys.executable)
    return None
