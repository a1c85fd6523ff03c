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
from functools import partial
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from bridge.errors import (
    BridgeError,
    ChannelClosedError,
    ClusterDownError,
    ClusterRefusedError,
    LaunchError,
    SandboxError,
    SandboxLostError,
)
from bridge.model import HostKernel, Limits
from bridge.sandbox.backend import LaunchSpec, Probe, Sandbox
from bridge.sandbox.binds import reject_binds
from bridge.sandbox.kubernetes import faults, pod
from bridge.sandbox.kubernetes.cluster import Cluster, Document, find_config
from bridge.sandbox.kubernetes.sandbox import PodSandbox
from bridge.sandbox.kubernetes.stream import BrokenStreamError, PodStream
from bridge.sandbox.kubernetes.warm import WarmPods
from bridge.sandbox.layers import brings_own_kernel
from bridge.sandbox.limits import limits_for
from bridge.sandbox.probe import failed_probe, run_probe
from bridge.sandbox.process import libseccomp
from bridge.settings import Settings
from bridge.settings.kubernetes import Kubernetes

if TYPE_CHECKING:
    from bridge.sandbox.kubernetes.agent_sandbox import ClaimedPods

logger = logging.getLogger(__name__)

DEFAULT_IMAGE = "python:3.13-slim"

MAX_ATTEMPTS = 3
"""Pods tried for one launch: a lost one is replaced twice."""

CONFINE_SECONDS = 20.0
"""From attaching until the first step has reported: milliseconds, once the node is not busy."""

DELETE_SECONDS = 10.0
"""For the deletion of a pod; one that takes longer is left to the sweep."""

LEAVE_SECONDS = 10.0
"""For the deletion of all that a bridge has, as it ends."""

AGAIN_SECONDS = 0.5
"""Before a watch that broke is begun again."""

MAX_COMPLAINT_BYTES = 4096
"""Read of what a pod says in place of its first step's success."""


