"""Runs that outlive the request that asked for them.

Owns all runs of the server's clients. A run continues in a task of the engine's while no request of
its client is open. The client received questions and repeats its request with the answers, or it
received an early answer because it does not wait for the result. A secret or its id finds the run.

What a client leaves behind is bounded: how many runs may wait so, and how long. A run whose client
does not come back is cancelled.
"""

from __future__ import annotations

import logging
import math
import secrets
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import anyio
from anyio.abc import TaskGroup

from bridge.errors import CannotAskError, InvalidRequestError
from bridge.model import Json, RunResult
from bridge.tasks import background_tasks
from bridge.upstream.client_features import Method

logger = logging.getLogger(__name__)

MAX_WAITING = 32  # Runs that wait for clients, which may never come back, each in a sandbox.

WAIT_SECONDS = 540.0
"""For a client to come back: a little less than one answer may take, so that its run ends here, and
does not continue with the question counted as cancelled."""


@dataclass(eq=False)
class Question:
    """One that a run waits for an answer to.

    Attributes:
        shown: The client has it.
        answer: None if the client left it out.
    """

    method: Method
    params: Mapping[str, Json]
    shown: bool = False
    answer: Mapping[str, Json] | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What a client gets instead of a result: the questions, and what to come back with."""

    secret: str
    questions: Mapping[str, Question]


class SuspendedRun:
    """One run. Made by `SuspendedRuns.start`.

    Attributes:
        run_id: Its id in results and in the audit log. It cannot be guessed.
        client: What its starter wants to find again with it.
        begun: When it began, by the clock on the wall.
        over: Set once nothing of it is left.
        followers: How many requests wait for it now.
    """

    def __init__(self, owner: Hashable, request: Hashable, client: object) -> None:
        self.owner = owner
        self.request = request
        self.client = client
        self.run_id = uuid.uuid4().hex
        self.begun = datetime.now(UTC)
        self.scope = anyio.CancelScope()
        self.result: RunResult | None = None
        self.questions: dict[str, Question] = {}
        self.changed = anyio.Event()
        self.collected = anyio.Event()
        self.over = anyio.Event()
        self.followers = 0
        self._count = 0

    def note_change(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    async def put(self, method: Method, params: Mapping[str, Json]) -> Mapping[str, Json] | None:
        """Wait for the client's answer to a question; None if it left it out."""
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

    def take(self, answers: Mapping[str, Mapping[str, Json]], *, partly: bool = False) -> None:
        """Take the client's answers to the questions that it got.

        Args:
            partly: Others than those that it answers may be answered later.
        """
        for key, question in self.questions.items():
            if partly and key not in answers:
                continue
            if question.shown and not question.answered.is_set():
                question.answer = answers.get(key)
                question.answered.set()


class SuspendedRuns:
    """All of them, while it is `opened`.

    Args:
        asking: How many may wait for an answer at a time: each has a run's place as long.
        replica: This bridge's name among several; it begins the secrets, so that another can say
            where a run waits.
    """

    _tasks: TaskGroup

    def __init__(self, asking: int = MAX_WAITING, replica: str = "") -> None:
        self._asking = asking
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
        """Take runs while this is open; leaving cancels what is there."""
        async with background_tasks() as self._tasks:
            yield self

    def start(
        self,
        owner: Hashable,
        request: Hashable,
        client: object,
        work: Callable[[SuspendedRun], Awaitable[RunResult]],
    ) -> SuspendedRun:
        """Start a run.

        Args:
            owner: Who alone may come back for it.
            request: What alone it may be asked for with.
            work: The run itself; raises nothing.
        """
        run = SuspendedRun(owner, request, client)
        self._live.add(run)
        self._tasks.start_soon(self._own, run, work)
        return run

    async def follow(
        self, run: SuspendedRun, *, patience: float = math.inf
    ) -> RunResult | Waiting | str:
        """Return the run's result, or what its client has to be asked first.

        Cancelling this cancels the run, unless another request follows it.

        Args:
            patience: Seconds after which the run continues without a request; the id by which it
                is found again is returned.
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
            # Its client is gone: it leaves nothing that no other request waits for.
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
        return self._suspend(run)

    def task(self, secret: str, owner: Hashable) -> SuspendedRun:
        """Return the run that continues under an id, which may lack its prefix; extend its time."""
        # One that nothing is kept of yet may have lost its connection.
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
        """Return the run that waits for the client with this secret, which is used up."""
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
        """Make sure that a run may wait for its client; one that is over gives way.

        Raises:
            CannotAskError: Too many do.
        """
        others = {other for other in self._live if other.questions} | {*self._waiting.values()}
        asking = {other for other in self._live if other.questions}
        if len(asking - {run}) >= self._asking or not self._make_room(len(others - {run})):
            message = f"No user can be asked: {len(others - {run})} runs wait for answers already."
            raise CannotAskError(message)

    def _make_room(self, waiting: int) -> bool:
        """Return whether one more may wait; the oldest finished ones are removed for it."""
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
                # For what its calls ask at the same moment: clients make few rounds of questions.
                await anyio.sleep(0.02)
                if run.unseen():
                    return
                continue
            await run.changed.wait()

    def _keep(self, run: SuspendedRun, secret: str) -> str:
        self._waiting[secret] = run
        run.scope.deadline = anyio.current_time() + WAIT_SECONDS
        return secret

    def _suspend(self, run: SuspendedRun) -> Waiting:
        secret = self._keep(run, self._prefix + secrets.token_hex(32))
        for question in run.questions.values():
            question.shown = True
        return Waiting(secret=secret, questions=dict(run.questions))

    async def _own(
        self, run: SuspendedRun, work: Callable[[SuspendedRun], Awaitable[RunResult]]
    ) -> None:
        try:
            with run.scope:
                run.result = await work(run)
                # It holds the arguments, files perhaps, and the result may wait for minutes.
                del work
                run.note_change()
                # It may have ended while its client was away.
                await run.collected.wait()
        finally:
            self._live.discard(run)
            for secret in [key for key, other in self._waiting.items() if other is run]:
                logger.info("a run is given up: its client did not come back")
                del self._waiting[secret]
            run.over.set()
            run.note_change()
