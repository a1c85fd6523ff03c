"""Whole programs that make plans, in guests on the oldest and the newest Python."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.guest.api import held_results as held
from tests.guest.held_operations import ALLOWED, MATCHES, PUZZLED, SETUP, STOPPED
from tests.guest.held_rig import hold, token

TABLE = """
wrong = []
for statement in allowed:
    names = dict(globals(), x=await mcp_git_hub.create_issue())
    try:
        exec(compile("y = " + statement, "<run_python>", "exec"), names)
    except BaseException as error:
        wrong.append([statement, repr(error)])
x = await mcp_git_hub.create_issue()
for statement in stopped:
    try:
        exec(compile(statement, "<run_python>", "exec"), dict(globals()))
    except BaseException as error:
        if type(error).__name__ != "HeldResultError":
            wrong.append([statement, repr(error)])
    else:
        wrong.append([statement, "went on"])
for statement in puzzled:
    try:
        exec(compile(statement, "<run_python>", "exec"), dict(globals()))
    except TypeError as error:
        pass
    else:
        wrong.append([statement, "went on"])
print(wrong)
"""


def test_every_python_sees_it_the_same(guest_on: Any) -> None:
    both = [statement for statement, _ in STOPPED]
    newer = [statement for statement, _ in MATCHES]
    head = f"""{SETUP}
import sys
allowed, stopped = {list(ALLOWED)!r}, {both!r}
puzzled = {[statement for statement, _ in PUZZLED]!r}
if sys.version_info >= (3, 10):
    stopped += {newer!r}
"""
    finished = guest_on.run(head + TABLE, hold)
    assert finished.stdout == "[]\n"
    assert finished.outcome.error_type == "HeldResultError"


STOPPING = {
    "plainly": "x = await create()\nif x.state == 'open':\n    await create()",
    "behind a bare except": """
x = await create()
try:
    open_now = x.state == 'open'
except:
    open_now = True
try:
    await create()
except Exception:
    pass
except:
    await asyncio.sleep(0)
""",
    "and continues alone": "x = await create()\ntry:\n    len(x)\nexcept:\n    pass\n'fine'",
    "in gather": """
async def one():
    x = await create()
    return x.state == 'open'
print(len(await asyncio.gather(one(), return_exceptions=True)))
await create()
""",
    "in a task group": """
async def one(x):
    if x.state: pass
x = await create()
try:
    group = asyncio.TaskGroup()
except AttributeError:
    await one(x)
async with group:
    group.create_task(one(x))
""",
    "in a thread": """
import threading
x = await create()
threading.excepthook = lambda info: None
thread = threading.Thread(target=lambda: x.state == 'open')
thread.start()
thread.join()
await create()
""",
    "in a thread that is left running": """
import threading, time
x = await create()
threading.excepthook = lambda info: None
main = threading.main_thread()
def late():
    main.join(0.2)
    x.state == 'open'
threading.Thread(target=late).start()
""",
    "in C": "x = await create()\n', '.join([x.state])",
    "with sys.exit": "x = await create()\ntry: x.state == 'open'\nfinally: sys.exit(0)",
    "with its repr": "x = await create()\nawait create(title=f'{x!r}')",
    "as JSON": "import json\nx = await create()\nawait create(title=json.dumps([f'{x.id}']))",
    "cut, behind an except": """
x = await create()
try:
    await create(title=f'{x.url}'.split('/')[-1])
except Exception as error:
    pass
except BaseException:
    pass
await create()
""",
    "in a read": "x = await create()\nawait mcp_git_hub.echo(f'{x.state}')",
    "in a read, behind an except": """
x = await create()
try:
    await mcp_git_hub.echo(text=x.state)
except Exception as error:
    await create()
""",
}


REFUSED = ("with its repr", "as JSON", "cut, behind an except")
"""What the host stops a program for."""


@pytest.mark.parametrize("how", STOPPING)
def test_a_program_that_looks_is_stopped_for_good(guest_on: Any, how: str) -> None:
    head = "import asyncio, sys\ncreate = mcp_git_hub.create_issue\n"
    finished = guest_on.run(head + STOPPING[how], hold)
    asked = [call for call in finished.calls if call.params["tool"] == "create-issue"]
    assert len(asked) == (2 if how in REFUSED else 1)
    done = finished.outcome
    assert (done.outcome, done.error_type) == ("exception", "HeldResultError")
    assert done.exit_code != 0
    assert done.error.startswith("line ")
    assert done.error.endswith(held.ADVICE)
    assert "Traceback" not in done.error
    assert not done.has_result


def test_errors_that_have_to_do_with_none_stay_what_they_are(guest: Any) -> None:
    finished = guest.run("x = await mcp_git_hub.create_issue()\n1 / 0", hold)
    assert finished.outcome.error_type == "ZeroDivisionError"
    assert "Traceback" in finished.outcome.error


def test_errors_that_may_have_to_do_with_one_say_so(guest: Any) -> None:
    code = (
        "import datetime\nx = await mcp_git_hub.create_issue()\n"
        "datetime.datetime.fromisoformat(x.created_at)"
    )
    finished = guest.run(code, hold)
    assert finished.outcome.error_type == "TypeError"
    assert finished.outcome.error.endswith("which can only be passed on.")


def test_a_run_without_a_plan_does_without_all_this(guest_on: Any) -> None:
    code = "import sys\nawait mcp_git_hub.echo('a')\n'bridge.guest.api.held_results' in sys.modules"
    assert guest_on.run(code).value is False


def test_a_text_that_only_looks_like_one_is_a_text(guest: Any) -> None:
    finished = guest.run(f"(await mcp_git_hub.echo({token()!r} + '‹result of #1')).text")
    assert finished.value == token() + "‹result of #1"
