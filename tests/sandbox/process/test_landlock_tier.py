"""The weaker tier: what it refuses, really tried inside and outside, and that it leaves nothing."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest

from bridge.model import MEBIBYTE, Limits, RunRequest
from bridge.sandbox.backend import Bind
from bridge.sandbox.process import landlock
from bridge.sandbox.process.base import RunDirectory
from bridge.sandbox.process.command import UID, ProcessSurroundings
from bridge.sandbox.process.interpreter import Interpreter
from bridge.sandbox.process.landlock_backend import TIER, LandlockBackend, isolation, rules
from bridge.settings import load
from tests.contract.rig import ordinary_user, usable_python
from tests.engine_rig import ListFinder, engine_on, workshop
from tests.processes import processes
from tests.sandbox.process.rig import (
    BRIDGE,
    DAEMON,
    PATIENCE,
    exists,
    json_by,
    kill_bridge,
    left_groups,
    read_all,
    run,
    spec,
    wait_ready,
)
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")

PYTHON = "/usr/bin/python3"


@pytest.fixture
async def backend(room: Path) -> AsyncIterator[LandlockBackend]:
    environ = {
        **os.environ,
        "TMPDIR": str(room / "runs"),
        "CANARY_TOKEN": "canary-in-the-environment",
    }
    async with LandlockBackend(environ=environ) as opened:
        yield opened
    assert left_groups() == []


@dataclass(frozen=True)
class Target:
    """What a program could reach outside."""

    directory: Path
    port: int
    abstract: str
    victim: int
    private: Path

    def mark(self) -> None:
        self.private.chmod(0o600)
        os.setxattr(self.private, "user.before", b"1")

    def is_private(self) -> bool:
        return (self.private.stat().st_mode & 0o777, self.private.read_text()) == (0o600, "private")


@pytest.fixture
def target() -> Iterator[Target]:
    with ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(dir="/var/tmp"))
        stack.callback(shutil.rmtree, directory)
        directory.chmod(0o777)
        (directory / "secret").write_text("canary")
        (directory / "secret").chmod(0o666)
        private = directory / "private"
        private.write_text("private")
        if AS_PROGRAMS_RUN is not None:
            os.chown(private, AS_PROGRAMS_RUN, AS_PROGRAMS_RUN)
        abstract = f"mcp-code-bridge-test-{os.getpid()}-{secrets.token_hex(4)}"
        tcp = stack.enter_context(socket.socket(socket.AF_INET))
        tcp.bind(("127.0.0.1", 0))
        for name in (f"\0{abstract}", str(directory / "socket")):
            local = stack.enter_context(socket.socket(socket.AF_UNIX))
            local.bind(name)
            local.listen(8)
        (directory / "socket").chmod(0o777)
        tcp.listen(8)
        victim = stack.enter_context(
            subprocess.Popen(
                [PYTHON, "-I", "-S", "-c", "import time; time.sleep(3600)"],
                env={"VICTIM": "canary"},
                user=AS_PROGRAMS_RUN,
                group=AS_PROGRAMS_RUN,
            )
        )
        stack.callback(victim.kill)
        port = tcp.getsockname()[1]
        made = Target(directory, port, abstract, victim.pid, private)
        made.mark()
        yield made


AS_PROGRAMS_RUN = UID if os.getuid() == 0 else None
"""Whom programs run as, so that nothing but the sandbox stands in the way."""


ATTACKS = """
import ctypes, fcntl, json, os, resource, shutil, socket, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
DIRECTORY, PORT, ABSTRACT, VICTIM, MINE = TARGET
FILE, FCHMODAT2 = DIRECTORY + '/private', 452
def call(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def connect(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as made:
        made.settimeout(5)
        made.connect(address)
def pair_to(address):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        ours.connect(address)
    except ConnectionRefusedError:  # a stream listener is there, and was found
        return
    except OSError as error:
        if error.errno != 91:  # EPROTOTYPE: it was found, too
            raise
def copied():
    path = MINE + '/python'
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o755))
    shutil.copyfile(os.path.realpath(sys.executable), path)
    try:
        subprocess.run([path, '-I', '-S', '-c', '1'], check=True)
    finally:
        os.unlink(path)
def written(path):
    with open(path, 'w') as file:
        file.write('x')
    os.unlink(path)
def addresses():
    room = ctypes.create_string_buffer(4096)
    ours, theirs = socket.socketpair()
    fcntl.ioctl(ours, 0x8912, struct.pack('iL', 4096, ctypes.addressof(room)))
