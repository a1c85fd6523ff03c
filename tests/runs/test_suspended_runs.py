"""Runs that wait for their client to come back, without any sandbox."""

from __future__ import annotations

import math
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import anyio
import pytest

from bridge.errors import CannotAskError, InvalidRequestError
from bridge.model import Json, RunResult
from bridge.runs.suspended_runs import MAX_WAITING, SuspendedRun, SuspendedRuns, Waiting
from tests.raised import raises_code
from tests.waiting import PATIENCE_SECONDS, until

OWNER = "me"
REQUEST = "the call"


@pytest.fixture
async def runs() -> AsyncIterator[SuspendedRuns]:
    """Runs of an engine that is open; a test leaves none of them behind."""
    with anyio.fail_after(PATIENCE_SECONDS):
        async with SuspendedRuns().opened() as opened:
            yield opened
        assert (opened.live, opened.waiting) == (0, 0)


def _result(summary: str) -> RunResult:
    return RunResult(run_id="1", status="success", summary=summary)


async def _ask(run: SuspendedRun) -> RunResult:
    answer = await run.put("elicitation/create", {"message": "?"})
    return _result(str(answer))


async def _linger(run: SuspendedRun) -> RunResult:
    await anyio.sleep_forever()
    raise AssertionError


def _impatient() -> tuple[anyio.Event, Callable[[SuspendedRun], Awaitable[RunResult]]]:
    """Return work that asks a question, and at an event continues without the answer."""
    give_up = anyio.Event()

    async def work(run: SuspendedRun) -> RunResult:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run.put, "elicitation/create", {})
                await give_up.wait()
                scope.cancel()
        return _result("did without")

    return give_up, work


def _start(runs: SuspendedRuns) -> SuspendedRun:
    return runs.start(OWNER, REQUEST, None, _ask)


async def _suspended(runs: SuspendedRuns) -> tuple[SuspendedRun, Waiting]:
    run = _start(runs)
    waiting = await runs.follow(run)
    assert isinstance(waiting, Waiting)
    return run, waiting


async def test_a_result_that_waits_does_not_keep_what_its_run_was_given(
    runs: SuspendedRuns,
) -> None:
    class Given:
        """What a run is given."""

        async def work(self, run: SuspendedRun) -> RunResult:
            await run.put("elicitation/create", {"message": "?"})
            return _result("done")

    given = Given()
    kept = weakref.ref(given)
    run = runs.start(OWNER, REQUEST, None, given.work)
    del given
    waiting = await runs.follow(run)
    assert isinstance(waiting, Waiting)
    assert kept() is not None
    run.accept_answers({})
    await until(lambda: run.result is not None)
    assert kept() is None
    runs.resume(waiting.secret, OWNER, REQUEST)
    await runs.follow(run)


async def test_questions_of_one_moment_are_asked_together(runs: SuspendedRuns) -> None:
    async def work(run: SuspendedRun) -> RunResult:
        answers: list[Mapping[str, Json] | None] = []

        async def ask(number: int) -> None:
            answers.append(await run.put("elicitation/create", {"number": number}))

        async with anyio.create_task_group() as tasks:
            for number in range(3):
                tasks.start_soon(ask, number)
        return _result(str(len([answer for answer in answers if answer is not None])))

    run = runs.start(OWNER, REQUEST, None, work)
    waiting = await runs.follow(run)
    assert isinstance(waiting, Waiting)
    assert len(waiting.questions) == 3
    again = runs.resume(waiting.secret, OWNER, REQUEST)
    # What is left out is as good as cancelled.
    again.accept_answers({key: {} for key in list(waiting.questions)[:2]})
    assert await runs.follow(again) == _result("2")


@pytest.mark.parametrize(
    ("owner", "request_", "complaint"),
    [("you", REQUEST, "No run waits"), (OWNER, "another call", "other arguments")],
)
async def test_a_run_is_found_only_by_its_owner_with_the_same_call(
    runs: SuspendedRuns, owner: str, request_: str, complaint: str
) -> None:
    _, waiting = await _suspended(runs)
    with pytest.raises(InvalidRequestError, match=complaint):
        runs.resume(waiting.secret, owner, request_)
    runs.resume(waiting.secret, OWNER, REQUEST)


async def test_a_secret_is_good_for_one_use(runs: SuspendedRuns) -> None:
    _, waiting = await _suspended(runs)
    runs.resume(waiting.secret, OWNER, REQUEST)
    for secret in (waiting.secret, "", "guessed"):
        with pytest.raises(InvalidRequestError, match="No run waits"):
            runs.resume(secret, OWNER, REQUEST)


