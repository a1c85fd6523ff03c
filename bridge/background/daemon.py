"""The background bridge's process: serves all clients of a user, each with an engine of its own.

A client's front starts it with `front.start`, sends the client's input over a Unix socket, and
passes the descriptor of its output. The engines share sandboxes, sessions, the store and the
servers' processes.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import anyio.to_thread

from bridge.atomic_files import replace_file
from bridge.background.execution import execute
from bridge.background.link import Link
from bridge.background_instance import (
    ANSWER_SECONDS,
    Instance,
    UnavailableError,
    instance_for,
    instances,
    process_start,
    remove_dead,
    require_own_peer,
)
from bridge.cli.app import Invocation, read_words
from bridge.cli.background import LOG_NAME
from bridge.cli.main import begin_log
from bridge.cli.origin import ORIGIN
from bridge.cli.serve import watched_engine
from bridge.descriptor_reader import failed_call
from bridge.errors import BridgeError, ChannelClosedError, SettingsError
from bridge.event_loop import background_task, background_tasks, utc_text
from bridge.runs.engine import SharedParts
from bridge.sandbox.selection import select_present
from bridge.server.app import build_server
from bridge.server.stdio import STDIO, resumed_session, serve_client
from bridge.server.transports import IDLE_SECONDS, unix_listener
from bridge.settings import RELATIVE, Settings, load, prepare_state

logger = logging.getLogger("bridge.background")

LOG_BYTES = 5 * 1024 * 1024  # Most in the log's file, and in each of its two earlier files.


class SharedLog(RotatingFileHandler):
    """A log file of several bridges, each of which may rotate it."""

    def shouldRollover(self, record: logging.LogRecord) -> int:
        if self.stream:
            self.stream.close()
        # The open file may have a later name now, or none.
        self.stream = self._open()
        return super().shouldRollover(record)


class Daemon:
    """The server of all fronts, until a signal, `background stop` or a time without use."""

    def __init__(self, settings: Settings, own: Instance, lock: int, parts: SharedParts) -> None:
        self._settings = settings
        self._instance = own
        self._lock = lock  # A descriptor that holds the instance's lock.
        self._parts = parts
        self._clients: dict[Link, dict[str, Any]] = {}
        self._used_at = time.monotonic()
        self._inode = 0  # Of the record's file.
        self._ending = anyio.Event()

    async def serve(self) -> None:
        """Accept fronts until the bridge ends; then wait for runs, and end all sessions."""
        async with background_task(self._end_on_signal), background_tasks() as tasks:
            with self._listening() as listener:
                tasks.start_soon(self._end_when_unused)
                async with background_tasks() as accepting:
                    accepting.start_soon(self._accept, listener, tasks)
                    await self._ending.wait()
            await self._drain()

    async def _end_on_signal(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                self._ending.set()

    @contextmanager
    def _listening(self) -> Iterator[socket.socket]:
        """Listen and write the record; on exit, remove both and release the lock."""
        instance = self._instance
        listener = unix_listener(Path(instance.socket))
        try:
            listener.listen(socket.SOMAXCONN)
            listener.setblocking(False)
            record = {
                "host": os.uname().nodename,
                "pid": os.getpid(),
                "start": process_start(os.getpid()),
                "since": utc_text(time.time()),
                "began": time.monotonic(),  # The clock of all processes, which never jumps.
                "state": str(self._settings.state_dir),
            }
            replace_file(Path(instance.record), json.dumps(record).encode())
            self._inode = Path(instance.record).stat().st_ino
            remove_dead(instance.directory)
            logger.info("process %d serves clients at %s", os.getpid(), instance.socket)
            yield listener
        finally:
            logger.info("process %d takes no more clients", os.getpid())
            if self._is_reachable():
                for path in (instance.socket, instance.record):
                    with suppress(OSError):
                        Path(path).unlink()
            listener.close()
            os.close(self._lock)

    def _is_reachable(self) -> bool:
        """Whether fronts find this bridge; false after a cleaner has removed its files."""
        # This opens no file, because the bridge may have too many open.
        with suppress(OSError):
            Path(self._instance.socket).stat()
            return Path(self._instance.record).stat().st_ino == self._inode
        return False

    async def _drain(self) -> None:
        """Leave each client when its requests are answered; end runs after `drain_seconds`."""

        def leave_clients() -> bool:
            for link in tuple(self._clients):
                link.leave()
            return bool(self._clients)

        await self._parts.running_runs.drain(self._settings.drain_seconds, leave_clients)

    async def _accept(self, listener: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener)
            try:
                connection, _ = listener.accept()
            except OSError as error:
                logger.warning("a client could not be accepted: %s", failed_call(error))
                await anyio.sleep(0.5)
            else:
                tasks.start_soon(self._handle, connection)

    async def _handle(self, connection: socket.socket) -> None:
        link = Link(connection)
        try:
            require_own_peer(connection)
            with anyio.fail_after(ANSWER_SECONDS):
                hello = await link.hello()
            if self._ending.is_set():
                # The front connects to another bridge.
                return
            if hello.get("identity") not in (None, self._instance.identity):
                link.tell(refused="the bridge on its socket has other settings")
            elif "command" in hello or "serve" in hello:
                self._clients[link] = {"cwd": hello["cwd"], "since": utc_text(time.time())}
                if "command" in hello:
                    await execute(link, hello, self._parts)
                else:
                    await self._serve_client(link, hello)
            else:
                link.tell(**self._report())
                if hello.get("stop"):
                    self._ending.set()
        except (ChannelClosedError, UnavailableError, OSError, ValueError) as error:
            logger.info("the connection of a client ended: %s", error)
        except Exception:
            # The boundary of one client: its errors must not end the others.
            logger.exception("serving a client failed")
        finally:
            self._clients.pop(link, None)
            link.close()

    async def _serve_client(self, link: Link, hello: Mapping[str, Any]) -> None:
        try:
            settings = _settings_of(hello["words"], hello["environ"])
        except BridgeError as error:
            # The front serves the client itself, and explains the mistake to it.
            link.tell(refused=error.message)
            return
        if settings.background == "off":
            link.tell(refused="")
            return
        link.tell(pid=os.getpid())
        lost, state = hello["serve"], settings.state_dir
        session = await anyio.to_thread.run_sync(resumed_session, lost, state)
        with link.scope:
            async with watched_engine(settings, hello["cwd"], self._parts) as engine:
                link.is_busy = engine.suspended.runs
                server = build_server(engine, principal=STDIO, note_run=link.note_run)
                await serve_client(server, link.reader, link.descriptors[0], link, session)
            link.tell(status=0)

    def _report(self) -> dict[str, Any]:
        """Return what `background status` shows; `runs` is a count."""
        return {
            "pid": os.getpid(),
            "since": self._instance.read_record().get("since", ""),
            "clients": list(self._clients.values()),
            "runs": self._parts.running_runs.count,
            "servers": self._parts.connections.report(),
        }

    async def _end_when_unused(self) -> None:
        while self._is_reachable() and not self._is_unused():  # noqa: ASYNC110 - files, time
            await anyio.sleep(1.0)
        self._ending.set()

    def _is_unused(self) -> bool:
        now, superseded, parts = time.monotonic(), self._is_superseded(), self._parts
        # A later bridge continues open sessions from what was saved.
        if self._clients or parts.running_runs.count or (parts.sessions.open and not superseded):
            self._used_at = now
        return now - self._used_at >= (1.0 if superseded else IDLE_SECONDS)

    def _is_superseded(self) -> bool:
        """Whether a later bridge has the same state directory: an upgrade, or other settings."""
        own = self._instance.read_record()
        every = instances(self._instance.directory)
        others = [each.read_record() for each in every if each.process()]
        return any(
            each.get("state") == own.get("state") and each.get("began", 0) > own.get("began", 0)
            for each in others
        )


def _settings_of(words: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Return a client's settings. Raises BridgeError if they are wrong, or have relative paths."""
    invocation = read_words(words)
    assert isinstance(invocation, Invocation)
    settings = load(invocation.flags, environ)
    if relative := [note for note in settings.notes if RELATIVE in note]:
        # They mean another path in this process.
        raise SettingsError(relative[0].rstrip("."))
    return settings


def main(lock: int, name: str, words: list[str]) -> None:
    """Serve as the named instance of a command line, whose lock this process holds."""
    settings, own = _settings_of(words, os.environ), instance_for(words, os.environ)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The client that started this process may have a limit that is too low for all clients.
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    prepare_state(settings)
    path = settings.state_dir / LOG_NAME
    handler = SharedLog(path, maxBytes=LOG_BYTES, backupCount=2, encoding="utf-8")
    # A command's log goes to the command's own process.
    handler.addFilter(lambda _: ORIGIN.get().shared is None)
    begin_log(handler, settings)
    if own.name != name:
        logger.warning("process %d ends: the settings have changed meanwhile", os.getpid())
        return
    try:
        anyio.run(_serve, settings, own, lock)
    except Exception:
        # Its stderr leads nowhere.
        logger.exception("the background bridge has failed")
        raise


async def _serve(settings: Settings, instance: Instance, lock: int) -> None:
    async with SharedParts(settings, select_present, several=True).opened() as parts:
        await Daemon(settings, instance, lock, parts).serve()


if __name__ == "__main__":
    gc.freeze()  # No later collection pauses a run for the imported objects.
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
    logging.shutdown()
    # A thread may be blocked in a write to a stopped reader.
    os._exit(0)
