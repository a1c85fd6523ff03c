"""The connection to a cluster's API server, with plain JSON.

lightkube reads kubeconfig files and credentials. Streams to pods use `websockets`, which takes a
third of the time of lightkube's client for a message.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from subprocess import DEVNULL, CalledProcessError
from typing import Any

import anyio
import httpx2
from lightkube.config.client_adapter import AsyncClient, ConnectionParams, ExecAuth, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import NameValue, User
from lightkube.core.exceptions import ConfigError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from bridge.errors import EngineDownError, SandboxError, SettingsError
from bridge.model import Json
from bridge.sandbox.kubernetes import faults
from bridge.sandbox.kubernetes.faults import Document
from bridge.settings.kubernetes import Kubernetes

logger = logging.getLogger(__name__)

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
CLOSE_SECONDS = 0.5  # A kubelet may not answer once the pod is deleted.
REQUEST_SECONDS = 10.0  # An API server may not answer; most requests take milliseconds.
PLUGIN_SECONDS = 30.0  # A kubeconfig's plugin may hang; it may have to fetch a token.
MAX_ANSWER_BYTES = 32 * 1024 * 1024  # An API server may send any size; a listed pod has 10 kB.


def find_config(settings: Kubernetes, environ: Mapping[str, str]) -> SingleConfig:
    remedy = "Set `kubeconfig` and `context` in [kubernetes], or KUBECONFIG."
    try:
        if not (settings.kubeconfig or settings.context or "KUBECONFIG" in environ):
            try:
                return _usable(KubeConfig.from_service_account(), None)
            except (ConfigError, KeyError):
                remedy = f"This is no pod with a service account. {remedy}"
        paths = str(settings.kubeconfig or environ.get("KUBECONFIG") or "~/.kube/config")
        files = [KubeConfig.from_file(path) for path in paths.split(os.pathsep) if path]
        named = [settings.context, *(file.current_context for file in files)]
        wanted = next((name for name in named if name), None)
        return _usable(next((f for f in files if wanted in f.contexts), files[0]), wanted)
    except Exception as error:  # whatever the parsers of YAML and of its content raise
        message = f"kubernetes: the kubeconfig cannot be used: {error!r}."
        raise SettingsError(message, remedy=remedy) from error


def _usable(kubeconfig: KubeConfig, context: str | None) -> SingleConfig:
    config = kubeconfig.get(context)
    assert config is not None  # without a default, `get` raises
    user = config.user or User()
    config, plugin = config._replace(user=user), user.exec
    if plugin is not None:
        # lightkube does not tell a plugin which answer it expects, and refuses the later version,
        # whose answer has the same form.
        asked = {"kind": "ExecCredential", "apiVersion": plugin.apiVersion}
        info = json.dumps({**asked, "spec": {"interactive": False}})
        plugin.env = [*(plugin.env or ()), NameValue(name="KUBERNETES_EXEC_INFO", value=info)]
        plugin.apiVersion = "client.authentication.k8s.io/v1beta1"
        if "/" in plugin.command:
            plugin.command = str(config.abs_file(plugin.command))
    return config


class _PluginAuth(ExecAuth):
    """lightkube's plugin tokens, for plugins that may hang, fail or read stdin."""

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        if self._last_bearer:
            request.headers["Authorization"] = self._last_bearer
            response = yield request
            if response.status_code != 401:
                return
        command, env = self._prepare()
        try:
            with anyio.fail_after(PLUGIN_SECONDS):
                # Its stdin would be the bridge's, which may be the client's.
                done = await anyio.run_process(command, stdin=DEVNULL, env=env)
            self._last_bearer = f"Bearer {json.loads(done.stdout)['status']['token']}"
        except CalledProcessError as error:
            said = error.stderr.decode("utf-8", "replace")
            raise ConfigError(f"{command[0]} returned {error.returncode}: {said}") from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{command[0]} gives no token: {error!r}") from error
        request.headers["Authorization"] = self._last_bearer
        yield request


