"""A program's output: what is shown of it, and the whole of it where that is more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.artifacts import RunArtifacts
from bridge.engine.client import OneRun
from bridge.guest.wire import Output
from bridge.model import Artifact, Limits, Loss
from bridge.rpc.output import OutputBuffer
from bridge.rpc.replies import Clear


@dataclass(frozen=True, kw_only=True)
class LeftStreams:
    """What is shown of the streams, and what was kept."""

    stdout: str = ""
    stderr: str = ""
    dropped: Mapping[str, int] = field(default_factory=dict)
    artifacts: tuple[Artifact, ...] = ()
    missing: tuple[Loss, ...] = ()


class Streams:
    """Takes both streams of one run."""

    def __init__(
        self,
        limits: Limits,
        *,
        run: OneRun | None = None,
        artifacts: RunArtifacts | None = None,
        clear: Clear | None = None,
    ) -> None:
        self._run = run
        self._artifacts = artifacts
        self._clear = clear
        self._buffers = {
            "stdout": OutputBuffer(limits.output_bytes),
            "stderr": OutputBuffer(limits.output_bytes),
        }

    async def take(self, frame: Output) -> None:
        """Add what was written."""
        self._buffers[frame.stream].append(frame.text, frame.skipped)

    async def finish(self) -> LeftStreams:
        """Return what there is."""
        return LeftStreams(
            stdout=self._buffers["stdout"].text(),
            stderr=self._buffers["stderr"].text(),
            dropped={
                name: buffer.dropped for name, buffer in self._buffers.items() if buffer.dropped
            },
        )

    def discard(self) -> None:
        """Keep nothing."""
