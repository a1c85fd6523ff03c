"""What a client may write to the bridge's stdin, through the real console script."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.shared.message import SessionMessage
from mcp.types import JSONRPCNotification

from bridge.descriptor_reader import input_of
from bridge.server.content import RECORD_KEY
from bridge.server.stdio import MAX_MESSAGE_BYTES, StdinMessages, StdoutMessages
from bridge.upstream.framing import MAX_VALUES
from tests.server.pipe_rig import hello

COMMAND = Path(sys.executable).with_name("mcp-code-bridge")
PATIENCE = 120
"""Starting the bridge imports the SDK, which is slow on a busy machine."""


class RawClient:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    def send(self, line: str | bytes) -> None:
        self.stdin.write((line.encode() if isinstance(line, str) else line) + b"\n")
        self.stdin.flush()

    def answer(self, request_id: int | str | None) -> dict[str, Any]:
        while True:
            message: dict[str, Any] = json.loads(self.stdout.readline())
            if "method" not in message and message["id"] == request_id:
                return message


def environ(home: Path) -> dict[str, str]:
    return {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "MCP_BRIDGE_BACKGROUND": "off",
        "MCP_BRIDGE_RUNTIME": "/no/such/podman",
        "MCP_BRIDGE_PROJECT_SERVERS": "none",
        "MCP_BRIDGE_WARM": "0",
    }


@contextmanager
def started(home: Path) -> Iterator[RawClient]:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [str(COMMAND)], env=environ(home), cwd=home, stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        patience = threading.Timer(PATIENCE, process.kill)
        patience.start()
        client = RawClient(process)
        try:
            client.send(HELLO)
            assert "result" in client.answer(0)
            client.send('{"jsonrpc":"2.0","method":"notifications/initialized"}')
            yield client
        finally:
            patience.cancel()
            process.kill()


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    with started(tmp_path_factory.mktemp("bridge")) as client:
        yield client


HELLO = json.dumps(hello("2025-06-18"))


def call(request_id: int | str, code: str) -> str:
    return (
        f'{{"jsonrpc":"2.0","id":{json.dumps(request_id)},"method":"tools/call",'
        f'"params":{{"name":"run_python","arguments":{{"code":{code}}}}}}}'
    )


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize(
    "code", [rb"'\ud800'", rb"'\udc00 \ud83d\ude00'", rb"'\\ud800 \ud800'", b"'\xff\xfe'"]
)
def test_lone_surrogates_and_bytes_that_are_not_utf8_are_repaired(
    client: RawClient, code: bytes
) -> None:
    client.send(call(1, '"CODE"').encode().replace(b"CODE", code))
    answer = client.answer(1)
    assert answer["result"]["_meta"][RECORD_KEY]["reason"] == "engine"


@pytest.mark.parametrize(
    ("line", "request_id", "code", "complaint"),
    [
        (call(7, DEEP), 7, -32700, "recursion limit"),
        (call("seven", DEEP), "seven", -32700, "recursion limit"),
        (
            f'{{"method":"ping","params":{DEEP},"jsonrpc":"2.0","id":7}}',
            7,
            -32700,
            "recursion limit",
        ),
        ('{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{', 7, -32700, "EOF"),
        ('{"jsonrpc":"2.0","id":7,"method":7}', 7, -32600, "not a JSON-RPC"),
        (call(7, '"' + "x" * MAX_MESSAGE_BYTES + '"'), 7, -32600, str(MAX_MESSAGE_BYTES)),
        (call(7, "[" + "0," * MAX_VALUES + "0]"), 7, -32600, f"{MAX_VALUES:,}"),
    ],
)
def test_a_request_that_cannot_be_read_is_answered_with_an_error(
    client: RawClient, line: str, request_id: int | str, code: int, complaint: str
) -> None:
    client.send(line)
    error = (client.answer(request_id))["error"]
    assert error["code"] == code
    assert complaint in error["message"]
    client.send('{"jsonrpc":"2.0","id":8,"method":"ping"}')
    assert (client.answer(8))["result"] == {}


def test_lines_that_ask_for_nothing_are_passed_over(tmp_path: Path) -> None:
    with started(tmp_path) as client:
        for line in ("", "noise", "[]", '{"jsonrpc":"2.0","id":7,"result":7}'):
            client.send(line)
        client.send('{"jsonrpc":"2.0","id":8,"error":{"code":-32700,"message":"x"}}')
        client.send('{"jsonrpc":"2.0","id":9,"method":"ping"}')
        first = client.stdout.readline()
        assert json.loads(first) == {"jsonrpc": "2.0", "id": 9, "result": {}}


def test_the_last_line_needs_no_newline_and_the_end_ends_the_bridge(tmp_path: Path) -> None:
    with started(tmp_path) as client:
        client.stdin.write(call(5, DEEP).encode())
        client.stdin.close()
        assert (client.answer(5))["error"]["code"] == -32700
        assert client.process.wait() == 0


def test_a_signal_ends_the_bridge_while_it_waits_for_a_line(tmp_path: Path) -> None:
    with started(tmp_path) as client:
        client.process.send_signal(signal.SIGTERM)
        assert client.process.wait() == 128 + signal.SIGTERM


def test_a_client_that_goes_away_during_an_answer_leaves_no_traceback(tmp_path: Path) -> None:
    with started(tmp_path) as client:
        client.stdout.close()
        client.send(call(1, DEEP))
        client.stdin.close()
        assert client.process.wait() == 1
        lines = client.stderr.read().decode().splitlines()
        assert len(lines) == 1
        assert "cannot be parsed" in lines[0]
    # The bridge also ends if the client keeps stdin open.
    with started(tmp_path) as client:
        client.stdout.close()
        client.send('{"jsonrpc":"2.0","id":1,"method":"tools/list"}')
        assert client.process.wait() == 1
        assert client.stderr.read() == b""


def test_what_the_bridge_starts_does_not_eat_the_clients_lines() -> None:
    """Descriptor 0 is inherited; while it is claimed it reads as empty, and afterwards as ever."""
    program = """
