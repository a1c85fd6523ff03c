"""Every run of `run_python`, in a task that may outlive the request that started the run.

A run continues in a task of the engine while its client has no open request: the client answers a
question, or polls for the result. A secret or the run's id finds the run. The number of waiting
runs and their time are bounded; a run whose client does not return is cancelled.
"""

from __future__ import annotations

import logging
import math
import secrets
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import anyio
from anyio.abc import TaskGroup

from bridge.errors import CannotAskError, InvalidRequestError
from bridge.event_loop import background_tasks
from bridge.model import Json, RunResult
from bridge.upstream.client_features import Method

logger = logging.getLogger(__name__)

MAX_WAITING = 32  # Clients may never return, and each waiting run has a sandbox.

WAIT_SECONDS = 540.0
"""How long a run waits for its client. It is less than an answer may take, so the run ends instead
of continuing with a cancelled question."""


@dataclass(eq=False)
class Question:
    """A question that a run waits on."""

    method: Method
    params: Mapping[str, Json]
    shown: bool = False  # Whether the client has received it.
    answer: Mapping[str, Json] | None = None  # None if the client did not answer it.
    answered: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A client's intermediate answer: the questions, and the secret to return with."""

    secret: str
    questions: Mapping[str, Question]


class SuspendedRun:
    """One run. Made by `SuspendedRuns.start`."""

    def __init__(self, owner: Hashable, request: Hashable, client: object) -> None:
        self.owner = owner
        self.request = request
        self.client = client  # A value that the starter stores with the run.
        self.run_id = uuid.uuid4().hex
        self.begun = datetime.now(UTC)
        self.scope = anyio.CancelScope()
        self.result: RunResult | None = None
        self.questions: dict[str, Question] = {}
        self.changed = anyio.Event()
        self.collected = anyio.Event()
        self.over = anyio.Event()  # Set when the run has ended completely.
        self.followers = 0  # The number of requests that wait for the run.
        self._count = 0

    def note_change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def put(self, method: Method, params: Mapping[str, Json]) -> Mapping[str, Json] | None:
        """Wait for the client's answer to a question; None if the client did not answer it."""
        self._count += 1
        key, question = f"q{self._count}", Question(method, params)
        self.questions[key] = question
        self.note_change()
        try:
            await question.answered.wait()
        finally:
            del self.questions[key]
        return question.answer

    def unseen(self) -> bool:
        return any(not question.shown for question in self.questions.values())

    def accept_answers(
        self, answers: Mapping[str, Mapping[str, Json]], *, partly: bool = False
    ) -> None:
        """Store the client's answers to the questions that it received.

        Args:
            partly: Whether the client may answer the other questions later.
        """
        for key, question in self.questions.items():
            if partly and key not in answers:
                continue
            if question.shown and not question.answered.is_set():
                question.answer = answers.get(key)
                question.answered.set()


class OpenQuestions:
    """The runs of all clients that wait for an answer; each occupies one of the bridge's slots."""

    def __init__(self, limit: int = MAX_WAITING) -> None:
        self._limit = limit
        self._runs = Counter[object]()  # With their numbers of questions.

    @contextmanager
    def ask(self, run: object) -> Iterator[None]:
        """Count a question of a run. Raises CannotAskError if too many other runs wait."""
        if (others := len(self._runs.keys() - {run})) >= self._limit:
            raise CannotAskError(f"No user can be asked: {others} runs wait for answers already.")
        self._runs[run] += 1
        try:
            yield
        finally:
            self._runs[run] -= 1
            self._runs = +self._runs


