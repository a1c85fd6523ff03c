"""A sandbox that a session's runs follow each other in: whether it can take one, and its state.

Owns the program without code that has the guest send its state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from bridge.errors import BridgeError
from bridge.guest.protocol.wire import Run
from bridge.model import Json, Limits
from bridge.rpc.channel import MAX_GUEST_FRAME_BYTES, Channel
from bridge.rpc.dispatcher import CallFailedError
from bridge.runs.collect import Collector
from bridge.runs.guest_session import GuestSession, wait_dead
from bridge.runs.program import Program
from bridge.sessions.session import SAVE_SECONDS
from bridge.sessions.state import StateParts

SAVE_LIMITS = Limits(
    timeout=SAVE_SECONDS, longest_timeout=SAVE_SECONDS, tool_calls=0, concurrent_calls=1
)


class SessionChannel(Channel):
    """A channel that knows whether another run can be sent over it."""

    _unfinished = 0

    async def write_now(self, pieces: Iterable[bytes]) -> None:
        """Write a frame; if that is cut short, nothing can follow it."""
        self._unfinished += 1
        await super().write_now(pieces)
        self._unfinished -= 1

    @property
    def whole(self) -> bool:
        """Whether no frame was left half written."""
        return not self._unfinished


@dataclass(frozen=True, kw_only=True)
class SessionGuest(GuestSession):
    """A sandbox that a session's runs follow each other in."""

    channel: SessionChannel

    @property
    def is_whole(self) -> bool:
        """Whether another run can be sent."""
        return self.channel.whole

    async def wait_dead(self) -> None:
        """Return when it has gone, or has said something that no run asked for."""
        await wait_dead(self)

    async def save(self, number: int, limit: int) -> StateParts | None:
        """Return the session's state; see `save_state`."""
        return await save_state(self, number, limit)


def session_guest(guest: GuestSession) -> SessionGuest:
    channel = SessionChannel(guest.sandbox)
    return SessionGuest(
        sandbox=guest.sandbox, channel=channel, facts=guest.facts, isolation=guest.isolation
    )


async def save_state(
    guest: GuestSession, number: int, limit: int, task: str = "", paths: Iterable[str] = ()
) -> StateParts | None:
    """Return a session's state in parts; None if its sandbox is of no use any more.

    Args:
        number: Of the session's last run.
        limit: The most bytes of it.
        task: What to report instead of the state; see `bridge.guest.state.installed`.
    """
    limits = replace(SAVE_LIMITS, timeout=2 * SAVE_SECONDS) if task else SAVE_LIMITS
    collector = Collector(limits, saves=True)
    program = Program(guest, _refuse, limits, collector=collector, keeps=True)
    frame = Run(
        code="",
        argv=[task] if task else [],
        paths=list(paths),
        session=number,
        save=True,
        limits={
            "timeout": limits.timeout,
            "output_bytes": SAVE_LIMITS.output_bytes,
            "result_bytes": SAVE_LIMITS.result_bytes,
            "frame_bytes": MAX_GUEST_FRAME_BYTES,
            "state_bytes": limit,
        },
    )
    try:
        await program.start(frame)
        ending = (await program.finish()).ending
    except BridgeError:
        return None
    if ending.exited is None or not ending.exited.kept or ending.protocol_error or ending.lost:
        return None
    state = collector.state
    assert state is not None  # asked for above
    if ending.exited.timed_out:
        state.refuse(f"that took longer than {limits.timeout:g} s")
    elif ending.done is None or ending.done.outcome != "ok":
        said = "" if ending.done is None else ending.done.error.strip().rpartition("\n")[2]
        state.refuse(said[:200] or "its process said nothing")
    elif state.data is None and not state.problem:
        state.refuse("there was nothing")
    return state


async def _refuse(method: str, params: Mapping[str, Json]) -> Json:
    """Answer a call of the program's that was left from its last run, or of an object's own."""
    raise CallFailedError("No tool can be called between a session's runs.", kind="usage")
