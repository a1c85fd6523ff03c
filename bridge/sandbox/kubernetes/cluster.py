"""The connection to a cluster's API server: what the backend asks of it, as plain JSON.

kubeconfig files, contexts, service accounts, exec plugins, certificates and the renewal of tokens
are lightkube's; its HTTP client is the one that the bridge has already. Streams to pods go through
`websockets`, which takes a third of the time for a message.

Enforces: no secret of a kubeconfig gets into an error.
"""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import anyio.to_thread
import httpx2
from lightkube.config.client_adapter import AsyncClient, ConnectionParams, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import NameValue
from lightkube.core.exceptions import ConfigError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidHandshake, InvalidStatus

from bridge.errors import ClusterDownError, SettingsError
from bridge.model import Json
from bridge.sandbox.kubernetes import faults
from bridge.settings.kubernetes import Kubernetes

REQUEST_SECONDS = 10.0
"""For an answer of the API server; milliseconds, but for a busy etcd's."""

PING_SECONDS = 20.0
"""Between pings of a stream, which keep it open in load balancers."""

CLOSE_SECONDS = 0.5
"""For the closing of a stream, whose pod is deleted next."""

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
"""Longest message taken from a stream; kubelets send 32 KiB."""

WAITING_MESSAGES = 16
"""Messages that wait unread, before no more are taken from the network."""

PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")

_OLD_PLUGINS = "client.authentication.k8s.io/v1beta1"
_EXEC_INFO = "KUBERNETES_EXEC_INFO"

Document = Mapping[str, Any]
"""An object of the API server's."""


def find_config(settings: Kubernetes, environ: Mapping[str, str]) -> SingleConfig:
    """Return the cluster, its user and its namespace. Blocks.

    Raises:
        SettingsError: There is none, or the context is not in it.
    """
    place = "kubernetes"
    try:
        if not settings.kubeconfig and not settings.context and "KUBECONFIG" not in environ:
            try:
                return _usable(KubeConfig.from_service_account())
            except (ConfigError, KeyError):
                place = "no service account of a pod, and kubernetes"
        paths = str(settings.kubeconfig or environ.get("KUBECONFIG") or "~/.kube/config")
        files = [KubeConfig.from_file(path) for path in paths.split(os.pathsep) if path]
        wanted = settings.context or next(x.current_context for x in files if x.current_context)
        found = next((x for x in files if wanted in x.contexts), files[0])
        return _usable(found, wanted)
    except StopIteration:
        message = f"{place}: no kubeconfig has a current context."
        raise SettingsError(message, remedy="Set `context` in [kubernetes].") from None
    except (ConfigError, OSError, KeyError, TypeError, ValueError) as error:
        message = f"{place}: the kubeconfig cannot be used: {error!r}."
        remedy = "Set `kubeconfig` and `context` in [kubernetes], or KUBECONFIG."
        raise SettingsError(message, remedy=remedy) from error


def _usable(found: KubeConfig, context: str | None = None) -> SingleConfig:
    config = found.get(context)
    assert config is not None  # without a default it raises
    plugin = config.user.exec if config.user is not None else None
    if plugin is not None:
        # lightkube tells plugins nothing of what they are to answer, and refuses the version that
        # later ones speak, whose answer has the same shape.
        asked = {"apiVersion": plugin.apiVersion, "kind": "ExecCredential"}
        info = json.dumps({**asked, "spec": {"interactive": False}})
        plugin.env = [*(plugin.env or ()), NameValue(name=_EXEC_INFO, value=info)]
        plugin.apiVersion = _OLD_PLUGINS
        if not Path(plugin.command).is_absolute() and "/" in plugin.command:
            plugin.command = str(config.abs_file(plugin.command))
    return config


