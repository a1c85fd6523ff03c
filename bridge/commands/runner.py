"""Runs the stages of a `run_command` request, and judges its result.

A stage succeeds with status 0, or if the next stage ended first (`yes | head -1`). The first stage
without success decides the result.
"""

from __future__ import annotations

import logging
import shlex
import signal as signals
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest

import anyio.to_thread

from bridge.callers.client import RunProgress
from bridge.commands.plan import CommandPlan, Planner
from bridge.errors import BridgeError, ChannelClosedError, InvalidRequestError
from bridge.event_loop import background_task, offload
from bridge.gate.audit.log import RunAudit
from bridge.gate.journal import canonical, digest
from bridge.gate.redaction import Redactor
from bridge.gate.redaction_shapes import could_be_password, mask
from bridge.inventory.secrets import command_secrets
from bridge.model import (
    MEBIBYTE,
    CommandRequest,
    CommandResult,
    Isolation,
    Json,
    Reason,
    StageResult,
    Usage,
)
from bridge.model.runs import first_error
from bridge.sandbox.backend import Backend, ExitReport, Sandbox
from bridge.sandbox.layers import common
from bridge.sandbox.pool import MOST_RUNS, RunQueue
from bridge.sandbox.selection import select_for_profile, with_profile_remedy
from bridge.settings import Settings
from bridge.settings.commands import CommandProfile, Runtime


class CommandOutput:
    """The redacted head and tail of a stream, within `limit` bytes."""

    def __init__(self, limit: int, redactor: Redactor) -> None:
        self._half = limit // 2
        self._cleared = redactor.stream()
        self._head = bytearray()
        self._tail = bytearray()
        self._lost = 0

    @property
    def dropped(self) -> int:
        return self._lost + max(0, len(self._tail) - self._half)

    def add(self, data: bytes) -> None:
        self._keep(self._cleared.feed(data))

    def finish(self) -> None:
        self._keep(self._cleared.finish())

    def text(self) -> str:
        if not self.dropped:
            return bytes(self._head + self._tail).decode("utf-8", "backslashreplace")
        # The cut may split a character.
        head = self._head.decode("utf-8", "ignore")
        tail = self._tail[-self._half :].decode("utf-8", "ignore")
        return f"{head}\n[... {self.dropped:,} bytes dropped ...]\n{tail}"

    def _keep(self, data: bytes) -> None:
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - self._half
        # Only at twice the size, so that each byte moves once on average.
        if excess > self._half:
            del self._tail[:excess]
            self._lost += excess


class Pipeline:
    """The stages of one command. They run in parallel, or in turn if they may write."""

    def __init__(self, plan: CommandPlan) -> None:
        limit = plan.profile.output_bytes
        self._plan = plan
        self.stages: list[Sandbox] = []  # The started ones.
        # How each stage ended, or None if the bridge ended it.
        self.ends: list[ExitReport | None] = [None] * len(plan.specs)
        # Whether a stage's output could not be sent to the next stage.
        self.refused = [False] * len(plan.specs)
        self._passed = bytearray()
        self.timed_out = False
        self.isolation: Isolation | None = None
        self.output = CommandOutput(limit, plan.redactor)
        self.errors = [CommandOutput(limit, plan.redactor) for _ in plan.specs]

    async def run_stages(self, backend: Backend, stdin: bytes) -> None:
        async with AsyncExitStack() as stack:
            with anyio.move_on_after(self._plan.timeout) as deadline:
                every = list(range(len(self._plan.specs)))
                for side_by_side in [[n] for n in every] if self._plan.profile.write else [every]:
                    await self._run_together(side_by_side, backend, stack, stdin)
                    end = self.ends[side_by_side[-1]]
                    if end is None or end.exit_code != 0 or end.oom_killed:
                        break
                    stdin, self._passed = bytes(self._passed), bytearray()
            self.timed_out = deadline.cancelled_caught
        for capture in (self.output, *self.errors):
            capture.finish()

    async def _run_together(
        self, numbers: Sequence[int], backend: Backend, stack: AsyncExitStack, stdin: bytes
    ) -> None:
        for number in numbers:
            spec, errors = self._plan.specs[number], self.errors[number]
            assert spec.command is not None
            heard = replace(spec, command=replace(spec.command, on_error=errors.add))
            self.stages.append(await stack.enter_async_context(backend.launch(heard)))
        self.isolation = common([stage.isolation for stage in self.stages])
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write_stdin, self.stages[numbers[0]], stdin)
                for number in numbers:
                    tasks.start_soon(self._follow, number)
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _write_stdin(self, stage: Sandbox, data: bytes) -> None:
        with suppress(ChannelClosedError):  # the command stopped reading
            await stage.send(data)
            stage.end_input()

    async def _follow(self, number: int) -> None:
        stage, following = self.stages[number], None
        if number + 1 < len(self.stages):
            following = self.stages[number + 1]
        while data := await stage.receive():
            if number + 1 == len(self._plan.specs):
                self.output.add(data)
            elif following is None:
                self._passed += data
                if len(self._passed) > MAX_PASSED_BYTES:
                    message = f"Stage {number + 1} wrote more than {MAX_PASSED_BYTES:,} bytes."
                    raise InvalidRequestError(message, remedy="Write them to a file instead.")
            elif not self.refused[number]:
                try:
                    await following.send(data)
                except ChannelClosedError:
                    self.refused[number] = True
                    await stage.end_output()
        if following is not None:
            following.end_input()
        self.ends[number] = await stage.wait()


