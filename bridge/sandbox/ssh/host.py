"""One host: whether it can be used, how much of it is taken, and its sandboxes.

Owns the connection in use, the container backend over it, and when a host that failed is tried
again. Which host a sandbox gets is `backend`'s.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
import anyio.to_thread

from bridge.errors import BridgeError, HostDownError, SandboxError, SandboxLostError
from bridge.sandbox.backend import ExitReport, LaunchSpec, Probe, Sandbox
from bridge.sandbox.container.backend import ContainerBackend, try_backend
from bridge.sandbox.limits import limits_for
from bridge.sandbox.ownership import reap_leftovers
from bridge.sandbox.probe import failed_probe
from bridge.sandbox.ssh.link import Link, open_link
from bridge.sandbox.ssh.script import CONNECTION_LABEL, remote_directory
from bridge.settings import Settings, runtime_dir
from bridge.settings.ssh import SshHost

logger = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS = 2.0
LAST_BACKOFF_SECONDS = 60.0
"""Until a host that failed is tried again: doubled with each failure in a row."""

TRY_AGAIN = "`mcp-code-bridge hosts` tries it again."


class Host:
    """One of the configured hosts. Connects when told to; `close` ends what it has there.

    Attributes:
        spec: As it is configured.
        used: Slots that are taken.
        probe: The result of the last connecting; None before the first.
        retry_at: When a failed one may be tried again, by anyio's clock.
        link: The connection, which may be lost by now.
    """

    def __init__(self, spec: SshHost, settings: Settings) -> None:
        self.spec = spec
        self.used = 0
        self.probe: Probe | None = None
        self.retry_at = 0.0
        self.link: Link | None = None
        self._settings = settings
        self._failures = 0
        self._backend: ContainerBackend | None = None
        self._earlier = ""
        self._connecting = anyio.Lock()

    @property
    def connected(self) -> bool:
        """Whether its connection lives."""
        return self._backend is not None and self.link is not None and self.link.alive

    @property
    def usable(self) -> bool:
        """Whether sandboxes can be started on it."""
        good = self.probe is not None and self.probe.ok
        return self.connected and good and self.link is not None and self.link.well

    async def connect(self, *, pull: bool) -> None:
        """Connect and probe it, unless it is connected; `probe` tells of the result."""
        async with self._connecting:
            if self.connected:
                return
            was_lost = self.link is not None
            await self._disconnect()
            try:
                if was_lost:
                    raise self.lost()
                self.probe = await self._connect(pull=pull)
            except BridgeError as error:
                self.probe = failed_probe(self.spec.name, error)
            if not self.probe.ok:
                await self._disconnect()
                seconds = min(LAST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**self._failures)
                self._failures += 1
                self.retry_at = anyio.current_time() + seconds
                logger.warning("host %s is left out: %s", self.spec.name, self.probe.summary)

    async def _connect(self, *, pull: bool) -> Probe:
        settings = self._settings
        opening = partial(
            open_link,
            self.spec,
            runtime_dir=runtime_dir(settings),
            environ=settings.environ,
            oci_runtime=settings.oci_runtime,
            earlier=self._earlier,
        )
        # Not abandoned: nobody else would end the process.
        link = self.link = await anyio.to_thread.run_sync(opening)
        self._earlier = link.connection
        variable = "DOCKER_HOST" if self.spec.engine == "docker" else "CONTAINER_HOST"
        backend = self._backend = ContainerBackend(
            self.spec.engine,
            image=settings.image,
            runtime_dir=link.directory / "run",
            environ={variable: f"unix://{link.socket}", "HOME": str(link.directory)},
            user=settings.container_user,
            oci_runtime=settings.oci_runtime or None,
            limits=limits_for(settings),
            elsewhere={"program": f"{remote_directory(link.connection)}/seccomp.json"},
            labels={CONNECTION_LABEL: link.connection},
        )
        await reap_leftovers(backend)
        return await try_backend(backend, settings, pull=pull)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        """Start a sandbox on it; see `Backend.launch`."""
        if self._backend is None:
            raise self.lost()
        async with self._backend.launch(spec) as sandbox:
            self._failures = 0
            yield cast("Sandbox", _HostSandbox(sandbox, self.spec.name))

    def lost(self) -> HostDownError:
        """Return the error for a connection that went away."""
        message = f"The connection to {self.spec.name} was lost."
        return HostDownError(message, remedy=TRY_AGAIN)

    async def count(self) -> int:
        """Return how many sandboxes are on it, those of other bridges included."""
        return await self._backend.count() if self._backend is not None else 0

    async def reap(self) -> int:
        """Remove what dead bridges left on it; return how many sandboxes."""
        return await self._backend.reap() if self._backend is not None and self.usable else 0

    async def close(self) -> None:
        """Disconnect; all that runs on it ends."""
        async with self._connecting:
            await self._disconnect()

    async def _disconnect(self) -> None:
        with anyio.CancelScope(shield=True):
            backend, self._backend = self._backend, None
            link, self.link = self.link, None
            if backend is not None:
                await backend.aclose()
            if link is not None:
                await anyio.to_thread.run_sync(link.close)


class _HostSandbox:
    """A container on a host: what breaks with the connection is a lost sandbox."""

    def __init__(self, sandbox: Sandbox, host: str) -> None:
        self._sandbox, self._host = sandbox, host

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def kill(self) -> None:
        try:
            await self._sandbox.kill()
        except SandboxError as error:
            raise SandboxLostError(f"The host {self._host} does not answer any more.") from error

    async def wait(self) -> ExitReport:
        try:
            return await self._sandbox.wait()
        except SandboxError as error:
            raise SandboxLostError(f"The host {self._host} does not answer any more.") from error
