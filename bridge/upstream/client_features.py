"""A server's requests to the client: elicitation, sampling and roots, and its log messages.

One connection serves several clients, but a server's request names no call. The request goes to
the client with pending calls there. With several such clients it is refused, because the wrong
client would see another user's data.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, cast, get_args

import anyio
from mcp import types
from mcp.client.session import ClientRequestContext
from mcp.shared.dispatcher import ProgressFnT
from opentelemetry.context import Context, attach, detach
from pydantic import BaseModel, ValidationError

from bridge.errors import CannotAskError, ToolCallError
from bridge.event_loop import Clock, current_time
from bridge.guest.schema.schemas import as_list, as_mapping
from bridge.model import Json
from bridge.text import counted

logger = logging.getLogger(__name__)


INPUT_REQUIRED = "input_required"

MAX_ROUNDS = 10  # A server's InputRequiredResults before one result, as in the SDKs.
MAX_QUESTIONS = 16  # A server's unanswered requests at a time, in a result or over one connection.

Roots = Sequence[Path] | None
"""A server's roots: configured directories, () for none, or None for the client's roots."""

Retry = Callable[[dict[str, Json] | None, str | None], Awaitable[dict[str, Json]]]
"""Repeats the request with `inputResponses` and `requestState`."""


async def resolve_input(
    server: str, what: str, result: dict[str, Json], retry: Retry, *, roots: Roots = ()
) -> dict[str, Json]:
    """Return the final result, after answering each InputRequiredResult."""
    pause = 0.05
    for number in range(MAX_ROUNDS + 1):
        if result.get("resultType") != INPUT_REQUIRED:
            return result
        state = result.get("requestState")
        wanted = result.get("inputRequests") or {}
        valid = isinstance(wanted, dict) and isinstance(state, str | None)
        if number == MAX_ROUNDS or not valid:
            break
        answers = None
        if wanted:
            answers = await answer_input_requests(server, what, wanted, roots)
        else:
            await anyio.sleep(pause)
            pause = min(2 * pause, 1.0)
        result = await retry(answers, state)
    msg = (
        f"Server {server!r}, {what}: it still asks for input after {MAX_ROUNDS} rounds, or "
        "asks in a way that cannot be understood."
    )
    raise ToolCallError(msg, server=server, rpc_code=types.INVALID_REQUEST)


async def complete_url_elicitations(server: str, what: str, refusal: ToolCallError) -> bool:
    """Send the URL elicitations of a URLElicitationRequiredError to the client.

    Return whether `refusal` is that error and the user accepted all, so the request can repeat.
    """
    listed = as_list(as_mapping(refusal.data).get("elicitations"))
    if refusal.rpc_code != types.URL_ELICITATION_REQUIRED or not listed:
        return False
    wanted = {
        str(number): {"method": "elicitation/create", "params": {**each, "mode": "url"}}
        for number, each in enumerate(listed)
        if isinstance(each, dict)
    }
    try:
        answers = await answer_input_requests(server, what, wanted, ())
    except CannotAskError:
        # The server's error has the URLs, so it helps more than this one.
        return False
    accepted = [answer.get("action") == "accept" for answer in answers.values()]
    return len(accepted) == len(listed) and all(accepted)


async def answer_input_requests(
    server: str, what: str, wanted: Mapping[str, Json], roots: Roots
) -> dict[str, Json]:
    """Answer all input requests concurrently; the first that fails cancels the others."""
    if len(wanted) > MAX_QUESTIONS:
        msg = f"Server {server!r}, {what}: it asks {len(wanted)} questions at once."
        raise ToolCallError(msg, server=server, rpc_code=types.INVALID_REQUEST)
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


async def _answer(server: str, caller: ServerCaller | None, question: Json, roots: Roots) -> Json:
    method = question.get("method") if isinstance(question, dict) else None
    params = question.get("params", {}) if isinstance(question, dict) else None
    if method == "roots/list" and roots:
        return roots_result(roots)
    unoffered = method == "roots/list" and roots is not None
    if method not in get_args(Method) or unoffered or not isinstance(params, dict):
        raise CannotAskError(f"It asks {method!r:.80}, which is not offered here.", server=server)
    if caller is None:
        raise CannotAskError(
            "No user can be asked: this call does not belong to a run.", server=server
        )
    with caller.clock.stop():
        return await forward(caller, server, cast(Method, method), _without_hop(params))


def _without_hop(params: Mapping[str, Json]) -> dict[str, Json]:
    """Leave out tokens, and whether the request may become a task: they concern only this hop."""
    return {key: value for key, value in params.items() if key not in {"_meta", "task"}}


ANSWER_SECONDS = 600.0  # For one answer of the client: a waiting run holds a sandbox and a server.

Model = TypeVar("Model", bound=BaseModel)

Method = Literal["elicitation/create", "sampling/createMessage", "roots/list"]

MAX_REQUEST_BYTES: Mapping[Method, int] = {
    "elicitation/create": 64 * 1024,
    "sampling/createMessage": 4 * 1024 * 1024,
    "roots/list": 1024,
}
"""Bytes of a server's request. A person reads a form; a model reads a conversation."""

