"""A Kubernetes API server and its kubelet, in this process: real HTTP and websockets on loopback.

It keeps objects with versions, and speaks both versions of the attach protocol.
A pod is a real process in bubblewrap that has this machine's `/usr` for its image, this machine's
network, and what the manifest says of its user and its directories. As a node does, it throws away
what a pod writes before somebody listens.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import ssl
import uuid
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs

import anyio
import uvicorn
from anyio.abc import TaskGroup

from tests.fakes.pods import (
    Document,
    Message,
    Receive,
    RunningPod,
    Send,
    pass_stdin,
    pump,
    sandbox_command,
)

V4, V5 = "v4.channel.k8s.io", "v5.channel.k8s.io"


@dataclass(frozen=True)
class Refusal(Exception):
    """An answer that is no success."""

    code: int
    reason: str
    message: str

    def document(self) -> Document:
        return {
            "kind": "Status",
            "status": "Failure",
            "code": self.code,
            "reason": self.reason,
            "message": self.message,
        }


@dataclass
class Faults:
    """What goes wrong next. Lists are used up; the rest stays until it is changed."""

    create: list[Refusal] = field(default_factory=list)
    attach: list[Refusal] = field(default_factory=list)
    patch_pods: list[Refusal] = field(default_factory=list)
    get_pod: list[Refusal] = field(default_factory=list)
    list_quotas: Refusal | None = None
    waiting: Mapping[str, str] | None = None


class ApiServer:
    """Objects of one cluster, and the pods that run. Enter `serving` before use."""

    def __init__(self, *, protocols: tuple[str, ...] = (V5, V4), token: str = "") -> None:
        self.protocols = protocols
        self.tokens = {token} if token else set()
        self.attach_tokens: set[str] = set()
        self.names: set[str] = set()  # The accepted certificates' common names, if any.
        self.faults = Faults()
        self.objects: dict[str, Document] = {}
        self.running: dict[str, RunningPod] = {}
        self.nodes: dict[str, int] = {}  # How many pods each holds. Without any, none is scheduled.
        self.refused = 0  # Pods that a quota had no room for.
        self.most_pending = 0
        self.requests: list[tuple[str, str]] = []
        self.created: list[Document] = []
        self.sockets: set[int] = set()
        self.behind = timedelta(0)
        self.slow_delete: Callable[[str], object] = lambda _: None
        self.on_list: Callable[[str], None] = lambda _: None
        self.answer: bytes | None = None
        self.port = 0
        self.tls: tuple[str, ...] | None = None
        self._version = 100
        self._changed = asyncio.Event()
        self._kubelet: TaskGroup | None = None
        self._server: uvicorn.Server | None = None
        self._stopped = anyio.Event()

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    @property
    def now(self) -> datetime:
        """The time by its own clock."""
        return datetime.now(UTC) - self.behind

    @property
    def pods(self) -> list[str]:
        """The names of the pods that there are."""
        return sorted(path.rpartition("/")[2] for path in self.objects if "/pods/" in path)

    @property
    def leases(self) -> list[str]:
        """The names of the leases that there are."""
        return sorted(path.rpartition("/")[2] for path in self.objects if "/leases/" in path)

    @property
    def created_pods(self) -> list[Document]:
        """Every pod as it was asked for."""
        return [each for each in self.created if each.get("kind") == "Pod"]

    async def changed(self) -> None:
        """Wait until an object is changed."""
        await self._changed.wait()

    def kubeconfig(self, **user: Any) -> Document:
        """Return a kubeconfig for it."""
        cluster: Document = {"server": self.url}
        if self.tls:
            cluster["certificate-authority"] = self.tls[2]
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "me", "user": user}],
            "contexts": [
                {
                    "name": "here",
                    "context": {"cluster": "here", "user": "me", "namespace": "sandboxes"},
                }
            ],
        }

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[ApiServer]:
        """Answer until this is left; then no process of a pod is left either."""
        async with anyio.create_task_group() as kubelet:
            self._kubelet = kubelet
            await self.start()
            try:
                yield self
            finally:
                await self.stop()
                for path in list(self.objects):
                    self._remove(path)
                for pod in list(self.running.values()):
                    await pod.ended.wait()
                kubelet.cancel_scope.cancel()

    async def start(self) -> None:
        """Begin to answer, on the port it had before if there was one."""
        certificates: Document = {}
        if self.tls:
            certificates = {
                "ssl_certfile": self.tls[0],
                "ssl_keyfile": self.tls[1],
                "ssl_ca_certs": self.tls[2],
                "ssl_cert_reqs": ssl.CERT_REQUIRED,
            }
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            ws="websockets-sansio",
            ws_max_size=16 * 1024 * 1024,
            ws_ping_interval=None,
            lifespan="off",
            log_config=None,
            date_header=False,
            access_log=False,
            timeout_graceful_shutdown=1,
            **certificates,
        )
        self._server = server = _Server(config)
        assert self._kubelet is not None
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(128)
        self.port = listener.getsockname()[1]
        stopped = self._stopped = anyio.Event()

        async def serve() -> None:
            with listener:
                await server.serve(sockets=[listener])
            stopped.set()

        self._kubelet.start_soon(serve)

    async def stop(self) -> None:
        """Answer no more, and break every connection. Pods go on."""
        server, self._server = self._server, None
        if server is None:
            return
        server.should_exit = server.force_exit = True
        self._changed.set()
        for connection in list(server.server_state.connections):
            with suppress(AttributeError):
                connection.transport.abort()
        await self._stopped.wait()

    # --- what happens in the cluster --------------------------------------------------------------

    def kill(self, name: str, *, reason: str = "") -> None:
        """End a pod's process from outside; `reason` is what its kubelet says of it."""
        pod = self.running[name]
        pod.reason = reason
        with suppress(ProcessLookupError):
            os.kill(pod.process.pid, signal.SIGKILL)

    def evict(self, name: str, reason: str = "Evicted") -> None:
        """End a pod as the cluster does; its object stays."""
        document = self.objects[self._pod_path(name)]
        document["status"] |= {"phase": "Failed", "reason": reason, "message": "low on memory"}
        self.kill(name, reason=reason)

    def drain(self, name: str) -> None:
        """Evict a pod through the Eviction API, as `kubectl drain` and autoscalers do."""
        document = self.objects[self._pod_path(name)]
        document["metadata"]["deletionTimestamp"] = self.now.strftime("%Y-%m-%dT%H:%M:%SZ")
        document["status"]["conditions"] = [
            {
                "type": "DisruptionTarget",
                "status": "True",
                "reason": "EvictionByEvictionAPI",
                "message": "Eviction API: evicting",
            }
        ]
        self.put(self._pod_path(name), document)
        self.kill(name)

    def remove(self, name: str) -> None:
        """Delete a pod as another client does."""
        self._remove(self._pod_path(name))

    def put_pod(self, name: str, *, owner: str, service: str = "default") -> None:
        """Store a pod that nothing runs in, as a bridge left it."""
        labels = {
            "app.kubernetes.io/managed-by": "mcp-code-bridge",
            "mcp-code-bridge.org/service": service,
            "mcp-code-bridge.org/owner": owner,
            "mcp-code-bridge.org/state": "used",
        }
        metadata: Document = {"name": name, "labels": labels, "uid": str(uuid.uuid4())}
        self.put(self._pod_path(name), {"metadata": metadata, "status": {"phase": "Pending"}})

    def put_lease(self, name: str, renewed: str) -> None:
        """Store a bridge's lease."""
        labels = {
            "app.kubernetes.io/managed-by": "mcp-code-bridge",
            "mcp-code-bridge.org/service": "default",
        }
        path = f"/apis/coordination.k8s.io/v1/namespaces/sandboxes/leases/{name}"
        self.put(
            path,
            {
                "metadata": {"name": name, "labels": labels, "uid": name},
                "spec": {"renewTime": renewed},
            },
        )

    def _pod_path(self, name: str) -> str:
        return f"/api/v1/namespaces/sandboxes/pods/{name}"

    def put(self, path: str, document: Document) -> Document:
        """Store an object as another client does."""
        self._version += 1
        document["metadata"]["resourceVersion"] = str(self._version)
        self.objects[path] = document
        self._tell()
        return document

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _remove(self, path: str) -> None:
        document = self.objects.pop(path, None)
        if document is None:
            return
        self._version += 1
        self._tell()
        name = document["metadata"]["name"]
        if "/pods/" in path and name in self.running:
            self.kill(name)
        uid = document["metadata"].get("uid")
        for other, owned in list(self.objects.items()):
            owners = owned["metadata"].get("ownerReferences") or ()
            if uid and any(owner.get("uid") == uid for owner in owners):
                self._remove(other)

    # --- the kubelet ------------------------------------------------------------------------------

    async def _run_pod(self, path: str) -> None:
        document = self.objects.get(path)
        if document is None:
            return
        if self.nodes:
            await self._schedule(path, document)
            if path not in self.objects:
                return
        if self.faults.waiting:
            state = {"waiting": dict(self.faults.waiting)}
            document["status"] = {"phase": "Pending", "containerStatuses": [{"state": state}]}
            self.put(path, document)
            return
        container = document["spec"]["containers"][0]
        process = await asyncio.create_subprocess_exec(
            *sandbox_command(document["spec"]),
            *container["command"],
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        name = document["metadata"]["name"]
        pod = self.running[name] = RunningPod(process)
        document["status"] = {
            "phase": "Running",
            "containerStatuses": [{"state": {"running": {}}, "restartCount": 0}],
        }
        self.put(path, document)
        async with anyio.create_task_group() as pumps:
            pumps.start_soon(pump, process.stdout, b"\1", pod)
            pumps.start_soon(pump, process.stderr, b"\2", pod)
            code = await process.wait()
        self.running.pop(name, None)
        pod.ended.set()
        if path in self.objects:
            code = 128 - code if code < 0 else code
            reason = pod.reason or ("Completed" if code == 0 else "Error")
            ended = {"exitCode": code, "reason": reason}
            status = document["status"]
            status.setdefault("phase", "Failed")
            if status["phase"] == "Running":
                status["phase"] = "Succeeded" if code == 0 else "Failed"
            status["containerStatuses"] = [{"state": {"terminated": ended}, "restartCount": 0}]
            self.put(path, document)
            if "deletionTimestamp" in document["metadata"]:
                self._remove(path)

    async def _schedule(self, path: str, document: Document) -> None:
        """Wait until a node has room for a pod, and assign it."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        condition["message"] = (
            f"0/{len(self.nodes)} nodes are available: {len(self.nodes)} Too many pods."
        )
        while path in self.objects:
            held = Counter(
                pod["spec"].get("nodeName")
                for place, pod in self.objects.items()
                if "/pods/" in place and pod["status"]["phase"] in ("Pending", "Running")
            )
            free = [name for name, pods in self.nodes.items() if held[name] < pods]
            if free:
                document["spec"]["nodeName"] = free[0]
                document["status"] = {"phase": "Pending"}
                self.put(path, document)
                return
            if "conditions" not in document["status"]:
                document["status"] = {"phase": "Pending", "conditions": [condition]}
                self.put(path, document)
            await self.changed()

    # --- HTTP -------------------------------------------------------------------------------------

    async def _app(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = {
            name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()
        }
        path = scope["path"]
        try:
            known = self.tokens
            if scope["type"] == "websocket":
                known = self.attach_tokens or self.tokens
            if known and headers.get("authorization", "").removeprefix("Bearer ") not in known:
                raise Refusal(401, "Unauthorized", "Unauthorized")
            if self.names and self._certified_name(scope) not in self.names:
                raise Refusal(401, "Unauthorized", "Unauthorized")
            if scope["type"] == "websocket":
                await self._attach(scope, receive, send)
                return
            method = scope["method"]
            self.requests.append((method, path))
            if self.answer is not None:
                await self._reply(send, 200, self.answer)
                return
            body = await _body(receive)
            answer = await self._answer(method, path, query, json.loads(body) if body else {})
            await self._reply(send, 201 if method == "POST" else 200, answer)
        except Refusal as refusal:
            if scope["type"] == "websocket":
                await _refuse_websocket(receive, send, refusal)
            else:
                await self._reply(send, refusal.code, refusal.document())

    def _certified_name(self, scope: Message) -> str:
        """Return the common name in the certificate of a request's connection."""
        assert self._server is not None
        for connection in self._server.server_state.connections:
            transport = getattr(connection, "transport", None)
            if transport and transport.get_extra_info("peername") == tuple(scope["client"]):
                certificate = transport.get_extra_info("peercert")
                return str(dict(pair for (pair,) in certificate["subject"])["commonName"])
        return ""

    async def _answer(
        self, method: str, path: str, query: Mapping[str, str], body: Document
    ) -> Document:
        collection, _, last = path.rpartition("/")
        if method == "POST":
            return self.create(path, body)
        if last == "resourcequotas" and self.faults.list_quotas:
            raise self.faults.list_quotas
        if method == "GET" and last in ("pods", "leases", "resourcequotas"):
            items = json.loads(json.dumps(self._selected(path, query)))
            self.on_list(path)
            return {"metadata": {"resourceVersion": str(self._version)}, "items": items}
        document = self.objects.get(path)
        if document is None:
            raise Refusal(404, "NotFound", f'{collection} "{last}" not found')
        if method == "GET":
            if self.faults.get_pod and "/pods/" in path:
                raise self.faults.get_pod.pop(0)
            return document
        if method == "DELETE":
            self.slow_delete(last)
            for key, value in (body.get("preconditions") or {}).items():
                if value != document["metadata"].get(key):
                    raise Refusal(409, "Conflict", f"the {key} in the precondition differs")
            self._remove(path)
            return {"kind": "Status", "status": "Success"}
        if method in ("PATCH", "PUT"):
            if self.faults.patch_pods and "/pods/" in path:
                raise self.faults.patch_pods.pop(0)
            asked = (body.get("metadata") or {}).get("resourceVersion")
            if asked and asked != document["metadata"]["resourceVersion"]:
                raise Refusal(409, "Conflict", "the object has been modified")
            _merge(document, body)
            return self.put(path, document)
        raise Refusal(405, "MethodNotAllowed", method)

    def create(self, path: str, body: Document) -> Document:
        """Store a new object; a pod is started."""
        if self.faults.create and path.endswith("/pods"):
            raise self.faults.create.pop(0)
        name = body["metadata"]["name"]
        if path.endswith("/pods"):
            self._count_quota(name)
        if f"{path}/{name}" in self.objects:
            raise Refusal(409, "AlreadyExists", f"{name} already exists")
        body["metadata"] |= {
            "uid": str(uuid.uuid4()),
            "namespace": "sandboxes",
            "creationTimestamp": self.now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        body.setdefault("status", {"phase": "Pending"})
        self.created.append(json.loads(json.dumps(body)))
        made = self.put(f"{path}/{name}", body)
        pods = [each for at, each in self.objects.items() if "/pods/" in at]
        pending = sum(each["status"]["phase"] == "Pending" for each in pods)
        self.most_pending = max(self.most_pending, pending)
        if path.endswith("/pods"):
            assert self._kubelet is not None
            self._kubelet.start_soon(self._run_pod, f"{path}/{name}")
        return json.loads(json.dumps(made))  # type: ignore[no-any-return]

    def _count_quota(self, name: str) -> None:
        """Refuse a pod that a quota of the namespace has no room for."""
        phases = [pod["status"]["phase"] for at, pod in self.objects.items() if "/pods/" in at]
        used = sum(phase in ("Pending", "Running") for phase in phases)
        for quota in [each for at, each in self.objects.items() if "/resourcequotas/" in at]:
            limited = int(quota["spec"]["hard"]["pods"])
            if used >= limited:
                said = f'pods "{name}" is forbidden: exceeded quota: {quota["metadata"]["name"]}, '
                said += f"requested: pods=1, used: pods={used}, limited: pods={limited}"
                self.refused += 1
                raise Refusal(403, "Forbidden", said)

    def put_quota(self, pods: int) -> None:
        """Limit the namespace's pods."""
        path = "/api/v1/namespaces/sandboxes/resourcequotas/sandboxes"
        spec = {"scopes": ["Terminating"], "hard": {"pods": str(pods)}}
        self.put(path, {"metadata": {"name": "sandboxes", "uid": "q"}, "spec": spec})

    def _selected(self, path: str, query: Mapping[str, str]) -> list[Document]:
        return [
            document
            for place, document in self.objects.items()
            if place.rpartition("/")[0] == path and _selects(query, document)
        ]

    async def _reply(self, send: Send, code: int, answer: Document | bytes) -> None:
        date = format_datetime(self.now, usegmt=True).encode()
        headers = [(b"content-type", b"application/json"), (b"date", date)]
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        await send({"type": "http.response.start", "status": code, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    # --- attach -----------------------------------------------------------------------------------

    async def _attach(self, scope: Message, receive: Receive, send: Send) -> None:
        if self.faults.attach:
            raise self.faults.attach.pop(0)
        name = scope["path"].split("/")[-2]
        pod = self.running.get(name)
        if pod is None:
            raise Refusal(404, "NotFound", f'pods "{name}" not found')
        chosen = next((each for each in scope["subprotocols"] if each in self.protocols), None)
        await receive()
        await send({"type": "websocket.accept", "subprotocol": chosen})

        async def listen(data: bytes) -> None:
            await send({"type": "websocket.send", "bytes": data})

        pod.listener = listen
        stdin = pod.process.stdin
        assert stdin is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_stdin, receive, stdin, chosen == V5, tasks.cancel_scope)
            await pod.ended.wait()
            tasks.cancel_scope.cancel()
        pod.listener = None
        stdin.close()  # stdinOnce
        with suppress(OSError, RuntimeError):
            await send({"type": "websocket.send", "bytes": b'\3{"status":"Success"}'})
            await send({"type": "websocket.close", "code": 1000})


class _Server(uvicorn.Server):
    """One that leaves the process's signals alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _selects(query: Mapping[str, str], document: Document) -> bool:
    metadata = document["metadata"]
    for pair in (query.get("labelSelector") or "").split(","):
        key, mark, value = pair.partition("=")
        if mark and (metadata.get("labels") or {}).get(key) != value:
            return False
    name = (query.get("fieldSelector") or "").partition("metadata.name=")[2]
    return not name or name == metadata["name"]


def _merge(into: Document, given: Document) -> None:
    for key, value in given.items():
        if value is None:
            into.pop(key, None)
        elif isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif key != "resourceVersion":
            into[key] = value


async def _body(receive: Receive) -> bytes:
    body: bytes = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return body


async def _refuse_websocket(receive: Receive, send: Send, refusal: Refusal) -> None:
    await receive()
    headers = [(b"content-type", b"application/json")]
    start = {"type": "websocket.http.response.start", "status": refusal.code, "headers": headers}
    await send(start)
    body = json.dumps(refusal.document()).encode()
    await send({"type": "websocket.http.response.body", "body": body})
