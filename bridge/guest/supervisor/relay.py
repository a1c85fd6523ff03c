"""Relays bytes between a worker and the host in one poll loop.

Only whole lines of the worker pass, of the types that a worker may send. The host's bytes pass
unchanged, except lines for the supervisor. A side that does not read blocks only the other side's
writing. Between runs, output and calls stay in the pipes.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal`, but for its slow search for names
import fcntl
import os
import select
import sys
import time

from bridge.guest import processes
from bridge.guest.protocol import wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Tuple

PIECE_BYTES = 64 * 1024  # Size of a frame of output, far below the limit on a frame.
HIGH_WATER_BYTES = 1024 * 1024  # Queued for one side, above which the other is not read.

WORKER_FRAMES = (
    b'{"type":"call",', b'{"type":"cancel",', b'{"type":"done",', b'{"type":"shown",',
    b'{"type":"progress",', b'{"type":"state",',
)  # fmt: skip
"""Beginnings of the lines that a worker may send; other lines are dropped. Forged frames can still
contain a second "type": the host trusts none of it."""

_F_SETPIPE_SZ = 1031  # Linux's number, which `fcntl` names from Python 3.10 on.

_NEVER = float("inf")
_HANGUP = select.POLLHUP | select.POLLERR | select.POLLNVAL
_HOST_HANGUP = _HANGUP | getattr(select, "POLLRDHUP", 0)


class Ended(Exception):
    """This process ends: the host closed the channel, or a signal arrived. Has the exit status."""


class Relay:
    """Relays bytes until the worker has ended, then sends the rest.

    `exit_notice` and `placed_notice` are the worker's lines of these names in `processes`, empty
    before they arrive. `stopped`: the host stopped this run before its time was over.
    """

    def __init__(
        self,
        host_reader: int,
        host: processes.Outbox,
        wake: int,
        worker: int,
        control: int,
        streams: Dict[int, str],
        children: processes.Children,
    ) -> None:
        self._children = children
        self._host_reader = host_reader
        self._host = host
        self._wake = wake
        self._worker: Optional[int] = worker
        self._to_worker = processes.Outbox(worker)
        self._control = processes.Outbox(control)
        self._streams = self._all_streams = streams
        self._gathered: List[Tuple[str, bytes]] = []
        self._gathered_size = 0
        self._flush_at: Optional[float] = None
        self._has_sent = False
        self._deadline = _NEVER
        self._decoder = wire.LineDecoder(drops_long=True)
        self._incoming = Incoming(self._stop, lambda: self.send(wire.Pong()))
        self.exit_notice = self.placed_notice = b""
        self.stopped = False
        for fd in (host.fd, control, *streams) if sys.platform == "linux" else ():
            try:
                fcntl.fcntl(fd, _F_SETPIPE_SZ, processes.CHUNK_BYTES)
            except OSError:
                # It is no pipe, or the user's limit is reached; the default size works too.
                continue

    def until_worker_ends(self) -> bool:
        """Relay until the worker ends or sends its exit notice; return False at the deadline."""
        while self._children.status is None and not self.exit_notice:
            now = time.monotonic()
            if now >= self._deadline:
                return False
            if self._flush_at is not None and now >= self._flush_at:
                self._send_gathered()
            end = self._deadline if self._flush_at is None else min(self._deadline, self._flush_at)
            # Rounded up: a poll that ends early would spin.
            for fd, event in self._poller().poll(max(0, int((end - now) * 1000) + 1)):
                self._handle(fd, event)
            if not self.exit_notice:
                # Data that follows it goes out with the next frame, and wakes the host once.
                self._host.flush()
            self._to_worker.flush()
        return True

    def interrupt(self) -> None:
        """Interrupt the program, and relay until it has ended or the grace period is over."""
        if self._children.status is not None or self.exit_notice:
            return
        try:
            os.kill(self._children.worker, _signal.SIGINT)
        except OSError:
            return
        # A line cut off by the signal must not be joined with the next one.
        self._decoder.forget()
        self._deadline = time.monotonic() + 1.2  # The host waits two seconds after `Stop`.
        self.until_worker_ends()

    def send(self, frame: Any) -> None:
        """Queue a frame for the host, after all output gathered so far."""
        self._send_gathered()
        self._host.put(wire.encode(frame))

    def send_piece(self, frame: Any) -> None:
        """Send a piece of a file; one may wait while the next is read."""
        self.send(frame)
        self.flush(4 * PIECE_BYTES)

    def drain(self) -> None:
        """Read the rest of the worker's pipes, without waiting, and queue it."""
        for fd, stream in list(self._streams.items()):
            for data in _rest_of(fd):
                self._gather(stream, data)
        for data in _rest_of(self._worker) if self._worker is not None else ():
            self._pass_lines(data)
        for capture in self._captures.values():
            for frame in capture.finish():
                self.send(frame)

    def flush(self, most: int = 0) -> None:
        """Write bytes queued for the host until so many are left, or raise `Ended`."""
        self._send_gathered()
        if not self._write(self._host, 20.0, most):
            raise Ended(0)

    def _write(self, outbox: processes.Outbox, seconds: float, most: int = 0) -> bool:
        """Write until `most` bytes are left; return False if the reader is gone or too slow."""
        deadline = time.monotonic() + seconds
        outbox.flush()
        while outbox.size > most and (left := deadline - time.monotonic()) > 0:
            poller = select.poll()
            poller.register(self._wake, select.POLLIN)
            poller.register(outbox.fd, select.POLLOUT)
            poller.poll(int(left * 1000) + 1)
            outbox.flush()
            self._handle_signals()
        return not outbox.broken and outbox.size <= most

    def _poller(self, between_runs: bool = False) -> select.poll:
        """Return a poller for the events that can be handled now; hang-ups are always reported."""
        poller = select.poll()
        poller.register(self._wake, select.POLLIN)
        hungry = self._to_worker.size <= HIGH_WATER_BYTES
        own = select.POLLIN if hungry else 0
        poller.register(self._host_reader, (_HOST_HANGUP & ~_HANGUP) | own)
        if self._host.size:
            poller.register(self._host.fd, select.POLLOUT)
        reads = self._host.size <= HIGH_WATER_BYTES and not between_runs
        for fd in self._streams if reads else ():
            poller.register(fd, select.POLLIN)
        events = (select.POLLIN if reads else 0) | (select.POLLOUT if self._to_worker.size else 0)
        if self._worker is not None and events:
            poller.register(self._worker, events)
        return poller

    def _handle(self, fd: int, event: int) -> None:
        if fd == self._wake:
            self._handle_signals()
        elif fd == self._host_reader:
            data = processes.read_some(fd) if event & select.POLLIN else None
            if data:
                self._to_worker.put(*self._incoming.split(data))
                self._to_worker.flush()
            elif data is not None or (event & _HOST_HANGUP and not event & select.POLLIN):
                raise Ended(0)
        elif fd == self._host.fd:
            if event & _HANGUP:
                raise Ended(0)
        elif fd in self._streams:
            data = processes.read_some(fd)
            if data:
                self._gather(self._streams[fd], data)
            elif data is not None:
                # Every process that could write has ended or closed it.
                os.close(fd)
                del self._streams[fd]
        elif fd == self._worker and event != select.POLLOUT:
            data = processes.read_some(fd)
            if data:
                self._pass_lines(data)
            elif data is not None:
                # The program closed its end: it can make no more calls, but may continue.
                os.close(fd)
                self._worker = None
                self._to_worker.drop()

    def _pass_lines(self, data: bytes) -> None:
        lines = list(self._decoder.feed(data))
        last = data[:-1].rsplit(b"\n", 2)[-2:] if data.endswith(b"}\n") else [b""]
        if last[-1].startswith(processes.EXIT_NOTICE) and last[-1] not in lines[-1:]:
            # The interrupt cut a write off; the next frames start a new line.
            self._decoder.forget()
            lines += [*self._decoder.feed(b"\n"), *last]
        for line in lines:
            # Output written before a call or the end is sent before it.
            if line.startswith(WORKER_FRAMES, wire.json_start(line)):
                self._send_gathered()
                self._host.put(line, b"\n")
            elif line.startswith(processes.EXIT_NOTICE) and len(line) <= 256:
                self.exit_notice = line
            elif line.startswith(processes.PLACED_NOTICE):
                self.placed_notice = line

    def _gather(self, stream: str, data: bytes) -> None:
        head = self._captures[stream].add(data)
        if not head:
            return
        if self._gathered and self._gathered[-1][0] == stream:
            head = self._gathered.pop()[1] + head
        self._gathered.append((stream, head))
        self._gathered_size += len(data)
        if self._gathered_size >= PIECE_BYTES:
            self._send_gathered()
        elif self._flush_at is None:
            # The first output goes at once: a reader may be waiting for it.
            self._flush_at = time.monotonic() + (0.02 if self._has_sent else 0.0)

    def _send_gathered(self) -> None:
        for stream, data in self._gathered:
            self._host.put(wire.encode(wire.Output(stream, data)))
        self._has_sent = self._has_sent or bool(self._gathered)
        self._gathered.clear()
        self._gathered_size = 0
        self._flush_at = None

    def begin_run(self, limits: Mapping[str, Any], quiet: bool = False) -> None:
        """Begin a run; a `quiet` one, a save, leaves the output of threads for the next run."""
        # The same dictionary, so that a closed stream stays removed.
        self._streams = {} if quiet else self._all_streams
        output = int(limits.get("output_bytes", 256 * 1024))
        self._captures = {stream: Capture(stream, output) for stream in self._all_streams.values()}
        self._decoder.max_bytes = int(limits.get("frame_bytes", wire.MAX_FRAME_BYTES))
        self._deadline = min(self._deadline, time.monotonic() + float(limits.get("timeout", 30.0)))
        self._has_sent = False
        self._flush_at = None
        self.exit_notice = self.placed_notice = b""

    def next_run(self) -> Optional[bytes]:
        """Return the line of the next run; None if the session's process ends first."""
        self._deadline, self.stopped = _NEVER, False
        while not self._incoming.runs:
            if self._children.status is not None:
                return None
            for fd, event in self._poller(between_runs=True).poll():
                self._handle(fd, event)
            self._host.flush()
            self._to_worker.flush()
            if self._host.broken:
                raise Ended(0)
        return self._incoming.runs.pop(0)

    def send_run(self, line: bytes) -> bool:
        """Send the worker its next run; return whether it read all of it."""
        self._control.put(len(line).to_bytes(processes.LENGTH_BYTES, "big"), line)
        return self._write(self._control, 15.0)

    def _handle_signals(self) -> None:
        noted = processes.read_some(self._wake) or b""
        if {_signal.SIGTERM, _signal.SIGINT} & set(noted):
            raise Ended(143)
        if noted:
            self._children.reap()

    def _stop(self, late: bool) -> None:
        # Bytes that arrive after a run's end do not belong to the next run.
        if self._deadline < _NEVER or self._incoming.runs:
            self.stopped = not late
            self._deadline = time.monotonic()