MAX_REQUEST_DEPTH = 64  # A client cannot parse deeper requests, and would never answer them.

LATE_SECONDS = 0.2  # After a response, messages of its call may arrive over another HTTP stream.


class ServerCaller(Protocol):
    """A run, as the servers that it calls reach it."""

    @property
    def client(self) -> Hashable:
        """Key of the run's client, equal only for runs of that client."""

    clock: Clock  # It stops while the client is asked.
    trace: Context

    @property
    def wants_progress(self) -> bool: ...

    @property
    def log_level(self) -> str:
        """The least level of log messages that the client wants; empty for none."""

    async def ask(self, server: str, method: Method, params: Mapping[str, Json]) -> dict[str, Json]:
        """Return the client's answer to a request; raise `CannotAskError` if there is none."""

    async def record_refusal(self, server: str, method: Method, why: str) -> None:
        """Record a request that is not sent to the client."""

    async def report(
        self, server: str, tool: str, done: float, total: float | None, message: str
    ) -> None: ...

    async def log(self, server: str, level: str, name: str, data: Json) -> None: ...

    def note_restart(self, server: str) -> None:
        """Note for the run's result that a server lost what it held in memory."""


_current: ContextVar[ServerCaller | None] = ContextVar("caller", default=None)
"""The run for which a task makes calls. Tasks inherit it from the task that starts them; a
connection's owner task clears it, because it serves all runs."""


def current_caller() -> ServerCaller | None:
    return _current.get()


def clear_caller() -> None:
    """Clear the caller and the trace context of this task."""
    _current.set(None)
    attach(Context())


@contextmanager
def on_behalf_of(caller: ServerCaller) -> Iterator[None]:
    token, trace = _current.set(caller), attach(caller.trace)
    try:
        yield
    finally:
        detach(trace)
        _current.reset(token)


def time_limit(seconds: float) -> Any:
    """Return a cancel scope with a timeout in seconds of the caller's clock."""
    caller = _current.get()
    return anyio.move_on_after(seconds) if caller is None else caller.clock.limit(seconds)


PROGRESS_FACTOR = 10  # Longest duration of a call that reports progress, in units of its timeout.


def progress_callback(
    server: str, tool: str, seconds: float, move_limit: Callable[[float], None] | None
) -> ProgressFnT | None:
    """Return the SDK's progress callback for a request of the current caller, if there is one.

    Each report restarts the request's timeout of `seconds` through `move_limit`.
    """
    caller = _current.get()
    if caller is None or move_limit is None:
        return None
    last = caller.clock.now() + PROGRESS_FACTOR * seconds

    async def report(progress: float, total: float | None, message: str | None) -> None:
        move_limit(min(seconds, last - caller.clock.now()))
        if caller.wants_progress:
            await caller.report(server, tool, progress, total, message or "")

    return report


