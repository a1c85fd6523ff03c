"""The Engine API calls that a sandbox needs, awaitable and with the bridge's errors.

Owns the docker SDK's client: its creation, the threads for its blocking calls, their timeouts, and
the translation of its exceptions. Knows nothing of runs.

All threads share one client. requests' session is shared only for its connection pool, which is
made for that; the session is not changed after its creation.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread
import docker
import docker.errors
import requests.exceptions
from docker.tls import TLSConfig

from bridge.errors import EngineDownError
from bridge.model import Json
from bridge.sandbox.container import facts, faults
from bridge.sandbox.container.endpoints import EngineEndpoint
from bridge.sandbox.container.facts import EngineFacts, EngineKind
from bridge.sandbox.container.stream import ANSWER_SECONDS, AttachedStream, attach

HELLO_SECONDS = 10.0
"""For the first answer, which is all that a dead engine behind a live socket may cost."""

THREADS = 16
"""Calls under way at once. Each takes 5 to 300 ms, so this is hundreds a second; more would only
queue in the engine."""

OLDEST_API = "1.40"
"""For the ping, whose address has no version in it; what is spoken is what the engine names."""

_DESCRIBE = "describe itself"
_ATTACH = "attach to a container"

LIBPOD_PREFIX = "/v4.0.0/libpod"  # podman's own API, oldest version that podman 4 and 5 both serve.

_T = TypeVar("_T")
_FOREIGN = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


class EngineApi:
    """One engine at one endpoint. Made by `connect`; closed by `close`."""

    def __init__(
        self, client: docker.APIClient, kind: EngineKind, endpoint: EngineEndpoint
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._limiter = anyio.CapacityLimiter(THREADS)
        self.kind: EngineKind = kind

    @property
    def client(self) -> docker.APIClient:
        """The SDK's client, for those who do more with an engine than run containers."""
        return self._client

    async def facts(self) -> EngineFacts:
        if self.kind == "docker":
            return facts.docker_facts(await self._read(self._client.info, doing=_DESCRIBE))
        return facts.podman_facts(await self._read(partial(self._libpod, "/info"), doing=_DESCRIBE))

    async def create(self, config: Mapping[str, Json], name: str) -> str:
        """Create a container and return its id. Never left half-way by cancellation.

        anyio's cancellation waits for the answer. Should the waiting be torn down harder than
        that (the event loop is going), the thread removes what it created.
        """
        lost = threading.Event()

        def make() -> str:
            create = cast("Callable[..., Any]", self._client.create_container_from_config)
            answer = create(dict(config), name)
            container = str(answer["Id"])
            if lost.is_set():
                self._client.remove_container(container, force=True, v=True)
            return container

        try:
            return await self._read(make, doing="create a container", change=True)
        except BaseException:
            lost.set()
            raise

    async def attach(self, container: str) -> AttachedStream:
        """Connect to a created container's stdin, stdout and stderr."""
        return await self._read(partial(self._attach, container), doing=_ATTACH, change=True)

    async def attach_separately(self, container: str) -> AttachedStream:
        """Connect to a created container twice: what it prints comes by another way than its stdin.

        podman's monitor ends a connection by a reset when the container ends with input unread, and
        what was printed and not yet read of that connection is lost. One that carries no input is
        read to its end.
        """

        def separate_streams() -> AttachedStream:
            # With the outputs: podman does not read what the monitor writes when no one wants it,
            # and then the monitor waits.
            feeding = self._attach(container)
            try:
                return self._attach(container, feeding)
            except BaseException:
                feeding.close()
                raise

        return await self._read(separate_streams, doing=_ATTACH, change=True)

    def _attach(self, container: str, feeding: AttachedStream | None = None) -> AttachedStream:
        stdin = "" if feeding is not None else "&stdin=1"
        target = f"/v{self._client.api_version}/containers/{container}/attach"
        target += f"?stream=1&stdout=1&stderr=1{stdin}"
        return attach(self._endpoint, target, engine=self.kind, feeding=feeding)

    async def start(self, container: str) -> None:
        """Start a created container.

        Cancelled, it returns at once: removing the container, which must follow, waits in the
        engine for a start that is under way.
        """
        await self._read(partial(self._client.start, container), doing="start a container")

    async def inspect(self, container: str) -> Mapping[str, Json] | None:
        """Return what the engine knows of a container, or None if there is no such."""
        return await self._read(
            partial(self._tolerate, faults.is_gone, self._client.inspect_container, container),
            doing="inspect a container",
        )

    async def oci_runtime_of(self, container: str) -> str:
        """Return the OCI runtime a container was really started with; empty if untold."""
        if self.kind == "podman":
            look = partial(self._libpod, f"/containers/{container}/json")
            seen = await self._read(look, doing="inspect a container")
            return facts.runtime_name(str(seen.get("OCIRuntime") or ""))
        seen = await self.inspect(container) or {}
        return facts.runtime_name(str((seen.get("HostConfig") or {}).get("Runtime") or ""))

    async def kill(self, container: str) -> None:
        """Kill everything in a container. Harmless when it has ended or is gone.

        podman is asked by its own API: by Docker's it answers only when its monitor has cleaned up,
        and where that fails, as with a configuration that is gone by then, after 20 seconds.
        """

        def settled(error: BaseException) -> bool:
            return faults.is_gone(error) or faults.is_not_running(error)

        def kill() -> None:
            if self.kind == "podman":
                address = f"{self._client.base_url}{LIBPOD_PREFIX}/containers/{container}/kill"
                self._send(self._client.post, f"{address}?signal=SIGKILL")
            else:
                self._client.kill(container, "SIGKILL")

        await self._read(partial(self._tolerate, settled, kill), doing="kill a container")

    async def remove(self, container: str) -> bool:
        """Kill and remove a container with its volumes; tell whether it was still there."""
        answer = await self._read(
            partial(
                self._tolerate,
                lambda e: faults.is_gone(e) or faults.is_being_removed(e),
                self._remove_now,
                container,
            ),
            doing="remove a container",
        )
        return answer is not None

    async def labelled(self, label: str) -> Sequence[tuple[str, Mapping[str, str]]]:
        """List containers in any state that carry a label, as (id, labels)."""
        look = partial(self._client.containers, all=True, filters={"label": label})
        found = await self._read(look, doing="list containers")
        return [(str(c["Id"]), dict(c.get("Labels") or {})) for c in found]

    def close(self) -> None:
        """Close the connections. Streams handed out stay open."""
        self._client.close()

    def _remove_now(self, container: str) -> bool:
        self._client.remove_container(container, force=True, v=True)
        return True

    def _libpod(self, path: str) -> Mapping[str, Any]:
        address = f"{self._client.base_url}{LIBPOD_PREFIX}{path}"
        return cast("Mapping[str, Any]", self._send(self._client.get, address).json())

    @staticmethod
    def _send(method: Callable[..., requests.Response], address: str) -> requests.Response:
        response = method(address, timeout=ANSWER_SECONDS)
        try:
            response.raise_for_status()
        except requests.exceptions.HTTPError as error:
            raise docker.errors.APIError(
                str(error), response=response, explanation=response.text
            ) from error
        return response

    @staticmethod
    def _tolerate(
        harmless: Callable[[BaseException], bool], call: Callable[..., _T], *args: object
    ) -> _T | None:
        try:
            return call(*args)
        except docker.errors.APIError as error:
            if harmless(error):
                return None
            raise

    async def _read(self, call: Callable[[], _T], *, doing: str, change: bool = False) -> _T:
        """Run a call; cancelled, its thread continues and no one waits for it.

        Args:
            change: Whether its result must not be lost: then cancellation waits for it.
        """
        try:
            return await anyio.to_thread.run_sync(
                call, abandon_on_cancel=not change, limiter=self._limiter
            )
        except _FOREIGN as error:
            raise faults.from_exception(error, doing=doing, engine=self.kind) from error


