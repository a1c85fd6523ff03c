"""Packages for a run: what it asks for, settled before there is a sandbox, and where that has it.

Owns the composition: requirements of the call and of the program's own text, the sandbox's Python,
and the directory that both come to. How packages are found and kept is `bridge.wheels`' business.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from bridge.engine.client import OneRun
from bridge.engine.sandboxes import Sandboxes
from bridge.errors import PackageRefusedError, PackageUnavailableError
from bridge.model import RunRequest
from bridge.sandbox.backend import Bind
from bridge.sandbox.limits import limits_for
from bridge.saving import replace_file
from bridge.settings import Settings, packages_dir

if TYPE_CHECKING:
    from bridge.wheels.requirements import Wanted
    from bridge.wheels.resolving import Resolver
    from bridge.wheels.target import Target

logger = logging.getLogger(__name__)

INSIDE = "/packages"
"""Where a sandbox has them."""

SETTINGS_FILE = "config.toml"
"""As it is called in errors, which programs may see: not where it is."""

_OPENING = "# /// script"

_MAX_TARGET_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Outfit:
    """What a run's sandbox has for its packages.

    Attributes:
        binds: The directory; nothing where no packages are needed.
        paths: What is joined to where imports look.
        target: The Python that it is for, as it was known then.
    """

    binds: tuple[Bind, ...] = ()
    paths: tuple[str, ...] = ()
    target: Target | None = None


NOTHING = Outfit()


def asks_for_packages(request: RunRequest) -> bool:
    """Tell whether a run may need packages; most do not, and need not look further."""
    return bool(request.packages) or _OPENING in request.code


def packages_of(request: RunRequest) -> tuple[str, ...]:
    """Return all that a run asks for, normalised and in order: equal for equal wishes.

    Raises:
        InvalidRequestError: A requirement or the program's metadata is malformed.
        PackageRefusedError: Something is not asked for by its name.
    """
    if not asks_for_packages(request):
        return ()
    return tuple(one.text for one in _wanted(request)[0])


def _wanted(request: RunRequest) -> tuple[tuple[Wanted, ...], str]:
    """Return the requirements, and which Python the program demands."""
    # Only here, and so wherever else `bridge.wheels` is needed: `packaging` takes 15 ms or more to
    # import, and most bridges are never asked for a package.
    from bridge.wheels.requirements import Script, parse_requirements, script_metadata

    script = script_metadata(request.code) if _OPENING in request.code else Script()
    return parse_requirements((*request.packages, *script.dependencies)), script.requires_python


class Packages:
    """Settles what runs ask for. Makes no I/O before one does."""

    def __init__(self, settings: Settings, sandboxes: Sandboxes) -> None:
        self._settings = settings
        self._sandboxes = sandboxes
        self._directory = packages_dir(settings)
        self._resolver: Resolver | None = None
        self._target: Target | None = None
        self._learned = False
        self._looking = anyio.Lock()

    async def outfit(self, request: RunRequest, run: OneRun) -> Outfit:
        """Return what a run's sandbox needs, once it is there.

        Raises:
            InvalidRequestError: A requirement or the program's metadata is malformed.
            PackageRefusedError: Something may not be used here.
            PackageUnavailableError: Something could not be had.
            SandboxError: There is no sandbox to have it for.
        """
        if not asks_for_packages(request):
            return NOTHING
        wanted, python = _wanted(request)
        if not wanted and not python:
            return NOTHING
        resolver = self._resolver_for(wanted)
        target = await self._known_target()
        return await self._outfit(wanted, python, target, resolver, run)

    async def _outfit(
        self,
        wanted: tuple[Wanted, ...],
        python: str,
        target: Target,
        resolver: Resolver | None,
        run: OneRun,
    ) -> Outfit:
        from bridge.wheels.requirements import refused_python

        refusal = refused_python(python, target.version)
        if refusal is not None:
            raise refusal
        if resolver is None:
            return Outfit(target=target)
        tree = await resolver.provide(wanted, target, run.say)
        if tree is None:
            return Outfit(target=target)
        bind = Bind(source=str(tree), inside=INSIDE, executable=True)
        return Outfit(binds=(bind,), paths=(INSIDE,), target=target)

    def _resolver_for(self, wanted: tuple[Wanted, ...]) -> Resolver | None:
        if not wanted:
            return None
        names = tuple(dict.fromkeys(one.name for one in wanted))
        if not self._settings.packages_allowed:
            message = f"The profile {self._settings.profile!r} allows no packages."
            remedy = (
                "Do without, or run the bridge with another profile; one that extends it may say "
                "allow_packages = true."
            )
            raise PackageRefusedError(message, remedy=remedy)
        if not self._settings.dependencies.allow:
            from bridge.wheels.allowed import nothing_allowed

            raise nothing_allowed(names, SETTINGS_FILE)
        if self._resolver is None:
            from bridge.wheels.resolving import Resolver

            self._resolver = Resolver(
                self._settings.dependencies, self._directory, self._settings.environ, SETTINGS_FILE
            )
        return self._resolver

    async def _known_target(self) -> Target:
        """Return the sandbox's Python: as it is known, as the disk has it, or as a sandbox tells.

        What the disk has may be old. Whoever runs the program sees what its sandbox tells, and
        calls `differs`.
        """
        async with self._looking:
            if self._target is None:
                self._target = await anyio.to_thread.run_sync(self._read_target)
            if self._target is None:
                limits = limits_for(self._settings)
                async with self._sandboxes.reserve(limits) as reservation:
                    session = await reservation.get()
                    await self._learn(session.facts)
            assert self._target is not None  # it was learned
            return self._target

    async def check(self, outfit: Outfit, facts: Mapping[str, Any]) -> bool:
        """See that a sandbox is what its packages are for; False if they have to be settled anew.

        Args:
            facts: What its guest tells.

        Raises:
            PackageUnavailableError: It has no packages, though it was given some; or none can be
                found for sandboxes that differ.
        """
        if outfit.target is None:
            return True
        from bridge.wheels.target import target_of

        if target_of(facts) != outfit.target:
            if self._learned:
                message = "The sandboxes here have different Pythons, so nothing is found for them."
                raise PackageUnavailableError(message)
            await self._learn(facts)
            return False
        binds = facts.get("binds")
        found = binds.get(INSIDE) if outfit.binds and isinstance(binds, dict) else None
        if isinstance(found, dict) and found.get("empty") is True:
            message = "The sandbox does not have the packages that it was given."
            remedy = (
                "The engine's machine does not see this one's files: share the directory with it "
                "(`podman machine init --volume`), or set `cache` of [dependencies] to one that is."
            )
            raise PackageUnavailableError(message, host_detail=self._where(), remedy=remedy)
        return True

    async def insist(self, outfit: Outfit, facts: Mapping[str, Any]) -> None:
        """See that a sandbox is what its packages are for, where they cannot be settled anew.

        Raises:
            PackageUnavailableError: It is not; the next time it will be.
        """
        if not await self.check(outfit, facts):
            message = "The sandbox has another Python than the one that packages were found for."
            raise PackageUnavailableError(message, remedy="Run it again: the new one is known now.")

    def _where(self) -> str:
        return f"They are in {self._directory}."

    async def _learn(self, facts: Mapping[str, Any]) -> None:
        from bridge.wheels.target import target_of

        self._target, self._learned = target_of(facts), True
        await anyio.to_thread.run_sync(partial(self._write_target, self._target))

    @property
    def _target_file(self) -> Path:
        # Of every combination of what decides which Python is inside.
        from bridge.wheels.sets import digest_of

        settings = self._settings
        chosen = (settings.runtime, settings.oci_runtime, settings.image, str(settings.packages))
        name = digest_of([*chosen, *settings.runtime_order])
        return self._directory / f"python-{name[:16]}.json"

    def _read_target(self) -> Target | None:
        from bridge.wheels.target import Target

        try:
            with self._target_file.open("rb") as file:
                return Target(**json.loads(file.read(_MAX_TARGET_BYTES)))
        except (OSError, ValueError, TypeError):
            return None

    def _write_target(self, target: Target) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            replace_file(self._target_file, json.dumps(asdict(target)).encode())
        except OSError as error:
            # The next bridge asks a sandbox again.
            logger.warning("the sandbox's Python is not remembered: %s", error.strerror)
