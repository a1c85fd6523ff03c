"""Kubernetes: sandboxes as pods, each used once.

A pod runs nothing unless its first step reports that all layers are in force. The backend replaces
a pod that is lost before its program starts, at most twice.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import anyio
import anyio.to_thread

from bridge.errors import (
    BridgeError,
    ChannelClosedError,
    LaunchError,
    SandboxError,
    SandboxLostError,
)
from bridge.model import HostKernel, Limits
from bridge.sandbox.backend import Backend, LaunchSpec, Probe, Sandbox, limits_for, reject_binds
from bridge.sandbox.kubernetes import faults, pod
from bridge.sandbox.kubernetes.cluster import Cluster, find_config
from bridge.sandbox.kubernetes.faults import Document
from bridge.sandbox.kubernetes.sandbox import PodSandbox, PodStream
from bridge.sandbox.kubernetes.warm import WarmPods
from bridge.sandbox.layers import brings_own_kernel
from bridge.sandbox.probe import failed_probe, run_probe
from bridge.sandbox.process import libseccomp
from bridge.settings import Settings
from bridge.settings.kubernetes import Kubernetes

logger = logging.getLogger(__name__)

DEFAULT_IMAGE = "python:3.13-slim"

CONFINE_SECONDS = 20.0  # A pod may never report its first step; milliseconds on a quiet node.


class KubernetesBackend(Backend):
    """Runs sandboxes as pods. The first use connects. An empty `user` means one for each pod."""

    name = pod.NAME

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
        self._environ = environ
        self._limits = limits or Limits()
        owner = f"bridge-{secrets.token_hex(6)}"
        self._template = pod.Template(settings=settings, image=image, user=user, owner=owner)
        self._connecting = anyio.Lock()
        self._warm: WarmPods | None = None
        self._filters: Sequence[bytes] = ()

    async def problem(self) -> str:
        return self._warm.problem if self._warm is not None else ""

    async def aclose(self) -> None:
        warm, self._warm = self._warm, None
        if warm is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                with anyio.move_on_after(10):
                    await warm.leave()
            except SandboxError as error:
                logger.warning("other bridges have to delete this bridge's pods: %s", error)
            await warm.cluster.aclose()

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        reject_binds(self.name, spec.binds)
        if spec.command is not None:
            raise LaunchError("Commands use this machine's files, so they cannot run in pods.")
        async with AsyncExitStack() as stack:
            yield await self._enter(stack, spec)

    async def probe(self) -> Probe:
        try:
            cluster = (await self._connect_once()).cluster
        except BridgeError as error:
            return failed_probe(self.name, error)
        success = Probe(
            backend=self.name,
            ok=True,
            summary=f"pods in the namespace {cluster.namespace} of {cluster.server}",
            details={
                "server": cluster.server,
                "namespace": cluster.namespace,
                "image": self._template.image,
                "runtime class": self._settings.runtime_class or "the cluster's",
            },
        )
        remedy = "Name an image with Python 3.9 or later in [kubernetes]."
        return await run_probe(
            self.name, self.launch, lambda _: success, self._limits, no_answer_remedy=remedy
        )

    async def tend(self, drain: Callable[[], Awaitable[None]]) -> None:
        await (await self._connect_once()).tend()

    async def reap(self) -> int:
        return await (await self._connect_once()).sweep()

    async def _enter(self, stack: AsyncExitStack, spec: LaunchSpec) -> Sandbox:
        for _ in range(2):
            try:
                return await stack.enter_async_context(self._launch(spec))
            except (SandboxLostError, faults.ClusterAnswerError) as error:
                logger.warning("trying another pod, after: %s", error)
        return await stack.enter_async_context(self._launch(spec))

    @asynccontextmanager
    async def _launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        cluster = (await self._connect_once()).cluster
        async with (
            self._placed(spec) as placed,
            cluster.attach(placed["metadata"]["name"]) as socket,
        ):
            stream = PodStream(socket)
            await self._confine(stream, spec)
            if await cluster.find(placed) is None:
                raise SandboxLostError("The pod was replaced as it started.")
            kernel = await self._kernel(cluster, placed)
            isolation = pod.isolation(spec.limits, self._settings.runtime_class, kernel)
            sandbox = PodSandbox(cluster, placed, stream, isolation)
            try:
                yield sandbox
            finally:
                # Delete the pod first: its program does not notice the end of its stream.
                with anyio.CancelScope(shield=True):
                    await sandbox.kill()

    @asynccontextmanager
    async def _placed(self, spec: LaunchSpec) -> AsyncIterator[Document]:
        warm = await self._connect_once()
        cluster = warm.cluster
        placed = await warm.claim(spec.limits)
        name = pod.pod_name(spec.run_id) if placed is None else placed["metadata"]["name"]
        warm.mine.add(name)
        try:
            if placed is None:
                made = self._template.manifest(name, spec.limits, "used")
                placed = await self._wait_running(cluster, await cluster.create(cluster.pods, made))
            yield placed
        finally:
            # By name, which is known even if the answer to the creation was lost.
            await cluster.discard(name)
            warm.mine.discard(name)

    async def _wait_running(self, cluster: Cluster, seen: Document) -> Document:
        path = f"{cluster.pods}/{seen['metadata']['name']}"
        with anyio.move_on_after(self._settings.room_seconds):
            while not faults.is_running(seen):
                if problem := faults.start_problem(seen):
                    raise problem
                await anyio.sleep(0.2)  # A start takes a second or more.
                with suppress(faults.ClusterAnswerError):  # the loop tries again
                    now = await cluster.get(path)
                    if now is None:
                        raise SandboxLostError(faults.REMOVED)
                    seen = now
            return seen
        raise faults.no_room(seen)

    async def _confine(self, stream: PodStream, spec: LaunchSpec) -> None:
        step = pod.first_step(spec, self._filters, own_user=not self._template.user)
        said = b""
        with anyio.move_on_after(CONFINE_SECONDS):
            try:
                await stream.send(step)
                while len(said) < 4096 and (data := await stream.receive()):
                    said += data
                    if said.startswith(pod.CONFINED):
                        stream.unread(said.removeprefix(pod.CONFINED))
                        return
            except (ChannelClosedError, ConnectionError) as error:
                raise faults.lost({}, str(error)) from error
        reason = said.decode("utf-8", "replace").strip() or stream.stderr.strip()
        if not reason:
            raise SandboxLostError("The pod did not answer its first message.")
        raise LaunchError("The pod's first step failed.", host_detail=f"{faults.cut(reason)}.")

    async def _kernel(self, cluster: Cluster, placed: Document) -> HostKernel | None:
        """Return the kernel of a pod's node, if it matters and the bridge may read nodes."""
        if not brings_own_kernel(self._settings.runtime_class):
            return None
        try:
            node = await cluster.get(f"/api/v1/nodes/{placed['spec'].get('nodeName')}")
        except SandboxError as error:
            if error.code != "cluster_refused":
                raise
            return None
        if node is None:
            return None
        info = node["status"]["nodeInfo"]
        return HostKernel(release=info["kernelVersion"], boot_id=info["bootID"])

    async def _connect_once(self) -> WarmPods:
        async with self._connecting:
            if self._warm is None:
                cluster = await anyio.to_thread.run_sync(self._connect)
                try:
                    template = replace(self._template, references=await self._owners(cluster))
                    warm = WarmPods(cluster, template)
                    # Before the first pod, which other bridges would delete without a lease.
                    await warm.renew()
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await cluster.aclose()
                    raise
                self._warm, self._template = warm, template
            return self._warm

    def _connect(self) -> Cluster:
        self._filters = libseccomp.filters()
        return Cluster(find_config(self._settings, self._environ), self._settings.namespace)

    async def _owners(self, cluster: Cluster) -> Sequence[Document]:
        """Return the `ownerReferences` of pods: the bridge's own pod, if it runs in one."""
        own = self._environ.get("HOSTNAME", "")
        if own and cluster.config.fname is None:
            with suppress(SandboxError):
                if bridge_pod := await cluster.get(f"{cluster.pods}/{own}"):
                    uid = bridge_pod["metadata"]["uid"]
                    return [{"apiVersion": "v1", "kind": "Pod", "name": own, "uid": uid}]
        return []


def kubernetes_backend(settings: Settings) -> KubernetesBackend:
    table = settings.kubernetes
    return KubernetesBackend(
        table,
        image=table.image or settings.image or DEFAULT_IMAGE,
        user="" if settings.container_user == Settings.container_user else settings.container_user,
        environ=settings.environ,
        limits=limits_for(settings),
    )