async def forward(
    caller: ServerCaller, server: str, method: Method, params: Mapping[str, Json]
) -> dict[str, Json]:
    """Send one request to the client; cancel an elicitation without an answer."""
    message, size = "", len(json.dumps(params, ensure_ascii=False).encode("utf-8", "replace"))
    if size > MAX_REQUEST_BYTES[method]:
        message = f"The question has {size:,} bytes; at most {MAX_REQUEST_BYTES[method]:,}."
    elif _depth(params) > MAX_REQUEST_DEPTH:
        message = f"The question is nested more than {MAX_REQUEST_DEPTH} levels deep."
    if message:
        await caller.record_refusal(server, method, message)
        raise CannotAskError(message, server=server)
    with anyio.move_on_after(ANSWER_SECONDS):
        return await caller.ask(server, method, params)
    if method == "elicitation/create":
        return {"action": "cancel"}
    raise CannotAskError(f"There was no answer within {ANSWER_SECONDS:g} s.", server=server)


def _depth(value: Json) -> int:
    if isinstance(value, Mapping):
        return 1 + max(map(_depth, value.values()), default=0)
    return 1 + max(map(_depth, value), default=0) if isinstance(value, list) else 0


def roots_result(paths: Sequence[Path]) -> dict[str, Json]:
    return {"roots": [{"uri": path.as_uri(), "name": path.name or str(path)} for path in paths]}


@dataclass(eq=False)
class _OpenRequest:
    """A request without an answer yet, and the runs whose clocks are stopped for it."""

    asked: ServerCaller
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _holds: dict[ServerCaller, ExitStack] = field(default_factory=dict)

    def hold(self, caller: ServerCaller) -> None:
        hold = self._holds[caller] = ExitStack()
        hold.enter_context(caller.clock.stop())

    def leave(self, caller: ServerCaller) -> None:
        """Restart the clock of a run without pending calls; cancel a request made to it."""
        if (hold := self._holds.pop(caller, None)) is not None:
            hold.close()
        if caller is self.asked:
            self.scope.cancel()

    def close(self) -> None:
        for caller in tuple(self._holds):
            self.leave(caller)


class _RecentCaller(NamedTuple):
    """A client whose call has just ended: late log messages and requests may belong to it."""

    caller: ServerCaller
    until: float
    requests_until: float


