"""The stages of a pipeline, running side by side with bytes going from one to the next.

Owns the relay and the one deadline over all of it. Nothing is gathered between stages: one piece is
under way from each to the next, the rest waits in the kernel's pipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import anyio

from bridge.command.capture import Capture
from bridge.errors import BridgeError, ChannelClosedError
from bridge.model import Isolation
from bridge.sandbox.backend import ExitReport
from bridge.sandbox.job import Job, JobBackend, JobSpec
from bridge.sandbox.layers import common


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
    backend: JobBackend,
    specs: Sequence[JobSpec],
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
            jobs = [
                await stack.enter_async_context(backend.launch_job(spec, capture.feed))
                for spec, capture in zip(specs, errors, strict=True)
            ]
            pipeline.isolation = common([job.isolation for job in jobs])
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_feed, jobs[0], stdin)
                    for number in range(len(jobs)):
                        tasks.start_soon(_stage, number, jobs, pipeline, output)
            except ExceptionGroup as group:
                raise _first(group) from group
        pipeline.timed_out = deadline.cancelled_caught
    for capture in (output, *errors):
        capture.finish()
    return pipeline


async def _feed(job: Job, data: bytes) -> None:
    try:
        await job.send(data)
    except ChannelClosedError:
        return  # it did not want to read all of it
    job.end_input()


async def _stage(number: int, jobs: Sequence[Job], pipeline: Pipeline, output: Capture) -> None:
    job = jobs[number]
    following = jobs[number + 1] if number + 1 < len(jobs) else None
    while data := await job.receive():
        if following is None:
            output.feed(data)
            continue
        try:
            await following.send(data)
        except ChannelClosedError:
            pipeline.refused[number] = True
            await job.stop_output()
            break
    if following is not None:
        following.end_input()
    await job.drain()
    pipeline.ends[number] = await job.wait()


def _first(group: ExceptionGroup[Exception]) -> Exception:
    """Return the bridge's error in a group, which is what callers know."""
    matched, rest = group.split(BridgeError)
    leaf: Exception | ExceptionGroup[Exception] = group if rest is not None else matched or group
    while isinstance(leaf, ExceptionGroup) and len(leaf.exceptions) >= 1:
        leaf = leaf.exceptions[0]
    return leaf
