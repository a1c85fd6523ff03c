"""Plays host to a real guest: the bootstrap in a subprocess, frames over its stdin and stdout."""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import subprocess
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from bridge.guest.protocol import wire
from bridge.guest.protocol.wire import Call, Exited, GuestFrame, Hello, HostFrame, Output
from bridge.sandbox.bundle import BOOTSTRAP_ARGV, bundle_bytes
from tests.guest.finished import Finished
from tests.interpreters import require

PATIENCE = 120.0
"""Seconds until a test that waits for a guest gives up; machines that run tests are slow."""

PIPE_BYTES = 65536
"""Capacity of a pipe on Linux."""

VERSIONS = (
    "3.9",
    *(pytest.param(version, marks=pytest.mark.full) for version in ("3.10", "3.11", "3.12")),
    "3.13",
)
"""Python versions; `make test-all` includes those between the oldest and the newest."""

ECHO_SERVER: dict[str, Any] = {
    "name": "git-hub",
    "alias": "git_hub",
    "description": "Repositories",
    "tools": [
        {
            "name": "echo",
            "alias": "echo",
            "description": "Return the arguments.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "What to say."},
                    "from": {"type": "integer"},
                    "x-y": {"type": "string"},
                },
                "required": ["text"],
            },
        },
        {"name": "create-issue", "alias": "create_issue", "description": "", "inputSchema": {}},
    ],
}

DISCOVERED = [
    {"name": "git-hub", "alias": "git_hub", "description": "Repositories", "loaded": True},
    {"name": "mail", "alias": "mail", "description": "Letters", "loaded": False},
]

Answer = Callable[["Guest", Call], None]


def echo(guest: Guest, call: Call) -> None:
    guest.reply(call.id, {"json": call.params.get("arguments")})


