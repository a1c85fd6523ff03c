"""Whole programs that make plans, in guests on the oldest and the newest Python."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.guest.api import held_results as held
from tests.guest.conftest import echo
from tests.guest.finished import Case, programs
from tests.guest.held_rig import ALLOWED, MATCHES, PUZZLED, SETUP, STOPPED, hold, token

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
    assert (finished.outcome.outcome, finished.error_type) == ("exception", "HeldResultError")
    assert finished.error.startswith("line ")
    assert finished.error.endswith(held.ADVICE)
    assert "Traceback" not in finished.error
    assert (finished.exit_code, finished.has_result) == (1, False)


PROGRAMS = f"""
## an unrelated error: error=('Traceback',), error_type='ZeroDivisionError'
x = await mcp_git_hub.create_issue()
1 / 0
## a related error: error=('which can only be passed on.',), error_type='TypeError'
import datetime
x = await mcp_git_hub.create_issue()
datetime.datetime.fromisoformat(x.created_at)
## a run without a plan: value=False
import sys
await mcp_git_hub.echo('a')
'bridge.guest.api.held_results' in sys.modules
## a text that looks like a placeholder: value=True
text = {token()!r} + '‹result of #1'
(await mcp_git_hub.echo(text)).text == text
"""


@programs(PROGRAMS)
def test_without_a_placeholder_nothing_changes(guest_on: Any, case: Case) -> None:
    case.check(guest_on, echo if "echo" in case.code else hold)
