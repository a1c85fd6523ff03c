"""A run's packages, which are resolved and installed before the sandbox starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio

from bridge.callers.client import RunCaller
from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.model import Json
from bridge.model.runs import SCRIPT_OPENING, RunRequest
from bridge.packages.requirements import (
    Script,
    Wanted,
    check_python,
    check_wanted,
    is_met,
    parse_requirements,
    script_metadata,
)
from bridge.packages.sets import add_fonts, compile_set
from bridge.packages.target import Installed, PackageTarget, installed_in, target_of
from bridge.packages.uv import Resolver
from bridge.sandbox.backend import Bind
from bridge.settings import Settings, packages_dir, store_of

INSIDE = "/packages"  # Their directory in a sandbox.


@dataclass(frozen=True, kw_only=True)
class PackageSet:
    binds: tuple[Bind, ...] = ()
    paths: tuple[str, ...] = ()  # Additions to `sys.path`.
    target: PackageTarget | None = None  # The Python that they were resolved for.
    # The versions of all packages in the sandbox, including the image's.
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    pins: tuple[str, ...] = ()  # Requirements that fix the resolved versions.
    wheels: tuple[Path, ...] = ()  # The directories of the unpacked wheels.

    def lacks(self, texts: Iterable[str]) -> tuple[str, ...]:
        return tuple(text for text in texts if not is_met(text, self.versions))


NOTHING = PackageSet()


def packages_of(request: RunRequest) -> tuple[str, ...]:
    if not request.may_need_packages:
        return ()
    return tuple(one.text for one in _collect_wishes(request)[0])


def _collect_wishes(request: RunRequest) -> tuple[tuple[Wanted, ...], str]:
    """Return the requirements, and the Python versions that the program accepts."""
    script = script_metadata(request.code) if SCRIPT_OPENING in request.code else Script()
    return parse_requirements((*request.packages, *script.dependencies)), script.requires_python


class PackageSandboxes(Protocol):
    async def facts(self) -> tuple[Mapping[str, Any], Json]: ...

    async def look(self, source: Path, inside: str, task: str) -> bytes | None: ...

    def start_soon(self, job: Callable[[], Awaitable[None]]) -> None: ...


class Packages:
    """Resolves the packages of runs. The first request does the first I/O."""

    def __init__(self, settings: Settings, sandboxes: PackageSandboxes) -> None:
        self._settings = settings
        self._sandboxes = sandboxes
        self._compiled: set[str] = set()
        self._directory = packages_dir(settings)
        self._resolver: Resolver | None = None
        self._target: tuple[PackageTarget, tuple[Installed, ...]] | None = None
        self._looking = anyio.Lock()

    async def resolve(
        self, request: RunRequest, run: RunCaller, pins: tuple[str, ...] = ()
    ) -> PackageSet:
        """Install a run's packages; `pins` fix the versions of a session."""
        if not request.may_need_packages:
            return NOTHING
        wanted, python = _collect_wishes(request)
        if not wanted and not python:
            return NOTHING
        resolver = self._resolver_for(wanted)
        async with self._looking:
            if self._target is None:
                facts, listed = await self._sandboxes.facts()
                self._target = target_of(facts), installed_in(listed)
            target, installed = self._target
        check_python(python, target.version)
        if resolver is None:
            return PackageSet(target=target)
        tree, lock = await resolver.provide(
            wanted, target, run.report_preparation, installed=installed, pins=pins
        )
        versions = {one.name: one.version for one in installed} | lock.versions
        fixed = tuple(f"{name}=={version}" for name, version in lock.versions.items())
        packages = PackageSet(target=target, versions=versions, pins=fixed)
        if tree is None:
            return packages
        bind = Bind(source=str(tree), inside=INSIDE, executable=True)
        wheels = tuple(self._directory / "wheels" / one.sha256 for one in lock.packages)
        return replace(packages, binds=(bind,), paths=(INSIDE,), wheels=wheels)

    def compile_later(self, packages: PackageSet) -> None:
        """Compile a set in the background, for later runs."""
        target, tree = packages.target, packages.binds[0].source
        if target is None or tree in self._compiled or not target.abi:
            return
        self._compiled.add(tree)
        tag = "cpython-{}{}".format(*target.version.split("."))
        most = self._settings.dependencies.max_bytes
        look = partial(self._sandboxes.look, inside=INSIDE)
        compiled, listed = partial(look, task="bytecode"), partial(look, task="fonts")

        async def job() -> None:
            await compile_set(Path(tree), packages.wheels, tag, most, compiled)
            await add_fonts(Path(tree), listed)

        self._sandboxes.start_soon(job)

    def _resolver_for(self, wanted: tuple[Wanted, ...]) -> Resolver | None:
        if not wanted:
            return None
        settings = self._settings
        if not settings.packages_allowed:
            message = f"The profile {settings.profile!r} allows no packages."
            remedy = "Use no packages, or run the bridge with another profile, such as one that "
            remedy += "extends it with allow_packages = true."
            raise PackageRefusedError(message, remedy=remedy)
        check_wanted(wanted, settings.dependencies.allow)
        if self._resolver is None:
            store, environ = store_of(settings), settings.environ
            self._resolver = Resolver(settings.dependencies, self._directory, store, environ)
        return self._resolver

    def check(self, packages: PackageSet, facts: Mapping[str, Any]) -> None:
        """Check that a sandbox has the packages and their Python; forget a changed Python."""
        if packages.target is None:
            return
        if target_of(facts) != packages.target:
            self._target = None
            message = "The sandbox has another Python than the one that packages were found for."
            raise PackageUnavailableError(message, remedy="Run it again with the new Python.")
        binds = facts.get("binds")
        bind = binds.get(INSIDE) if packages.binds and isinstance(binds, dict) else None
        if isinstance(bind, dict) and bind.get("empty") is True:
            message = "The sandbox does not have the packages that it was given."
            remedy = (
                "The engine's machine does not see this machine's files. Share the directory "
                "(`podman machine init --volume`), or set `cache` of [dependencies]."
            )
            raise PackageUnavailableError(message, remedy=remedy)
