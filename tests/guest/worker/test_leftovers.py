"""What happens to tasks, threads and coroutines that a program leaves at its end."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.guest.protocol.wire import Call
from tests.guest.conftest import Session
from tests.guest.finished import Case, programs

SAVE = "import asyncio\nasync def save(n): await mcp_git_hub.echo(text=str(n))\n"
MAIN = "async def main():\n    for n in range(3): asyncio.create_task(save(n))\n"

THREE_WRITES = {
    "tasks at top level": "for n in range(3): asyncio.create_task(save(n))",
    "tasks next to an await": "[asyncio.create_task(save(n)) for n in range(3)]\nawait save(3)",
    "tasks of main": MAIN + "await main()",
    "asyncio.run": MAIN + "asyncio.run(main())",
    "asyncio.run in a loop": MAIN + "await asyncio.sleep(0)\nasyncio.run(main())",
    "run_until_complete": MAIN + "asyncio.get_event_loop().run_until_complete(main())",
    "run_until_complete in a loop": MAIN
    + "await asyncio.sleep(0)\nasyncio.get_event_loop().run_until_complete(main())",
    "tasks of tasks": MAIN + "asyncio.create_task(main())",
    "a task before an error": MAIN + "try:\n    asyncio.run(main())\nfinally: pass",
    "gather as the last line": "asyncio.gather(*[save(n) for n in range(3)])",
    "threads": "import threading\nfor n in range(3):\n"
    "    threading.Thread(target=lambda n=n: asyncio.run(save(n))).start()",
    "a pool": "from concurrent.futures import ThreadPoolExecutor\n"
    "pool = ThreadPoolExecutor(2)\n"
    "for n in range(3): pool.submit(lambda n=n: asyncio.run(save(n)))",
}


@pytest.mark.parametrize("program", THREE_WRITES.values(), ids=THREE_WRITES)
def test_what_was_started_is_sent_before_the_result(guest_on: Any, program: str) -> None:
    finished = guest_on.run(SAVE + program)
    sent = {call.params["arguments"]["text"] for call in finished.calls}
    assert {"0", "1", "2"} <= sent
    assert finished.exit.code == 0
    assert (finished.stderr, finished.unsent) == ("", [])


@pytest.mark.parametrize("program", THREE_WRITES.values(), ids=THREE_WRITES)
def test_what_was_started_in_a_session_is_sent_before_the_result(
    session: Session, program: str
) -> None:
    first = session.run(SAVE + program)
    assert {"0", "1", "2"} <= {call.params["arguments"]["text"] for call in first.calls}
    after = session.run("1")
    assert (after.calls, after.stderr, after.value) == ([], "", 1)


def test_calls_that_take_long_are_waited_for(guest_on: Any) -> None:
    held: list[Call] = []

    def answer(guest: Any, call: Call) -> None:
        held.append(call)
        if len(held) == 3:
            for each in held:
                guest.reply(each.id, {"json": 1})

    tasks = "tasks = [asyncio.create_task(save(n)) for n in range(3)]\n"
    finished = guest_on.run(SAVE + tasks + "'all 3 saved'", answer)
    assert (len(held), finished.value) == (3, "all 3 saved")


PROGRAMS = r"""
## a task that sleeps: value='done', unsent=['beat (line 3)']
import asyncio
async def beat():
    await asyncio.sleep(60)
asyncio.create_task(beat())
'done'
## a task that waits: value='done', unsent=['beat (line 3)']
import asyncio
async def beat():
    await asyncio.Event().wait()
asyncio.create_task(beat())
'done'
## many tasks: value='done', unsent=('beat (line 3)', '30 more')
import asyncio
async def beat():
    await asyncio.sleep(60)
