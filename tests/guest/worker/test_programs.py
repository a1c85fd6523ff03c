"""What a program may rely on inside a run, on the oldest and the newest Python."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("tmp_path")

NOT_AWAITED = (
    "RuntimeWarning: coroutine 'mcp_git_hub.echo' was never awaited; nothing was sent or run. Put "
    "`await` before it.\n"
)
LOOKALIKES = '\n\n()\n{"type":"exited"}\nExtracting\n  \n'

PROGRAMS: dict[str, tuple[str, Any, str, str]] = {
    "a last expression": ("x = 20\nx + 22", 42, "", ""),
    "lines that look like frames": (f"print({LOOKALIKES!r}, end='')", None, LOOKALIKES, ""),
    "output of children, in order": (
        """
        import os, subprocess, sys
        print("one")
        os.write(1, b"two\\n")
        subprocess.run(["echo", "42"])
        os.system("echo three")
        print("four", end="")
        print("err", file=sys.stderr)
        """,
        None,
        "one\ntwo\n42\nthree\nfour",
        "err\n",
    ),
    "await at top level": (
        """
import asyncio
async def double(n):
    await asyncio.sleep(0)
    return n * 2
class Context:
    async def __aenter__(self): return "inside"
    async def __aexit__(self, *exc): return None
async with Context() as where:
    pass
[where, [await double(n) for n in range(3)]]
""",
        ["inside", [0, 2, 4]],
        "",
        "",
    ),
    "loops in loops": (
        """
import asyncio
async def main():
    return (await mcp_git_hub.echo(text="a")).text
first = asyncio.run(main())
second = await main()
third = asyncio.run(main())
loop = asyncio.get_running_loop()
fourth = loop.run_until_complete(main())
other = asyncio.new_event_loop()
fifth = other.run_until_complete(main())
other.close()
async def nested():
    return asyncio.run(main())
[first, second, third, fourth, fifth, asyncio.run(nested())]
""",
        ["a"] * 6,
        "",
        "",
    ),
    "loops in threads": (
        """
import asyncio
from concurrent.futures import ThreadPoolExecutor
def work(n):
    return asyncio.run(mcp_git_hub.echo(str(n))).text
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(work, range(20)))
found
""",
        [str(n) for n in range(20)],
        "",
        "",
    ),
    "threads and exit handlers": (
        """
import asyncio, atexit, threading
release = threading.Event()
def late():
    release.wait()
    print("thread", asyncio.run(mcp_git_hub.echo("late")).text)
threading.Thread(target=late).start()
atexit.register(print, "exit handler")
release.set()
print("main")
""",
        None,
        "main\nthread late\nexit handler\n",
        "",
    ),
    "get_event_loop": (
        """