async def connect(endpoint: EngineEndpoint, *, asked: EngineKind) -> EngineApi:
    def open_client() -> tuple[docker.APIClient, EngineKind]:
        headers = _ping(endpoint)
        version = headers.get("Api-Version", OLDEST_API)
        return _client(endpoint, version, ANSWER_SECONDS), facts.engine_kind(headers)

    try:
        # Not abandoned: no one else would close the client.
        client, kind = await anyio.to_thread.run_sync(open_client)
    except _FOREIGN as error:
        raise faults.from_exception(error, doing="answer a ping", engine=asked) from error
    except ValueError as error:
        message = f"{endpoint.url} is no engine: {error}."
        raise EngineDownError(message, remedy=faults.down_remedy(asked)) from error
    return EngineApi(client, kind, endpoint)


def answers(endpoint: EngineEndpoint) -> bool:
    """Return whether an engine answers a ping within `HELLO_SECONDS`. Blocks."""
    with suppress(*_FOREIGN):
        _ping(endpoint)
        return True
    return False


def _ping(endpoint: EngineEndpoint) -> Mapping[str, str]:
    """Return the headers of an engine's answer."""
    # The SDK would ask for `/version`, for which podman runs half a dozen commands.
    client = _client(endpoint, OLDEST_API, HELLO_SECONDS)
    try:
        answer = client.get(f"{client.base_url}/_ping", timeout=HELLO_SECONDS)
        answer.raise_for_status()
        return answer.headers
    finally:
        client.close()


def _client(endpoint: EngineEndpoint, version: str, timeout: float) -> docker.APIClient:
    tls: TLSConfig | bool = False
    url = endpoint.url
    if endpoint.certificates is not None:
        here = endpoint.certificates
        tls = TLSConfig(
            client_cert=(str(here / "cert.pem"), str(here / "key.pem")),
            ca_cert=str(here / "ca.pem") if endpoint.verify else None,
            verify=endpoint.verify,
        )
        url = url.replace("tcp://", "https://", 1)
    client = docker.APIClient(
        base_url=url, version=version, timeout=int(timeout), tls=tls, max_pool_size=THREADS
    )
    # Proxies and credentials come from settings or not at all, never from the process's own
    # environment or a .netrc.
    client.trust_env = False
    return client