logger = logging.getLogger(__name__)

MAX_STDIN_BYTES = 1024 * 1024  # A client may pass any text.
MAX_PASSED_BYTES = 64 * 1024 * 1024  # A command may write without end for the next stage.

Progress = Callable[[float, str], Awaitable[None]]


class Commands:
    """Runs the commands of `run_command` calls with their profiles, in one queue with runs."""

    def __init__(
        self,
        settings: Settings,
        choose: Callable[[Settings, CommandProfile], Awaitable[Backend]] = select_for_profile,
        *,
        audit_of: Callable[[str, str], RunAudit] = lambda run_id, owner: RunAudit(),
        queue: RunQueue | None = None,
    ) -> None:
        self._settings = settings
        self._audit_of = audit_of
        self._queue = queue or RunQueue(MOST_RUNS)
        self._choose = choose
        # A backend is for one image.
        self._backends: dict[tuple[Runtime, str], Backend] = {}
        self._planner = Planner(settings)
        self._lock = anyio.Lock()

    @property
    def profiles(self) -> Mapping[str, CommandProfile]:
        return self._settings.commands

    async def __aenter__(self) -> Commands:
        return self

    async def __aexit__(self, *_: object) -> None:
        with anyio.CancelScope(shield=True):
            for backend in self._backends.values():
                await backend.aclose()

    async def run(
        self,
        request: CommandRequest,
        progress: Progress | None = None,
        *,
        principal: str = "",
        client: str = "",
    ) -> CommandResult:
        profile = self.profiles[request.profile]
        run_progress, run_id = RunProgress(), uuid.uuid4().hex
        async with AsyncExitStack() as stack:
            if progress is not None:
                report = partial(_report, progress, run_progress)
                await stack.enter_async_context(background_task(report))
            await stack.enter_async_context(self._queue.slot(principal, run_progress.set_queue))
            plan = await anyio.to_thread.run_sync(self._planner.plan, request, profile, run_id)
            shown, stdin = plan.redactor.text, _stdin(request.stdin)
            backend = await self._backend(profile)
            names = " | ".join(spec.argv[0] for spec in plan.specs)
            logger.info("run_command %s: %s (profile %s)", run_id, names, profile.name)
            started, pipeline = time.monotonic(), Pipeline(plan)
            begun: dict[str, Json] = {
                "principal": principal,
                "clientSays": client,
                "profile": profile.name,
                "stages": [[shown(word) for word in words] for words in request.stages],
                "digest": digest(canonical(request.stages).encode("ascii")),
                "stdinBytes": len(stdin),
                "env": {name: shown(value) for name, value in request.env.items()},
            }
            audit = self._audit_of(run_id, principal)
            stages = await offload(begun["stages"], partial(audit.mask, begun["stages"], None))
            begun["stages"] = _masked_options(request, stages)
            await audit.record_event("command", begun)
            end = await stack.enter_async_context(audit.until_end())
            async with backend.in_use():
                try:
                    await pipeline.run_stages(backend, stdin)
                except BridgeError as error:
                    raise with_profile_remedy(error, profile) from error
            wall = time.monotonic() - started
            result = _result(run_id, request, plan, pipeline, wall)
            status, reason, wall_ms = result.status, result.reason, result.usage.wall_ms
            code = result.exit_code
            end({"status": status, "reason": reason, "exitCode": code, "wallMs": wall_ms})
        logger.info("run_command %s: %s after %.1f s", run_id, status, wall)
        return result

    async def _backend(self, profile: CommandProfile) -> Backend:
        async with self._lock:
            key = (profile.runtime, profile.image)
            if key not in self._backends:
                self._backends[key] = await self._choose(self._settings, profile)
            return self._backends[key]


def _masked_options(request: CommandRequest, shown: Json) -> Json:
    return [
        [
            _masked_option(hidden, words[max(0, at - 1) : at], word)
            for at, (word, hidden) in enumerate(zip(words, stage, strict=True))
        ]
        for words, stage in zip(request.stages, shown, strict=True)
    ]


def _masked_option(shown: str, before: Sequence[str], word: str) -> str:
    values = set(command_secrets([*before, word])) - set(command_secrets(before))
    for _, value in sorted(values, key=lambda pair: -len(pair[1])):
        if shown.endswith(value) and could_be_password(value):
            return shown[: len(shown) - len(value)] + mask(value)
    return shown


