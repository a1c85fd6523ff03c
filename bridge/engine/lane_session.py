"""A sandbox in which runs follow each other, each forked into namespaces of its own.

Owns the talk with such a sandbox's guest between runs, and what is seen and said of the isolation
of each. When there is one and who has it is `bridge.sandbox.lanes`'s.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from bridge.engine.guest_session import GuestSession, open_guest, wait_dead
from bridge.errors import BrokenIsolationError, ChannelClosedError, LaneRefusedError
from bridge.guest.wire import Exited, GuestFrame, Lane, Next, Ready, WireError
from bridge.model import Isolation
from bridge.rpc.channel import Channel
from bridge.sandbox.backend import Backend, LanePlan, LaneSandbox, LaunchSpec, Sandbox
from bridge.sandbox.kernel import OWN_KERNEL
from bridge.sandbox.lanes import MAX_AGE_SECONDS, MAX_RUNS
from bridge.sandbox.layers import OWN_NAMESPACES, insist, verified

SHARED = (
    "fork: runs of one principal follow each other in one sandbox, for at most "
    f"{MAX_RUNS} runs or {MAX_AGE_SECONDS / 60:.0f} minutes; they have its control group's limits, "
    "the layout of memory and the seed of hash() in common"
)
"""What is not a run's own in a lane, as its result says it."""

SHARED_PROC = (
    "fork: /proc is the sandbox's, where the processes of this run have other numbers than inside "
    "the run, and the one that starts runs is seen"
)


class LaneChannel(Channel):
    """A channel that knows what state its run left it in."""

    def __init__(self, stream: Sandbox) -> None:
        super().__init__(stream)
        self._begin()

    def _begin(self) -> None:
        self._exited: Exited | None = None
        self._unfinished = 0
        self._broken = False

    async def write(self, pieces: Iterable[bytes]) -> None:
        """Write a frame; if that is cut short, nothing can follow it."""
        self._unfinished += 1
        await super().write(pieces)
        self._unfinished -= 1

    async def receive(self) -> GuestFrame | None:
        """Return the next frame of a run."""
        try:
            frame = await super().receive()
        except (WireError, ChannelClosedError):
            self._broken = True
            raise
        if self._exited is not None or isinstance(frame, Ready):
            # After its last word, or one that is not a run's to say.
            self._broken = True
            message = "a frame outside of any run"
            raise WireError(message)
        if isinstance(frame, Exited):
            self._exited = frame
        return frame

    @property
    def ending(self) -> str:
        """What the guest wants to hear before it gets the next run ready."""
        return "" if self._exited is None else self._exited.ending

    def clean(self) -> bool:
        """Tell whether the run ended as agreed, and all that was sent to it is sent whole."""
        exited = self._exited
        return (
            exited is not None
            and exited.signal is None
            and not exited.timed_out
            and not exited.oom_kills
            and not self._broken
            and not self._unfinished
        )

    async def ready(self) -> Mapping[str, Any]:
        """Wait until the next run can begin; return what its process sees of its isolation.

        Raises:
            LaneRefusedError: The system does not let it have namespaces of its own.
            ChannelClosedError: The guest is gone, or said something else.
        """
        try:
            frame = await super().receive()
        except WireError as error:
            message = f"The lane broke the channel: {error}."
            raise ChannelClosedError(message) from error
        if not isinstance(frame, Ready):
            said = "ended" if frame is None else f"said {frame!r:.200}"
            message = f"The lane {said} instead of getting ready."
            raise ChannelClosedError(message)
        if frame.refused:
            message = f"the system refuses a sandbox namespaces ({frame.refused:.200})"
            raise LaneRefusedError(message)
        self._begin()
        return frame.facts


class LaneSession:
    """One such sandbox.

    Attributes:
        session: For the run that comes next.
    """

    def __init__(self, session: GuestSession, channel: LaneChannel, plan: LanePlan) -> None:
        self.session = session
        self._opened = session
        self._channel = channel
        self._plan = plan

    def clean(self) -> bool:
        """Tell whether the last run ended as it should; see `bridge.sandbox.lanes.Lane`."""
        return self._channel.clean()

    async def renew(self) -> None:
        """Have the guest end what is left of the last run, and get the next one ready."""
        await self._channel.send(Next(ending=self._channel.ending))
        await self.look()

    async def look(self) -> None:
        """Wait for the next run's process, and see that it is shut in.

        Raises:
            LaneRefusedError: It cannot be.
            SandboxError: It is not.
        """
        seen = await self._channel.ready()
        facts = {**_of_sandbox(self._opened.facts), **seen}
        isolation = of_one_run(self._opened.sandbox.isolation, self._plan, facts)
        insist(isolation, facts)
        insist_on_lane(isolation, facts, self._opened.facts)
        self.session = replace(
            self._opened,
            channel=self._channel,
            facts=facts,
            isolation=isolation,
        )

    async def wait_dead(self) -> None:
        """Return when the guest has gone, or has said something nobody asked for."""
        await wait_dead(self.session)


