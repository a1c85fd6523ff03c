"""A container engine's backend, from the settings: opened, and given an image it can run.

Owns how a `ContainerBackend` is put together, and the settling of its image. Whether an engine is
tried at all, and when, is `bridge.sandbox.choose`'s. All that needs the engines' client libraries
is imported from here on.
"""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from functools import partial

from bridge.errors import BridgeError, EngineDownError
from bridge.sandbox.backend import Probe
from bridge.sandbox.container.backend import ContainerBackend
from bridge.sandbox.container.image import choose as choose_image
from bridge.sandbox.container.image import ensure_present
from bridge.sandbox.container.machine import MachineContext, ensure_machine
from bridge.sandbox.container.machine_command import SystemRunner
from bridge.sandbox.limits import limits_for
from bridge.sandbox.probing import failed_probe
from bridge.settings import Settings, runtime_dir

logger = logging.getLogger(__name__)

_STRANGE_REMEDY = "See what DOCKER_HOST or CONTAINER_HOST leads to."

NO_PACKAGES = "MCP_BRIDGE_PACKAGES is not used: programs find the packages of the engine's image"


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


async def try_backend(backend: ContainerBackend, settings: Settings) -> Probe:
    """Settle the image, and run something in it."""
    try:
        images = await backend.images()
        image = await choose_image(settings.image, images)
        place = settings.place("image")
        await ensure_present(image, images, progress=logger.info, place=place)
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
