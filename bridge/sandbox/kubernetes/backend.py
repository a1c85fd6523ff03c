"""Kubernetes: sandboxes as plain pods, each used once.

Owns launching, probing and removing pods. The connection is in `cluster`, a pod's manifest in
`pod`, its stream in `stream`, its end in `sandbox`.

Enforces: a pod whose first step does not report everything in force runs nothing. A pod that is
lost before its program began is replaced, twice at most; later it is an error.
"""

from __future__ import annotations

import base64
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from types import TracebackType

import anyio
import anyio.lowlevel
import anyio.to_thread

from bridge.errors import (
    BridgeError,
    ChannelClosedError,
    LaunchError,
    SandboxError,
    SandboxLostError,
)
from bridge.model import Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.binds import reject_binds
from bridge.sandbox.kubernetes import faults, pod
from bridge.sandbox.kubernetes.cluster import Cluster, Document, find_config
from bridge.sandbox.kubernetes.sandbox import PodSandbox
from bridge.sandbox.kubernetes.stream import BrokenStreamError, PodStream
from bridge.sandbox.limits import limits_for
from bridge.sandbox.probe import failed_probe, run_probe
from bridge.sandbox.process import libseccomp
from bridge.settings import Settings
from bridge.settings.kubernetes import Kubernetes

logger = logging.getLogger(__name__)

DEFAULT_IMAGE = "python:3.13-slim"

MAX_ATTEMPTS = 3
"""Pods tried for one launch: a lost one is replaced twice."""

CONFINE_SECONDS = 20.0
"""From attaching until the first step has reported: milliseconds, once the node is not busy."""

DELETE_SECONDS = 10.0
"""For the deletion of a pod; one that takes longer is left to the sweep."""

MAX_UNREMOVED = 1000
"""Names kept of pods that could not be deleted; beyond it the sweep removes them."""


