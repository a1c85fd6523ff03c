"""What Landlock does not guard and the weaker tier refuses by its filters.

Each attempt is made outside as well, by the same user, where it must succeed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from bridge.sandbox.process import landlock
from bridge.sandbox.process.command import UID
from bridge.sandbox.process.landlock_backend import LandlockBackend
from tests.sandbox.process.rig import run

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or landlock.version() < 1, reason="this kernel has no Landlock"
)

AS_PROGRAMS_RUN = UID if os.getuid() == 0 else None

PYTHON = "/usr/bin/python3"

ATTACKS = """
import ctypes, fcntl, json, os, resource, socket, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def addresses():
    room = ctypes.create_string_buffer(4096)
    ours, theirs = socket.socketpair()
    fcntl.ioctl(ours, 0x8912, struct.pack('iL', 4096, ctypes.addressof(room)))
def watch():
    place = libc.inotify_init1(0)
    call(libc.inotify_add_watch(place, os.path.dirname(FILE).encode(), 0xFFF))
attacks = {
    'open a file to others': lambda: os.chmod(FILE, 0o666),
    'open it by another call': lambda: call(libc.syscall(FCHMODAT2, -100, FILE.encode(), 0o666, 0)),
    'change its times': lambda: os.utime(FILE, (1, 1)),
    'change its owner': lambda: os.chown(FILE, -1, os.getgid()),
    'mark it': lambda: os.setxattr(FILE, 'user.mark', b'1'),
    'unmark it': lambda: os.removexattr(FILE, 'user.before'),
    'see who uses it': watch,
    'take a process its files': lambda: resource.prlimit(VICTIM, resource.RLIMIT_NOFILE, (0, 0)),
    'bind it to a processor': lambda: os.sched_setaffinity(VICTIM, os.sched_getaffinity(0)),
    'slow it down': lambda: os.setpriority(os.PRIO_PROCESS, VICTIM, 19),
    'put it behind all others': lambda: os.sched_setscheduler(
        VICTIM, os.SCHED_IDLE, os.sched_param(0)),
    'slow several at once': lambda: os.setpriority(os.PRIO_PGRP, 0, 19),
    'learn the addresses': addresses,
}
found = {}
for name, attack in attacks.items():
    try:
        attack()
        found[name] = 'ESCAPED'
    except OSError as error:
        found[name] = os.strerror(error.errno)
print(json.dumps(found))
"""

FCHMODAT2 = 452


@pytest.fixture
def target() -> Iterator[tuple[str, int]]:
    """Make a file and a process of the user that programs run as."""
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
        stack.callback(shutil.rmtree, directory)
        directory.chmod(0o755)
        file = directory / "private"
        file.write_text("private")
        if AS_PROGRAMS_RUN is not None:
            os.chown(file, AS_PROGRAMS_RUN, AS_PROGRAMS_RUN)
        _mark(file)
        victim = stack.enter_context(
            subprocess.Popen(
                [PYTHON, "-I", "-S", "-c", "import time; time.sleep(3600)"],
                user=AS_PROGRAMS_RUN,
                group=AS_PROGRAMS_RUN,
            )
        )
        stack.callback(victim.kill)
        yield str(file), victim.pid


def _mark(file: Path) -> None:
    file.chmod(0o600)
    os.setxattr(file, "user.before", b"1")


def _state(file: str) -> tuple[int, str]:
    return Path(file).stat().st_mode & 0o777, Path(file).read_text()


@pytest.mark.guarantee("weaker-tier")
async def test_what_landlock_does_not_guard_is_refused_all_the_same(
    target: tuple[str, int],
) -> None:
    file, _ = target
    program = f"FILE, VICTIM, FCHMODAT2 = {(*target, FCHMODAT2)!r}\n{ATTACKS}"
    done = await anyio.run_process(
        [PYTHON, "-I", "-S", "-c", program],
        cwd="/",
        user=AS_PROGRAMS_RUN,
        group=AS_PROGRAMS_RUN,
        start_new_session=True,
    )
    outside = json.loads(done.stdout)
    if outside["open it by another call"] == "Function not implemented":
        del outside["open it by another call"]  # a kernel before 6.6
    assert set(outside.values()) == {"ESCAPED"}, f"void: {outside}"
    _mark(Path(file))
    async with LandlockBackend(environ=dict(os.environ)) as backend:
        ran = await run(backend, program)
    inside = json.loads(ran.out)
    assert set(inside) >= set(outside)
    assert {name: said for name, said in inside.items() if said == "ESCAPED"} == {}
    assert _state(file) == (0o600, "private")


async def test_before_its_third_version_nothing_is_emptied_either(
    target: tuple[str, int],
) -> None:
    file, _ = target
    program = (
        "import json, os\n"
        "open('own', 'w').write('text'); open('own', 'w').close()\n"
        "found = {}\n"
        "for name, attack in {\n"
        "    'truncate': lambda: os.truncate(FILE, 0),\n"
        "    'open': lambda: os.close(os.open(OWN, os.O_RDONLY | os.O_TRUNC)),\n"
        "}.items():\n"
        "    try: attack(); found[name] = 'ESCAPED'\n"
        "    except OSError as error: found[name] = os.strerror(error.errno)\n"
        "print(json.dumps(found))\n"
    )
    async with LandlockBackend(environ=dict(os.environ), version=lambda: 2) as backend:
        ran = await run(backend, f"FILE, OWN = {(file, 'own')!r}\n{program}")
    assert json.loads(ran.out) == {
        "truncate": "Operation not permitted",
        "open": "Operation not permitted",
    }, ran.err
    assert _state(file) == (0o600, "private")
