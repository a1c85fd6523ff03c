"""The first process of a session's sandbox: one run after another in one worker.

Owns the order of things around each: deadline, interrupt, report, and the wait for the next. The
state is the worker's; when that is gone, the session is over and this process ends.
"""

from __future__ import annotations

import time

from bridge.guest.session_relay import SessionRelay
from bridge.guest.supervisor import Leavings, finish
from bridge.guest.wire import Run, WireError, decode_host_frame
from bridge.guest.worker import frame_for_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import List

    from bridge.guest.descriptors import Outbox
    from bridge.guest.facts import OomKills
    from bridge.guest.nursery import Candidate
    from bridge.guest.processes import Children

DEFAULT_TIMEOUT = 30.0


def serve(
    run: Run,
    received: List[bytes],
    reader: int,
    outbox: Outbox,
    wake: int,
    children: Children,
    chosen: Candidate,
    oom: OomKills,
) -> None:
    """Serve the runs of one session until its state is gone or the host is.

    Args:
        run: The first.
        received: Its line as it came, and what came behind it; both are taken.
    """
    relay = SessionRelay(
        control=chosen.control,
        host_reader=reader,
        host=outbox,
        wake=wake,
        worker=chosen.channel,
        streams={"stdout": chosen.stdout, "stderr": chosen.stderr},
        limits=run.limits,
        deadline=_deadline(run),
    )
    relay.to_worker(frame_for_worker(received.pop(0)))
    relay.from_host(received.pop())
    leavings = Leavings(run.limits)
    while True:
        kills = oom.count()
        timed_out = not relay.until_worker_ends(children)
        if timed_out:
            timed_out = not relay.stopped
            relay.interrupted(children)
        kills = max(0, oom.count() - kills)
        leavings.limits = run.limits
        # To be saved changes no file.
        left = None if run.save else leavings
        kept = finish(relay, children, timed_out, kills, keep=True, leavings=left)
        if not kept:
            return
        following = relay.next_run(children)
        if following is None:
            return
        run = _decoded(following)
        relay.again(run.limits, _deadline(run), quiet=run.save)
        if not relay.give(frame_for_worker(following), children):
            # It has lost its way to us: nothing can be run in it any more.
            finish(relay, children, False, 0)
            return
        # With files it is long, and as much of the session's memory.
        following = None


def _decoded(line: bytes) -> Run:
    run = decode_host_frame(line)
    if not isinstance(run, Run):
        message = "a session was sent something else than a run"
        raise WireError(message)
    run.files.clear()
    return run


def _deadline(run: Run) -> float:
    return time.monotonic() + float(run.limits.get("timeout", DEFAULT_TIMEOUT))