class Callers:
    """The callers with pending calls over one connection, and the server's requests to them."""

    def __init__(self, server: str) -> None:
        self._server = server
        self._under_way: dict[ServerCaller, int] = {}
        self._open: set[_OpenRequest] = set()
        self._recent: dict[Hashable, _RecentCaller] = {}
        self._refused = 0
        self.have_been_asked = False  # By the server, other than for roots.
        self.asked: Hashable = None  # The client that the server has asked last.

    @contextmanager
    def use(self) -> Iterator[None]:
        """Register this task's caller as one with a pending call, in this context."""
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
            self._note_finished(caller, answered=answered)
            self._under_way[caller] -= 1
            if not self._under_way[caller]:
                del self._under_way[caller]
                # No call of this caller needs the answer now.
                for question in tuple(self._open):
                    question.leave(caller)

    async def elicit(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult | types.ErrorData:
        return _read(types.ElicitResult, await self._answer("elicitation/create", params))

    async def sample(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        answer = await self._answer("sampling/createMessage", params)
        if isinstance(answer, dict) and isinstance(answer.get("content"), list):
            return _read(types.CreateMessageResultWithTools, answer)
        return _read(types.CreateMessageResult, answer)

    async def list_roots(self, given: Sequence[str] | None) -> types.ListRootsResult | None:
        """Return the client's roots; while several clients have calls, those `given` to them."""
        try:
            answer = await self._ask("roots/list", {})
            return types.ListRootsResult.model_validate(answer, by_name=False)
        except (CannotAskError, ValidationError) as error:
            if given is not None:
                roots = [{"uri": uri} for uri in given]
                return types.ListRootsResult.model_validate({"roots": roots})
            self.have_been_asked |= len({caller.client for caller in self._under_way}) > 1
            logger.info("server %r: it gets no roots: %s", self._server, error)
            return None

    async def log(self, params: types.LoggingMessageNotificationParams) -> None:
        """Pass `notifications/message` to the client with pending calls, if there is only one."""
        try:
            caller = self._attribute(late=True)
        except CannotAskError:
            logger.debug("server %r: message without a caller: %.200r", self._server, params.data)
            return
        await caller.log(self._server, params.level, params.logger or "", params.data)

    async def _answer(
        self, method: Method, params: types.ElicitRequestParams | types.CreateMessageRequestParams
    ) -> dict[str, Json] | types.ErrorData:
        self.have_been_asked = True
        document = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        try:
            return await self._ask(method, _without_hop(document))
        except CannotAskError as error:
            self._refused += 1
            if math.log10(self._refused).is_integer():
                # Log the 1st, 10th, 100th and so on.
                count = counted(self._refused, "refusal")
                logger.info("server %r: request refused (%s): %s", self._server, count, error)
            # Code of a missing client capability, whose text most servers report.
            return types.ErrorData(code=types.METHOD_NOT_FOUND, message=str(error))

    async def _ask(self, method: Method, params: Mapping[str, Json]) -> dict[str, Json]:
        caller = self._attribute()
        self.asked = caller.client
        if len(self._open) >= MAX_QUESTIONS:
            message = f"It has asked {MAX_QUESTIONS} questions that are open already."
            await caller.record_refusal(self._server, method, message)
            raise CannotAskError(message, server=self._server)
        question = _OpenRequest(caller)
        with question.scope:
            self._open.add(question)
            try:
                for waiting in self._under_way:
                    question.hold(waiting)
                return await forward(caller, self._server, method, params)
            finally:
                self._open.discard(question)
                question.close()
        raise CannotAskError("The call that the request belongs to has ended.", server=self._server)

    def _note_finished(self, caller: ServerCaller, *, answered: bool) -> None:
        now = current_time()
        left = self._recent.pop(caller.client, None)
        # Until then the server may send requests for the cancelled call.
        until = now + (LATE_SECONDS if answered else 10.0)
        owed = max(0.0 if left is None else left.requests_until, 0.0 if answered else until)
        self._recent[caller.client] = _RecentCaller(caller, until, owed)
        self._recent = {
            client: past for client, past in self._recent.items() if now < max(past[1:])
        }

    def _attribute(self, *, late: bool = False) -> ServerCaller:
        """Return the caller that a server's message belongs to, since it names no call.

        A `late` message may belong to a call that has just got its response. Raises CannotAskError
        if there is no caller, or if there are several.
        """
        now = current_time()
        found = list(self._under_way)
        clients = {caller.client for caller in found}
        for client, left in self._recent.items():
            if now < left.requests_until or (late and now < left.until):
                clients.add(client)
                found.append(left.caller)
        if not self._under_way and not late:
            clients.clear()
        if not clients:
            message = "No user can be asked: no call to this server is under way."
            raise CannotAskError(message, server=self._server)
        if len(clients) > 1:
            message = (
                "No user can be asked: calls of several clients are under way, and the protocol "
                "does not say which one the request belongs to."
            )
            raise CannotAskError(message, server=self._server)
        return found[0]


def _read(
    model: type[Model], answer: Mapping[str, Json] | types.ErrorData
) -> Model | types.ErrorData:
    if isinstance(answer, types.ErrorData):
        return answer
    try:
        return model.model_validate(answer, by_name=False)
    except ValidationError as error:
        logger.warning("a client's answer has an unusual shape: %s", error)
        return types.ErrorData(
            code=types.INTERNAL_ERROR, message="The client's answer cannot be read."
        )
