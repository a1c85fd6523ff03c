"""Whom a server's questions go to, and what becomes of them.

Owns the attribution of questions, progress and logs to the run whose call they belong to, the
bounds on questions, and the standing still of the time of those who wait. How a client is asked is
the business of whoever calls.

A question that comes over a connection names no call. It belongs to whoever has calls under way
there; where these are of different clients it is refused, because to ask the wrong one would show
one user's affairs to another. A server of the newer era answers a request with its questions
instead of a result, and the request is made again with the answers; roots are answered from the
configuration.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, cast, get_args

import anyio
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    LoggingMessageNotificationParams,
)
from mcp_types.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
)
from opentelemetry.context import Context, attach, detach
from pydantic import BaseModel, ValidationError

from bridge.clock import Clock
from bridge.errors import CannotAskError, ToolCallError
from bridge.model import Json
from bridge.text import counted

logger = logging.getLogger(__name__)


INPUT_REQUIRED = "input_required"

MAX_ROUNDS = 10
"""Of questions before one answer; as many as the SDKs make."""

MAX_QUESTIONS = 16
"""In one round."""

FIRST_PAUSE_SECONDS = 0.05
LAST_PAUSE_SECONDS = 1.0
"""Between rounds of a server that asks nothing but wants to be called again."""

ROOTS_METHOD = "roots/list"

Retry = Callable[[dict[str, Json] | None, str | None], Awaitable[dict[str, Json]]]
"""Makes the request again, with the answers and the server's own state."""


async def answered(
    server: str, what: str, result: dict[str, Json], retry: Retry, *, roots: Sequence[Path] = ()
) -> dict[str, Json]:
    """Return the server's result, after it was told what it wants to know.

    Args:
        what: What was asked of it, for messages.
        result: What it answered first.

    Raises:
        CannotAskError: There is nobody to ask.
        ToolCallError: It never has enough, or its questions cannot be understood.
    """
    pause = FIRST_PAUSE_SECONDS
    for _ in range(MAX_ROUNDS):
        if result.get("resultType") != INPUT_REQUIRED:
            return result
        state = result.get("requestState")
        wanted = result.get("inputRequests") or {}
        if not isinstance(wanted, dict) or not isinstance(state, str | None):
            break
        answers = None
        if wanted:
            answers = await answers_to(server, what, wanted, roots)
        else:
            await anyio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS)
        result = await retry(answers, state)
    if result.get("resultType") != INPUT_REQUIRED:
        return result
    msg = (
        f"Server {server!r}, {what}: it goes on asking for input after {MAX_ROUNDS} rounds, or "
        "asks in a way that cannot be understood."
    )
    raise ToolCallError(msg, server=server, rpc_code=INVALID_REQUEST)


async def visited(server: str, what: str, refusal: ToolCallError) -> bool:
    """Have the user visit the addresses that a server wants visited before it does what was asked.

    Args:
        refusal: How the server answered.

    Returns:
        Whether it wants that, and the user agreed to all of it: the request can be made again.

    Raises:
        ToolCallError: It wants too many.
    """
    data = refusal.data
    listed = data.get("elicitations") if isinstance(data, dict) else None
    if refusal.rpc_code != URL_ELICITATION_REQUIRED or not isinstance(listed, list) or not listed:
        return False
    wanted = {
        str(number): {"method": "elicitation/create", "params": {**each, "mode": "url"}}
        for number, each in enumerate(listed)
        if isinstance(each, dict)
    }
    try:
        answers = await answers_to(server, what, wanted, ())
    except CannotAskError:
        # The refusal has the addresses; it says more than that nobody can be asked.
        return False
    accepted = [answer.get("action") == "accept" for answer in answers.values()]
    return len(accepted) == len(listed) and all(accepted)


