"""What comes out of a sandbox in files, when the program does not want it to be what it wrote.

In bubblewrap: reading is the same everywhere. `tests/guest/supervisor/test_output_files.py` has
every trick, and `tests/runs/collect/test_hostile_files.py` a hostile supervisor.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import anyio
import pytest

from bridge.model import RunRequest, RunResult
from tests.contract.rig import EngineSet
from tests.guest.supervisor.test_supervisor import FIND_CHANNEL
from tests.security.rig import PATIENCE_SECONDS, Arena, control, peak_memory
from tests.security.rig import arena as opened

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux"),
    pytest.mark.guarantee("files-out"),
]

HOST_GROWTH = 40 * 1024
"""KiB by which the bridge may grow while it takes in 60 MiB: a few pieces of them, and slack."""


@pytest.fixture(scope="module")
async def box(
    engine_set: EngineSet, host: Mapping[str, object], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Arena]:
    assert host
    async with opened("bubblewrap", engine_set, tmp_path_factory.mktemp("box")) as made:
        yield made


async def left(
    box: Arena, code: str, *, timeout: float = 60.0
) -> tuple[RunResult, dict[str, bytes]]:
    with anyio.fail_after(PATIENCE_SECONDS):
        result = await box.engine.run(RunRequest(code=code, servers=(), timeout=timeout))
    store = box.engine.artifacts
    return result, {one.name: store.read("", one.uri) for one in result.artifacts}


PLANT = """
import os, socket, sys
os.makedirs("out", exist_ok=True)
secret = {secret!r}
links = dict(
    secret=secret, own="/proc/self/environ", maps="/proc/self/maps", memory="/proc/self/mem",
    first="/proc/1/environ", root="/", above="..", passwd="/etc/passwd", channel="/proc/self/fd/1",
)
for name, target in links.items():
    os.symlink(target, "out/" + name)
os.symlink("/etc", "out/directory")
os.mkfifo("out/pipe")
socket.socket(socket.AF_UNIX).bind("out/socket")
made = []
for name, make in dict(
    device=lambda: os.mknod("out/device", 0o20600, os.makedev(1, 5)),
    hard=lambda: os.link("/etc/passwd", "out/hard"),
    unreadable=lambda: os.close(os.open("out/unreadable", os.O_CREAT, 0)),
).items():
    try:
        make()
        made.append(name)
    except OSError:
        pass
open("out/honest", "w").write("mine")
"""

NAIVE = """
import os
os.chdir({directory!r})
exec({plant!r})
os.unlink("out/pipe")
for name in ("secret", "own"):
    print(open("out/" + name).read())
"""
"""What a collector that opens names as they are would read on the host."""


async def test_only_regular_files_come_out_and_no_link_is_followed(
    box: Arena, host: Mapping[str, object], tmp_path: Path
) -> None:
    plant = PLANT.format(secret=str(host["secret"]))
    naive = control(NAIVE.format(directory=str(tmp_path), plant=plant))
    assert str(host["canary"]) in naive.stdout, naive.stderr
    result, files = await left(box, f"{plant}\nmade")
    assert result.status == "success", result.error
    assert files.pop("honest") == b"mine"
    assert files == dict.fromkeys(set(files) & {"unreadable"}, b"")
    why = {loss.name: loss.why for loss in result.missing}
    assert {"secret", "own", "maps", "memory", "first", "root", "directory"} <= why.keys()
    assert why["pipe"] == why["socket"]
    assert why["pipe"].startswith("it is a pipe, a socket or a device")
    assert "hard" not in result.result
    assert str(host["canary"]) not in f"{result}"


REPLACEMENTS = (
    *(
        'os.symlink("/etc", "out")',
        'os.symlink("was", "out")',
        'os.symlink("/proc/self/fd", "out")',
    ),
    *('os.mkfifo("out")', 'open("out", "w").write("x")', "pass"),
)


@pytest.mark.parametrize("make", REPLACEMENTS)
async def test_nothing_but_the_directory_itself_is_read(box: Arena, make: str) -> None:
    moved = "import os\nos.rename('out', 'was')\nopen('was/x', 'w').write('x')\n"
    result, files = await left(box, moved + make)
    assert (result.status, files) == ("success", {}), result.error
    # The directory under its new name is one of the working directory, of which no file is read.
    names = [loss.name for loss in result.missing if loss.name != "was"]
    assert names == ([] if make == "pass" else ["out"])


RACE = """
import os, signal, time
for name in ("file", "link"):
    open("/workspace/" + name, "w").write("honest")
