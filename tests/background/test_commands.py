"""Commands that a running background bridge executes act as in a process of their own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from tests.background.rig import HOLD, PATIENCE, Client, Person, wait_for

OFF = {"MCP_BRIDGE_BACKGROUND": "off"}


@pytest.fixture
def client(user: Person) -> Iterator[Client]:
    """A client, for which a background bridge runs."""
    user.add_servers("keeper")
    with user.client() as client:
        client.initialize().run("await mcp_keeper.list_notes()")
        yield client


def begin(user: Person, *words: str, **options: Any) -> subprocess.Popen[str]:
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    given = {"stdin": subprocess.DEVNULL, "env": user.environ, "cwd": user.home / "project"}
    command = [sys.executable, "-m", "bridge", *words]
    return subprocess.Popen(command, **{**pipes, **given, **options})


def hold(user: Person) -> subprocess.Popen[str]:
    """Return a command whose call of a server does not end."""
    command = begin(user, "run", "-c", HOLD)
    wait_for(lambda: "slow" in [each["tool"] for each in user.calls])
    return command


@contextmanager
def at_terminal(
    user: Person, *words: str, **environ: str
) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a command at a terminal of its own, and the user's end of the terminal."""
    typist, line = pty.openpty()
    fcntl.ioctl(line, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    command = begin(
        user,
        *words,
        env={**user.environ, "TERM": "xterm", **environ},
        **dict.fromkeys(("stdin", "stdout", "stderr"), line),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(line)
    try:
        yield command, typist
    finally:
        command.kill()
        command.wait()
        os.close(typist)


def shown(typist: int, end: str = "") -> str:
    """Return what a terminal shows up to a text, or until its command has ended."""
    text = b""
    with suppress(OSError):
        while not end or end.encode() not in text:
            text += os.read(typist, 65536)
    return text.decode()


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("run", "-c", "print(1); import sys; sys.exit(3)"), 3),
        (("run", "-c", "1 / 0"), 1),
        (("run", "-c", "while True: pass", "--timeout", "1"), 124),
        (("run", "-c", "print(1)", "--timeout", "9", "--max-timeout", "5"), 2),
        (("run", "missing.py"), 2),
        (("run", "--servers", "nobody", "-c", "1"), 2),
        (("tools", "write note"), 0),
        (("tools", "--json", "keeper.list_notes"), 0),
        (("tools", "--server", "kepper"), 2),
        (("sessions",), 0),
        (("policy", "explain", "keeper", "write_note", "topic=a"), 0),
        (("policy", "explain", "keeper"), 2),
        (("run", "--help"), 0),
    ],
)
def test_output_and_status_are_those_of_the_command_alone(
    user: Person, client: Client, words: tuple[str, ...], status: int
) -> None:
    warned = {"MCP_BRIDGE_UNKNOWN": "1"}
    alone = user.command(*words, **OFF, **warned)
    user.variables.update(warned)
    with user.client() as other:
        other.initialize()
        here = user.command(*words)
    assert (here.stdout, here.stderr) == (alone.stdout, alone.stderr)
    assert (here.returncode, alone.returncode) == (status, status)


@pytest.mark.parametrize(
    ("line", "by_bridge"),
    [
        *((line, True) for line in ("run -c 1", "tools", "servers", "sessions", "runs")),
        ("policy explain keeper write_note", True),
        # The shared sandboxes have other limits, and a descriptor is a process's own.
        ("run -c 1 --memory 300m", False),
        ("run /dev/null", False),
    ],
)
def test_the_front_of_a_command_imports_little(
    user: Person, client: Client, line: str, by_bridge: bool
) -> None:
    done = user.command(*line.split(), PYTHONPROFILEIMPORTTIME="1")
    imported = {each.rpartition("|")[2].strip() for each in done.stderr.splitlines()}
    assert imported.isdisjoint({"anyio", "typer", "mcp", "asyncio"}) == by_bridge


def test_a_command_starts_no_bridge(user: Person) -> None:
    assert user.command("run", "-c", "print(1)").stdout == "1\n"
    assert user.command("sessions").returncode == 0
    assert not user.instances()


def test_files_are_those_of_the_commands_directory(user: Person, client: Client) -> None:
    project = user.home / "project"
    (project / "data.txt").write_text("seven")
    (project / "program.py").write_text(
        "import sys\nopen('out/copy.txt', 'w').write(open('data.txt').read() + sys.argv[1])"
    )
    done = user.command(
        "run", "program.py", "--file", "data.txt", "--out", "results", "--", " words"
    )
    assert done.stderr == "--out: wrote `copy.txt` to `results`.\n", done
    assert (project / "results/copy.txt").read_text() == "seven words"
    with begin(user, "run", "-", stdin=subprocess.PIPE) as piped:
        assert piped.communicate("print('from stdin')", PATIENCE) == ("from stdin\n", "")


