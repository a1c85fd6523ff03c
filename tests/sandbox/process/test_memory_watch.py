"""Memory where no control group bounds it: counted from outside, and only what is really held."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import MEBIBYTE, Limits, RunRequest
from bridge.runs import open_engine
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.process.landlock_backend import LandlockBackend
from bridge.settings import Settings, load
from tests.engine_rig import ListFinder
from tests.sandbox.process.rig import run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

LIMITS = replace(Limits(), memory_bytes=128 * MEBIBYTE, timeout=60)


@pytest.fixture(params=[BubblewrapBackend, LandlockBackend])
async def unlimited(
    request: pytest.FixtureRequest,
) -> AsyncIterator[BubblewrapBackend | LandlockBackend]:
    async with request.param(environ={"PATH": "/usr/bin:/bin"}) as backend:
        found = await backend._look_around()
        around = replace(found.around, controllers=frozenset(), limits_elsewhere="none here")
        backend._found = replace(found, cgroup_parents=(), around=around)
        yield backend


FORK = """
import mmap, os, sys, threading, time
size = {size} << 20
r, w = os.pipe()
def hold(block):
    # One write a page.
    for at in range(0, len(block), 4096):
        block[at] = 1
    return block
def fork(work):
    pid = os.fork()
    if not pid:
        work()
        time.sleep(600)
        os._exit(0)
    return pid
