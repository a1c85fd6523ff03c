"""The Engine API calls of a sandbox, awaitable and with the bridge's errors.

All threads share one docker SDK client, which does not change after its creation.

A container's stdin, stdout and stderr are on one attached socket. Outputs arrive in frames: an
eight-byte header (stream number, three zero bytes, big-endian length) and a payload. Engines split
frames anywhere. Nothing is read ahead, so a flood stays in the kernel's buffers.
"""

from __future__ import annotations

import errno
import ssl
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import PurePosixPath
from socket import SHUT_RDWR, SHUT_WR, socket
from typing import Any, cast

import anyio.lowlevel
import anyio.to_thread
import docker
import docker.errors
import h11
import requests.exceptions
from docker.tls import TLSConfig
from requests.structures import CaseInsensitiveDict

from bridge.descriptor_reader import DIAGNOSTIC_BYTES, Reader
from bridge.errors import ChannelClosedError
from bridge.event_loop import background_task
from bridge.model import Json
from bridge.sandbox.container import faults
from bridge.sandbox.container.endpoints import EngineEndpoint, EngineKind

HELLO_SECONDS = 10.0  # A dead engine behind a live socket may never answer a ping.

THREADS = 16  # Concurrent calls of 5 to 300 ms each; more would only queue in the engine.

LIBPOD_PREFIX = "/v4.0.0/libpod"  # The oldest version of podman's own API in podman 4 and 5.

_FOREIGN = (docker.errors.DockerException, requests.exceptions.RequestException, OSError)


class EngineApi:
    def __init__(
        self, client: docker.APIClient, kind: EngineKind, endpoint: EngineEndpoint
    ) -> None:
        self.client = client
        self._endpoint = endpoint
        self._limiter = anyio.CapacityLimiter(THREADS)
        self.kind: EngineKind = kind

    async def facts(self) -> EngineFacts:
        if self.kind == "docker":
            return docker_facts(await self.ask("describe itself", self.client.info))
        return podman_facts(await self.ask("describe itself", self._libpod, "/info"))

    async def create(self, config: Mapping[str, Json], name: str) -> str:
        """Create a container and return its id. A cancelled call waits for the answer."""
        create = cast("Callable[..., Any]", self.client.create_container_from_config)
        made = await self.ask("create a container", create, dict(config), name, change=True)
        return str(made["Id"])

    async def attach(self, container: str, *, separately: bool = False) -> AttachedStream:
        """Connect to a created container's stdin, stdout and stderr.

        podman's monitor resets a connection when the container ends with unread input, and unread
        output is lost. So `separately` connects twice: output comes by a connection without input.
        """

        # The first connection has outputs too: podman would not read unwanted outputs, and its
        # monitor would wait.
        target = f"/v{self.client.api_version}/containers/{container}/attach"
        target += "?stream=1&stdout=1&stderr=1"

        def open_streams() -> AttachedStream:
            first = attach(self._endpoint, f"{target}&stdin=1", engine=self.kind)
            if not separately:
                return first
            try:
                return attach(self._endpoint, target, engine=self.kind, feeding=first)
            except BaseException:
                first.close()
                raise

        stream: AttachedStream = await self.ask("attach to a container", open_streams, change=True)
        return stream

    async def start(self, container: str) -> None:
        """Start a container. A cancelled call returns at once; the removal waits for the engine."""
        await self.ask("start a container", self.client.start, container)

    async def inspect(self, container: str) -> Mapping[str, Json] | None:
        look = self.client.inspect_container
        seen = await self.ask("inspect a container", look, container, harmless=(faults.is_gone,))
        return cast("Mapping[str, Json] | None", seen)

    async def oci_runtime_of(self, container: str) -> str:
        if self.kind == "podman":
            path = f"/containers/{container}/json"
            seen = await self.ask("inspect a container", self._libpod, path)
            return runtime_name(str(seen.get("OCIRuntime") or ""))
        seen = await self.inspect(container) or {}
        return runtime_name(str((seen.get("HostConfig") or {}).get("Runtime") or ""))

    async def kill(self, container: str) -> None:
        """Kill all processes of a container, if it still runs.

        podman's Docker-like API answers only after its monitor's clean-up, or after 20 seconds.
        """

        def kill() -> None:
            if self.kind == "podman":
                address = f"{self.client.base_url}{LIBPOD_PREFIX}/containers/{container}/kill"
                self._send(self.client.post, f"{address}?signal=SIGKILL")
            else:
                self.client.kill(container, "SIGKILL")

        await self.ask("kill a container", kill, harmless=(faults.is_gone, faults.is_not_running))

    async def remove(self, container: str) -> None:
        remove = partial(self.client.remove_container, force=True, v=True)
        harmless = (faults.is_gone, faults.is_being_removed)
        await self.ask("remove a container", remove, container, harmless=harmless)

    async def list_labelled(self, label: str) -> Sequence[tuple[str, Mapping[str, str]]]:
        look = partial(self.client.containers, all=True, filters={"label": label})
        containers = await self.ask("list containers", look)
        return [(str(c["Id"]), dict(c.get("Labels") or {})) for c in containers]

    def close(self) -> None:
        """Close the connections, but not the attached streams."""
        self.client.close()

    def _libpod(self, path: str) -> Mapping[str, Any]:
        address = f"{self.client.base_url}{LIBPOD_PREFIX}{path}"
        return cast("Mapping[str, Any]", self._send(self.client.get, address).json())

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

    async def ask(
        self,
        doing: str,
        call: Callable[..., Any],
        *args: object,
        change: bool = False,
        harmless: Sequence[Callable[[BaseException], bool]] = (),
    ) -> Any:
        """Call in a thread; return None for an error that `harmless` accepts.

        Args:
            doing: The call's purpose, for errors.
            change: Whether a cancelled call waits for its result.
        """
        try:
            return await anyio.to_thread.run_sync(
                call, *args, abandon_on_cancel=not change, limiter=self._limiter
            )
        except _FOREIGN as error:
            if any(check(error) for check in harmless):
                return None
            raise faults.from_exception(error, doing=doing, engine=self.kind) from error


