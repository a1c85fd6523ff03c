"""The connection to a cluster's API server with plain JSON, and the errors in its answers.

lightkube reads kubeconfig files and credentials. Streams to pods use `websockets`, which takes a
third of the time of lightkube's client for a message. A pod's state outranks its stream, because
an attach reports success for any exit code.
"""

from __future__ import annotations

import json
import logging
import os
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from subprocess import DEVNULL, CalledProcessError
from typing import Any, TypeVar

import anyio
import httpx2
from anyio import to_thread
from lightkube.config.client_adapter import AsyncClient, ConnectionParams, ExecAuth, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import NameValue, User
from lightkube.core.exceptions import ConfigError
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from bridge.errors import (
    EngineDownError,
    LaunchError,
    SandboxError,
    SandboxLostError,
    SettingsError,
)
from bridge.model import Json
from bridge.sandbox.backend import ExitReport, code_and_signal
from bridge.settings.kubernetes import Kubernetes

logger = logging.getLogger(__name__)

T = TypeVar("T")

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
        if self._last_bearer is None:
            self._last_bearer = await self._run()
        request.headers["Authorization"] = self._last_bearer
        yield request

    async def _run(self) -> str:
        command, env = self._prepare()
        try:
            with anyio.fail_after(PLUGIN_SECONDS):
                # Its stdin would be the bridge's, which may be the client's.
                done = await anyio.run_process(command, stdin=DEVNULL, env=env)
            return f"Bearer {json.loads(done.stdout)['status']['token']}"
        except CalledProcessError as error:
            said = error.stderr.decode("utf-8", "replace")
            raise ConfigError(f"{command[0]} returned {error.returncode}: {said}") from error
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"{command[0]} gives no token: {error!r}") from error


class Cluster:
    """One namespace of a cluster; the context's by default. The constructor reads files.

    `find` reads the configuration; it is called again when the server refuses its credentials.
    """

    def __init__(self, find: Callable[[], SingleConfig], namespace: str = "") -> None:
        self._find = find
        self.config, self._http, self._ssl = self._load()
        self._users: Counter[httpx2.AsyncClient] = Counter()
        self._renewing = anyio.Lock()
        self.namespace = namespace or self.config.namespace
        self.server = self.config.cluster.server.rstrip("/")
        place = f"namespaces/{self.namespace}"
        self.pods, self.quotas = f"/api/v1/{place}/pods", f"/api/v1/{place}/resourcequotas"
        self.leases = f"/apis/coordination.k8s.io/v1/{place}/leases"
        self._ahead = timedelta(0)

    def _load(self) -> tuple[SingleConfig, httpx2.AsyncClient, ssl.SSLContext | None]:
        config = self._find()
        timeout = httpx2.Timeout(REQUEST_SECONDS, pool=None)
        try:
            http = AsyncClient(config, ConnectionParams(timeout=timeout))
            if isinstance(http.auth, ExecAuth):
                http.auth = _PluginAuth(http.auth._exec)
            verified: ssl.SSLContext | None = None
            if config.cluster.server.startswith("https") and config.user is not None:
                verified = verify_cluster(config.cluster, config.user, config.abs_file)
            return config, http, verified
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
        except ClusterAnswerError as error:
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
        with ignoring(404, 409):
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
        return None if restarts(now) else now

    @asynccontextmanager
    async def attach(self, pod: str) -> AsyncIterator[ClientConnection]:
        query = "stdin=true&stdout=true&stderr=true"
        url = f"{self.server}{self.pods}/{pod}/attach?{query}"

        async def dial(client: httpx2.AsyncClient) -> tuple[int, ClientConnection | bytes]:
            auth = client.auth or httpx2.Auth()
            try:
                async with aclosing(auth.async_auth_flow(client.build_request("GET", url))) as flow:
                    header = (await anext(flow)).headers.get("Authorization")
                return 101, await self._connect_socket(url, header)
            except InvalidStatus as error:
                return error.response.status_code, bytes(error.response.body)

        with translated(self.server):
            status, answer = await self._send_authorized(dial)
        if isinstance(answer, bytes):
            raise refusal(status, answer)
        try:
            yield answer
        finally:
            await close_socket(answer)

    async def _send_authorized(
        self, send: Callable[[httpx2.AsyncClient], Awaitable[tuple[int, T]]]
    ) -> tuple[int, T]:
        """Send a request; if its credentials are refused, read them again and repeat it once."""
        async with self._borrowed() as client:
            status, answer = await send(client)
            if status != 401:
                return status, answer
            async with self._renewing:
                if client is self._http:
                    with suppress(SettingsError):  # The refusal is the caller's answer.
                        self.config, self._http, self._ssl = await to_thread.run_sync(self._load)
        async with self._borrowed() as client:
            return await send(client)

    @asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[httpx2.AsyncClient]:
        """Lend the HTTP client; the last user of a replaced one closes it."""
        client = self._http
        self._users[client] += 1
        try:
            yield client
        finally:
            self._users[client] -= 1
            if client is not self._http and not self._users[client]:
                del self._users[client]
                await client.aclose()

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
        async def request(client: httpx2.AsyncClient) -> tuple[int, bytes]:
            async with client.stream(method, path, **more) as response:
                body = b""
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise ValueError(f"its answer has more than {MAX_ANSWER_BYTES:,} bytes")
            with suppress(KeyError, ValueError):
                date = parsedate_to_datetime(response.headers["date"])
                self._ahead = date.astimezone(UTC) - datetime.now(UTC)
            return response.status_code, body

        with translated(self.server), anyio.fail_after(REQUEST_SECONDS + PLUGIN_SECONDS):
            status, body = await self._send_authorized(request)
            if status >= 400:
                raise refusal(status, body)
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


