"""Sandboxes as containers on other machines, over OpenSSH.

Owns placement: a sandbox gets the host with the most room, another one if that is lost before the
program began, and waits a bounded time while every slot is taken. A host that fails is left out and
comes back.

Enforces: the layers that `container` enforces, seen from inside on each host before it is used.
Does not: give a sandbox anything of the bridge's machine. Directories and packages are refused.

Verified: `tests/sandbox/ssh` and `tests/contract`, on real SSH servers and engines.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any, cast

import anyio
import anyio.to_thread

from bridge.errors import (
    BridgeError,
    CapacityError,
    HostDownError,
    HostKeyError,
    SandboxError,
    SandboxLostError,
    SettingsError,
)
from bridge.sandbox.backend import ExitReport, LaunchSpec, Probe, Sandbox
from bridge.sandbox.container.backend import ContainerBackend, try_backend
from bridge.sandbox.container.service import reap_services
from bridge.sandbox.layers import common
from bridge.sandbox.limits import limits_for
from bridge.sandbox.ownership import reap_leftovers
from bridge.sandbox.probe import failed_probe
from bridge.sandbox.ssh.link import CONNECTION_LABEL, REMOTE, Link, open_link
from bridge.settings import Settings, runtime_dir
from bridge.settings.ssh import SshHost

logger = logging.getLogger(__name__)

MAX_TRIES = 3
"""Hosts tried for one sandbox: another one twice."""

WAIT_SECONDS = 30.0
"""Longest wait for a slot."""

LOOK_SECONDS = 1.0
"""Interval of looking for hosts that may be tried again."""

FIRST_BACKOFF_SECONDS = 2.0
LAST_BACKOFF_SECONDS = 60.0
"""Until a host that failed is tried again, doubled each time. The first is waited for."""

_TRY_AGAIN = "`mcp-code-bridge hosts` tries it again."


class Host:
    """One of the configured hosts. Connects when told to; `close` ends what it has there.

    Attributes:
        spec: As it is configured.
        used: Slots that are taken.
        probe: The result of the last connecting; None before the first.
        retry_at: When a failed one may be tried again, by anyio's clock.
        link: The connection, which may be lost by now.
        backend: The container backend over it.
    """

    def __init__(self, spec: SshHost, settings: Settings) -> None:
        self.spec, self.used, self.retry_at = spec, 0, 0.0
        self.probe: Probe | None = None
        self.link: Link | None = None
        self.backend: ContainerBackend | None = None
        self._settings, self._failures, self._earlier = settings, 0, ""
        self._connecting = anyio.Lock()

    @property
    def connected(self) -> bool:
        """Whether its connection lives."""
        return self.link is not None and self.link.alive

    @property
    def usable(self) -> bool:
        """Whether sandboxes can be started on it."""
        link, probe = self.link, self.probe
        return link is not None and link.alive and link.well and probe is not None and probe.ok

    async def connect(self, *, pull: bool) -> None:
        """Connect and probe it, unless it is connected; `probe` tells of the result."""
        async with self._connecting:
            if self.connected:
                return
            try:
                if self.link is not None:
                    raise self.lost()
                self.probe = await self._connect(pull=pull)
            except BridgeError as error:
                self.probe = failed_probe(self.spec.name, error)
            except BaseException:
                # Cancelled before it was examined: it would stay connected, and never be used.
                await self._disconnect()
                raise
            if not self.probe.ok:
                await self._disconnect()
                seconds = min(LAST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2**self._failures)
                self._failures += 1
                self.retry_at = anyio.current_time() + seconds
                logger.warning("host %s is left out: %s", self.spec.name, self.probe.summary)

    async def _connect(self, *, pull: bool) -> Probe:
        settings = self._settings
        # Not abandoned: nobody else would end the process.
        link = await anyio.to_thread.run_sync(open_link, self.spec, settings, self._earlier)
        self.link, self._earlier = link, link.connection
        variable = "DOCKER_HOST" if self.spec.engine == "docker" else "CONTAINER_HOST"
        backend = self.backend = ContainerBackend(
            self.spec.engine,
            image=settings.image,
            runtime_dir=link.directory / "run",
            environ={variable: f"unix://{link.socket}", "HOME": str(link.directory)},
            user=settings.container_user,
            oci_runtime=settings.oci_runtime or None,
            limits=limits_for(settings),
            elsewhere={"program": f"{REMOTE}{link.connection}/seccomp.json"},
            labels={CONNECTION_LABEL: link.connection},
        )
        await reap_leftovers(backend)
        return await try_backend(backend, settings, pull=pull)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        """Start a sandbox on it; see `Backend.launch`."""
        if self.backend is None:
            raise self.lost()
        async with self.backend.launch(spec) as sandbox:
            self._failures = 0
            yield cast("Sandbox", _HostSandbox(sandbox, self.spec.name))

    def lost(self) -> HostDownError:
        """Return the error for a connection that went away."""
        return HostDownError(f"The connection to {self.spec.name} was lost.", remedy=_TRY_AGAIN)

    async def close(self) -> None:
        """Disconnect; all that runs on it ends."""
        # Also where the bridge is cancelled.
        with anyio.CancelScope(shield=True):
            async with self._connecting:
                await self._disconnect()

    async def _disconnect(self) -> None:
        with anyio.CancelScope(shield=True):
            backend, link, self.backend, self.link = self.backend, self.link, None, None
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
        await self._answered(self._sandbox.kill())

    async def wait(self) -> ExitReport:
        report: ExitReport = await self._answered(self._sandbox.wait())
        return report

    async def _answered(self, answer: Awaitable[Any]) -> Any:
        try:
            return await answer
        except SandboxError as error:
            raise SandboxLostError(f"The host {self._host} does not answer any more.") from error


class SshBackend(AbstractAsyncContextManager["SshBackend", None]):
    """Runs sandboxes on `[[ssh.hosts]]`. Connects at first use; `tend` keeps the hosts connected.

    Args:
        settings: The settings in force.
        pull: Whether `probe` fetches an image that a host lacks.
    """

    def __init__(self, settings: Settings, *, pull: bool = True) -> None:
        self.name = "ssh"
        self.hosts = tuple(Host(spec, settings) for spec in settings.ssh_hosts)
        self._runtime_dir = runtime_dir(settings)
        self._pull = pull
        self._changed = anyio.Event()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Disconnect from every host; see `Backend.aclose`."""
        async with anyio.create_task_group() as tasks:
            for host in self.hosts:
                tasks.start_soon(host.close)

    async def probe(self) -> Probe:
        """Try every host; it works if one does. See `Backend.probe`."""
        await self.connect(pull=self._pull)
        tried = [(host, host.probe) for host in self.hosts if host.probe is not None]
        good = [(host, probe) for host, probe in tried if host.usable]
        if not good:
            return failed_probe(self.name, self._all_away())
        slots = sum(host.spec.slots for host, _ in good)
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"{len(good)} of {len(self.hosts)} SSH hosts, {slots} slots",
            isolation=replace(common([p.isolation for _, p in good if p.isolation]), backend="ssh"),
            details={h.spec.name: f"{p.summary} {p.remedy}".strip() for h, p in tried},
        )

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        """Start a sandbox on one of the hosts; see `Backend.launch`.

        Raises:
            SettingsError: It is to have something of this machine.
            CapacityError: All slots stayed taken.
            HostDownError: No host can be used.
        """
        if spec.binds or spec.command is not None:
            message = "SSH hosts cannot have directories, packages or commands of this machine."
            remedy = "Put packages into the hosts' image; run the rest with another runtime."
            raise SettingsError(message, remedy=remedy)
        async with AsyncExitStack() as stack:
            yield await self._enter(stack, spec)

    async def _enter(self, stack: AsyncExitStack, spec: LaunchSpec) -> Sandbox:
        left = list(self.hosts)
        while True:
            host = await self._claim(left)
            try:
                async with AsyncExitStack() as attempt:
                    attempt.callback(self._release, host)
                    sandbox = await attempt.enter_async_context(host.launch(spec))
                    stack.push_async_exit(attempt.pop_all())
                    return sandbox
            except SandboxError as error:
                left.remove(host)
                if not left or len(self.hosts) - len(left) == MAX_TRIES:
                    raise error if host.connected else host.lost() from error
                logger.warning("trying another host than %s after: %s", host.spec.name, error)

    async def _claim(self, hosts: Sequence[Host]) -> Host:
        """Take a slot of the usable host whose slots are the least taken."""
        with anyio.move_on_after(WAIT_SECONDS):
            while True:
                usable = [host for host in hosts if host.usable]
                free = [host for host in usable if host.used < host.spec.slots]
                if free:
                    chosen = min(free, key=lambda host: host.used / host.spec.slots)
                    chosen.used += 1
                    return chosen
                if usable:
                    with anyio.move_on_after(LOOK_SECONDS):
                        await self._changed.wait()
                    continue
                away = [host.retry_at for host in hosts if not host.connected]
                pause = min(away, default=inf) - anyio.current_time()
                if pause > FIRST_BACKOFF_SECONDS:
                    raise self._all_away()
                await anyio.sleep(max(0.0, pause))
                await self.connect()
        if slots := sum(host.spec.slots for host in hosts if host.usable):
            raise CapacityError(f"All {slots} slots of SSH hosts stayed taken {WAIT_SECONDS:g} s.")
        raise self._all_away()

    def _release(self, host: Host) -> None:
        host.used -= 1
        self._changed.set()
        self._changed = anyio.Event()

    def _all_away(self) -> HostDownError:
        failed = [host.probe for host in self.hosts if host.probe and not host.probe.ok]
        message = " ".join(("No SSH host can be used.", *(probe.summary for probe in failed)))
        remedy = " ".join(dict.fromkeys(probe.remedy for probe in failed)) or _TRY_AGAIN
        changed = {probe.error_code for probe in failed} == {HostKeyError.code}
        return (HostKeyError if changed else HostDownError)(message, remedy=remedy)

    async def connect(self, *, pull: bool = False) -> None:
        """Connect to hosts that may be tried again; fetch images that they lack, if `pull`."""
        async with anyio.create_task_group() as tasks:
            for host in self.hosts:
                if not host.connected and host.retry_at <= anyio.current_time():
                    tasks.start_soon(partial(host.connect, pull=pull))

    def in_use(self) -> AbstractAsyncContextManager[None]:
        """Return what does nothing: no engine is stopped as idle."""
        return nullcontext()

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Connect again to hosts that were lost, until cancelled; see `Backend.tend`."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            await self.connect()

    async def reap(self) -> int:
        """Remove what dead bridges left, here and on the hosts; see `Backend.reap`."""
        await reap_services(self._runtime_dir)
        return sum([await one.backend.reap() for one in self.hosts if one.usable and one.backend])
