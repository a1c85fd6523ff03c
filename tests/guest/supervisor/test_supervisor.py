"""What holds whatever the program does: output, deadlines, the end of everything it started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.guest import imports
from bridge.guest.processes import cpu_clock
from bridge.guest.protocol.wire import Call, Done, Exited, Output, decode_guest_frame
from tests.guest.finished import Case, programs
from tests.sandbox.process.rig import exists
from tests.waiting import until, until_exists

FIND_CHANNEL = """
import os, stat
fd = max(n for n in map(int, os.listdir("/proc/self/fd")) if os.path.exists(f"/proc/self/fd/{n}")
         and stat.S_ISSOCK(os.fstat(n).st_mode))
"""


async def gone(*pids: int) -> None:
    await until(lambda: not any(exists(pid) for pid in pids))


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


PROGRAMS = r"""
## a deadline: limits={'timeout': 1.0}, timed_out=True, stdout='kept\ntail', error=('line 4, in',)
print('kept')
print('tail', end='')
import sys; sys.stdout.flush()
while True: pass
## closed private descriptors: stdout='before\nafter\nchannel\n', done=None, code=70, stderr=()
import os
print("before")
os.closerange(3, 4096)
print("after", flush=True)
try:
    await mcp_git_hub.echo("x")
except MCPError as e:
    print(e.kind)
## a closed low range of descriptors: value={'text': 'x'}
import os
os.closerange(3, 256)
mcp_git_hub.echo('x')
## garbage on the channel: value='still there', types=['Call', 'Done', 'Exited']
CHANNEL
os.write(fd, b'garbage\n{"type":"exited","code":0}\n{"type":"hello"}\n\n\xff\xfe\n')
os.write(fd, b'{"type":"output","stream":"stdout","skipped":9}\n')
(await mcp_git_hub.echo("still there")).text
## a torn call: stdout='x\n'
CHANNEL
os.write(fd, b'{"type":"ca')
print('x', flush=True)
## torn raw bytes: stdout='x\n'
CHANNEL
os.write(fd, b'+100000\nabc')
print('x', flush=True)
## a background child that holds the pipes: stdout='1\n'
import subprocess
p = subprocess.Popen(['sleep', '1000'])
print(1)
## its own /proc files: value='1000'
import os
os.setgid(54321); os.setuid(54321)
open('/proc/self/oom_score_adj').read().strip()
## the supervisor's memory: value=['mem', 'environ', 'maps', 'fd/0']
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
## a call in a forked child: value=0, stdout='True\n'
import os
await mcp_git_hub.echo("connected")
pid = os.fork()
if pid == 0:
    code = 1
    try:
        mcp_git_hub.echo("x").send(None)
    except MCPError as e:
        print("child process" in str(e), flush=True)
        code = 0
    os._exit(code)
os.waitpid(pid, 0)[1]
## a call of 200,000 bytes: limits={'frame_bytes': 100000}, calls=[], error=('limit is 100,000',)
await mcp_git_hub.echo('x' * 200_000)
## a call of 300,000 values: calls=[], error=('hold more than 250,000 values',)
await runtime.call_tool_raw('git-hub', 'echo', {'rows': [0] * 300_000})
"""


@programs(PROGRAMS.replace("CHANNEL\n", FIND_CHANNEL))
def test_what_a_program_does_to_the_channel_costs_only_itself(guest_on: Any, case: Case) -> None:
    case.check(guest_on)


INIT_PROGRAMS = r"""
## masked signals: limits={'timeout': 2.0}, done=None, timed_out=True, code=None
import os, signal, subprocess
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
os.kill(os.getppid(), signal.SIGSTOP)
os.kill(0, signal.SIGSTOP)
## signals to PID 1: value='alive'
import os, signal
assert os.getppid() == 1
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGABRT):
    os.kill(1, number)
"alive"
## an early exit notice with a child: done=None, code=3
CHANNEL
import time
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
os.write(fd, b'{"type":"leaving","code":3,"cpu_ms":1,"peak_memory_bytes":1}\n')
time.sleep(60)
"""


@programs(INIT_PROGRAMS.replace("CHANNEL\n", FIND_CHANNEL))
def test_pid_1_ends_what_a_program_started(init_guest: Any, case: Case) -> None:
    case.check(init_guest)


def test_a_run_that_its_session_does_not_read_leaves_no_files(session: Any) -> None:
    code = """
