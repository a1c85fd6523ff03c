"""A background bridge that dies, hangs or is unavailable costs no client its session."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from bridge.background_instance import UnavailableError, directory_of, end_hung, instance_for
from tests.background.rig import Client, Person, text_of, wait_for

SERVED_ALONE = "mcp-code-bridge uses no background bridge"


def kill(number: int) -> None:
    os.kill(number, signal.SIGKILL)
    wait_for(lambda: not Path(f"/proc/{number}/cwd").exists())


def test_after_a_crash_the_next_request_works_in_every_client(user: Person) -> None:
    user.add_servers("keeper")
    with ExitStack() as stack:
        clients = [stack.enter_context(user.client()).initialize() for _ in range(3)]
        clients[0].run("await mcp_keeper.list_notes()")
        [number], [server] = user.bridges(), user.processes()
        kill(number)
        for client in clients:
            assert "topics" in client.run("print(await mcp_keeper.list_notes())")
            assert "tools/list_changed" in str(client.notes)
        assert number not in user.bridges()
        assert len(user.bridges()) == 1
        wait_for(lambda: server not in user.processes())
        assert len(user.processes()) == 1


def test_a_subscription_outlives_a_crash_and_an_ended_one_does_not(user: Person) -> None:
    about = {"uri": "bridge://sessions"}
    with user.client() as one, user.client() as two:
        for client in (one, two):
            assert "result" in client.initialize().ask("resources/subscribe", **about)
        assert "result" in two.ask("resources/unsubscribe", **about)
        kill(user.bridges()[0])
        two.run("x = 1", session="s")
        one.run("x = 1", session="t")
        wait_for(lambda: one.ask("ping") and "resources/updated" in str(one.notes))
        two.ask("ping")
        assert "resources/updated" not in str(two.notes)


def test_an_open_request_gets_an_error_that_names_the_calls_that_had_gone_out(user: Person) -> None:
    user.add_servers("keeper")
    program = "await mcp_keeper.write_note(topic='a', text='b'); await mcp_keeper.slow(text='x')"
    with user.client() as client:
        held = client.initialize().begin_run(program)
        wait_for(lambda: [each["tool"] for each in user.calls] == ["write_note", "slow"])
        kill(user.bridges()[0])
        error = client.answer(held)["error"]["message"]
        assert "keeper.write_note (ok)" in error
        assert "keeper.slow (no answer)" in error
        assert "2" in client.run("print(1 + 1)")
    assert len(user.calls) == 2


def test_a_request_that_no_bridge_has_taken_is_made_by_the_next_one(user: Person) -> None:
    with user.client() as client:
        client.initialize()
        [number] = user.bridges()
        os.kill(number, signal.SIGSTOP)
        asked = client.begin_run("print(40 + 2)")
        kill(number)
        assert "42" in str(client.answer(asked)["result"])


def test_an_answer_that_is_cut_off_is_followed_by_one_answer_to_each_open_request(
    user: Person,
) -> None:
    with user.client() as client:
        client.initialize()
        asked = [client.begin_run("print('x' * 8000)") for _ in range(30)]
        # Once the pipe is full, the bridge waits in the middle of an answer.
        wait_for(lambda: client.waiting_bytes() > 54_000)
        kill(user.bridges()[0])
        answers = Counter[object]()
        while not answers.keys() >= set(asked):
            answers[client.receive().get("id", "torn")] += 1
        # Two are notifications. Whether an answer was torn depends on the moment.
        assert answers - Counter(["torn"] * 3) == Counter(asked)
        assert "5" in client.run("print(2 + 3)")


@pytest.mark.slow
def test_a_bridge_that_hangs_is_replaced(user: Person) -> None:
    with user.client() as old:
        old.initialize()
        [number] = user.bridges()
        os.kill(number, signal.SIGSTOP)
        assert f"{number} since" in (shown := user.command("background", "status").stdout)
        assert "does not answer" in shown
        with user.client() as new:
            assert "5" in new.initialize().run("print(2 + 3)")
            assert "5" in old.run("print(2 + 3)")
        assert number not in user.bridges()


@pytest.mark.slow
def test_a_client_that_goes_on_sending_notices_that_its_bridge_hangs(user: Person) -> None:
    with user.client() as client:
        client.initialize()
        os.kill(user.bridges()[0], signal.SIGSTOP)
        run = client.begin_run("print(2 + 3)")

        def is_answered() -> int:
            client.send(method="notifications/roots/list_changed")
            return client.waiting_bytes()

        wait_for(is_answered)
        assert "5" in text_of(client.answer(run))


@pytest.mark.slow
def test_stop_ends_a_bridge_that_hangs(user: Person) -> None:
    with user.client() as client:
        client.initialize()
    os.kill(user.bridges()[0], signal.SIGSTOP)
    assert "1 background bridge stopped" in user.command("background", "stop").stderr
    assert not user.bridges()


def test_a_bridge_that_has_computed_may_answer_late(user: Person) -> None:
    with user.client() as client:
        client.initialize()
        [instance], [number] = user.instances(), user.bridges()
        os.kill(number, signal.SIGSTOP)
        resume = threading.Timer(1.0, os.kill, (number, signal.SIGCONT))
        resume.start()
        assert end_hung(instance, worked="another time")
        assert user.bridges() == [number]
        assert "5" in client.run("print(2 + 3)")


def test_a_bridge_leaves_what_another_machine_has_in_the_same_home(user: Person) -> None:
    place = user.home / "run" / "mcp-code-bridge"
    place.mkdir(mode=0o700)
    dead = {"pid": 2**22 + 1, "start": "1", "state": "/home"}
    for name, host in (("11111111", os.uname().nodename), ("22222222", "elsewhere")):
        (place / f"{name}.json").write_text(json.dumps({**dead, "host": host}))
        (place / f"{name}.sock").write_text("")
    with user.client() as client:
        client.initialize()
        assert len(user.instances()) == 1
    assert not list(place.glob("11111111.*[!k]"))
    assert len(list(place.glob("22222222.*"))) == 2


def test_a_process_that_is_not_known_is_not_signalled(user: Person) -> None:
    with user.client() as client:
        client.initialize()
    [instance] = user.instances()
    [number] = user.bridges()
    os.kill(number, signal.SIGSTOP)
    record = instance.read_record()
    Path(instance.record).write_text(json.dumps({**record, "start": "1"}))
    with user.client() as client:
        assert "5" in client.initialize().run("print(2 + 3)")
        _, told = client.end()
        assert SERVED_ALONE in told
    assert Path(f"/proc/{number}/stat").read_text().rpartition(") ")[2].startswith("T")
    Path(instance.record).write_text(json.dumps(record))


def served_alone(client: Client) -> str:
    with client:
        assert "5" in client.initialize().run("print(2 + 3)")
        status, told = client.end()
        assert status == 0
    return told


@pytest.mark.parametrize("off", ["off", " OFF"])
def test_the_setting_off_serves_in_the_process_itself(user: Person, off: str) -> None:
    assert SERVED_ALONE not in served_alone(user.client(MCP_BRIDGE_BACKGROUND=off))
    assert not user.instances()


def test_a_setting_with_a_relative_path_means_the_clients_own_directory(user: Person) -> None:
    user.add_servers("keeper")
    (user.home / ".claude.json").rename(user.project / "mine.json")
    with user.client(MCP_SERVERS_CONFIG="mine.json") as client:
        assert "topics" in client.initialize().run("print(await mcp_keeper.list_notes())")
    assert not user.bridges()


def test_an_open_client_follows_a_change_of_the_settings(user: Person) -> None:
    with user.client() as old, user.client() as new:
        old.initialize()
        config = user.home / ".config/mcp-code-bridge/config.toml"
        config.parent.mkdir(parents=True)
        config.write_text("call_timeout = 50\n")
        user.command("background", "stop")
        assert "5" in old.run("print(2 + 3)")
        new.initialize()
        assert len(user.status()["clients"]) == 2


def test_a_bridge_that_was_started_with_other_settings_ends(user: Person) -> None:
    instance = instance_for([], user.environ)
    lock = instance.hold_lock()
    assert lock is not None
    command = [sys.executable, "-m", "bridge.background.daemon", str(lock), "another"]
    assert subprocess.run(command, env=user.environ, pass_fds=[lock], check=False).returncode == 0
    os.close(lock)
    assert "settings have changed" in user.log()


@pytest.mark.parametrize(
    ("runtime", "used"),
    [("", "~/.local/state/mcp-code-bridge/run"), ("~" + "/d" * 50, "/tmp/mcp-code-bridge-")],
)
def test_without_a_usable_runtime_directory_another_one_serves(
    user: Person, runtime: str, used: str
) -> None:
    path, directory = (each.replace("~", str(user.home)) for each in (runtime, used))
    if path:
        Path(path).mkdir(mode=0o700, parents=True)
    user.variables["XDG_RUNTIME_DIR"] = path
    with user.client() as client:
        assert "5" in client.initialize().run("print(2 + 3)")
    assert directory_of(user.environ).startswith(directory)
    assert "1 background bridge stopped" in user.command("background", "stop").stderr


@pytest.mark.parametrize("kind", ["file", "link", "open", "foreign"])
def test_a_place_that_others_can_use_is_not_used(user: Person, kind: str) -> None:
    place = user.home / "run" / "mcp-code-bridge"
    if kind == "file":
        place.write_text("")
    elif kind == "link":
        (user.home / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(user.home / "elsewhere")
    else:
        place.mkdir(mode=0o755 if kind == "open" else 0o700)
        (place / "12345678.json").write_text("{}")
        if kind == "foreign":
            os.chown(place, 65534, 65534)
    with pytest.raises(UnavailableError):
        instance_for((), user.environ)
    assert not user.instances()
    if kind == "open":
        assert SERVED_ALONE in served_alone(user.client())


def test_a_listener_of_another_user_gets_nothing(user: Person) -> None:
    with user.client() as client:
        client.initialize()
    [instance] = user.instances()
    kill(user.bridges()[0])
    Path(instance.socket).unlink()
    code = f"""