class KubernetesBackend:
    """Runs sandboxes as pods. Enter it before use; it connects at first use.

    Args:
        settings: The `kubernetes` table.
        image: The pods' image.
        user: "uid:gid" inside; empty for one of each pod's own.
        environ: The bridge's environment, for KUBECONFIG.
        limits: The probe's limits.
    """

    def __init__(
        self,
        settings: Kubernetes,
        *,
        image: str = DEFAULT_IMAGE,
        user: str = "",
        environ: Mapping[str, str],
        limits: Limits | None = None,
    ) -> None:
        self._settings = settings
        self._image = image
        self._user = user
        self._own_user = not user and settings.provider == "pods"
        self._environ = environ
        self._limits = limits or Limits()
        self._owner = pod.Owner(name=f"bridge-{secrets.token_hex(6)}")
        self._connecting = anyio.Lock()
        self._cluster: Cluster | None = None
        self._warm: WarmPods | None = None
        self._claims: ClaimedPods | None = None
        self._filters: tuple[str, ...] = ()

    def __repr__(self) -> str:
        where = self._cluster.server if self._cluster else "not connected"
        return f"<KubernetesBackend {where} {self._owner.name}>"

    @property
    def name(self) -> str:
        """ "kubernetes"."""
        return pod.NAME

    @property
    def problem(self) -> str:
        """Why no pod could be started now, as far as that is known; empty if one could."""
        return self._warm.problem if self._warm is not None else ""

    async def __aenter__(self) -> KubernetesBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Delete this bridge's pods and close the connection. Idempotent."""
        cluster, self._cluster = self._cluster, None
        if cluster is None or self._warm is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                with anyio.move_on_after(LEAVE_SECONDS):
                    await self._warm.leave()
            except SandboxError as error:
                logger.warning("pods are left for the sweep of others: %s", error)
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
            cluster, _ = await self._connected()
        except BridgeError as error:
            return failed_probe(self.name, error)

        def success(sandbox: Sandbox) -> Probe:
            return Probe(
                backend=self.name,
                ok=True,
                summary=f"pods in the namespace {cluster.namespace} of {cluster.server}",
                details={
                    "server": cluster.server,
                    "namespace": cluster.namespace,
                    "image": self._image,
                    "runtime class": self._settings.runtime_class or "the cluster's",
                    "pods from": self._settings.provider,
                },
            )

        remedy = "Name an image with Python 3.9 or later in [kubernetes]."
        return await run_probe(
            self.name, self.launch, success, self._limits, no_answer_remedy=remedy
        )

    @asynccontextmanager
    async def in_use(self) -> AsyncIterator[None]:
        """Do nothing: there is no machine that could stop; see `Backend.in_use`."""
        yield

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        """Keep pods waiting, and sweep those of dead bridges, until cancelled."""
        _, warm = await self._connected()
        await warm.tend()

    async def reap(self) -> int:
        """Remove what dead bridges left; see `Backend.reap`."""
        _, warm = await self._connected()
        return await warm.sweep()

    async def _enter(self, stack: AsyncExitStack, spec: LaunchSpec) -> Sandbox:
        """Start a program in a pod; replace one that is lost before that."""
        for _ in range(MAX_ATTEMPTS - 1):
            try:
                return await stack.enter_async_context(self._launch(spec))
            except (SandboxLostError, faults.BusyError, faults.NotFoundError) as error:
                logger.warning("another pod is tried, after: %s", error.message)
        return await stack.enter_async_context(self._launch(spec))

    @asynccontextmanager
    async def _launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        cluster, _ = await self._connected()
        async with self._placed(spec) as placed:
            name, uid = placed["metadata"]["name"], placed["metadata"]["uid"]

            async def find() -> Document | None:
                found = await cluster.get(f"pods/{name}")
                same = found is not None and found["metadata"]["uid"] == uid
                return found if found is not None and same and not faults.restarts(found) else None

            async with cluster.attach(name) as socket:
                stream = PodStream(socket)
                await self._confine(stream, spec)
                if await find() is None:
                    raise SandboxLostError("The pod was replaced as it started.")
                sandbox = PodSandbox(
                    name,
                    stream,
                    pod.isolation(spec, self._settings, await self._kernel(cluster, placed)),
                    find=find,
                    delete=partial(self._delete, cluster, name),
                )
                try:
                    yield sandbox
                finally:
                    # The pod first: what is in it is not told that its channel ends.
                    with anyio.CancelScope(shield=True):
                        await sandbox.kill()

    @asynccontextmanager
    async def _placed(self, spec: LaunchSpec) -> AsyncIterator[Document]:
        """Give a pod that runs, and is this launch's alone; leaving deletes it."""
        cluster, warm = await self._connected()
        if self._claims is not None:
            async with self._claims.claim() as claimed:
                yield await self._running(cluster, claimed)
            return
        found = await warm.take(spec.limits)
        name = pod.pod_name(spec.run_id) if found is None else found["metadata"]["name"]
        warm.mine.add(name)
        try:
            if found is None:
                made = await cluster.create("pods", self._manifest(name, spec.limits, "used"))
                found = await self._running(cluster, made)
            yield found
        finally:
            # By name: it is known even when the answer to the creation is not.
            await self._delete(cluster, name)
            warm.mine.discard(name)

    def _manifest(self, name: str, limits: Limits, state: str) -> Document:
        return pod.manifest(
            name,
            limits,
            self._settings,
            image=self._image,
            user=self._user,
            owner=self._owner,
            labels={pod.STATE_LABEL: state, pod.SHAPE_LABEL: self._shape(limits)},
        )

    def _shape(self, limits: Limits) -> str:
        return pod.shape(limits, self._settings, image=self._image, user=self._user)

    async def _running(self, cluster: Cluster, seen: Document) -> Document:
        """Return a pod once it runs; bounded by the time that a run may wait for room.

        Raises:
            SandboxError: It cannot start, or did not in time.
        """
        with anyio.move_on_after(self._settings.room_seconds):
            while not faults.is_running(seen):
                if problem := faults.start_problem(seen):
                    raise problem
                try:
                    # Closed here: left to the collector, each would keep its connection till then.
                    async with aclosing(cluster.watch(seen)) as events:
                        async for event in events:
                            seen = event["object"]
                            if event["type"] == "DELETED":
                                raise SandboxLostError(faults.REMOVED)
                            if faults.is_running(seen) or faults.start_problem(seen):
                                break
                        else:
                            await anyio.sleep(AGAIN_SECONDS)
                except (faults.GoneError, ClusterDownError) as error:
                    logger.info("the watch of a pod is begun again: %s", error.message)
                    await anyio.sleep(AGAIN_SECONDS)
                    found = await cluster.get(f"pods/{seen['metadata']['name']}")
                    if found is None:
                        raise SandboxLostError(faults.REMOVED) from error
                    seen = found
            return seen
        raise faults.start_problem(seen, patient=False) or LaunchError("The pod did not start.")

    async def _confine(self, stream: PodStream, spec: LaunchSpec) -> None:
        """Send the first step, and wait until it says that all is in force.

        Raises:
            SandboxLostError: The pod is gone, or silent: nothing of the program ran.
            LaunchError: It cannot put something in force, or lacks the program.
        """
        said = b""
        with anyio.move_on_after(CONFINE_SECONDS):
            try:
                await stream.send(pod.first_step(spec, self._filters, own_user=self._own_user))
                while len(said) < len(pod.CONFINED) and (data := await stream.receive()):
                    said += data
                if said.startswith(pod.CONFINED):
                    stream.unread(said.removeprefix(pod.CONFINED))
                    return
                while len(said) < MAX_COMPLAINT_BYTES and (data := await stream.receive()):
                    said += data
            except (ChannelClosedError, BrokenStreamError) as error:
                raise SandboxLostError(f"The pod was lost as it started: {error}") from error
        told = said.decode("utf-8", "replace").strip() or stream.stderr.strip()
        if not told:
            raise SandboxLostError("The pod did not answer its first message.")
        raise LaunchError(f"The pod's first step failed: {faults.cut(told)}.")

    async def _kernel(self, cluster: Cluster, placed: Document) -> HostKernel | None:
        """Return the kernel of a pod's node, if it matters and the bridge may know it."""
        if not brings_own_kernel(self._settings.runtime_class):
            return None
        try:
            node = await cluster.get(f"/api/v1/nodes/{placed['spec'].get('nodeName')}")
        except ClusterRefusedError:
            node = None
        if node is None:
            return None
        info = node["status"]["nodeInfo"]
        return HostKernel(release=info["kernelVersion"], boot_id=info["bootID"])

    async def _delete(self, cluster: Cluster, name: str) -> None:
        """Delete a pod, even when cancelled; one that stays is left to the sweep."""
        refusal = f"no answer within {DELETE_SECONDS:g} s"
        with anyio.CancelScope(shield=True), anyio.move_on_after(DELETE_SECONDS):
            try:
                await cluster.delete(f"pods/{name}")
            except SandboxError as error:
                refusal = error.message
            else:
                return
        logger.warning("pod %s was not deleted: %s", name, refusal)

    async def _connected(self) -> tuple[Cluster, WarmPods]:
        async with self._connecting:
            if self._cluster is None or self._warm is None:
                cluster = await anyio.to_thread.run_sync(self._connect)
                self._owner = await owner_of(cluster, self._owner.name, self._environ)

                async def start(limits: Limits) -> None:
                    name = pod.pod_name("warm")
                    await cluster.create("pods", self._manifest(name, limits, "warm"))

                warm = WarmPods(cluster, self._settings, self._owner, start, self._shape)
                try:
                    # Before the first pod, which the sweep of another bridge would delete.
                    await warm.renew()
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await cluster.aclose()
                    raise
                self._cluster, self._warm = cluster, warm
            return self._cluster, self._warm

    def _connect(self) -> Cluster:
        found = libseccomp.filters()
        self._filters = tuple(base64.b64encode(each).decode("ascii") for each in found)
        config = find_config(self._settings, self._environ)
        cluster = Cluster(config, self._settings.namespace)
        if self._settings.provider == "agent-sandbox":
            from bridge.sandbox.kubernetes.agent_sandbox import ClaimedPods

            seconds = pod.lifetime(self._limits, self._settings)
            self._claims = ClaimedPods(cluster, self._settings, seconds)
        return cluster


async def owner_of(cluster: Cluster, name: str, environ: Mapping[str, str]) -> pod.Owner:
    """Return this bridge as the owner of pods, with its own pod if it is in their namespace."""
    own = environ.get("HOSTNAME", "")
    if cluster.config.fname is not None or not own:
        return pod.Owner(name=name)
    try:
        found = await cluster.get(f"pods/{own}")
    except SandboxError:
        found = None
    if found is None:
        return pod.Owner(name=name)
    reference = {"apiVersion": "v1", "kind": "Pod", "name": own, "uid": found["metadata"]["uid"]}
    return pod.Owner(name=name, references=(reference,))


def kubernetes_backend(settings: Settings) -> KubernetesBackend:
    """Return the backend that the settings ask for, without connecting to anything."""
    table = settings.kubernetes
    return KubernetesBackend(
        table,
        image=table.image or settings.image or DEFAULT_IMAGE,
        user="" if settings.container_user == Settings.container_user else settings.container_user,
        environ=settings.environ,
        limits=limits_for(settings),
    )