"""

BOMBS = {
    "one big allocation": "kept = hold(bytearray(size * 2))",
    "many small ones": "kept = [hold(bytearray(1 << 20)) for _ in range({size} * 2)]",
    "many processes": (
        "for _ in range(16): fork(lambda: globals().update(kept=hold(bytearray(size // 8))))"
    ),
    "orphans": (
        "def more():\n"
        "    os.setsid()\n"
        "    for _ in range(16): fork(lambda: globals().update(kept=hold(bytearray(size // 8))))\n"
        "    os._exit(0)\n"
        "fork(more)"
    ),
    "processes that hide": (
        "import ctypes\n"
        "def hide():\n"
        "    ctypes.CDLL(None).prctl(4, 0)\n"
        "    globals().update(kept=hold(bytearray(size // 8)))\n"
        "for _ in range(16): fork(hide)"
    ),
    "shared memory": "kept = hold(mmap.mmap(-1, size * 2))",
    "shared memory of many": (
        "for _ in range(16): fork(lambda: globals().update(kept=hold(mmap.mmap(-1, size // 8))))"
    ),
    "from a thread that outlives the first": (
        "import ctypes\n"
        "c = ctypes.CDLL(None)\n"
        "def outlive(first):\n"
        "    c.pthread_join(ctypes.c_ulong(first), None)\n"
        "    kept = hold(bytearray(size * 2))\n"
        "    time.sleep(600)\n"
        "def end():\n"
        "    threading.Thread(target=outlive, args=(threading.get_ident(),)).start()\n"
        "    c.pthread_exit(None)\n"
        "fork(end)"
    ),
    "after thousands of processes that end": (
        "for _ in range(2000): os.waitpid(os.fork() or os._exit(0), 0)\n"
        "fork(lambda: globals().update(kept=hold(bytearray(size * 2))))"
    ),
    "of a thread among thousands that end": (
        "def churn():\n"
        "    while True: threading.Thread(target=int).start()\n"
        "threading.Thread(target=churn, daemon=True).start()\n"
        # Not forked: what the other threads hold would stay locked in the copy.
        "code = 'import time; kept = b\"x\" * ({size} << 21); time.sleep(600)'\n"
        "words = (sys.executable, '-I', '-S', '-c', code)\n"
        "os.set_inheritable(w, True)\n"
        "threading.Thread(target=os.posix_spawn, args=(words[0], words, {})).start()"
    ),
}


@pytest.mark.parametrize("bomb", BOMBS)
async def test_what_holds_more_than_the_limit_is_killed(
    unlimited: BubblewrapBackend | LandlockBackend, bomb: str
) -> None:
    size = LIMITS.memory_bytes // MEBIBYTE
    program = FORK.format(size=size) + BOMBS[bomb].replace("{size}", str(size))
    # Until all that it has started is gone; alone it holds its memory until it is killed.
    started = any(word in BOMBS[bomb] for word in ("fork(", "spawn"))
    end = "\nos.close(w)\nos.read(r, 1)\nos._exit(0)" if started else "\ntime.sleep(600)"
    ran = await run(unlimited, program + end, limits=LIMITS)
    assert ran.report.oom_killed is True, ran


async def test_files_in_memory_count(unlimited: BubblewrapBackend | LandlockBackend) -> None:
    if unlimited.name == "landlock":
        pytest.skip("it has no directories in memory")
    quarter = LIMITS.memory_bytes // 4
    limits = replace(LIMITS, tmp_bytes=quarter + MEBIBYTE, workspace_bytes=quarter + MEBIBYTE)
    program = FORK.format(size=96) + (
        f"for d in ('/tmp', '/workspace'): open(d + '/f', 'wb').write(b'x' * {quarter})\n"
        "print('filled', flush=True)\n"
        "kept = hold(bytearray(size))\n"
        "time.sleep(600)"
    )
    ran = await run(unlimited, program, limits=limits)
    assert (ran.out, ran.report.oom_killed) == ("filled\n", True)


HARMLESS = {
    "reserved addresses": "kept = mmap.mmap(-1, 8 << 30)",
    "a pool of threads": (
        "meet = threading.Barrier(64)\n"
        "all_ = [threading.Thread(target=meet.wait) for _ in range(63)]\n"
        "[t.start() for t in all_]; meet.wait(); [t.join() for t in all_]"
    ),
    "memory that children share": (
        "kept = hold(bytearray(size // 2))\n"
        "pids = [fork(lambda: (time.sleep(0.5), os._exit(0))) for _ in range(8)]\n"
        "[os.waitpid(pid, 0) for pid in pids]"
    ),
    "a large parent of short commands": (
        "kept = hold(bytearray(size * 5 // 8))\n"
        "for _ in range(200):\n"
        "    pid = os.posix_spawn(sys.executable, ['python3', '--version'], {})\n"
        "    os.waitpid(pid, 0)"
    ),
    "a command that is not executed yet": (
        "os.mkfifo('gate')\n"
        "fork(lambda: (time.sleep(0.5), os.open('gate', os.O_WRONLY)))\n"
        "kept = hold(bytearray(size * 5 // 8))\n"
        "first = [(os.POSIX_SPAWN_OPEN, 0, 'gate', os.O_RDONLY, 0)]\n"
        "args = [sys.executable, '--version']\n"
        "os.waitpid(os.posix_spawn(sys.executable, args, {}, file_actions=first), 0)"
    ),
    "a mapped file": (
        "with open('/tmp/f', 'wb+') as file:\n"
        "    file.truncate(size // 4)\n"
        "    kept = hold(mmap.mmap(file.fileno(), size // 4))\n"
        "more = hold(bytearray(size * 5 // 8))"
    ),
    "memory given back": "for _ in range(20): hold(bytearray(size * 5 // 8))",
}


@pytest.mark.parametrize("program", HARMLESS)
async def test_what_holds_less_runs(
    unlimited: BubblewrapBackend | LandlockBackend, program: str
) -> None:
    if unlimited.name == "landlock" and "/tmp" in HARMLESS[program]:
        pytest.skip("it has no directories in memory")
    code = FORK.format(size=LIMITS.memory_bytes // MEBIBYTE) + HARMLESS[program]
    ran = await run(unlimited, code + "\nprint('done')", limits=LIMITS)
    assert ran.report.exit_code == 0, ran
    assert ran.report.oom_killed is False
    assert ran.out.endswith("done\n")


async def test_a_program_that_is_killed_for_memory_is_told_so(
    unlimited: BubblewrapBackend | LandlockBackend, tmp_path: Path
) -> None:
    async def choose(_: Settings) -> BubblewrapBackend | LandlockBackend:
        return unlimited

    environ = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    settings = load({"warm": "0", "memory": "128m"}, environ)
    code = (
        "print('before')\nopen('out/a.txt', 'w').write('kept')\nblock = b'x' * (1 << 28)\n"
        "while True: block[0]"
    )
    async with open_engine(settings, finder=ListFinder(), choose_backend=choose) as engine:
        result = await engine.run(RunRequest(code=code))
        assert (result.reason, result.stdout) == ("oom", "before\n"), result
        assert [file.name for file in result.artifacts] == ["a.txt"]
        assert "ran out of memory (limit 128 MiB" in result.error
        raised = await engine.run(RunRequest(code="b'x' * (1 << 33)"))
        assert (raised.reason, "MemoryError" in raised.error) == ("oom", True), raised
        said = await engine.run(RunRequest(code="raise MemoryError('x')"))
        assert (said.reason, said.summary) == ("exception", "The program raised MemoryError: x")


DATA = ("numpy==2.3.5", "pandas==2.3.3", "matplotlib==3.10.7", "scikit-learn==1.7.2")

DATA_WORK = """
import threading, matplotlib.pyplot as plt, pandas as pd
from concurrent.futures import ThreadPoolExecutor
from sklearn.linear_model import LinearRegression
frame = pd.DataFrame({"x": range(6_000_000)}, dtype="float64").assign(y=lambda f: -f.x)
frame = frame.sort_values("y")
plt.scatter(frame.x[:100], frame.y[:100])
meet = threading.Barrier(64)
threads = list(ThreadPoolExecutor(64).map(lambda _: meet.wait(), range(64)))
[round(LinearRegression().fit(frame[["x"]], frame.y).coef_[0]), len(threads)]
"""
