"""A session's state, asked of its sandbox.

Owns how long that may take and what is made of the answer. What is in the state is for another
guest to read; the host never looks inside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bridge.engine.guest_session import GuestSession
from bridge.engine.intake import Intake
from bridge.engine.program import Program
from bridge.errors import BridgeError
from bridge.guest.wire import Run
from bridge.model import Json, Limits, Loss
from bridge.rpc.channel import MAX_GUEST_FRAME_BYTES
from bridge.rpc.dispatcher import CallFailedError

SAVE_SECONDS = 10.0
"""For a session to put its state into words. The next run waits for it."""

MAX_PROBLEM_CHARS = 200
"""Of what its process says of a failure."""

SAVE_LIMITS = Limits(
    timeout=SAVE_SECONDS, longest_timeout=SAVE_SECONDS, tool_calls=0, concurrent_calls=1
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What came of it.

    Attributes:
        data: The state; None where it could not be had, with `problem` saying why.
        lost: What is not in it.
    """

    data: bytes | None = field(default=None, repr=False)
    lost: tuple[Loss, ...] = ()
    problem: str = ""


async def save_state(guest: GuestSession, number: int) -> Found | None:
    """Have a session's state put into words; None if its sandbox is of no use any more.

    Args:
        number: Of the session's last run.
    """
    intake = Intake(SAVE_LIMITS, saves=True)
    program = Program(guest, _refuse, SAVE_LIMITS, intake=intake, keeps=True)
    frame = Run(
        code="",
        session=number,
        save=True,
        limits={
            "timeout": SAVE_LIMITS.timeout,
            "output_bytes": SAVE_LIMITS.output_bytes,
            "result_bytes": SAVE_LIMITS.result_bytes,
            "frame_bytes": MAX_GUEST_FRAME_BYTES,
        },
    )
    try:
        await program.start(frame)
        ending = (await program.finish()).ending
    except BridgeError:
        return None
    if ending.exited is None or not ending.exited.kept or ending.protocol_error or ending.lost:
        return None
    if ending.exited.timed_out:
        return Found(problem=f"that took longer than {SAVE_SECONDS:g} s")
    if ending.done is None or ending.done.outcome != "ok":
        said = "" if ending.done is None else ending.done.error.strip().rpartition("\n")[2]
        return Found(problem=said[:MAX_PROBLEM_CHARS] or "its process said nothing")
    state = intake.state
    return Found(data=state.data, lost=state.lost, problem=state.problem or "there was nothing")


async def _refuse(method: str, params: Mapping[str, Json]) -> Json:
    """Answer a call of the program's that was left from its last run, or of an object's own."""
    raise CallFailedError("No tool can be called between a session's runs.", kind="usage")