def test_a_user_at_a_terminal_is_asked_and_approves(user: Person) -> None:
    config = user.home / ".config/mcp-code-bridge/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[policy.defaults]\nwrite = "ask"\n')
    user.add_servers("keeper")
    code = "await mcp_keeper.write_note(topic='a', text='b')\nprint('written')"
    with user.client() as client, ExitStack() as stack:
        client.initialize()
        command, typist = stack.enter_context(at_terminal(user, "run", "-c", code))
        question = shown(typist, "brackets): ")
        assert "Approval needed" in question
        os.write(typist, b"call\n")
        assert "written" in shown(typist)
        assert command.wait(PATIENCE) == 0
    assert [each["tool"] for each in user.calls] == ["write_note"]


@pytest.mark.parametrize("environ", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"COLUMNS": "50"}])
def test_a_table_fits_the_commands_terminal(
    user: Person, client: Client, environ: dict[str, str]
) -> None:
    tables = []
    for more in ({}, OFF):
        with at_terminal(user, "runs", **environ, **more) as (_, typist):
            tables.append(shown(typist))
    # The status line depends on the time.
    here, alone = (text.rpartition("RUN")[2] for text in tables)
    assert here == alone


def test_ctrl_c_cancels_the_command_alone(user: Person, client: Client) -> None:
    with at_terminal(user, "run", "-c", HOLD) as (command, typist):
        wait_for(lambda: "slow" in [each["tool"] for each in user.calls])
        os.write(typist, b"\x03")
        assert "Interrupted. 1 call had gone out" in shown(typist)
        assert command.wait(PATIENCE) == 130
    assert "5" in client.run("print(2 + 3)")
    assert user.status()["runs"] == 0


@pytest.mark.parametrize(("number", "status"), [(15, 128 + 15), (1, 128 + 1), (9, -9)])
def test_a_command_that_gets_a_signal_ends(
    user: Person, client: Client, number: int, status: int
) -> None:
    with hold(user) as command:
        command.send_signal(number)
        assert command.wait(PATIENCE) == status
    wait_for(lambda: user.status()["runs"] == 0)


def test_a_reader_that_has_gone_ends_the_command(user: Person, client: Client) -> None:
    with begin(user, "run", "-c", "while True: print('x' * 1000)") as command:
        assert command.stdout is not None
        command.stdout.close()
        assert command.wait(PATIENCE) == 1
        wait_for(lambda: user.status()["runs"] == 0)


def test_a_reader_that_does_not_read_stops_no_other_command(user: Person, client: Client) -> None:
    with begin(user, "run", "-c", "print('x' * 1_000_000)") as deaf:
        wait_for(lambda: len(user.status()["clients"]) == 2)
        assert user.command("run", "-c", "print(1)").stdout == "1\n"
        assert "5" in client.run("print(2 + 3)")
        assert deaf.communicate(timeout=PATIENCE) == ("x" * 1_000_000 + "\n", "")


def test_output_of_commands_at_one_moment_does_not_mix(user: Person, client: Client) -> None:
    code = "import sys\nfor _ in range(2000): print('{0}'), print('{0}', file=sys.stderr)"
    started = [begin(user, "run", "-c", code.format(name)) for name in "abcd"]
    for name, command in zip("abcd", started, strict=True):
        with command:
            assert command.communicate(timeout=PATIENCE) == (f"{name}\n" * 2000,) * 2


def test_a_command_whose_bridge_is_killed_says_so(user: Person, client: Client) -> None:
    with hold(user) as command:
        os.kill(user.bridges()[0], signal.SIGKILL)
        _, told = command.communicate(timeout=PATIENCE)
        assert command.returncode == 1
        assert "background bridge ended before the command" in told


def test_servers_shows_the_process_and_its_clients(user: Person, client: Client) -> None:
    [number] = user.processes()
    assert f"{number} (1 client)" in user.command("servers").stdout
    [row] = json.loads(user.command("servers", "--json").stdout)
    assert (row["state"], row["processes"]) == ("ready", [{"pid": number, "clients": 1}])
    assert "processes" not in user.command("servers", "--json", **OFF).stdout
