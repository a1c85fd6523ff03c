"""What a program may use up: attacks 1 to 8, on every backend. The controls are bounded."""

from __future__ import annotations

import sys
from pathlib import Path

import anyio
import pytest

from bridge.model import RunRequest
from tests.security.rig import MEMORY, PATIENCE_SECONDS, PIDS, Arena, control, peak_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these backends are for Linux")

DIFFERENT = ("bubblewrap", "podman", "docker", "gvisor")
"""Over SSH it is docker that bounds what is used."""

HOST_GROWTH = 150 * 1024
"""KiB by which the bridge may grow while a program floods it: its queues, and Python's slack."""

OWN_MEMORY = ("gvisor",)
"""Where the whole kernel of the sandbox has the memory limit: it ends, and a crash is reported."""

SHARED_MEMORY = ("kubernetes",)
"""Where /dev/shm has 64 MiB more than requested: the memory limit is met first."""

UNCOUNTED_FILES = ("podman", "rootless", "gvisor")
"""Where no limit on the number of files exists or holds: the memory limit stops them."""

FORK = """
import json, os, signal, sys, threading, time
def forks(most):
    pids = []
    try:
        while len(pids) < most:
            pid = os.fork()
            if not pid:
                time.sleep(3600)
            pids.append(pid)
    except OSError as error:
        print("stopped by", type(error).__name__)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(pids)
def threads(most):
    done = threading.Event()
    started = []
    try:
        while len(started) < most:
            thread = threading.Thread(target=done.wait)
            thread.start()
            started.append(thread)
    except RuntimeError as error:
        print("stopped by", type(error).__name__)
    done.set()
    return len(started)
"""

BOMB = """
import os
print("started", flush=True)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

FILL = """
import errno, os
def fill(path):
    "Write to a file that is deleted already, until something stops it."
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    os.unlink(path)
    size = 0
    try:
        while size < 400 << 20:
            size += os.write(fd, bytes(1 << 20))
        return "ESCAPED"
    except OSError as error:
        return errno.errorcode[error.errno]
    finally:
        os.close(fd)
def sparse(path):
    with open(path, "wb") as file:
        try:
            file.truncate(1 << 40)
            file.seek(1 << 39)
            file.write(bytes(1 << 20))
            return "kept" if os.stat(path).st_blocks * 512 < 4 << 20 else "ESCAPED"
        except OSError as error:
            return errno.errorcode[error.errno]
        finally:
            os.unlink(path)
def many(directory):
    n = 0
    try:
        for n in range(300_000):
            os.symlink("x", directory + "/%d" % n)
        return "ESCAPED"
    except OSError as error:
        return errno.errorcode[error.errno]
"""

HUNGER = """
import os, resource, socket
def opened(make):
    held = []
    try:
        while len(held) < 5000:
            held.append(make())
        return "ESCAPED"
    except OSError as error:
        return error.errno
    finally:
        del held[:]
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (5100, 5100))
except (ValueError, OSError):
    pass
print([opened(lambda: open("/dev/null")), opened(lambda: socket.socket(socket.AF_UNIX))])
"""

DEPTH = """
import ast, os, resource, sys
def outcome(attempt):
    try:
        attempt()
        return "through"
    except BaseException as error:
        return type(error).__name__
def endless():
    endless()
def crash():
    import ctypes
    ctypes.string_at(8)
pid = os.fork()
if not pid:
    crash()
