"""Places for open sessions: in fair shares, and what is under way is never ended for another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from bridge.sessions import admission
from bridge.sessions.admission import SessionAdmission
from tests.raised import raises_code
from tests.waiting import PATIENCE_SECONDS, until


class OneSession:
    """A session as far as its place goes."""

    def __init__(self, owner: str, admission: SessionAdmission, *, since: float = 0.0) -> None:
        self.owner = owner
        self.since = since
        self.in_use = False
        self.away = False
        self._admission: Any = admission

    async def opened(self, *, busy: bool = False) -> OneSession:
        await self._admission.admit(self)
        self.in_use, self.away = busy, False
        return self

    async def put_away(self) -> None:
        assert not self.in_use
        await anyio.lowlevel.checkpoint()
        self.leave()

    def leave(self) -> None:
        self.away = True
        self._admission.dismiss(self)

    def end_run(self) -> bool:
        self.in_use = False
        return bool(self._admission.gives_way(self))


def _has(served: list[str], count: int) -> bool:
    return len(served) == count


Make = Callable[[str], OneSession]


@pytest.fixture
def places() -> SessionAdmission:
    return SessionAdmission(4, wait_seconds=60)


@pytest.fixture
def make(places: SessionAdmission) -> Make:
    made = iter(range(1000))
    return lambda owner: OneSession(owner, places, since=float(next(made)))


async def test_one_owner_has_all_places_and_then_gives_up_the_longest_idle(
    places: SessionAdmission, make: Make
) -> None:
    own = [await make("ada").opened(busy=number == 0) for number in range(4)]
    await make("ada").opened()
    assert [one.away for one in own] == [False, True, False, False]
    assert places.open == 4


async def test_a_newcomer_gets_places_up_to_a_share_and_no_more(
    places: SessionAdmission, make: Make
) -> None:
    ada = [await make("ada").opened() for _ in range(4)]
    bob = [await make("bob").opened() for _ in range(2)]
    assert [one.away for one in ada] == [True, True, False, False]
    # Each owner has a share, and makes room within it.
    await make("bob").opened()
    assert (bob[0].away, [one.away for one in ada[2:]]) == (True, [False, False])
    await make("ada").opened()
    assert (bob[1].away, ada[2].away) == (False, True)


async def test_who_has_a_share_and_uses_it_is_refused_and_told_what_to_do(
    places: SessionAdmission, make: Make
) -> None:
    for _ in range(3):
        await make("ada").opened(busy=True)
    bob = await make("bob").opened()
    with raises_code("session_limit", match="3 of the 4 .* your share") as refused:
        await make("ada").opened()
    assert not bob.away
    for words in ("end_session", "without `session`", "MCP_BRIDGE_SESSIONS"):
        assert words in refused.value.remedy


async def test_who_has_less_gets_the_place_of_the_next_run_that_ends(
    places: SessionAdmission, make: Make
) -> None:
    ada = [await make("ada").opened(busy=True) for _ in range(4)]
    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            bob = make("bob")
            tasks.start_soon(bob.opened)
            await anyio.wait_all_tasks_blocked()
            assert ada[2].end_run()
            # One is enough for one who waits.
            assert not ada[3].end_run()
            ada[3].in_use = True
            ada[2].leave()
            with raises_code("session_limit"):
                await ada[2].opened()
    assert places.open == 4
    assert [one.away for one in ada] == [False, False, True, False]


async def test_several_that_wait_are_served_in_the_order_they_came(
    places: SessionAdmission, make: Make
) -> None:
    ada = [await make("ada").opened(busy=True) for _ in range(4)]
    served: list[str] = []

    async def wait(owner: str) -> None:
        await make(owner).opened(busy=True)
        served.append(owner)

    with anyio.fail_after(PATIENCE_SECONDS):
        async with anyio.create_task_group() as tasks:
            for owner in ("bob", "eve", "joe"):
                tasks.start_soon(wait, owner)
                await anyio.wait_all_tasks_blocked()
            for number in range(3):
                assert ada[number].end_run()
                ada[number].leave()
                await until(partial(_has, served, number + 1))
    assert served == ["bob", "eve", "joe"]
    # The last that ada has is hers.
    assert not ada[3].end_run()


async def test_waiting_is_bounded_in_time_and_number_and_leaves_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = SessionAdmission(1, wait_seconds=0.01)
    first = await OneSession("ada", short).opened(busy=True)
    with raises_code("session_limit", match="in use"):
        await OneSession("bob", short).opened()
    # No one waits any more, so that it stays.
    assert not first.end_run()
    monkeypatch.setattr(admission, "MAX_WAITING", 0)
    first.in_use = True
    with raises_code("session_limit", match="wait for a place already"):
        await OneSession("bob", short).opened()


async def test_no_one_keeps_others_from_waiting(places: SessionAdmission, make: Make) -> None:
    for _ in range(4):
        await make("ada").opened(busy=True)
    async with anyio.create_task_group() as tasks:
        for _ in range(admission.MAX_WAITING_OF_OWNER):
            tasks.start_soon(make("bob").opened)
        await anyio.wait_all_tasks_blocked()
        with raises_code("session_limit", match="of your sessions wait"):
            await make("bob").opened()
        tasks.start_soon(make("eve").opened)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()


async def test_who_gives_up_waiting_is_not_waited_for(places: SessionAdmission, make: Make) -> None:
    ada = [await make("ada").opened(busy=True) for _ in range(4)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(make("bob").opened)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert not ada[0].end_run()
    assert places.open == 4
