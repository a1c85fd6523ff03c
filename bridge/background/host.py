"""The background bridge: serves all clients of a user, each with an engine of its own.

A client's front sends the client's input over a Unix socket, and passes the descriptor of its
output. The engines share sandboxes, sessions, the store and the servers' processes.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from bridge.atomic_files import replace_file
from bridge.background.execution import execute
from bridge.background.front import ANSWER_SECONDS, require_own_peer
from bridge.background.link import Link
from bridge.background.place import Place, UnavailableError, places, process_start, remove_dead
from bridge.cli.app import read_words
from bridge.cli.line import Invocation, with_default
from bridge.cli.serve import watched_engine
from bridge.descriptor_reader import failed_call
from bridge.errors import BridgeError, ChannelClosedError
from bridge.event_loop import background_tasks, utc_text
from bridge.runs.engine import SharedParts
from bridge.server.app import build_server
from bridge.server.stdio import STDIO, resumed_session, serve_client
from bridge.server.transports import IDLE_SECONDS, unix_listener
from bridge.settings import Settings, load

logger = logging.getLogger(__name__)


class Host:
    """Serves fronts until it is told to end, or no client uses it."""

    def __init__(self, settings: Settings, place: Place, lock: int, parts: SharedParts) -> None:
        self._settings = settings
        self._place = place
        self._lock = lock
        self._parts = parts
        self._clients: dict[Link, dict[str, Any]] = {}
        self._used_at = time.monotonic()
        self._inode = 0  # Of its record.
        self.ending = anyio.Event()

    async def serve(self) -> None:
        """Accept fronts until `ending`; then let runs end, and end all clients."""
        async with background_tasks() as tasks:
            with self._listening() as listener:
                tasks.start_soon(self._end_when_unused)
                async with background_tasks() as accepting:
                    accepting.start_soon(self._accept, listener, tasks)
                    await self.ending.wait()
            await self._drain()

    @contextmanager
    def _listening(self) -> Iterator[socket.socket]:
        """Listen at the place and keep a record there; at the end another bridge may take it."""
        place = self._place
        listener = unix_listener(Path(place.socket))
        try:
            listener.listen(socket.SOMAXCONN)
            listener.setblocking(False)
            record = {
                "pid": os.getpid(),
                "start": process_start(os.getpid()),
                "since": utc_text(time.time()),
                "began": time.monotonic(),  # The clock of all processes, which never jumps.
                "state": str(self._settings.state_dir),
            }
            replace_file(Path(place.record), json.dumps(record).encode())
            self._inode = Path(place.record).stat().st_ino
            remove_dead(place.directory)
            yield listener
        finally:
            if self._owns_place():
                for path in (place.socket, place.record):
                    with suppress(OSError):
                        Path(path).unlink()
            listener.close()
            os.close(self._lock)

    def _owns_place(self) -> bool:
        """Whether fronts find this bridge; false after a cleaner has removed its files."""
        # Without opening a file, since the bridge may have too many open.
        with suppress(FileNotFoundError):
            Path(self._place.socket).stat()
            return Path(self._place.record).stat().st_ino == self._inode
        return False

    async def _drain(self) -> None:
        """Leave each client when its requests are answered; end the runs that take too long."""
        for link in tuple(self._clients):
            link.leave()
        runs, seconds = self._parts.running_runs, self._settings.drain_seconds
        await runs.drain(seconds, lambda: bool(self._clients))

    async def _accept(self, listener: socket.socket, tasks: anyio.abc.TaskGroup) -> None:
        while True:
            await anyio.wait_readable(listener)
            try:
                connection, _ = listener.accept()
            except OSError as error:
                logger.warning("no front is accepted: %s", failed_call(error))
                await anyio.sleep(0.5)
            else:
                tasks.start_soon(self._handle, connection)

    async def _handle(self, connection: socket.socket) -> None:
        link = Link(connection)
        descriptors: list[int] = []
        try:
            require_own_peer(connection)
            with anyio.fail_after(ANSWER_SECONDS):
                said, descriptors = await link.hello()
            if self.ending.is_set():
                # The front takes another bridge.
                return
            if said.get("identity") not in (None, self._place.identity):
                link.tell(refused="the bridge in its place has other settings")
            elif "command" in said:
                self._clients[link] = {"cwd": said["cwd"], "since": utc_text(time.time())}
                await execute(link, said, descriptors, self._parts)
            elif "serve" in said:
                await self._serve_client(link, said, descriptors[0])
            else:
                link.tell(**self._report())
                if said.get("stop"):
                    self.ending.set()
        except (ChannelClosedError, UnavailableError, OSError, ValueError) as error:
            logger.info("a front has gone: %s", error)
        except Exception:
            # The boundary of one client: its errors must not end the others.
            logger.exception("serving a client failed")
        finally:
            self._clients.pop(link, None)
            self._used_at = time.monotonic()
            link.close()
            connection.close()
            for descriptor in descriptors:
                os.close(descriptor)

    async def _serve_client(self, link: Link, said: Mapping[str, Any], out: int) -> None:
        try:
            invocation = read_words(with_default(said["words"]))
            assert isinstance(invocation, Invocation)
            settings = load(invocation.flags, said["environ"])
        except BridgeError as error:
            # A bridge of its own explains the mistake to the client.
            link.tell(refused=error.message)
            return
        if settings.background == "off":
            link.tell(refused="")
            return
        self._clients[link] = {"cwd": said["cwd"], "since": utc_text(time.time())}
        link.tell(pid=os.getpid())
        session = await anyio.to_thread.run_sync(resumed_session, said["serve"], settings.state_dir)
        with link.scope:
            async with watched_engine(settings, said["cwd"], self._parts) as engine:
                server = build_server(engine, principal=STDIO, note_run=link.note_run)
                await serve_client(server, link, out, link, session)
            link.tell(status=0)

    def _report(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "since": self._place.read_record().get("since", ""),
            "clients": list(self._clients.values()),
            "runs": self._parts.running_runs.count,
            "servers": self._parts.connections.report(),
        }

    async def _end_when_unused(self) -> None:
        while self._owns_place() and not self._is_unused():  # noqa: ASYNC110 - files, time
            await anyio.sleep(1.0)
        self.ending.set()

    def _is_unused(self) -> bool:
        if self._clients:
            return False
        if time.monotonic() - self._used_at < (1.0 if self._is_superseded() else IDLE_SECONDS):
            return False
        return not (self._parts.running_runs.count or self._parts.sessions.open)

    def _is_superseded(self) -> bool:
        """Whether a later bridge has the same state directory: an upgrade, or other settings."""
        own = self._place.read_record()
        others = [each.read_record() for each in places(self._place.directory) if each.process()]
        return any(
            each.get("state") == own.get("state") and each.get("began", 0) > own.get("began", 0)
            for each in others
        )
