"""The backends that commands run in, opened when a profile first needs one.

Owns the choice among container engines for `runtime = "container"`; a process runtime is
bubblewrap, and nothing stands in for it.
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol

from bridge.errors import (
    BridgeError,
    ImageMissingError,
    ImagePullError,
    LaunchError,
    NoSandboxError,
    SettingsError,
)
from bridge.sandbox.choose import candidates
from bridge.sandbox.job import JobBackend
from bridge.sandbox.reaper import tidy_up
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile
from bridge.settings.parsers import ENGINES

logger = logging.getLogger(__name__)


class Runner(JobBackend, Protocol):
    """A backend for jobs, open."""

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Hold this while a command runs."""
        ...

    async def aclose(self) -> None:
        """Release what it holds open. Idempotent."""
        ...


def insist_on_kernel(settings: Settings, profile: CommandProfile) -> None:
    """See that a kernel boundary that was asked for is not traded for namespaces.

    Raises:
        SettingsError: The profile's runtime cannot use MCP_BRIDGE_OCI_RUNTIME.
    """
    if settings.oci_runtime and profile.runtime == "process":
        message = (
            f"{profile.place}: {settings.place('oci_runtime')}: bubblewrap cannot use "
            f"{settings.oci_runtime}."
        )
        remedy = 'Set `runtime = "container"` and `image` in the profile.'
        raise SettingsError(message, remedy=remedy)


async def open_process(settings: Settings, profile: CommandProfile) -> Runner:
    """Return bubblewrap.

    Raises:
        SettingsError: A runtime was asked for that it cannot use.
        SandboxError: It is not usable here; the remedy says what to do.
    """
    # Imported here for the reason that `bridge.sandbox.choose` gives.
    from bridge.sandbox.process.backend import BubblewrapBackend

    insist_on_kernel(settings, profile)
    backend = BubblewrapBackend(environ=settings.environ)
    async with AsyncExitStack() as stack:
        stack.push_async_exit(backend)
        await tidy_up(backend)
        stack.pop_all()
    return backend


async def open_container(settings: Settings, profile: CommandProfile) -> Runner:
    """Return the first engine that has the profile's image, or can get it.

    Raises:
        SandboxError: None can.
    """
    # As above.
    from bridge.sandbox.container.image import ensure_present
    from bridge.sandbox.container.opening import container_backend

    problems: list[str] = []
    remedy = "`mcp-code-bridge doctor` tries them again."
    names = [n for n in candidates(settings.runtime, settings.runtime_order) if _is_engine(n)]
    for name in names or ENGINES:
        async with AsyncExitStack() as stack:
            backend = container_backend(name, settings)
            stack.push_async_exit(backend)
            try:
                images = await backend.images()
                await ensure_present(profile.image, images, progress=logger.info)
                await tidy_up(backend)
            except (ImageMissingError, ImagePullError) as error:
                problems.append(f"{name}: {error.message}")
                remedy = for_profile(error, profile).remedy
                continue
            except BridgeError as error:
                problems.append(f"{name}: {error}")
                continue
            stack.pop_all()
            return backend
    message = f"No container engine can run {profile.image}. {' '.join(problems)}"
    raise NoSandboxError(message, remedy=remedy)


def for_profile(error: BridgeError, profile: CommandProfile) -> BridgeError:
    """Return an error about an image with the remedy for a profile's; others as they are.

    What is said elsewhere is about the image of programs, which the bridge itself can build.
    """
    if profile.runtime != "container":
        return error
    remedy = f"correct {profile.place}.image."
    if isinstance(error, ImageMissingError | ImagePullError):
        remedy = f"Pull or build {profile.image} with the engine, or {remedy}"
    elif isinstance(error, LaunchError) and "image build" in error.remedy:
        remedy = f"Name executables that {profile.image} has, or {remedy}"
    else:
        return error
    return type(error)(error.message, remedy=remedy, host_detail=error.host_detail)


def _is_engine(name: str) -> bool:
    return name in ENGINES or "/" in name