import os, select, stat, threading
for fd in map(int, os.listdir("/proc/self/fd")):
    if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISFIFO(os.fstat(fd).st_mode):
        break
def end():
    select.select([fd], [], [])
    os.kill(os.getpid(), 9)
threading.Thread(target=end, daemon=True).start()
"""
    session.run(code, files=[{"name": "given.txt", "data": "eA=="}])
    finished = session.run("#" * 20_000_000)
    assert (finished.done, finished.signal, finished.files) == (None, 9, [])


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


def test_killing_a_supervisor_that_is_not_pid_1_is_the_end_of_the_run(guest: Any) -> None:
    finished = guest.run("import os, time; os.kill(os.getppid(), 9); time.sleep(1000)")
    assert finished.exited is None
    assert finished.status == -9


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
    line = f'{{"type":"leaving",{rest}\n'.encode()
    finished = guest.run(FIND_CHANNEL + f"import time\nos.write(fd, {line!r})\ntime.sleep(60)")
    assert (finished.done, finished.signal) == (None, signal.SIGKILL)
    assert finished.cpu_ms >= 0


def test_both_streams_are_bounded_apart(guest: Any) -> None:
    code = "import sys\nfor n in range(3000):\n    print('o' * 99)\n"
    code += "    print('e' * 49, file=sys.stderr)"
    finished = guest.run(code, limits={"output_bytes": 10_000})
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


def test_usage_is_reported(guest_on: Any) -> None:
    finished = guest_on.run("x = bytearray(50_000_000)\nn = 0\nfor i in range(2_000_000): n += i")
    assert finished.exit.cpu_ms > 0
    assert finished.exit.peak_memory_bytes > 50_000_000


def test_a_programs_end_wakes_the_host_once(guest: Any) -> None:
    guest.hello()
    guest.start("1")
    assert isinstance(guest.receive(), Done)
    assert [type(decode_guest_frame(line)) for line in guest.pending] == [Exited]


async def test_a_host_that_does_not_read_stops_nothing_permanently(guest: Any) -> None:
    guest.hello()
    guest.start(
        "import sys\nfor n in range(40):\n"
        "    sys.stdout.write('x' * 100_000)\n    sys.stdout.flush()",
        limits={"output_bytes": 100 << 20},
    )
    await guest.fill_pipe()
    finished = guest.finish()
    assert len(finished.stdout) == 4_000_000
    assert finished.skipped == {}


async def test_a_flood_of_calls_waits_in_the_program_not_in_the_supervisor(guest: Any) -> None:
    peaks: list[int] = []

    def answer(guest: Any, call: Call) -> None:
        if call.method != "flood":
            status = Path(f"/proc/{guest.pid}/status").read_text()
            peaks.append(int(status.partition("VmHWM:")[2].split()[0]))
            guest.reply(call.id, {"json": "done"})

    guest.hello()
    guest.start(
        FIND_CHANNEL
        + """
import select
line = b'{"type":"call","id":7,"method":"flood","params":{"x":"' + b"x" * 10_000 + b'"}}\\n'
for _ in range(6000):
    view = memoryview(line)
    while view:
        if not select.select([], [fd], [], 0.5)[1]:
            open("blocked", "w").close()
        view = view[os.write(fd, view):]
