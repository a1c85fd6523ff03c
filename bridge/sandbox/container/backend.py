"""docker and podman: sandboxes as containers.

It checks a named OCI runtime after a start. A layer that an engine declines is not requested again
and is reported as missing. A missing mandatory layer ends the launch.
"""

from __future__ import annotations

import logging
import math
import resource
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio.to_thread

from bridge.errors import BridgeError, EngineDownError, LaunchError, SandboxError, SettingsError
from bridge.model import Limits
from bridge.sandbox.backend import Backend, LaunchSpec, Probe, Sandbox, limits_for
from bridge.sandbox.container import faults, hardening
from bridge.sandbox.container.api import EngineApi, ping_engine, runtime_name
from bridge.sandbox.container.command_runner import SystemRunner
from bridge.sandbox.container.connection import Connector, EngineConnection, reap_services
from bridge.sandbox.container.image import ImageEngine, ensure_present
from bridge.sandbox.container.image import choose as choose_image
from bridge.sandbox.container.machine import MachineContext
from bridge.sandbox.container.sandbox import (
    ContainerSandbox,
    examined_isolation,
    look_inside,
    remove_with_retries,
    run_container,
)
from bridge.sandbox.layers import is_gvisor, this_kernel
from bridge.sandbox.ownership import IDENTITY_LABEL, OWNER_LABEL, Owner, current_owner, is_dead
from bridge.sandbox.probe import failed_probe, probe_spec, run_probe
from bridge.settings import Settings, runtime_dir

logger = logging.getLogger(__name__)


