"""The attached connection: a container's stdin, stdout and stderr on one socket.

Outputs arrive in frames: an eight-byte header (stream number, three zero bytes, big-endian length)
and a payload. Engines split frames anywhere. Nothing is read ahead, so a flood stays in the
kernel's buffers.
"""

from __future__ import annotations

import errno
import ssl
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR, SHUT_WR, socket

import anyio
import anyio.lowlevel
import h11

from bridge.descriptor_reader import Reader
from bridge.errors import ChannelClosedError
from bridge.sandbox.container import faults
from bridge.sandbox.container.endpoints import EngineEndpoint, EngineKind
from bridge.tasks import background_task

_HEADER = struct.Struct(">BxxxL")
_STDERR = 2
DIAGNOSTIC_BYTES = 16 * 1024  # Kept of stderr's end; a guest may write without end.


class FrameDecoder:
    """Splits the bytes of an attached stream into stdout, which it returns, and stderr.

    Attributes:
        stderr: The end of the process's stderr.
        engine_error: The end of the engine's own messages.
        on_error: Called with all of stderr, if set.
    """

    def __init__(self) -> None:
        self.stderr = self.engine_error = b""
        self.on_error: Callable[[bytes], None] | None = None
        self._unread = bytearray()
        self._stream = 0
        self._left = 0

    @property
    def at_boundary(self) -> bool:
        return not self._left and not self._unread

    def decode(self, data: bytes) -> bytes:
        """Return the stdout bytes of the next data; raise ValueError for other formats."""
        out: list[bytes] = []
        self._unread += data
        while self._unread:
            if self._left:
                payload = bytes(self._unread[: self._left])
                del self._unread[: self._left]
                self._left -= len(payload)
                # 0 is stdin that an engine echoes; its documentation assigns it to stdout.
                if self._stream in {0, 1}:
                    out.append(payload)
                elif self._stream == _STDERR:
                    self.stderr = (self.stderr + payload)[-DIAGNOSTIC_BYTES:]
                    if self.on_error is not None:
                        self.on_error(payload)
                else:
                    self.engine_error = (self.engine_error + payload)[-DIAGNOSTIC_BYTES:]
                continue
            header = bytes(self._unread[: _HEADER.size])
            if len(header) < _HEADER.size:
                break
            del self._unread[: _HEADER.size]
            self._stream, self._left = _HEADER.unpack(header)
            # 3 is the stream of the engine's own messages.
            if self._stream > 3 or header[1:4] != b"\0\0\0":
                raise ValueError(f"not an attach stream: frame header {header!r}")
        return b"".join(out)


ANSWER_SECONDS = 60.0  # A creation takes 0.7 s on slow storage; a machine may have to wake up.

CALL_BYTES = 256 * 1024  # Most of one read or write; about the size of a local socket's buffer.


