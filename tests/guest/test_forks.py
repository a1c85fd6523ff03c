"""A program's forked children: they end as Python ends them, and the run stays its parent's."""

from __future__ import annotations

from typing import Any

import pytest

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
    [
        ("pass", 0, ""),
        ("raise SystemExit(7)", 7, ""),
        ("raise SystemExit('why')", 1, "why\n"),
    ],
)
def test_a_child_that_reaches_the_end_leaves_its_parents_calls_alone(
    guest_on: Any, program: str, statement: str, code: int, stderr: str
) -> None:
    finished = guest_on.run(program % statement)
    assert finished.value == {"text": str(code)}
    assert finished.stderr == stderr


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
    assert finished.value == {"text": "1"}
    assert finished.stdout == "hooked mine\n"
    assert finished.stderr == ""


def test_a_child_of_a_running_loop_may_end_or_use_its_copy_of_that_loop(guest_on: Any) -> None:
    finished = guest_on.run(
        """
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
"""
    )
    assert finished.value == ["slow", "last"]
    assert finished.stdout == "from the child\n"
    assert finished.stderr == ""


FORKING = {
    "exit handlers of the child": (
        """
import atexit, os
pid = os.fork()
if pid == 0:
    atexit.register(print, "the child's handler")
else:
    os.waitpid(pid, 0)
5 if pid else "the child's"
""",
        "the child's handler\n",
    ),
    "a child that outlives it": ("import os, time\nif os.fork() == 0: time.sleep(1000)\n5", ""),
    "a child of an exit handler": ("import atexit, os\natexit.register(os.fork)\n5", ""),
}


@pytest.mark.parametrize(("code", "stdout"), FORKING.values(), ids=FORKING)
def test_the_run_is_the_parents_alone(guest_on: Any, code: str, stdout: str) -> None:
    finished = guest_on.run(code)
    assert (finished.value, finished.stdout, finished.stderr) == (5, stdout, "")
    assert not finished.exit.timed_out


def test_a_child_may_run_its_copy_of_a_stopped_loop_in_which_an_answer_waits(
    guest_on: Any,
) -> None:
    """Both have one epoll: what the child forgets there, the parent would never hear of."""
    finished = guest_on.run(
        """
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
# Not for ever: it may have come, and been read, already.
select.select([max(sockets)], [], [], 2)
pid = os.fork()
if pid == 0:
    loop.run_until_complete(asyncio.sleep(0))
    os._exit(0)
os.waitpid(pid, 0)
[loop.run_until_complete(waiting).text, loop.run_until_complete(mcp_git_hub.echo("last")).text]
""",
        limits={"timeout": 20.0},
    )
    assert finished.value == ["slow", "last"]
    assert finished.stderr == ""