async def connect(endpoint: EngineEndpoint, *, asked: EngineKind) -> EngineApi:
    """Connect to an engine; `asked` is its expected kind, for errors."""

    def open_client() -> tuple[docker.APIClient, EngineKind]:
        headers = ping_engine(endpoint)
        kind: EngineKind = "podman" if "Libpod-Api-Version" in headers else "docker"
        # Ping first: the SDK does not close a socket that cannot connect.
        return _client(endpoint, headers.get("Api-Version", "1.40")), kind

    try:
        # Not abandoned on cancellation, so that the client is closed.
        client, kind = await anyio.to_thread.run_sync(open_client)
    except (*_FOREIGN, ValueError) as error:
        doing = f"reach {endpoint.url}, {endpoint.origin}"
        raise faults.from_exception(error, doing=doing, engine=asked) from error
    return EngineApi(client, kind, endpoint)


def ping_engine(endpoint: EngineEndpoint) -> Mapping[str, str]:
    """Return the headers of an engine's answer to a ping; raise OSError without one. Blocks."""
    with closing(HTTPConnection("engine")) as http:
        http.sock = endpoint.connect(HELLO_SECONDS)
        try:
            # The SDK would request `/version`, for which podman runs half a dozen commands.
            http.request("GET", "/_ping")
            with http.getresponse() as answer:
                headers, status = CaseInsensitiveDict(answer.getheaders()), answer.status
        except HTTPException as error:
            raise OSError(errno.EPROTO, f"the server there is no engine ({error!r})") from error
    if status != 200:
        raise OSError(errno.EPROTO, f"it answers {status} to a ping")
    return headers


def _client(endpoint: EngineEndpoint, version: str) -> docker.APIClient:
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
        base_url=url, version=version, timeout=int(ANSWER_SECONDS), tls=tls, max_pool_size=THREADS
    )
    # No proxies or credentials from the process's environment or a .netrc.
    client.trust_env = False
    return client


@dataclass(frozen=True, kw_only=True)
class EngineFacts:
    """The properties that an engine reports. It may overstate its isolation."""

    kind: EngineKind  # The engine that answers, whatever its socket's name.
    version: str
    rootless: bool  # Whether it runs as an ordinary user, in a user namespace.
    oci_runtime: str
    cgroup_version: str  # "1", "2" or empty.
    cpus: int  # 0 if unknown.
    controllers: frozenset[str]  # The limits that it applies: "memory", "pids", "cpu".
    obeys_ulimits: bool
    seccomp: bool
    mandatory_access: str  # "apparmor" or "selinux" if one confines containers, else empty.
    remaps_ids: bool = False  # Whether the daemon puts every container into a user namespace.
    kernel: str = ""  # The host kernel's release; empty if unknown.
    storage: str = ""
    unlimited: tuple[str, ...] = ()  # The OCI runtimes that are configured to apply no limits.