class AttachedStream:
    """A raw connection to one container, for one reader and one writer.

    Args:
        leftover: Bytes that followed the engine's HTTP header.
        feeding: Another connection to the container, for stdin; its output is discarded.
    """

    def __init__(
        self, connection: socket, leftover: bytes, *, feeding: AttachedStream | None = None
    ) -> None:
        self._feeding = feeding
        self._socket = connection
        self._leftover = leftover
        self._decoder = FrameDecoder()
        self._ended = False
        self._closed = False
        self._reader = Reader(connection, self._take)

    @property
    def stderr(self) -> str:
        parts = (self._decoder.stderr, self._decoder.engine_error)
        return "\n".join(part.decode("utf-8", "backslashreplace") for part in parts if part)

    async def receive(self) -> bytes:
        """Return the next bytes of stdout, empty at the end.

        Raises:
            ChannelClosedError: The connection broke, or `close` was called.
        """
        if self._feeding is None or self._ended:
            return await self._receive()
        # The engine's monitor writes to each connection in turn and waits for the slowest.
        async with background_task(self._feeding.discard):
            return await self._receive()

    def _take(self) -> bytes | None:
        try:
            return self._socket.recv(CALL_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return b""

    async def discard(self) -> None:
        with suppress(ChannelClosedError):
            while await self.receive():
                pass

    async def _receive(self) -> bytes:
        while not self._ended:
            data, self._leftover = self._leftover, b""
            if not data:
                with self._translated("read from"):
                    data = await self._read()
            if not data:
                self._end()
                break
            try:
                out = self._decoder.decode(data)
            except ValueError as error:
                raise ChannelClosedError(f"The engine sent {error}.") from error
            if out:
                return out
        # A loop over an ended stream must be cancellable.
        await anyio.lowlevel.checkpoint()
        return b""

    async def send(self, data: bytes) -> None:
        """Write all of `data`; wait while the peer does not read."""
        if self._feeding is not None:
            await self._feeding.send(data)
            return
        view = memoryview(data)
        with self._translated("write to"):
            while view:
                try:
                    view = view[self._socket.send(view[:CALL_BYTES]) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await anyio.wait_writable(self._socket)
                except ssl.SSLWantReadError:
                    await anyio.wait_readable(self._socket)

    def on_error(self, take: Callable[[bytes], None]) -> None:
        self._decoder.on_error = take

    def end_input(self) -> None:
        """Close the process's stdin; its output is still read. Idempotent."""
        if self._feeding is not None:
            self._feeding.end_input()
        elif not self._closed:
            with suppress(OSError, ValueError):
                self._socket.shutdown(SHUT_WR)

    def close(self) -> None:
        """Close the connection; tasks that wait on it get `ChannelClosedError`. Idempotent."""
        if self._feeding is not None:
            self._feeding.close()
        if self._closed:
            return
        self._closed = True
        self._reader.close()
        with suppress(OSError, ValueError):
            anyio.notify_closing(self._socket)
        with suppress(OSError, ValueError):
            self._socket.shutdown(SHUT_RDWR)
        with suppress(OSError, ValueError):
            self._socket.close()

    async def _read(self) -> bytes:
        try:
            return await self._reader.read()
        except ConnectionResetError:
            # The connection is reset if the process ended with unread input.
            return b""

    @contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, anyio.ClosedResourceError) as error:
            reason = "it was closed" if self._closed else str(error) or type(error).__name__
            raise ChannelClosedError(f"Could not {doing} the sandbox: {reason}.") from error

    def _end(self) -> None:
        self._ended = True
        # docker accepts stdin for a while after the process's end.
        self.close()
        if not self._decoder.at_boundary:
            message = "The engine ended the sandbox's output in the middle of a frame."
            raise ChannelClosedError(message)


def attach(
    endpoint: EngineEndpoint,
    target: str,
    *,
    engine: EngineKind,
    feeding: AttachedStream | None = None,
) -> AttachedStream:
    """Open a raw connection to a container. Blocks.

    Raises:
        OSError: The engine does not answer, or the server is no engine.
        SandboxError: The engine refuses.
    """
    connection = endpoint.connect(ANSWER_SECONDS)
    try:
        leftover = _upgrade(connection, target, engine)
        connection.setblocking(False)
    except h11.RemoteProtocolError as error:
        connection.close()
        raise OSError(errno.EPROTO, str(error)) from error
    except BaseException:
        connection.close()
        raise
    return AttachedStream(connection, leftover, feeding=feeding)


def _upgrade(connection: socket, target: str, engine: EngineKind) -> bytes:
    """Upgrade a connection; return the bytes after the answer's header."""
    http = h11.Connection(h11.CLIENT)
    headers = [("Host", "engine"), ("Connection", "Upgrade"), ("Upgrade", "tcp")]
    request = h11.Request(method="POST", target=target, headers=[*headers, ("Content-Length", "0")])
    connection.sendall((http.send(request) or b"") + (http.send(h11.EndOfMessage()) or b""))
    said = b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(connection.recv(CALL_BYTES))
        elif isinstance(event, h11.InformationalResponse) and event.status_code == 101:
            return http.trailing_data[0]
        elif isinstance(event, h11.Data):
            said += event.data
        # Any other status is a refusal; the body has the reason.
        if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed) or len(said) > CALL_BYTES:
            text = said.decode("utf-8", "replace")
            raise faults.from_text(text, doing="attach to a container", engine=engine)
