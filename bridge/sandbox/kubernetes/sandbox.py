"""One pod with a program in it.

Owns what is said of its end. A stream that ends says only that; the pod's status says how, about a
second later, and the pod is deleted only once it was asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from signal import SIGKILL

import anyio

from bridge.errors import ChannelClosedError, SandboxError
from bridge.model import Isolation
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.kubernetes import faults
from bridge.sandbox.kubernetes.cluster import Document
from bridge.sandbox.kubernetes.stream import BrokenStreamError, PodStream

logger = logging.getLogger(__name__)

STATUS_SECONDS = 3.0
"""How long the cluster may take to know of an end; kubelets take about one."""

FIRST_POLL_SECONDS = 0.05
LAST_POLL_SECONDS = 1.0
"""Intervals of asking for a pod's status."""

FindPod = Callable[[], Awaitable[Document | None]]
"""Returns the pod as it is now; None if it is gone, or was replaced."""


class PodSandbox:
    """A pod whose program runs; see `bridge.sandbox.backend.Sandbox`.

    Args:
        delete: Deletes the pod.
    """

    def __init__(
        self,
        name: str,
        stream: PodStream,
        *,
        isolation: Isolation,
        find: FindPod,
        delete: Callable[[], Awaitable[None]],
    ) -> None:
        self._name = name
        self._stream = stream
        self._isolation = isolation
        self._find = find
        self._delete = delete
        self._ended = False
        self._killed = False
        self._verdict: ExitReport | SandboxError | None = None

    @property
    def id(self) -> str:
        """The pod's name."""
        return self._name

    @property
    def isolation(self) -> Isolation:
        """The layers in force."""
        return self._isolation

    async def send(self, data: bytes) -> None:
        """Write to stdin; see `Sandbox.send`."""
        await self._stream.send(data)

    def end_input(self) -> None:
        """Not supported: programs end by themselves, and commands do not run here."""
        raise NotImplementedError("a pod's stdin ends with its stream")

    async def end_output(self) -> None:
        """End the pod: its streams share a connection."""
        await self.kill()

    async def receive(self) -> bytes:
        """Read from stdout; see `Sandbox.receive`.

        Raises:
            SandboxLostError: The stream broke, or the cluster ended the pod.
        """
        try:
            data = await self._stream.receive()
        except BrokenStreamError as error:
            self._ended = True
            raise await self._why_lost(str(error)) from error
        if not data and not self._killed and not self._ended:
            self._ended = True
            verdict = await self._judge()
            if isinstance(verdict, ChannelClosedError):
                raise verdict
        return data

    def diagnostics(self) -> str:
        """Return the end of stderr, as far as it was read."""
        return self._stream.stderr

    async def lose(self, why: str) -> SandboxError:
        """End a pod that does not answer any more, and return the error of that."""
        self._ended = True
        error = await self._why_lost(why)
        await self.kill()
        return error

    async def kill(self) -> None:
        """Delete the pod; see `Sandbox.kill`. How it ended is asked for before, if it has."""
        if self._ended and self._verdict is None:
            await self._judge()
        if not self._killed:
            self._killed = True
            await self._delete()
        await self._stream.close()

    async def wait(self) -> ExitReport:
        """Wait for the pod's end; see `Sandbox.wait`.

        Raises:
            SandboxLostError: The cluster ended the pod.
        """
        pause = FIRST_POLL_SECONDS
        while self._verdict is None:
            if self._killed:
                return ExitReport(signal=SIGKILL)
            self._verdict = await self._look()
            if self._verdict is None:
                await anyio.sleep(pause)
                pause = min(pause * 2, LAST_POLL_SECONDS)
        if isinstance(self._verdict, SandboxError):
            raise self._verdict
        return self._verdict

    async def _look(self) -> ExitReport | SandboxError | None:
        """Return what the cluster says of the end; None if it knows of none."""
        pod = await self._find()
        if pod is None:
            return ExitReport(detail=faults.REMOVED)
        return faults.lost_error(pod) or faults.exit_report(pod)

    async def _judge(self) -> ExitReport | SandboxError | None:
        """Wait for the cluster to know how the pod ended, within bounds."""
        pause = FIRST_POLL_SECONDS
        with anyio.move_on_after(STATUS_SECONDS):
            while self._verdict is None:
                try:
                    self._verdict = await self._look()
                except SandboxError as error:
                    logger.debug("no status of pod %s: %s", self._name, error)
                if self._verdict is None:
                    await anyio.sleep(pause)
                    pause = min(pause * 2, LAST_POLL_SECONDS)
        return self._verdict

    async def _why_lost(self, why: str) -> SandboxError:
        pod: Document | None = {}
        with anyio.move_on_after(STATUS_SECONDS):
            try:
                pod = await self._find()
            except SandboxError as error:
                why = error.message
        found = faults.lost(pod, why)
        self._verdict = found
        return found