import os, socket, sys
there = socket.socket(socket.AF_UNIX)
there.bind({instance.socket!r})
os.chmod({instance.socket!r}, 0o777)
os.setuid(65534)
there.listen()
print("ready", flush=True)
one, _ = there.accept()
print(one.recv(1000), flush=True)
"""
    with subprocess.Popen(["python3", "-c", code], stdout=subprocess.PIPE) as thief:
        assert thief.stdout is not None
        thief.stdout.readline()
        told = served_alone(user.client())
        assert thief.stdout.readline() == b"b''\n"
    assert "user 65534 is at the other end" in told


def test_a_full_disk_costs_no_client_its_bridge(user: Person) -> None:
    run = user.home / "run"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,mode=700", "none", run], check=True)
    try:
        (run / "mcp-code-bridge").mkdir(mode=0o700)
        with suppress(OSError), (run / "full").open("wb") as file:
            file.write(b"x" * 100_000)
        served_alone(user.client())
    finally:
        subprocess.run(["umount", "-l", run], check=True)


def test_a_bridge_that_ends_on_sigterm_lets_runs_end(user: Person) -> None:
    user.add_servers("keeper")
    user.variables["MCP_BRIDGE_DRAIN_SECONDS"] = "3"
    with user.client() as one, user.client() as two:
        held = one.initialize().begin_run("print(await mcp_keeper.slow(text='x'))")
        two.initialize()
        wait_for(lambda: [each["tool"] for each in user.calls] == ["slow"])
        [number] = user.bridges()
        os.kill(number, signal.SIGTERM)
        wait_for(lambda: number not in user.bridges())
        # What begins no run is answered by the old one, whose client has a run.
        assert "result" in one.ask("ping")
        # The next bridge has a server of its own, and the run that waits ends with its bridge.
        assert "done" in two.run("print(await mcp_keeper.release())")
        assert "ending" in text_of(one.answer(held))


def test_stop_ends_the_bridge_and_a_client_that_goes_on_starts_another(user: Person) -> None:
    with user.client() as client, user.client() as stateless:
        client.initialize()
        about: dict[str, Any] = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
        about["io.modelcontextprotocol/clientCapabilities"] = {}
        stream = stateless.begin("subscriptions/listen", _meta=about, notifications={})
        stateless.ask("server/discover", _meta=about)
        [number] = user.bridges()
        assert "1 background bridge stopped." in user.command("background", "stop").stderr
        assert "closed" in str(stateless.answer(stream)["error"])
        # The stream would delay the end.
        assert "s are over" not in user.log()
        assert not user.bridges()
        assert "5" in client.run("print(2 + 3)")
        assert user.bridges() != [number]
        assert len(user.status()["clients"]) == 1
        assert "process" in user.command("background", "status").stdout
        user.command("background", "stop")
        assert client.end()[0] == 0
    assert not user.bridges()
    assert "bubblewrap" in user.command("background", "logs").stdout


def test_doctor_shows_the_bridge_or_why_none_is_used(user: Person) -> None:
    def background(**environ: str) -> dict[str, Any]:
        said = json.loads(user.command("doctor", "--json", **environ).stdout)["background"]
        assert said["directory"] == str(user.home / "run" / "mcp-code-bridge")
        return dict(said)

    assert background() == {"directory": ANY, "problem": "", "bridges": []}
    assert "is off" in background(MCP_BRIDGE_BACKGROUND="off")["problem"]
    lock = Path(instance_for((), user.environ).lock)
    lock.unlink()
    lock.mkdir()
    assert "Is a directory" in background()["problem"]
    assert "Is a directory" in served_alone(user.client())
    lock.rmdir()
    with user.client() as client:
        client.initialize()
        [bridge] = background()["bridges"]
        assert ([bridge["pid"]], len(bridge["clients"])) == (user.bridges(), 1)
        assert f"process {bridge['pid']} since" in user.command("doctor").stdout
    (user.home / "run" / "mcp-code-bridge").chmod(0o755)
    assert "only you can use" in background()["problem"]
    (user.home / "run" / "mcp-code-bridge").chmod(0o700)


def test_purge_ends_a_bridge_without_clients_and_removes_its_files(user: Person) -> None:
    state = user.home / "some" / "state"
    user.variables["MCP_BRIDGE_STATE_DIR"] = str(state)
    with user.client() as client:
        client.initialize()
        refused = user.command("purge", "--yes")
        assert "a bridge runs" in refused.stderr
        assert client.end()[0] == 0
    assert (state / "background.log").exists()
    done = user.command("purge", "--yes")
    assert (done.returncode, "1 background bridge stopped." in done.stderr) == (0, True)
    assert not user.bridges()
    assert not (state / "background.log").exists()
    assert not (user.home / "run" / "mcp-code-bridge").exists()


def test_a_socket_takes_no_other_users_process(user: Person) -> None:
    with user.client() as client:
        client.initialize()
        [instance] = user.instances()
        assert oct(Path(instance.socket).stat().st_mode & 0o777) == "0o600"
        assert oct(Path(instance.directory).stat().st_mode & 0o777) == "0o700"
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(instance.socket)
            link.sendall(b'{"serve": {}, "identity": "another"}\n')
            assert b"refused" in link.recv(1000)
