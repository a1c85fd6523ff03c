"""An engine in a loop with a watchdog, in front of a server that plays back what a test wrote."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from bridge.model import RunRequest, ServerSpec, Source
from bridge.runs import Engine
from tests.engine_rig import ListFinder, engine_on, settings_in
from tests.fakes.backend import FakeBackend
from tests.watchdog import StalledError, Watchdog

PLAYBACK = Path(__file__).parents[1] / "fakes" / "servers" / "playback.py"

ONE_TOOL = json.dumps({"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}).encode()


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """Repeat a test in which the loop stalled, and count the second run only.

    Releasing memory of earlier tests may stall a loop once; a hostile input stalls it each time.
    """
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if any(StalledError.__name__ in report.longreprtext for report in reports):
        item._initrequest()  # type: ignore[attr-defined]
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog()


@pytest.fixture
def anyio_backend(watchdog: Watchdog) -> tuple[str, dict[str, Any]]:
    return watchdog.backend


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "played"
    folder.mkdir()
    (folder / "tools-1").write_bytes(ONE_TOOL)
    return folder


@pytest.fixture
async def engine(tmp_path: Path, files: Path) -> AsyncIterator[Engine]:
    command = {"command": sys.executable, "args": (str(PLAYBACK), str(files))}
    async with engine_over(tmp_path, transport="stdio", **command) as opened:
        yield opened


@asynccontextmanager
async def engine_over(tmp_path: Path, **server: Any) -> AsyncIterator[Engine]:
    source = Source(client="Test", scope="user", path="/test.json", key="mcpServers.pb")
    spec = ServerSpec(name="pb", source=source, **server)
    backend = FakeBackend()

    finder = ListFinder(spec)
    async with engine_on(backend, settings_in(tmp_path), finder=finder) as opened:
        await opened.run(RunRequest(code="1"))
        yield opened


Made = Callable[[], bytes]
"""Makes an input on demand: all inputs together would fill the memory."""

LARGEST = (
    "60,000 tools",
    "2,000,000 entries that are none",
    "20 enums of 19,000",
    "20 tools of 9,000 parameters",
    "4,000 names that read alike",
    "600,000 fields",
    "95,000 objects",
)


def cases(table: Mapping[str, tuple[Any, str]]) -> pytest.MarkDecorator:
    """Parametrize a test with hostile inputs and a part of the expected message.

    The largest inputs run in `make test-all` only.
    """
    lines = [
        pytest.param(made, told, id=name, marks=[pytest.mark.full] * (name in LARGEST))
        for name, (made, told) in table.items()
    ]
    return pytest.mark.parametrize(("made", "told"), lines)
