"""Skills and memories from inside the sandbox: waiting for answers, and finding sources."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from bridge.guest.api import library
from bridge.guest.api.library import Library, conclude
from bridge.guest.api.values import MCPError
from bridge.guest.protocol.wire import Progress
from tests.guest.conftest import Guest
from tests.guest.finished import Case, programs

KEPT = """
import json
import xml.etree.ElementTree
import os as system
from collections import Counter
from functools import lru_cache, wraps
from typing import Any, Optional

WORDS = {"a": (1, [None, True]), 'b': "it's"}

def loud(function):
    @wraps(function)
    def inner(*args):
        return function(*args).upper()
    return inner

class Base:
    pass

class Thing(Base):
    kind = "thing"

@lru_cache(maxsize=None)
def cached(n: int) -> "Optional[Any]":
    return Thing.kind * n

if True:
    @loud
    def told(n: int = 2, *more: Any) -> str:
        '''Tell
        it.'''
        there = system.path.join("x", json.dumps(WORDS["b"]))
        parsed = xml.etree.ElementTree.fromstring("<a/>").tag
        return cached(n) + there + parsed + (told.__wrapped__(0) if n == 1 else "")

saved = runtime.save_skill(told, name="tell")
"""


class Host:
    def __init__(self) -> None:
        self.saved: list[Any] = []
        self.memories: dict[str, Any] = {}

    def __call__(self, guest: Guest, call: Any) -> None:
        params = call.params
        if call.method == "save_skill":
            self.saved.append(dict(params))
            guest.reply(call.id, dict(params))
        elif call.method == "load_memory":
            guest.reply(call.id, self.memories.get(params["key"]))
        elif call.method == "save_memory":
            self.memories[params["key"]] = {"value": params["value"], "revision": "1"}
            guest.reply(call.id, True)
        else:
            guest.reply(call.id, {"json": params.get("arguments")})


def test_a_skill_has_all_that_its_function_uses(guest_on: Any) -> None:
    host = Host()
    finished = guest_on.run(KEPT + "\ntold(1)", host)
    [saved] = host.saved
    assert saved["name"] == "tell"
    space: dict[str, Any] = {"__name__": "skill"}
    exec(compile(saved["source"], "skill", "exec"), space)
    assert space["tell"](1) == finished.value == 'THINGX/"IT\'S"AX/"IT\'S"A'
    assert "import xml.etree.ElementTree\n" in saved["source"]
    assert "import os as system\n" in saved["source"]
    assert "Counter" not in saved["source"]


PROGRAMS = """
## threads and a loop: value=[0, 0, 0, 1, 1, 1, 2, 2, 2, ['beside', 2, 2], 1]
import asyncio, threading
found = []
save_memory("before", 1)
def work(n):
    for _ in range(3):
        save_memory(f"t{n}", n)
        found.append(load_memory(f"t{n}"))
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()

async def main():
    call = asyncio.ensure_future(mcp_git_hub.echo("beside"))
    await asyncio.sleep(0)
    await save_memory("inside", 2)  # the loop stands still, and its own answer comes first
    in_thread = asyncio.to_thread(load_memory, "inside") if hasattr(asyncio, "to_thread") else None
    return (await call).text, load_memory("inside"), await in_thread
[*sorted(found), asyncio.run(main()), load_memory("before")]
## functions of the program with these names: value=['own', 'own', 3]
async def save_memory(key):
    return key
class Own:
    async def load_memory(self, key):
        return key
(await save_memory("own"), await Own().load_memory("own"), await runtime.load_memory("k", 3))
"""


@programs(PROGRAMS)
def test_a_thread_waits_next_to_a_loop_and_other_threads(guest_on: Any, case: Case) -> None:
    case.check(guest_on, Host())


def test_a_channel_that_closes_ends_the_wait(make_guest: Any) -> None:
    def break_channel(guest: Guest, call: Any) -> None:
        guest.write(b"no reply at all\n")

    code = "try:\n    load_memory('k')\nexcept MCPError as error:\n    save = str(error)\nsave"
    assert "the connection to the bridge broke" in make_guest().run(code, break_channel).value


class Line(Library):
    """Helpers that collect frames instead of sending them, and a clock that a test sets."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed = False
        self.now = 100.0
        self._client = self  # type: ignore[assignment]

    def tell(self, frame: Any) -> None:
        if self.closed:
            raise MCPError("the connection is closed", kind="channel")
        self.sent.append(frame)


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> Line:
    line = Line()
    monkeypatch.setattr(library, "monotonic", lambda: line.now)
    monkeypatch.setattr(library._Pace, "due", 0.0)
    monkeypatch.setattr(library._Pace, "unsent", None)
    return line


def test_of_a_million_reports_few_are_sent_and_the_last_is(line: Line) -> None:
    for number in range(1000):
        line.now = 100.0 + number / 1000
        line.progress(number, 1000, f"turn {number}")
    conclude(line)  # type: ignore[arg-type]
    conclude(line)  # type: ignore[arg-type]
    assert [frame.done for frame in line.sent] == [*range(0, 1000, 100), 999]
    assert line.sent[-1] == Progress(999.0, 1000.0, "turn 999")


def test_a_report_is_sent_as_the_host_takes_it(line: Line) -> None:
    line.progress(Decimal("1.5"), True, "m" * 1000)  # type: ignore[arg-type]
    assert line.sent == [Progress(1.5, 1.0, "m" * 200)]
    assert type(line.sent[0].done) is float


@pytest.mark.parametrize("done", [float("nan"), float("inf"), "3", None, 10**400])
def test_what_is_no_number_is_refused_at_once(line: Line, done: Any) -> None:
    with pytest.raises(TypeError, match="finite numbers") as refused:
        line.progress(done, 10)
    assert line.sent == []
    assert 'progress(3, 10, "loading")' in str(refused.value)
    assert len(str(refused.value)) < 200


def test_a_report_that_no_one_takes_is_no_failure(line: Line) -> None:
    line.closed = True
    line.progress(1, 2)
