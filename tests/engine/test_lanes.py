"""Which runs share a sandbox, what is asked of it between them, and what their results say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import anyio
import pytest

from bridge.engine import Engine, open_engine
from bridge.engine.lane_session import SHARED, SHARED_PROC, LaneChannel, insist_on_lane, of_one_run
from bridge.errors import BrokenIsolationError, ChannelClosedError, LaneRefusedError
from bridge.guest.wire import Exited, GuestFrame, Hello, Output, Ready, WireError, encode
from bridge.model import Isolation, RunRequest
from bridge.sandbox.backend import ExitReport, LanePlan
from bridge.sandbox.layers import OWN_NAMESPACES, insist, verified
from bridge.settings import Settings
from tests.engine_rig import ListFinder
from tests.fakes.backend import FakeBackend

NAMES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
FACTS = {
    "lane": {
        "zygote": {name: f"{name}:[1]" for name in NAMES},
        "namespaces": {name: f"{name}:[2]" for name in NAMES},
        "writable": ["/dev/shm", "/proc", "/tmp", "/workspace"],
        "found": [],
        "directory_is_new": True,
        "proc": "",
    }
}
PLAN = LanePlan(mounts=(), layers=("landlock",))
ISOLATION = Isolation(backend="bubblewrap", layers=("no-network", "own-seccomp"))


class Said:
    """A sandbox that has said some frames, and takes no more than it is told to."""

    id = "fake"
    isolation = ISOLATION

    def __init__(self, *frames: GuestFrame) -> None:
        self._left = [encode(frame) for frame in frames]
        self.takes = anyio.Event()
        self.takes.set()

    async def send(self, data: bytes) -> None:
        """Take it when that is possible."""
        await self.takes.wait()

    async def receive(self) -> bytes:
        """Say the next frame."""
        return self._left.pop(0) if self._left else b""

    def diagnostics(self) -> str:
        """Nothing."""
        return ""

    async def kill(self) -> None:
        """Nothing."""

    async def wait(self) -> ExitReport:
        """Nothing."""
        return ExitReport()


@pytest.fixture
async def forking(
    settings: Settings, backend: FakeBackend, finder: ListFinder
) -> AsyncIterator[Engine]:
    """An engine that was asked for forks, on a backend that has none."""

    async def choose(_: Settings) -> FakeBackend:
        return backend

    wanted = replace(settings, isolation="fork")
    async with open_engine(wanted, finder=finder, choose_backend=choose) as opened:
        yield opened
    assert backend.live == set()


def notes(isolation: Isolation | None) -> list[str]:
    """Return what is said of forks."""
    assert isolation is not None
    return [text for text in isolation.weaker if text.startswith("fork:")]


async def test_where_lanes_cannot_be_had_a_run_gets_a_sandbox_and_says_why(
    forking: Engine,
) -> None:
    """Never a fork without namespaces."""
    for _ in range(2):
        result = await forking.run(RunRequest(code="1 + 1", principal="me"))
        assert result.result == 2
        [note] = notes(result.isolation)
        assert "not used" in note
        assert "does not offer it" in note
        assert result.isolation is not None
        assert OWN_NAMESPACES not in result.isolation.layers


async def test_a_run_of_nobody_in_particular_gets_a_sandbox_and_says_why(
    forking: Engine, backend: FakeBackend
) -> None:
    """Several callers of one bridge must not share one."""
    result = await forking.run(RunRequest(code="1 + 1"))
    [note] = notes(result.isolation)
    assert "callers" in note
    assert result.result == 2


async def test_without_the_setting_nothing_is_said_of_forks(engine: Engine) -> None:
    """Each run has a sandbox of its own, as ever."""
    result = await engine.run(RunRequest(code="1 + 1", principal="me"))
    assert notes(result.isolation) == []


async def test_a_lane_is_used_again_only_after_a_clean_end() -> None:
    """Anything else ends it."""
    for exited, clean in (
        (Exited(code=0), True),
        (Exited(code=3), True),
        (Exited(signal=9), False),
        (Exited(code=1, timed_out=True), False),
        (Exited(code=0, oom_kills=1), False),
    ):
        channel = LaneChannel(Said(exited))
        assert not channel.clean()
        await channel.receive()
        assert channel.clean() == clean, exited


async def test_a_frame_after_the_last_one_spoils_a_lane() -> None:
    """Whoever sent it, it is no answer to anything."""
    channel = LaneChannel(Said(Exited(code=0), Output("stdout", "late")))
    await channel.receive()
    with pytest.raises(WireError):
        await channel.receive()
    assert not channel.clean()


async def test_a_run_cannot_say_that_the_next_may_begin() -> None:
    """Else the next program would be given to it."""
    channel = LaneChannel(Said(Ready(facts=FACTS), Exited(code=0)))
    with pytest.raises(WireError):
        await channel.receive()
    assert not channel.clean()


async def test_a_frame_half_sent_spoils_a_lane() -> None:
    """The next run's supervisor would read the rest."""
    sandbox = Said(Exited(code=0))
    sandbox.takes = anyio.Event()
    channel = LaneChannel(sandbox)
    with anyio.move_on_after(0):
        await channel.send_bytes(b"half")
    await channel.receive()
    assert not channel.clean()


