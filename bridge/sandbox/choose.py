"""Which backend runs the code.

Owns the order in which backends are tried and the refusal when none works. A backend is chosen only
after it has really run something; there is no way from here to running code without one.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import AsyncExitStack
from functools import partial

from bridge.errors import BridgeError, NoSandboxError, SettingsError
from bridge.sandbox.backend import Backend, Probe
from bridge.sandbox.container.backend import ContainerBackend
from bridge.sandbox.container.image import choose as choose_image
from bridge.sandbox.container.image import ensure_present
from bridge.sandbox.container.machine import MachineContext, ensure_machine
from bridge.sandbox.container.machine_command import SystemRunner
from bridge.sandbox.limits import limits_for
from bridge.sandbox.probing import failed_probe
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.settings import Settings, runtime_dir

logger = logging.getLogger(__name__)

ENGINES = ("podman", "docker")

LADDER = (*ENGINES, "bubblewrap")
"""What `auto` tries, in order: podman before docker, since it needs no daemon that runs as root;
bubblewrap where there is no engine at all."""

NOT_YET = ("seatbelt",)
"""Names that are reserved for backends this version does not have."""


def candidates(runtime: str) -> tuple[str, ...]:
    """Return the backends to try for the setting `runtime`, in order.

    Raises:
        SettingsError: It names no backend.
    """
    if runtime == "auto":
        return LADDER
    if runtime in NOT_YET:
        message = f"MCP_BRIDGE_RUNTIME: the backend {runtime!r} is not part of this version."
        raise SettingsError(message, remedy=f"Use auto, {', '.join(LADDER)}.")
    if runtime in LADDER or os.sep in runtime:
        return (runtime,)
    message = (
        f"MCP_BRIDGE_RUNTIME: {runtime!r} is not auto, podman, docker, bubblewrap "
        "or the path of an engine."
    )
    raise SettingsError(message)


def engines(runtime: str) -> tuple[str, ...]:
    """Return those of `candidates` that are container engines, which have images.

    Raises:
        SettingsError: It names no backend, or one without images.
    """
    found = tuple(name for name in candidates(runtime) if name != "bubblewrap")
    if not found:
        message = f"MCP_BRIDGE_RUNTIME: {runtime} uses no images."
        raise SettingsError(message, remedy="Name podman or docker with --runtime.")
    return found


def _open(name: str, settings: Settings) -> ContainerBackend | BubblewrapBackend:
    if name != "bubblewrap":
        return container_backend(name, settings)
    if settings.oci_runtime:
        # Asked for a kernel boundary that namespaces are not; nothing stands in for it.
        message = f"MCP_BRIDGE_OCI_RUNTIME: bubblewrap cannot use {settings.oci_runtime}."
        raise SettingsError(message, remedy="Use podman or docker with it.")
    return BubblewrapBackend(environ=settings.environ, limits=limits_for(settings))


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
        SettingsError: The setting names no backend.
        NoSandboxError: None works; the text says for each why, and what to do.
    """
    failures: list[Probe] = []
    for name in _admitted(settings):
        async with AsyncExitStack() as stack:
            backend = _open(name, settings)
            stack.push_async_exit(backend)
            probe = await _try(backend, settings)
            if probe.ok:
                logger.info("programs run in %s", probe.summary)
                stack.pop_all()
                return backend
            failures.append(probe)
            logger.info("%s cannot be used: %s", name, probe.summary)
    raise NoSandboxError(
        "No sandbox is available, so nothing was run. " + " ".join(map(_reason, failures)),
        remedy="`mcp-code-bridge doctor` tries them again.",
    )


async def survey(settings: Settings) -> list[Probe]:
    """Try every backend that the settings admit, and report on each.

    Raises:
        SettingsError: The setting names no backend.
    """
    probes = []
    for name in _admitted(settings):
        async with _open(name, settings) as backend:
            probes.append(await _try(backend, settings))
    return probes


def _admitted(settings: Settings) -> tuple[str, ...]:
    """Return the backends to try; `auto` leaves out what cannot have the OCI runtime asked for."""
    names = candidates(settings.runtime)
    if settings.oci_runtime and settings.runtime == "auto":
        return tuple(name for name in names if name in ENGINES)
    return names


async def _try(backend: ContainerBackend | BubblewrapBackend, settings: Settings) -> Probe:
    """Settle the image, where there is one, and run something."""
    if isinstance(backend, BubblewrapBackend):
        return await backend.probe()
    try:
        images = await backend.images()
        image = await choose_image(settings.image, images)
        await ensure_present(image, images, progress=logger.info)
    except BridgeError as error:
        return failed_probe(backend.name, error)
    backend.use_image(image)
    return await backend.probe()


def _reason(probe: Probe) -> str:
    return f"{probe.backend}: {probe.summary} {probe.remedy}".strip()
