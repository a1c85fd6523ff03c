"""What holds whatever the program does: output, deadlines, the end of everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
from typing import Any

import pytest

from bridge.guest.protocol.wire import Call, Done, Exited, Output, decode_guest_frame
from tests.guest.supervised import FIND_CHANNEL, gone


def test_the_deadline_ends_a_busy_program_where_it_is_and_keeps_its_output(guest_on: Any) -> None:
    finished = guest_on.run(
        "print('kept')\nprint('tail', end='')\nimport sys; sys.stdout.flush()\nwhile True: pass",
        limits={"timeout": 1.0},
    )
    assert finished.stdout == "kept\ntail"
    assert "line 4, in <module>\n    while True: pass" in finished.outcome.error
    assert finished.exit.timed_out
    assert not finished.exit.kept
    assert finished.status == 0


def test_the_deadline_ends_a_program_that_does_not_heed_it(guest: Any) -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    finished = guest.run(code, limits={"timeout": 1.0})
    assert finished.done is None
    assert finished.exit.timed_out
    assert finished.exit.signal == 9
    assert finished.status == 0


def test_the_deadline_beats_masked_signals_and_a_stopped_session(init_guest: Any) -> None:
    finished = init_guest.run(
        """
import os, signal, subprocess
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
os.kill(os.getppid(), signal.SIGSTOP)
os.kill(0, signal.SIGSTOP)
""",
        limits={"timeout": 2.0},
    )
    assert finished.exit.timed_out


async def test_what_a_program_started_dies_with_it(guest: Any) -> None:
    finished = guest.run(
        """
import os, subprocess, sys, time
code = '''
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep(1000)
'''
daemon = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
[int(daemon.stdout.readline()), subprocess.Popen(["sleep", "1000"]).pid]
"""
    )
    await gone(*finished.value)


def test_a_background_child_that_holds_the_pipes_delays_nothing(guest: Any) -> None:
    finished = guest.run("import subprocess; p = subprocess.Popen(['sleep', '1000']); print(1)")
    assert finished.stdout == "1\n"
    assert finished.exit.code == 0


@pytest.mark.parametrize(("terminated", "status"), [(False, 0), (True, 143)])
async def test_hanging_up_or_sigterm_ends_the_guest_and_all_it_started(
    guest: Any, terminated: bool, status: int
) -> None:
    guest.hello()
    guest.start(
        """
import os, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print(os.getpid(), child.pid, flush=True)
while True: pass
"""
    )
    output = guest.receive()
    assert isinstance(output, Output)
    pids = [int(word) for word in output.data.split()]
    if terminated:
        os.kill(guest.pid, signal.SIGTERM)
    else:
        guest.hang_up()
    assert guest.wait() == status
    await gone(*pids)


def test_a_guest_waits_to_be_heard_as_long_as_it_is_told_and_ends_with_its_host(guest: Any) -> None:
    """A cluster drops what is on its way to the host when a pod ends."""
    guest.hello()
    guest.start("1", limits={"answer_seconds": 1000.0})
    while not isinstance(guest.receive(), Exited):
        pass
    # What comes too late, such as a reply, is no end.
    guest.write(b"late")
    with pytest.raises(subprocess.TimeoutExpired):
        guest.wait(0.2)
    guest.hang_up()
    assert guest.wait() == 0


def test_hanging_up_before_any_run_ends_the_guest(guest: Any) -> None:
    guest.hello()
    guest.hang_up()
    assert guest.wait() == 0


def test_a_malformed_run_frame_crashes_the_guest_audibly(guest: Any) -> None:
    guest.hello()
    guest.write(b'{"type":"run"}\n')
    assert guest.wait() == 70
    assert "malformed run frame" in guest.diagnostics()


def test_no_orphan_is_left_unreaped(init_guest: Any) -> None:
    finished = init_guest.run(
        """
import os
for _ in range(200):
    pid = os.fork()
    if pid == 0:
        if os.fork() == 0:
            os._exit(0)
        os._exit(0)
    os.waitpid(pid, 0)
import time
for _ in range(500):
    states = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                states.append(open(f"/proc/{name}/stat").read().rpartition(")")[2].split()[0])
            except OSError:
                pass
    if "Z" not in states:
        break
    time.sleep(0.01)
states.count("Z")
"""
    )
    assert finished.value == 0


def test_pid_1_survives_its_program(init_guest: Any) -> None:
    finished = init_guest.run(
        """
import os, signal
assert os.getppid() == 1
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGABRT):
    os.kill(1, number)
"alive"
"""
    )
    assert finished.value == "alive"
    assert finished.exit.code == 0


def test_killing_a_supervisor_that_is_not_pid_1_is_the_end_of_the_run(guest: Any) -> None:
    finished = guest.run("import os, time; os.kill(os.getppid(), 9); time.sleep(1000)")
    assert finished.exited is None
    assert finished.status == -9


def test_the_supervisors_memory_is_closed_to_the_program(guest: Any) -> None:
    # Root may do everything; an ordinary user, as programs are, may not.
    finished = guest.run(
        """
import os
parent = os.getppid()
os.setgid(54321); os.setuid(54321)
denied = []
for name in ("mem", "environ", "maps", "fd/0"):
    try:
        open(f"/proc/{parent}/{name}", "rb").close()
    except PermissionError:
        denied.append(name)
