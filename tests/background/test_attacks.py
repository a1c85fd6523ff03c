"""Fronts that misbehave, and losses at bad moments, cost no client its session."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from bridge.background_instance import Instance, instance_for, process_start
from tests.background.rig import PATIENCE, RECORDER, Person, wait_for

INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "raw", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


class RawFront:
    """A front whose input a test writes itself. The bridge must run."""

    def __init__(self, user: Person, **session: Any) -> None:
        [instance] = user.instances()
        self._link = socket.socket(socket.AF_UNIX)
        self._link.settimeout(PATIENCE)
        self._link.connect(instance.socket)
        self._input, self._output = os.pipe()
        self._unread = self._untold = b""
        hello = {"words": [], "environ": user.environ, "cwd": "/", "serve": session}
        self.hello(json.dumps(hello).encode() + b"\n", [self._output])
        assert "pid" in self.told()

    def __enter__(self) -> RawFront:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
        os.close(self._input)
        os.close(self._output)

    def hello(self, data: bytes, descriptors: Sequence[int]) -> None:
        sent = socket.send_fds(self._link, [data], descriptors)
        self._link.sendall(data[sent:])

    def send(self, *messages: dict[str, Any]) -> int:
        return self.write(b"".join(json.dumps(each).encode() + b"\n" for each in messages))

    def write(self, data: bytes) -> int:
        """Write client input; return its size."""
        self._link.sendall(data)
        return len(data)

    def end_input(self) -> None:
        self._link.shutdown(socket.SHUT_WR)

    def told(self) -> dict[str, Any]:
        while b"\n" not in self._untold:
            data = self._link.recv(1 << 20)
            assert data, "the bridge has left"
            self._untold += data
        line, _, self._untold = self._untold.partition(b"\n")
        facts: dict[str, Any] = json.loads(line)
        return facts

    def take_up(self, size: int) -> None:
        """Wait until the bridge has taken this much input, and no more."""
        while size > 0:
            size -= self.told().get("taken", 0)
        assert size == 0

    def receive(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            assert select.select([self._input], [], [], PATIENCE)[0], "the bridge says nothing"
            self._unread += os.read(self._input, 1 << 16)
        line, _, self._unread = self._unread.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message


def ping_request(number: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": "ping"}


@pytest.fixture
def running(user: Person) -> Person:
    """A user whose background bridge runs."""
    with user.client() as client:
        client.initialize()
    return user


def descriptors_of(number: int) -> list[str]:
    return sorted(path.name for path in Path(f"/proc/{number}/fd").iterdir())


def test_a_strange_hello_costs_the_bridge_no_descriptor(running: Person) -> None:
    [number], [instance] = running.bridges(), running.instances()
    wait_for(lambda: not running.status()["clients"])
    before = descriptors_of(number)
    for said in (b"[]", b"7", b'{"serve": {}}', b'{"serve": {}', b"{}", b"\xff", b"x" * 9_000_000):
        for count in (0, 1, 3, 4, 40):
            with socket.socket(socket.AF_UNIX) as link, suppress(ConnectionError):
                link.connect(instance.socket)
                rest = said[socket.send_fds(link, [said], [2] * count) :]
                link.sendall(rest + b"\n")
                link.shutdown(socket.SHUT_WR)
                while link.recv(1000):
                    pass
    wait_for(lambda: len(descriptors_of(number)) <= len(before))
    assert running.bridges() == [number]


STRANGE_LINES = {
    "blank": b"\n",
    "crlf": b"\r\n",
    "message and crlf": json.dumps(ping_request(2)).encode() + b"\r\n",
    "batch": b"[%b]\n" % json.dumps(ping_request(2)).encode(),
    "bytes in a message": b'{"jsonrpc": "2.0", "id": 2, "method": "\xff\xfe"}\n',
    "bytes": b"\xff\xfe\n",
    "no id": json.dumps(ping_request(None)).encode() + b"\n",
    "negative id": json.dumps(ping_request(-(2**70))).encode() + b"\n",
    "large": b'{"jsonrpc": "2.0", "id": 2, "method": "x", "params": {"a": "%b"}}\n'
    % (b"x" * 41_000_000),
    "oversize": b'{"jsonrpc": "2.0", "id": 2, "method": "x", "params": {"a": "%b"}}\n'
    % (b"x" * 49_000_000),
    "many": b"\n" * 5_000,
}


def test_each_byte_of_input_counts_as_taken_once(running: Person) -> None:
    for data in STRANGE_LINES.values():
        with RawFront(running) as front:
            size = front.send(INITIALIZE, INITIALIZED) + front.write(data)
            size += front.send(ping_request("last"))
            while front.receive().get("id") != "last":
                pass
            # After many lines, more than a socket holds waits in the bridge.
            front.take_up(size)


def test_a_line_without_an_end_is_answered_when_the_input_ends(running: Person) -> None:
    with RawFront(running) as front:
        front.send(INITIALIZE, INITIALIZED)
        front.write(json.dumps(ping_request(2)).encode())
        front.end_input()
        assert [front.receive()["id"] for _ in range(2)] == [1, 2]
        while (status := front.told().get("status")) is None:
            pass
        assert status == 0


@pytest.mark.parametrize("loss", [signal.SIGTERM, signal.SIGKILL])
def test_a_request_that_was_cancelled_is_open_no_more(user: Person, loss: int) -> None:
    user.add_servers("keeper")
    with user.client() as client:
        held = client.initialize().begin_run("await mcp_keeper.slow(text='x')")
        wait_for(lambda: [each["tool"] for each in user.calls] == ["slow"])
        client.send(method="notifications/cancelled", params={"requestId": held})
        wait_for(lambda: not user.status()["runs"])
        [number] = user.bridges()
        os.kill(number, loss)
        wait_for(lambda: not Path(f"/proc/{number}/cwd").exists())
        assert "5" in client.run("print(2 + 3)")
        assert not client.answers
    # An open request would delay the end.
    assert "s are over" not in user.log()


def test_a_request_that_is_cancelled_at_once_is_reported_as_open_once(running: Person) -> None:
    call = {"name": "run_python", "arguments": {"code": "print(1)"}}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
    with RawFront(running, lines=[json.dumps(INITIALIZE)], open=[], torn=False) as front:
        request = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": call}
        front.send(INITIALIZED, request, cancel, ping_request(8))
        seen = []
        while {"ended": "8"} not in seen:
            seen.append(front.told())
    assert [each["begun"] for each in seen if "begun" in each] == ["7", "8"]


def test_input_that_a_lost_bridge_had_taken_is_not_given_to_the_next_one(user: Person) -> None:
    instance = instance_for([], user.environ)
    lock = instance.hold_lock()
    assert lock is not None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(instance.socket)
        listener.listen()
        with user.client() as client:
            first, _ = listener.accept()
            first.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            first.sendall(b"{}\n")
            assert client.process.stdin is not None
            os.set_blocking(client.process.stdin.fileno(), False)
            size = 0
            # Until the front has more to send than the bridge reads.
            while written := client.process.stdin.write(b"x" * 65_536):
                size += written
                select.select([], [client.process.stdin], [], 1.0)
            client.process.send_signal(signal.SIGSTOP)
            # More than the front reads at once; it also has more to send.
            waiting = client.waiting_bytes(sent=True)
            taken = b'{"taken":%d,"begun":"1"}\n' % (size - waiting)
            first.sendall(b'{"taken":0}\n' * 7_000 + taken)
            first.close()
            client.process.stdin.close()
            client.process.send_signal(signal.SIGCONT)
            second, _ = listener.accept()
            with second:
                second.settimeout(PATIENCE)
                second.sendall(b"{}\n")
                data = b""
                while piece := second.recv(100_000):
                    data += piece
                hello, _, rest = data.partition(b"\n")
                assert json.loads(hello)["serve"]["open"] == [["1", ""]]
                assert rest == b"x" * waiting
    os.close(lock)


def test_a_late_answer_to_a_lost_bridges_question_answers_no_other_question(user: Person) -> None:
    user.add_servers("keeper", args=[str(RECORDER.with_name("inquirer.py"))])
    with user.client() as client:
        client.initialize()
    form = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
    code = f"print(await mcp_keeper.ask(method='elicitation/create', params={form}))"
    lines = [json.dumps(INITIALIZE), json.dumps(INITIALIZED)]
    with RawFront(user, lines=lines, open=[], torn=False) as front:
        run = {"name": "run_python", "arguments": {"code": code}}
        front.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": run})
        while (question := front.receive())["method"] != "elicitation/create":
            pass
        for stale in (1, 2, "1"):
            front.send({"jsonrpc": "2.0", "id": stale, "result": {"action": "accept"}})
        answer = {"action": "decline"}
        front.send({"jsonrpc": "2.0", "id": question["id"], "result": answer})
        assert "decline" in str(front.receive())


def test_neither_a_client_that_never_reads_nor_a_front_that_is_killed_disturbs_another(
    user: Person,
) -> None:
    with user.client() as deaf, user.client() as other:
        deaf.initialize()
        for _ in range(20):
            deaf.begin_run("print('x' * 8000)")
        wait_for(lambda: deaf.waiting_bytes() > 54_000)
        assert "9" in other.initialize().run("print(4 + 5)")
        deaf.write(b'{"jsonrpc": "2.0", "id": 99, "method": "tools/ca' + b"x" * 200_000_000)
        memory = Path(f"/proc/{deaf.process.pid}/status").read_text()
        assert int(memory.partition("VmHWM:")[2].split()[0]) < 150_000  # KiB
        deaf.process.kill()
        # The client itself lives and reads nothing.
        wait_for(lambda: len(user.status()["clients"]) == 1)
        assert "7" in other.run("print(3 + 4)")
    assert "Traceback" not in user.log()


def test_a_front_that_comes_while_the_bridge_ends_gets_another_bridge(user: Person) -> None:
    user.add_servers("keeper")
    with user.client() as client, socket.socket(socket.AF_UNIX) as late:
        client.initialize().begin_run("await mcp_keeper.slow(text='x')")
        wait_for(lambda: [each["tool"] for each in user.calls] == ["slow"])
        [instance] = user.instances()
        late.connect(instance.socket)
        os.kill(user.bridges()[0], signal.SIGTERM)
        wait_for(lambda: not user.bridges())
        hello = {"words": [], "environ": user.environ, "cwd": "/", "serve": {}}
        with suppress(ConnectionError):
            socket.send_fds(late, [json.dumps(hello).encode() + b"\n"], [2])
            assert late.recv(1000) == b""


@pytest.mark.parametrize("lost", ["sock", "json", "lock", "*"])
def test_files_that_a_cleaner_removed_cost_no_client_its_bridge(user: Person, lost: str) -> None:
    with user.client() as old:
        old.initialize()
        [first] = user.bridges()
        for path in (user.home / "run/mcp-code-bridge").glob(f"*.{lost}"):
            path.unlink()
        wait_for(lambda: lost == "lock" or user.bridges() != [first])
        with user.client() as new:
            assert "5" in new.initialize().run("print(2 + 3)")
            assert "5" in old.run("print(2 + 3)")
            assert new.end() == (0, "")
        assert len(user.bridges()) <= 1


def test_a_dead_bridges_record_ends_no_other_bridge(user: Person) -> None:
    instance = instance_for([], user.environ)
    dead = Instance(instance.directory, "00000000")
    state = str(user.home / ".local/state/mcp-code-bridge")
    record = {"pid": os.getpid(), "start": "1", "since": "9999", "began": 1e12, "state": state}
    record["host"] = os.uname().nodename
    Path(dead.record).write_text(json.dumps(record))
    Path(dead.socket).write_text("")
    with user.client() as client:
        client.initialize()
    # What is dead is removed.
    wait_for(lambda: not Path(dead.record).exists())
    assert not Path(dead.socket).exists()


def test_a_dead_process_that_no_one_has_awaited_is_no_process() -> None:
    with subprocess.Popen(["true"]) as child:
        wait_for(lambda: not process_start(child.pid))
        assert child.returncode is None
        assert process_start(os.getpid())


def test_root_leaves_nothing_in_another_users_runtime_directory(user: Person) -> None:
    run = user.home / "run"
    os.chown(run, 65534, 65534)
    with user.client() as client:
        assert "5" in client.initialize().run("print(2 + 3)")
    assert not list(run.iterdir())
    assert len(user.bridges()) == 1


def test_an_environment_of_any_bytes_reaches_the_clients_servers(user: Person) -> None:
    user.add_servers("keeper")
    with user.client(TEAM="a\nb\udcff") as client:
        told = client.initialize().run(
            "print(ascii(await mcp_keeper.show_environment(name='TEAM')))"
        )
        assert "a\\\\nb" in told or "a\\nb" in told
    assert len(user.bridges()) == 1


def test_more_clients_than_open_files_wait(running: Person) -> None:
    [number], [instance] = running.bridges(), running.instances()
    limits = resource.prlimit(number, resource.RLIMIT_NOFILE)
    resource.prlimit(
        number, resource.RLIMIT_NOFILE, (int(max(descriptors_of(number), key=int)), limits[1])
    )
    with ExitStack() as stack:
        for _ in range(50):
            stack.enter_context(socket.socket(socket.AF_UNIX)).connect(instance.socket)
        wait_for(lambda: "too many open files" in running.log())
    resource.prlimit(number, resource.RLIMIT_NOFILE, limits)
    with RawFront(running) as front:
        front.send(INITIALIZE)
        assert front.receive()["id"] == 1
    assert running.bridges() == [number]


def test_a_clients_small_limit_of_open_files_holds_for_no_other(user: Person) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
    try:
        client = user.client()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with client:
        client.initialize()
        [number] = user.bridges()
        assert resource.prlimit(number, resource.RLIMIT_NOFILE)[0] > 128