status = os.waitpid(pid, 0)[1]
print([
    outcome(endless),
    outcome(lambda: compile("(" * 100_000 + ")" * 100_000, "x", "eval")),
    outcome(lambda: ast.literal_eval("[" * 100_000 + "]" * 100_000)),
    os.WTERMSIG(status), os.WCOREDUMP(status), resource.getrlimit(resource.RLIMIT_CORE),
    [name for name in os.listdir(".") if "core" in name],
])
"""


@pytest.mark.guarantee("processes")
async def test_processes_and_threads_are_bounded(arena: Arena) -> None:
    assert control(FORK + "print(forks(200))").stdout == "200\n"
    assert control(FORK + "print(threads(200))").stdout == "200\n"
    if arena.kind == "gvisor":
        found = (await arena.attack(FORK + "print(forks(10_000))", timeout=4)).result
        # It needs more threads than it gets, and ends with all that is in it; or just gets slow.
        assert found.reason in ("crash", "timeout") or "stopped by" in found.stdout, found
        return
    found = (await arena.attack(FORK + "forks(200), threads(200)")).result
    if arena.best_effort("pids", found):
        return
    assert found.stdout.split("\n")[:2] == ["stopped by BlockingIOError", "stopped by RuntimeError"]
    assert all(PIDS / 2 < number <= PIDS for number in found.result), found


@pytest.mark.guarantee("processes")
async def test_a_fork_bomb_ends_with_its_run_and_hurts_no_neighbour(arena: Arena) -> None:
    await _with_neighbour(arena, BOMB, ("timeout", "crash", "oom"))


async def _with_neighbour(arena: Arena, code: str, reasons: tuple[str, ...]) -> None:
    async def attack() -> None:
        found = await arena.engine.run(RunRequest(code=code, timeout=2))
        assert found.reason in reasons, found

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attack)
        with anyio.fail_after(PATIENCE_SECONDS):
            found = await arena.engine.run(RunRequest(code="sum(range(100_000))"))
        assert found.result == 4999950000


@pytest.mark.guarantee("memory")
async def test_memory_is_bounded_and_running_out_has_a_name(arena: Arena) -> None:
    hog = "blocks = [bytearray(b'x') * (1 << 20) for _ in range(600)]\nprint(len(blocks))"
    assert control(hog).stdout == "600\n"
    found = (await arena.attack(hog)).result
    reasons = ("oom", "crash") if arena.kind in OWN_MEMORY else ("oom",)
    assert found.status == "error", found
    assert found.reason in reasons, found


@pytest.mark.guarantee("memory")
async def test_memory_cannot_be_multiplied_by_children(arena: Arena) -> None:
    size = MEMORY // 2
    split = (
        "import os, signal, time\n"
        "r, w = os.pipe()\n"
        "os.set_blocking(r, False)\n"
        "pids = []\n"
        "for _ in range(8):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        f"        block = bytearray(b'x') * ({size} << 20)\n"
        "        os.write(w, b'x')\n"
        "        time.sleep(600)\n"
        "    pids.append(pid)\n"
        "fed, ended = 0, 0\n"
        "while fed < 8 and not ended:\n"
        "    time.sleep(0.02)\n"
        "    try: fed += len(os.read(r, 8))\n"
        "    except BlockingIOError: pass\n"
        "    ended = os.waitpid(-1, os.WNOHANG)[0]\n"
        "for pid in pids:\n"
        "    if pid != ended:\n"
        "        os.kill(pid, signal.SIGKILL)\n"
        "        os.waitpid(pid, 0)\n"
        "print(fed)\n"
    )
    assert control(split).stdout == "8\n"
    found = (await arena.attack(split)).result
    if arena.best_effort("memory", found):
        return
    assert found.stdout != "8\n", found
    assert found.reason in ("oom", "crash", None), found


@pytest.mark.guarantee("memory")
async def test_files_are_bounded_in_bytes_and_number(arena: Arena, tmp_path: Path) -> None:
    outside = control(FILL + f"print(sparse({str(tmp_path / 's')!r}))").stdout
    assert outside in ("kept\n", "EFBIG\n"), outside
    assert control(FILL + f"print(fill({str(tmp_path / 'f')!r}))").stdout == "ESCAPED\n"
    code = FILL + "[fill(d + '/f') for d in ('/tmp', '/workspace', '/dev/shm')]"
    found = (await arena.attack(code)).result
    full = {"ENOSPC", "EFBIG"}
    if arena.kind in (*OWN_MEMORY, *SHARED_MEMORY) and found.reason in ("crash", "oom"):
        return
    assert found.status == "success", found
    assert set(found.result) <= full, found
    rest = (await arena.attack(FILL + "[sparse('/tmp/s'), many('/workspace')]", timeout=60)).result
    if arena.kind in UNCOUNTED_FILES and rest.reason in ("crash", "oom"):
        return
    assert rest.status == "success", rest
    assert rest.result[0] != "ESCAPED", rest
    assert rest.result[1] != "ESCAPED" or arena.best_effort("memory", rest), rest


@pytest.mark.guarantee("output")
async def test_output_of_any_length_is_bounded_on_the_host(arena: Arena) -> None:
    flood = (
        "import os\n"
        "block = b'x' * (1 << 20)\n"
        "for _ in range(100): os.write(1, block)\n"
        "lines = b'y' * 63 + b'\\n'\n"
        "block = lines * (1 << 14)\n"
        "for _ in range(900):\n"
        "    os.write(1, block)\n"
        "    os.write(2, block[:1 << 16])\n"
        "print('end')\n"
    )
    with peak_memory() as grown:
        found = (await arena.attack(flood, timeout=60, is_kept=True)).result
    assert found.status == "success", found.error
    assert found.stdout.endswith("end\n")
    assert found.truncated["stdout"] > 900 << 20
    assert found.truncated["stderr"] > 40 << 20
    assert len(found.stdout) < 1 << 20
    assert grown[0] < HOST_GROWTH


@pytest.mark.guarantee("descriptors")
async def test_descriptors_run_out_inside_only(arena: Arena) -> None:
    assert control(HUNGER).stdout == "['ESCAPED', 'ESCAPED']\n"
    found = (await arena.attack(HUNGER)).result
    assert found.stdout == "[24, 24]\n", found


@pytest.mark.guarantee("processors")
async def test_a_program_on_every_processor_leaves_time_for_others(arena: Arena) -> None:
    spin = "import os\nfor _ in range(os.cpu_count()): os.fork()\nwhile True: pass"
    await _with_neighbour(arena, spin, ("timeout",))


@pytest.mark.guarantee("depth")
async def test_depth_ends_in_an_error_and_a_crash_leaves_no_core(arena: Arena) -> None:
    found = (await arena.attack(DEPTH)).result
    assert found.status == "success", found
    assert found.stdout == (
        "['RecursionError', 'MemoryError', 'MemoryError', 11, False, (0, 0), []]\n"
    ) or ("SyntaxError" in found.stdout and "11, False, (0, 0), []" in found.stdout), found
    crashed = (await arena.attack("import ctypes\nctypes.string_at(8)")).result
    assert (crashed.reason, "SIGSEGV" in crashed.summary) == ("crash", True), crashed
