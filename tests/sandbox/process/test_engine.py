"""The whole engine on the process backend, with a real server behind it."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from bridge.model import RunRequest
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.settings import Settings
from tests import engine_rig
from tests.contract.programs import STANDARD_LIBRARY
from tests.engine_rig import ListFinder, engine_on, workshop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

TIME_ZONES = "import zoneinfo\nzoneinfo.ZoneInfo('Europe/Paris')\n"


settings = engine_rig.settings


async def test_the_standard_library_works(settings: Settings, backend: BubblewrapBackend) -> None:
    async with engine_on(backend, settings, finder=ListFinder(workshop())) as engine:
        result = await engine.run(RunRequest(code=TIME_ZONES + STANDARD_LIBRARY))
    assert result.status == "success", result.error
    assert result.result == ["a", "c", "out", "run_python.py", "x.db"]


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
