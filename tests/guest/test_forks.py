"""A program's forked children: they end as Python ends them, and the run stays its parent's."""

from __future__ import annotations

from typing import Any

import pytest

from tests.guest.finished import Case, programs

PLAIN = """
import asyncio, os
pid = os.fork()
if pid == 0: %s
code = os.waitpid(pid, 0)[1] >> 8 if pid else -1
asyncio.run(mcp_git_hub.echo(str(code))) if pid else "the child's"
"""

AWAITING = """
import os
await mcp_git_hub.echo("first")
pid = os.fork()
if pid == 0: %s
code = os.waitpid(pid, 0)[1] >> 8 if pid else -1
(await mcp_git_hub.echo(str(code))) if pid else "the child's"
"""


@pytest.mark.parametrize("program", [PLAIN, AWAITING])
@pytest.mark.parametrize(
    ("statement", "code", "stderr"),
    [("pass", 0, ""), ("raise SystemExit(7)", 7, ""), ("raise SystemExit('why')", 1, "why\n")],
)
def test_a_child_that_reaches_the_end_leaves_its_parents_calls_alone(
    guest_on: Any, program: str, statement: str, code: int, stderr: str
) -> None:
    finished = guest_on.run(program % statement)
    assert (finished.value, finished.stderr) == ({"text": str(code)}, stderr)


@pytest.mark.parametrize("program", [PLAIN, AWAITING])
def test_a_child_shows_its_own_exception_and_nothing_of_the_guest(
    guest_on: Any, program: str
) -> None:
    finished = guest_on.run(program % "raise ValueError('mine')")
    assert finished.value == {"text": "1"}
    assert finished.stderr.startswith("Traceback (most recent call last):\n")
    assert finished.stderr.endswith("ValueError: mine\n")
    assert finished.stderr.count("File ") == finished.stderr.count('File "<run_python>"') == 1


def test_a_childs_exception_goes_to_the_programs_own_hook_instead(guest_on: Any) -> None:
    hook = "import sys\nsys.excepthook = lambda *args: print('hooked', args[1])\n"
    finished = guest_on.run(hook + PLAIN % "raise ValueError('mine')")
    assert (finished.value, finished.stdout) == ({"text": "1"}, "hooked mine\n")
    assert finished.stderr == ""


PROGRAMS = r"""
## exit handlers of the child: value=5, stdout="the child's handler\n"
import atexit, os
pid = os.fork()
if pid == 0:
    atexit.register(print, "the child's handler")
else:
    os.waitpid(pid, 0)
5 if pid else "the child's"
## a child that outlives it: value=5
import os, time
if os.fork() == 0: time.sleep(1000)
5
## a child of an exit handler: value=5
import atexit, os
atexit.register(os.fork)
5
## a child that uses its copy of a running loop: value=['slow', 'last'], stdout='from the child\n'
import asyncio, os
async def main():
    await mcp_git_hub.echo("first")
    waiting = asyncio.ensure_future(mcp_git_hub.echo("slow"))
    await asyncio.sleep(0)
    pid = os.fork()
    if pid == 0:
        loop = waiting.get_loop()
        soon = loop.create_future()
        loop.call_soon_threadsafe(soon.set_result, "from the child")
        print(await soon)
        return None
    os.waitpid(pid, 0)
    return [(await waiting).text, (await mcp_git_hub.echo("last")).text]
asyncio.run(main())
## a child that runs a stopped loop with an answer: value=['slow', 'last'], limits={'timeout': 20.0}
# Both processes have one epoll: the parent never learns of an event that the child consumes.
import asyncio, os, select, stat
loop = asyncio.new_event_loop()
async def begin(): return asyncio.ensure_future(mcp_git_hub.echo("slow"))
waiting = loop.run_until_complete(begin())
loop.run_until_complete(asyncio.sleep(0))
sockets = []
for name in os.listdir("/dev/fd"):
    try:
        if stat.S_ISSOCK(os.fstat(int(name)).st_mode): sockets.append(int(name))
    except OSError: pass
# With a time limit: the answer may have been read already.
select.select([max(sockets)], [], [], 2)
pid = os.fork()
if pid == 0:
    loop.run_until_complete(asyncio.sleep(0))
    os._exit(0)
os.waitpid(pid, 0)
[loop.run_until_complete(waiting).text, loop.run_until_complete(mcp_git_hub.echo("last")).text]
"""


@programs(PROGRAMS)
def test_the_run_is_the_parents_alone(guest_on: Any, case: Case) -> None:
    assert not case.check(guest_on).timed_out
