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
from contextlib import AsyncExitStack, asynccontextmanager

import anyio

from bridge.errors import CapacityError, HostDownError, HostKeyError, SandboxError, SettingsError
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.container.service import reap_services
from bridge.sandbox.layers import common
from bridge.sandbox.probe import failed_probe
from bridge.sandbox.ssh.host import TRY_AGAIN, Host
from bridge.settings import Settings, runtime_dir

logger = logging.getLogger(__name__)

MAX_TRIES = 3
"""Hosts tried for one sandbox: another one twice."""

WAIT_SECONDS = 30.0
"""Longest wait for a slot."""

LOOK_SECONDS = 1.0
"""Interval of looking for hosts that may be tried again."""

PATIENCE_SECONDS = 2.0
"""Longest wait for a host's next try when there is no other: the first after it was lost."""


def roomiest(hosts: Sequence[Host]) -> Host | None:
    """Return the usable host whose slots are the least taken; None if all are full or away."""
    free = [host for host in hosts if host.usable and host.used < host.spec.slots]
    return min(free, key=lambda host: host.used / host.spec.slots, default=None)


class SshBackend:
    """Runs sandboxes on `[[ssh.hosts]]`. Connects at first use; `tend` keeps the hosts connected.

    Args:
        settings: The settings in force.
        pull: Whether `probe` fetches an image that a host lacks.

    Attributes:
        hosts: All of them, in their order.
    """

    def __init__(self, settings: Settings, *, pull: bool = True) -> None:
        self.name = "ssh"
        self.hosts = tuple(Host(spec, settings) for spec in settings.ssh_hosts)
        self._runtime_dir = runtime_dir(settings)
        self._pull = pull
        self._changed = anyio.Event()

    async def __aenter__(self) -> SshBackend:
        return self

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
        good = [host for host in self.hosts if host.usable and host.probe is not None]
        if not good:
            return failed_probe(self.name, self._all_away())
        slots = sum(host.spec.slots for host in good)
        probes = [host.probe for host in good if host.probe is not None]
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"{len(good)} of {len(self.hosts)} SSH hosts, {slots} slots",
            isolation=common([one.isolation for one in probes if one.isolation is not None]),
            details={
                host.spec.name: f"{host.probe.summary} {host.probe.remedy}".strip()
                for host in self.hosts
                if host.probe is not None
            },
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
            what = "commands" if spec.command is not None else "packages and directories"
            message = f"MCP_BRIDGE_RUNTIME=ssh: hosts cannot have {what} of the bridge's machine."
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
        with anyio.move_on_after(WAIT_SECONDS):
            while (host := roomiest(hosts)) is None:
                if any(one.usable for one in hosts):
                    self._changed = anyio.Event()
                    with anyio.move_on_after(LOOK_SECONDS):
                        await self._changed.wait()
                    continue
                pause = min(one.retry_at for one in hosts) - anyio.current_time()
                if pause > PATIENCE_SECONDS or all(one.connected for one in hosts):
                    raise self._all_away()
                await anyio.sleep(max(0.0, pause))
                await self.connect()
            host.used += 1
            return host
        slots = sum(one.spec.slots for one in hosts if one.usable)
        if not slots:
            raise self._all_away()
        message = f"All {slots} slots of the SSH hosts stayed taken for {WAIT_SECONDS:g} s."
        raise CapacityError(message)

    def _release(self, host: Host) -> None:
        host.used -= 1
        self._changed.set()

    def _all_away(self) -> HostDownError:
        failed = [host.probe for host in self.hosts if host.probe and not host.probe.ok]
        message = " ".join(("No SSH host can be used.", *(probe.summary for probe in failed)))
        remedy = " ".join(dict.fromkeys(probe.remedy for probe in failed)) or TRY_AGAIN
        changed = {probe.error_code for probe in failed} == {HostKeyError.code}
        return (HostKeyError if changed else HostDownError)(message, remedy=remedy)

    async def connect(self, *, pull: bool = False) -> None:
        """Connect to the hosts that are not connected and may be tried again.

        Args:
            pull: Whether to fetch an image that one lacks.
        """

        async def connect(host: Host) -> None:
            await host.connect(pull=pull)
            self._changed.set()

        async with anyio.create_task_group() as tasks:
            for host in self.hosts:
                if not host.connected and host.retry_at <= anyio.current_time():
                    tasks.start_soon(connect, host)

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Do nothing: no engine is stopped as idle."""
        yield

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Connect again to hosts that were lost, until cancelled; see `Backend.tend`."""
        while True:
            await anyio.sleep(LOOK_SECONDS)
            await self.connect()

    async def reap(self) -> int:
        """Remove what dead bridges left, here and on the hosts; see `Backend.reap`."""
        await reap_services(self._runtime_dir)
        return sum([await host.reap() for host in self.hosts])