class Cluster:
    """One namespace of a cluster; the context's by default. The constructor reads files."""

    def __init__(self, config: SingleConfig, namespace: str = "") -> None:
        self.config = config
        self.namespace = namespace or config.namespace
        self.server = config.cluster.server.rstrip("/")
        place = f"namespaces/{self.namespace}"
        self.pods = f"/api/v1/{place}/pods"
        self.leases = f"/apis/coordination.k8s.io/v1/{place}/leases"
        self._ahead = timedelta(0)
        timeout = httpx2.Timeout(REQUEST_SECONDS, pool=None)
        try:
            self._http = AsyncClient(config, ConnectionParams(timeout=timeout))
            if isinstance(self._http.auth, ExecAuth):
                self._http.auth = _PluginAuth(self._http.auth._exec)
            self._ssl: ssl.SSLContext | None = None
            if self.server.startswith("https") and config.user is not None:
                self._ssl = verify_cluster(config.cluster, config.user, config.abs_file)
        except (ConfigError, OSError, ValueError) as error:
            message = f"kubernetes: the kubeconfig's certificates cannot be used: {error}."
            raise SettingsError(message) from error

    async def aclose(self) -> None:
        await self._http.aclose()

    def now(self) -> datetime:
        """Return the API server's time, since clocks of bridges may differ."""
        return datetime.now(UTC) + self._ahead

    async def create(self, path: str, document: Document) -> Document:
        return _object(await self._ask("POST", path, json=document))

    async def get(self, path: str) -> Document | None:
        try:
            return _object(await self._ask("GET", path))
        except faults.ClusterAnswerError as error:
            if error.status != 404:
                raise
            return None

    async def list(self, path: str, labels: Mapping[str, str]) -> list[Document]:
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        answer = await self._ask("GET", path, params={"labelSelector": selector})
        items = answer.get("items")
        return [_object(each) for each in (items if isinstance(items, list) else [None])]

    async def patch(self, path: str, document: Document) -> Document:
        """Merge a document into an object; a changed resource version is an error (409)."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return _object(await self._ask("PATCH", path, json=document, headers=headers))

    async def delete(self, path: str, seen: Document | None = None) -> None:
        """Delete an object at once, if it exists and still has the version `seen`."""
        options: dict[str, Json] = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        if seen is not None:
            options["preconditions"] = {"resourceVersion": seen["metadata"]["resourceVersion"]}
        with faults.ignoring(404, 409):
            await self._ask("DELETE", path, json=options)

    async def discard(self, name: str) -> None:
        """Delete a pod, even when cancelled; the sweep deletes the rest."""
        refusal = "no answer within 10 s"
        with anyio.CancelScope(shield=True), anyio.move_on_after(10):
            try:
                await self.delete(f"{self.pods}/{name}")
            except SandboxError as error:
                refusal = str(error)
            else:
                return
        logger.warning("pod %s was not deleted: %s", name, refusal)

    async def find(self, placed: Document) -> Document | None:
        """Return a pod's current state; None if it was deleted, replaced or restarted."""
        now = await self.get(f"{self.pods}/{placed['metadata']['name']}")
        if now is None or now["metadata"]["uid"] != placed["metadata"]["uid"]:
            return None
        return None if faults.restarts(now) else now

    @asynccontextmanager
    async def attach(self, pod: str) -> AsyncIterator[ClientConnection]:
        query = "stdin=true&stdout=true&stderr=true"
        stream = await self._attach(f"{self.server}{self.pods}/{pod}/attach?{query}")
        try:
            yield stream
        finally:
            await close_socket(stream)

    async def _attach(self, url: str) -> ClientConnection:
        """Connect with the HTTP client's credentials; renew refused ones."""
        request = self._http.build_request("GET", url)
        auth = self._http.auth or httpx2.Auth()
        refused: httpx2.Response | None = None
        with faults.translated(self.server):
            async with aclosing(auth.async_auth_flow(request)) as flow:
                while True:
                    try:
                        # Like the HTTP client; the first request has no answer yet.
                        request = await flow.asend(refused)  # type: ignore[arg-type]
                        return await self._connect_socket(url, request.headers.get("Authorization"))
                    except InvalidStatus as error:
                        said = error.response
                        if said.status_code != 401:
                            raise faults.refusal(said.status_code, bytes(said.body)) from error
                        refused = httpx2.Response(401, request=request)
                    except StopAsyncIteration:
                        raise faults.refusal(401, b"") from None

    async def _connect_socket(self, url: str, authorization: str | None) -> ClientConnection:
        return await connect(
            "ws" + url.removeprefix("http"),
            ssl=self._ssl,
            subprotocols=PROTOCOLS,  # type: ignore[arg-type]  # a NewType of str
            additional_headers={"Authorization": authorization} if authorization else None,
            compression=None,
            open_timeout=REQUEST_SECONDS,
            ping_interval=20,  # Pings keep the connection open in load balancers.
            ping_timeout=None,  # A busy reader answers no ping: that is back-pressure.
            close_timeout=CLOSE_SECONDS,
            max_size=1024 * 1024,  # Kubelets send 32 KiB.
            max_queue=16,
        )

    async def _ask(self, method: str, path: str, **more: Any) -> Document:
        with faults.translated(self.server), anyio.fail_after(REQUEST_SECONDS + PLUGIN_SECONDS):
            async with self._http.stream(method, path, **more) as response:
                body = b""
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ValueError(f"its answer has more than {MAX_ANSWER_BYTES:,} bytes")
            with suppress(KeyError, ValueError):
                date = parsedate_to_datetime(response.headers["date"])
                self._ahead = date.astimezone(UTC) - datetime.now(UTC)
            if response.status_code >= 400:
                raise faults.refusal(response.status_code, body)
            answer = json.loads(body)
            if not isinstance(answer, dict):
                raise ValueError("its answer is no object")
            return answer


async def close_socket(socket: ClientConnection) -> None:
    """Close a websocket, even if its peer reads no more. Idempotent."""
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(2 * CLOSE_SECONDS):
            await socket.close()
        socket.transport.abort()


def _object(answer: Any) -> Document:
    document = answer if isinstance(answer, dict) else {}
    metadata = document.get("metadata")
    if isinstance(metadata, dict):
        names = [metadata.get(key) for key in ("name", "uid", "resourceVersion")]
        parts = [metadata.get("labels"), document.get("spec"), document.get("status")]
        if all(isinstance(name, str) for name in names) and all(
            isinstance(part or {}, dict) for part in parts
        ):
            return document
    raise EngineDownError("The server is not a Kubernetes API server.", code="cluster_down")