class Cluster:
    """One namespace of one cluster. Close it after use.

    Args:
        config: Which cluster, as whom.
        namespace: Where pods are; the context's if empty.
    """

    def __init__(self, config: SingleConfig, namespace: str = "") -> None:
        self._config = config
        self.namespace = namespace or config.namespace
        self._http: httpx2.AsyncClient | None = None
        self._ssl: ssl.SSLContext | None = None

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._config.cluster.server.rstrip("/")

    async def open(self) -> None:
        """Load certificates and keys; nothing is asked yet.

        Raises:
            SettingsError: They cannot be loaded.
        """
        try:
            await anyio.to_thread.run_sync(self._open)
        except (ConfigError, OSError, ValueError) as error:
            message = f"kubernetes: the kubeconfig's certificates cannot be used: {error}."
            raise SettingsError(message) from error

    def _open(self) -> None:
        config = self._config
        self._http = AsyncClient(
            config, ConnectionParams(timeout=httpx2.Timeout(REQUEST_SECONDS, pool=None))
        )
        if self.server.startswith("https"):
            assert config.user is not None  # or the client would not have been made
            self._ssl = verify_cluster(config.cluster, config.user, config.abs_file)

    async def aclose(self) -> None:
        """Close its connections. Idempotent."""
        if self._http is not None:
            await self._http.aclose()

    async def create(self, path: str, document: Document) -> Document:
        """Create an object in the collection at `path`."""
        return await self._ask("POST", self._url(path), json=document)

    async def get(self, path: str) -> Document | None:
        """Return an object; None if there is none."""
        try:
            return await self._ask("GET", self._url(path))
        except faults.NotFoundError:
            return None

    async def list(self, path: str, **query: str) -> Document:
        """Return the objects of a collection that a query selects."""
        return await self._ask("GET", self._url(path), params=query)

    async def patch(self, path: str, document: Document) -> Document:
        """Merge a document into an object.

        Raises:
            ConflictError: It has changed since the resource version that the document names.
        """
        headers = {"Content-Type": "application/merge-patch+json"}
        return await self._ask("PATCH", self._url(path), json=document, headers=headers)

    async def delete(self, path: str, uid: str = "") -> bool:
        """Delete an object at once; return whether there was one.

        Args:
            uid: Only the one with this uid; any if empty.
        """
        options: dict[str, Json] = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._ask("DELETE", self._url(path), json=options)
        except (faults.NotFoundError, faults.ConflictError):
            return False
        return True

    async def watch(self, path: str, version: str, **query: str) -> AsyncGenerator[Document, None]:
        """Yield the events of a collection after a resource version, until the server ends it.

        Raises:
            GoneError: The version is too old: list again.
        """
        query |= {"watch": "true", "resourceVersion": version, "timeoutSeconds": "300"}
        timeout = httpx2.Timeout(REQUEST_SECONDS, read=None, pool=None)
        http = self._opened()
        with faults.translated(self.server):
            async with http.stream(
                "GET", self._url(path), params=query, timeout=timeout
            ) as response:
                if response.status_code >= 400:
                    await response.aread()
                    raise faults.refusal(response.status_code, response.content)
                async for line in response.aiter_lines():
                    event = json.loads(line)
                    if event.get("type") == "ERROR":
                        status = event.get("object") or {}
                        raise faults.refusal(int(status.get("code", 500)), json.dumps(status))
                    yield event

    @asynccontextmanager
    async def attach(self, pod: str) -> AsyncIterator[ClientConnection]:
        """Open a stream to a pod's first process.

        Raises:
            SandboxError: The pod, its node or the API server does not answer.
        """
        query = urlencode({"stdin": "true", "stdout": "true", "stderr": "true"})
        url = f"{self._url(f'pods/{pod}/attach')}?{query}"
        stream = await self._attached(url)
        try:
            yield stream
        finally:
            with anyio.CancelScope(shield=True):
                await stream.close()

    async def _attached(self, url: str) -> ClientConnection:
        http = self._opened()
        request = http.build_request("GET", url)
        flow = http.auth.async_auth_flow(request) if http.auth is not None else None
        try:
            request = await anext(flow) if flow is not None else request
            while True:
                try:
                    return await connect(
                        "ws" + url.removeprefix("http"),
                        ssl=self._ssl,
                        subprotocols=PROTOCOLS,  # type: ignore[arg-type]  # NewType of str
                        additional_headers=_credentials(request),
                        compression=None,
                        open_timeout=REQUEST_SECONDS,
                        # Unanswered while nobody reads: that is back-pressure, and no failure.
                        ping_interval=PING_SECONDS,
                        ping_timeout=None,
                        close_timeout=CLOSE_SECONDS,
                        max_size=MAX_MESSAGE_BYTES,
                        max_queue=WAITING_MESSAGES,
                    )
                except InvalidStatus as error:
                    response = error.response
                    if response.status_code != 401 or flow is None:
                        raise faults.refusal(response.status_code, response.body) from error
                    try:
                        # A token that has expired is renewed, as for any other request.
                        request = await flow.asend(httpx2.Response(401, request=request))
                    except StopAsyncIteration:
                        raise faults.refusal(401, response.body) from error
        except (OSError, InvalidHandshake) as error:
            raise faults.down(self.server, error) from error
        except ConfigError as error:
            raise faults.no_credentials(error) from error
        finally:
            if flow is not None:
                await flow.aclose()

    async def _ask(self, method: str, url: str, **more: Any) -> Document:
        with faults.translated(self.server):
            response = await self._opened().request(method, url, **more)
        if response.status_code >= 400:
            raise faults.refusal(response.status_code, response.content)
        found: Document = response.json()
        return found

    def _opened(self) -> httpx2.AsyncClient:
        if self._http is None:
            raise ClusterDownError("The connection to the cluster is not open.")
        return self._http

    def _url(self, path: str) -> str:
        """Return the address of a path below the namespace; of another group's with `group:`."""
        group, mark, rest = path.rpartition(":")
        base = f"apis/{group}" if mark else "api/v1"
        return f"{self.server}/{base}/namespaces/{self.namespace}/{quote(rest)}"


def _credentials(request: httpx2.Request) -> dict[str, str]:
    given = request.headers.get("Authorization")
    return {} if given is None else {"Authorization": given}