Document = Mapping[str, Any]  # An object of the API server's.

_IMAGE_REMEDY = "Correct `image`, `pull_policy` or `pull_secrets` in [kubernetes]."

# Reasons of a waiting container that will never start, and of one without its image.
_NO_CONTAINER = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
_NO_IMAGE = (
    "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff", "InvalidImageName",
    "ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed",
)  # fmt: skip


class ClusterAnswerError(SandboxError):
    """The API server's refusal: 404 no such object, 409 changed meanwhile, else busy."""

    status = 0


def is_gone(error: BaseException) -> bool:
    return isinstance(error, ClusterAnswerError) and error.status in (404, 409)


@contextmanager
def ignoring(*statuses: int) -> Iterator[None]:
    try:
        yield
    except ClusterAnswerError as error:
        if error.status not in statuses:
            raise


# Raised if no server answers, or the server is no API server.
_NO_ANSWER = (httpx2.HTTPError, WebSocketException, OSError, ValueError, LookupError, TypeError)


@contextmanager
def translated(server: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        message = "The kubeconfig gives no credentials for the cluster."
        raise SandboxError(message, host_detail=cut(error), code="cluster_refused") from error
    except _NO_ANSWER as error:
        detail = f"It is at {server}: {cut(error)}."
        raise EngineDownError(
            "The API server does not answer.", host_detail=detail, code="cluster_down"
        ) from error


def refusal(code: int, body: bytes) -> SandboxError:
    try:
        said = cut(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        said = cut(body.decode("utf-8", "replace"))
    detail = f"It says: {said} ({code})."
    if code == 403 and "exceeded quota" in said:
        message = "The namespace's quota is used up."
        return SandboxError(message, host_detail=detail, code="quota")
    if code == 403 and "must specify" in said:
        remedy = "Set [kubernetes] requests."
        return LaunchError("A quota forbids the pod.", remedy=remedy, host_detail=detail)
    if code in (401, 403):
        message = "The cluster refuses the bridge's account."
        return SandboxError(message, host_detail=detail, code="cluster_refused")
    if code in (404, 409, 410, 429) or code >= 500:
        refused = ClusterAnswerError("The cluster refused the request.", host_detail=detail)
        refused.status = code
        return refused
    remedy = "Correct [kubernetes] in config.toml."
    return LaunchError("The cluster does not accept the pod.", remedy=remedy, host_detail=detail)


def start_problem(pod: Document) -> SandboxError | None:
    """Return the error of a pod that cannot start; None if it may still start."""
    if has_ended(pod):
        ended = SandboxLostError("The pod ended before it was used.", host_detail=_words(pod))
        return ended_by_cluster(pod) or ended
    reason = str((_state(pod).get("waiting") or {}).get("reason"))
    message, detail = f"The node cannot start the pod ({reason}).", _words(pod)
    if reason in _NO_IMAGE:
        code = "image_missing" if reason == "ErrImageNeverPull" else "image_pull_failed"
        return SandboxError(message, remedy=_IMAGE_REMEDY, host_detail=detail, code=code)
    return LaunchError(message, host_detail=detail) if reason in _NO_CONTAINER else None


def no_room(pod: Document) -> SandboxError:
    for condition in _status(pod).get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            said = f"{cut(condition.get('message'))}."
            return SandboxError("The cluster has no room.", host_detail=said, code="no_room")
    return SandboxError("The pod did not start in time.", host_detail=_words(pod), code="no_room")


def is_running(pod: Document) -> bool:
    return _status(pod).get("phase") == "Running" and "running" in _state(pod)


def has_ended(pod: Document) -> bool:
    return _status(pod).get("phase") in ("Failed", "Succeeded") or "terminated" in _state(pod)


def restarts(pod: Document) -> int:
    return int(_container(pod).get("restartCount") or 0)


def ended_by_cluster(pod: Document | None) -> SandboxLostError | None:
    """Return the error of a pod that the cluster ended; None if its process ended by itself.

    Only the cluster writes a reason into a pod's own status, or marks a pod for deletion.
    """
    ends = [_status(pod or {}), *(_status(pod or {}).get("conditions") or ())]
    kinds = (None, "DisruptionTarget")
    words = next((each for each in ends if each.get("type") in kinds and each.get("reason")), None)
    if words is None and pod is not None and "deletionTimestamp" not in (pod.get("metadata") or {}):
        return None
    reason, said = (words["reason"], words.get("message")) if words else ("deleted", "")
    return SandboxLostError(
        f"The cluster ended the pod ({cut(reason)}).",
        code="pod_deadline" if reason == "DeadlineExceeded" else "",
        host_detail=f"{cut(said)}." if said else "",
    )


def exit_report(pod: Document) -> ExitReport | None:
    ended = _state(pod).get("terminated")
    if ended is None:
        return ExitReport(detail=_words(pod)) if has_ended(pod) else None
    code, signal = code_and_signal(int(ended["exitCode"]))
    return ExitReport(
        exit_code=code,
        signal=signal,
        # Kubelets report it only if the first process was the victim.
        oom_killed=True if ended.get("reason") == "OOMKilled" else None,
        detail=cut(ended["message"]) if ended.get("message") else "",
    )


def lost(pod: Document | None, why: str) -> SandboxError:
    """Return the error of a broken stream, by the pod's state."""
    message = "The pod or its node cannot be reached any more."
    return ended_by_cluster(pod) or SandboxLostError(message, host_detail=f"{cut(why)}.")


def _status(pod: Document) -> Document:
    return pod.get("status") or {}


def _container(pod: Document) -> Document:
    return next(iter(_status(pod).get("containerStatuses") or ()), {})


def _state(pod: Document) -> Document:
    return _container(pod).get("state") or {}


def _words(pod: Document) -> str:
    state = _state(pod).get("terminated") or _state(pod).get("waiting") or {}
    words = (_status(pod).get("message"), state.get("message"), state.get("reason"))
    return f"{cut(next((text for text in words if text), _status(pod).get('phase')))}."


def cut(text: object) -> str:
    return " ".join(str(text or "no reason given").split()).rstrip(".")[:500]
