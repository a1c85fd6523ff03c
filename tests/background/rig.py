"""A user whose clients share a background bridge, and clients that speak MCP over pipes."""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import termios
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bridge.background_instance import Instance, directory_of, instances
from bridge.cli.background import ask_all
from tests.processes import processes

PATIENCE = 60.0  # Seconds for an answer on a machine that does other things too.

HOLD = "print(await mcp_keeper.slow(text='x'))"

RECORDER = Path(__file__).parents[1] / "fakes" / "servers" / "recorder.py"


@dataclass
class Person:
    """A user with a home of its own.

    Attributes:
        project: Where clients start, and where the recorder servers write what they were asked.
    """

    home: Path
    variables: dict[str, str] = field(default_factory=dict)
    project: Path = Path()

    def __post_init__(self) -> None:
        self.project = self.home / self.project / "project"
        (self.home / "run").mkdir(parents=True, mode=0o700, exist_ok=True)
        self.project.mkdir(parents=True)

    @property
    def environ(self) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            "MCP_BRIDGE_RUNTIME": "bubblewrap",
            "MCP_BRIDGE_WARM": "0",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **self.variables,
        }

    @property
    def calls(self) -> list[dict[str, Any]]:
        """What the recorder servers were asked."""
        log = self.project / "calls"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def add_servers(self, *names: str, **entry: Any) -> None:
        server = {"command": sys.executable, "args": [str(RECORDER), str(self.project / "calls")]}
        entries = {name: {**server, **entry} for name in names}
        (self.home / ".claude.json").write_text(json.dumps({"mcpServers": entries}))

    def log(self) -> str:
        """What the background bridges have logged."""
        path = self.home / ".local/state/mcp-code-bridge/background.log"
        return path.read_text() if path.exists() else ""

    def status(self) -> dict[str, Any]:
        """What the only background bridge says of itself."""
        [found] = ask_all(self.environ)
        return found

    def instances(self) -> list[Instance]:
        return list(instances(directory_of(self.environ)))

    def bridges(self) -> list[int]:
        """The ids of the running background bridges."""
        return [number for each in self.instances() if (number := each.process()) is not None]

    def processes(self, word: str = "") -> list[int]:
        """The ids of this user's processes with a word in their command lines, or recorders."""
        word = word or f"{RECORDER} {self.project / 'calls'}"
        return list(processes(word, variable=f"HOME={self.home}"))

    def client(self, cwd: Path | None = None, **environ: str) -> Client:
        return Client(self, cwd or self.project, environ)

    def command(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bridge", *words],
            env={**self.environ, **environ},
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )


@contextmanager
def person(home: Path, **variables: str) -> Iterator[Person]:
    """Yield a user; at the end no process of theirs is left."""
    somebody = Person(home, variables)
    try:
        yield somebody
    finally:
        for number in somebody.processes("bridge.background"):
            os.kill(number, signal.SIGCONT)
            os.kill(number, signal.SIGTERM)
        # A bridge removes its record first, and then ends its sandboxes.
        wait_for(lambda: not somebody.processes("bridge.background"))
        # pytest shows it for a test that fails.
        print(somebody.log())


def wait_for(condition: Callable[[], object]) -> None:
    """Return once a condition holds; fail if it does not in time."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


class Client:
    """An MCP client that started the bridge as clients do."""

    def __init__(self, owner: Person, cwd: Path, environ: Mapping[str, str]) -> None:
        self._unread = b""
        self._count = 0
        self._open = set[int]()
        self.notes: list[dict[str, Any]] = []  # Notifications and requests of the bridge.
        self.answers: dict[int, dict[str, Any]] = {}  # Received before they were waited for.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bridge"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**owner.environ, **environ},
            cwd=cwd,
            bufsize=0,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self.process.wait()

    def send(self, **message: Any) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def begin(self, method: str, **params: Any) -> int:
        self._count += 1
        self._open.add(self._count)
        self.send(id=self._count, method=method, params=params)
        return self._count

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        return self.answer(self.begin(method, **params))

    def answer(self, number: int) -> dict[str, Any]:
        """Wait for the response to a request; no request may have two, or none have one.

        A bridge that is lost just after a response leaves a second one, which clients ignore: an
        error, or the second answer to `initialize`.
        """
        while number not in self.answers:
            message = self.receive()
            if "method" in message:
                self.notes.append(message)
                continue
            lost = "ended before it had answered" in str(message.get("error"))
            if (lost or message["id"] == 1) and message["id"] not in self._open:
                continue
            assert message["id"] in self._open, message
            self._open.remove(message["id"])
            self.answers[message["id"]] = message
        return self.answers.pop(number)

    def receive(self) -> dict[str, Any]:
        """Return the next message; a line that is none has the method "torn"."""
        while b"\n" not in self._unread:
            self.read(1 << 20)
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            message: dict[str, Any] = json.loads(line)
        except ValueError:
            message = {"method": "torn"}
        return message

    def waiting_bytes(self, *, sent: bool = False) -> int:
        """How many bytes wait in the pipe of the output, or of what was sent."""
        stream = self.process.stdin if sent else self.process.stdout
        assert stream is not None
        count = array("i", [0])
        fcntl.ioctl(stream, termios.FIONREAD, count)
        return count[0]

    def read(self, most: int) -> None:
        """Wait for output, and read some of it."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        assert ready, "the bridge says nothing"
        data = os.read(self.process.stdout.fileno(), most)
        assert data, f"the bridge has ended: {self.end()}"
        self._unread += data

    def initialize(self, **capabilities: Any) -> Client:
        self.ask(
            "initialize",
            protocolVersion="2025-11-25",
            capabilities=capabilities,
            clientInfo={"name": "tester", "version": "1"},
        )
        self.send(method="notifications/initialized")
        return self

    def begin_run(self, code: str, **arguments: Any) -> int:
        return self.begin("tools/call", name="run_python", arguments={"code": code, **arguments})

    def run(self, code: str, **arguments: Any) -> str:
        """Return the text of a run's result."""
        return text_of(self.answer(self.begin_run(code, **arguments)))

    def end(self) -> tuple[int, str]:
        """Close the input; return the exit status and what was written to stderr."""
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        status = self.process.wait(PATIENCE)
        return status, self.process.stderr.read().decode()


def text_of(answer: dict[str, Any]) -> str:
    if "error" in answer:
        return str(answer["error"]["message"])
    return "\n".join(block.get("text", "") for block in answer["result"]["content"])
