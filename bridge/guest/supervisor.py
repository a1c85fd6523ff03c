"""The first process of a sandbox: it starts one program and outlives it.

Owns the channel to the host, the worker's life from fork to report, the run's deadline and the end
of everything that the program started. It never runs user code and never waits for it: all it does
is one poll loop over non-blocking descriptors (see `relay`).
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import sys
import time

from bridge.guest.denials import denials
from bridge.guest.descriptors import Outbox, claim_channel, close_others, private, read_some
from bridge.guest.facts import OomKills, isolation_facts
from bridge.guest.nursery import Nursery
from bridge.guest.processes import Children, adopt_orphans, forbid_tracing
from bridge.guest.relay import HostGoneError, Relay, Terminated
from bridge.guest.wire import (
    MAX_FRAME_BYTES,
    MAX_ID,
    Exited,
    Hello,
    Run,
    WireError,
    decode_host_frame,
    encode,
)
from bridge.guest.worker import frame_for_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, NoReturn, Optional

EXIT_CRASHED = 70
"""The supervisor itself failed; its stderr says how."""

EXIT_TERMINATED = 143

_MOST_SAID = {"code": 255, "cpu_ms": MAX_ID - 1, "peak_memory_bytes": MAX_ID - 1}
"""What a goodbye must say, and the most of each that is believed."""

FLUSH_SECONDS = 20.0
"""How long the host may leave the last frames unread before the sandbox ends without them."""


def main(digest: str, precompiled: bool = False) -> NoReturn:
    """Serve one run, then end this process."""
    code = EXIT_CRASHED
    children = Children()
    try:
        code = _serve(digest, precompiled, children)
    except HostGoneError:
        # A bridge that was killed takes its sandboxes with it.
        children.kill_all()
        code = 0
    except Terminated:
        children.kill_all()
        code = EXIT_TERMINATED
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        children.kill_all()
    finally:
        os._exit(code)


def _serve(digest: str, precompiled: bool, children: Children) -> int:
    reader, writer = claim_channel()
    close_others((0, 1, 2, reader, writer))
    wake = _wake_on_signals()
    children.adopts_orphans = adopt_orphans()
    facts = isolation_facts()
    facts["precompiled"] = precompiled
    facts["adopts_orphans"] = children.adopts_orphans
    facts["denials"] = denials()
    facts["untraceable"] = forbid_tracing()
    outbox = Outbox(writer)
    outbox.put(encode(Hello(digest=digest, python=sys.version.split()[0], facts=facts)))
    outbox.flush()
    gc.freeze()
    nursery = Nursery(children)
    nursery.fork_all(facts.get("memory_limit_bytes"))
    gc.enable()
    oom = OomKills()
    received = _await_run(reader, outbox, wake, nursery)
    _carry_out(received, reader, outbox, wake, children, nursery, oom)
    return 0


def _carry_out(
    received: List[bytes],
    reader: int,
    outbox: Outbox,
    wake: int,
    children: Children,
    nursery: Nursery,
    oom: OomKills,
) -> None:
    """Serve one run to its end.

    Args:
        received: The run's line and what came behind it. With files it is long, and forgotten as
            soon as it was passed on: what is kept here is missing to the program.
    """
    run = decode_host_frame(received[0])
    if not isinstance(run, Run):
        message = "the first frame is no run"
        raise WireError(message)
    deadline = time.monotonic() + float(run.limits.get("timeout", 30.0))
    kills = oom.count()
    chosen = nursery.choose(received[0])
    run.files.clear()
    if run.session:
        from bridge.guest.session_supervisor import serve

        serve(run, received, reader, outbox, wake, children, chosen, oom)
        return
    relay = Relay(
        host_reader=reader,
        host=outbox,
        wake=wake,
        worker=chosen.channel,
        streams={"stdout": chosen.stdout, "stderr": chosen.stderr},
        limits=run.limits,
        deadline=deadline,
    )
    relay.to_worker(frame_for_worker(received.pop(0)))
    relay.from_host(received.pop())
    timed_out = not relay.until_worker_ends(children)
    if timed_out:
        relay.interrupted(children)
    kills = max(0, oom.count() - kills)
    finish(relay, children, timed_out, kills, leavings=Leavings(run.limits))


def _wake_on_signals() -> int:
    """Turn SIGCHLD and SIGTERM into bytes on a descriptor; return it."""
    reader, writer = os.pipe()
    reader, writer = private(reader), private(writer)
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # As PID 1 a signal without a handler would be ignored.
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _noted)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    return reader


def _noted(number: int, frame: Any) -> None:
    """Let the wake-up descriptor speak for the signal."""


def _await_run(reader: int, outbox: Outbox, wake: int, nursery: Nursery) -> List[bytes]:
    """Return the line of the host's `Run`, and the bytes that came after it."""
    parts: List[bytes] = []
    size = 0
    while True:
        data = _next_bytes(reader, outbox, wake, nursery)
        line, newline, rest = data.partition(b"\n")
        parts.append(line)
        size += len(line)
        if size > MAX_FRAME_BYTES:
            message = "the run frame is longer than %d bytes" % MAX_FRAME_BYTES
            raise WireError(message)
        if newline:
            return [b"".join(parts), rest]


