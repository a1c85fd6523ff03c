"""Runs that follow each other in one sandbox: what the second sees of the first.

Every attack of this suite is made on lanes too, by the backends whose names end in "-lane". Here is
what can be asked only there. What a first run does here ends cleanly, so that the second one really
is in the same sandbox; each test sees to that.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from bridge.engine import open_engine
from bridge.model import RunRequest, RunResult
from bridge.sandbox.backend import Backend, LanePlan, LaunchSpec, Sandbox
from bridge.sandbox.choose import choose
from bridge.settings import Settings
from tests.contract.rig import EngineShelf
from tests.engine_rig import ListFinder
from tests.security.rig import Arena, OnePrincipal, settings_for
from tests.waiting import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these backends are for Linux")

LEAVE = """
import atexit, builtins, gc, json, mmap, os, random, signal, socket, sys, tempfile, threading
secret = {secret!r}
for place in ("/tmp", "/workspace", "/dev/shm"):
    os.makedirs(place + "/deep/er", exist_ok=True)
    with open(place + "/deep/er/file", "w") as file:
        file.write(secret)
os.symlink("/etc/passwd", "/workspace/out/left")
os.mkfifo("/tmp/pipe")
os.symlink("/etc/passwd", "/tmp/link")
held = [tempfile.TemporaryFile() for _ in range(20)]
listener = socket.socket(socket.AF_UNIX)
listener.bind("\\0" + "left")
listener.listen()
named = socket.socket(socket.AF_UNIX)
named.bind("/tmp/socket")
named.listen()
os.environ["LEFT"] = secret
os.chdir("/tmp/deep")
os.umask(0o777)
builtins.left = sys.left = json.left = secret
json.loads = None
sys.path.insert(0, "/tmp")
random.seed(1)
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
block = (secret * 1000).encode()
for _ in range(3):
    if not os.fork():
        os.setsid()
        if not os.fork():
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            while True:
                signal.sigtimedwait([], 3600)
        os._exit(0)
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(secret)
len(os.listdir("/proc"))
"""

FIND = """
import builtins, json, os, socket, sys
found = []
def attempt(name, action):
    try:
        seen = action()
    except OSError:
        return
    if seen:
        found.append((name, repr(seen)))
for place in ("/tmp", "/workspace", "/dev/shm", "/dev/mqueue", "/run", "/var/tmp"):
    # Of what the guest makes for each run there is `out`, which has to be empty.
    made = {("/workspace", "out")}
    attempt(place, lambda: [name for name in os.listdir(place) if (place, name) not in made])
attempt("out", lambda: os.listdir("/workspace/out"))
def connect(address):
    with socket.socket(socket.AF_UNIX) as made:
        made.connect(address)
        return True
attempt("an abstract socket", lambda: connect("\\0" + "left"))
attempt("a named socket", lambda: connect("/tmp/socket"))
attempt("a variable", lambda: os.environ.get("LEFT"))
attempt("an attribute", lambda: [m for m in (builtins, sys, json) if hasattr(m, "left")])
attempt("a broken function", lambda: json.loads("[1]") != [1])
attempt("a path", lambda: "/tmp" in sys.path)
attempt("a directory", lambda: os.getcwd() != "/workspace")
attempt("a mask", lambda: os.umask(0o022) != 0o022)
attempt("descriptors", lambda: [n for n in os.listdir("/proc/self/fd") if int(n) > 2][3:])
attempt("processes", lambda: [n for n in os.listdir("/proc") if n.isdigit()][{processes}:])
attempt("unix sockets", lambda: "left" in open("/proc/net/unix").read())
found
"""

SCAN = """
import os
def holds(words):
    # Put together only here, and taken apart again: the text of this program does not hold it.
    needle = bytearray(reversed(words))
    hits = 0
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in list(maps):
            place, rights = line.split()[:2]
            if "r" not in rights or "[v" in line:
                continue
            start, end = (int(text, 16) for text in place.split("-"))
            try:
                memory.seek(start)
                data = memory.read(end - start)
            except (OSError, OverflowError, ValueError):
                continue
            at = data.find(needle)
            while at >= 0:
                hits += 1
                at = data.find(needle, at + 1)
            del data
    # The needle itself is one place.
    return hits
