"""What a program may rely on inside a run, on the oldest and the newest Python."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from bridge.guest.worker.environment import write_files
from bridge.guest.worker.program import importable
from tests.guest.finished import Case, programs

PROGRAMS = r"""
## a last expression: value=42
x = 20
x + 22
## lines that look like frames: stdout='\n\n()\n{"type":"exited"}\nExtracting\n  \n'
print('\n\n()\n{"type":"exited"}\nExtracting\n  \n', end='')
## output of children, in order: stdout='one\ntwo\n42\nthree\nfour', stderr='err\n'
import os, subprocess, sys
print("one")
os.write(1, b"two\n")
subprocess.run(["echo", "42"])
os.system("echo three")
print("four", end="")
print("err", file=sys.stderr)
## await at top level: value=['inside', [0, 2, 4]]
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
## loops in loops: value=['a', 'a', 'a', 'a', 'a', 'a']
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
## loops in threads: value=True
import asyncio
from concurrent.futures import ThreadPoolExecutor
def work(n):
    return asyncio.run(mcp_git_hub.echo(str(n))).text
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(work, range(20)))
found == [str(n) for n in range(20)]
## threads and exit handlers: stdout='main\nthread late\nexit handler\n'
import asyncio, atexit, threading
release = threading.Event()
def late():
    release.wait()
    print("thread", asyncio.run(mcp_git_hub.echo("late")).text)
threading.Thread(target=late).start()
atexit.register(print, "exit handler")
release.set()
print("main")
## get_event_loop: value=[3, 3]
import asyncio
async def main(): return 3
first = asyncio.get_event_loop().run_until_complete(main())
asyncio.run(main())
[first, asyncio.get_event_loop().run_until_complete(main())]
## no await on the last line: value={'text': 'a'}
mcp_git_hub.echo("a")
## no await: stdout='1\n', stderr=("RuntimeWarning: coroutine 'mcp_git_hub.echo' was never",)
x = mcp_git_hub.echo("a")
print(1)
## no await in the middle: stdout='1\n', stderr=('<run_python>:1: Runt', 'Put `await` before it.')
mcp_git_hub.echo("a")
print(1)
## another warning: value=1, stderr="<run_python>:2: UserWarning: old\n  warnings.warn('old')\n"
import warnings
warnings.warn('old')
1
## a format for warnings: stderr='mine\n'
import warnings
warnings.formatwarning = lambda *args, **kw: 'mine\n'
x = mcp_git_hub.echo('a')
## lone surrogates: value='a\ud800b', stdout='a\\ud800b\n'
print('a\ud800b')
'a\ud800b'
## no descriptors but its own: value=[[0, 1, 2], 1]
import os
fds = sorted(map(int, os.listdir('/proc/self/fd')))
[fds[:3], len([fd for fd in fds[3:] if os.path.exists(f'/proc/self/fd/{fd}')])]
## no channel for children: value=4
import subprocess, sys
code = 'import os; print(len(os.listdir("/proc/self/fd")))'
int(subprocess.run([sys.executable, '-c', code], close_fds=False, stdout=subprocess.PIPE).stdout)
## input and stdin: error=('no interactive input',), error_type='EOFError', stdout='5Name? '
import sys
refused = []
for read in (input, sys.stdin.read, sys.stdin.readline, lambda: list(sys.stdin),
             sys.stdin.buffer.read):
    try:
        read()
    except EOFError as e:
        refused += ["no interactive input in run_python" in str(e)]
print(sum(refused), end="")
input("Name? ")
## a module of its own: argv=['a', 'b'], stdout='[0, 1, 4, 9]\n', value={'x': 5}
import dataclasses, inspect, multiprocessing, pickle, sys, typing
@dataclasses.dataclass
class Point:
    x: int
def square(n):
    return n * n
assert __name__ == "__main__" and sys.modules["__main__"].Point is Point
assert pickle.loads(pickle.dumps(Point(3))) == Point(3)
assert inspect.getsource(square) == "def square(n):\n    return n * n\n"
assert typing.get_type_hints(Point) == {"x": int}
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(pool.map(square, range(4)))
assert sys.argv == ['run_python', 'a', 'b']
Point(5)
## the documented names only: value=True
sorted(n for n in globals() if not n.startswith('__')) == [
    "Blob", "LOADED_MCP_SERVERS", "MCPError", "delete_memory", "get_memory_info", "list_memories",
    "load_memory", "mcp", "mcp_git_hub", "mcp_mail", "mcp_servers", "memory_exists", "runtime",
    "save_memory", "save_tool", "update_memory",
]
## imports from the working directory: value=6
open('mine.py', 'w').write('value = 6')
import mine
mine.value
## an exit inside the event loop: exit_code=3, code=3, stderr=()
import asyncio, sys
async def leave(): sys.exit(3)
await asyncio.gather(leave(), asyncio.sleep(1000))
## a failed background task: stderr=('lost?',)
import asyncio
async def bad():
    raise ValueError("lost?")
task = asyncio.ensure_future(bad())
await asyncio.sleep(0.01)
## resource limits: limits={'open_files': 100, 'file_bytes': 4096, 'cpu_seconds': 50}, value=True
import resource as r
numbers = r.RLIMIT_NOFILE, r.RLIMIT_FSIZE, r.RLIMIT_CPU, r.RLIMIT_CORE
[r.getrlimit(n)[0] for n in numbers] == [100, 4096, 50, 0]
## a limit of memory: limits={'data_bytes': 1073741824}, value=1073741824
import resource as r
r.getrlimit(r.RLIMIT_DATA)[0]
## reserved addresses and threads are not memory: limits={'data_bytes': 536870912}, value=64
import mmap, concurrent.futures as f, threading as t
shared = mmap.mmap(-1, 4 << 30)
meet = t.Barrier(64)
pool = f.ThreadPoolExecutor(64)
len(set(pool.map(lambda _: (meet.wait(), t.get_ident())[1], range(64))))
## an end without imports: stdout='x\n', value=7
import sys
sys.modules.pop('atexit', None)
sys.meta_path.clear()
print('x')
7
## an abrupt exit: done=None, code=7, stdout='kept\n'
import os
print('kept')
os._exit(7)
## a file next to its data: files=['a.txt'], stdout="True ['out', 'run_python.py']\n"
import os
from pathlib import Path
(Path(__file__).parent / "out" / "a.txt").write_text(Path(__file__).name)
if __name__ == "__main__":
    print(len(open(__file__).read()) > 100, sorted(os.listdir()))
