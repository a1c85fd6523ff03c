"""The background bridge's process, which a front starts: see `front.start`."""

from __future__ import annotations

import logging
import os
import resource
import signal
import sys
from logging.handlers import RotatingFileHandler

import anyio

from bridge.background.commands import LOG_NAME
from bridge.background.host import Host
from bridge.background.place import Place, place_for
from bridge.cli.app import read_words
from bridge.cli.line import Invocation, with_default
from bridge.cli.main import begin_log, frozen_imports
from bridge.cli.origin import ORIGIN
from bridge.event_loop import background_task
from bridge.runs.engine import SharedParts
from bridge.sandbox.selection import select_present
from bridge.settings import Settings, load, prepare_state

LOG_BYTES = 5 * 1024 * 1024  # Of the log, and of each of its two earlier parts.


def main(lock: int, words: list[str]) -> None:
    invocation = read_words(with_default(words))
    assert isinstance(invocation, Invocation)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The limit of the client that came first is too low for all.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    settings = load(invocation.flags)
    prepare_state(settings)
    _log_to_file(settings)
    anyio.run(_serve, settings, place_for(words, os.environ), lock)


def _log_to_file(settings: Settings) -> None:
    path = settings.state_dir / LOG_NAME
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8")
    # A command's log is its caller's.
    handler.addFilter(lambda _: ORIGIN.get().shared is None)
    begin_log(handler, settings)


async def _serve(settings: Settings, place: Place, lock: int) -> None:
    parts = SharedParts(settings, select_present, several=True)
    async with parts.opened():
        host = Host(settings, place, lock, parts)

        async def watch() -> None:
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                async for _ in signals:
                    host.ending.set()

        async with background_task(watch):
            await host.serve()


if __name__ == "__main__":
    with frozen_imports():
        pass
    main(int(sys.argv[1]), sys.argv[2:])
    logging.shutdown()
    # A thread may still write to a reader that does not read.
    os._exit(0)
