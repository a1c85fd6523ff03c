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
from bridge.settings import Settings, runtime_dir

logger = logging.getLogger(__name__)

LADDER = ("podman", "docker")
"""What `auto` tries, in order: podman first, since it needs no daemon that runs as root."""

NOT_YET = ("bubblewrap", "seatbelt")
"""Names that are reserved for backends this version does not have."""


def candidates(runtime: str) -> tuple[str, ...]:
    """Return the engines to try for the setting `runtime`, in order.

    Raises:
        SettingsError: It names no engine.
    """
    if runtime == "auto":
        return LADDER
    if runtime in NOT_YET:
        message = f"MCP_BRIDGE_RUNTIME: the backend {runtime!r} is not part of this version."
        raise SettingsError(message, remedy="Use auto, podman or docker.")
    if runtime in LADDER or os.sep in runtime:
        return (runtime,)
    message = (
        f"MCP_BRIDGE_RUNTIME: {runtime!r} is not auto, podman, docker or the path of an engine."
    )
    raise SettingsError(message)


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
    for engine in candidates(settings.runtime):
        async with AsyncExitStack() as stack:
            backend = await stack.enter_async_context(container_backend(engine, settings))
            probe = await _try(backend, settings)
            if probe.ok:
                logger.info("programs run in %s", probe.summary)
                stack.pop_all()
                return backend
            failures.append(probe)
            logger.info("%s cannot be used: %s", engine, probe.summary)
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
    for engine in candidates(settings.runtime):
        async with container_backend(engine, settings) as backend:
            probes.append(await _try(backend, settings))
    return probes


async def _try(backend: ContainerBackend, settings: Settings) -> Probe:
    """Settle the image and run something in it."""
    try:
        images = await backend.images()
        image = await choose_image(settings.image, images)
        await ensure_present(image, images, progress=logger.info)
    except BridgeError as error:
        return Probe(
            backend=backend.name,
            ok=False,
            summary=error.message,
            error_code=error.code,
            remedy=error.remedy,
        )
    backend.use_image(image)
    return await backend.probe()


def _reason(probe: Probe) -> str:
    return f"{probe.backend}: {probe.summary} {probe.remedy}".strip()
