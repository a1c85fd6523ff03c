"""A session's process: what stays between its runs, and how a run of it is interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bridge.guest.protocol.wire import Call, Reply, Stop
from bridge.guest.worker.session import inventory, size_of
from tests.guest.conftest import Session
from tests.waiting import until_exists


def test_a_value_that_answers_every_question_with_an_error_is_held_like_others(
    session: Session,
) -> None:
    proxy = "class Proxy:\n    @property\n    def __class__(self): raise RuntimeError('none')\n"
    first = session.run(f"{proxy}kept = 7\nproxy = Proxy()")
    assert ["proxy", "Proxy"] in [held[:2] for held in first.outcome.holds]
    odd = (
        "class Meta(type):\n    def __getattribute__(self, name): raise SystemExit(name)\n"
        "class Odd(metaclass=Meta): pass\nodd = Odd()"
    )
    assert session.run(odd).exit.kept
    after = session.run("kept")
    assert (after.value, after.exit.kept) == (7, True)


def test_a_failed_program_leaves_what_it_had_done_and_its_line_in_later_tracebacks(
    session: Session,
) -> None:
    first = session.run("def f():\n    return 1 / 0\nkept = 1\nf()")
    assert first.outcome.error_type == "ZeroDivisionError"
    later = session.run("# nothing\n# here\nassert kept == 1\nf()")
    assert 'File "<run_python 1>", line 2, in f' in later.outcome.error
    assert "return 1 / 0" in later.outcome.error
    assert 'File "<run_python 2>", line 4' in later.outcome.error


def test_streams_that_a_program_replaced_are_back_for_the_next(session: Session) -> None:
    session.run("import io, sys\nsys.stdout = sys.stderr = taken = io.StringIO()\n1 / 0")
    after = session.run("print('seen'); print('told', file=sys.stderr)\ntaken.getvalue()")
    assert (after.stdout, after.stderr, after.value) == ("seen\n", "told\n", "")


KEPT = {
    "after an exit": ("a = 1\nimport sys; sys.exit(3)", "a", 1),
    "one event loop": (
        "import asyncio\nlock = asyncio.Lock()\nawait lock.acquire()",
        "asyncio.get_running_loop().call_soon(lock.release)\nawait lock.acquire()",
        True,
    ),
    "a name of the program's own": ("runtime = 'mine'", "runtime", "mine"),
    "after a child that reached the end": (
        "import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)",
        "pid > 0",
        True,
    ),
}


@pytest.mark.parametrize(("first", "later", "value"), KEPT.values(), ids=KEPT)
def test_a_later_run_finds_what_an_earlier_one_left(
    session: Session, first: str, later: str, value: Any
) -> None:
    session.run(first)
    assert session.run(later).value == value


@pytest.mark.parametrize(
    ("hangs", "line"),
    [
        ("while True:\n    pass", "while True:"),
        ("import time\ntime.sleep(60)", "line 3"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(60)\nawait f()", "line 4, in f"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(60)\nasyncio.run(f())", "line 4"),
        ("await mcp_git_hub.echo(text='unanswered')", "line 2, in"),
    ],
)
def test_a_time_out_interrupts_at_the_line_it_hung_on_and_keeps_the_state(
    session: Session, hangs: str, line: str
) -> None:
    session.start(f"x = 1\n{hangs}", limits={"timeout": 2.0})
    stopped = session.guest.finish(lambda guest, call: None)
    assert (stopped.timed_out, stopped.kept, stopped.error_type) == (True, True, "Interrupted")
    assert line in stopped.error
    assert session.run("x + 1").value == 2


def test_a_program_that_ignores_the_interrupt_is_killed_and_its_state_with_it(
    session: Session,
) -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    stopped = session.run(code, limits={"timeout": 1.0})
    assert (stopped.timed_out, stopped.kept, stopped.status) == (True, False, 0)


def test_a_host_that_stops_a_run_gets_its_state_kept(session: Session) -> None:
    session.start("x = 5\nprint('on', flush=True)\nimport time\ntime.sleep(60)")
    assert session.guest.receive() is not None
    session.guest.send(Stop(late=False))
    stopped = session.guest.finish()
    assert (stopped.timed_out, stopped.kept) == (False, True)
    assert session.run("x").value == 5


def test_a_late_reply_reaches_no_later_call(session: Session) -> None:
    asked: list[Call] = []
    session.start(
        "import asyncio\ntask = asyncio.ensure_future(mcp_git_hub.echo(text='late'))\n"
        "await asyncio.sleep(0)\ntask.cancel()"
    )
    session.guest.finish(lambda guest, call: asked.append(call))
    session.guest.send(Reply(id=asked[0].id, value={"json": {"text": "x" * 100_000}}))
    assert session.run("(await mcp_git_hub.echo(text='now'))['text']").value == "now"


CALL = "asyncio.run(mcp_git_hub.echo(text='late'))"

LATE = """
import os, threading, time
def late():
    while not os.path.exists({go!r}):
        time.sleep(0.01)
    {then}
threading.Thread(target=late, daemon=True).start()
"""


@pytest.mark.parametrize("act", ["print('later', flush=True)", "1 / 0", CALL])
async def test_a_thread_of_an_earlier_run_neither_speaks_nor_calls(
    session: Session, tmp_path: Path, act: str
) -> None:
    go, did = tmp_path / "go", tmp_path / "did"
    then = f"open({str(did)!r}, 'w').close(); {act}"
    session.run("import asyncio\n" + LATE.format(go=str(go), then=then))
    go.touch()
    await until_exists(did)
    after = session.run("import threading\nwhile threading.active_count() > 1: pass\nprint(1)")
    assert (after.stdout, after.stderr, after.calls) == ("1\n", "", [])


def test_a_session_whose_process_dies_between_runs_ends(session: Session, tmp_path: Path) -> None:
    session.run(LATE.format(go=str(tmp_path / "go"), then="os._exit(3)"))
    (tmp_path / "go").touch()
    assert session.guest.receive() is None
    assert session.guest.wait() == 0


def test_a_crash_brings_back_only_what_its_own_run_left(session: Session) -> None:
    session.run("open('out/first', 'w').write('1')")
    crashed = session.run("open('out/second', 'w').write('2')\nimport os; os._exit(1)")
    assert crashed.files == ["second"]


class Hostile:
    """Answers questions about its size."""

    def __sizeof__(self) -> int:
        return 10**15


def test_no_value_is_asked_for_its_size_and_none_is_absurd() -> None:
    values = {"generator": (n for n in range(3)), "hostile": Hostile(), "error": ValueError("x")}
    for value in values.values():
        assert 0 < size_of(value) < 10_000
    assert {name for name, _, _ in inventory(values)[0]} == set(values)
