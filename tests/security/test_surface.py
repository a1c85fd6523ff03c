"""The kernel, the network and the host's files, as far as a program can reach them.

Every probe runs outside as well, where it must succeed. One run per backend makes them all.
"""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Mapping

import pytest

from bridge.model import RunRequest, RunResult
from bridge.sandbox.proc_entries import SHOWN
from bridge.sandbox.process.libseccomp import numbers
from bridge.sandbox.syscalls import ALLOWED, REFUSED
from tests.security.probes import PROBES
from tests.security.probing import Where, program
from tests.security.rig import NAMESPACES, Arena, control

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="these backends are for Linux")

DIFFERENT = ("bubblewrap", "podman", "docker", "gvisor")
"""Over SSH the containers are docker's."""

NAMESPACE_KINDS = ("user", "mount", "control group")
OWN_KERNEL_GIVES = (
    *("clone into a user namespace", "be traced", "trace a child", "use an io ring"),
    *("make a socket for the kernel's network", "make a character device"),
)
OWN_KERNEL = "gVisor is the kernel that is asked, and gives what is its own"

HARMLESS: Mapping[tuple[str, str], str] = {
    **{("gvisor", f"unshare a {kind} namespace"): OWN_KERNEL for kind in NAMESPACE_KINDS},
    **{("gvisor", name): OWN_KERNEL for name in OWN_KERNEL_GIVES},
    ("gvisor", "make an executable file in memory"): "it lets files in memory be executed; the "
    "program may run any code it likes anyway",
    ("gvisor", "see the first process's environ"): "it does not know of processes that may not be "
    "looked into; the first process holds nothing that the program was not given",
    ("gvisor", "see the first process's maps"): "as with its environment",
    ("gvisor", "see the first process's fd/0"): "as with its environment",
    ("kubernetes", "execute a file with a set-user-id bit"): "Kubernetes has no mount options for "
    "what is in memory; the bit gives nothing where no process can gain privileges, and the file "
    "is the program's own",
    ("kubernetes", "find a resolver"): "a pod has to have one: it is its own loopback",
}
"""What succeeds inside, and why that is no escape. Anything else that succeeds is one."""

TERMINAL = """
import fcntl, os, termios
os.setsid()
ends = os.openpty()
fcntl.ioctl(ends[1], termios.TIOCSCTTY, 0)
"""
"""Gives a control the terminal that its user would have."""

LAST_CALL = 600
"""Beyond the newest call of any architecture's table here."""

UNFILTERED = {335, 336}
"""`uretprobe` and `uprobe` of x86: no filter sees them, and they end their caller."""

SWEEP = """
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for number in %s:
    ctypes.set_errno(0)
    result = libc.syscall(number, -1, -1, -1, -1, -1, -1)
    found[str(number)] = ctypes.get_errno() if result == -1 else 0
found
"""

FOREIGN_CALLS = """
import ctypes, mmap, os, platform
def ended_by(attempt):
    pid = os.fork()
    if not pid:
        attempt()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
def x32():
    if ctypes.CDLL(None).syscall(0x40000000 + 39) == -1:
        os.kill(os.getpid(), 31)  # unknown is as good as forbidden
def i386():
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))  # getpid through int 0x80
    number = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
    if number != os.getpid():
        os.kill(os.getpid(), 31)
print([ended_by(x32), ended_by(i386)])
"""

PROC = """
import multiprocessing, os
shown = set()
for top, directories, files in os.walk("/proc"):
    if top == "/proc":
        directories[:] = [name for name in directories if not name.isdecimal()]
    for name in files:
        path = os.path.join(top, name)
        try:
            with open(path, "rb", buffering=0) as file:
                content = file.read(64)
        except OSError:
            continue
        if content:
            shown.add("/".join(path.split("/")[2 : 4 if path.startswith("/proc/sys/") else 3]))
            if path.startswith("/proc/sys/kernel/pty"):
                shown.add(path)
for text in ("cpuinfo", "meminfo", "stat", "uptime", "sys/kernel/random/uuid"):
    assert open("/proc/" + text).read(), text
assert os.cpu_count() and multiprocessing.cpu_count() and os.getloadavg()
assert os.listdir("/proc/self/fd")
sorted(shown)
"""