async def answers_to(
    server: str, what: str, wanted: Mapping[str, Json], roots: Sequence[Path]
) -> dict[str, Json]:
    """Ask all questions of a round at the same time; the first that has no answer ends it."""
    if len(wanted) > MAX_QUESTIONS:
        msg = f"Server {server!r}, {what}: it asks {len(wanted)} questions at once."
        raise ToolCallError(msg, server=server, rpc_code=INVALID_REQUEST)
    caller = current_caller()
    answers: dict[str, Json] = {}
    failures: list[CannotAskError] = []

    async def ask(key: str, question: Json, scope: anyio.CancelScope) -> None:
        try:
            answers[key] = await _answer(server, caller, question, roots)
        except CannotAskError as error:
            failures.append(error)
            scope.cancel()

    async with anyio.create_task_group() as tasks:
        for key, question in wanted.items():
            tasks.start_soon(ask, key, question, tasks.cancel_scope)
    if failures:
        reason = failures[0]
        msg = f"Server {server!r}, {what}: it wants input before it answers. {reason.message}"
        raise CannotAskError(msg, server=server, remedy=reason.remedy)
    return answers


async def _answer(
    server: str, caller: Caller | None, question: Json, roots: Sequence[Path]
) -> Json:
    method = question.get("method") if isinstance(question, dict) else None
    params = question.get("params", {}) if isinstance(question, dict) else None
    if method == ROOTS_METHOD and roots:
        return roots_of(roots)
    if method not in get_args(Method) or not isinstance(params, dict):
        raise CannotAskError(f"It asks {method!r:.80}, which is not offered here.", server=server)
    if caller is None:
        raise CannotAskError("Nobody can be asked: this call is no run's.", server=server)
    params = {key: value for key, value in params.items() if key not in NOT_PASSED_ON}
    size = len(json.dumps(params, ensure_ascii=False).encode("utf-8", "replace"))
    with caller.clock.stop():
        return await put(caller, server, cast(Method, method), params, size)


ANSWER_SECONDS = 600.0
"""For one answer. People are slow, but a run that waits holds a sandbox and a server."""

MAX_OPEN_QUESTIONS = 16
"""Of one connection at a time: nobody fills in more forms at once."""

Model = TypeVar("Model", bound=BaseModel)

Method = Literal["elicitation/create", "sampling/createMessage"]

NOT_PASSED_ON = frozenset({"_meta", "task"})
"""Parameters of a question that are between the server and us: tokens, and that it may be answered
later."""

MAX_QUESTION_BYTES: Mapping[Method, int] = {
    "elicitation/create": 64 * 1024,
    "sampling/createMessage": 4 * 1024 * 1024,
}
"""A form is read by a person, and a conversation by a model, perhaps with pictures in it."""

MAX_QUESTION_DEPTH = 64
"""Of what is nested in a question. Readers stop at some 200 levels, of which the newer era's way to
ask takes a few more; a client that cannot read a question never answers it."""

LATE_SECONDS = 0.2
"""After a call's answer, for messages that come another way than it does (a web server's)."""

UNANSWERED_SECONDS = 10.0
"""After a call was given up, for questions that its server asks all the same. Meanwhile they are
not taken for another client's."""

MAX_ROOTS = 100
"""Directories told to a server."""


class Caller(Protocol):
    """A run, as seen by the servers that it calls."""

    @property
    def client(self) -> Hashable:
        """Who asked for the run; equal for runs of one client, and only for them."""

    @property
    def clock(self) -> Clock:
        """The run's time."""

    @property
    def trace(self) -> Context:
        """The trace that the run belongs to, as OpenTelemetry knows it; its calls belong there."""

    @property
    def wants_progress(self) -> bool:
        """Whether anybody listens to how calls get on."""

    @property
    def log_level(self) -> str:
        """The least level of messages that it wants; empty for none at all."""

    async def ask(self, server: str, method: Method, params: Mapping[str, Json]) -> dict[str, Json]:
        """Ask the client, and return its answer.

        Raises:
            CannotAskError: It cannot be asked, or gave no answer.
        """

    async def refused(self, server: str, method: Method, why: str) -> None:
        """Take note of a question that is not put to the client."""

    async def report(
        self, server: str, tool: str, done: float, total: float | None, message: str
    ) -> None:
        """Say how a call gets on."""

    async def log(self, server: str, level: str, name: str, data: Json) -> None:
        """Pass a server's message on."""


_current: ContextVar[Caller | None] = ContextVar("caller", default=None)
"""Whose calls a task makes. Tasks inherit it from those that start them, which is wanted in a run
and not in a connection's owner task: that one forgets it first."""


def current_caller() -> Caller | None:
    """Return the run that this task makes calls for, if any."""
    return _current.get()


def forget_caller() -> None:
    """Make calls for nobody in this task from now on."""
    _current.set(None)
    attach(Context())