def _next_bytes(reader: int, outbox: Outbox, wake: int, nursery: Nursery) -> bytes:
    """Wait for the host, writing what is queued for it meanwhile."""
    while True:
        poller = select.poll()
        if outbox.size:
            poller.register(outbox.fd, select.POLLOUT)
        poller.register(reader, select.POLLIN)
        poller.register(wake, select.POLLIN)
        poller.poll()
        outbox.flush()
        if {signal.SIGTERM, signal.SIGINT} & set(read_some(wake) or b""):
            raise Terminated
        nursery.look_after()
        data = read_some(reader)
        if data:
            return data
        if data is not None or outbox.broken:
            raise HostGoneError


def finish(
    relay: Relay,
    children: Children,
    timed_out: bool,
    kills: int,
    keep: bool = False,
    leavings: Optional[Leavings] = None,
) -> bool:
    """Report how the worker ended, and leave nothing of it.

    Args:
        keep: Leave the worker as it is, if it has come to an end of its own accord.
        leavings: Sends the files that the program left.

    Returns:
        Whether it is still there.
    """
    if _understood(relay.leaving) is None:
        # Of whoever garbled it the kernel tells.
        children.kill_all()
    relay.drain()
    said = _understood(relay.leaving)
    kept = keep and said is not None and children.status is None
    if leavings is not None and leavings.there():
        if not kept:
            # Nobody shall write what is read, and nobody is asked for anything any more.
            children.kill_all()
        leavings.send(relay, again=kept)
    relay.send(_report(said, children, timed_out, kills, kept))
    relay.flush(FLUSH_SECONDS)
    if not kept and said is not None and not children.is_init:
        children.kill_all()
    return kept


class Leavings:
    """What programs leave in `out`, sent after each of them.

    Attributes:
        limits: Of the run.
    """

    def __init__(self, limits: Mapping[str, Any]) -> None:
        self.limits = limits
        self._collector: Any = None

    def there(self) -> bool:
        """Tell whether there is anything; most programs leave nothing, and it costs nothing."""
        try:
            with os.scandir("out") as entries:
                return next(entries, None) is not None
        except FileNotFoundError:
            return os.path.islink("out")
        except OSError:
            # It is there, and no directory.
            return True

    def send(self, relay: Relay, again: bool) -> None:
        """Read it and send it.

        Args:
            again: Another program may follow, which only gets what is new since this one.
        """
        from bridge.guest.collecting import Collector

        def send(frame: Any) -> None:
            relay.send(frame)
            relay.flush(FLUSH_SECONDS)

        self._collector = self._collector or Collector()
        self._collector.collect(send, self.limits, again)


def _report(
    said: Optional[Dict[str, int]],
    children: Children,
    timed_out: bool,
    kills: int,
    kept: bool,
) -> Exited:
    if said is not None:
        return Exited(
            code=said["code"],
            cpu_ms=said["cpu_ms"],
            peak_memory_bytes=said["peak_memory_bytes"],
            oom_kills=kills,
            timed_out=timed_out,
            kept=kept,
        )
    status = children.status
    code = signal_number = None
    if status is not None and os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
    elif status is not None and os.WIFSIGNALED(status):
        signal_number = os.WTERMSIG(status)
    return Exited(
        code=code,
        signal=signal_number,
        timed_out=timed_out,
        oom_kills=kills,
        cpu_ms=max(0, int(children.cpu_seconds * 1000)),
        peak_memory_bytes=children.peak_bytes,
    )


def _understood(leaving: bytes) -> Optional[Dict[str, int]]:
    """Return what a worker's goodbye says; None if it says nothing that a kernel could have."""
    try:
        document = json.loads(leaving)
        said = {key: int(document[key]) for key in _MOST_SAID}
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return said if all(0 <= said[key] <= most for key, most in _MOST_SAID.items()) else None