os.unlink("/workspace/link")
os.symlink("/proc/self/maps", "/workspace/link")
ready = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.close(0), os.close(1), os.close(2)
        log = os.open("out/log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(ready[1], b"x")
        while True:
            os.write(log, b"0123456789" * 100)
            for name in ("file", "link"):
                try:
                    os.link("/workspace/" + name, "out/new", follow_symlinks=False)
                    os.rename("out/new", "out/swapped")
                except OSError:
                    pass
    os._exit(0)
os.wait()
os.read(ready[0], 1)
"""


async def test_processes_left_behind_change_nothing_while_it_is_read(box: Arena) -> None:
    for _ in range(3):
        result, files = await left(box, RACE)
        assert result.status == "success", result.error
        why = {loss.name: loss.why for loss in result.missing}
        log = files.pop("log")
        assert log == (b"0123456789" * (len(log) // 10 + 1))[: len(log)]
        # From the working directory.
        assert files.pop("file", b"honest") == b"honest"
        # Its size may be more than a run may leave, but never is it half of what was there.
        assert files in ({}, {"swapped": b"honest"}, {"new": b"honest"}), files.keys()
        assert not any("changed" in text for text in why.values()), why
    await box.next_run_is_clean()


LARGE = """
import os
with open("out/sparse", "wb") as file:
    size = 1 << 44
    while True:
        try:
            file.truncate(size)
            break
        except OSError:
            size //= 2
size
"""

MANY = """
import os
made = 0
try:
    for made in range(100_000):
        os.mkdir("out/%d" % made) if made % 3 else open("out/%d" % made, "w").close()
except OSError:
    pass
deep = "out/0d"
try:
    while True:
        os.mkdir(deep)
        deep += "/0d"
except OSError:
    pass
made
"""


async def test_sparse_enormous_and_countless_files_cost_the_host_little(box: Arena) -> None:
    limits = box.engine.settings
    result, files = await left(box, LARGE)
    assert isinstance(result.result, int)
    if result.result > limits.artifact_run_bytes:
        assert files == {}
        assert f"{result.result:,} bytes are too many" in result.missing[0].why
    else:
        assert len(files["sparse"]) == result.result
    whole = "import os\nopen('out/a', 'wb').write(os.urandom(1) * (40 << 20))"
    with peak_memory() as grown:
        result = await box.engine.run(RunRequest(code=whole, servers=()))
    assert [one.size for one in result.artifacts] == [40 << 20], result
    assert grown[0] < HOST_GROWTH, grown
    result, files = await left(box, MANY, timeout=60)
    assert result.result > 1000, result.error
    assert len(files) <= 100
    assert len(result.missing) <= 22
    assert any("the rest was" in loss.why for loss in result.missing), result.missing


FORGE = f"""
{FIND_CHANNEL}
import base64, json, os
data = base64.b64encode(b"forged").decode()
for name in ("../../../../tmp/forged", "forged", "/etc/forged"):
    frame = dict(type="file", name=name, data=data, size=6, more=False, problem="")
    os.write(fd, json.dumps(frame, separators=(",", ":")).encode() + b"\\n")
open("out/real", "w").write("real")
"""


async def test_a_program_cannot_speak_for_the_supervisor(box: Arena) -> None:
    result, files = await left(box, FORGE)
    assert result.status == "success", result.error
    assert files == {"real": b"real"}
    assert result.missing == ()


@pytest.mark.parametrize(
    ("ends", "status"),
    [
        ("while True: pass", "timeout"),
        ("os.kill(os.getpid(), 9)", "error"),
        ("os._exit(3)", "error"),
        ("blocks = []\nwhile True: blocks.append(bytearray(10 << 20))", "error"),
    ],
)
async def test_written_files_come_out_however_a_program_ends(
    box: Arena, ends: str, status: str
) -> None:
    code = f"import os\nopen('out/part', 'w').write('so far')\n{ends}"
    result, files = await left(box, code, timeout=1 if status == "timeout" else 60)
    assert result.status == status, result
    assert files == {"part": b"so far"}