@contextmanager
def on_behalf_of(caller: Caller) -> Iterator[None]:
    """Make calls for `caller` inside."""
    token, trace = _current.set(caller), attach(caller.trace)
    try:
        yield
    finally:
        detach(trace)
        _current.reset(token)


def time_limit(seconds: float) -> Any:
    """Return a context that is left after so many seconds of the caller's time."""
    caller = _current.get()
    return anyio.move_on_after(seconds) if caller is None else caller.clock.limit(seconds)


def progress_of(caller: Caller | None, server: str, tool: str) -> ProgressFnT | None:
    """Return what the SDK's session is to call with a request's progress; None if nobody cares."""
    if caller is None or not caller.wants_progress:
        return None

    async def report(progress: float, total: float | None, message: str | None) -> None:
        await caller.report(server, tool, progress, total, message or "")

    return report


async def put(
    caller: Caller, server: str, method: Method, params: Mapping[str, Json], size: int
) -> dict[str, Json]:
    """Put one question; an elicitation that nobody answers in time counts as cancelled.

    Args:
        size: Bytes of the question.

    Raises:
        CannotAskError: There is no answer.
    """
    message = ""
    if size > MAX_QUESTION_BYTES[method]:
        message = f"The question has {size:,} bytes; at most {MAX_QUESTION_BYTES[method]:,}."
    elif _is_deep(params):
        message = f"The question is nested more than {MAX_QUESTION_DEPTH} levels deep."
    if message:
        await caller.refused(server, method, message)
        raise CannotAskError(message, server=server)
    with anyio.move_on_after(ANSWER_SECONDS):
        return await caller.ask(server, method, params)
    if method == "elicitation/create":
        return {"action": "cancel"}
    raise CannotAskError(f"There was no answer within {ANSWER_SECONDS:g} s.", server=server)


def _is_deep(params: Mapping[str, Json]) -> bool:
    level: list[Json] = [params]
    for _ in range(MAX_QUESTION_DEPTH):
        inside = [
            part
            for node in level
            for part in (node.values() if isinstance(node, Mapping) else node)
        ]
        level = [part for part in inside if isinstance(part, Mapping | list)]
        if not level:
            return False
    return True


def roots_of(paths: Sequence[Path]) -> dict[str, Json]:
    """Return what a server is told of the user's directories."""
    return {
        "roots": [
            {"uri": path.as_uri(), "name": path.name or str(path)} for path in paths[:MAX_ROOTS]
        ]
    }


class _Question:
    """One that is open, and the runs whose time stands still for it."""

    def __init__(self, asked: Caller) -> None:
        self.asked = asked
        self.scope = anyio.CancelScope()
        self._holds: dict[Caller, ExitStack] = {}

    def hold(self, caller: Caller) -> None:
        hold = self._holds[caller] = ExitStack()
        hold.enter_context(caller.clock.stop())

    def leave(self, caller: Caller) -> None:
        """Let the time of a run go on that has nothing under way here any more."""
        hold = self._holds.pop(caller, None)
        if hold is not None:
            hold.close()
        if caller is self.asked:
            self.scope.cancel()

    def close(self) -> None:
        """Let everybody's time go on."""
        for hold in self._holds.values():
            hold.close()
        self._holds.clear()


@dataclass(frozen=True)
class _Left:
    """A client whose call is over.

    Attributes:
        until: What the server writes until then may still be about that call.
        owed_until: Likewise for its questions, because the call was given up unanswered.
    """

    caller: Caller
    until: float
    owed_until: float

    def is_over(self, now: float) -> bool:
        return now >= self.until and now >= self.owed_until


