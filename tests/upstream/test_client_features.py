"""Whom a server's questions go to, without any server."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.types import (
    ElicitRequestFormParams,
    ElicitResult,
    ErrorData,
    LoggingMessageNotificationParams,
)
from opentelemetry.context import get_current

from bridge.clock import Clock
from bridge.errors import CannotAskError, ToolCallError
from bridge.model import Json
from bridge.upstream import client_features as asking
from bridge.upstream.client_features import (
    MAX_QUESTIONS,
    MAX_REQUEST_DEPTH,
    MAX_ROUNDS,
    Callers,
    Method,
    forward,
    on_behalf_of,
    resolve_input,
)
from tests.waiting import PATIENCE_SECONDS

CONTEXT: Any = None
QUESTION = ElicitRequestFormParams(message="?", requested_schema={"type": "object"})


class FakeCaller:
    """A run whose client waits with its answers until `answer` is set."""

    def __init__(self, client: Hashable = "one", *, ready: bool = True) -> None:
        self.client = client
        self.clock = Clock()
        self.trace = get_current()
        self.wants_progress = False
        self.log_level = "info"
        self.asked: list[tuple[str, Mapping[str, Json]]] = []
        self.logged: list[Json] = []
        self.reported: list[float] = []
        self.refusals: list[str] = []
        self.restarted: list[str] = []
        self.reached = anyio.Event()
        self.answer = anyio.Event()
        if ready:
            self.answer.set()

    async def ask(self, server: str, method: Method, params: Mapping[str, Json]) -> dict[str, Json]:
        self.asked.append((method, params))
        self.reached.set()
        await self.answer.wait()
        return {"action": "accept", "content": {"client": str(self.client)}}

    def note_restart(self, server: str) -> None:
        self.restarted.append(server)

    async def refused(self, server: str, method: Method, why: str) -> None:
        self.refusals.append(why)

    async def report(
        self, server: str, tool: str, done: float, total: float | None, message: str
    ) -> None:
        self.reported.append(done)

    async def log(self, server: str, level: str, name: str, data: Json) -> None:
        self.logged.append(data)


def _message(data: str) -> LoggingMessageNotificationParams:
    return LoggingMessageNotificationParams(level="info", data=data)


async def test_runs_of_one_client_are_one_to_a_server() -> None:
    callers, first, second = Callers("server"), FakeCaller("me", ready=False), FakeCaller("me")
    with anyio.fail_after(PATIENCE_SECONDS):
        with on_behalf_of(first), callers.use(), on_behalf_of(second), callers.use():
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(callers.elicit, CONTEXT, QUESTION)
                await first.reached.wait()
                assert not first.clock.running
                assert not second.clock.running
                first.answer.set()
    assert first.clock.running
    assert second.clock.running


NO_CALL = "no call to this server is under way"


@pytest.mark.parametrize(
    ("earlier", "now", "complaint"),
    [
        ({}, ["me", "you"], "several clients"),
        ({}, [], NO_CALL),
        ({"me": None}, [], NO_CALL),
        # The server of a call that was given up may ask all the same.
        ({"me": TimeoutError()}, ["you"], "several clients"),
        ({"me": ToolCallError("no", server="server", rpc_code=1)}, ["you"], ""),
    ],
)
async def test_a_question_goes_to_the_one_client_with_a_call(
    earlier: dict[str, Exception | None], now: list[str], complaint: str
) -> None:
    callers, clients = Callers("server"), {name: FakeCaller(name) for name in ("me", "you")}
    for name, error in earlier.items():
        with suppress(TimeoutError, ToolCallError), on_behalf_of(clients[name]), callers.use():
            if error is not None:
                raise error
    with callers.use(), ExitStack() as stack:
        for name in now:
            stack.enter_context(on_behalf_of(clients[name]))
            stack.enter_context(callers.use())
        answer = await callers.elicit(CONTEXT, QUESTION)
        if len(now) > 1:
            await callers.log(_message("whose?"))
    assert isinstance(answer, ErrorData if complaint else ElicitResult)
    assert complaint in str(answer)
    asked = [name for name, client in clients.items() if client.asked or client.logged]
    assert asked == ([] if complaint else now)


async def test_a_question_ends_with_the_call_that_it_belongs_to() -> None:
    callers, caller = Callers("server"), FakeCaller(ready=False)
    answers: list[Any] = []

    async def ask() -> None:
        answers.append(await callers.elicit(CONTEXT, QUESTION))

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            with on_behalf_of(caller), callers.use():
                tasks.start_soon(ask)
                await caller.reached.wait()
                assert not caller.clock.running
            assert caller.clock.running
    assert "has ended" in answers[0].message
    await callers.log(_message("late"))
    assert caller.logged == ["late"], "a message may come just after the response to its call"


async def test_a_missing_answer_counts_as_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asking.ANSWER_SECONDS == 600
    monkeypatch.setattr(asking, "ANSWER_SECONDS", 0.01)
    with anyio.fail_after(PATIENCE_SECONDS):
        caller = FakeCaller(ready=False)
        assert await forward(caller, "server", "elicitation/create", {}) == {"action": "cancel"}
        with pytest.raises(CannotAskError, match="no answer within"):
            await forward(caller, "server", "sampling/createMessage", {})


async def test_a_question_beyond_the_bounds_is_refused() -> None:
    nested: Json = {}
    for _ in range(MAX_REQUEST_DEPTH):
        nested = {"items": [nested]}
    with pytest.raises(CannotAskError, match="levels deep"):
        await forward(FakeCaller(), "server", "elicitation/create", {"requestedSchema": nested})
    callers, caller = Callers("server"), FakeCaller(ready=False)
    long = ElicitRequestFormParams(message="x" * 70_000, requested_schema={})
    with anyio.fail_after(PATIENCE_SECONDS), on_behalf_of(caller), callers.use():
        refused = await callers.elicit(CONTEXT, long)
        assert isinstance(refused, ErrorData)
        assert "bytes" in refused.message
        async with anyio.create_task_group() as tasks:
            for _ in range(MAX_QUESTIONS):
                tasks.start_soon(callers.elicit, CONTEXT, QUESTION)
            while len(caller.asked) < MAX_QUESTIONS:
                await anyio.lowlevel.checkpoint()
            refused = await callers.elicit(CONTEXT, QUESTION)
            caller.answer.set()
    assert isinstance(refused, ErrorData)
    assert "open already" in refused.message


def _wants(**questions: Json) -> dict[str, Json]:
    return {"resultType": "input_required", "inputRequests": questions, "requestState": "s"}


FORM: dict[str, Json] = {"method": "elicitation/create", "params": {"message": "?"}}


class Retry:
    def __init__(self, result: dict[str, Json]) -> None:
        self.result, self.calls = result, list[Any]()

    async def __call__(self, answers: dict[str, Json] | None, state: str | None) -> dict[str, Json]:
        self.calls.append((answers, state))
        return self.result


async def test_a_call_is_made_again_with_the_answers_to_all_its_questions() -> None:
    caller, retry = FakeCaller("me"), Retry({"content": []})
    params: Json = {"message": "?", "task": {"ttl": 1}, "_meta": {"progressToken": 1}}
    form: Json = {"method": "elicitation/create", "params": params}
    first = _wants(a=form, b={"method": "roots/list"})
    with on_behalf_of(caller):
        result = await resolve_input("server", "tool 't'", first, retry, roots=[Path("/a dir/b")])
    assert result == {"content": []}
    accepted = {"action": "accept", "content": {"client": "me"}}
    roots = {"roots": [{"uri": "file:///a%20dir/b", "name": "b"}]}
    assert retry.calls == [({"a": accepted, "b": roots}, "s")]
    # A client would take the server's task for its own, and answer with another one.
    assert caller.asked == [("elicitation/create", {"message": "?"})]


async def test_time_stands_still_while_a_call_waits_for_answers() -> None:
    caller = FakeCaller(ready=False)

    async def retry(answers: dict[str, Json] | None, state: str | None) -> dict[str, Json]:
        assert caller.clock.running
        return {}

    with anyio.fail_after(PATIENCE_SECONDS), on_behalf_of(caller):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resolve_input, "server", "tool 't'", _wants(a=FORM), retry)
            await caller.reached.wait()
            assert not caller.clock.running
            caller.answer.set()


@pytest.mark.parametrize(
    ("result", "complaint"),
    [
        (_wants(a=FORM), "does not belong to a run"),
        (_wants(a={"method": "roots/list"}), "'roots/list', which is not offered"),
        (_wants(a={"method": "shell/run", "params": {}}), "'shell/run', which is not offered"),
        (_wants(a="?"), "which is not offered"),
        (_wants(**{f"q{n}": FORM for n in range(MAX_QUESTIONS + 1)}), "questions at once"),
        ({"resultType": "input_required", "inputRequests": ["?"]}, "cannot be understood"),
    ],
)
async def test_what_cannot_be_asked_is_an_error(result: dict[str, Json], complaint: str) -> None:
    retry = Retry({})
    with pytest.raises((CannotAskError, ToolCallError), match=complaint):
        await resolve_input("server", "tool 't'", result, retry)
    assert retry.calls == []


async def test_a_server_that_never_has_enough_is_given_up() -> None:
    retry = Retry(_wants(a=FORM))
    with on_behalf_of(FakeCaller()), pytest.raises(ToolCallError, match="still asks for input"):
        await resolve_input("server", "tool 't'", _wants(a=FORM), retry)
    assert len(retry.calls) == MAX_ROUNDS