HELD = """
import os
found = {}
for name in os.listdir("/proc/self/fd"):
    try:
        found[name] = os.readlink("/proc/self/fd/" + name)
    except OSError:
        pass  # the listing's own
found
"""

DRAWN = """
import os, random, secrets, uuid
[random.random(), uuid.uuid4().hex, secrets.token_hex(), os.urandom(8).hex(), hash("seed")]
"""


@pytest.mark.guarantee("own-proc")
async def test_a_program_sees_its_own_processes_and_a_short_list_of_the_kernels_files(
    arena: Arena,
) -> None:
    if arena.kind in ("gvisor", "kubernetes"):
        pytest.skip("gVisor shows its own kernel's; a node's runtime decides what its pods see")
    shown = (await arena.attack(PROC)).result
    assert shown.status == "success", shown
    assert set(shown.result) <= SHOWN.keys() - {"sys"}


@pytest.fixture(scope="module")
async def surface(arena: Arena, host: Mapping[str, object]) -> Mapping[str, str]:
    attacked = await arena.attack(program(PROBES, host))
    assert attacked.result.status == "success", attacked.result
    found: dict[str, str] = json.loads(attacked.result.stdout)
    return found


@pytest.fixture(scope="session")
def controls(host: Mapping[str, object]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    places: tuple[tuple[Where, tuple[str, ...]], ...] = (("host", ()), ("namespaces", NAMESPACES))
    for where, namespaces in places:
        probes = {name: probe for name, probe in PROBES.items() if probe.outside == where}
        text = program(probes, host, apart=bool(namespaces))
        ran = control(text if namespaces else TERMINAL + text, namespaces=namespaces)
        assert ran.stdout, ran.stderr
        found |= json.loads(ran.stdout)
    return found


def judge(
    attack: int, arena: Arena, surface: Mapping[str, str], controls: Mapping[str, str]
) -> None:
    judged = 0
    for name, probe in PROBES.items():
        if probe.attack != attack:
            continue
        outside, inside = controls[name], surface[name]
        assert outside == "ESCAPED" or outside in (probe.absent or {}), f"void: {name}: {outside}"
        may = (arena.kind, name) in HARMLESS
        assert (inside == "ESCAPED") == may, f"{arena.name}: {name}: {inside}"
        judged += 1
    assert judged


@pytest.mark.guarantee("no-namespaces")
async def test_no_mount_and_no_namespace_can_be_made(
    arena: Arena, surface: Mapping[str, str], controls: Mapping[str, str]
) -> None:
    """`clone3` is unknown rather than forbidden, so that threads work."""
    judge(26, arena, surface, controls)
    assert surface["clone3 into a user namespace"] == "ENOSYS"
    threads = "import threading\nt = threading.Thread(target=print, args=('a thread',))\nt.start()"
    assert (await arena.engine.run(RunRequest(code=threads))).stdout == "a thread\n"


@pytest.mark.parametrize(
    "attack",
    [
        pytest.param(27, marks=pytest.mark.guarantee("own-processes-only"), id="look into others"),
        pytest.param(28, marks=pytest.mark.guarantee("own-processes-only"), id="write to others"),
        pytest.param(29, marks=pytest.mark.guarantee("small-kernel"), id="doors of the kernel"),
        pytest.param(30, marks=pytest.mark.guarantee("small-kernel"), id="other sockets"),
        pytest.param(31, marks=pytest.mark.guarantee("no-local-sockets"), id="local sockets"),
        pytest.param(32, marks=pytest.mark.guarantee("no-privileges"), id="devices, privileges"),
        pytest.param(33, marks=pytest.mark.guarantee("no-privileges"), id="the kernel's offers"),
        pytest.param(36, marks=pytest.mark.guarantee("own-processes-only"), id="signals"),
        pytest.param(37, marks=pytest.mark.guarantee("no-network"), id="networks"),
        pytest.param(42, marks=pytest.mark.guarantee("background-bridge"), id="the bridge"),
    ],
)
async def test_no_attempt_of_an_attack_succeeds(
    attack: int, arena: Arena, surface: Mapping[str, str], controls: Mapping[str, str]
) -> None:
    judge(attack, arena, surface, controls)


@pytest.mark.guarantee("no-network")
async def test_no_resolver_can_be_asked_for_a_name(
    arena: Arena, surface: Mapping[str, str], controls: Mapping[str, str]
) -> None:
    judge(38, arena, surface, controls)
    code = "import socket\nsocket.getaddrinfo('secret.example.com', 80)"
    assert "gaierror" in (await arena.engine.run(RunRequest(code=code))).summary


@pytest.mark.guarantee("no-secrets")
async def test_no_file_name_or_secret_of_the_host_is_inside(
    arena: Arena, surface: Mapping[str, str], controls: Mapping[str, str]
) -> None:
    judge(41, arena, surface, controls)
    code = (
        "import json, os\ntry: json.loads('')\nexcept ValueError: raise KeyError(dict(os.environ))"
    )
    failed = await arena.engine.run(RunRequest(code=code))
    assert failed.status == "error"
    assert "canary" not in repr(failed).lower()
    assert str(arena.home) not in repr(failed)


@pytest.mark.guarantee("no-local-sockets")
async def test_only_the_channel_is_held_open(arena: Arena) -> None:
    """Input, output, errors, and one socket to the supervisor."""
    found: RunResult = await arena.engine.run(RunRequest(code=HELD))
    kinds = sorted(text.partition(":")[0] for text in found.result.values())
    assert kinds == ["/dev/null", "pipe", "pipe", "socket"], found.result


@pytest.mark.guarantee("fresh-randomness")
async def test_two_runs_draw_different_numbers(arena: Arena) -> None:
    first = (await arena.engine.run(RunRequest(code=DRAWN))).result
    second = (await arena.engine.run(RunRequest(code=DRAWN))).result
    assert len(first) == len(second) == 5
    assert not set(first) & set(second)


@pytest.mark.guarantee("small-kernel")
async def test_every_call_off_the_list_is_refused(arena: Arena) -> None:
    allowed = set(numbers(ALLOWED).values())
    refused = set(numbers(REFUSED).values())
    swept = sorted(set(range(LAST_CALL)) - allowed - UNFILTERED)
    result = (await arena.attack(SWEEP % swept)).result
    assert result.isolation is not None
    found = {int(number): code for number, code in result.result.items()}
    if arena.kind == "gvisor":
        assert "own-kernel" in result.isolation.layers
        mounts = numbers(("mount", "umount2", "pivot_root", "chroot", "setns")).values()
        assert all(found[number] != 0 for number in mounts)
        return
    assert "own-seccomp" in result.isolation.layers, result.isolation
    if arena.kind == "docker":
        # Docker 20 knows no other answer for what is off the list, but for the newest calls.
        found = {
            n: errno.ENOSYS if n not in refused and code == errno.EPERM else code
            for n, code in found.items()
        }
    assert found == {n: errno.EPERM if n in refused else errno.ENOSYS for n in swept}


@pytest.mark.guarantee("small-kernel")
async def test_calls_by_another_architectures_numbers_are_deadly_or_unknown(arena: Arena) -> None:
    assert (await arena.attack(FOREIGN_CALLS)).result.stdout == "[31, 31]\n"
    # The control, as far as this kernel has those tables: i386 is none of a filter's doing outside.
    assert control(FOREIGN_CALLS).stdout in ("[31, 0]\n", "[0, 0]\n", "[31, 31]\n")