class ContainerBackend(Backend):
    """Runs sandboxes as containers of one engine. The first use connects.

    Args:
        engine: "podman", "docker" or the path of either's executable.
        image: The runtime image's name; may be empty until it is chosen.
        user: "uid:gid" inside containers.
        oci_runtime: The required OCI runtime; None allows any.
    """

    def __init__(
        self,
        engine: str,
        *,
        image: str,
        runtime_dir: Path,
        environ: Mapping[str, str],
        user: str = "65534:65534",
        oci_runtime: str | None = None,
        machine: MachineContext | None = None,
        run: SystemRunner | None = None,
        limits: Limits | None = None,
    ) -> None:
        self._connector = Connector(
            engine=engine,
            runtime_dir=runtime_dir,
            environ=environ,
            oci_runtime=oci_runtime or None,
            context=machine,
            run=run or SystemRunner(env=environ),
        )
        self.image = image
        self._user = user
        self._limits = limits or Limits()
        self._owner = current_owner()
        self._unremoved: set[str] = set()
        self.ended = ""  # The label of containers to reap; empty for those of dead bridges.

    @property
    def name(self) -> str:
        return self._connector.name

    async def aclose(self) -> None:
        with anyio.CancelScope(shield=True):
            connection = self._connector.connection
            if connection is not None and self._unremoved:
                await self._remove_leftovers(connection.api)
            await self._connector.aclose()

    async def images(self) -> ImageEngine:
        connection = await self._connector.ensure_connection()
        option = "--host" if connection.facts.kind == "docker" else "--url"
        command = [self._connector.engine, option, connection.endpoint.url]
        return ImageEngine(connection.api, command=command, run=self._connector.run)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        """Start a container; try again without a declined layer, or after an engine's restart."""
        async with AsyncExitStack() as stack:
            sandbox: Sandbox | None = None
            while sandbox is None:
                connection = await self._connector.ensure_connection()
                try:
                    sandbox = await stack.enter_async_context(self._launch_on(connection, spec))
                except LaunchError as error:
                    # Each layer is declined once at most.
                    if not connection.extra_layers.drop_declined(error, proven=connection.proven):
                        raise
                    logger.info("trying again without a layer, after: %s", error.message)
                except EngineDownError:
                    # The connection worked before, so the engine may have restarted.
                    if not connection.proven:
                        raise
                    await self._connector.retire(connection)
            yield sandbox

    async def probe(self) -> Probe:
        return await run_probe(
            self.name,
            self.launch,
            self._success,
            self._limits,
            no_answer_remedy="Rebuild the image with `mcp-code-bridge image build`.",
            timeout_error=partial(faults.down, self.name),
        )

    def in_use(self) -> AbstractAsyncContextManager[None]:
        machine = self._connector.machine
        return machine.using() if machine is not None else nullcontext()

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Stop a podman machine that this bridge started when it is idle."""
        machine = self._connector.machine
        if machine is not None:
            machine.before_stop = drain
            await machine.stop_when_idle()

    async def reap(self) -> int:
        await anyio.to_thread.run_sync(reap_services, self._connector.runtime_dir)
        connection = await self._connector.ensure_connection()
        await self._remove_leftovers(connection.api)
        reaped = 0
        for container, labels in await connection.api.list_labelled(self.ended or OWNER_LABEL):
            owner = Owner.parse(labels.get(IDENTITY_LABEL, ""))
            if owner is None or (owner == self._owner and not self.ended):
                continue
            dead = partial(is_dead, owner, judge=self._owner)
            if not self.ended and not await anyio.to_thread.run_sync(dead):
                continue
            logger.info("removing the leftover container %s", container[:12])
            with suppress(SandboxError):  # podman would wait 10 s for its end.
                await connection.api.kill(container)
            if await remove_with_retries(connection.api, container):
                reaped += 1
            else:
                self._unremoved.add(container)
        return reaped

    @asynccontextmanager
    async def _launch_on(
        self, connection: EngineConnection, spec: LaunchSpec
    ) -> AsyncIterator[ContainerSandbox]:
        command = spec.command
        if not self.image and command is None:
            raise SandboxError("No runtime image is chosen.", code="image_missing")
        await self._remove_leftovers(connection.api)
        if spec.binds or command is not None:
            await self.require_shared_files(command.image if command is not None else "")
        facts, asked = connection.facts, connection.extra_layers
        placement = self._placement(connection)
        if spec.binds:
            placement = await anyio.to_thread.run_sync(
                hardening.with_host_paths, placement, spec, facts, asked.seccomp
            )
        config = hardening.container_config(spec, facts, placement)
        isolation = hardening.isolation(
            spec,
            facts,
            placement,
            oci_runtime=connection.oci_runtime,
            lacking=asked.lacking,
            host_kernel=connection.host_kernel,
        )
        if command is not None:
            isolation = await examined_isolation(
                connection.api, config, isolation, connection.examinations, self._unremoved.add
            )
        async with run_container(
            connection.api,
            hardening.container_name(spec.run_id, secrets.token_hex(4)),
            config,
            isolation=isolation,
            # podman's monitor misses the event if the kernel kills the first process.
            reports_oom="memory" in facts.controllers and facts.kind == "docker",
            not_removed=self._unremoved.add,
            # Commands may end before they have read all of their input.
            separate_streams=command is not None and facts.kind == "podman",
            drained=connection.endpoint.remote,
        ) as sandbox:
            await self._verify_runtime(connection, sandbox)
            if command is not None:
                sandbox.stream.on_error(command.on_error)
            yield sandbox

    def _placement(self, connection: EngineConnection) -> hardening.Placement:
        facts, local, asked = connection.facts, connection.local, connection.extra_layers
        return hardening.Placement(
            image=self.image,
            user=self._user,
            oci_runtime=connection.oci_runtime if facts.kind == "docker" else "",
            labels=self._owner.labels(),
            seccomp=asked.seccomp.get("program", ""),
            user_namespace=asked.user_namespace,
            tasks_per_process=hardening.GVISOR_TASKS if is_gvisor(connection.oci_runtime) else 1,
            local=local,
            max_open_files=_hard_limit(resource.RLIMIT_NOFILE) if local else math.inf,
            max_processes=_hard_limit(resource.RLIMIT_NPROC) if local else math.inf,
        )

    async def require_shared_files(self, image: str = "") -> None:
        """Refuse an engine on another machine, where host paths are other files."""
        connection = await self._connector.ensure_connection()
        if connection.shares_files is None:
            placement = replace(self._placement(connection), image=image or self.image)
            seen = await look_inside(
                connection.api,
                hardening.container_config(probe_spec(self._limits), connection.facts, placement),
                self._unremoved.add,
            )
            here = this_kernel().boot_id
            connection.shares_files = (seen or {}).get("boot_id", here) == here
        if not connection.shares_files:
            message = f"{self.name} ({connection.endpoint.origin}) runs on another machine, which"
            message += " does not have this machine's [directories], packages and commands."
            remedy = "Put packages into its image, or run with an engine of this machine"
            remedy += " (MCP_BRIDGE_RUNTIME=bubblewrap)."
            raise SettingsError(message, remedy=remedy)

    async def problem(self) -> str:
        if self._connector.machine is not None:
            # An idle machine is stopped, and a run starts it.
            return ""
        try:
            connection = await self._connector.ensure_connection()
        except BridgeError as error:
            return str(error)
        try:
            await anyio.to_thread.run_sync(ping_engine, connection.endpoint, abandon_on_cancel=True)
        except (OSError, ValueError):
            if connection.service is not None and connection.endpoint.remote:
                return str(connection.service.failure())
            return f"{self.name} does not answer at {connection.endpoint.url}."
        return ""

    async def _verify_runtime(
        self, connection: EngineConnection, sandbox: ContainerSandbox
    ) -> None:
        named = self._connector.oci_runtime
        if connection.proven and named is None:
            return
        real = await connection.api.oci_runtime_of(sandbox.id)
        if named is not None and real != runtime_name(named):
            message = f"{self.name} started {real or 'an unknown OCI runtime'}, not {named}."
            remedy = "Start the engine with the named OCI runtime, or unset MCP_BRIDGE_OCI_RUNTIME."
            raise LaunchError(message, remedy=remedy, code="oci_runtime_broken")
        connection.proven = True

    async def _remove_leftovers(self, api: EngineApi) -> None:
        for name in sorted(self._unremoved):
            self._unremoved.discard(name)
            if not await remove_with_retries(api, name):
                self._unremoved.add(name)
                break  # the next launch tries again

    def _success(self, sandbox: Sandbox) -> Probe:
        connection = self._connector.connection
        assert connection is not None  # a sandbox runs on it
        facts = connection.facts
        mode = "rootless" if facts.rootless else "rootful"
        runtime = sandbox.isolation.oci_runtime
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"{facts.kind} {facts.version}, {mode}, {runtime}",
            isolation=sandbox.isolation,
            details={
                "socket": connection.endpoint.url,
                "found at": connection.endpoint.origin,
                "version": facts.version,
                "mode": mode,
                "OCI runtime": runtime,
                "cgroups": f"v{facts.cgroup_version}",
                "image": self.image,
            },
        )


def _hard_limit(which: int) -> float:
    hard = resource.getrlimit(which)[1]
    return math.inf if hard == resource.RLIM_INFINITY else hard


progress = logging.getLogger(f"{__name__}.progress")  # Slow steps, which commands show.


def container_backend(engine: str, settings: Settings) -> ContainerBackend:
    machine = None
    # On Linux podman needs no machine unless it is named. The check would cost a process a run.
    remote = sys.platform != "linux" or "CONTAINER_CONNECTION" in settings.environ
    if remote and engine != "docker":
        machine = MachineContext(
            run=SystemRunner(env=settings.environ),
            env=settings.environ,
            podman=engine,
            idle_timeout=settings.runtime_idle_timeout or math.inf,
        )
    return ContainerBackend(
        engine,
        image=settings.image,
        runtime_dir=runtime_dir(settings),
        environ=settings.environ,
        user=settings.container_user,
        oci_runtime=settings.oci_runtime or None,
        machine=machine,
        limits=limits_for(settings),
    )


async def try_backend(backend: ContainerBackend, settings: Settings, *, pull: bool = True) -> Probe:
    """Choose the image, pull a missing one if `pull`, and probe it."""
    try:
        images = await backend.images()
        image = await choose_image(settings.image, images)
        say = progress.info if pull else None
        await ensure_present(image, images, progress=say, place=settings.place("image"))
    except BridgeError as error:
        return failed_probe(backend.name, error)
    except Exception as error:
        # The server speaks HTTP, but is no known engine.
        logger.exception("choosing the image of %s failed unexpectedly", backend.name)
        message = f"The server at {backend.name}'s socket is no such engine: {error!r}."
        remedy = "Check the address in DOCKER_HOST or CONTAINER_HOST."
        return failed_probe(backend.name, EngineDownError(message, remedy=remedy))
    backend.image = image
    probe = await backend.probe()
    if probe.ok and settings.offered_directories:
        try:
            await backend.require_shared_files()
        except BridgeError as error:
            return failed_probe(backend.name, error)
    if settings.packages is not None:
        unused = "MCP_BRIDGE_PACKAGES is not used: programs have the packages of the engine's image"
        probe = replace(probe, details={**probe.details, "packages": unused})
    return probe