async def test_another_replica_says_where_a_run_waits() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        a, b = SuspendedRuns(replica="a.host"), SuspendedRuns(replica="b")
        async with a.opened() as here, b.opened() as other:
            run, waiting = await _suspended(here)
            with raises_code("elsewhere", match="another replica of the bridge, 'a.host'"):
                other.resume(waiting.secret, OWNER, REQUEST)
            with raises_code("elsewhere"):
                other.task(waiting.secret, OWNER)
            with pytest.raises(InvalidRequestError, match="No run waits"):
                other.resume("made-up", OWNER, REQUEST)
            assert here.resume(waiting.secret, OWNER, REQUEST) is run


async def test_each_suspension_has_another_secret(runs: SuspendedRuns) -> None:
    async def work(run: SuspendedRun) -> RunResult:
        await run.put("elicitation/create", {})
        await run.put("elicitation/create", {})
        return _result("done")

    run = runs.start(OWNER, REQUEST, None, work)
    secrets: set[str] = set()
    while not isinstance(outcome := await runs.follow(run), RunResult):
        assert isinstance(outcome, Waiting)
        secrets.add(outcome.secret)
        runs.resume(outcome.secret, OWNER, REQUEST).accept_answers({})
    assert outcome == _result("done")
    assert len(secrets) == 2
    assert all(len(secret) > 40 for secret in secrets)


async def test_a_run_that_no_one_comes_back_for_is_cancelled(runs: SuspendedRuns) -> None:
    run, waiting = await _suspended(runs)
    assert run.scope.deadline < anyio.current_time() + 600
    run.scope.deadline = anyio.current_time()
    await run.over.wait()
    assert (runs.live, runs.waiting, run.questions) == (0, 0, {})
    with pytest.raises(InvalidRequestError, match="given up"):
        runs.resume(waiting.secret, OWNER, REQUEST)


async def test_a_run_that_ended_meanwhile_keeps_its_result(runs: SuspendedRuns) -> None:
    give_up, work = _impatient()
    run = runs.start(OWNER, REQUEST, None, work)
    waiting = await runs.follow(run)
    assert isinstance(waiting, Waiting)
    give_up.set()
    again = runs.resume(waiting.secret, OWNER, REQUEST)
    assert await runs.follow(again) == _result("did without")


@pytest.mark.parametrize("leaving", [0, 1])
async def test_a_run_that_two_requests_follow_continues_until_the_last_is_cancelled(
    runs: SuspendedRuns, leaving: int
) -> None:
    run = runs.start(OWNER, REQUEST, None, _linger)
    scopes = [anyio.CancelScope(), anyio.CancelScope()]

    async def follow(scope: anyio.CancelScope) -> None:
        with scope:
            await runs.follow(run)

    async with anyio.create_task_group() as tasks:
        for scope in scopes:
            tasks.start_soon(follow, scope)
        await until(lambda: run.followers == 2)
        scopes[leaving].cancel()
        await until(lambda: run.followers == 1)
        assert not run.over.is_set()
        assert not run.scope.cancel_called
        scopes[1 - leaving].cancel()
    assert runs.live == run.followers == 0


async def test_a_run_that_a_request_follows_has_no_deadline_by_another_s_patience(
    runs: SuspendedRuns,
) -> None:
    run = runs.start(OWNER, REQUEST, None, _linger)
    over = anyio.CancelScope()

    async def follow() -> None:
        with over:
            await runs.follow(run)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(follow)
        await until(lambda: run.followers == 1)
        number = await runs.follow(run, patience=0)
        assert isinstance(number, str)
        runs.task(number, OWNER)
        assert run.scope.deadline == math.inf
        over.cancel()
    assert runs.live == 0
    alone = runs.start(OWNER, REQUEST, None, _linger)
    assert isinstance(await runs.follow(alone, patience=0), str)
    assert alone.scope.deadline < math.inf


async def test_only_so_many_runs_wait(runs: SuspendedRuns) -> None:
    for _ in range(MAX_WAITING):
        await _suspended(runs)
    another = _start(runs)
    with pytest.raises(CannotAskError, match="wait for answers already"):
        runs.check_room(another)


async def test_runs_that_ended_while_their_clients_were_away_give_way_the_oldest_first(
    runs: SuspendedRuns,
) -> None:
    give_up, work = _impatient()
    ended = [runs.start(OWNER, REQUEST, None, work) for _ in range(MAX_WAITING)]
    for run in ended:
        assert isinstance(await runs.follow(run), Waiting)
    give_up.set()
    await until(lambda: all(run.result is not None for run in ended))
    asking = _start(runs)
    runs.check_room(asking)
    await ended[0].over.wait()
    assert isinstance(await runs.follow(asking), Waiting)
    task = runs.start(OWNER, REQUEST, None, _linger)
    assert isinstance(await runs.follow(task, patience=0), str)
    await ended[1].over.wait()
    assert (runs.waiting, ended[2].over.is_set()) == (MAX_WAITING, False)


async def test_leaving_ends_all() -> None:
    with anyio.fail_after(PATIENCE_SECONDS):
        async with SuspendedRuns().opened() as runs:
            await _suspended(runs)
    assert (runs.live, runs.waiting) == (0, 0)