planted = "".join(map(chr, range(97, 117))).encode() * 2
[holds({backwards!r}), holds(bytes(reversed(planted)))]
"""

REACH = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
mine = os.readlink("/proc/self")
own_proc = mine == str(os.getpid())
reached = []
def attempt(name, action):
    try:
        action()
    except (OSError, ValueError):
        return
    reached.append(name)
others = [n for n in os.listdir("/proc") if n.isdigit() and n != mine]
for n in others:
    base = "/proc/" + n + "/"
    for name in ("mem", "environ", "maps", "auxv", "stack", "syscall", "io"):
        attempt(base + name, lambda: open(base + name, "rb").read(1))
    for name in ("fd", "map_files"):
        attempt(base + name, lambda: os.listdir(base + name))
    for name in ("root", "cwd", "exe", "ns/mnt", "ns/user", "ns/pid"):
        attempt(base + name, lambda: os.stat(base + name))
    for name in ("oom_score_adj", "uid_map", "clear_refs", "comm"):
        attempt(base + name, lambda: os.write(os.open(base + name, os.O_WRONLY), b"1000"))
    place = os.open("/proc/" + n, os.O_RDONLY | os.O_DIRECTORY)
    if n == "1" and not own_proc and libc.syscall(424, place, signal.SIGTERM, None, 0) == 0:
        # By a descriptor of its directory, since its number means somebody else. (The supervisor of
        # a run may be told to end, in a lane as anywhere; that is the end of the run.)
        reached.append("a signal to " + n)
[len(others), reached]
"""

SPRAY = """
import json, os
def channel():
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name).startswith("socket:"):
                return int(name)
        except OSError:
            pass
rpc = channel()
for n in range(200):
    os.write(rpc, b'{"type":"call","id":%d,"method":"list_servers","params":{}}\\n' % n)
for line in (
    b'{"type":"exited","code":0}\\n', b'{"type":"ready","facts":{},"refused":""}\\n',
    b'{"type":"next"}\\n', b'{"type":"run","code":"1"}\\n', b'{"type":"lane","mounts":[]}\\n',
    b'{"type":"hello","digest":"","python":"","protocol":1}\\n', b"nonsense\\n",
):
    os.write(rpc, line)
"sprayed"
"""


async def run(arena: Arena, code: str) -> RunResult:
    """Run a program without servers."""
    found = await arena.engine.run(RunRequest(code=code, servers=()))
    assert found.status == "success", found
    return found


@asynccontextmanager
async def in_one_sandbox(arena: Arena) -> AsyncIterator[None]:
    """See that all runs meanwhile are in one sandbox, and that it goes on."""
    await run(arena, "1")
    await arena.settle()
    before = list(arena.backend.live)
    yield
    await arena.settle()
    assert list(arena.backend.live) == before


def secret() -> str:
    """Make something to look for."""
    return f"left-{secrets.token_hex(16)}"


async def test_nothing_of_a_run_is_seen_by_the_next(lane: Arena) -> None:
    """Files, processes, sockets, environment, modules, directory, descriptors."""
    async with in_one_sandbox(lane):
        processes = (await run(lane, LOOK_AT_PROCESSES)).result
        left = await run(lane, LEAVE.format(secret=secret()))
        assert left.result > processes, "void: its processes are not there"
        found = await run(lane, FIND.replace("{processes}", str(processes)))
    assert found.result == []


LOOK_AT_PROCESSES = 'import os\nlen([n for n in os.listdir("/proc") if n.isdigit()])'


async def test_nothing_of_a_run_is_in_the_memory_of_the_next(lane: Arena) -> None:
    """Neither its program, nor what it printed or made, nor what the host answered it.

    The process that forks both must never have read any of it.
    """
    hidden = secret()
    async with in_one_sandbox(lane):
        code = f"said = {hidden!r}\nprint(said)\nheld = [said * 100] * 100\nsaid"
        assert (await run(lane, code)).result == hidden
        scan = SCAN.replace("{backwards!r}", repr(hidden[::-1].encode()))
        theirs, own = (await run(lane, scan)).result
    # The control: what is there is found. The needle is the one place of the other.
    assert own > 1
    assert theirs == 1


async def test_neither_the_process_that_forks_nor_the_supervisor_can_be_reached(
    lane: Arena,
) -> None:
    """Where /proc shows them, they are seen and no more."""
    async with in_one_sandbox(lane):
        seen, reached = (await run(lane, REACH)).result
        again = await run(lane, "1 + 1")
    assert seen >= 1
    assert reached == []
    assert again.result == 2


async def test_what_a_run_leaves_on_its_channel_reaches_nobody(lane: Arena) -> None:
    """Calls whose answers nobody reads, and every frame that is not a run's to send."""
    for _ in range(3):
        assert (await run(lane, SPRAY)).result == "sprayed"
        found = await run(lane, "import os\nprint(len(os.listdir('/tmp')))\n7")
        assert (found.stdout, found.result) == ("0\n", 7)


