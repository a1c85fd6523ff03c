"""The console script. Owns logging, signals and the exit status."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import anyio

from bridge.cli.app import SERVE, Invocation, handler_of, read_words
from bridge.cli.output import JsonLines, RepeatedLines, TerminalHandler, write_error
from bridge.errors import BridgeError, SettingsError
from bridge.event_loop import background_task
from bridge.settings import Settings, defaults, load, prepare_state, unknown_variables

logger = logging.getLogger(__name__)

INTERRUPTED = 130  # The shells' status of a command that Ctrl-C ended.

_CLOSED = (BrokenPipeError, ConnectionResetError)

Command = Callable[..., Awaitable[int]]


def main(argv: Sequence[str] | None = None, resumed: Mapping[str, Any] | None = None) -> int:
    """Do what a command line says, and return the exit status.

    Args:
        resumed: A client's session of a background bridge that was lost; see `serve`.
    """
    try:
        words = sys.argv[1:] if argv is None else argv
        invocation = read_words(words)
        if isinstance(invocation, int):
            return invocation
        with frozen_imports():
            command, settings = _prepare(invocation, resumed)
        return anyio.run(partial(_run_until_signal, command, invocation, settings))
    except BridgeError as error:
        write_error(error)
        return error.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except (*_CLOSED, BaseExceptionGroup) as error:
        if not is_closed(error):
            raise
        # It is no error if the reader of our output closed its end.
        logger.debug("the reader of our output closed its end", exc_info=True)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1


def is_closed(error: BaseException) -> bool:
    """Return whether an error is only that the reader of our output has gone."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(_CLOSED)[1] is None
    return isinstance(error, _CLOSED)


def _prepare(invocation: Invocation, resumed: Mapping[str, Any] | None) -> tuple[Command, Settings]:
    try:
        settings = load(invocation.flags)
        _set_up_logging(settings, serving=invocation.handler == SERVE)
        prepare_state(settings)
        given = dict(invocation.arguments)
        if resumed is not None:
            given["resumed"] = resumed
        return partial(handler_of(invocation.handler), **given), settings
    except SettingsError as error:
        # An MCP client does not show stderr, so it gets the mistake by MCP.
        to_client = _is_stdio(invocation) and sys.stdin is not None and not sys.stdin.isatty()
        keeps = invocation.handler.startswith("background:")
        if not (to_client or keeps or invocation.handler == "doctor:doctor"):
            raise
        write_error(error)
        if keeps:
            # Bridges that run are shown and ended, whatever the settings are.
            return partial(handler_of(invocation.handler), **invocation.arguments), defaults()
        handler = handler_of(f"{invocation.handler}_mistake")
        return partial(handler, error, **invocation.arguments), defaults()


def _is_stdio(invocation: Invocation) -> bool:
    return invocation.handler == SERVE and not invocation.arguments["http"]


async def _run_until_signal(command: Command, invocation: Invocation, settings: Settings) -> int:
    """Run the command; a signal cancels it, so that it releases its resources."""
    status = INTERRUPTED
    received: list[int] = []
    ending, scope = None, anyio.CancelScope()
    if invocation.handler == SERVE and not _is_stdio(invocation):
        ending = anyio.Event()
        command = partial(command, ending=ending)

    async def watch() -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
            async for number in signals:
                received.append(number)
                if number == signal.SIGTERM and ending is not None and not ending.is_set():
                    # The HTTP server waits for its runs until a second signal.
                    ending.set()
                else:
                    scope.cancel()

    with scope:
        async with background_task(watch):
            status = await command(settings)
    if received:
        # A thread of the stdio transport may wait forever for a line and would block a normal
        # exit. All resources are released at this point.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + received[0])
    return status


@contextmanager
def frozen_imports() -> Iterator[None]:
    """Import without garbage collection, which would take an eighth of the start.

    The imported objects are frozen, so that no later collection pauses a run for them.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _set_up_logging(settings: Settings, *, serving: bool) -> None:
    level = begin_log(TerminalHandler(sys.stderr), settings, brief=not serving)
    for line in (*unknown_variables(settings.environ), *settings.notes):
        logger.warning("%s", line)
    if not serving and level == "WARNING":
        # Building an image takes minutes, so its progress is shown in scripts too.
        logging.getLogger("bridge.sandbox.container.backend.progress").setLevel("INFO")


def begin_log(handler: logging.Handler, settings: Settings, *, brief: bool = False) -> str:
    """Have a handler write this process's log; return its level."""
    level = format_log(handler, settings, brief=brief)
    logging.basicConfig(level=level, handlers=[handler])
    for noisy in ("mcp", "httpx2", "httpcore2", "urllib3", "docker", "uvicorn", "watchfiles"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.getLevelName(level)))
    return level


def format_log(handler: logging.Handler, settings: Settings, *, brief: bool) -> str:
    level, line = settings.log_level, "%(asctime)s %(levelname)s %(name)s: %(message)s"
    if brief and level in ("INFO", "WARNING"):
        # At a terminal, progress lines would hide the command's own output.
        level, line = "WARNING", "%(level)s: %(message)s"
    handler.setFormatter(JsonLines() if settings.log_format == "json" else logging.Formatter(line))
    handler.addFilter(RepeatedLines())
    return level