import os, subprocess
from bridge.server.content import RECORD_KEY
from bridge.server.stdio import claimed
with claimed(0) as fd:
    print(subprocess.run(["cat"], capture_output=True).stdout, os.read(fd, 3))
print(os.read(0, 3))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], input=b"onetwo", capture_output=True, check=True
    )
    assert done.stdout == b"b'' b'one'\nb'two'\n"


@pytest.mark.parametrize("text", ["", HELLO + "\n"])
def test_a_file_can_stand_in_for_a_client(tmp_path: Path, text: str) -> None:
    path = tmp_path / "lines"
    path.write_text(text)
    with path.open() as stdin:
        options: dict[str, Any] = {"env": environ(tmp_path), "cwd": tmp_path, "timeout": PATIENCE}
        done = subprocess.run(
            [str(COMMAND)], stdin=stdin, capture_output=True, check=True, **options
        )
    # Whether an answer still gets out once the end was seen is the SDK's decision.
    assert done.stderr == b""


LARGE = 300_000
"""Several times what a pipe holds."""


def message(name: str, size: int = 0) -> SessionMessage:
    params = {"filler": "x" * size}
    return SessionMessage(JSONRPCNotification(jsonrpc="2.0", method=name, params=params))


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    try:
        yield reading, writing
    finally:
        os.close(reading)
        os.close(writing)


async def lines(fd: int, count: int) -> list[str]:
    data = b""
    while data.count(b"\n") < count:
        await anyio.wait_readable(fd)
        data += os.read(fd, 65536)
    return [json.loads(line)["method"] for line in data.splitlines()]


async def test_large_messages_of_two_senders_come_whole_and_one_after_the_other() -> None:
    with pipe() as (reading, writing), anyio.fail_after(PATIENCE):
        writer = StdoutMessages(writing, anyio.CancelScope())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, message("one", LARGE))
            tasks.start_soon(writer.send, message("two", LARGE))
            assert sorted(await lines(reading, 2)) == ["one", "two"]


async def test_a_descriptor_above_1023_takes_messages() -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))
    with pipe() as (reading, writing), anyio.fail_after(PATIENCE):
        high = fcntl.fcntl(writing, fcntl.F_DUPFD, 1500)
        await StdoutMessages(high, anyio.CancelScope()).send(message("one"))
        assert await lines(reading, 1) == ["one"]
        os.close(high)
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


async def test_what_a_cancelled_sender_left_goes_out_before_the_next_message() -> None:
    with pipe() as (reading, writing), anyio.fail_after(PATIENCE):
        writer = StdoutMessages(writing, anyio.CancelScope())
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, message("one", LARGE))
            await anyio.wait_readable(reading)
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(writer.send, message("two"))
            assert await lines(reading, 2) == ["one", "two"]


def test_what_is_printed_meanwhile_goes_to_stderr() -> None:
    program = """
import os, subprocess
from bridge.server.stdio import claimed
print("before")
with claimed(1) as fd:
    print("inside")
    subprocess.run(["echo", "child"])
    os.write(fd, b"message\\n")
print("after")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout == b"before\nmessage\nafter\n"
    assert sorted(done.stderr.split()) == [b"child", b"inside"]


async def test_a_reader_that_is_closed_while_it_waits_has_nothing_to_tell(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pipe() as (reading, writing):
        messages = StdinMessages(input_of(reading), StdoutMessages(writing, anyio.CancelScope()))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(messages.aclose)
            with pytest.raises(anyio.EndOfStream):
                await messages.receive()
    assert caplog.text == ""
