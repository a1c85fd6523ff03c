"""The stdio transport: MCP over a server process's stdin and stdout.

Replaces the SDK's transport, which is quadratic in a message's size, has no size limit, and leaves
grandchildren alive. A message beyond the limit fails its request. The connection ends only if the
message shows no id. A server inherits the whole environment. Its stderr goes to a bounded log file.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import re
import stat
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path

import anyio.lowlevel
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, RequestId

from bridge.errors import ServerStartError
from bridge.event_loop import LARGE, current_time, offload
from bridge.model import ServerSpec
from bridge.upstream import framing, launch, process
from bridge.upstream.direct_dispatcher import DirectDispatcher, LineWriter
from bridge.upstream.transport import Endpoint

logger = logging.getLogger(__name__)

LOG_BYTES = 1024 * 1024  # Size at which a server's log is rotated. One older file is kept.

ALL_LOGS_BYTES = 128 * 1024 * 1024  # Of all servers, past ones too; checked when a log starts.

TAIL_BYTES = 2048  # Kept for error messages, such as a traceback's end or a usage text.


def log_path(log_dir: Path, server: str) -> Path:
    """Return the path of a server's log file, with a digest if the name is unusual."""
    stem = re.sub(r"[^A-Za-z0-9._-]", "_", server)[:100].lstrip(".")
    if stem != server:
        digest = hashlib.sha256(server.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        stem = f"{stem}-{digest}" if stem else digest
    return log_dir / f"{stem}.log"


def remove_oldest(log_dir: Path, keep: Path) -> None:
    """Remove the least recently written logs except `keep` beyond `ALL_LOGS_BYTES`."""
    logs = [(path.lstat(), path) for path in (*log_dir.glob("*.log"), *log_dir.glob("*.log.1"))]
    size = sum(status.st_size for status, _ in logs)
    for status, path in sorted(logs, key=lambda each: each[0].st_mtime_ns):
        if size <= ALL_LOGS_BYTES:
            return
        if path != keep and stat.S_ISREG(status.st_mode):
            # If another bridge still writes to it, its next rotation frees the disk space.
            path.unlink(missing_ok=True)
            size -= status.st_size


class ServerLog:
    """A server's log file and its last lines; only the lines without a writable directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._size = 0
        self._tail = b""

    def __enter__(self) -> ServerLog:
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._rotate()
            remove_oldest(self.path.parent, keep=self.path)
        except OSError as error:
            logger.warning("no log file for this server: %s", error)
        return self

    def __exit__(self, *exc: object) -> None:
        self._close()

    def write(self, data: bytes) -> None:
        self._tail = (self._tail + data)[-TAIL_BYTES:]
        if self._fd is None:
            return
        try:
            if self._size + len(data) > LOG_BYTES:
                self._rotate()
            os.write(self._fd, data[-LOG_BYTES:])
            self._size += len(data)
        except OSError as error:
            logger.warning("the log file %s is no longer written: %s", self.path, error)
            self._close()

    def note(self, text: str) -> None:
        """Append a line of the bridge itself, which `tail` leaves out."""
        tail = self._tail
        self.write(f"[bridge] {text}\n".encode("utf-8", "replace"))
        self._tail = tail

    def tail(self) -> str:
        """Return the end of the server's output, from the start of a line where possible."""
        data = self._tail
        if len(data) == TAIL_BYTES:
            data = data[data.find(b"\n") + 1 :]
        return data.decode("utf-8", "replace").strip()

    def _rotate(self) -> None:
        self._close()
        # Renamed, not truncated: another bridge of the same user may still be writing to it.
        with contextlib.suppress(FileNotFoundError):
            self.path.replace(self.path.with_name(self.path.name + ".1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self.path, flags, 0o600)
        self._size = 0

    def _close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


_BLANK = re.compile(rb"\n\n+")

# An authorization request (RFC 6749), which `mcp-remote` and others print for their user.
_LOGIN = re.compile(r"https?://[!#-&(-;=?-~]+[?&]response_type=code[!#-&(-;=?-~]*")

Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@dataclass(eq=False, repr=False)
class StdioEndpoint(Endpoint):
    spec: ServerSpec
    _: KW_ONLY
    environ: Mapping[str, str]
    cwd: str
    log: ServerLog
    max_message_bytes: int
    containers: launch.Containers = field(default_factory=launch.Containers)

    def __post_init__(self) -> None:
        self._engine = launch.label_container([self.spec.command, *self.spec.args], {})[1]
        self._environ = launch.server_environment(self.environ, self.spec)
        self._installs = process.installs_packages(self.spec.command, self.spec.args)
        self.transport = "stdio"
        self._running = anyio.CancelScope(shield=True)
        self._writing = anyio.CancelScope()
        self._written = anyio.Event()
        self._drained = anyio.Event()
        self._keeper: process.InstallationKeeper | None = None
        self._leaving = False
        self._deaf = False
        self._end_report = ""
        self._hint = ""
        self._noise = 0
        self._last_noise = (-math.inf, "")
        self._last_request: RequestId | None = None

    def noise_since(self, begun: float) -> str:
        at, line = self._last_noise
        return line if at >= begun else ""

    @property
    def cause_of_end(self) -> str:
        last = self.last_line[-framing.EXCERPT_CHARACTERS :]
        quoted = f" Its last line on stderr: {last}" if last else ""
        return f"{self._end_report}{quoted}" if self._end_report else ""

    def end_report(self) -> str:
        end_report = f"{self._end_report} " if self._end_report else ""
        if tail := self.log.tail():
            end_report += f"Its stderr ends with:\n{tail}\n"
        if self._hint and "No module named" in tail:
            end_report += self._hint
        return f"{end_report}Its log is {self.log.path}."

    @property
    def installing(self) -> bool:
        return self._keeper is not None and self._keeper.installing

    @property
    def last_line(self) -> str:
        return self.log.tail().rpartition("\n")[2]

    async def prepare(self) -> None:
        if self._installs:
            await process.wait_for_installation(self.spec.definition)
        if self._engine:
            await self.containers.reap(self._engine, self._environ, "")

    def finish_start(self) -> None:
        self.on_login = None
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.dismiss()

    @asynccontextmanager
    async def open(self, until: float) -> AsyncGenerator[Streams, None]:
        """Start the process; leaving stops its whole process tree."""
        with self.log:
            child = await self._spawn()
            if self._installs:
                left = until - anyio.current_time()
                self._keeper = process.keep(child, self.spec.definition, left)
            # Every later await is inside the try, so that the process is always stopped.
            inbound, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            write, outbound = anyio.create_memory_object_stream[SessionMessage](16)
            self._inbound, self._outbound = inbound, outbound
            self._writer = LineWriter(child.stdin)
            self.direct = direct = DirectDispatcher(self._writer, self.spec.name)
            try:
                async with anyio.create_task_group() as tg:
                    tg.start_soon(self._run_pipes, child)
                    try:
                        yield read, write
                    finally:
                        self._leaving = True
                        read.close()
                        write.close()
                        if anyio.current_time() >= until:
                            self.finish_start()
                        with anyio.CancelScope(shield=True):
                            await self._leave(child)
            finally:
                direct.close()
                for stream in (inbound, read, write, outbound):
                    stream.close()
                child.close()

    async def _leave(self, child: process.Child) -> None:
        with anyio.move_on_after(0.5):  # Writing the queue normally takes microseconds.
            await self._written.wait()
        # No task may write to a descriptor that is about to be closed.
        self._writing.cancel()
        await self._written.wait()
        if self._keeper is not None and self.installing and not child.has_exited():
            self._keeper.take_over()
            self._keeper = None
        else:
            self.finish_start()
            with anyio.move_on_after(process.STOP_SECONDS):
                await child.stop()
            if self._engine:
                ended = f"{launch.TREE_LABEL}={child.tag}"
                await self.containers.reap(self._engine, self._environ, ended)
        self._running.cancel()

    async def _run_pipes(self, child: process.Child) -> None:
        # Shielded: reading continues while a cancelled connection closes, or a server that is
        # blocked writing would never see its stdin close. `_leave` ends the scope.
        works = (self._read_messages, self._write_messages, self._drain_stderr, self._notice_exit)
        with self._running:
            async with anyio.create_task_group() as tg:
                tg.start_soon(child.watch)
                for work in works:
                    tg.start_soon(work, child)

    async def _spawn(self) -> process.Child:
        spec = self.spec
        try:
            empty = self.log.path.with_name("no-project")
            plan = await launch.plan_launch(spec, self._environ, empty, Path(self.cwd))
            self._hint, tag = plan.hint, process.new_tag()
            labels = {**self.containers.labels(), launch.TREE_LABEL: tag} if self._engine else {}
            argv = launch.label_container(plan.argv, labels)[0]
            directory = Path(self.cwd, plan.cwd or "")
            child = process.spawn(argv, environ=plan.environ, cwd=str(directory), tag=tag)
        except (OSError, ValueError) as error:
            detail, remedy = launch.explain_spawn_failure(
                spec, self._environ, error, Path(self.cwd)
            )
            message = f"Server {spec.name!r} did not start: its command cannot be run."
            raise ServerStartError(
                message, server=spec.name, host_detail=detail, remedy=remedy
            ) from error
        self.pid = child.pid
        self.log.note(f"started {spec.command} as process {child.pid}")
        return child

    async def _read_messages(self, child: process.Child) -> None:
        framer = framing.LineFramer(self.max_message_bytes)
        taken = 0
        async with self._inbound:
            while data := await child.output.read():
                self.last_heard = current_time()
                # Blank lines are ignored; a server may send millions.
                if b"\n" in data:
                    data = _BLANK.sub(b"\n", data)
                lines = deque(framer.feed(data) if not self._deaf else ())
                del data
                while lines:
                    # Removed from the queue, because a line may be as large as the limit.
                    await self._deliver(lines.popleft())
                    taken += 1
                    if taken % 64 == 0:
                        await anyio.lowlevel.checkpoint()
            self._drained.set()
            if (rest := framer.finish()) is not None:
                await self._deliver(rest)
            await self._record_end(child)

    async def _deliver(self, line: bytes | framing.OversizeLine) -> None:
        direct = self.direct
        assert direct is not None
        if isinstance(line, framing.OversizeLine):
            message = framing.decode_oversize(line, self.max_message_bytes)
            self.log.note(
                f"dropped a message of {line.size} bytes: the limit is {self.max_message_bytes}"
            )
            if message is None:
                self._end_report = (
                    f"It sent a message of {line.size} bytes, which exceeded the "
                    f"{self.max_message_bytes} byte limit and showed no request that it answers."
                )
                self._deaf = True
                self._inbound.close()
            else:
                await self._send(message)
            return
        large = len(line) > LARGE
        if len(line) >= framing.LEAST_BYTES and direct.has_pending:
            found = await offload(line, partial(framing.parse_large_response, line))
            if direct.deliver(found):
                return
        if large and await offload(line, partial(framing.has_too_many_values, line)):
            self.log.note(f"dropped a message of {len(line)} bytes: it holds too many values")
            if (refusal := framing.decode_too_many(line)) is not None:
                await self._send(refusal)
            return
        if direct.has_pending:
            read = partial(framing.parse_response, line)
            if direct.deliver(await offload(line, read) if large else read()):
                return
        if (batch := framing.split_batch(line)) is not None:
            for part in batch:
                await self._deliver(part)
            return
        decoded = await offload(line, partial(framing.decode_line, line))
        if isinstance(decoded, framing.Noise) and decoded.messages:
            for part in decoded.messages:
                await self._deliver(part)
        elif isinstance(decoded, framing.Noise):
            self._noise += 1
            self._last_noise = (current_time(), decoded.preview)
            if self._noise <= 100:  # The rest are only counted.
                self.log.note(f"not a message, on stdout: {decoded.preview!r}")
        elif decoded is not None:
            await self._send(decoded)

    async def _send(self, message: JSONRPCMessage) -> None:
        assert self.direct is not None
        if self.direct.deliver_message(message):
            return
        if isinstance(message, JSONRPCError) and message.id is None:
            message.id = self._last_request
        if isinstance(message, JSONRPCNotification):
            self.direct.count_notification()
        try:
            await self._inbound.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            # The session is closing: later messages are discarded.
            self._deaf = True

    async def _write_messages(self, child: process.Child) -> None:
        try:
            with self._writing:
                async with anyio.create_task_group() as tg:
                    tg.start_soon(self._writer.write_queued)
                    async for message in self._outbound:
                        if isinstance(message.message, JSONRPCRequest):
                            self._last_request = message.message.id
                        text = framing.encode(message.message)
                        await self._writer.room()
                        self._writer.put(text.encode() + b"\n")
                    await self._writer.drain()
                    tg.cancel_scope.cancel()
        except* OSError:
            # The server has closed its stdin, so the connection is over.
            self._outbound.close()
            await self._record_end(child)
            self._inbound.close()
        finally:
            self._written.set()

    async def _drain_stderr(self, child: process.Child) -> None:
        while data := await child.errors.read():
            self.log.write(data)
            if self.on_login is not None and (request := _LOGIN.search(self.log.tail())):
                self.on_login(request[0])
                self.on_login = None

    async def _notice_exit(self, child: process.Child) -> None:
        """End the connection of an ended process whose stdout another process keeps open."""
        await child.wait_exited()
        # A child of the process may keep the pipe open without an end of file.
        with anyio.move_on_after(0.5):
            await self._drained.wait()
            return
        await self._record_end(child)
        self._inbound.close()

    async def _record_end(self, child: process.Child) -> None:
        # The exit status follows shortly; pending calls wait for it.
        with anyio.move_on_after(0.5):
            await child.wait_exited()
        if not self._leaving and not self._end_report:
            self._end_report = f"It {child.describe_exit()}."
            self.log.note(self._end_report)