def _rest_of(fd: int) -> Iterator[bytes]:
    left = 4 * 1024 * 1024  # More than a pipe holds: another process may still be writing.
    while left > 0 and (data := processes.read_some(fd)):
        yield data
        left -= len(data)


# Lines for the supervisor, in addition to a session's next run.
_STOPS = {wire.encode(wire.Stop(late=late)): late for late in (True, False)}
_PING = wire.encode(wire.Ping())
_RUN = b'{"type":"run"'


class Incoming:
    """Separates the supervisor's lines from the host's bytes for the worker."""

    def __init__(self, on_stop: Callable[[bool], None], on_ping: Callable[[], None]) -> None:
        self._on_stop = on_stop
        self._on_ping = on_ping
        self.runs: List[bytes] = []
        self._line: List[bytes] = []
        self._text_left = 0

    def split(self, data: bytes) -> List[bytes]:
        """Return the worker's bytes in `data` and the unfinished line before it, in whole lines."""
        found: List[bytes] = []
        start = 0
        while start < len(data):
            if self._text_left:
                found.append(data[start : start + self._text_left])
                start += len(found[-1])
                self._text_left -= len(found[-1])
                continue
            end = data.find(b"\n", start) + 1
            self._line.append(data[start : end or len(data)])
            start = end or len(data)
            if not end:
                break
            line = b"".join(self._line)
            self._line.clear()
            if line in _STOPS:
                self._on_stop(_STOPS[line])
            elif line == _PING:
                self._on_ping()
            elif line.startswith(_RUN):
                self.runs.append(line[:-1])
            else:
                found.append(line)
                self._text_left = wire.raw_size(line)
        return found


