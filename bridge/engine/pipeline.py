"""The stages of a pipeline, running side by side with bytes going from one to the next.

Owns the relay, the one deadline over all of it, and what is kept of the output. Nothing is gathered
between stages: one piece is under way from each to the next, the rest waits in the kernel's pipes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace

import anyio

from bridge.errors import BridgeError, ChannelClosedError
from bridge.gate.redaction import Redactor
from bridge.model import Isolation
from bridge.sandbox.backend import Backend, ExitReport, LaunchSpec, Sandbox
from bridge.sandbox.layers import common


class Capture:
    """Keeps the head and the tail of a stream within `limit` bytes.

    Secrets are taken out first, across the pieces that the stream comes in: neither a piece's end
    nor the cut in the middle leaves half of one.
    """

    def __init__(self, limit: int, redactor: Redactor) -> None:
        self._half = limit // 2
        self._cleared = redactor.stream()
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self.dropped = 0

    def feed(self, data: bytes) -> None:
        """Take in the next bytes."""
        self._keep(self._cleared.feed(data))

    def finish(self) -> None:
        """Take in what waited for more. Idempotent."""
        self._keep(self._cleared.finish())

    def text(self) -> str:
        """Return what is kept, with a line about what is not."""
        head, tail = bytes(self._head), b"".join(self._tail)
        if not self.dropped:
            return (head + tail).decode("utf-8", "backslashreplace")
        gap = f"\n[... {self.dropped:,} bytes dropped ...]\n"
        return _decode(head) + gap + _decode(tail)

    def _keep(self, data: bytes) -> None:
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        if not data:
            return
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size > self._half:
            first = self._tail.popleft()
            excess = min(len(first), self._tail_size - self._half)
            self.dropped += excess
            self._tail_size -= excess
            if excess < len(first):
                self._tail.appendleft(first[excess:])


def _decode(data: bytes) -> str:
    # A cut may have gone through a character.
    return data.decode("utf-8", "ignore")


@dataclass(kw_only=True)
class Pipeline:
    """What became of a pipeline.

    Attributes:
        ends: How each stage ended; None for one that was ended from here.
        refused: Whether what a stage wrote could not be given to the next.
        timed_out: Whether the deadline passed.
    """

    ends: list[ExitReport | None]
    refused: list[bool]
    timed_out: bool = False
    isolation: Isolation | None = field(default=None)


async def run_pipeline(
    backend: Backend,
    specs: Sequence[LaunchSpec],
    *,
    stdin: bytes,
    timeout: float,
    output: Capture,
    errors: Sequence[Capture],
) -> Pipeline:
    """Run all stages to their end or the deadline; nothing of them is left.

    Args:
        output: Takes the last stage's stdout.
        errors: Take each stage's stderr.

    Raises:
        SandboxError: A stage could not be started, or was lost.
    """
    pipeline = Pipeline(ends=[None] * len(specs), refused=[False] * len(specs))
    async with AsyncExitStack() as stack:
        with anyio.move_on_after(timeout) as deadline:
            stages = [
                await stack.enter_async_context(backend.launch(_heard(spec, capture)))
                for spec, capture in zip(specs, errors, strict=True)
            ]
            pipeline.isolation = common([stage.isolation for stage in stages])
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_feed, stages[0], stdin)
                    for number in range(len(stages)):
                        tasks.start_soon(_stage, number, stages, pipeline, output)
            except ExceptionGroup as group:
                raise _first(group) from group
        pipeline.timed_out = deadline.cancelled_caught
    for capture in (output, *errors):
        capture.finish()
    return pipeline


def _heard(spec: LaunchSpec, capture: Capture) -> LaunchSpec:
    if spec.command is None:
        return spec
    return replace(spec, command=replace(spec.command, on_error=capture.feed))


async def _feed(stage: Sandbox, data: bytes) -> None:
    try:
        await stage.send(data)
    except ChannelClosedError:
        return  # it did not want to read all of it
    stage.end_input()


async def _stage(
    number: int, stages: Sequence[Sandbox], pipeline: Pipeline, output: Capture
) -> None:
    stage = stages[number]
    following = stages[number + 1] if number + 1 < len(stages) else None
    while data := await stage.receive():
        if following is None:
            output.feed(data)
        elif not pipeline.refused[number]:
            try:
                await following.send(data)
            except ChannelClosedError:
                pipeline.refused[number] = True
                await stage.end_output()
    if following is not None:
        following.end_input()
    pipeline.ends[number] = await stage.wait()


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Return the bridge's error in a group, which is what callers know."""
    matched, rest = group.split(BridgeError)
    leaf: Exception | ExceptionGroup[Exception] = group if rest is not None else matched or group
    while isinstance(leaf, ExceptionGroup) and len(leaf.exceptions) >= 1:
        leaf = leaf.exceptions[0]
    return leaf