def watch():
    place = libc.inotify_init1(0)
    call(libc.inotify_add_watch(place, os.path.dirname(FILE).encode(), 0xFFF))
attacks = {
    'read a file of the system': lambda: open('/etc/passwd').read(),
    'read a file that everybody may read': lambda: open(DIRECTORY + '/secret').read(),
    'read it through the root of a process': lambda: open(
        '/proc/self/root' + DIRECTORY + '/secret').read(),
    'write a file that everybody may write': lambda: open(DIRECTORY + '/secret', 'a').write('x'),
    'make a file where everybody may': lambda: written(DIRECTORY + '/new'),
    'make a file in the common directory': lambda: written('/tmp/new-%d' % os.getpid()),
    'make a file in common memory': lambda: written('/dev/shm/new-%d' % os.getpid()),
    'cut a file short': lambda: os.truncate(DIRECTORY + '/secret', 3),
    'link a file into the own directory': lambda: (
        os.link(DIRECTORY + '/secret', MINE + '/l'), os.unlink(MINE + '/l')),
    'list processes': lambda: os.listdir('/proc'),
    'list a directory of the host': lambda: os.listdir('/usr'),
    'read the environment of a process': lambda: open('/proc/%d/environ' % VICTIM).read(),
    'read the command line of a process': lambda: open('/proc/%d/cmdline' % VICTIM).read(),
    'read the memory of a process': lambda: open('/proc/%d/mem' % VICTIM, 'rb').close(),
    'trace a process': lambda: (
        call(libc.ptrace(0x4206, VICTIM, 0, 0)), libc.ptrace(17, VICTIM, 0, 0)),
    'signal a process': lambda: os.kill(VICTIM, 0),
    'reach a port of the host': lambda: connect(socket.AF_INET, ('127.0.0.1', PORT)),
    'reach a socket in the file tree': lambda: connect(socket.AF_UNIX, DIRECTORY + '/socket'),
    'reach an abstract socket': lambda: connect(socket.AF_UNIX, chr(0) + ABSTRACT),
    'turn a pair of sockets to another': lambda: pair_to(DIRECTORY + '/socket'),
    'find a way out of the machine': lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    'talk to the kernel': lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0),
    'execute another program': lambda: subprocess.run(['/bin/true'], check=True),
    'execute a copy of the interpreter': copied,
    'make a namespace': lambda: os.waitpid(unshared(), 0)[1] and call(-1),
    'make a file in memory': lambda: os.close(os.memfd_create('x')),
    # What Landlock does not guard, and the filters refuse.
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
def unshared():
    pid = os.fork()
    if not pid:
        os._exit(0 if libc.unshare(0x10000000) == 0 else 1)
    return pid
found = {}
for name, attack in attacks.items():
    try:
        attack()
        found[name] = 'ESCAPED'
    except OSError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.guarantee("weaker-tier")
async def test_what_any_user_may_do_outside_is_refused_inside(
    backend: LandlockBackend, target: Target
) -> None:
    """Each attempt is made outside as well, by the same user, where it must succeed."""
    directory = str(target.directory)
    common = (directory, target.port, target.abstract, target.victim)
    done = await anyio.run_process(
        [PYTHON, "-I", "-S", "-c", f"TARGET = {(*common, directory)!r}\n{ATTACKS}"],
        cwd="/",
        user=AS_PROGRAMS_RUN,
        group=AS_PROGRAMS_RUN,
        start_new_session=True,
    )
    outside = json.loads(done.stdout)
    if "not implemented" in outside["open it by another call"]:
        del outside["open it by another call"]  # a kernel before 6.6
    assert set(outside.values()) == {"ESCAPED"}, f"void: {outside}"
    target.mark()
    ran = await run(backend, f"import os\nTARGET = (*{common!r}, os.getcwd())\n{ATTACKS}")
    inside = json.loads(ran.out)
    assert set(inside) >= set(outside)
    if landlock.version() < 6:
        del inside["signal a process"]  # and each result says so
    assert {name: said for name, said in inside.items() if said == "ESCAPED"} == {}
    assert exists(target.victim)
    assert target.is_private()


@pytest.mark.skipif(landlock.version() < 1, reason="this kernel has no Landlock")
async def test_before_its_third_version_nothing_is_emptied_either(target: Target) -> None:
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
    async with LandlockBackend(environ=dict(os.environ)) as backend:
        backend.version = lambda: 2
        ran = await run(backend, f"FILE, OWN = {(str(target.private), 'own')!r}\n{program}")
    refused = dict.fromkeys(("truncate", "open"), "Operation not permitted")
    assert json.loads(ran.out) == refused, ran.err
    assert target.is_private()


