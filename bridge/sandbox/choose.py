"""Which backend runs the code.

Owns the order in which backends are tried and the refusal when none works. A backend is chosen only
after it has really run something, and has not been seen from inside to lack what it must have;
there is no way from here to running code without one, nor to one that is weaker unless it is named.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial

from bridge.errors import BridgeError, EngineDownError, NoSandboxError, SettingsError
from bridge.sandbox.backend import Backend, Probe
from bridge.sandbox.container.backend import ContainerBackend
from bridge.sandbox.container.image import choose as choose_image
from bridge.sandbox.container.image import ensure_present
from bridge.sandbox.container.machine import MachineContext, ensure_machine
from bridge.sandbox.container.machine_command import SystemRunner
from bridge.sandbox.limits import limits_for
from bridge.sandbox.probing import failed_probe
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.process.landlock_backend import LandlockBackend
from bridge.sandbox.process.packages import check_environment
from bridge.sandbox.process.seatbelt_backend import SeatbeltBackend
from bridge.settings import Settings, runtime_dir

logger = logging.getLogger(__name__)

ENGINES = ("podman", "docker")

LADDER = (*ENGINES, "bubblewrap", "seatbelt")
"""What `auto` tries, in order: podman before docker, since it needs no daemon that runs as root;
bubblewrap where there is no engine at all, and Seatbelt where that system is macOS."""

WEAKER = ("landlock",)
"""What is used only when MCP_BRIDGE_RUNTIME names it: it keeps programs in less well than any of
the ladder, so nothing falls back to it."""

_ProcessBackend = BubblewrapBackend | SeatbeltBackend | LandlockBackend

_PROCESS: Mapping[str, type[_ProcessBackend]] = {
    "bubblewrap": BubblewrapBackend,
    "seatbelt": SeatbeltBackend,
    "landlock": LandlockBackend,
}
"""The backends without an engine, which have no images either."""

_STRANGE_REMEDY = "See what DOCKER_HOST or CONTAINER_HOST leads to."

NO_PACKAGES = "MCP_BRIDGE_PACKAGES is not used: programs find the packages of the engine's image"


def candidates(runtime: str, order: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the backends to try for the setting `runtime`, in order.

    Args:
        order: What `auto` means; empty for the usual ladder. What it leaves out is not tried.

    Raises:
        SettingsError: It names no backend, or the order cannot be.
    """
    ladder = _checked(order) or LADDER
    if runtime == "auto":
        return ladder
    if runtime in _PROCESS or runtime in ENGINES or os.sep in runtime:
        return (runtime,)
    message = (
        f"MCP_BRIDGE_RUNTIME: {runtime!r} is not auto, {', '.join((*LADDER, *WEAKER))} or the path "
        "of an engine."
    )
    raise SettingsError(message)


def _checked(order: Sequence[str]) -> tuple[str, ...]:
    for place, name in enumerate(order):
        problem = ""
        if name in WEAKER:
            problem = "is weaker than the others, and used only when MCP_BRIDGE_RUNTIME names it"
        elif name not in LADDER:
            problem = f"is not one of {', '.join(LADDER)}"
        elif name in order[:place]:
            problem = "stands there twice"
        if problem:
            message = f"MCP_BRIDGE_RUNTIME_ORDER: {name!r} {problem}."
            raise SettingsError(message)
    return tuple(order)


def engines(runtime: str) -> tuple[str, ...]:
    """Return those of `candidates` that are container engines, which have images.

    Raises:
        SettingsError: It names no backend, or one without images.
    """
    found = tuple(name for name in candidates(runtime) if name not in _PROCESS)
    if not found:
        message = f"MCP_BRIDGE_RUNTIME: {runtime} uses no images."
        raise SettingsError(message, remedy="Name podman or docker with --runtime.")
    return found


def _open(name: str, settings: Settings) -> ContainerBackend | _ProcessBackend:
    if name not in _PROCESS:
        return container_backend(name, settings)
    if settings.oci_runtime:
        # Asked for a kernel boundary that namespaces are not; nothing stands in for it.
        message = f"MCP_BRIDGE_OCI_RUNTIME: {name} cannot use {settings.oci_runtime}."
        raise SettingsError(message, remedy="Use podman or docker with it.")
    return _PROCESS[name](
        environ=settings.environ, limits=limits_for(settings), packages=settings.packages
    )


