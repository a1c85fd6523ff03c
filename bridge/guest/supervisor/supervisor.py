"""The first process of a sandbox: it starts one program and outlives it.

Owns the channel to the host, the worker's life from fork to report, the run's deadline and the end
of everything that the program started. It never runs user code and never waits for it: all it does
is one poll loop over non-blocking descriptors (see `relay`).
"""

from __future__ import annotations

import _socket  # what `socket` is made of, without what takes milliseconds to import
import gc
import json
import os
import select
import signal
import sys
import time

from bridge.guest import imports
from bridge.guest.descriptors import Outbox, claim_channel, close_others, private, read_some
from bridge.guest.processes import Children, adopt_orphans, cpu_clock, forbid_tracing, kill
from bridge.guest.protocol.wire import (
    MAX_FRAME_BYTES,
    MAX_ID,
    Exited,
    Hello,
    Run,
    WireError,
    decode_host_frame,
    encode,
)
from bridge.guest.supervisor.denial_probes import denials
from bridge.guest.supervisor.isolation_facts import OomKills, isolation_facts
from bridge.guest.supervisor.relay import HostGoneError, Relay, Terminated
from bridge.guest.worker import worker
from bridge.guest.worker.run_io import search_path
from bridge.guest.worker.worker import frame_for_worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Mapping, NoReturn, Optional, Sequence


EXIT_CRASHED = 70
"""The supervisor itself failed; its stderr says how."""

EXIT_TERMINATED = 143

_MOST_SAID = {"code": 255, "cpu_ms": MAX_ID - 1, "peak_memory_bytes": MAX_ID - 1}
"""What an exit notice must hold, and the most of each that is believed."""

DEFAULT_TIMEOUT = 30.0

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
    """Serve one run to its end, or those of a session until its state is gone or the host is.

    Args:
        received: The run's line and what came behind it. With files it is long, and forgotten as
            soon as it was passed on: what is kept here is missing to the program.
    """
    run = _decoded(received[0])
    deadline = _deadline(run)
    kills = oom.count()
    chosen = nursery.choose(received[0])
    relay = Relay(
        host_reader=reader,
        host=outbox,
        wake=wake,
        worker=chosen.channel,
        control=chosen.control,
        streams={"stdout": chosen.stdout, "stderr": chosen.stderr},
        limits=run.limits,
        deadline=deadline,
    )
    relay.to_worker(frame_for_worker(received.pop(0)))
    relay.from_host(received.pop())
    leavings = Leavings()
    while True:
        timed_out = not relay.until_worker_ends(children)
        if timed_out:
            timed_out = not relay.stopped
            relay.interrupted(children)
        kills = max(0, oom.count() - kills)
        leavings.limits = run.limits
        # To be saved changes no file.
        left = None if run.save else leavings
        kept = finish(relay, children, timed_out, kills, keep=run.session > 0, leavings=left)
        following = relay.next_run(children) if kept else None
        if following is None:
            return
        kills = oom.count()
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
        raise WireError("the host sent something else than a run")
    run.files.clear()
    return run


def _deadline(run: Run) -> float:
    return time.monotonic() + float(run.limits.get("timeout", DEFAULT_TIMEOUT))


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
            raise WireError("the run frame is longer than %d bytes" % MAX_FRAME_BYTES)
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
    if _understood(relay.exit_notice) is None:
        # Of whoever garbled it the kernel tells.
        children.kill_all()
    relay.drain()
    said = _understood(relay.exit_notice)
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

    limits: Mapping[str, Any]

    def __init__(self) -> None:
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
        from bridge.guest.supervisor.output_files import Collector

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
    """Return what a worker's exit notice says; None if a kernel could not have said that."""
    try:
        document = json.loads(leaving)
        said = {key: int(document[key]) for key in _MOST_SAID}
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return said if all(0 <= said[key] <= most for key, most in _MOST_SAID.items()) else None


# --- workers that wait ---------------------------------------------------------------------------


class Candidate:
    """A worker that waits, and this process's ends of what leads to it.

    Attributes:
        control: By which a session's later runs are given to it.
        words: Texts of which one must be in a run that is for this worker; empty for any run.
    """

    def __init__(
        self,
        pid: int,
        channel: int,
        control: int,
        stdout: int,
        stderr: int,
        words: Sequence[bytes],
    ) -> None:
        self.pid = pid
        self.channel = channel
        self.control = control
        self.stdout = stdout
        self.stderr = stderr
        self.words = tuple(words)

    def suits(self, line: bytes) -> bool:
        """Whether a run's line calls for what this worker has imported."""
        # A run with packages of its own may have others of these names.
        return not self.words or (
            b'"paths":["' not in line and any(word in line for word in self.words)
        )

    def close(self) -> None:
        """Let go of it."""
        for fd in (self.channel, self.control, self.stdout, self.stderr):
            os.close(fd)

    def dismiss(self) -> None:
        """Let go of it and end it."""
        self.close()
        kill(self.pid)


class Nursery:
    """Workers that are forked before there is a program, the more special first.

    One is there at once and imports the usual modules while it waits; where the image has the large
    data packages, a second one imports those. The program gets the second if its text names one of
    them, and whichever is left over is killed.
    """

    def __init__(self, children: Children) -> None:
        self._children = children
        self._waiting: List[Candidate] = []

    def fork_all(self, memory: Any) -> None:
        """Fork all that this image and its memory limit (bytes, or None) make sense for."""
        self._fork(imports.STANDARD, ())
        names = imports.installed(imports.DATA, search_path())
        if names and (memory is None or memory >= imports.DATA_MEMORY_BYTES):
            words = [name.partition(".")[0].encode() for name in names]
            self._fork((*names, *imports.STANDARD), words)

    def look_after(self) -> None:
        """Notice who has ended.

        Raises:
            ChildProcessError: The one that any program could have had.
        """
        self._children.reap()
        for candidate in list(self._waiting):
            if candidate.pid not in self._children.spare:
                self._waiting.remove(candidate)
                # Its number may be another process's by now.
                candidate.close()
                if not candidate.words:
                    raise ChildProcessError("the process that waited for the program has ended")

    def choose(self, line: bytes) -> Candidate:
        """Return the worker for a run, which is the program's process from now on."""
        chosen = next(candidate for candidate in self._waiting if candidate.suits(line))
        self._children.spare.discard(chosen.pid)
        self._children.worker = chosen.pid
        # What it did to get ready is not the program's.
        self._children.cpu_seconds = -cpu_clock(chosen.pid)
        for candidate in self._waiting:
            if candidate is not chosen:
                candidate.dismiss()
        self._waiting.clear()
        return chosen

    def _fork(self, modules: Sequence[str], words: Sequence[bytes]) -> None:
        ours, theirs = _socket.socketpair()
        told, control = os.pipe()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            for candidate in self._waiting:
                # Else this process would keep another's channel open.
                candidate.close()
            own = (theirs.detach(), told)
            worker.main(*own, out_write, err_write, self._children.is_init, modules)
        self._children.spare.add(pid)
        for fd in (theirs.detach(), told, out_write, err_write):
            os.close(fd)
        channel, control = private(ours.detach()), private(control)
        streams = private(out_read), private(err_read)
        self._waiting.insert(0, Candidate(pid, channel, control, *streams, words))