async def test_a_program_has_what_it_needs(backend: LandlockBackend) -> None:
    program = (
        "import asyncio, os, socket, sqlite3, ssl, subprocess, sys, tempfile, threading\n"
        "async def main():\n"
        "    return await asyncio.to_thread(lambda: 'thread')\n"
        "assert asyncio.run(main()) == 'thread'\n"
        "socket.socketpair()\n"
        "open('a', 'w').write('x')\n"
        "os.mkdir('d'); os.rename('a', 'd/b')\n"
        "with tempfile.TemporaryFile() as file: file.write(b'x')\n"
        "said = subprocess.run([sys.executable, '-S', '-c', 'print(7)'], capture_output=True)\n"
        "assert said.stdout == b'7\\n', said\n"
        "print(sorted(os.environ), sorted(int(n) for n in os.listdir('/proc/self/fd')))\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "print([status[n].strip().strip('0') for n in ('CapEff', 'CapPrm', 'CapInh', 'CapAmb')],\n"
        "      status['NoNewPrivs'].strip(), status['Seccomp'].strip())\n"
    )
    ran = await run(backend, program)
    assert ran.out == "[] [0, 1, 2, 3]\n['', '', '', ''] 1 2\n", ran.err


@pytest.mark.guarantee("weaker-tier")
async def test_each_result_calls_it_weaker(backend: LandlockBackend, room: Path) -> None:
    environ = {**os.environ, "HOME": str(room), "MCP_BRIDGE_STATE_DIR": "/nonexistent"}
    code = (
        "import os, tempfile\n"
        "(await mcp_work_shop.add(a=1, b=2), os.getcwd(), tempfile.gettempdir())"
    )
    async with engine_on(
        backend, load({"warm": "0"}, environ), finder=ListFinder(workshop())
    ) as engine:
        result = await engine.run(RunRequest(code=code))
    assert result.status == "success", result.error
    assert str(result.result[1]).startswith(str(room / "runs"))
    assert str(result.result[2]).endswith("/tmp")
    assert result.isolation is not None
    assert result.isolation.backend == "landlock"
    assert result.isolation.weaker[0] == TIER
    assert "weaker tier" in TIER
    layers = set(result.isolation.layers)
    assert {"landlock", "own-seccomp", "network-calls-refused", "no-capabilities"} <= layers
    assert not {"no-network", "read-only-root", "user-namespace"} & layers
    assert not [text for text in result.isolation.weaker if "seen from inside" in text]


@pytest.mark.guarantee("weaker-tier")
async def test_a_daemon_ends_with_the_program(backend: LandlockBackend) -> None:
    mark = f"landlock-daemon-{os.getpid()}-"
    with anyio.fail_after(PATIENCE):
        async with backend.launch(spec(DAEMON.format(mark=mark) + "sys.stdin.read()")) as sandbox:
            await wait_ready(sandbox)
            await until(lambda: bool(processes(mark)))
            await sandbox.kill()
            await read_all(sandbox)
            report = await sandbox.wait()
            assert report.signal == signal.SIGKILL
            assert not processes(mark)


async def test_bombs_are_bounded_and_ended(backend: LandlockBackend) -> None:
    program = (
        "import os\n"
        "try:\n"
        "    file = open('big', 'wb')\n"
        "    while True: file.write(b'x' * (1 << 20))\n"
        "except OSError as error:\n"
        "    os.write(1, b'ready\\n')\n"
        "while True:\n"
        "    try: os.fork()\n"
        "    except OSError: pass\n"
    )
    found = await backend._look_around()
    if "pids" not in found.around.controllers:
        program = program[: program.index("while True:\n    try")]
    limits = replace(Limits(), pids=30, tmp_bytes=4 * MEBIBYTE, workspace_bytes=4 * MEBIBYTE)
    with anyio.fail_after(PATIENCE):
        async with backend.launch(spec(program, limits=limits)) as sandbox:
            await wait_ready(sandbox)
    assert (await run(backend, "import os; print(os.listdir('.'))")).out == "[]\n"


async def test_a_bridge_that_is_killed_leaves_no_process(
    backend: LandlockBackend, room: Path
) -> None:
    mark, runs = f"landlock-orphan-{os.getpid()}-", room / "runs"
    code = BRIDGE.format(
        imports="from bridge.sandbox.process.landlock_backend import LandlockBackend",
        backend="LandlockBackend(environ=os.environ)",
        program='DAEMON.format(mark=sys.argv[1]) + "sys.stdin.read()"',
    )
    bridge = await kill_bridge(code, mark, runs, mark)
    assert len(list(runs.iterdir())) == 1
    assert await backend.reap() >= 1
    assert list(runs.iterdir()) == []
    assert left_groups(bridge) == []


def test_an_older_kernel_is_weaker_still_and_says_so() -> None:
    asked = spec("1")
    old = isolation(asked, ProcessSurroundings(landlock_abi=3, cpus=1), as_nobody=False, root=False)
    assert old.weaker[0] == TIER
    assert any("no network rights or scopes" in text for text in old.weaker)
    assert any("bridge's own user id" in text for text in old.weaker)
    new = isolation(asked, ProcessSurroundings(landlock_abi=7, cpus=1), as_nobody=False, root=True)
    assert "unprivileged-user" not in new.layers


def test_packages_within_the_library_are_left_out_one_by_one(tmp_path: Path) -> None:
    library = str(tmp_path)
    for name in ("json", "site-packages"):
        (tmp_path / name).mkdir()
    (tmp_path / "os.py").touch()
    python = Interpreter(
        executable="/opt/bin/python3",
        version="3.12.1",
        binds=(
            *(Bind(source=path, inside=path) for path in ("/opt/bin/python3", library)),
            Bind(source="/lib/ld-2.so", inside="/lib64/ld-linux-x86-64.so.2"),
            Bind(source="/lib/libc.so.6", inside="/lib/libc.so.6"),
        ),
        links=(),
        hidden=(f"{library}/site-packages",),
    )
    place = RunDirectory(path=Path("/var/tmp/run"))
    made = {rule.path: rule for rule in rules(python, place)}
    assert made[library].rights == landlock.READ_DIR
    assert made[f"{library}/os.py"].is_file
    assert made[f"{library}/json"].rights == landlock.READ
    assert f"{library}/site-packages" not in made
    executable = {path for path, rule in made.items() if rule.rights & landlock.EXECUTE}
    assert executable == {"/opt/bin/python3", "/lib/ld-2.so"}
    writable = {path for path, rule in made.items() if rule.rights & landlock.TRUNCATE}
    assert writable == {"/var/tmp/run/workspace", "/var/tmp/run/tmp", "/proc/self"}


ORDINARY = """
import json, os, sys, anyio
from bridge.sandbox.process.landlock_backend import LandlockBackend
from tests.processes import processes
from tests.sandbox.process.rig import DAEMON, read_all, spec, wait_ready
async def main():
    async with LandlockBackend(environ=dict(os.environ)) as backend:
        probe = await backend.probe()
        daemon = DAEMON.format(mark="ordinary-%d-" % os.getpid()) + "sys.stdin.read()"
        async with backend.launch(spec(daemon)) as sandbox:
            await wait_ready(sandbox)
            while not processes("ordinary-%d-" % os.getpid()):
                await anyio.sleep(0.01)
        left = list(processes("ordinary-%d-" % os.getpid()))
        signals = "import os\\ntry: os.kill(%d, 0)\\nexcept OSError: print('no')"
        async with backend.launch(spec(signals % os.getpid())) as sandbox:
            said = await read_all(sandbox)
        deep = "import os\\nfor _ in range(300): os.mkdir('d'); os.chdir('d')\\nos.chmod('.', 0)"
        async with backend.launch(spec(deep)) as sandbox:
            await sandbox.wait()
    print(json.dumps([probe.ok, probe.summary, probe.isolation and probe.isolation.weaker, left,
        said.decode(), os.listdir(os.environ["TMPDIR"])]))
anyio.run(main)
"""


@pytest.mark.rootless
def test_an_ordinary_user_gets_the_same() -> None:
    with ordinary_user() as (become, environ, directory):
        python = usable_python(become, environ)
        place = directory / "runs"
        place.mkdir()
        shutil.chown(place, directory.stat().st_uid, directory.stat().st_gid)
        found = json_by(become, python, ORDINARY, {**environ, "TMPDIR": str(place)})
    ok, summary, weaker, left, said, runs = found
    assert ok, summary
    assert weaker[0] == TIER
    assert (left, runs) == ([], [])
    assert said == "no\n" or landlock.version() < 6
