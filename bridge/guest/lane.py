"""A sandbox that serves many runs, each in a process with namespaces of its own.

Owns the loop of the process that forks them, and what each of them does around its one run: shut
itself in, look around, say that it is ready, serve, hear that nothing more is sent to it, end.

The process that forks never reads what the host sends for a run and never runs user code, so there
is nothing of one run in it that the next could inherit. Its memory is what all runs of a lane have
in common, and with it the addresses of things and the seed of `hash`. Each run has a supervisor of
its own, the first process of the run's pid namespace. When that has ended, the kernel has ended
everything else in there, and has taken down the mounts.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys

from bridge.guest import imports, namespaces, program, worker
from bridge.guest.denials import denials
from bridge.guest.descriptors import Outbox, read_some
from bridge.guest.facts import process_facts
from bridge.guest.lane_filter import UnknownMachineError
from bridge.guest.processes import allow_tracing, forbid_tracing
from bridge.guest.relay import HostGoneError, Terminated
from bridge.guest.wire import Lane, Next, Ready, Run, decode_host_frame, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, NoReturn

WRITE_SECONDS = 20.0
"""How long the host may leave `Ready` unread."""

EXIT_BROKEN = 70
EXIT_REFUSED = 75

_RUN = encode(Run(code="1", limits={"timeout": 1.0})).rstrip(b"\n")
_HEAD_BYTES = 128
"""Kept of an unfinished line: more than the only one that is waited for."""


def serve(plan: Lane, reader: int, writer: int, wake: int, run: Callable[[Outbox], str]) -> int:
    """Fork for one run after another; return this process's exit status when that is over.

    Args:
        reader, writer: The channel.
        wake: Where signals are noted, until now.
        run: Serves one run, in a process of its own that says so by the outbox; returns what the
            host's word has to hold that nothing more is sent.
    """
    # From here on signals interrupt: nothing else is waited for but a child.
    os.close(signal.set_wakeup_fd(-1))
    os.close(wake)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _terminate)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        _prepare()
    except UnknownMachineError as error:
        _say(Outbox(writer), Ready(refused=str(error)))
        return EXIT_REFUSED
    before = namespaces.current()
    while True:
        try:
            # It has to be able to write to its own files in /proc; and nobody is here to be kept
            # out of this process.
            allow_tracing()
            pid = namespaces.fork()
        except OSError as error:
            _say(Outbox(writer), Ready(refused=str(error)))
            return EXIT_REFUSED
        if pid == 0:
            _first_process(plan, reader, writer, before, run)
        forbid_tracing()
        if os.waitpid(pid, 0)[1] != 0 or not _childless():
            # It did not end as agreed: nobody knows what state the channel is in.
            return EXIT_BROKEN


def _prepare() -> None:
    """Import what programs use, and keep the collector from touching any of it in each child."""
    for _ in imports.steps((*imports.OWN, *imports.STANDARD)):
        continue
    namespaces.prepare()
    worker.prepare()
    worker.warm_up()
    gc.collect()
    gc.freeze()


def fork_worker() -> int:
    """Fork the process of a run's program; return as `os.fork` does.

    By the C library's own function: what the interpreter would do besides is for processes with
    threads, but for the two things done here, and takes a fifth of what a run costs.
    """
    pid = namespaces.library_fork()
    if pid == 0:
        loaded = sys.modules
        if "random" in loaded:
            loaded["random"].seed()
        if "threading" in loaded:
            loaded["threading"].main_thread()._set_native_id()
        program.compile_program("print(1)\n1")
        sys.modules["linecache"].cache.clear()
    # What a run begins with, done once before it: after a fork the first use of each page of memory
    # copies it, which would be a millisecond of the run's.
    encode(decode_host_frame(_RUN))
    return pid


def _terminate(number: int, frame: Any) -> None:
    raise Terminated


def _childless() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return True
    return False


def _first_process(
    plan: Lane,
    reader: int,
    writer: int,
    before: Dict[str, str],
    run: Callable[[Outbox], str],
) -> NoReturn:
    """Be the supervisor of one run."""
    code = EXIT_BROKEN
    try:
        outbox = Outbox(writer)
        try:
            facts = _shut_in(plan, before)
        except (OSError, UnknownMachineError) as error:
            _say(outbox, Ready(refused=str(error)))
            code = EXIT_REFUSED
        else:
            forbid_tracing()
            _freshen()
            _say(outbox, Ready(facts=facts))
            _await_next(reader, run(outbox))
            code = 0
    except (HostGoneError, Terminated):
        code = EXIT_BROKEN
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _shut_in(plan: Lane, before: Dict[str, str]) -> Dict[str, Any]:
    """Put everything in force, in the one order that works; return what is seen then."""
    namespaces.keep_ids(os.getuid(), os.getgid())
    namespaces.freeze_mounts()
    for path, options in plan.mounts:
        namespaces.mount_memory(path, options)
    proc = ""
    try:
        namespaces.mount_proc(plan.masked)
    except PermissionError as error:
        proc = str(error)
    # Where it is now lies under what was mounted.
    os.chdir(os.getcwd())
    namespaces.drop_capabilities()
    if plan.landlock is not None:
        namespaces.restrict_files(plan.landlock)
    namespaces.filter_calls()
    now = namespaces.current()
    facts = process_facts(now)
    facts["denials"] = denials()
    facts["lane"] = {
        "zygote": before,
        "namespaces": now,
        "writable": _writable(),
        "found": sorted(name for path, _ in plan.mounts for name in os.listdir(path)),
        "directory_is_new": any(
            os.stat(path).st_dev == os.stat(".").st_dev for path, _ in plan.mounts
        ),
        "proc": proc,
    }
    return facts


def _writable() -> List[str]:
    """Return where something is mounted that may be written to."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        words = [line.split() for line in file]
    return sorted({line[4] for line in words if "rw" in line[5].split(",")})


def _freshen() -> None:
    """Draw anew what libraries drew before the fork and keep for later.

    OpenSSL does so itself when it finds itself in a process with another id than before, and no
    worker has the number of the process that forks. See `fork_worker` for `random`.
    """
    loaded = sys.modules
    if "tempfile" in loaded:
        loaded["tempfile"]._name_sequence = None  # type: ignore[attr-defined]
    if "numpy.random" in loaded:
        loaded["numpy.random"].seed()


def _say(outbox: Outbox, frame: Ready) -> None:
    """Write a frame whole."""
    outbox.put(encode(frame))
    outbox.flush()
    poller = select.poll()
    poller.register(outbox.fd, select.POLLOUT)
    while outbox.size:
        if not poller.poll(int(WRITE_SECONDS * 1000)) or outbox.broken:
            raise HostGoneError
        outbox.flush()


def _await_next(reader: int, ending: str) -> None:
    """Read what was sent to a run that is over, up to the word that it is all.

    What comes before may be the text of a tool's answer, and hold any line that its server or the
    program thought of; but not one with `ending`, which is newer.

    Raises:
        HostGoneError: The host closed the channel instead.
    """
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    word = encode(Next(ending=ending)).rstrip(b"\n")
    head = b""
    while True:
        poller.poll()
        data = read_some(reader)
        if data == b"":
            raise HostGoneError
        lines = (head + (data or b"")).split(b"\n")
        if word in lines[:-1]:
            return
        # What was kept of a long line is not the beginning of that one.
        head = lines[-1][:_HEAD_BYTES]