def insist_on_lane(
    isolation: Isolation, facts: Mapping[str, Any], before: Mapping[str, Any]
) -> None:
    """Let a run pass only when it is seen to be apart, and shut in more than what forked it. Pure.

    What a sandbox of its own may leave unseen must be seen here: nothing else keeps runs apart.

    Args:
        facts: What the run's process sees.
        before: What the process that forked it sees.

    Raises:
        BrokenIsolationError: Something is missing; it names what.
    """
    lacking = []
    if OWN_NAMESPACES not in verified(isolation, facts).verified:
        lacking.append(OWN_NAMESPACES)
    filters, fewer = facts.get("seccomp_filters"), before.get("seccomp_filters")
    if not isinstance(filters, int) or not isinstance(fewer, int) or filters <= fewer:
        lacking.append("a system call filter of its own")
    if str(facts.get("cap_bnd", "unseen")).strip("0"):
        lacking.append("an empty bounding set")
    if lacking:
        message = f"A run was to be apart from others in one sandbox, and lacks {lacking}."
        raise BrokenIsolationError(message)


_OF_SANDBOX = (
    *("platform", "implementation", "kernel", "kernel_version", "machine", "proc_version"),
    *("boot_id", "memory_limit_bytes", "pids_limit", "cpu_limit"),
    *("python", "free_threaded", "libc"),
)
"""What a run's process need not look at again: kernel and control group are the sandbox's."""


def _of_sandbox(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {name: facts[name] for name in _OF_SANDBOX if name in facts}


def of_one_run(isolation: Isolation, plan: LanePlan, facts: Mapping[str, Any]) -> Isolation:
    """Say what separates one run of a lane, and what it shares with the others. Pure.

    Args:
        isolation: The sandbox's own.
        facts: What the run's process sees.
    """
    lane = facts.get("lane")
    shared = [SHARED]
    if not isinstance(lane, dict) or lane.get("proc") != "":
        shared.append(SHARED_PROC)
    more = (OWN_NAMESPACES, *plan.layers)
    layers = tuple(dict.fromkeys((*isolation.layers, *more)))
    return replace(isolation, layers=layers, weaker=(*isolation.weaker, *shared))


def without_lane(session: GuestSession, why: str) -> GuestSession:
    """Say of a sandbox that is one run's alone why it is, though a fork was asked for."""
    isolation = session.isolation
    note = f"fork: not used, this run had a sandbox of its own; {why}"
    return replace(session, isolation=replace(isolation, weaker=(*isolation.weaker, note)))


@asynccontextmanager
async def open_lane(backend: Backend, spec: LaunchSpec) -> AsyncIterator[LaneSession]:
    """Start a sandbox for many runs; leaving destroys it.

    Raises:
        LaneRefusedError: Something in the way of it refuses namespaces within the sandbox.
        SandboxError: It could not be started, or is not shut in as it should be.
    """
    async with open_guest(backend, replace(spec, lane=True)) as session:
        sandbox = session.sandbox
        plan = sandbox.lane if isinstance(sandbox, LaneSandbox) else None
        if plan is None:
            raise LaneRefusedError(_no_plan(sandbox.isolation))
        frame = Lane(
            mounts=[list(mount) for mount in plan.mounts],
            masked=[list(place) for place in plan.masked],
            landlock=None if plan.landlock is None else dict(plan.landlock),
        )
        channel = LaneChannel(sandbox)
        lane = LaneSession(session, channel, plan)
        try:
            await channel.send(frame)
        except ChannelClosedError as error:
            message = "the sandbox was gone before it could be tried"
            raise LaneRefusedError(message) from error
        await lane.look()
        yield lane


def _no_plan(isolation: Isolation) -> str:
    if OWN_KERNEL in isolation.layers:
        return f"{isolation.oci_runtime} has a kernel of its own, which is not asked for namespaces"
    if "seccomp" in isolation.layers and "own-seccomp" not in isolation.layers:
        return f"{isolation.backend} runs here without our list of system calls"
    return f"{isolation.backend} does not offer it"