def docker_facts(info: Mapping[str, Json]) -> EngineFacts:
    # "name=seccomp,profile=default" and its like.
    options: dict[str, str] = {}
    for text in info.get("SecurityOptions") or []:
        fields = dict(part.partition("=")[::2] for part in str(text).split(","))
        options[fields.get("name", "")] = fields.get("profile", "")
    limited = {"memory": info.get("MemoryLimit"), "pids": info.get("PidsLimit", True)}
    limited["cpu"] = info.get("CpuCfsQuota")
    return EngineFacts(
        kind="docker",
        version=str(info.get("ServerVersion") or ""),
        rootless="rootless" in options,
        oci_runtime=str(info.get("DefaultRuntime") or ""),
        cgroup_version=str(info.get("CgroupVersion") or ""),
        cpus=int(info.get("NCPU") or 0),
        controllers=frozenset(name for name, applied in limited.items() if applied),
        obeys_ulimits=True,
        seccomp=options.get("seccomp", "unconfined") != "unconfined",
        mandatory_access=next((n for n in ("apparmor", "selinux") if n in options), ""),
        remaps_ids="userns" in options,
        kernel=str(info.get("KernelVersion") or ""),
        storage=str(info.get("Driver") or ""),
        unlimited=tuple(
            name
            for name, runtime in sorted((info.get("Runtimes") or {}).items())
            # gVisor's flag for hosts whose cgroups it cannot use
            if "--ignore-cgroups" in (runtime.get("runtimeArgs") or ())
        ),
    )


def podman_facts(info: Mapping[str, Json]) -> EngineFacts:
    """Return the facts from `/info` of podman's own API.

    podman's Docker-like API claims every limit, even if rootless podman applies none.
    """
    host: Mapping[str, Json] = info.get("host") or {}
    security: Mapping[str, Json] = host.get("security") or {}
    rootless = bool(security.get("rootless"))
    confined = [n for n in ("apparmor", "selinux") if security.get(f"{n}Enabled")]
    return EngineFacts(
        kind="podman",
        version=str((info.get("version") or {}).get("Version") or ""),
        rootless=rootless,
        oci_runtime=runtime_name(str((host.get("ociRuntime") or {}).get("name") or "")),
        cgroup_version=str(host.get("cgroupVersion") or "").removeprefix("v"),
        cpus=int(host.get("cpus") or 0),
        controllers=frozenset(host.get("cgroupControllers") or ()) & {"memory", "pids", "cpu"},
        # Rootless podman's Docker-like API ignores ulimits; only its command line has them.
        obeys_ulimits=not rootless,
        seccomp=bool(security.get("seccompEnabled")),
        mandatory_access=confined[0] if confined else "",
        kernel=str(host.get("kernel") or ""),
        storage=str((info.get("store") or {}).get("graphDriverName") or ""),
    )


def runtime_name(runtime: str) -> str:
    return PurePosixPath(runtime).name


_HEADER = struct.Struct(">BxxxL")
_STDERR = 2


class FrameDecoder:
    """Splits the bytes of an attached stream into stdout, which it returns, and stderr."""

    def __init__(self) -> None:
        # The ends of the process's stderr and of the engine's own messages.
        self.stderr = self.engine_error = b""
        self.on_error: Callable[[bytes], None] | None = None  # Called with all of stderr.
        self._unread = bytearray()
        self._stream = 0
        self._left = 0

    @property
    def at_boundary(self) -> bool:
        return not self._left and not self._unread

    def decode(self, data: bytes) -> bytes:
        """Return the stdout bytes of the next data; raise ValueError for other formats."""
        out: list[bytes] = []
        self._unread += data
        while self._unread:
            if self._left:
                payload = bytes(self._unread[: self._left])
                del self._unread[: self._left]
                self._left -= len(payload)
                # 0 is stdin that an engine echoes; its documentation assigns it to stdout.
                if self._stream in {0, 1}:
                    out.append(payload)
                elif self._stream == _STDERR:
                    self.stderr = (self.stderr + payload)[-DIAGNOSTIC_BYTES:]
                    if self.on_error is not None:
                        self.on_error(payload)
                else:
                    self.engine_error = (self.engine_error + payload)[-DIAGNOSTIC_BYTES:]
                continue
            header = bytes(self._unread[: _HEADER.size])
            if len(header) < _HEADER.size:
                break
            del self._unread[: _HEADER.size]
            self._stream, self._left = _HEADER.unpack(header)
            # 3 is the stream of the engine's own messages.
            if self._stream > 3 or header[1:4] != b"\0\0\0":
                raise ValueError(f"not an attach stream: frame header {header!r}")
        return b"".join(out)


ANSWER_SECONDS = 60.0  # A creation takes 0.7 s on slow storage; a machine may have to wake up.

CALL_BYTES = 256 * 1024  # Most of one read or write; about the size of a local socket's buffer.