def container_backend(engine: str, settings: Settings) -> ContainerBackend:
    """Return the backend for one engine; nothing is started or asked yet."""
    run = SystemRunner(env=settings.environ)
    machine = None
    # On Linux podman needs no machine unless it was told to use one; asking costs a process a run.
    remote = sys.platform != "linux" or "CONTAINER_CONNECTION" in settings.environ
    if remote and engine != "docker":
        machine = partial(
            ensure_machine,
            MachineContext(
                run=run,
                platform=sys.platform,
                env=settings.environ,
                state_dir=settings.state_dir,
                podman="podman" if engine == "podman" else engine,
                idle_timeout=settings.runtime_idle_timeout,
                progress=logger.info,
            ),
        )
    return ContainerBackend(
        engine,
        image=settings.image,
        runtime_dir=runtime_dir(settings),
        environ=settings.environ,
        user=settings.container_user,
        oci_runtime=settings.oci_runtime or None,
        machine=machine,
        run=run,
        limits=limits_for(settings),
    )


async def choose(settings: Settings) -> Backend:
    """Return the first backend that works, open.

    Raises:
        SettingsError: The setting names no backend, or packages that no program could import.
        NoSandboxError: None works; the text says for each why, and what to do.
    """
    failures: list[Probe] = []
    for name in _admitted(settings):
        async with AsyncExitStack() as stack:
            backend = _open(name, settings)
            stack.push_async_exit(backend)
            probe = await _try(backend, settings)
            if probe.ok:
                _announce(name, probe)
                stack.pop_all()
                return backend
            if name in _PROCESS and probe.error_code == SettingsError.code:
                # Nothing that another backend would put right.
                raise SettingsError(probe.summary, remedy=probe.remedy)
            failures.append(probe)
            logger.info("%s cannot be used: %s", name, probe.summary)
    raise NoSandboxError(
        "No sandbox is available, so nothing was run. " + " ".join(map(_reason, failures)),
        remedy="`mcp-code-bridge doctor` tries them again.",
    )


def _announce(name: str, probe: Probe) -> None:
    if name in WEAKER:
        logger.warning("programs run in %s, which is weaker than any other backend", probe.summary)
    else:
        logger.info("programs run in %s", probe.summary)
    if "packages" in probe.details and probe.details["packages"] == NO_PACKAGES:
        logger.warning("%s", NO_PACKAGES)


async def survey(settings: Settings) -> list[Probe]:
    """Try every backend that the settings admit, and report on each.

    Raises:
        SettingsError: The setting names no backend, or packages that no program could import.
    """
    probes = []
    for name in _admitted(settings):
        async with _open(name, settings) as backend:
            probes.append(await _try(backend, settings))
    return probes


def _admitted(settings: Settings) -> tuple[str, ...]:
    """Return the backends to try; `auto` leaves out what cannot have the OCI runtime asked for."""
    if settings.packages is not None:
        check_environment(settings.packages)
    names = candidates(settings.runtime, settings.runtime_order)
    if settings.oci_runtime and settings.runtime == "auto":
        names = tuple(name for name in names if name in ENGINES)
        if not names:
            message = (
                f"MCP_BRIDGE_RUNTIME_ORDER names no engine, and MCP_BRIDGE_OCI_RUNTIME asks for "
                f"{settings.oci_runtime}."
            )
            raise SettingsError(message, remedy="Add podman or docker to the order.")
    return names


async def _try(backend: ContainerBackend | _ProcessBackend, settings: Settings) -> Probe:
    """Settle the image, where there is one, and run something."""
    if not isinstance(backend, ContainerBackend):
        return await backend.probe()
    try:
        images = await backend.images()
        image = await choose_image(settings.image, images)
        await ensure_present(image, images, progress=logger.info)
    except BridgeError as error:
        return failed_probe(backend.name, error)
    except Exception as error:
        # Whatever listens there speaks HTTP, and is no engine that anybody has met.
        logger.exception("settling the image of %s failed in a way nobody foresaw", backend.name)
        message = f"What answers as {backend.name} does not answer as an engine does: {error!r}."
        return failed_probe(backend.name, EngineDownError(message, remedy=_STRANGE_REMEDY))
    backend.use_image(image)
    probe = await backend.probe()
    if settings.packages is not None:
        probe = replace(probe, details={**probe.details, "packages": NO_PACKAGES})
    return probe


def _reason(probe: Probe) -> str:
    return f"{probe.backend}: {probe.summary} {probe.remedy}".strip()
