"""Executes commands of the user's other processes in the background bridge.

A command uses the streams, environment and working directory of its own process. It uses the
servers, sandboxes and sessions of the bridge.
"""

from __future__ import annotations

import io
import logging
import os
import select
import threading
import traceback
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import anyio.to_thread

from bridge.background.front import PIECE_BYTES
from bridge.background.link import Link
from bridge.cli.app import handler_of, read_words
from bridge.cli.main import INTERRUPTED, Command, format_log, is_closed
from bridge.cli.origin import ORIGIN, Origin, stderr
from bridge.cli.output import TerminalHandler, write_error
from bridge.descriptor_reader import is_ready
from bridge.errors import BridgeError
from bridge.event_loop import background_task
from bridge.runs.engine import SharedParts
from bridge.settings import Settings, load, prepare_state, unknown_variables

HANDLERS = (
    *("run:run_program", "servers:servers", "servers:tools", "policy:explain"),
    *("records:list_runs", "records:show_run", "records:list_sessions"),
)
"""The commands that a background bridge executes, as `Invocation.handler` names them."""

logger = logging.getLogger(__name__)


class CallerOutput(io.RawIOBase):
    """An output stream of another process. A thread writes to it, because a write may block.

    `write` waits for its bytes in any thread but the event loop's.
    """

    def __init__(self, descriptor: int) -> None:
        # A copy, because a blocked thread may outlive the command.
        self._descriptor = os.dup(descriptor)
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] = self._thread.submit(lambda: None)
        self._ended = False

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return not self._ended and os.isatty(self._descriptor)

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        if self._last.done():
            self.wait()
        if not self._ended:
            self._last = self._thread.submit(self._write, bytes(data))
        if threading.current_thread() is not threading.main_thread():
            self.wait()
        return len(data)

    def wait(self) -> None:
        """Block until all bytes are written. Raises OSError if the reader has gone."""
        self._last.result()

    def end(self) -> None:
        """Write no more."""
        self._ended = True
        self._thread.submit(os.close, self._descriptor)
        self._thread.shutdown(wait=False)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and not self._ended:
            with suppress(BlockingIOError):
                rest = rest[os.write(self._descriptor, rest[:PIECE_BYTES]) :]
                continue
            # Another process has made the pipe non-blocking and filled it.
            is_ready(self._descriptor, select.POLLOUT, None)


async def execute(link: Link, hello: Mapping[str, Any], parts: SharedParts) -> None:
    """Execute the command of a front's first message, or refuse it; report the exit status."""
    parsed = None
    with suppress(BridgeError):
        # In a thread, because the imports of the first command take a second.
        parsed = await anyio.to_thread.run_sync(_parse, hello)
    if parsed is None:
        # The front's process executes the command, or explains the mistake.
        link.tell(refused="")
        return
    link.tell(pid=os.getpid())
    if not await link.reader.read():
        # The front did not wait for the answer, and executes the command itself.
        return
    command, settings = parsed
    outputs = [CallerOutput(descriptor) for descriptor in link.descriptors[1:]]
    source = os.fdopen(link.descriptors[0], encoding="utf-8", closefd=False)
    out, err = (
        io.TextIOWrapper(each, "utf-8", write_through=True)  # type: ignore[type-var]
        for each in outputs
    )
    handler = TerminalHandler(err)
    origin = Origin(hello["environ"], hello["cwd"], (source, out, err), (handler,), parts)
    handler.addFilter(lambda _: ORIGIN.get() is origin)
    handler.setLevel(format_log(handler, settings, brief=True))
    ORIGIN.set(origin)
    status, scope = INTERRUPTED, anyio.CancelScope()

    async def watch() -> None:
        await link.reader.read()
        scope.cancel()

    with ExitStack() as stack:
        for output in outputs:
            stack.callback(output.end)
        # Tasks of the shared parts may have this context and outlive the command.
        stack.callback(setattr, origin, "shared", None)
        logging.getLogger().addHandler(handler)
        stack.callback(logging.getLogger().removeHandler, handler)
        for line in (*unknown_variables(settings.environ), *settings.notes):
            logger.warning("%s", line)
        with scope:
            async with background_task(watch):
                status = await _status_of(command)
                status = await _finish_writing(outputs, status)
        with anyio.move_on_after(1.0):
            await _finish_writing(outputs, status)
    link.tell(status=status)


def _parse(hello: Mapping[str, Any]) -> tuple[Command, Settings] | None:
    """Return the command and its settings; None if a background bridge does not execute it."""
    invocation = read_words(hello["words"])
    # The shared parts do not have the settings of a command's flags.
    if isinstance(invocation, int) or invocation.flags or invocation.handler not in HANDLERS:
        return None
    settings = load({}, hello["environ"])
    prepare_state(settings)
    return partial(handler_of(invocation.handler), settings, **invocation.arguments), settings


async def _status_of(command: Command) -> int:
    try:
        return await command()
    except BridgeError as error:
        write_error(error)
        return error.exit_status
    except Exception as error:
        if not is_closed(error):
            traceback.print_exc(file=stderr())
        return 1


async def _finish_writing(outputs: Sequence[CallerOutput], status: int) -> int:
    with suppress(OSError):
        for output in outputs:
            await anyio.to_thread.run_sync(output.wait, abandon_on_cancel=True)
        return status
    return status or 1