import asyncio
async def main(): return 3
first = asyncio.get_event_loop().run_until_complete(main())
asyncio.run(main())
[first, asyncio.get_event_loop().run_until_complete(main())]
""",
        [3, 3],
        "",
        "",
    ),
    "no await on the last line": ('mcp_git_hub.echo("a")', {"text": "a"}, "", ""),
    "no await": ('x = mcp_git_hub.echo("a")\nprint(1)', None, "1\n", NOT_AWAITED),
    "no await in the middle": (
        'mcp_git_hub.echo("a")\nprint(1)',
        None,
        "1\n",
        f"<run_python>:1: {NOT_AWAITED}",
    ),
    "another warning": (
        "import warnings\nwarnings.warn('old')\n1",
        1,
        "",
        "<run_python>:2: UserWarning: old\n  warnings.warn('old')\n",
    ),
    "a format for warnings": (
        (
            "import warnings\nwarnings.formatwarning = lambda *args, **kw: 'mine\\n'\n"
            "x = mcp_git_hub.echo('a')\n"
        ),
        None,
        "",
        "mine\n",
    ),
    "lone surrogates": ("print('a\\ud800b')\n'a\\ud800b'", "a\ud800b", "a\\ud800b\n", ""),
    "no descriptors but its own": (
        (
            "import os\nfds = sorted(map(int, os.listdir('/proc/self/fd')))\n"
            "[fds[:3], [fd for fd in fds[3:] if os.path.exists(f'/proc/self/fd/{fd}')].__len__()]"
        ),
        [[0, 1, 2], 1],
        "",
        "",
    ),
    "no channel for children": (
        (
            "import subprocess, sys\n"
            "code = 'import os; print(len(os.listdir(\"/proc/self/fd\")))'\n"
            "int(subprocess.run([sys.executable, '-c', code], close_fds=False, "
            "stdout=subprocess.PIPE).stdout)"
        ),
        4,
        "",
        "",
    ),
}
"""Name to program, its result (None for none), what it prints, and what it prints to stderr."""


@pytest.mark.parametrize(("code", "value", "stdout", "stderr"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_program_does_what_python_would(
    guest_on: Any, code: str, value: Any, stdout: str, stderr: str
) -> None:
    finished = guest_on.run(code)
    assert (finished.stdout, finished.stderr) == (stdout, stderr)
    assert finished.outcome.outcome == "ok", finished.outcome.error
    if not finished.outcome.assigned:
        assert finished.outcome.result == value
    assert (finished.exit.code, finished.status) == (0, 0)


@pytest.mark.parametrize(
    ("statement", "code", "stderr"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit(-1)", 255, ""),
        ("sys.exit('bad')", 1, "bad\n"),
        ("exit(4)", 4, ""),
        ("raise SystemExit", 0, ""),
    ],
)
def test_exits_mean_what_they_mean_to_python(
    make_guest: Any, statement: str, code: int, stderr: str
) -> None:
    finished = make_guest().run(f"import sys\nprint('before')\n{statement}\nprint('after')")
    assert (finished.outcome.outcome, finished.outcome.exit_code) == ("exit", code)
    assert finished.exit.code == code
    assert finished.stdout == "before\n"
    assert finished.stderr == stderr
    # The text stands in stderr; a client that shows both would show it twice.
    assert finished.outcome.error == ""


def test_a_program_from_a_file_goes_by_the_files_name(make_guest: Any) -> None:
    code = "import sys\nprint(sys.argv)\ndef f():\n    raise ValueError('x')\nf()"
    finished = make_guest().run(code, name="report.py", argv=["a"])
    assert finished.stdout == "['report.py', 'a']\n"
    assert 'File "report.py", line 5, in <module>\n    f()\n' in finished.outcome.error
    assert 'File "report.py", line 4, in f\n' in finished.outcome.error
    assert make_guest().run("import sys\nprint(sys.argv)").stdout == "['run_python']\n"


def test_an_abrupt_exit_loses_no_output_and_sends_no_done(guest_on: Any) -> None:
    finished = guest_on.run("import os\nprint('kept')\nos._exit(7)")
    assert finished.done is None
    assert finished.exit.code == 7
    assert finished.stdout == "kept\n"


@pytest.mark.parametrize(
    ("code", "signal"),
    [
        ("import os; os.abort()", 6),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 9),
        ("import ctypes; ctypes.string_at(0)", 11),
    ],
)
def test_a_crash_is_reported_by_its_signal(make_guest: Any, code: str, signal: int) -> None:
    finished = make_guest().run(f"print('kept')\n{code}")
    assert finished.done is None
    assert finished.exit.signal == signal
    assert finished.stdout == "kept\n"


def test_input_and_stdin_say_that_no_one_is_there(guest_on: Any) -> None:
    finished = guest_on.run(
        """
import sys
for read in (input, sys.stdin.read, sys.stdin.readline, lambda: list(sys.stdin),
             sys.stdin.buffer.read):
    try:
        read()
    except EOFError as e:
        print(e)
input("Name? ")
"""
    )
    assert finished.stdout.count("no interactive input in run_python") == 5
    assert finished.stdout.endswith("Name? ")
    assert finished.outcome.error_type == "EOFError"
    assert "no interactive input" in finished.outcome.error


def test_main_is_a_module_of_its_own(guest_on: Any) -> None:
    finished = guest_on.run(
        """
import dataclasses, inspect, multiprocessing, pickle, sys, typing
@dataclasses.dataclass
class Point:
    x: int
def square(n):
    return n * n