for n in range(50): asyncio.create_task(beat())
'done'
## a coroutine: value='done', unsent=['mcp_git_hub.echo (not awaited)'], stderr=('`await`',)
x = mcp_git_hub.echo('a')
'done'
## a task that outlives sys.exit: code=1, stderr='stop\n', unsent=('save (line 2)',)
import asyncio
async def save(n): await mcp_git_hub.echo(text=str(n))
asyncio.create_task(save(1))
import sys
await asyncio.sleep(0)
asyncio.create_task(save(2))
sys.exit('stop')
"""


@programs(PROGRAMS)
def test_a_task_without_calls_is_ended_and_named(guest_on: Any, case: Case) -> None:
    finished = case.check(guest_on)
    assert len(finished.unsent) <= 21
    assert "2" not in [call.params["arguments"]["text"] for call in finished.calls]


@pytest.mark.slow
def test_what_calls_again_and_again_does_not_hold_a_run_open(guest_on: Any) -> None:
    finished = guest_on.run(
        "import asyncio\nasync def beat():\n    while True:\n"
        "        await mcp_git_hub.echo(text='x')\n        await asyncio.sleep(0.9)\n"
        "asyncio.create_task(beat())\nawait asyncio.sleep(0)\n'done'"
    )
    assert (finished.value, finished.unsent) == ("done", ["beat (line 5)"])


LIVING = {
    "a worker": "import queue, threading\njobs = queue.Queue()\n"
    "threading.Thread(target=jobs.get, name='worker').start()",
    "a timer": "import threading\nthreading.Timer(3600, print).start()",
    "a pool of processes": "from concurrent.futures import ProcessPoolExecutor\n"
    "pool = ProcessPoolExecutor(2)\nlist(pool.map(abs, [-1, 2]))",
}


@pytest.mark.parametrize("program", LIVING.values(), ids=LIVING)
def test_a_session_continues_beside_what_lives_on(session: Session, program: str) -> None:
    assert session.run(program + "\n1").value == 1
    # Outside of a sandbox, a pool's processes would outlive the session.
    assert session.run("if 'pool' in globals(): pool.shutdown()\n2").value == 2


def test_a_thread_that_computes_is_waited_for(session: Session) -> None:
    computed = session.run(
        "import threading, time\ndone = []\ndef work():\n"
        "    end = time.thread_time() + 1.5\n    while time.thread_time() < end: pass\n"
        "    print('computed')\nthreading.Thread(target=work).start()"
    )
    assert (computed.stdout, computed.unsent) == ("computed\n", [])


@pytest.mark.parametrize(
    "late",
    [
        (
            "def tick():\n    asyncio.run(mcp_git_hub.echo(text='x')); again()\n"
            "def again():\n    t = threading.Timer(0.05, tick); t.daemon = True; t.start()\n"
            "again()"
        ),
        "await asyncio.sleep(0)\nasyncio.get_running_loop().call_later(0.2, print, 'late')",
    ],
    ids=["timers", "call_later"],
)
def test_what_an_earlier_run_scheduled_does_nothing_in_a_later_one(
    session: Session, late: str
) -> None:
    session.run("import asyncio, threading, time\n" + late)
    after = session.run("time.sleep(0.3)\nawait asyncio.sleep(0.3)\n1")
    assert (after.value, after.calls, after.stdout) == (1, [], "")


def test_a_session_names_a_coroutine_once_and_can_await_it_later(session: Session) -> None:
    unsent = session.run("later = mcp_git_hub.echo(text='a')\nother = mcp_git_hub.echo(text='b')")
    assert unsent.unsent == ["mcp_git_hub.echo (not awaited)"] * 2
    after = session.run("other = None\n(await later)['text']")
    assert (after.value, after.stderr, after.unsent) == ("a", "", [])


FAILING = {
    "a task that is kept": "async def fail(): 1 / 0\ntask = asyncio.create_task(fail())",
    "an object in a cycle": "class Loud:\n    def __del__(self): raise KeyError('gone')\n"
    "one = Loud(); one.self = one; del one",
}


@pytest.mark.parametrize("program", FAILING.values(), ids=FAILING)
def test_an_error_comes_with_the_run_that_caused_it(session: Session, program: str) -> None:
    first = session.run("import asyncio\n" + program)
    assert "ZeroDivisionError" in first.stderr or "KeyError" in first.stderr
    after = session.run("import gc\ntask = None\ngc.collect()\n1")
    assert (after.value, after.stderr) == (1, "")


def test_an_interrupted_session_leaves_no_task_to_the_next_run(session: Session) -> None:
    cut = session.run(
        SAVE + "async def late():\n    await asyncio.sleep(30)\n    await save(1)\n"
        "asyncio.create_task(late())\nawait asyncio.sleep(60)",
        limits={"timeout": 2.0},
    )
    assert cut.unsent == ["late (line 4)"]
    after = session.run("await asyncio.sleep(0)\nlen(asyncio.all_tasks())")
    assert (after.value, after.calls) == (1, [])
