"""One pod with a program: its stream and its end, which the cluster reports a second later."""

from __future__ import annotations

from dataclasses import dataclass
from signal import SIGKILL

import anyio
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, ConnectionClosedOK

from bridge.errors import ChannelClosedError, SandboxError, SandboxLostError
from bridge.model import Isolation
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.kubernetes import faults
from bridge.sandbox.kubernetes.cluster import PROTOCOLS, Cluster, close_socket
from bridge.sandbox.kubernetes.faults import Document

SEND_BYTES = 512 * 1024  # For one message of stdin; servers accept a megabyte.
DIAGNOSTIC_BYTES = 16 * 1024  # Kept of stderr's end; a guest may write without end.

_STDIN, _STDOUT, _STDERR, _STATUS = b"\0", b"\1", b"\2", b"\3"


class PodStream:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._stderr = self._unread = b""
        self._closed = self._finished = self._input_ended = False

    @property
    def stderr(self) -> str:
        return self._stderr.decode("utf-8", "backslashreplace")

    async def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            for start in range(0, len(view), SEND_BYTES):
                await self._socket.send(_STDIN + view[start : start + SEND_BYTES])
        except ConnectionClosed as error:
            raise ChannelClosedError("The pod's stream has ended.") from error

    def end_input(self) -> None:
        """End stdin with the next `receive`, if the protocol supports it."""
        self._input_ended = self._socket.subprotocol == PROTOCOLS[0]

    async def receive(self) -> bytes:
        """Return the next bytes of stdout, empty at the end; raise ConnectionError if it broke."""
        if self._unread:
            data, self._unread = self._unread, b""
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
                if self._finished or self._closed:
                    break
                raise ConnectionError(str(error)) from error
            channel, data = message[:1], message[1:]
            if channel == _STDOUT and data:
                return data
            if channel == _STDERR:
                self._stderr = (self._stderr + data)[-DIAGNOSTIC_BYTES:]
            self._finished = self._finished or channel == _STATUS
        self._closed = True
        return b""

    def unread(self, data: bytes) -> None:
        self._unread = data

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

    async def send(self, data: bytes) -> None:
        await self.stream.send(data)

    def end_input(self) -> None:
        """End stdin if the protocol supports it; v4 ends it with the pod."""
        self.stream.end_input()

    async def end_output(self) -> None:
        """Delete the pod: its streams share a connection."""
        await self.kill()

    async def receive(self) -> bytes:
        try:
            data = await self.stream.receive()
        except ConnectionError as error:
            # A server also breaks the stream of a process that ended with unread input.
            await self._judge()
            if isinstance(self._verdict, ExitReport) and self._verdict.detail != faults.REMOVED:
                return b""
            raise await self.why_lost(str(error)) from error
        if not data and not self._killed and not self._ended:
            await self._judge()
            if isinstance(self._verdict, SandboxLostError):
                raise self._verdict
        return data

    def diagnostics(self) -> str:
        return self.stream.stderr

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
            if pod is None:
                self._verdict = ExitReport(detail=faults.REMOVED)
            else:
                self._verdict = faults.ended_by_cluster(pod) or faults.exit_report(pod)
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
        pod: Document | None = {}
        with anyio.move_on_after(STATUS_SECONDS):
            try:
                pod = await self.cluster.find(self.placed)
            except SandboxError as error:
                silence = error.message
        self._verdict = faults.lost(pod, silence)
        return self._verdict
