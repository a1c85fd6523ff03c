"""The first process of a session's sandbox: one run after another in one worker.

Owns the order of things around each: deadline, interrupt, report, and the wait for the next. The
state is the worker's; when that is gone, the session is over and this process ends.
"""

from __future__ import annotations

import time

from bridge.guest.session_relay import SessionRelay
from bridge.guest.supervisor import finish
from bridge.guest.wire import Run, WireError, decode_host_frame
from bridge.guest.worker import frame_for_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from bridge.guest.descriptors import Outbox
    from bridge.guest.facts import OomKills
    from bridge.guest.nursery import Candidate
    from bridge.guest.processes import Children

DEFAULT_TIMEOUT = 30.0


def serve(
    run: Run,
    line: bytes,
    rest: bytes,
    reader: int,
    outbox: Outbox,
    wake: int,
    children: Children,
    chosen: Candidate,
    oom: OomKills,
) -> None:
    """Serve the runs of one session until its state is gone or the host is.

    Args:
        run: The first, and `line` as it came; `rest` came behind it.
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
    relay.to_worker(frame_for_worker(line))
    relay.from_host(rest)
    while True:
        kills = oom.count()
        timed_out = not relay.until_worker_ends(children)
        if timed_out:
            timed_out = not relay.stopped
            relay.interrupted(children)
        kept = finish(relay, children, timed_out, max(0, oom.count() - kills), keep=True)
        if not kept:
            return
        following = relay.next_run(children)
        if following is None:
            return
        run = _decoded(following)
        relay.again(run.limits, _deadline(run))
        if not relay.give(frame_for_worker(following), children):
            # It has lost its way to us: nothing can be run in it any more.
            finish(relay, children, False, 0)
            return


def _decoded(line: bytes) -> Run:
    run = decode_host_frame(line)
    if not isinstance(run, Run):
        message = "a session was sent something else than a run"
        raise WireError(message)
    return run


def _deadline(run: Run) -> float:
    return time.monotonic() + float(run.limits.get("timeout", DEFAULT_TIMEOUT))
