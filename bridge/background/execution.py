"""Executes a command of another process in the background bridge, on that process's streams."""

from __future__ import annotations

import io
import logging
import os
import select
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import anyio
import anyio.to_thread

from bridge.background.link import Link
from bridge.cli.line import handler_of, with_default
from bridge.cli.main import INTERRUPTED, status_after, terminal_handler, warn_of_settings
from bridge.cli.origin import ORIGIN, Origin, stderr
from bridge.errors import BridgeError
from bridge.event_loop import background_task
from bridge.runs.engine import SharedParts
from bridge.settings import Settings, load, prepare_state

HANDLERS = (
    *("run:run_program", "servers:servers", "servers:tools", "policy:explain"),
    *("records:list_runs", "records:show_run", "records:list_sessions"),
)

OF_ONE_CLIENT = ("max_timeout", "guard", "preflight", "sources", "output_mode", "structured")
"""Settings that the parts shared by clients do not depend on."""

PIECE_BYTES = 64 * 1024  # The capacity of a pipe.


class CallerOutput(io.RawIOBase):
    """A stream of another process, which may block: a thread writes to it.

    A writer in another thread waits for its bytes; one in the event loop does not.
    """

    def __init__(self, descriptor: int) -> None:
        # Its own, since a blocked thread may outlive the command.
        self._descriptor = os.dup(descriptor)
        self._changed = threading.Condition()
        self._unwritten = bytearray()
        self._failure: OSError | None = None
        self._ending = False
        threading.Thread(target=self._run, daemon=True).start()

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        with self._changed:
            self._unwritten += data
            self._changed.notify_all()
        if threading.current_thread() is not threading.main_thread() or self._failure:
            self.wait()
        return len(data)

    def wait(self) -> None:
        """Block until all is written. Raises `OSError` when the reader has gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._ending or not self._unwritten)
            if self._failure:
                raise self._failure

    def end(self) -> None:
        """Let the thread end, unless it is blocked."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._ending:
            with self._changed:
                self._changed.wait_for(lambda: self._ending or self._unwritten)
                piece = bytes(self._unwritten[:PIECE_BYTES])
            written = 0
            try:
                written = os.write(self._descriptor, piece)
            except BlockingIOError:
                # Another holder has made the pipe non-blocking and filled it.
                select.select((), (self._descriptor,), ())
            except OSError as error:
                self._failure, self._ending = error, True
            with self._changed:
                del self._unwritten[:written]
                self._changed.notify_all()
        os.close(self._descriptor)


Command = Callable[[], Awaitable[int]]


async def execute(
    link: Link, said: Mapping[str, Any], descriptors: Sequence[int], parts: SharedParts
) -> None:
    """Execute a command if a bridge can, and tell its front the exit status."""
    read, found = partial(_read, said["words"], said["environ"], parts.settings), None
    with suppress(BridgeError):
        # In a thread, since the first one imports for a second.
        found = await anyio.to_thread.run_sync(read)
    if found is None:
        # Its own process executes it, or explains the mistake.
        link.tell(refused="")
        return
    link.tell(pid=os.getpid())
    # A front that did not wait for the answer executes the command itself.
    if await link.read():
        command, settings = found
        link.tell(status=await _execute(link, command, settings, said, descriptors, parts))


def _read(
    words: Sequence[str], environ: Mapping[str, str], own: Settings
) -> tuple[Command, Settings] | None:
    from bridge.cli.app import read_words

    invocation = read_words(with_default(words))
    if isinstance(invocation, int) or invocation.handler not in HANDLERS:
        return None
    settings = load(invocation.flags, environ)
    others = invocation.flags.keys() - OF_ONE_CLIENT
    if any(getattr(settings, name) != getattr(own, name) for name in others):
        return None
    prepare_state(settings)
    return partial(handler_of(invocation.handler), settings, **invocation.arguments), settings


async def _execute(
    link: Link,
    command: Command,
    settings: Settings,
    said: Mapping[str, Any],
    descriptors: Sequence[int],
    parts: SharedParts,
) -> int:
    outputs = [CallerOutput(descriptor) for descriptor in descriptors[1:]]
    (encoding, errors), *others = said["encodings"]
    source = open(descriptors[0], encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    out, err = (
        io.TextIOWrapper(output, encoding, errors, write_through=True)  # type: ignore[type-var]
        for output, (encoding, errors) in zip(outputs, others, strict=True)
    )
    origin = Origin(said["environ"], (source, out, err), said["cwd"], parts)
    ORIGIN.set(origin)
    status, scope = INTERRUPTED, anyio.CancelScope()

    async def watch() -> None:
        await link.read()
        scope.cancel()

    try:
        with scope, _logging(settings, origin):
            async with background_task(watch):
                status = await _status_of(command, settings, outputs)
        with anyio.move_on_after(1.0 if scope.cancelled_caught else 0):
            await _written(outputs)
    finally:
        # Tasks of the shared parts may have this context, and go on.
        origin.shared = None
        for output in outputs:
            output.end()
    return status


async def _status_of(command: Command, settings: Settings, outputs: Sequence[CallerOutput]) -> int:
    status = 1
    warn_of_settings(settings)
    with suppress(OSError):
        try:
            status = await command()
        except Exception as error:
            try:
                status = status_after(error)
            except Exception:
                traceback.print_exc(file=stderr())
    with suppress(OSError):
        await _written(outputs)
        return status
    return status or 1


async def _written(outputs: Sequence[CallerOutput]) -> None:
    for output in outputs:
        await anyio.to_thread.run_sync(output.wait, abandon_on_cancel=True)


@contextmanager
def _logging(settings: Settings, origin: Origin) -> Iterator[None]:
    """Show the command's log on its stderr."""
    assert origin.streams is not None
    handler, level = terminal_handler(settings, origin.streams[2], brief=True)
    handler.setLevel(level)
    handler.addFilter(lambda _: ORIGIN.get() is origin)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