async def test_a_lane_that_says_anything_but_ready_between_runs_is_lost() -> None:
    """Late output, a second hello, the end."""
    for said in ([Output("stdout", "x")], [Hello(digest="", python="")], []):
        with pytest.raises(ChannelClosedError):
            await LaneChannel(Said(*said)).ready()
    with pytest.raises(LaneRefusedError, match="clone: refused"):
        await LaneChannel(Said(Ready(refused="clone: refused"))).ready()


async def test_a_new_run_begins_with_a_clean_slate() -> None:
    """What the last one left on the channel does not count for it."""
    channel = LaneChannel(Said(Exited(code=0), Ready(facts=FACTS), Exited(signal=9)))
    await channel.receive()
    assert await channel.ready() == FACTS
    assert not channel.clean()
    await channel.receive()
    assert not channel.clean()


def test_the_result_names_what_is_shared() -> None:
    """And what is a run's own."""
    made = verified(of_one_run(ISOLATION, PLAN, FACTS), FACTS)
    assert {OWN_NAMESPACES, "landlock"} <= set(made.layers)
    assert OWN_NAMESPACES in made.verified
    assert made.weaker == (SHARED,)
    shown = {"lane": {**FACTS["lane"], "proc": "mounting /proc: refused"}}
    assert of_one_run(ISOLATION, PLAN, shown).weaker == (SHARED, SHARED_PROC)


@pytest.mark.parametrize(
    "seen",
    [
        {"namespaces": {**{name: f"{name}:[2]" for name in NAMES}, "mnt": "mnt:[1]"}},
        {"namespaces": {name: f"{name}:[2]" for name in NAMES if name != "pid"}},
        {"namespaces": None},
        {"writable": ["/dev/mqueue", "/tmp"]},
        {"writable": None},
        {"found": ["left-by-another"]},
        {"directory_is_new": False},
    ],
    ids=str,
)
def test_a_run_that_is_not_apart_is_not_run(seen: dict[str, object]) -> None:
    """One namespace or directory in common is enough."""
    facts = {"lane": {**FACTS["lane"], **seen}}
    with pytest.raises(BrokenIsolationError, match=OWN_NAMESPACES):
        insist(of_one_run(ISOLATION, PLAN, facts), facts)


SHUT_IN = {**FACTS, "seccomp_filters": 3, "cap_bnd": "0000000000000000"}
BEFORE = {"seccomp_filters": 2}


def test_a_run_that_is_seen_to_be_apart_may_begin() -> None:
    """The control of the next test."""
    insist_on_lane(of_one_run(ISOLATION, PLAN, SHUT_IN), SHUT_IN, BEFORE)


@pytest.mark.parametrize(
    "unseen",
    [
        {"lane": "yes"},
        {"lane": None},
        {"seccomp_filters": 2},
        {"seccomp_filters": None},
        {"cap_bnd": "00000000a80425fb"},
        {"cap_bnd": None},
    ],
    ids=str,
)
def test_what_was_not_seen_does_not_pass(unseen: dict[str, object]) -> None:
    """Nothing else keeps runs of one sandbox apart, so silence is not enough here."""
    facts = {**SHUT_IN, **unseen}
    with pytest.raises(BrokenIsolationError):
        insist_on_lane(of_one_run(ISOLATION, PLAN, facts), facts, BEFORE)
    missing = {name: value for name, value in facts.items() if name not in unseen}
    with pytest.raises(BrokenIsolationError):
        insist_on_lane(of_one_run(ISOLATION, PLAN, missing), missing, BEFORE)