## Pythons that read PYTHONPATH and site: stdout='[]\n[]\n'
import subprocess
print(subprocess._args_from_interpreter_flags())
import multiprocessing.util as u
print(u._args_from_interpreter_flags())
"""


@programs(PROGRAMS)
def test_a_program_does_what_python_would(guest_on: Any, case: Case) -> None:
    case.check(guest_on)


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
    assert (finished.outcome.outcome, finished.exit_code, finished.code) == ("exit", code, code)
    # The text is in stderr only: a client that shows both would show it twice.
    assert (finished.stdout, finished.stderr, finished.error) == ("before\n", stderr, "")


def test_a_program_from_a_file_has_the_files_name(make_guest: Any) -> None:
    code = "import sys\nprint(sys.argv)\ndef f():\n    raise ValueError('x')\nf()"
    finished = make_guest().run(code, name="report.py", argv=["a"])
    assert finished.stdout == "['report.py', 'a']\n"
    assert 'File "report.py", line 5, in <module>\n    f()\n' in finished.error
    assert 'File "report.py", line 4, in f\n' in finished.error


@pytest.mark.parametrize(
    ("code", "signal"),
    [
        ("import os; os.abort()", 6),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 9),
        ("import ctypes\n\nctypes.string_at(0)", 11),
    ],
)
def test_a_crash_is_reported_by_its_signal(make_guest: Any, code: str, signal: int) -> None:
    finished = make_guest().run(f"print('kept')\n{code}")
    assert (finished.done, finished.signal, finished.stdout) == (None, signal, "kept\n")
    assert 'File "<run_python>", line 4 in <module>' in finished.stderr or signal != 11


def test_files_in_the_working_directory_never_reach_the_supervisor(
    make_guest: Any, tmp_path: Path
) -> None:
    for name in ("json", "asyncio", "socket", "traceback", "bridge", "ctypes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('imported')")
    assert make_guest().run("import json, asyncio\njson.dumps(1)").value == "1"


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
    assert (finished.error_type, finished.out_of_memory) == ("MemoryError", ran_out)
    assert "line 1" in finished.error or not ran_out


def test_hello_has_the_facts_of_the_guest(guest_on: Any) -> None:
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


POOL = """
import multiprocessing
from mcp import runtime
FACTOR = 3
table = dict(a=1)
@(lambda f: f)
def times(x): return x * FACTOR
{guard}with multiprocessing.get_context({method!r}).Pool(2) as pool:
    {indent}print(pool.map(times, range(4)))
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("guard", ["", 'if __name__ == "__main__":\n    '])
def test_pools_of_every_kind_run_the_programs_functions(
    guest_on: Any, method: str, guard: str
) -> None:
    code = POOL.format(method=method, guard=guard, indent="    " if guard else "")
    finished = guest_on.run(code if guard == "" else code.replace("from mcp import runtime", ""))
    assert (finished.stdout, finished.stderr) == ("[0, 3, 6, 9]\n", "")


def test_the_importable_text_has_definitions_on_their_lines() -> None:
    text = "import a\nx = 1\nrows = f(x)\n\ndef g():\n    return rows\nawait g()\nfor r in x: ...\n"
    assert importable(text) == "import a\nx = 1\n\n\ndef g():\n    return rows\n\n\n"
    guarded = 'rows = f(1)\nif __name__ == "__main__":\n    print(rows)\n'
    assert importable(guarded) == guarded
    awaiting = 'def g(): ...\nif __name__ == "__main__":\n    await g()\n'
    assert importable(awaiting) == "def g(): ...\n\n\n"


def inputs(**files: bytes) -> list[dict[str, str]]:
    return [
        {"name": name.replace("__", "/"), "data": base64.b64encode(data).decode()}
        for name, data in files.items()
    ]


def test_input_files_replace_existing_files_and_links_but_not_their_targets(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a longer one of an earlier run")
    (tmp_path / "elsewhere").write_text("untouched")
    (tmp_path / "b").symlink_to("elsewhere")
    files = inputs(a=b"\0\xff\n", b=b"", c__d__e=b"1", c__f=b"2")
    assert write_files(files, str(tmp_path)) is None
    assert files == []
    assert (tmp_path / "a").read_bytes() == b"\0\xff\n"
    assert (tmp_path / "b").read_bytes() == b""
    assert not (tmp_path / "b").is_symlink()
    assert (tmp_path / "elsewhere").read_text() == "untouched"
    assert (tmp_path / "c" / "d" / "e").read_bytes() + (tmp_path / "c" / "f").read_bytes() == b"12"


def test_an_input_file_that_cannot_be_written_ends_the_run_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "f").touch()
    done = write_files(inputs(a=b"1"), str(tmp_path))
    assert done is not None
    assert (done.outcome, done.exit_code, done.error_type) == ("exception", 1, "IsADirectoryError")
    assert "the file 'a' could not be put into the working directory" in done.error
    done = write_files(inputs(f__x=b"1"), str(tmp_path))
    assert done is not None
    assert "'f/x'" in done.error
