"""Placeholders for the results of held calls, alone and in whole programs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from bridge.gate.held_calls import find_referred
from bridge.guest.api import held_results as held
from bridge.guest.api.arguments import BoundParameters
from bridge.guest.api.client import ChannelClient
from bridge.guest.api.held_results import HeldResultError, Placeholder
from bridge.guest.api.program_files import FILENAME
from bridge.guest.api.results import from_wire
from bridge.guest.api.runtime import Runtime
from bridge.guest.api.values import to_json
from bridge.guest.protocol.wire import Done, Run
from bridge.guest.schema.validation import problem
from tests.guest.conftest import echo
from tests.guest.finished import Case, programs
from tests.guest.held_rig import (
    ALLOWED,
    CREATED,
    MATCHES,
    PLAN,
    PUZZLED,
    QUOTED,
    SETUP,
    STOPPED,
    execute,
    hold,
    mark,
    whole,
    x,
)
from tests.raised import raises_code

__all__ = ["x"]


@pytest.mark.parametrize("expression", ALLOWED)
def test_what_only_passes_it_on_continues(x: Placeholder, expression: str) -> None:
    execute(f"y = {expression}", x)
    assert held.final_outcome(Done("ok")) == Done("ok")


@pytest.mark.parametrize(("statement", "doing"), [*STOPPED, *MATCHES])
def test_what_looks_at_it_stops_and_says_so(x: Placeholder, statement: str, doing: str) -> None:
    with pytest.raises(HeldResultError) as caught:
        execute(statement, x)
    message = str(caught.value)
    assert message.startswith("line ")
    assert doing in message
    assert "‹result of #1 git-hub.create-issue›" in message
    assert message.endswith(held.ADVICE)


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (
            "repr(x.labels[0]['a b'].name)",
            '‹result of #1 git-hub.create-issue›.labels[0]["a b"].name',
        ),
        ("str(x.labels[-1])", mark("labels", -1)),
        ("'a' + x.title + 'b'", f"a{mark('title')}b"),
        ("f'{x.title}, {x.number}'", f"{mark('title')}, {mark('number')}"),
        ("', '.join(['%s' % x.id, f'{x.url}', 'a'])", f"{mark('id')}, {mark('url')}, a"),
    ],
)
def test_texts_are_made_with_it(x: Placeholder, expression: str, text: str) -> None:
    assert execute(f"y = {expression}", x)["y"] == text


@pytest.mark.parametrize(("expression", "told"), PUZZLED)
def test_c_code_that_is_puzzled_by_it_stops_in_its_own_words(
    x: Placeholder, expression: str, told: str
) -> None:
    with pytest.raises(TypeError) as caught:
        execute(f"\n{expression}", x)
    held.blame(caught.value)
    error = held.final_outcome(Done("ok")).error
    assert error.startswith("line 2")
    assert told in error
    assert error.endswith(held.ADVICE)


@pytest.mark.parametrize("expression", QUOTED)
def test_a_text_that_was_quoted_cut_or_changed_cannot_be_sent(
    x: Placeholder, expression: str
) -> None:
    text = execute(f"y = {expression}", x)["y"]
    for arguments in ({"a": text}, {"a": [{"b": f"see {text}."}]}):
        with raises_code("held_result"):
            find_referred(arguments, PLAN, 1)


def test_the_message_tells_line_and_source(x: Placeholder) -> None:
    import linecache

    code = "def check(issue):\n    return issue.state == 'open'\n\ncheck(x)"
    lines = code.splitlines(keepends=True)
    linecache.cache[FILENAME] = (len(code), None, lines, FILENAME)
    try:
        with pytest.raises(HeldResultError) as caught:
            execute(code, x)
    finally:
        del linecache.cache[FILENAME]
    assert str(caught.value) == (
        "line 2, `return issue.state == 'open'`: it compares "
        "‹result of #1 git-hub.create-issue›.state: its value is unknown. " + held.ADVICE
    )


def test_the_first_stop_is_the_one_that_is_told(x: Placeholder) -> None:
    for statement in ("len(x)", "int(x)"):
        with pytest.raises(HeldResultError, match="takes the length of"):
            execute(statement, x)
    ended = held.final_outcome(Done("ok", has_result=True, result=1))
    assert (ended.outcome, ended.exit_code, ended.has_result) == ("exception", 1, False)
    assert ended.error_type == "HeldResultError"
    assert "takes the length of" in ended.error


def test_libraries_may_ask_for_its_type(x: Placeholder) -> None:
    assert [isinstance(x, kind) for kind in (dict, str, list, Placeholder)] == [0, 0, 0, 1]
    assert held.final_outcome(Done("ok")) == Done("ok")
    assert to_json([x, (x.a,)], "x") == [whole(), [whole("a")]]


def test_c_code_that_fails_in_a_group_is_blamed_on_it(x: Placeholder) -> None:
    with pytest.raises(TypeError) as caught:
        execute("', '.join([x.title])", x)
    held.blame(ExceptionGroup("several", [OSError("no file"), caught.value]))
    assert held.final_outcome(Done("ok")).error.startswith("line 1: sequence item 0")


def test_pickling_in_another_thread_is_an_error_that_pools_survive(x: Placeholder) -> None:
    caught: list[BaseException] = []

    def pickle_it() -> None:
        try:
            execute("pickle.dumps(x)", x)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=pickle_it)
    thread.start()
    thread.join()
    assert [type(error) for error in caught] == [TypeError]
    assert held.final_outcome(Done("ok")).error_type == "HeldResultError"


SCHEMA = {
    "type": "object",
    "properties": {
        "number": {"type": "integer", "minimum": 1},
        "title": {"type": "string", "maxLength": 10, "pattern": "^[a-z]+$"},
        "state": {"enum": ["open", "closed"]},
        "labels": {"type": "array", "items": {"type": "string", "minLength": 100}},
        "author": {
            "type": "object",
            "properties": {"login": {"type": "string"}},
            "required": ["login"],
            "additionalProperties": False,
        },
        "either": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    },
    "required": ["number"],
}


def bind(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return BoundParameters("mcp_x.f", SCHEMA).bind(args, kwargs)


def test_placeholders_are_sent_and_not_judged(x: Placeholder) -> None:
    assert bind(x.number) == {"number": whole("number")}
    assert bind(
        number=x["number"],
        title=f"{x.title}!",
        state=x.state,
        labels=[x.labels[0], "a" + x.b],
        author=x.author,
        either=x.flag,
    ) == {
        "number": whole("number"),
        "title": f"{mark('title')}!",
        "state": whole("state"),
        "labels": [whole("labels", 0), f"a{mark('b')}"],
        "author": whole("author"),
        "either": whole("flag"),
    }
    assert bind(1, author={"login": x}) == {"number": 1, "author": {"login": whole()}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "is missing the required argument `number`"),
        ({"numbr": 1}, "has no parameter `numbr`"),
        ({"number": "text"}, "number must be an integer"),
        ({"number": 1, "author": {"name": "text"}}, "author"),
    ],
)
def test_what_is_wrong_in_any_case_is_said(
    x: Placeholder, arguments: dict[str, Any], message: str
) -> None:
    filled = {
        key: f"{x}" if value == "text" else {"name": x} if isinstance(value, dict) else value
        for key, value in arguments.items()
    }
    with pytest.raises(TypeError, match=message):
        bind(**filled)


def test_values_of_richer_types_may_hold_one(x: Placeholder) -> None:
    import dataclasses

    import pydantic

    @dataclasses.dataclass
    class Issue:
        number: Any
        tags: tuple[Any, ...]

    class Model(pydantic.BaseModel):
        number: Any

    parameters = BoundParameters("mcp_x.f", {"properties": {"a": {"type": "object"}, "b": {}}})
    assert parameters.bind((Issue(x.number, (x.tag, 1)), Model(number=x.id)), {}) == {
        "a": {"number": whole("number"), "tags": [whole("tag"), 1]},
        "b": {"number": whole("id")},
    }


def test_a_schema_cannot_be_told_not_to_fit() -> None:
    for value in (whole(), f"see {mark()}"):
        assert problem(value, {"not": {"type": ["object", "string"]}}, {}) is None
    assert problem("heldback", {"enum": ["a"]}, {}) is not None


class HoldingClient:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.runtime = Runtime(Run(code=""), cast("ChannelClient", self))

    async def call(self, method: str, params: dict[str, Any], subject: str) -> Any:
        held.check()
        json.dumps(params)
        self.sent.append(params)
        return {"held": {**CREATED, "number": len(self.sent)}}


@pytest.fixture
def client() -> HoldingClient:
    return HoldingClient()


async def test_calls_by_name_take_placeholders(x: Placeholder, client: HoldingClient) -> None:
    y = await client.runtime.call_tool("git-hub", "create", {"a": x, "b": f"{x.number}"})
    await client.runtime.call_tool("git-hub", "close", {"number": y.number})
    assert [params["arguments"] for params in client.sent] == [
        {"a": whole(), "b": mark("number")},
        {"number": whole("number")},
    ]


async def test_a_raw_result_can_be_neither_looked_into_nor_passed_on(
    x: Placeholder, client: HoldingClient
) -> None:
    runtime = client.runtime
    y = await runtime.call_tool_raw("git-hub", "create")
    assert repr(y) == "‹result of #1 git-hub.create-issue›"
    with pytest.raises(HeldResultError, match="looks into .* Only results of call_tool have"):
        _ = y["structuredContent"]
    held._first = ""
    for value in (y, f"{y}", repr(x), str([x])):
        await runtime.call_tool("git-hub", "create", {"a": value})
        with raises_code("held_result", match="only to be read"):
            find_referred(client.sent[-1]["arguments"], PLAN, 9)


@pytest.mark.parametrize(
    "ask",
    [
        lambda runtime, x: runtime.call_tool(x, "create"),
        lambda runtime, x: runtime.call_tool("git-hub", x.name),
        lambda runtime, x: runtime.read_resource("git-hub", x.uri),
        lambda runtime, x: runtime.get_prompt("git-hub", x.name),
    ],
)
async def test_what_is_asked_for_has_to_be_known(
    x: Placeholder, client: HoldingClient, ask: Callable[[Runtime, Placeholder], Any]
) -> None:
    with pytest.raises(HeldResultError, match="names what it asks for"):
        await ask(client.runtime, x)


def test_only_a_held_call_makes_a_placeholder() -> None:
    assert from_wire({"json": {"held": CREATED}}) == {"held": CREATED}


TABLE = """
wrong = []
x = await mcp_git_hub.create_issue()
for statement, expected in table:
    outcome = ""
    try:
        exec(compile(statement, "<run_python>", "exec"), dict(globals()))
    except BaseException as error:
        outcome = type(error).__name__
    if outcome != expected:
        wrong.append([statement, outcome])
print(wrong)
"""


def test_each_operation_is_the_same_on_every_python(guest_on: Any) -> None:
    table = [(f"y = {expression}", "") for expression in ALLOWED]
    table += [(statement, "HeldResultError") for statement, _ in STOPPED]
    table += [(statement, "TypeError") for statement, _ in PUZZLED]
    newer = [(statement, "HeldResultError") for statement, _ in MATCHES]
    head = f"{SETUP}import sys\ntable = {table!r}\n"
    head += f"if sys.version_info >= (3, 10): table += {newer!r}\n"
    finished = guest_on.run(head + TABLE, hold)
    assert (finished.stdout, finished.error_type) == ("[]\n", "HeldResultError")


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
def test_a_program_that_looks_is_stopped_permanently(guest_on: Any, how: str) -> None:
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
text = {mark()!r} + '‹result of #1'
(await mcp_git_hub.echo(text)).text == text
"""


@programs(PROGRAMS)
def test_without_a_placeholder_nothing_changes(guest_on: Any, case: Case) -> None:
    case.check(guest_on, echo if "echo" in case.code else hold)
