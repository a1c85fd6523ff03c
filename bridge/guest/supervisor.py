"""The first process of a sandbox: it starts one program and outlives it.

Owns the channel to the host, the worker's life from fork to report, the run's deadline and the end
of everything that the program started. It never runs user code and never waits for it: all it does
is one poll loop over non-blocking descriptors (see `relay`).
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from typing import Any, List, NoReturn, Tuple

from bridge.guest import worker
from bridge.guest.denials import denials
from bridge.guest.descriptors import (
    Outbox,
    claim_channel,
    close_others,
    private,
    read_some,
)
from bridge.guest.facts import isolation_facts, oom_kills
from bridge.guest.processes import Children, adopt_orphans, forbid_tracing
from bridge.guest.relay import HostGoneError, Relay, Terminated
from bridge.guest.wire import (
    MAX_FRAME_BYTES,
    Exited,
    Hello,
    Run,
    WireError,
    decode_host_frame,
    encode,
)

PRELOADED = (
    "asyncio",
    "base64",
    "collections.abc",
    "concurrent.futures",
    "contextlib",
    "copy",
    "csv",
    "ctypes",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "functools",
    "hashlib",
    "inspect",
    "io",
    "itertools",
    "json",
    "logging",
    "math",
    "operator",
    "os.path",
    "pathlib",
    "queue",
    "random",
    "re",
    "shutil",
    "statistics",
    "string",
    "subprocess",
    "tempfile",
    "textwrap",
    "threading",
    "time",
    "traceback",
    "typing",
    "urllib.parse",
    "uuid",
)
"""Imported before `hello`, while nobody waits: together about 100 ms that no program pays."""

EXIT_CRASHED = 70
"""The supervisor itself failed; its stderr says how."""

EXIT_TERMINATED = 143

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
    for name in PRELOADED:
        _preload(name)
    worker.prepare()
    kills = oom_kills()
    facts["untraceable"] = forbid_tracing()
    gc.collect()
    gc.freeze()
    outbox = Outbox(writer)
    outbox.put(encode(Hello(digest=digest, python=sys.version.split()[0], facts=facts)))
    outbox.flush()
    run, rest = _await_run(reader, outbox, wake)
    relay = _start(run, children, reader, outbox, wake)
    relay.from_host(rest)
    timed_out = not relay.until_worker_ends(children)
    _finish(relay, children, timed_out, kills)
    return 0


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


def _preload(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError:
        # A trimmed interpreter: programs that need it will be told themselves.
        return


def _await_run(reader: int, outbox: Outbox, wake: int) -> Tuple[Run, bytes]:
    """Return the host's `Run` and the bytes that came after it."""
    parts: List[bytes] = []
    size = 0
    while True:
        data = _next_bytes(reader, outbox, wake)
        line, newline, rest = data.partition(b"\n")
        parts.append(line)
        size += len(line)
        if size > MAX_FRAME_BYTES:
            message = "the run frame is longer than %d bytes" % MAX_FRAME_BYTES
            raise WireError(message)
        if newline:
            frame = decode_host_frame(b"".join(parts))
            if isinstance(frame, Run):
                return frame, rest
            message = "the first frame is no run"
            raise WireError(message)


def _next_bytes(reader: int, outbox: Outbox, wake: int) -> bytes:
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
        data = read_some(reader)
        if data:
            return data
        if data is not None or outbox.broken:
            raise HostGoneError


def _start(run: Run, children: Children, reader: int, outbox: Outbox, wake: int) -> Relay:
    """Fork the worker and return what stands between it and the host."""
    ours, theirs = socket.socketpair()
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    deadline = time.monotonic() + float(run.limits.get("timeout", 30.0))
    pid = os.fork()
    if pid == 0:
        worker.main(run, theirs.detach(), out_write, err_write, children.is_init)
    children.worker = pid
    for fd in (theirs.detach(), out_write, err_write):
        os.close(fd)
    return Relay(
        host_reader=reader,
        host=outbox,
        wake=wake,
        worker=private(ours.detach()),
        streams={"stdout": private(out_read), "stderr": private(err_read)},
        limits=run.limits,
        deadline=deadline,
    )


def _finish(relay: Relay, children: Children, timed_out: bool, kills: int) -> None:
    """Report how the worker ended, once nothing of it is left."""
    children.kill_all()
    relay.drain()
    status = children.status
    code = signal_number = None
    if status is not None and os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
    elif status is not None and os.WIFSIGNALED(status):
        signal_number = os.WTERMSIG(status)
    relay.send(
        Exited(
            code=code,
            signal=signal_number,
            timed_out=timed_out,
            oom_kills=max(0, oom_kills() - kills),
            cpu_ms=int(children.cpu_seconds * 1000),
            peak_memory_bytes=children.peak_bytes,
        )
    )
    relay.flush(FLUSH_SECONDS)