async def test_what_libraries_draw_once_is_drawn_for_each_run(lane: Arena) -> None:
    """OpenSSL and temporary names keep state of their own."""
    draw = (
        "import random, ssl, tempfile, uuid\n"
        "[ssl.RAND_bytes(8).hex(), next(tempfile._get_candidate_names()), uuid.uuid1().hex,"
        " random.Random().random(), random.getrandbits(64)]"
    )
    async with in_one_sandbox(lane):
        runs = [(await run(lane, draw)).result for _ in range(4)]
    for drawn in zip(*runs, strict=True):
        assert len(set(drawn)) == len(runs), drawn


async def test_memory_and_processes_of_a_run_are_given_back(lane: Arena) -> None:
    """Runs that each take most of what there is follow each other without end."""
    fill = (
        "import os\n"
        "for place in ('/tmp', '/workspace'):\n"
        "    with open(place + '/full', 'wb') as file:\n"
        "        for _ in range(30): file.write(bytes(1 << 20))\n"
        "pids = []\n"
        "for _ in range(40):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        os.setsid()\n"
        "        while True: __import__('time').sleep(3600)\n"
        "    pids.append(pid)\n"
        "len(pids)"
    )
    async with in_one_sandbox(lane):
        for _ in range(6):
            assert (await run(lane, fill)).result == 40


async def test_a_lane_that_was_given_up_is_replaced_by_the_next_run(lane: Arena) -> None:
    """As when it is too old, or a busy machine took too long to get it ready again."""
    await lane.settle()
    [name] = lane.backend.live
    await lane.backend.live[name].kill()
    await until(lambda: name not in lane.backend.live)
    async with lane.unharmed() as victims:
        assert victims != [name]


async def test_the_result_says_that_it_is_a_fork_and_what_is_shared(lane: Arena) -> None:
    """And each layer that a sandbox of its own has is there."""
    found = (await run(lane, "1")).isolation
    assert found is not None
    assert "namespaces-per-run" in found.verified
    assert {"own-seccomp", "no-capabilities", "no-network", "user-namespace"} <= set(found.layers)
    assert any("seed of hash()" in text for text in found.weaker)
    shown = any("/proc is the sandbox's" in text for text in found.weaker)
    assert shown == (lane.name != "bubblewrap")


class Unwilling:
    """A backend that says it can have lanes and launches what it launches for any other run.

    So the kernel is really asked for namespaces, and really refuses them.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    @asynccontextmanager
    async def launch(self, spec: LaunchSpec) -> AsyncIterator[Sandbox]:
        """Start a sandbox whose filter refuses namespaces."""
        own = LaunchSpec(run_id=spec.run_id, argv=spec.argv, env=spec.env, limits=spec.limits)
        async with self._backend.launch(own) as sandbox:
            if spec.lane:
                cast("Any", sandbox).lane = LanePlan(mounts=())
            yield sandbox


async def test_where_the_kernel_refuses_namespaces_each_run_has_its_own_sandbox(
    shelf: EngineShelf, tmp_path: Path
) -> None:
    """And its result says so; never a fork without them."""

    async def choose_unwilling(wanted: Settings) -> Backend:
        return cast("Backend", Unwilling(await choose(wanted)))

    settings = settings_for("bubblewrap", shelf, tmp_path, isolation="fork", warm="0")
    async with open_engine(
        settings, finder=ListFinder(), choose_backend=choose_unwilling
    ) as engine:
        for _ in range(2):
            found = await engine.run(RunRequest(code="1 + 1", principal="me"))
            assert found.result == 2
            assert found.isolation is not None
            [note] = [text for text in found.isolation.weaker if text.startswith("fork:")]
            assert "not used" in note
            assert "refuses" in note
            assert "namespaces-per-run" not in found.isolation.layers


async def test_runs_at_a_time_are_in_sandboxes_of_their_own(
    shelf: EngineShelf, tmp_path: Path
) -> None:
    """A lane has one run at a time, and the lanes are one caller's."""
    settings = settings_for("bubblewrap", shelf, tmp_path, isolation="fork", warm="0")
    async with open_engine(settings, finder=ListFinder(), choose_backend=choose) as engine:
        mine = OnePrincipal(engine)
        first = await mine.run(RunRequest(code="import os\nos.getpid()"))
        await until(lambda: engine.sandboxes.lanes_ready == 1)
        other = await engine.run(RunRequest(code="1", principal="another"))
        await until(lambda: engine.sandboxes.lanes_ready == 2)
    assert first.result == 2, "the program's process is the second of its namespace"
    assert other.status == "success"
    assert os.getpid() != 2
