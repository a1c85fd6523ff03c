"""Which files of the host a run and a tool call pass through: what a reader of that trip opens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from types import FrameType

import anyio

import bridge
from bridge.model import RunRequest
from bridge.runs import open_engine
from bridge.settings import Settings
from tests.engine_rig import ListFinder, workshop
from tests.waiting import until

ROOT = Path(bridge.__file__).parent
# They only fall.
MOST_OF_A_RUN = 34
MOST_OF_A_CALL = 12

PROGRAMS = (
    "print(1 + 1)",
    "print(mcp_work_shop.add.__name__)",
    "print(await mcp_work_shop.add(a=1, b=2))",
)

_on_the_trip: ContextVar[bool] = ContextVar("on_the_trip", default=False)


@contextmanager
def recorded(found: set[str]) -> Iterator[None]:
    """Record the files of `bridge/` in which functions are called in this context's tasks."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and _on_the_trip.get() and path.is_relative_to(ROOT):
            found.add(path.relative_to(ROOT).as_posix())

    token = _on_the_trip.set(True)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(before)
        _on_the_trip.reset(token)


async def test_a_run_and_a_call_pass_through_no_more_files_than_before(settings: Settings) -> None:
    settings = replace(settings, runtime="bubblewrap", warm=1)
    trips: list[set[str]] = []
    with anyio.fail_after(60):
        async with open_engine(settings, finder=ListFinder(workshop())) as engine:
            for code in PROGRAMS:
                assert (await engine.run(RunRequest(code=code))).status == "success"
                await until(lambda: engine.sandboxes.report.waiting > 0)
                trips.append(set())
                with recorded(trips[-1]):
                    assert (await engine.run(RunRequest(code=code))).status == "success"
                await until(lambda: engine.sandboxes.report.waiting > 0)
    plain, named, called = ({name for name in trip if host(name)} for trip in trips)
    assert len(plain) <= MOST_OF_A_RUN, plain
    assert len(called - named) <= MOST_OF_A_CALL, called - named


def host(name: str) -> bool:
    """Return whether a file is the host's, below the MCP surface."""
    return not name.startswith(("guest/", "server/"))