assert __name__ == "__main__" and sys.modules["__main__"].Point is Point
assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
assert inspect.getsource(square) == "def square(n):\\n    return n * n\\n"
assert typing.get_type_hints(Point) == {"x": int}
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(square, range(4)))
[sys.argv, Point(5)]
""",
        argv=["a", "b"],
    )
    assert finished.outcome.error == ""
    assert finished.stdout == "[0, 1, 4, 9]\n"
    assert finished.outcome.result == [["run_python", "a", "b"], {"x": 5}]


def test_only_the_documented_names_are_there(guest_on: Any) -> None:
    finished = guest_on.run("sorted(n for n in globals() if not n.startswith('__'))")
    assert finished.value == [
        "Blob",
        "LOADED_MCP_SERVERS",
        "MCPError",
        *("delete_memory", "get_memory_info", "list_memories", "load_memory"),
        *("mcp", "mcp_git_hub", "mcp_mail", "mcp_servers", "memory_exists", "runtime"),
        *("save_memory", "save_tool", "update_memory"),
    ]


def test_files_in_the_working_directory_can_be_imported(guest_on: Any) -> None:
    finished = guest_on.run(
        "open('mine.py', 'w').write('value = 6')\nimport mine, os\n[mine.value, os.getcwd()]"
    )
    assert finished.value == [6, str(guest_on.cwd)]


def test_files_in_the_working_directory_never_reach_the_supervisor(
    make_guest: Any, tmp_path: Any
) -> None:
    for name in ("json", "asyncio", "socket", "traceback", "bridge", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    assert make_guest().run("import json, asyncio\njson.dumps(1)").value == "1"


def test_an_exit_from_inside_the_event_loop_is_an_exit(guest_on: Any) -> None:
    finished = guest_on.run(
        "import asyncio, sys\nasync def leave(): sys.exit(3)\n"
        "await asyncio.gather(leave(), asyncio.sleep(1000))"
    )
    assert (finished.outcome.outcome, finished.outcome.exit_code) == ("exit", 3)


def test_a_failed_background_task_is_heard_of(guest_on: Any) -> None:
    finished = guest_on.run(
        """
import asyncio
async def bad():
    raise ValueError("lost?")
task = asyncio.ensure_future(bad())
await asyncio.sleep(0.01)
"""
    )
    assert "lost?" in finished.stderr


def test_rlimits_asked_for_are_in_force(guest_on: Any) -> None:
    finished = guest_on.run(
        "import resource as r\n"
        "[r.getrlimit(n)[0] for n in (r.RLIMIT_DATA, r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, "
        "r.RLIMIT_CPU, r.RLIMIT_CORE)]",
        limits={
            "data_bytes": 1 << 30,
            "open_files": 100,
            "file_bytes": 4096,
            "cpu_seconds": 50,
        },
    )
    assert finished.value == [1 << 30, 100, 4096, 50, 0]


@pytest.mark.parametrize(
    ("program", "ran_out"),
    [
        ("x = bytearray(2 << 30)", True),
        ("try: x = bytearray(2 << 30)\nexcept MemoryError as error: raise error", True),
        ("raise MemoryError('x')", False),
        ("class MemoryError(MemoryError): pass\nraise MemoryError", False),
    ],
)
def test_only_an_allocation_that_fails_runs_out_of_memory(
    guest_on: Any, program: str, ran_out: bool
) -> None:
    finished = guest_on.run(program, limits={"data_bytes": 512 << 20})
    assert finished.outcome.error_type == "MemoryError"
    assert "line 1" in finished.outcome.error or not ran_out
    assert finished.outcome.out_of_memory is ran_out


def test_reserved_addresses_and_a_pool_of_threads_are_no_memory(guest_on: Any) -> None:
    finished = guest_on.run(
        "import mmap, concurrent.futures as f, threading as t\n"
        "shared = mmap.mmap(-1, 4 << 30)\n"
        "meet = t.Barrier(64)\n"
        "pool = f.ThreadPoolExecutor(64)\n"
        "len(set(pool.map(lambda _: (meet.wait(), t.get_ident())[1], range(64))))",
        limits={"data_bytes": 512 << 20},
    )
    assert finished.value == 64, finished.outcome.error


def test_hello_tells_what_the_guest_sees(guest_on: Any) -> None:
    hello = guest_on.hello()
    assert hello.facts["precompiled"] is False
    assert {"uid", "kernel", "cap_eff", "no_new_privs", "seccomp", "interfaces"} <= set(hello.facts)
    json.dumps(hello.facts)


def test_the_whole_works_on_every_python(make_guest: Any, every_python: str) -> None:
    finished = make_guest(every_python).run(
        """
import asyncio
from mcp.servers.git_hub import echo
import threading
values = await asyncio.gather(*[echo(str(n)) for n in range(10)])
threading.Thread(target=print, args=("joined",)).start()
assert asyncio.run(echo("x")).text == "x"
help(mcp_git_hub.echo)
[v.text for v in values]
"""
    )
    assert finished.value == [str(n) for n in range(10)]
    assert "What to say." in finished.stdout
    assert finished.stderr == ""


def test_a_program_after_which_nothing_can_be_imported_ends_like_any_other(guest_on: Any) -> None:
    finished = guest_on.run(
        "import sys\nsys.modules.pop('atexit', None)\nsys.meta_path.clear()\nprint('x')\n7"
    )
    assert finished.value == 7
    assert finished.stdout == "x\n"
    assert finished.exit.code == 0
