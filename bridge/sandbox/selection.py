"""Selects the backend that runs the code, in the order of `LADDER` or the user's setting.

Enforces: a selected backend has run a probe, and its mandatory layers were checked from inside. If
no backend passes, nothing runs. A weaker backend is used only if it is named.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import anyio.to_thread

from bridge.errors import BridgeError, LaunchError, SandboxError, SettingsError
from bridge.sandbox.backend import Backend, Probe, limits_for
from bridge.sandbox.ownership import reap_leftovers
from bridge.sandbox.probe import remember
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile
from bridge.settings.parsers import ELSEWHERE, ENGINES, LADDER, WEAKER

logger = logging.getLogger(__name__)

Trial = Callable[[], Awaitable[Probe]]

_IMAGE_ERRORS = ("image_missing", "image_pull_failed")

_PROCESS: Mapping[str, tuple[str, str]] = {
    "bubblewrap": ("backend", "BubblewrapBackend"),
    "seatbelt": ("seatbelt_backend", "SeatbeltBackend"),
    "landlock": ("landlock_backend", "LandlockBackend"),
}
"""The backends without an engine: module and class. They are imported when they are tried: the
imports take 50 ms, and those of the engines' client libraries 150 ms."""


def candidates(runtime: str, order: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the backends to try for the setting `runtime`; `order` replaces `auto`'s ladder."""
    return (tuple(order) or LADDER) if runtime == "auto" else (runtime,)


def engines(settings: Settings) -> tuple[str, ...]:
    """Return those of `candidates` that are container engines, which have images."""
    others = (*_PROCESS, *ELSEWHERE)
    found = tuple(name for name in candidates(settings.runtime) if name not in others)
    if not found:
        message = f"{settings.place('runtime')}: {settings.runtime} uses no images of this machine."
        raise SettingsError(message, remedy="Name podman or docker with --runtime.")
    return found


async def _load(module: str) -> Any:
    # In a thread, so that other requests need not wait for it.
    return await anyio.to_thread.run_sync(importlib.import_module, f"bridge.sandbox.{module}")


async def _make_backend(
    name: str, settings: Settings, *, pull: bool = True
) -> tuple[Backend, Trial]:
    place = settings.place("oci_runtime")
    backend: Backend
    if name == "kubernetes":
        if settings.oci_runtime:
            message = f"{place}: a cluster's nodes have their own."
            raise SettingsError(message, remedy="Set `runtime_class` in [kubernetes].")
        try:
            module = await _load("kubernetes.backend")
        except ImportError as error:
            message = f"The runtime kubernetes needs a package that is not installed: {error}."
            raise SettingsError(message, remedy="Install `mcp-code-bridge[kubernetes]`.") from error
        backend = module.kubernetes_backend(settings)
    elif name in _PROCESS:
        if settings.oci_runtime:
            # The user requires a kernel boundary, and namespaces are not one.
            message = f"{place}: {name} cannot use {settings.oci_runtime}."
            raise SettingsError(message, remedy="Use podman or docker with it.")
        file, kind = _PROCESS[name]
        backend = getattr(await _load(f"process.{file}"), kind)(
            environ=settings.environ, limits=limits_for(settings), packages=settings.packages
        )
    else:
        module = await _load("container.backend")
        backend = module.container_backend(name, settings)
        return backend, partial(module.try_backend, backend, settings, pull=pull)
    return backend, backend.probe


async def select_present(settings: Settings) -> Backend:
    """Return the first backend that works without fetching an image, which can take minutes."""
    return await select_backend(settings, pull=False)


async def select_backend(settings: Settings, *, pull: bool = True) -> Backend:
    """Return the first backend that works, open; if none does and `pull`, fetch an image."""
    failures: dict[str, Probe] = {}
    names = _allowed_backends(settings)
    for name in names:
        if backend := await _select(name, settings, failures, pull=False):
            return backend
    missing = [name for name in names if failures[name].error_code == "image_missing"]
    for name in missing if pull else ():
        if backend := await _select(name, settings, failures, pull=True):
            return backend
    # Of several reasons, omit those of another system's backends.
    every = [*failures.values()]
    here = [probe for probe in every if probe.error_code != "wrong_system"] or every
    reasons = [f"{probe.backend}: {probe.summary} {probe.remedy}".strip() for probe in here]
    raise SandboxError(
        f"No sandbox is available, so nothing was run. {' '.join(reasons)}",
        remedy="`mcp-code-bridge doctor` says what to do, and offers to build a missing image.",
        code="no_sandbox",
    )


async def _select(
    name: str, settings: Settings, failures: dict[str, Probe], *, pull: bool
) -> Backend | None:
    """Return an open backend if it works; otherwise record its failure."""
    async with AsyncExitStack() as stack:
        backend, attempt = await _make_backend(name, settings, pull=pull)
        stack.push_async_exit(backend)
        probe = await attempt()
        if probe.ok:
            if name in WEAKER:
                weaker = "programs run in %s, which is weaker than any other backend"
                logger.warning(weaker, probe.summary)
            else:
                logger.info("programs run in %s", probe.summary)
            if name not in _PROCESS and "packages" in probe.details:
                logger.warning("%s", probe.details["packages"])
            await anyio.to_thread.run_sync(remember, settings, probe.contents)
            stack.pop_all()
            return backend
        if name in _PROCESS and probe.error_code == SettingsError.code:
            # Another backend would have the same problem.
            raise SettingsError(probe.summary, remedy=probe.remedy)
        failures[name] = probe
        logger.info("%s cannot be used: %s", name, probe.summary)
    return None


async def probe_all(settings: Settings) -> list[Probe]:
    """Probe every backend that the settings allow; fetch no image."""
    probes = []
    for name in _allowed_backends(settings):
        backend, attempt = await _make_backend(name, settings, pull=False)
        async with backend:
            probes.append(await attempt())
    first = next((probe for probe in probes if probe.ok), None)
    if first is not None:
        await anyio.to_thread.run_sync(remember, settings, first.contents)
    return probes


def _allowed_backends(settings: Settings) -> tuple[str, ...]:
    """Return the backends to try; `auto` omits those without OCI runtimes or images.

    A user who names an OCI runtime or an image must not get another sandbox or Python.
    """
    if settings.packages is not None:
        from bridge.sandbox.process.interpreter import read_packages

        place = settings.place("packages")
        # Before any backend is tried.
        read_packages(settings.packages, as_nobody=False, environment=True, setting=place)
    names = candidates(settings.runtime, settings.runtime_order)
    if settings.runtime == "auto":
        from bridge.sandbox.container.endpoints import names_another_machine

        # Programs do not run here unnoticed where an engine of another machine is named.
        there = [n for n in names if n in ENGINES and names_another_machine(n, settings.environ)]
        names = tuple(there) or names
    asked = "oci_runtime" if settings.oci_runtime else "image" if settings.image else ""
    if asked and settings.runtime == "auto":
        names = tuple(name for name in names if name in ENGINES)
        if not names:
            message = f"{settings.place('runtime_order')} names no engine, and "
            message += f"{settings.place(asked)} asks for {getattr(settings, asked)}."
            raise SettingsError(message, remedy="Add podman or docker to the order.")
    return names


def is_engine(name: str) -> bool:
    return name in ENGINES or "/" in name


def require_own_kernel(settings: Settings, profile: CommandProfile) -> None:
    """Reject a profile whose namespaces would replace the required kernel boundary."""
    if settings.oci_runtime and profile.runtime == "process":
        place = settings.place("oci_runtime")
        message = f"{profile.place}: {place}: bubblewrap cannot use {settings.oci_runtime}."
        remedy = 'Set `runtime = "container"` and `image` in the profile.'
        raise SettingsError(message, remedy=remedy)


async def select_for_profile(settings: Settings, profile: CommandProfile) -> Backend:
    """Return the open backend for a profile's commands: bubblewrap, or the first fitting engine.

    An engine fits if it has the profile's image or can pull it. Nothing replaces bubblewrap.
    """
    if settings.runtime in ELSEWHERE:
        message = f"{profile.place}: commands use directories of this machine, which"
        message += f" {settings.runtime} does not reach ({settings.place('runtime')})."
        raise SettingsError(message, remedy="Set MCP_BRIDGE_RUNTIME to a backend of this machine.")
    require_own_kernel(settings, profile)
    if profile.runtime == "process":
        backend, _ = await _make_backend("bubblewrap", replace(settings, packages=None))
        return await _without_leftovers(backend)
    problems: list[str] = []
    remedy = "`mcp-code-bridge doctor` tries them again."
    names = candidates(settings.runtime, settings.runtime_order)
    for name in tuple(filter(is_engine, names)) or ENGINES:
        try:
            return await _engine_with(name, settings, profile.image)
        except BridgeError as error:
            if error.code in _IMAGE_ERRORS:
                problems.append(f"{name}: {error.message}")
                remedy = with_profile_remedy(error, profile).remedy
            else:
                problems.append(f"{name}: {error}")
    message = f"No container engine can run {profile.image}. {' '.join(problems)}"
    raise SandboxError(message, remedy=remedy, code="no_sandbox")


async def _engine_with(name: str, settings: Settings, image: str) -> Backend:
    from bridge.sandbox.container.backend import container_backend
    from bridge.sandbox.container.image import ensure_present

    engine = container_backend(name, settings)
    async with AsyncExitStack() as stack:
        stack.push_async_exit(engine)
        await ensure_present(image, await engine.images(), progress=logger.info)
        stack.pop_all()
    return await _without_leftovers(engine)


async def _without_leftovers(backend: Backend) -> Backend:
    """Return an open backend after removing the leftovers of dead bridges."""
    async with AsyncExitStack() as stack:
        stack.push_async_exit(backend)
        await reap_leftovers(backend)
        stack.pop_all()
    return backend


def with_profile_remedy(error: BridgeError, profile: CommandProfile) -> BridgeError:
    """Return an image error with the remedy for a profile's image; other errors unchanged.

    The original remedies are for the programs' image, which the bridge can build.
    """
    if profile.runtime != "container":
        return error
    remedy = f"correct {profile.place}.image."
    if error.code in _IMAGE_ERRORS:
        remedy = f"Pull or build {profile.image} with the engine, or {remedy}"
    elif isinstance(error, LaunchError) and "image build" in error.remedy:
        remedy = f"Name executables that {profile.image} has, or {remedy}"
    else:
        return error
    return type(error)(error.message, code=error.code, remedy=remedy, host_detail=error.host_detail)