class KubernetesBackend:
    """Runs sandboxes as pods. Enter it before use; it connects at first use.

    Args:
        settings: The `kubernetes` table.
        image: The pods' image.
        user: "uid:gid" inside.
        environ: The bridge's environment, for KUBECONFIG.
        limits: The probe's limits.
    """

    def __init__(
        self,
        settings: Kubernetes,
        *,
        image: str = DEFAULT_IMAGE,
        user: str = "65534:65534",
        environ: Mapping[str, str],
        limits: Limits | None = None,
    ) -> None:
        self._settings = settings
        self._image = image
        self._user = user
        self._environ = environ
        self._limits = limits or Limits()
        self._owner = pod.Owner(name=f"bridge-{secrets.token_hex(6)}")
        self._cluster: Cluster | None = None
        self._filters: tuple[str, ...] = ()
        self._connecting = anyio.Lock()
        self._unremoved: set[str] = set()

    def __repr__(self) -> str:
        where = self._cluster.server if self._cluster else "not connected"
        return f"<KubernetesBackend {where} unremoved={len(self._unremoved)}>"

    @property
    def name(self) -> str:
        """ "kubernetes"."""
        return pod.NAME

    async def __aenter__(self) -> KubernetesBackend:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Delete what is left, and close the connection. Idempotent."""
        with anyio.CancelScope(shield=True):
            cluster, self._cluster = self._cluster, None
            if cluster is not None:
                for name in list(self._unremoved):
                    await self._delete(cluster, name)
                await cluster.aclose()

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        """Start a pod, or take one that waits; see `Backend.launch`."""
        reject_binds(self.name, spec.binds)
        if spec.command is not None:
            raise LaunchError("Commands use this machine's files, so they cannot run in pods.")
        async with AsyncExitStack() as stack:
            yield await self._enter(stack, spec)

    async def probe(self) -> Probe:
        """Run something in a pod; see `Backend.probe`."""
        try:
            await self._connected()
        except BridgeError as error:
            return failed_probe(self.name, error)
        return await run_probe(
            self.name,
            self.launch,
            self._success,
            self._limits,
            no_answer_remedy="Name an image with Python 3.9 or later in [kubernetes].",
        )

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Do nothing: there is no machine that could stop; see `Backend.in_use`."""
        yield

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Do nothing yet; see `Backend.tend`."""
        await anyio.lowlevel.checkpoint()

    async def reap(self) -> int:
        """Remove what dead bridges left; see `Backend.reap`."""
        await anyio.lowlevel.checkpoint()
        return 0

    async def _enter(self, stack: AsyncExitStack, spec: LaunchSpec) -> Sandbox:
        """Start a pod; replace one that is lost before its program began."""
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return await stack.enter_async_context(self._launch(spec))
            except (SandboxLostError, faults.BusyError) as error:
                logger.warning("another pod is tried, after: %s", error.message)
        return await stack.enter_async_context(self._launch(spec))

    @asynccontextmanager
    async def _launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        cluster = await self._connected()
        for name in list(self._unremoved):
            await self._delete(cluster, name)
        name = pod.pod_name(spec.run_id, secrets.token_hex(4))
        try:
            made = await self._make(cluster, name, spec)
            async with cluster.attach(name) as socket:
                stream = PodStream(socket)
                sandbox = self._sandbox(cluster, made, spec, stream)
                await self._confine(stream, spec)
                try:
                    yield sandbox
                finally:
                    # The pod first: what is in it is not told that its channel ends.
                    with anyio.CancelScope(shield=True):
                        await sandbox.kill()
        finally:
            # By name: it is known even when the answer to the creation is not.
            await self._delete(cluster, name)

    async def _make(self, cluster: Cluster, name: str, spec: LaunchSpec) -> Document:
        """Create a pod and return it once it runs."""
        document = pod.manifest(
            name,
            spec.limits,
            self._settings,
            image=self._image,
            user=self._user,
            owner=self._owner,
            labels={pod.STATE_LABEL: "used", pod.SHAPE_LABEL: pod.shape(spec.limits)},
        )
        made = await cluster.create("pods", document)
        return await self._running(cluster, made)

    async def _running(self, cluster: Cluster, seen: Document) -> Document:
        """Return a pod once it runs; bounded by the time that a run may wait for room.

        Raises:
            SandboxError: It cannot start, or did not in time.
        """
        name = seen["metadata"]["name"]
        with anyio.move_on_after(self._settings.room_seconds):
            while True:
                version = seen["metadata"]["resourceVersion"]
                watched = cluster.watch("pods", version, fieldSelector=f"metadata.name={name}")
                # Closed here: left to the collector it would keep its connection until then.
                async with aclosing(watched) as events:
                    async for event in events:
                        seen = event["object"]
                        if event["type"] == "DELETED":
                            raise SandboxLostError(faults.REMOVED)
                        if faults.is_running(seen):
                            return seen
                        problem = faults.start_problem(seen)
                        if problem is not None:
                            raise problem
        raise faults.start_problem(seen, patient=False) or LaunchError("The pod did not start.")

    def _sandbox(
        self, cluster: Cluster, made: Document, spec: LaunchSpec, stream: PodStream
    ) -> PodSandbox:
        name, uid = made["metadata"]["name"], made["metadata"]["uid"]

        async def find() -> Document | None:
            found = await cluster.get(f"pods/{name}")
            if found is None or found["metadata"]["uid"] != uid or faults.restarts(found):
                return None
            return found

        return PodSandbox(
            name,
            stream,
            isolation=pod.isolation(spec, self._settings, self._user),
            find=find,
            delete=lambda: self._delete(cluster, name),
        )

    async def _confine(self, stream: PodStream, spec: LaunchSpec) -> None:
        """Send the first step, and wait until it says that all is in force.

        Raises:
            SandboxLostError: The pod is gone, or silent: nothing of the program ran.
            LaunchError: It cannot put something in force, or lacks the program.
        """
        said = b""
        with anyio.move_on_after(CONFINE_SECONDS):
            try:
                await stream.send(pod.first_step(spec, self._filters))
                while len(said) < len(pod.CONFINED) and (data := await stream.receive()):
                    said += data
                if said.startswith(pod.CONFINED):
                    stream.unread(said.removeprefix(pod.CONFINED))
                    return
                while data := await stream.receive():
                    said += data
            except (ChannelClosedError, BrokenStreamError) as error:
                raise SandboxLostError(f"The pod was lost as it started: {error}") from error
        told = (said.decode("utf-8", "replace").strip() or stream.stderr.strip())[:500]
        if not told:
            raise SandboxLostError("The pod did not answer its first message.")
        raise LaunchError(f"The pod's first step failed: {told}.")

    async def _delete(self, cluster: Cluster, name: str) -> None:
        """Delete a pod, even when cancelled; remember it if that fails."""
        self._unremoved.discard(name)
        refusal = f"no answer within {DELETE_SECONDS:g} s"
        with anyio.CancelScope(shield=True), anyio.move_on_after(DELETE_SECONDS):
            try:
                await cluster.delete(f"pods/{name}")
            except SandboxError as error:
                refusal = error.message
            else:
                return
        logger.warning("pod %s was not deleted: %s", name, refusal)
        if len(self._unremoved) < MAX_UNREMOVED:
            self._unremoved.add(name)

    async def _connected(self) -> Cluster:
        async with self._connecting:
            if self._cluster is None:
                config = await anyio.to_thread.run_sync(find_config, self._settings, self._environ)
                cluster = Cluster(config, self._settings.namespace)
                await cluster.open()
                found = await anyio.to_thread.run_sync(libseccomp.filters)
                self._filters = tuple(base64.b64encode(each).decode("ascii") for each in found)
                self._cluster = cluster
            return self._cluster

    def _success(self, sandbox: Sandbox) -> Probe:
        cluster = self._cluster
        assert cluster is not None  # a sandbox runs in it
        return Probe(
            backend=self.name,
            ok=True,
            summary=f"pods in the namespace {cluster.namespace} of {cluster.server}",
            isolation=sandbox.isolation,
            details={
                "server": cluster.server,
                "namespace": cluster.namespace,
                "image": self._image,
                "runtime class": self._settings.runtime_class or "the cluster's",
                "pods": self._settings.provider,
            },
        )


def kubernetes_backend(settings: Settings) -> KubernetesBackend:
    """Return the backend that the settings ask for, without connecting to anything."""
    table = settings.kubernetes
    return KubernetesBackend(
        table,
        image=table.image or settings.image or DEFAULT_IMAGE,
        user=settings.container_user,
        environ=settings.environ,
        limits=limits_for(settings),
    )