await mcp_git_hub.echo("x")
"""
    )
    await until_exists(guest.cwd / "blocked")
    finished = guest.finish(answer)
    assert finished.value == "done"
    assert len(finished.calls) == 6001
    assert peaks[0] < 48 << 10


async def test_the_deadline_holds_while_the_host_does_not_read(guest: Any) -> None:
    guest.hello()
    guest.start(
        "import os\nprint(os.getpid(), flush=True)\nwhile True: print('x' * 10_000)",
        limits={"timeout": 1.0, "output_bytes": 100 << 20},
    )
    output = guest.receive()
    assert isinstance(output, Output)
    await gone(int(output.data.split()[0]))
    assert guest.finish().exit.timed_out


def test_a_program_that_reads_no_replies_is_ended_by_its_deadline(guest: Any) -> None:
    guest.hello()
    guest.start(
        FIND_CHANNEL + "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        limits={"timeout": 0.5},
    )
    for n in range(64):
        guest.reply(n, {"json": "x" * 1_000_000})
    finished = guest.finish()
    assert finished.exit.timed_out


def test_a_large_reply_and_a_large_argument_arrive_whole(guest_on: Any) -> None:
    def answer(guest: Any, call: Call) -> None:
        rows = [{"id": n, "name": "n" * 80} for n in range(100_000)]
        value = call.params["arguments"] if call.params["tool"] == "echo" else rows
        guest.reply(call.id, {"json": value})

    code = "r = await mcp_git_hub.echo('x' * 10_000_000)\n"
    code += "[len(r.text), len((await runtime.call_tool('git-hub', 'rows')))]"
    assert guest_on.run(code, answer).value == [10_000_000, 100_000]


def test_a_thousand_calls_may_be_under_way(guest_on: Any) -> None:
    held: list[Call] = []

    def answer(guest: Any, call: Call) -> None:
        held.append(call)
        if len(held) == 1000:
            for waiting in reversed(held):
                guest.reply(waiting.id, {"json": int(waiting.params["arguments"]["text"])})

    code = "import asyncio\n"
    code += "sum(await asyncio.gather(*[mcp_git_hub.echo(str(n)) for n in range(1000)]))"
    assert guest_on.run(code, answer).value == 499_500


def test_replies_no_one_waits_for_are_dropped(guest_on: Any) -> None:
    def answer(guest: Any, call: Call) -> None:
        if call.params["arguments"]["text"] == "slow":
            return
        # An unknown id, a second answer, an id that was given up, something that is no reply.
        guest.reply(999_999, {"json": 1})
        guest.reply(call.id - 1, {"json": "late"})
        guest.write(b'[1]\n{"type":"run"}\n{"type":"reply"}\n')
        guest.reply(call.id, {"json": "right"})
        guest.reply(call.id, {"json": "twice"})

    finished = guest_on.run(
        """
import asyncio
try:
    await asyncio.wait_for(mcp_git_hub.echo("slow"), 0.05)
except asyncio.TimeoutError:
    pass
[await mcp_git_hub.echo("a"), await mcp_git_hub.echo("b")]
""",
        answer,
    )
    assert finished.value == ["right", "right"]
    assert [cancel.id for cancel in finished.cancels] == [finished.calls[0].id]


def test_a_host_that_sends_nonsense_ends_the_calls_not_the_program(guest_on: Any) -> None:
    code = "try:\n    await mcp_git_hub.echo('a')\nexcept MCPError as e:\n    print(e.kind)"
    finished = guest_on.run(code, lambda guest, call: guest.write(b"no json\n"))
    assert (finished.stdout, finished.code) == ("channel\n", 0)


async def test_the_end_of_the_waiting_worker_ends_the_sandbox(guest: Any) -> None:
    guest.hello()
    await until(lambda: bool(children_of(guest.pid)))
    os.kill(children_of(guest.pid)[0], signal.SIGKILL)
    assert guest.wait() == 70
    assert "waited for the program has ended" in guest.diagnostics()


async def test_getting_ready_is_not_counted_as_the_programs_time(guest: Any) -> None:
    guest.hello()
    await until(lambda: bool(children_of(guest.pid)))
    worker = children_of(guest.pid)[0]
    await until(lambda: cpu_clock(worker) > 0.03)
    before = cpu_clock(worker)
    guest.start("import os\nsum(os.times()[:2])")
    finished = guest.finish()
    assert finished.exit.cpu_ms < (finished.value - before) * 1000 + 50


def test_steps_import_one_module_each_and_pass_over_what_is_absent() -> None:
    code = (
        "import sys\nsys.path.insert(0, %r)\nfrom bridge.guest import imports\n"
        "steps = imports.steps(['colorsys', 'no_such_module', 'sys', 'wave'])\n"
        "next(steps); assert 'colorsys' in sys.modules and 'wave' not in sys.modules\n"
        "next(steps); assert 'wave' in sys.modules\n"
        "assert list(steps) == []\n"
    )
    root = str(Path(imports.__file__).parents[2])
    subprocess.run([sys.executable, "-c", code % root], check=True)
