"""The whole engine on the process backend, with a real server behind it."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import RunRequest
from bridge.runs import Engine
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.settings import Settings, load
from tests.contract.programs import STANDARD_LIBRARY
from tests.engine_rig import ListFinder, engine_on, workshop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

TIME_ZONES = """
import zoneinfo
zoneinfo.ZoneInfo("Europe/Paris")
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {**os.environ, "HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    return load({"warm": "0"}, environ)


@pytest.fixture
async def engine(settings: Settings, backend: BubblewrapBackend) -> AsyncIterator[Engine]:
    async with engine_on(backend, settings, finder=ListFinder(workshop())) as opened:
        yield opened


async def test_the_standard_library_works(engine: Engine) -> None:
    result = await engine.run(RunRequest(code=TIME_ZONES + STANDARD_LIBRARY))
    assert (result.status, result.result) == (
        "success",
        ["a", "c", "out", "run_python.py", "x.db"],
    ), result.error


@pytest.mark.parametrize(("zone", "offset"), [("Asia/Tokyo", 9), ("America/Phoenix", -7)])
async def test_programs_live_in_the_users_zone(
    settings: Settings, backend: BubblewrapBackend, zone: str, offset: int
) -> None:
    code = (
        "import datetime, os, time, zoneinfo\n"
        "now = datetime.datetime.now().astimezone()\n"
        "zone, offset = os.environ['TZ'], now.utcoffset().total_seconds() / 3600\n"
        "there = datetime.datetime.now(zoneinfo.ZoneInfo(zone)).utcoffset()\n"
        "zone, offset, time.localtime().tm_gmtoff / 3600, there == now.utcoffset()"
    )
    there = replace(settings, environ={**settings.environ, "TZ": zone})
    async with engine_on(backend, there, finder=ListFinder()) as engine:
        result = await engine.run(RunRequest(code=code))
        assert f" Time zone: {zone}. " in await engine.guide.tool_description()
    assert result.result == [zone, offset, offset, True], result.error
