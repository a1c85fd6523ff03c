"""Kubernetes: sandboxes as pods, each used once.

A pod runs nothing unless its first step reports that all layers are in force. The backend replaces
a pod that is lost before its program starts, at most twice. The cluster reports a pod's end a
second after its stream's.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from signal import SIGKILL

import anyio.to_thread
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from bridge.descriptor_reader import DIAGNOSTIC_BYTES
from bridge.errors import (
    BridgeError,
    ChannelClosedError,
    LaunchError,
    SandboxError,
    SandboxLostError,
)
from bridge.model import HostKernel, Isolation, Limits
from bridge.sandbox.backend import (
    Backend,
    ExitReport,
    LaunchSpec,
    Probe,
    Sandbox,
    limits_for,
    reject_binds,
)
from bridge.sandbox.kubernetes.cluster import (
    PROTOCOLS,
    Cluster,
    ClusterAnswerError,
    Document,
    close_socket,
    cut,
    ended_by_cluster,
    exit_report,
    find_config,
    is_running,
    lost,
    no_room,
    start_problem,
)
from bridge.sandbox.kubernetes.pods import NAME, Template, WarmPods, first_step, isolation, pod_name
from bridge.sandbox.layers import brings_own_kernel
from bridge.sandbox.pool import WAIT_UNTIL
from bridge.sandbox.probe import failed_probe, run_probe
from bridge.sandbox.process import libseccomp
from bridge.sandbox.process.stage import CONFINED
from bridge.settings import Settings
from bridge.settings.kubernetes import Kubernetes

logger = logging.getLogger(__name__)

DEFAULT_IMAGE = "python:3.13-slim"

CONFINE_SECONDS = 20.0  # A pod may never report its first step; milliseconds on a quiet node.


class KubernetesBackend(Backend):
    """Runs sandboxes as pods. The first use connects. An empty `user` means one for each pod."""

    name = NAME

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
        self._template = Template(settings=settings, image=image, user=user, owner=owner)
        self._connecting, self._creating = anyio.Lock(), anyio.Lock()
        self._warm: WarmPods | None = None
        self._filters: Sequence[bytes] = ()

    @property
    def capacity(self) -> int | None:  # type: ignore[override]
        return self._warm.capacity if self._warm is not None else None

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
            except (SandboxLostError, ClusterAnswerError) as error:
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
            layers = isolation(spec.limits, self._settings.runtime_class, kernel)
            sandbox = PodSandbox(cluster, placed, stream, layers)
            try:
                yield sandbox
            finally:
                # Delete the pod first: its program does not notice the end of its stream.
                with anyio.CancelScope(shield=True):
                    await sandbox.kill()

    @asynccontextmanager
    async def _placed(self, spec: LaunchSpec) -> AsyncIterator[Document]:
        warm = await self._connect_once()
        made = self._template.manifest(pod_name(spec.run_id), spec.limits, "used")
        own = name = made["metadata"]["name"]
        warm.mine.add(own)
        until = max(WAIT_UNTIL.get(), anyio.current_time() + self._settings.room_seconds)
        try:
            placed = await self._claim_or_create(warm, spec.limits, made, until)
            name = placed["metadata"]["name"]
            yield await self._wait_running(warm.cluster, placed, until)
        finally:
            # By name, which is known even if the answer to the creation was lost.
            await warm.cluster.discard(name)
            warm.mine -= {own, name}

    async def _claim_or_create(
        self, warm: WarmPods, limits: Limits, made: Document, until: float
    ) -> Document:
        """Return a pod as soon as the quota has room for it; launches take turns."""
        refused = SandboxError("Other runs wait for the namespace's quota.", code="quota")
        with anyio.CancelScope(deadline=until):
            async with self._creating:
                while True:
                    if (claimed := await warm.claim(limits)) is not None:
                        return claimed
                    try:
                        return await warm.cluster.create(warm.cluster.pods, made)
                    except SandboxError as error:
                        if error.code != "quota":
                            raise
                        refused = error
                    await anyio.sleep(0.5)
        raise refused

    async def _wait_running(self, cluster: Cluster, seen: Document, until: float) -> Document:
        path = f"{cluster.pods}/{seen['metadata']['name']}"
        with anyio.CancelScope(deadline=until) as scope:
            while not is_running(seen):
                if problem := start_problem(seen):
                    raise problem
                await anyio.sleep(0.2)  # A start takes a second or more.
                with suppress(ClusterAnswerError):  # the loop tries again
                    now = await cluster.get(path)
                    if now is None:
                        raise lost(None, "")
                    if now["spec"].get("nodeName") and not seen["spec"].get("nodeName"):
                        # It has its place. The node has its own time for the start.
                        scope.deadline = anyio.current_time() + self._settings.room_seconds
                    seen = now
            return seen
        raise no_room(seen)

    async def _confine(self, stream: PodStream, spec: LaunchSpec) -> None:
        step = first_step(spec, self._filters, own_user=not self._template.user)
        said = b""
        with anyio.move_on_after(CONFINE_SECONDS):
            try:
                await stream.send(step)
                while len(said) < 4096 and (data := await stream.receive()):
                    said += data
                    if said.startswith(CONFINED):
                        stream.unread = said.removeprefix(CONFINED)
                        return
            except (ChannelClosedError, ConnectionError) as error:
                raise lost({}, str(error)) from error
        reason = said.decode("utf-8", "replace").strip() or stream.diagnostics().strip()
        if not reason:
            raise SandboxLostError("The pod did not answer its first message.")
        raise LaunchError("The pod's first step failed.", host_detail=f"{cut(reason)}.")

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
                    await warm.read_quota()
                except BaseException:
                    with anyio.CancelScope(shield=True):
                        await cluster.aclose()
                    raise
                self._warm, self._template = warm, template
            return self._warm

    def _connect(self) -> Cluster:
        self._filters = libseccomp.filters()
        find = partial(find_config, self._settings, self._environ)
        return Cluster(find, self._settings.namespace)

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


SEND_BYTES = 512 * 1024  # For one message of stdin; servers accept a megabyte.

_STDIN, _STDOUT, _STDERR, _STATUS = b"\0", b"\1", b"\2", b"\3"


class PodStream:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._stderr = self.unread = b""
        self._closed = self.finished = self._input_ended = False

    def diagnostics(self) -> str:
        return self._stderr.decode("utf-8", "backslashreplace")

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            for start in range(0, len(view), SEND_BYTES):
                await self._socket.send(_STDIN + view[start : start + SEND_BYTES])
        except ConnectionClosed as error:
            raise ChannelClosedError("The pod's stream has ended.") from error

    def end_input(self) -> None:
        """End stdin with the next `receive`; protocol v4 ends it only with the pod."""
        self._input_ended = self._socket.subprotocol == PROTOCOLS[0]

    async def receive(self) -> bytes:
        """Return the next bytes of stdout, empty at the end; raise ConnectionError if it broke."""
        if self.unread:
            data, self.unread = self.unread, b""
            return data
        while not self._closed:
            try:
                if self._input_ended:
                    self._input_ended = False
                    await self._socket.send(b"\xff\0")
                message = await self._socket.recv(decode=False)
            except ConnectionClosedOK:
                break
            except ConnectionClosed as error:
                if self.finished or self._closed:
                    break
                raise ConnectionError(str(error)) from error
            channel, data = message[:1], message[1:]
            if channel == _STDOUT and data:
                return data
            if channel == _STDERR:
                self._stderr = (self._stderr + data)[-DIAGNOSTIC_BYTES:]
            self.finished = self.finished or channel == _STATUS
        self._closed = True
        return b""

    async def close(self) -> None:
        self._closed = True
        await close_socket(self._socket)


STATUS_SECONDS = 3.0  # A cluster may never report an end; kubelets take about a second.


@dataclass
class PodSandbox:
    cluster: Cluster
    placed: Document
    stream: PodStream
    isolation: Isolation
    _killed: bool = False
    _ended: bool = False
    _verdict: ExitReport | SandboxError | None = None

    @property
    def id(self) -> str:
        return str(self.placed["metadata"]["name"])

    def __post_init__(self) -> None:
        self.send, self.end_input = self.stream.send, self.stream.end_input
        self.diagnostics = self.stream.diagnostics

    async def end_output(self) -> None:
        """Delete the pod: its streams share a connection."""
        await self.kill()

    async def receive(self) -> bytes:
        silence = "its stream ended"
        try:
            if data := await self.stream.receive():
                return data
        except ConnectionError as error:
            # A server also breaks the stream of a process that ended with unread input.
            silence = str(error)
        if not self._ended and not self._killed:
            await self._judge()
        known = isinstance(self._verdict, ExitReport) or self._killed or self.stream.finished
        if isinstance(self._verdict, SandboxLostError) or not known:
            raise await self.why_lost(silence)
        return b""

    async def kill(self) -> None:
        """Delete the pod; if it has ended, read its end first."""
        if self._ended and self._verdict is None:
            await self._judge()
        if not self._killed:
            self._killed = True
            await self.cluster.discard(self.id)
        await self.stream.close()

    async def wait(self) -> ExitReport:
        pause = 0.05
        while self._verdict is None:
            if self._killed:
                return ExitReport(signal=SIGKILL)
            pod = await self.cluster.find(self.placed)
            self._verdict = ended_by_cluster(pod) or exit_report(pod or {})
            if self._verdict is None:
                await anyio.sleep(pause)
                pause = min(pause * 2, 1.0)
        if isinstance(self._verdict, SandboxError):
            raise self._verdict
        return self._verdict

    async def _judge(self) -> None:
        self._ended = True
        with anyio.move_on_after(STATUS_SECONDS):
            try:
                await self.wait()
            except SandboxError as error:
                self._verdict = self._verdict or error

    async def why_lost(self, silence: str) -> SandboxError:
        self._ended = True
        if isinstance(self._verdict, SandboxLostError):
            return self._verdict  # Afterwards the bridge deletes the pod.
        pod: Document | None = {}
        with anyio.move_on_after(STATUS_SECONDS):
            try:
                pod = await self.cluster.find(self.placed)
            except SandboxError as error:
                silence = error.message
        self._verdict = lost(pod, silence)
        return self._verdict
