"""Lanes handed from run to run, and when they are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from bridge.errors import ChannelClosedError, LaneRefusedError
from bridge.sandbox.lanes import LanePool
from tests.waiting import until


@dataclass(eq=False)
class Fake:
    """A lane whose runs end as a test says."""

    number: int
    key: str
    ends_clean: bool = True
    renews: bool = True
    renewed: int = 0
    died: anyio.Event = field(default_factory=anyio.Event)

    def clean(self) -> bool:
        """As told."""
        return self.ends_clean

    async def renew(self) -> None:
        """Get ready, or fail to."""
        if not self.renews:
            message = "gone"
            raise ChannelClosedError(message)
        self.renewed += 1

    async def wait_dead(self) -> None:
        """Return when told."""
        await self.died.wait()


@dataclass
class Opener:
    """Opens lanes, or refuses to."""

    opened: list[Fake] = field(default_factory=list)
    closed: list[Fake] = field(default_factory=list)
    refusing: str = ""
    tried: int = 0

    @asynccontextmanager
    async def __call__(self, key: str) -> AsyncIterator[Fake]:
        """Open one."""
        self.tried += 1
        if self.refusing:
            raise LaneRefusedError(self.refusing)
        lane = Fake(len(self.opened), key)
        self.opened.append(lane)
        try:
            yield lane
        finally:
            self.closed.append(lane)


async def test_one_lane_serves_run_after_run() -> None:
    """It is made ready again after each, and never opened twice."""
    opener = Opener()
    async with LanePool(opener, spare=0) as pool:
        for _ in range(3):
            async with pool.claim("me") as lane:
                assert lane.number == 0
        await until(lambda: opener.opened[0].renewed == 3)
    assert opener.closed == opener.opened


async def test_two_keys_never_share_a_lane() -> None:
    """Neither at a time nor after one another."""
    opener = Opener()
    async with LanePool(opener, spare=0) as pool:
        for key in ("me", "you", "me", "you"):
            async with pool.claim(key) as lane:
                assert lane.key == key
    assert len(opener.opened) == 2


async def test_two_runs_at_a_time_have_a_lane_each() -> None:
    """A lane serves one run at a time."""
    opener = Opener()
    async with (
        LanePool(opener, spare=0) as pool,
        pool.claim("me") as first,
        pool.claim("me") as second,
    ):
        assert first is not second


@pytest.mark.parametrize("how", ["not clean", "not renewed", "an error"])
async def test_a_lane_whose_run_did_not_end_as_it_should_is_destroyed(how: str) -> None:
    """The next run gets another."""
    opener = Opener()
    async with LanePool(opener, spare=0) as pool:
        first: Fake | None = None
        try:
            async with pool.claim("me") as first:
                first.ends_clean, first.renews = how != "not clean", how != "not renewed"
                if how == "an error":
                    raise ValueError
        except ValueError:
            pass
        await until(lambda: opener.closed == [first])
        async with pool.claim("me") as second:
            assert second is not first
        assert first is not None
        assert first.renewed == 0


async def test_a_lane_is_replaced_after_its_last_run() -> None:
    """Its layout of memory and its hash seed are not kept for ever."""
    opener = Opener()
    async with LanePool(opener, spare=0, max_runs=2) as pool:
        numbers = []
        for _ in range(5):
            async with pool.claim("me") as lane:
                numbers.append(lane.number)
    assert numbers == [0, 0, 1, 1, 2]
    assert [lane.renewed for lane in opener.opened[:2]] == [1, 1]


async def test_a_lane_is_given_up_at_its_age_though_nobody_uses_it() -> None:
    """A forgotten client costs nothing for long."""
    opener = Opener()
    async with LanePool(opener, spare=0, max_age=0.0) as pool:
        pool.prepare("me")
        await until(lambda: len(opener.closed) == 1)
        await until(lambda: pool.alive == 0)


async def test_a_lane_that_dies_while_it_waits_is_not_handed_out() -> None:
    """The next claim opens another."""
    opener = Opener()
    async with LanePool(opener, spare=0) as pool:
        async with pool.claim("me") as first:
            pass
        await until(lambda: pool.idle == 1)
        first.died.set()
        await until(lambda: pool.alive == 0)
        async with pool.claim("me") as second:
            assert second is not first


async def test_a_refusal_is_remembered_and_says_why() -> None:
    """Trying again costs a sandbox each time."""
    opener = Opener(refusing="no namespaces")
    async with LanePool(opener, spare=0) as pool:
        for _ in range(3):
            with pytest.raises(LaneRefusedError, match="no namespaces"):
                async with pool.claim("me"):
                    pass
    assert opener.tried == 1


async def test_a_refusal_is_forgotten_in_time() -> None:
    """What stood in the way may be gone."""
    opener = Opener(refusing="not now")
    async with LanePool(opener, spare=0, retry=0.0) as pool:
        with pytest.raises(LaneRefusedError):
            async with pool.claim("me"):
                pass
        opener.refusing = ""
        async with pool.claim("me"):
            pass


async def test_who_waits_too_long_does_without() -> None:
    """There are only so many."""
    opener = Opener()
    async with (
        LanePool(opener, most=1, spare=0, wait=0.0) as pool,
        LanePool(opener, most=1, spare=0) as patient,
        patient.claim("me"),
    ):
        pool.prepare("me")
        await until(lambda: pool.idle == 1)
        async with pool.claim("me"):
            with pytest.raises(LaneRefusedError, match="in use"):
                async with pool.claim("me"):
                    pass


async def test_an_idle_lane_makes_room_for_another_key() -> None:
    """Else the first key's would stay until their age."""
    opener = Opener()
    async with LanePool(opener, most=1, spare=0) as pool:
        async with pool.claim("me"):
            pass
        async with pool.claim("you") as lane:
            assert lane.key == "you"


async def test_a_claim_that_is_called_off_leaves_the_lane_to_others() -> None:
    """Or destroys it; it is not lost."""
    opener = Opener()
    async with LanePool(opener, most=1, spare=0) as pool:
        with anyio.CancelScope() as scope:
            async with pool.claim("me"):
                scope.cancel()
                await anyio.sleep_forever()
        async with pool.claim("me") as lane:
            assert lane.number == 1


async def test_draining_destroys_what_nobody_holds() -> None:
    """Before what they run in is stopped."""
    opener = Opener()
    async with LanePool(opener, spare=0) as pool:
        async with pool.claim("me"):
            await pool.drain()
            assert opener.closed == []
        await until(lambda: pool.idle == 1)
        await pool.drain()
        assert pool.alive == 0
