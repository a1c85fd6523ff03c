"""The backends that commands run in, opened when a profile first needs one.

Owns the choice among container engines for `runtime = "container"`; a process runtime is
bubblewrap, and nothing stands in for it.
"""

from __future__ import annotations

import logging
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol

from bridge.errors import BridgeError, NoSandboxError
from bridge.sandbox.choose import ENGINES, candidates, container_backend
from bridge.sandbox.container.image import ensure_present
from bridge.sandbox.job import JobBackend
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.reaper import tidy_up
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile

logger = logging.getLogger(__name__)


class Runner(JobBackend, Protocol):
    """A backend for jobs, open."""

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Hold this while a command runs."""
        ...

    async def aclose(self) -> None:
        """Release what it holds open. Idempotent."""
        ...


async def open_process(settings: Settings, _profile: CommandProfile) -> Runner:
    """Return bubblewrap.

    Raises:
        SandboxError: It is not usable here; the remedy says what to do.
    """
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
    problems: list[str] = []
    names = [n for n in candidates(settings.runtime, settings.runtime_order) if _is_engine(n)]
    for name in names or ENGINES:
        async with AsyncExitStack() as stack:
            backend = container_backend(name, settings)
            stack.push_async_exit(backend)
            try:
                images = await backend.images()
                await ensure_present(profile.image, images, progress=logger.info)
                await tidy_up(backend)
            except BridgeError as error:
                problems.append(f"{name}: {error}")
                continue
            stack.pop_all()
            return backend
    message = f"No container engine can run {profile.image}. {' '.join(problems)}"
    raise NoSandboxError(message, remedy="`mcp-code-bridge doctor` tries them again.")


def _is_engine(name: str) -> bool:
    return name in ENGINES or "/" in name