class AttachedStream:
    """A raw connection to one container, for one reader and one writer.

    Args:
        leftover: Bytes that followed the engine's HTTP header.
        feeding: Another connection to the container, for stdin; its output is discarded.
    """

    def __init__(
        self, connection: socket, leftover: bytes, *, feeding: AttachedStream | None = None
    ) -> None:
        self._feeding = feeding
        self._socket = connection
        self._leftover = leftover
        self._decoder = FrameDecoder()
        self._ended = False
        self._closed = False
        self._reader = Reader(connection, self._take)

    @property
    def stderr(self) -> str:
        parts = (self._decoder.stderr, self._decoder.engine_error)
        return "\n".join(part.decode("utf-8", "backslashreplace") for part in parts if part)

    async def receive(self) -> bytes:
        """Return the next bytes of stdout, empty at the end; raise ChannelClosedError if broken."""
        if self._feeding is None or self._ended:
            return await self._receive()
        # The engine's monitor writes to each connection in turn and waits for the slowest.
        async with background_task(self._feeding.discard):
            return await self._receive()

    def _take(self) -> bytes | None:
        try:
            return self._socket.recv(CALL_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return b""

    async def discard(self) -> None:
        with suppress(ChannelClosedError):
            while await self.receive():
                pass

    async def _receive(self) -> bytes:
        while not self._ended:
            data, self._leftover = self._leftover, b""
            if not data:
                # The connection is reset if the process ended with unread input.
                with self._translated("read from"), suppress(ConnectionResetError):
                    data = await self._reader.read()
            if not data:
                self._end()
                break
            try:
                out = self._decoder.decode(data)
            except ValueError as error:
                raise ChannelClosedError(f"The engine sent {error}.") from error
            if out:
                return out
        # A loop over an ended stream must be cancellable.
        await anyio.lowlevel.checkpoint()
        return b""

    async def send(self, data: bytes) -> None:
        """Write all of `data`; wait while the peer does not read."""
        if self._feeding is not None:
            await self._feeding.send(data)
            return
        view = memoryview(data)
        with self._translated("write to"):
            while view:
                try:
                    view = view[self._socket.send(view[:CALL_BYTES]) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await anyio.wait_writable(self._socket)
                except ssl.SSLWantReadError:
                    await anyio.wait_readable(self._socket)

    def on_error(self, take: Callable[[bytes], None]) -> None:
        self._decoder.on_error = take

    def end_input(self) -> None:
        """Close the process's stdin; its output is still read. Idempotent."""
        if self._feeding is not None:
            self._feeding.end_input()
        elif not self._closed:
            with suppress(OSError, ValueError):
                self._socket.shutdown(SHUT_WR)

    def close(self) -> None:
        """Close the connection; tasks that wait on it get `ChannelClosedError`. Idempotent."""
        if self._feeding is not None:
            self._feeding.close()
        if self._closed:
            return
        self._closed = True
        self._reader.close()
        with suppress(OSError, ValueError):
            anyio.notify_closing(self._socket)
        with suppress(OSError, ValueError):
            self._socket.shutdown(SHUT_RDWR)
        with suppress(OSError, ValueError):
            self._socket.close()

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, anyio.ClosedResourceError) as error:
            reason = "it was closed" if self._closed else str(error) or type(error).__name__
            raise ChannelClosedError(f"Could not {doing} the sandbox: {reason}.") from error

    def _end(self) -> None:
        self._ended = True
        # docker accepts stdin for a while after the process's end.
        self.close()
        if not self._decoder.at_boundary:
            message = "The engine ended the sandbox's output in the middle of a frame."
            raise ChannelClosedError(message)


def attach(
    endpoint: EngineEndpoint,
    target: str,
    *,
    engine: EngineKind,
    feeding: AttachedStream | None = None,
) -> AttachedStream:
    """Open a raw connection to a container. Blocks."""
    connection = endpoint.connect(ANSWER_SECONDS)
    try:
        leftover = _upgrade(connection, target, engine)
        connection.setblocking(False)
    except h11.RemoteProtocolError as error:
        connection.close()
        raise OSError(errno.EPROTO, str(error)) from error
    except BaseException:
        connection.close()
        raise
    return AttachedStream(connection, leftover, feeding=feeding)


def _upgrade(connection: socket, target: str, engine: EngineKind) -> bytes:
    """Upgrade a connection; return the bytes after the answer's header."""
    http = h11.Connection(h11.CLIENT)
    headers = [("Host", "engine"), ("Connection", "Upgrade"), ("Upgrade", "tcp")]
    request = h11.Request(method="POST", target=target, headers=[*headers, ("Content-Length", "0")])
    connection.sendall((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
    said = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(connection.recv(CALL_BYTES))
        elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            return http.trailing_data[0]
        elif isinstance(event, h11.Data):
            said += event.data
        # Any other status is a refusal; the body has the reason.
        if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed) or len(said) > CALL_BYTES:
            text = said.decode("utf-8", "replace")
            raise faults.from_text(text, doing="attach to a container", engine=engine)
