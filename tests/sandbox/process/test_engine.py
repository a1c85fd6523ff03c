"""The whole engine on the process backend, with a real server behind it."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from bridge.model import RunRequest
from bridge.runs import Engine, open_engine
from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.settings import Settings, load
from tests.contract.programs import STANDARD_LIBRARY
from tests.engine_rig import ListFinder, workshop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

TIME_ZONES = """
import zoneinfo
zoneinfo.ZoneInfo("Europe/Paris")
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Settings that touch nothing outside the test's directory."""
    environ = {**os.environ, "HOME": str(tmp_path), "MCP_BRIDGE_STATE_DIR": str(tmp_path / "state")}
    return load({"warm": "0"}, environ)


@pytest.fixture
async def engine(settings: Settings, backend: BubblewrapBackend) -> AsyncIterator[Engine]:
    """An engine on the backend under test."""

    async def choose(_: Settings) -> BubblewrapBackend:
        return backend

    async with open_engine(
        settings, finder=ListFinder(workshop()), choose_backend=choose
    ) as opened:
        yield opened


async def test_a_program_calls_tools(engine: Engine) -> None:
    """The channel to the host works from inside, at once and many times over."""
    code = (
        "import asyncio\n"
        "found = await asyncio.gather(*(mcp_work_shop.add(a=n, b=1) for n in range(20)))\n"
        "len(found), found[0] != found[1]"
    )
    result = await engine.run(RunRequest(code=code))
    assert (result.status, result.result) == ("success", [20, True]), result.error


async def test_the_standard_library_works(engine: Engine) -> None:
    """Threads, processes, shared memory, subprocesses, sqlite, ctypes."""
    result = await engine.run(RunRequest(code=TIME_ZONES + STANDARD_LIBRARY))
    assert (result.status, result.result) == ("success", ["a", "c", "out", "x.db"]), result.error


@pytest.mark.parametrize(("zone", "offset"), [("Asia/Tokyo", 9), ("America/Phoenix", -7)])
async def test_programs_live_in_the_users_zone(
    settings: Settings, backend: BubblewrapBackend, zone: str, offset: int
) -> None:
    """By its name, with the data of all others."""

    async def choose(_: Settings) -> BubblewrapBackend:
        return backend

    code = (
        "import datetime, os, time, zoneinfo\n"
        "now = datetime.datetime.now().astimezone()\n"
        "zone, offset = os.environ['TZ'], now.utcoffset().total_seconds() / 3600\n"
        "there = datetime.datetime.now(zoneinfo.ZoneInfo(zone)).utcoffset()\n"
        "zone, offset, time.localtime().tm_gmtoff / 3600, there == now.utcoffset()"
    )
    there = replace(settings, environ={**settings.environ, "TZ": zone})
    async with open_engine(there, finder=ListFinder(), choose_backend=choose) as engine:
        result = await engine.run(RunRequest(code=code))
        assert f" Time zone: {zone}. " in await engine.guide.tool_description()
    assert result.result == [zone, offset, offset, True], result.error


async def test_the_layers_hold_as_seen_from_inside(engine: Engine) -> None:
    """What the backend claims is confirmed by the guest, and is in the result."""
    result = await engine.run(RunRequest(code="1"))
    assert result.isolation is not None
    assert {
        "no-network",
        "read-only-root",
        "sized-tmpfs-noexec",
        "no-capabilities",
        "no-new-privileges",
        "unprivileged-user",
        "user-namespace",
        "seccomp",
    } <= set(result.isolation.layers)
    assert not [text for text in result.isolation.weaker if "seen from inside" in text]


async def test_running_out_of_memory_has_a_name(engine: Engine) -> None:
    """By the control group's count, or by Python's own error."""
    code = "blocks = []\nwhile True: blocks.append(bytearray(10 << 20))"
    result = await engine.run(RunRequest(code=code))
    assert (result.status, result.reason) == ("error", "oom"), result.error


async def test_a_run_sees_nothing_of_the_one_before(engine: Engine) -> None:
    """Law 3."""
    await engine.run(RunRequest(code="open('/tmp/a', 'w'); open('/workspace/a', 'w')"))
    code = "import os\nos.listdir('/tmp') + os.listdir('/workspace') + os.listdir('/dev/shm')"
    assert (await engine.run(RunRequest(code=code))).result == ["out"]


async def test_a_program_that_never_ends_is_stopped(engine: Engine) -> None:
    """With threads and children that ignore what can be ignored."""
    code = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        "os.fork()\nwhile True: pass"
    )
    result = await engine.run(RunRequest(code=code, timeout=1.0))
    assert (result.status, result.reason) == ("timeout", "timeout"), result.error