denied
"""
    )
    assert finished.value == ["mem", "environ", "maps", "fd/0"]


def test_the_program_keeps_its_own_proc_files(guest: Any) -> None:
    finished = guest.run(
        "import os\nos.setgid(54321); os.setuid(54321)\n"
        "open('/proc/self/oom_score_adj').read().strip()"
    )
    assert finished.value == "1000"


def test_private_descriptors_closed_by_the_program_cost_only_its_calls(guest_on: Any) -> None:
    finished = guest_on.run(
        """
import os
print("before")
os.closerange(3, 4096)
print("after", flush=True)
try:
    await mcp_git_hub.echo("x")
except MCPError as e:
    print(e.kind)
"""
    )
    assert finished.stdout == "before\nafter\nchannel\n"
    assert finished.done is None
    assert finished.exited is not None


def test_closing_a_low_range_of_descriptors_keeps_the_channel(guest_on: Any) -> None:
    finished = guest_on.run("import os\nos.closerange(3, 256)\nmcp_git_hub.echo('x')")
    assert finished.value == {"text": "x"}


def test_garbage_on_the_channel_is_left_out(guest_on: Any) -> None:
    finished = guest_on.run(
        FIND_CHANNEL
        + r"""
os.write(fd, b'garbage\n{"type":"exited","code":0}\n{"type":"hello"}\n\n\xff\xfe\n')
os.write(fd, b'{"type":"output","stream":"stdout","skipped":9}\n')
(await mcp_git_hub.echo("still there")).text
"""
    )
    assert finished.value == "still there"
    assert finished.stdout == ""
    assert [type(frame) for frame in finished.frames] == [Call, Done, Exited]


@pytest.mark.parametrize("torn", ['{"type":"ca', "+100000\\nabc"])
def test_a_torn_line_costs_only_the_frame_it_is_part_of(guest_on: Any, torn: str) -> None:
    finished = guest_on.run(FIND_CHANNEL + f"os.write(fd, b'{torn}')\nprint('x', flush=True)")
    assert finished.stdout == "x\n"
    assert finished.outcome == Done("ok")


@pytest.mark.parametrize(
    "rest",
    [
        "",
        '"code":-7,"cpu_ms":1,"peak_memory_bytes":1}',
        '"code":256,"cpu_ms":1,"peak_memory_bytes":1}',
        '"code":0,"cpu_ms":-1,"peak_memory_bytes":1}',
        f'"code":0,"cpu_ms":1,"peak_memory_bytes":{10**30}}}',
    ],
)
def test_a_goodbye_that_no_kernel_could_have_said_is_not_passed_on(guest: Any, rest: str) -> None:
    line = '{"type":"leaving",' + rest + "\n"
    finished = guest.run(
        FIND_CHANNEL + f"import time\nos.write(fd, {line.encode()!r})\ntime.sleep(60)"
    )
    assert finished.done is None
    assert finished.exit.signal == signal.SIGKILL
    assert finished.exit.cpu_ms >= 0


def test_a_goodbye_before_the_end_ends_all_that_was_started(init_guest: Any) -> None:
    finished = init_guest.run(
        FIND_CHANNEL
        + """
import time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
os.write(fd, b'{"type":"leaving","code":3,"cpu_ms":1,"peak_memory_bytes":1}\\n')
time.sleep(60)
"""
    )
    assert finished.done is None
    assert finished.exit.code == 3
    assert finished.status == 0


def test_an_overlong_line_is_left_out_without_being_held(guest: Any) -> None:
    finished = guest.run(
        FIND_CHANNEL
        + """
for _ in range(100):
    view = memoryview(b'{"type":"call",' + b'x' * 100_000)
    while view:
        view = view[os.write(fd, view):]
os.write(fd, b'\\n')
(await mcp_git_hub.echo("ok")).text
""",
        limits={"frame_bytes": 1_000_000},
    )
    assert finished.value == "ok"
    assert finished.exit.peak_memory_bytes < 200 << 20


def test_both_streams_are_bounded_apart(guest: Any) -> None:
    finished = guest.run(
        "import sys\nfor n in range(3000):\n"
        "    print('o' * 99)\n    print('e' * 49, file=sys.stderr)",
        limits={"output_bytes": 10_000},
    )
    assert len(finished.stdout) == len(finished.stderr) == 10_000
    assert finished.skipped == {"stdout": 290_000, "stderr": 140_000}


def test_output_streams_while_the_program_runs(guest: Any) -> None:
    guest.hello()
    guest.start("print('early', flush=True)\nawait mcp_git_hub.echo('x')\nprint('late')")
    first = guest.receive()
    assert first == Output("stdout", b"early\n")
    call = guest.receive()
    assert isinstance(call, Call)
    guest.reply(call.id, {"json": None})
    assert guest.finish().stdout == "late\n"


def test_a_crash_in_native_code_names_the_programs_line(guest: Any) -> None:
    finished = guest.run("import ctypes\n\nctypes.string_at(0)")
    assert 'File "<run_python>", line 3 in <module>' in finished.stderr


def test_usage_is_reported(guest_on: Any) -> None:
    finished = guest_on.run("x = bytearray(50_000_000)\nn = 0\nfor i in range(2_000_000): n += i")
    assert finished.exit.cpu_ms > 0
    assert finished.exit.peak_memory_bytes > 50_000_000


def test_a_programs_end_wakes_the_host_once(guest: Any) -> None:
    guest.hello()
    guest.start("1")
    assert isinstance(guest.receive(), Done)
    assert [type(decode_guest_frame(line)) for line in guest.pending] == [Exited]
