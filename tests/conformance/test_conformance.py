"""The official conformance suite, with the bridge as server and as client, in both eras.

`expected/` has what it may fail and why. The suite itself fails when something of that passes, so
that the lists only shrink.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import keyring
import pytest
from keyring.backends import fail

from bridge.errors import BridgeError
from bridge.runs import Engine
from bridge.server.app import build_server
from bridge.server.transports import HttpServer
from tests.conformance.client import play
from tests.server.web_rig import serving
from tests.waiting import PATIENCE_SECONDS

HERE = Path(__file__).parent
SUITE = HERE.parent / "node" / "node_modules" / "conformance-next"
NODE = Path(sys.executable).with_name("node")

ERAS = ["2025-11-25", "2026-07-28"]

AT_A_TIME = 4
"""Scenarios played. The suite begins all at once, and some judge what a client does in time."""

pytestmark = [pytest.mark.node, pytest.mark.slow]


async def _suite(directory: Path, *command: str) -> tuple[int, str]:
    script = SUITE / json.loads((SUITE / "package.json").read_text())["bin"]["conformance"]
    options = ["-o", str(directory / "out"), "--timeout", str(int(PATIENCE_SECONDS * 1000))]
    with anyio.fail_after(PATIENCE_SECONDS):
        done = await anyio.run_process(
            [str(NODE), str(script), *command, *options],
            check=False,
            env={**os.environ, "NO_COLOR": "1"},
        )
    text = done.stdout.decode()
    return done.returncode, text[text.rfind("SUMMARY ===") :] + done.stderr.decode()[-2000:]


@pytest.mark.parametrize(
    ("suite", "era"),
    [
        *(("all", era) for era in ERAS),
        pytest.param("pending", "extensions", marks=pytest.mark.full),
    ],
)
async def test_the_bridge_as_a_server_fails_what_it_is_expected_to_and_nothing_else(
    tmp_path: Path, engine: Engine, suite: str, era: str
) -> None:
    async with serving(HttpServer(build_server(engine), "127.0.0.1", 0)) as url:
        status, text = await _suite(
            tmp_path, "server", "--url", f"{url}/mcp", "--suite", suite, *_era_options(era)
        )
    assert status == 0, text


@pytest.mark.parametrize(
    ("suite", "era"),
    [
        pytest.param("all", ERAS[0], marks=pytest.mark.full),
        ("all", ERAS[1]),
        pytest.param("extensions", "extensions", marks=pytest.mark.full),
        pytest.param("backcompat", "older", marks=pytest.mark.full),
    ],
)
async def test_the_bridge_as_a_client_fails_what_it_is_expected_to_and_nothing_else(
    tmp_path: Path, suite: str, era: str
) -> None:
    keyring.set_keyring(fail.Keyring())  # type: ignore[no-untyped-call]
    async with _player(tmp_path) as place:
        relay = f"{sys.executable} -I -S {HERE / 'relay.py'} {place}"
        status, text = await _suite(
            tmp_path, "client", "--command", relay, "--suite", suite, *_era_options(era)
        )
    assert status == 0, text


def _era_options(era: str) -> list[str]:
    only = ["--spec-version", era] if era in ERAS else []
    return [*only, "--expected-failures", str(HERE / "expected" / f"{era}.yaml")]


@asynccontextmanager
async def _player(directory: Path) -> AsyncIterator[Path]:
    place = directory / "relay"
    turns = anyio.CapacityLimiter(AT_A_TIME)

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            line = b""
            while not line.endswith(b"\n"):
                line += await stream.receive()
            task = json.loads(line)
            home = directory / task["scenario"].replace("/", "-")
            home.mkdir()
            try:
                async with turns:
                    await play(home, task["url"], task["context"])
            except BridgeError as error:
                # Many scenarios are about servers that a client has to refuse.
                print(f"{task['scenario']}: {error}")
            else:
                await stream.send(b"+")

    listener = await anyio.create_unix_listener(place)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, handle)
        yield place
        tasks.cancel_scope.cancel()
