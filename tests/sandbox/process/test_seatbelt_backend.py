"""Seatbelt's sandboxes, with a stand-in for `sandbox-exec` that confines nothing."""

from __future__ import annotations

import os
import pwd
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from bridge.errors import LaunchError
from bridge.model import MEBIBYTE, Limits
from bridge.sandbox.process import seatbelt_backend
from bridge.sandbox.process.seatbelt_backend import SeatbeltBackend, arguments, profile
from tests.raised import raises_code
from tests.sandbox.golden import is_golden
from tests.sandbox.process.rig import (
    BRIDGE,
    PATIENCE,
    READY,
    exists,
    kill_bridge,
    processes_below,
    read_all,
    run,
    spec,
    wait_ready,
)
from tests.waiting import until

STAND_IN = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >"{log}"
[ "$1" = -p ] || exit 64
shift 2
while [ "$1" = -D ]; do shift 2; done
exec "$@"
"""


def stand_in(room: Path, text: str = STAND_IN) -> str:
    path = room / "sandbox-exec"
    path.write_text(text.replace("{log}", str(room / "log")))
    path.chmod(0o755)
    return str(path)


def mac(environ: Mapping[str, str], command: str, system: str = "darwin") -> SeatbeltBackend:
    made = SeatbeltBackend(environ=environ)
    made.sandbox_exec, made.system = command, system
    return made


@pytest.fixture
async def backend(room: Path) -> AsyncIterator[SeatbeltBackend]:
    before = processes_below() if sys.platform == "linux" else []
    environ = {**os.environ, "TMPDIR": str(room / "runs"), "CANARY_TOKEN": "canary"}
    async with mac(environ, stand_in(room)) as opened:
        yield opened
    if sys.platform == "linux":
        assert processes_below() == before


@pytest.mark.skipif(sys.platform == "darwin", reason="it is macOS")
async def test_elsewhere_it_is_refused_without_trying(room: Path) -> None:
    async with mac(os.environ, stand_in(room), sys.platform) as backend:
        probe = await backend.probe()
        assert (probe.ok, probe.error_code) == (False, "wrong_system")
        assert probe.summary == "Only macOS has Seatbelt."
        with raises_code("wrong_system"):
            async with backend.launch(spec("print('ran')")):
                pass
    assert not (room / "log").exists()


async def test_one_that_confines_nothing_is_not_used(backend: SeatbeltBackend) -> None:
    probe = await backend.probe()
    assert (probe.ok, probe.error_code) == (False, "isolation_broken")
    assert "lacks seatbelt" in probe.summary


async def test_a_program_runs_in_a_private_directory_with_what_it_is_given(
    backend: SeatbeltBackend, room: Path
) -> None:
    program = (
        "import os, resource, stat, sys\n"
        "open('file', 'w').write('x')\n"
        "print(os.getcwd())\n"
        "print(oct(stat.S_IMODE(os.stat('.').st_mode)), sorted(os.environ), os.getuid())\n"
        "print(os.getsid(0) == os.getpid(), sorted(map(int, os.listdir('/dev/fd'))))\n"
        "print([resource.getrlimit(getattr(resource, 'RLIMIT_' + n))\n"
        "       for n in ('CORE', 'FSIZE', 'NOFILE')])\n"
    )
    limits = replace(Limits(), open_files=99, tmp_bytes=MEBIBYTE, workspace_bytes=MEBIBYTE)
    ran = await run(backend, program, limits=limits)
    assert ran.report.exit_code == 0, ran.err
    place, found, session, bounds = ran.out.splitlines()
    assert place.startswith(str(room / "runs"))
    assert place.endswith("/workspace")
    uid = pwd.getpwnam("nobody").pw_uid if os.getuid() == 0 else os.getuid()
    assert found == f"0o700 [] {uid}"
    assert session.startswith("True [0, 1, 2, ")
    assert bounds.startswith("[(0, 0), (16777216, 16777216), (99, 99)]")
    told = (room / "log").read_text()
    assert f"\nWRITABLE={os.path.dirname(place)}\n" in told  # noqa: PTH120
    assert "canary" not in told


DETACHED = READY.replace("os.write", "pid = os.fork()\nif pid: os.write") + (
    "if pid:\n"
    "    os.waitpid(pid, 0)\n"
    "    sys.stdin.read()\n"
    "elif not os.setsid() and not os.fork():\n"
    "    open('pid', 'w').write(str(os.getpid()))\n"
    "    time.sleep(3600)\n"
)


async def test_what_detaches_itself_is_found_and_ended(
    backend: SeatbeltBackend, room: Path
) -> None:
    def said() -> str:
        return "".join(path.read_text() for path in (room / "runs").glob("*/workspace/pid"))

    with anyio.fail_after(PATIENCE):
        async with backend.launch(spec(DETACHED)) as sandbox:
            await wait_ready(sandbox)
            await until(lambda: bool(said()))
            daemon = int(said())
            assert exists(daemon)
            await sandbox.kill()
            await read_all(sandbox)
            assert (await sandbox.wait()).signal == signal.SIGKILL
            assert not exists(daemon)


async def test_a_bridge_that_is_killed_leaves_no_process(
    backend: SeatbeltBackend, room: Path
) -> None:
    code = BRIDGE.format(
        imports="from tests.sandbox.process.test_seatbelt_backend import mac",
        backend="mac(os.environ, sys.argv[1])",
        program="FOREVER",
    )
    await kill_bridge(code, str(room / "sandbox-exec"), room / "runs")
    assert await backend.reap() == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\nexit 1\n", "status 1"),
        ("#!/bin/sh\necho 'profile: syntax error' >&2\nexit 65\n", "syntax error"),
        ("#!/bin/sh\nexit 0\n", "status 0"),
        ("no program\n", "sandbox-exec"),
    ],
)
async def test_one_that_fails_is_an_error_with_its_words(room: Path, text: str, said: str) -> None:
    environ = {"TMPDIR": str(room / "runs")}
    async with mac(environ, stand_in(room, text)) as backend:
        with anyio.fail_after(PATIENCE), pytest.raises(LaunchError, match=said):
            async with backend.launch(spec("print('ran')")):
                pass


async def test_an_absent_one_is_a_refusal_and_what_it_lacks_is_told() -> None:
    async with mac({}, "/no/sandbox-exec") as backend:
        with raises_code("engine_not_found", match="is not there"):
            async with backend.launch(spec("print('ran')")):
                pass
    found = seatbelt_backend.isolation(spec("1", limits=replace(Limits(), cpus=1.0)))
    words = [text.partition(":")[0] for text in found.weaker]
    assert words == ["seatbelt", "memory limit", "processes", "pids limit", "disk", "cpu limit"]
    assert not {"no-network", "memory-limit", "pids-limit"} & set(found.layers)


def test_paths_are_parameters_and_never_text() -> None:
    for path in ("relative", "", "/with\0null"):
        with pytest.raises(ValueError, match="no usable path"):
            arguments("/p", (), path, ["/p"])
    writable, readable = '/private/tmp/")(allow network*)', ['/x") (allow default) ("']
    words = arguments("/opt/python", readable, writable, ["/opt/python", "-c", "1"])
    assert words[:2] == ["/usr/bin/sandbox-exec", "-p"]
    assert words[2] == profile(1)
    assert "/x" not in words[2]
    assert words[3:9:2] == ["-D"] * 3
    assert words[4:9:2] == [
        "EXECUTABLE=/opt/python",
        'WRITABLE=/private/tmp/")(allow network*)',
        'READ_0=/x") (allow default) ("',
    ]
    assert words[9:] == ["/opt/python", "-c", "1"]


def test_every_parameter_is_used_and_given_with_its_links_resolved() -> None:
    def resolve(path: str) -> str:
        return path.replace("/tmp", "/private/tmp") if path[:4] == "/tmp" else path

    words = arguments("/tmp/p", ["/tmp/a", "/private/tmp/a", "/b"], "/tmp/w", [], resolve=resolve)
    given = dict(word.split("=") for word in words[4::2])
    assert given == {
        "EXECUTABLE": "/private/tmp/p",
        "WRITABLE": "/private/tmp/w",
        "READ_0": "/private/tmp/a",
        "READ_1": "/b",
    }
    assert set(re.findall(r'\(param "(\w+)"\)', words[2])) == set(given)
    assert is_golden("Seatbelt's profile", profile(2).splitlines())