def _stdin(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("`stdin` is no valid text.") from None
    if len(data) > MAX_STDIN_BYTES:
        message = f"`stdin` has {len(data):,} bytes; at most {MAX_STDIN_BYTES:,} are allowed."
        raise InvalidRequestError(message, remedy="Put it into a file of the workspace.")
    return data


def _result(
    run_id: str, request: CommandRequest, plan: CommandPlan, pipeline: Pipeline, wall: float
) -> CommandResult:
    stages = tuple(
        StageResult(
            words=tuple(map(plan.redactor.text, words)),
            exit_code=None if end is None else end.exit_code,
            signal=None if end is None else end.signal,
            oom_killed=end is not None and bool(end.oom_killed),
            stderr=errors.text(),
            cut_short=refused,
            not_started=started is None,
        )
        for words, end, errors, refused, started in zip_longest(
            request.stages, pipeline.ends, pipeline.errors, pipeline.refused, pipeline.stages
        )
    )
    hints = (hint for hint, one in zip(plan.hints, stages, strict=False) if one.stderr and hint)
    limit = plan.timeout if pipeline.timed_out else None
    streams = {"stdout": pipeline.output}
    for number, capture in enumerate(pipeline.errors, 1):
        streams["stderr" if len(stages) == 1 else f"stderr of stage {number}"] = capture
    return replace(
        judge(stages, plan.profile, passed=limit, hint=next(hints, "")),
        run_id=run_id,
        stdout=pipeline.output.text(),
        timeout_seconds=plan.timeout,
        truncated={name: each.dropped for name, each in streams.items() if each.dropped},
        isolation=pipeline.isolation,
        usage=Usage(wall_ms=round(wall * 1000)),
    )


def judge(
    stages: Sequence[StageResult],
    profile: CommandProfile,
    *,
    passed: float | None = None,
    hint: str = "",
) -> CommandResult:
    """Return the verdict on a command's stages.

    Args:
        passed: The time limit that passed, in seconds; None if none did.
    """
    verdict = partial(CommandResult, run_id="", profile=profile.name, stages=tuple(stages))
    if passed is not None:
        running = [
            _stage_name(stages, number)
            for number, stage in enumerate(stages, 1)
            if stage.exit_code is None and stage.signal is None and not stage.not_started
        ]
        which = f"; still running: {', '.join(running)}" if running else ""
        summary = f"The time limit of {passed:g} s passed{which}."
        remedy = f"allow more time (`timeout`, at most {profile.max_timeout:g})"
        error = f"{summary} Do less in one call, or {remedy}."
        return verdict(status="timeout", reason="timeout", summary=summary, error=error)
    for number, stage in enumerate(stages, 1):
        last = number == len(stages)
        unheard = not last and (stage.cut_short or stage.signal == signals.SIGPIPE)
        if stage.oom_killed or not (stage.exit_code == 0 or unheard):
            reason, summary, remedy = _judge_failure(stage, profile, hint)
            summary = f"{_stage_name(stages, number)} {summary}"
            return verdict(
                status="error",
                reason=reason,
                summary=summary,
                exit_code=stage.exit_code if reason == "exit" else None,
                error=f"{summary} {remedy}".rstrip(),
            )
    many = f"All {len(stages)} stages" if len(stages) > 1 else "The command"
    return verdict(status="success", summary=f"{many} succeeded.", exit_code=0)


def _judge_failure(
    stage: StageResult, profile: CommandProfile, hint: str
) -> tuple[Reason, str, str]:
    """Return the reason of a stage's failure, what happened to the stage, and a remedy."""
    if stage.oom_killed:
        limit = profile.memory_bytes // MEBIBYTE
        what = f"ran out of memory (limit {limit} MiB, files in /tmp included)."
        return "oom", what, "Work on less data at a time."
    if stage.exit_code is not None:
        return "exit", f"exited with status {stage.exit_code}.", hint
    if stage.signal is None:
        return "crash", "was lost: its end is unknown.", ""
    signal = signals.Signals(stage.signal)
    why = {
        signals.SIGXCPU: f" (its limit of {profile.cpu_seconds} s of CPU time)",
        signals.SIGXFSZ: f" (its limit of {profile.file_bytes:,} bytes for a file)",
        signals.SIGSYS: " (a forbidden system call)",
        signals.SIGKILL: " (killed, by a limit or from outside)",
    }.get(signal, "")
    return "crash", f"was ended by {signal.name}{why}.", ""


def _stage_name(stages: Sequence[StageResult], number: int) -> str:
    command = shlex.join(stages[number - 1].words)
    command = command if len(command) <= 200 else f"{command[:200]}..."
    return f"`{command}`" if len(stages) == 1 else f"stage {number} of {len(stages)} (`{command}`)"


async def _report(progress: Progress, run_progress: RunProgress) -> None:
    started = time.monotonic()
    while True:
        await anyio.sleep(2)  # Clients give up on a call that is silent for a minute.
        seconds = time.monotonic() - started
        await progress(seconds, run_progress.queue_text() or f"running for {seconds:.0f} s")
