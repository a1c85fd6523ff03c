"""A server's requests to the client of a call, and tools that servers run as tasks."""

from __future__ import annotations

import sys
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

from bridge.errors import CallTimeoutError, CannotAskError, ToolCallError
from bridge.event_loop import Clock
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
from tests.upstream.rig import EVERYTHING, SERVERS, Rig, wait_file
from tests.waiting import PATIENCE_SECONDS, until

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

    async def record_refusal(self, server: str, method: Method, why: str) -> None:
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
        ({"me": TimeoutError()}, [], NO_CALL),
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


VERSIONS = pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])


class Tasker:
    """A server that runs its tool as tasks, and the methods of its requests."""

    def __init__(self, rig: Rig, version: str) -> None:
        self.log = rig.path("asked")
        self.spec = rig.spec(sys.executable, str(SERVERS / "tasker.py"), version, self.log)

    def methods(self) -> list[str]:
        return Path(self.log).read_text().split()


@VERSIONS
async def test_the_result_or_failure_of_a_task_is_that_of_the_call(rig: Rig, version: str) -> None:
    async with rig.pool(Tasker(rig, version).spec) as pool:
        for _ in range(2):
            result = await pool.call_tool("server", "work", {"ends": "well"})
            assert result["content"][0]["text"] == "done"
        with pytest.raises(ToolCallError, match="no luck") as caught:
            await pool.call_tool("server", "work", {"ends": "badly"})
        assert not caught.value.doubtful


@VERSIONS
async def test_a_task_that_takes_too_long_is_cancelled(rig: Rig, version: str) -> None:
    server = Tasker(rig, version)
    async with rig.pool(server.spec) as pool:
        with pytest.raises(CallTimeoutError):
            await pool.call_tool("server", "work", {"ends": "never"}, timeout=1)
        assert "tasks/cancel" in server.methods()
        Path(server.log).unlink()  # noqa: ASYNC240
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pool.call_tool, "server", "work", {"ends": "never"})
            await wait_file(server.log)
            await until(lambda: bool({"tasks/result", "tasks/get"} & {*server.methods()}))
            tasks.cancel_scope.cancel()
        assert "tasks/cancel" in server.methods()


async def test_a_task_that_wants_to_know_something_asks_the_caller(rig: Rig) -> None:
    server = Tasker(rig, "2026-07-28")
    async with rig.pool(server.spec) as pool:
        with pytest.raises(CannotAskError, match="does not belong to a run"):
            await pool.call_tool("server", "work", {"ends": "asks"})
        assert server.methods()[-1] == "tasks/cancel"
        caller = FakeCaller("me")
        with on_behalf_of(caller):
            result = await pool.call_tool("server", "work", {"ends": "asks"})
        assert result["content"][0]["text"] == "done me"
        assert len(caller.asked) == 1


WORK = "trigger-long-running-operation"


@pytest.mark.slow
@pytest.mark.parametrize("wanted", [True, False])
async def test_progress_moves_a_calls_limit(rig: Rig, wanted: bool) -> None:
    caller = FakeCaller()
    caller.wants_progress = wanted
    async with rig.pool(rig.spec("node", str(EVERYTHING), "stdio")) as pool:
        await pool.server("server").start()
        with on_behalf_of(caller), anyio.fail_after(PATIENCE_SECONDS):
            result = await pool.call_tool("server", WORK, {"duration": 4, "steps": 16}, timeout=2.0)
            assert "completed" in result["content"][0]["text"]
            assert bool(caller.reported) is wanted
            with pytest.raises(CallTimeoutError, match="within 1 s"):
                await pool.call_tool("server", WORK, {"duration": 3600, "steps": 1}, timeout=1.0)
            endless = {"duration": 3600, "steps": 72_000}
            with pytest.raises(CallTimeoutError, match="did not answer"):
                await pool.call_tool("server", WORK, endless, timeout=0.5)