class SuspendedRuns:
    """All suspended runs of a client, while it is `opened`.

    Args:
        replica: This bridge's name among several. Secrets begin with it, so another bridge can
            name the place where a run waits.
    """

    _tasks: TaskGroup

    def __init__(self, questions: OpenQuestions | None = None, replica: str = "") -> None:
        self.questions = questions or OpenQuestions()
        self._prefix = f"{replica}." if replica else ""
        self._waiting: dict[str, SuspendedRun] = {}
        self._live: set[SuspendedRun] = set()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def live(self) -> int:
        return len(self._live)

    def runs(self) -> tuple[SuspendedRun, ...]:
        return tuple(self._live)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[SuspendedRuns]:
        """Accept runs while this is open; leaving cancels them."""
        async with background_tasks() as self._tasks:
            yield self

    def start(
        self,
        owner: Hashable,
        request: Hashable,
        client: object,
        work: Callable[[SuspendedRun], Awaitable[RunResult]],
    ) -> SuspendedRun:
        """Start a run. `work` raises nothing.

        Args:
            owner: The only caller that may return for it.
            request: The request that a returning client must repeat.
        """
        run = SuspendedRun(owner, request, client)
        self._live.add(run)
        self._tasks.start_soon(self._own, run, work)
        return run

    async def follow(
        self, run: SuspendedRun, *, patience: float = math.inf
    ) -> RunResult | Waiting | str:
        """Return the run's result, its questions, or its id after `patience` seconds.

        Cancelling this cancels the run, unless another request follows it.
        """
        run.scope.deadline = math.inf
        run.followers += 1
        try:
            with anyio.move_on_after(patience):
                await self._wait(run)
            if run.result is None and not run.unseen():
                number = self._prefix + run.run_id
                if number in self._waiting or self._make_room(len(self._waiting)):
                    self._keep(run, number)
                    if run.followers > 1:
                        run.scope.deadline = math.inf
                    return number
                await self._wait(run)
        except BaseException:
            # The client is gone. Without another follower the run ends.
            if run.followers == 1:
                run.scope.cancel()
                with anyio.CancelScope(shield=True):
                    await run.over.wait()
            raise
        finally:
            run.followers -= 1
        if run.result is not None:
            run.collected.set()
            return run.result
        secret = self._prefix + secrets.token_hex(32)
        self._keep(run, secret)
        for question in run.questions.values():
            question.shown = True
        return Waiting(secret=secret, questions=dict(run.questions))

    def task(self, secret: str, owner: Hashable) -> SuspendedRun:
        """Return the run of an id, with or without prefix, and extend its time."""
        # A run that is not suspended yet may have lost its connection.
        live = next((each for each in self._live if each.run_id == secret), None)
        run = self._found(secret) or self._found(self._prefix + secret) or live
        if run is None or run.owner != owner:
            message = (
                "There is no such task. Its result was read, it was cancelled, it was unread for "
                f"{WAIT_SECONDS / 60:g} minutes, or it never existed."
            )
            remedy = (
                "To retry a run, pass `code` as well. If its connection broke, a program reads "
                'its result: runtime.read_output(run_id, "result").'
            )
            raise InvalidRequestError(message, remedy=remedy)
        if not run.followers:
            run.scope.deadline = anyio.current_time() + WAIT_SECONDS
        return run

    def resume(self, secret: str, owner: Hashable, request: Hashable) -> SuspendedRun:
        """Return the run of a secret, which works once."""
        run = self._found(secret)
        if run is None or run.owner != owner:
            message = (
                "No run waits for this requestState: it was used already, or its run was given up "
                f"after {WAIT_SECONDS / 60:g} minutes, or never was."
            )
            raise InvalidRequestError(message, remedy="Make the call again without it.")
        if run.request != request:
            message = "This requestState belongs to a call with other arguments."
            raise InvalidRequestError(message, remedy="Make the same call as before.")
        del self._waiting[secret]
        run.scope.deadline = math.inf
        return run

    def _found(self, secret: str) -> SuspendedRun | None:
        run = self._waiting.get(secret)
        replica = secret.rpartition(".")[0]
        if run is None and self._prefix and replica and not secret.startswith(self._prefix):
            message = f"This run waits in another replica of the bridge, {replica!r:.70}."
            remedy = (
                "Send the request there, or wait until that one gives the run up. Only if it is "
                "gone make the call again from the beginning: part of it may have happened."
            )
            raise InvalidRequestError(message, remedy=remedy, code="elsewhere")
        return run

    def check_room(self, run: SuspendedRun) -> None:
        """Check that one more run may wait for its client; finished runs make room."""
        others = {other for other in self._live if other.questions} | {*self._waiting.values()}
        if not self._make_room(len(others - {run})):
            message = f"No user can be asked: {len(others - {run})} runs wait for answers already."
            raise CannotAskError(message)

    def _make_room(self, waiting: int) -> bool:
        """Return whether one more run may wait, after removing the oldest finished runs."""
        excess = max(0, waiting + 1 - MAX_WAITING)
        over = [secret for secret, run in self._waiting.items() if run.result is not None]
        if len(over) < excess:
            return False
        for secret in over[:excess]:
            self._waiting.pop(secret).collected.set()
        return True

    async def _wait(self, run: SuspendedRun) -> None:
        while run.result is None:
            if run.over.is_set():
                message = "The run was cancelled: the bridge ends, or its client did not come back."
                raise InvalidRequestError(message)
            if run.unseen():
                # Parallel calls ask at the same moment, and clients repeat few requests.
                await anyio.sleep(0.02)
                if run.unseen():
                    return
                continue
            await run.changed.wait()

    def _keep(self, run: SuspendedRun, secret: str) -> None:
        self._waiting[secret] = run
        run.scope.deadline = anyio.current_time() + WAIT_SECONDS

    async def _own(
        self, run: SuspendedRun, work: Callable[[SuspendedRun], Awaitable[RunResult]]
    ) -> None:
        try:
            with run.scope:
                run.result = await work(run)
                # It holds the arguments and files, and the result may wait for minutes.
                del work
                run.note_change()
                # The client may be away.
                await run.collected.wait()
        finally:
            self._live.discard(run)
            for secret in [key for key, other in self._waiting.items() if other is run]:
                logger.info("a run is given up: its client did not come back")
                del self._waiting[secret]
            run.over.set()
            run.note_change()