TAIL_BYTES = 128 * 1024  # Of a stream's end, held in this process's memory.
_CONTINUATION = bytes(range(0x80, 0xC0))  # The bytes of a character after its first.


class Capture:
    """Keeps the beginning and the end of one stream within `limit` bytes.

    The beginning is sent as the program writes it, the end when the program ends. Bytes between
    them are dropped and counted.
    """

    def __init__(self, stream: str, limit: int) -> None:
        self._stream = stream
        self._tail_limit = min(limit - limit // 2, TAIL_BYTES)
        self._room = limit - self._tail_limit
        self._tail = bytearray()
        self._split = b""
        self._dropped = 0

    def add(self, data: bytes) -> bytes:
        """Add bytes of the stream; return the bytes to send now."""
        if not self._room:
            self._keep(data)
            return b""
        # A character that is not complete joins what follows, be it shown or held back.
        data = self._split + data
        end = _whole(data[: self._room])
        if len(data) < self._room:
            self._room -= end
            self._split = data[end:]
        else:
            self._tail_limit += self._room - end
            self._room, self._split = 0, b""
            self._keep(data[end:])
        return data[:end]

    def finish(self) -> List[wire.Output]:
        """Return the frames of the end of the stream."""
        self._tail += self._split
        self._trim()
        if self._dropped:
            # Not the rest of a character whose beginning was dropped.
            head = self._tail[:3].lstrip(_CONTINUATION)
            start = min(3, len(self._tail)) - len(head)
            del self._tail[:start]
            self._dropped += start
        frames = []
        for start in range(0, max(len(self._tail), self._dropped > 0), PIECE_BYTES):
            data = bytes(self._tail[start : start + PIECE_BYTES])
            frames.append(wire.Output(self._stream, data, 0 if start else self._dropped))
        return frames

    def _keep(self, data: bytes) -> None:
        self._tail += data
        # Not sooner: this moves each byte once on average.
        if len(self._tail) > 2 * self._tail_limit:
            self._trim()

    def _trim(self) -> None:
        excess = max(0, len(self._tail) - self._tail_limit)
        del self._tail[:excess]
        self._dropped += excess


def _whole(data: bytes) -> int:
    """Return the length without an incomplete character at the end."""
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:
            needed = 1 if byte < 0xC0 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - (back if needed > back else 0)
    return len(data)