class Callers:
    """Who has calls under way over one connection, and what the server asks them."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._under_way: dict[Caller, int] = {}
        self._questions: set[_Question] = set()
        self._left: dict[Hashable, _Left] = {}
        self._refused = 0

    @contextmanager
    def use(self) -> Iterator[None]:
        """Count this task's caller among those with calls under way."""
        caller = _current.get()
        if caller is None:
            yield
            return
        self._under_way[caller] = self._under_way.get(caller, 0) + 1
        answered = False
        try:
            yield
            answered = True
        except ToolCallError:
            answered = True
            raise
        finally:
            self._note_left(caller, answered=answered)
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]
                # Whatever the server still wants to know, nobody waits for what comes of it.
                for question in tuple(self._questions):
                    question.leave(caller)

    async def elicit(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult | ErrorData:
        """Answer a server that asks the user; the SDK's callback."""
        answer = await self._answer("elicitation/create", params)
        return answer if isinstance(answer, ErrorData) else _read(ElicitResult, answer)

    async def sample(
        self, context: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | CreateMessageResultWithTools | ErrorData:
        """Answer a server that asks the user's model; the SDK's callback."""
        answer = await self._answer("sampling/createMessage", params)
        if isinstance(answer, ErrorData):
            return answer
        if isinstance(answer.get("content"), list):
            return _read(CreateMessageResultWithTools, answer)
        return _read(CreateMessageResult, answer)

    async def log(self, params: LoggingMessageNotificationParams) -> None:
        """Pass a server's message on to the one client with calls under way, if it is one."""
        try:
            caller = self._whom(late=True)
        except CannotAskError:
            logger.debug("server %r: a message that is nobody's: %.200r", self._server, params.data)
            return
        await caller.log(self._server, params.level, params.logger or "", params.data)

    async def _answer(
        self, method: Method, params: ElicitRequestParams | CreateMessageRequestParams
    ) -> dict[str, Json] | ErrorData:
        text = params.model_dump_json(by_alias=True, exclude_none=True, exclude={"meta", "task"})
        document = params.model_dump(
            by_alias=True, mode="json", exclude_none=True, exclude={"meta", "task"}
        )
        try:
            return await self._ask(method, document, len(text.encode("utf-8", "replace")))
        except CannotAskError as error:
            self._refused += 1
            if math.log10(self._refused).is_integer():
                # However many it asks: the first, and then how many there have been.
                count = counted(self._refused, "refusal")
                logger.info("server %r asked, and is refused (%s): %s", self._server, count, error)
            # The code for what a client does not offer: most servers know it, and tell its text.
            return ErrorData(code=METHOD_NOT_FOUND, message=str(error))

    async def _ask(self, method: Method, params: Mapping[str, Json], size: int) -> dict[str, Json]:
        caller = self._whom()
        if len(self._questions) >= MAX_OPEN_QUESTIONS:
            message = f"It has asked {MAX_OPEN_QUESTIONS} questions that are open already."
            await caller.refused(self._server, method, message)
            raise CannotAskError(message, server=self._server)
        question = _Question(caller)
        with question.scope:
            self._questions.add(question)
            try:
                for waiting in self._under_way:
                    question.hold(waiting)
                return await put(caller, self._server, method, params, size)
            finally:
                self._questions.discard(question)
                question.close()
        message = "The call that the question belongs to has ended."
        raise CannotAskError(message, server=self._server)

    def _note_left(self, caller: Caller, *, answered: bool) -> None:
        now = anyio.current_time()
        left = self._left.pop(caller.client, None)
        until = now + (LATE_SECONDS if answered else UNANSWERED_SECONDS)
        owed = max(0.0 if left is None else left.owed_until, 0.0 if answered else until)
        self._left[caller.client] = _Left(caller, until, owed)
        for client in [key for key, past in self._left.items() if past.is_over(now)]:
            del self._left[client]

    def _whom(self, *, late: bool = False) -> Caller:
        """Return whom a message belongs to that names no call.

        Args:
            late: It may also be of a call that was answered just now.
        """
        now = anyio.current_time()
        found = list(self._under_way)
        clients = {caller.client for caller in found}
        for client, left in self._left.items():
            if now < left.owed_until or (late and now < left.until):
                clients.add(client)
                found.append(left.caller)
        if not self._under_way and not late:
            clients.clear()
        if not clients:
            message = "Nobody can be asked: no call to this server is under way."
            raise CannotAskError(message, server=self._server)
        if len(clients) > 1:
            message = (
                "Nobody can be asked: calls of several clients are under way, and the protocol "
                "does not say which of them the question belongs to."
            )
            raise CannotAskError(message, server=self._server)
        return found[0]


def _read(model: type[Model], answer: Mapping[str, Json]) -> Model | ErrorData:
    try:
        return model.model_validate(answer, by_name=False)
    except ValidationError as error:
        logger.warning("a client's answer has an unusual shape: %s", error)
        return ErrorData(code=INTERNAL_ERROR, message="The client's answer cannot be read.")