class Guest:
    """One guest process, from its start to its end."""

    def __init__(self, command: tuple[str, ...], cwd: Path) -> None:
        self.cwd = cwd
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env={"PATH": os.environ["PATH"], "HOME": str(cwd), "LANG": "C"},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin = self._process.stdin.fileno()
        self._stdout = self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        self._decoder = wire.LineDecoder()
        self._lines: deque[bytes] = deque()
        self._unsent = bytearray()
        self.write(bundle_bytes())

    @property
    def pid(self) -> int:
        return self._process.pid

    def hello(self) -> Hello:
        frame = self.receive()
        assert isinstance(frame, Hello), (frame, self.diagnostics())
        return frame

    def write(self, data: bytes) -> None:
        self._unsent += data
        self._flush()

    def send(self, frame: HostFrame) -> None:
        self.write(wire.encode(frame))

    def reply(self, call_id: int, value: Any = None, error: dict[str, Any] | None = None) -> None:
        self.send(wire.Reply(id=call_id, value=value, error=error))

    @property
    def pending(self) -> tuple[bytes, ...]:
        return tuple(self._lines)

    def receive(self) -> GuestFrame | None:
        line = self.receive_line()
        return None if line is None else wire.decode_guest_frame(line)

    def receive_line(self) -> bytes | None:
        deadline = time.monotonic() + PATIENCE
        while not self._lines:
            if self._stdout in self._poll(self._stdout, deadline):
                data = os.read(self._stdout, 1 << 18)
                if not data:
                    return None
                self._lines.extend(self._decoder.feed(data))
        return self._lines.popleft()

    def flush(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._unsent:
            self._poll(None, deadline)

    def _poll(self, readable: int | None, deadline: float) -> set[int]:
        poller = select.poll()
        if readable is not None:
            poller.register(readable, select.POLLIN)
        if self._unsent:
            poller.register(self._stdin, select.POLLOUT)
        left = deadline - time.monotonic()
        assert left > 0, "the guest neither reads nor writes"
        ready = {fd for fd, _ in poller.poll(left * 1000)}
        if self._stdin in ready:
            self._flush()
        return ready

    def _flush(self) -> None:
        while self._unsent:
            try:
                written = os.write(self._stdin, self._unsent[: 1 << 18])
            except BlockingIOError:
                return
            except BrokenPipeError:
                self._unsent.clear()
                return
            del self._unsent[:written]

    def start(self, code: str, **fields: Any) -> None:
        limits = {
            "timeout": PATIENCE,
            "output_bytes": 65536,
            "result_bytes": 1 << 20,
            "frame_bytes": 64 << 20,
            **fields.pop("limits", {}),
        }
        fields.setdefault("servers", [ECHO_SERVER])
        fields.setdefault("discovered", DISCOVERED)
        self.send(wire.Run(code=code, limits=limits, **fields))

    def finish(self, answer: Answer = echo) -> Finished:
        finished = Finished()
        while (frame := self.receive()) is not None:
            assert not isinstance(frame, Hello | wire.Pong), frame
            finished.frames.append(frame)
            if isinstance(frame, Output):
                text = getattr(finished, frame.stream) + frame.data.decode("utf-8", "replace")
                setattr(finished, frame.stream, text)
                if frame.skipped:
                    finished.skipped[frame.stream] = frame.skipped
            elif isinstance(frame, Call):
                answer(self, frame)
            elif isinstance(frame, Exited) and frame.kept:
                return finished  # The session continues.
        finished.diagnostics = self.diagnostics()
        finished.status = self._process.wait(PATIENCE)
        return finished

    def run(self, code: str, answer: Answer = echo, **fields: Any) -> Finished:
        self.hello()
        self.start(code, **fields)
        return self.finish(answer)

    async def fill_pipe(self) -> None:
        with anyio.fail_after(PATIENCE):
            while self._waiting_bytes() < PIPE_BYTES * 3 // 4:  # noqa: ASYNC110 - a pipe tells no one
                await anyio.sleep(0.01)

    def _waiting_bytes(self) -> int:
        waiting = array.array("i", [0])
        fcntl.ioctl(self._stdout, termios.FIONREAD, waiting)
        return waiting[0]

    def hang_up(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    def wait(self, seconds: float = PATIENCE) -> int:
        return self._process.wait(seconds)

    def diagnostics(self) -> str:
        assert self._process.stderr is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE)
        if self._process.stderr.closed:
            return ""
        os.set_blocking(self._process.stderr.fileno(), False)
        data = self._process.stderr.read()
        return (data or b"").decode(errors="replace")

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self._process.wait(PATIENCE)


@pytest.fixture(params=["3.9", pytest.param("3.13", marks=pytest.mark.full)])
def python(request: pytest.FixtureRequest) -> str:
    return require(request.param)


@pytest.fixture(params=VERSIONS)
def every_python(request: pytest.FixtureRequest) -> str:
    return require(request.param)


MakeGuest = Callable[..., Guest]


@pytest.fixture
def make_guest(tmp_path: Path) -> Iterator[MakeGuest]:
    made: list[Guest] = []

    def make(
        interpreter: str = sys.executable,
        *,
        prefix: tuple[str, ...] = (),
        bootstrap: str = BOOTSTRAP_ARGV[-1],
    ) -> Guest:
        guest = Guest((*prefix, interpreter, *BOOTSTRAP_ARGV[1:-1], bootstrap), tmp_path)
        made.append(guest)
        return guest

    yield make
    for guest in made:
        guest.close()


@pytest.fixture
def guest(make_guest: MakeGuest) -> Guest:
    return make_guest()


@pytest.fixture
def guest_on(make_guest: MakeGuest, python: str) -> Guest:
    return make_guest(python)


class Session:
    """Runs programs one after another in one guest."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        self._number = 0
        guest.hello()

    def run(self, code: str, **fields: Any) -> Finished:
        self.start(code, **fields)
        return self.guest.finish()

    def start(self, code: str, **fields: Any) -> None:
        self._number += 1
        self.guest.start(code, session=self._number, **fields)


@pytest.fixture
def session(guest: Guest) -> Session:
    return Session(guest)


UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc")


@pytest.fixture
def init_guest(make_guest: MakeGuest) -> Guest:
    works = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
    if not works:
        pytest.skip("this user cannot make a process namespace")
    return make_guest(prefix=UNSHARE)
