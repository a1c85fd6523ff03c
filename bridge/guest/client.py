"""The worker's end of the channel: calls out, replies in.

Owns correlation. One thread reads; callers in any event loop and any thread write under a lock and
wait in their own loop, so calls never wait for each other. The thread starts with the first call:
programs that call nothing stay single-threaded, and may fork as they like.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import re
import socket
import threading
import warnings
from typing import Any, Dict, Mapping, Optional, Tuple

from bridge.guest.values import MCPError, Result, error_from_wire
from bridge.guest.wire import (
    MAX_FRAME_BYTES,
    MAX_VALUES,
    Call,
    Cancel,
    LineDecoder,
    count_values,
    encode,
)

RECEIVE_BYTES = 256 * 1024
"""Bytes taken from the socket at a time."""

_REPLY_HEAD = re.compile(rb'{"type":"reply","id":(\d+),')
"""How the host's replies begin: enough to tell whose they are when the rest cannot be read."""

_Waiter = Tuple[asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Client:
    """Sends calls and hands each its reply."""

    def __init__(self, fd: int, frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._socket = socket.socket(fileno=fd)
        self._frame_bytes = frame_bytes
        self._ids = itertools.count(1)
        self._pid = os.getpid()
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: Dict[int, _Waiter] = {}
        self._reader: Optional[threading.Thread] = None
        self._closed = ""
        os.register_at_fork(after_in_child=self._leave)

    async def call(self, method: str, params: Mapping[str, Any], subject: str) -> Any:
        """Ask the host and return its value. `subject` names the call in errors.

        Raises:
            MCPError: The host refused, or is gone.
            ValueError: The call is too large to send.
        """
        if os.getpid() != self._pid:
            message = (
                "%s was called in a child process; only the program's first process is connected. "
                "Make the call there and pass the value on." % subject
            )
            raise MCPError(message, kind="channel")
        loop = asyncio.get_running_loop()
        future: "asyncio.Future[Any]" = loop.create_future()
        call_id = next(self._ids)
        line = encode(Call(id=call_id, method=method, params=params))
        if len(line) > self._frame_bytes:
            message = "the arguments of %s take %s bytes as JSON; the limit is %s"
            raise ValueError(message % (subject, f"{len(line):,}", f"{self._frame_bytes:,}"))
        if count_values(line) > MAX_VALUES:
            message = "the arguments of %s hold more than %s values; pass them in several calls"
            raise ValueError(message % (subject, f"{MAX_VALUES:,}"))
        self._register(call_id, loop, future)
        try:
            self._write(line)
            return await future
        finally:
            with self._lock:
                unanswered = self._waiting.pop(call_id, None)
            if unanswered is not None and future.cancelled():
                # The host may stop the call; a reply on its way will find nobody waiting.
                with contextlib.suppress(MCPError):
                    self._write(encode(Cancel(id=call_id)))

    def send_last(self, frame: Any) -> None:
        """Send the frame that ends the program, even after a line that the program tore."""
        self._write(b"\n" + encode(frame))

    def _register(
        self, call_id: int, loop: asyncio.AbstractEventLoop, future: "asyncio.Future[Any]"
    ) -> None:
        with self._lock:
            if self._closed:
                raise MCPError(self._closed, kind="channel")
            self._waiting[call_id] = (loop, future)
            if self._reader is None:
                # From here on a fork makes newer Pythons warn, about a thread that is ours.
                warnings.filterwarnings(
                    "ignore", message=r".*multi-threaded, use of fork", category=DeprecationWarning
                )
                self._reader = threading.Thread(target=self._read, name="mcp-replies", daemon=True)
                self._reader.start()

    def _write(self, line: bytes) -> None:
        try:
            with self._writing:
                self._socket.sendall(line)
        except OSError as error:
            self._close("the connection to the bridge is closed (%s)" % error)
            raise MCPError(self._closed, kind="channel") from None

    def _read(self) -> None:
        decoder = LineDecoder(MAX_FRAME_BYTES)
        reason = "the bridge closed the connection"
        try:
            while True:
                data = self._socket.recv(RECEIVE_BYTES)
                if not data:
                    break
                for line in decoder.feed(data):
                    self._deliver(line)
        except Exception as error:
            # Whatever it is (no memory for a reply, say), nobody may wait for ever.
            reason = "the connection to the bridge broke: %s" % (str(error) or type(error).__name__)
        self._close(reason)

    def _deliver(self, line: bytes) -> None:
        try:
            # Straight into `Result`: a walk over a large value afterwards would take long.
            reply = json.loads(line, object_hook=Result)
        except (RecursionError, MemoryError) as problem:
            head = _REPLY_HEAD.match(line)
            if head is None:
                raise
            text = "the answer cannot be held here: %s" % (str(problem) or type(problem).__name__)
            reply = {"type": "reply", "id": int(head.group(1)), "error": {"message": text}}
        if not isinstance(reply, dict) or reply.get("type") != "reply":
            return
        with self._lock:
            waiter = self._waiting.pop(reply.get("id", -1), None)
        if waiter is None:
            return
        error = reply.get("error")
        outcome = reply.get("value") if error is None else error_from_wire(error)
        _resolve(waiter, outcome)

    def _close(self, reason: str) -> None:
        with self._lock:
            self._closed = self._closed or reason
            waiters = list(self._waiting.values())
            self._waiting.clear()
        for waiter in waiters:
            _resolve(waiter, MCPError(reason, kind="channel"))

    def _leave(self) -> None:
        """In a forked child: let go of the channel, which is the parent's."""
        # The fork may have come while a thread held them that the child does not have.
        self._writing = threading.Lock()
        self._lock = threading.Lock()
        self._waiting = {}
        if self._socket.fileno() >= 0:
            self._socket.close()


def _resolve(waiter: _Waiter, outcome: Any) -> None:
    loop, future = waiter

    def settle() -> None:
        if future.done():
            return
        if isinstance(outcome, MCPError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    try:
        loop.call_soon_threadsafe(settle)
    except RuntimeError:
        # The loop has ended, and whoever waited in it.
        return
