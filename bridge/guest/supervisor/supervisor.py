"""The first process of a sandbox: starts the worker and reports how it ended.

It runs no user code and never waits for any: it is one poll loop over non-blocking descriptors (see
`relay`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal`, but for its slow search for names
import _socket  # the core of `socket`, whose own import takes milliseconds
import gc
import os
import select
import sys
import time

from bridge.guest import processes
from bridge.guest.api.program_files import PROGRAM_FILE
from bridge.guest.isolation_facts import denials, isolation_facts, oom_kills
from bridge.guest.protocol import json_text, wire
from bridge.guest.supervisor.relay import Ended, Relay
from bridge.guest.worker import worker

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, NoReturn, Optional, Tuple

_NOTICE_MAXIMA = {"code": 255, "cpu_ms": wire.MAX_ID - 1, "peak_memory_bytes": wire.MAX_ID - 1}

_decoded = json_text.decoder()


def main(digest: str, precompiled: bool = False) -> NoReturn:
    code = 70
    children = processes.Children()
    try:
        code = _serve(digest, precompiled, children)
    except BaseException as error:
        # A sandbox ends with its bridge, also when the bridge was killed.
        if isinstance(error, Ended):
            (code,) = error.args
        else:
            sys.excepthook(type(error), error, error.__traceback__)
            sys.stderr.flush()
        children.kill_all()
    finally:
        os._exit(code)


def _serve(digest: str, precompiled: bool, children: processes.Children) -> int:
    reader, writer = processes.claim_channel()
    processes.close_others((0, 1, 2, reader, writer))
    wake = _wake_on_signals()
    if not children.is_init:
        children.adopts_orphans = processes.prctl(processes.PR_SET_CHILD_SUBREAPER, 1)
    facts = isolation_facts()
    facts["precompiled"] = precompiled
    facts["denials"] = denials()
    processes.prctl(processes.PR_SET_DUMPABLE, 0)
    outbox = processes.Outbox(writer)
    outbox.put(wire.encode(wire.Hello(digest=digest, python=sys.version.split()[0], facts=facts)))
    outbox.flush()
    gc.freeze()
    relay = Relay(reader, outbox, wake, *_fork_worker(children), children)
    gc.enable()
    # To end all processes takes CPU time, which the host's answer should get first.
    deadline = _serve_runs(relay, children) + time.monotonic()
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0 and processes.read_some(reader) != b"":
        poller.poll(left * 1000)
    return 0


def _serve_runs(relay: Relay, children: processes.Children) -> float:
    line = relay.next_run()
    if line is None:
        raise ChildProcessError("the process that waited for the program has ended")
    # CPU time spent before the run does not count as the program's.
    children.cpu_seconds = -processes.cpu_clock(children.worker)
    while True:
        kills = oom_kills()
        run = wire.decode_host_frame(line)
        if not isinstance(run, wire.Run):
            raise wire.WireError("the host sent a frame that is not a run")
        run.files.clear()
        # The host's answer takes 1 to 2 ms. A cluster asks for more time, because it drops data in
        # transit when a pod ends.
        answer_seconds = float(run.limits.get("answer_seconds", 0.005))
        relay.begin_run(run.limits, quiet=run.save)
        if not relay.send_run(line):
            # The worker does not read: it can run nothing more. Like a save, it left no files.
            _finish(relay, children, False, 0, wire.Run("", save=True))
            return answer_seconds
        # Free the line: with files it is large, and the program shares this memory.
        line = b""
        timed_out = not relay.until_worker_ends()
        if timed_out:
            timed_out = not relay.stopped
            relay.interrupt()
        kept = _finish(relay, children, timed_out, max(0, oom_kills() - kills), run)
        line = relay.next_run() if kept else None
        if line is None:
            return answer_seconds


def _wake_on_signals() -> int:
    """Turn SIGCHLD and SIGTERM into bytes on a descriptor; return it."""
    reader, writer = os.pipe()
    reader, writer = processes.private(reader), processes.private(writer)
    for fd in (reader, writer):
        os.set_blocking(fd, False)
    _signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    # As PID 1 a signal without a handler would be ignored.
    for number in (_signal.SIGCHLD, _signal.SIGTERM, _signal.SIGINT):
        # The wake-up descriptor gets the signal's number.
        _signal.signal(number, lambda *signal: None)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    return reader


def _finish(
    relay: Relay, children: processes.Children, timed_out: bool, kills: int, run: wire.Run
) -> bool:
    """Send the worker's remaining output, its files and an `Exited` frame.

    The worker is killed, unless a session's sent an exit notice: return whether it still runs.
    """
    if _parse_notice(relay.exit_notice) is None:
        # Without a valid notice the kernel's exit status is reported.
        children.kill_all()
    relay.drain()
    notice = _parse_notice(relay.exit_notice)
    kept = run.session > 0 and notice is not None and children.status is None
    # Saving a session changes no file.
    if not run.save and _left_files():
        if not kept:
            # No process may write to the files while they are read.
            children.kill_all()
        _send_files(relay, run, more_runs=kept)
    exited: Dict[str, Any] = {} if notice is None else notice
    if notice is None:
        status = children.status
        if status is not None and os.WIFEXITED(status):
            exited["code"] = os.WEXITSTATUS(status)
        elif status is not None and os.WIFSIGNALED(status):
            exited["signal"] = os.WTERMSIG(status)
        exited["cpu_ms"] = max(0, int(children.cpu_seconds * 1000))
        exited["peak_memory_bytes"] = children.peak_bytes
    relay.send(wire.Exited(**exited, timed_out=timed_out, oom_kills=kills, kept=kept))
    relay.flush()
    if not kept and notice is not None and not children.is_init:
        children.kill_all()
    return kept


def _left_files() -> bool:
    try:
        return os.listdir(".") != ["out"] or bool(os.listdir("out"))
    except OSError:
        # It is no directory, or closed.
        return True


_collector: Any = None


def _send_files(relay: Relay, run: wire.Run, more_runs: bool) -> None:
    global _collector
    from bridge.guest.supervisor.output_files import FileCollector

    _collector = _collector or FileCollector()
    try:
        placed = dict(_decoded(relay.placed_notice.decode("utf-8", "surrogateescape"))["files"])
    except (ValueError, TypeError, KeyError):
        placed = {}
    placed.setdefault(run.name or PROGRAM_FILE, None)
    _collector.collect(relay.send_piece, run.limits, more_runs, placed=placed)


def _parse_notice(line: bytes) -> Optional[Dict[str, int]]:
    try:
        document = _decoded(line.decode("utf-8"))
        notice = {key: int(document[key]) for key in _NOTICE_MAXIMA}
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    return notice if all(0 <= notice[key] <= most for key, most in _NOTICE_MAXIMA.items()) else None


def _fork_worker(children: processes.Children) -> Tuple[int, int, Dict[int, str]]:
    """Fork the process that waits for a run: meanwhile it imports what most programs need."""
    ours, theirs = _socket.socketpair()
    control_read, control = os.pipe()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    children.worker = os.fork()
    if children.worker == 0:
        own = (theirs.detach(), control_read, out_write, err_write)
        worker.main(*own, children.is_init)
    for fd in (theirs.detach(), control_read, out_write, err_write):
        os.close(fd)
    kept = [processes.private(fd) for fd in (ours.detach(), control, out_read, err_read)]
    for fd in kept:
        os.set_blocking(fd, False)
    return kept[0], kept[1], {kept[2]: "stdout", kept[3]: "stderr"}
