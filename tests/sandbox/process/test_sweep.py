"""Every system call number, tried from inside."""

from __future__ import annotations

import errno
import json
import platform
import sys

import pytest

from bridge.sandbox.process.backend import BubblewrapBackend
from bridge.sandbox.process.libseccomp import numbers
from bridge.sandbox.syscalls import ALLOWED, REFUSED
from tests.sandbox.process.rig import outside, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

LAST = 600
"""Beyond the newest call of any architecture's table here."""

UNFILTERED = {335, 336} if platform.machine() == "x86_64" else set()
"""`uretprobe` and `uprobe`: recent kernels let them past every filter, since their own trampolines
make them, and end whoever else does with SIGILL."""

SWEEP = """
import ctypes, json, os
libc = ctypes.CDLL(None, use_errno=True)
found = {}
for number in %s:
    ctypes.set_errno(0)
    result = libc.syscall(number, -1, -1, -1, -1, -1, -1)
    found[number] = ctypes.get_errno() if result == -1 else 0
print(json.dumps(found))
"""

SOCKETS = """
import json, socket
found = {}
for family in range(64):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
        found[family] = 'open'
    except OSError as error:
        found[family] = error.errno
print(json.dumps(found))
"""

ENDED_BY = """
import ctypes, mmap, os
def ended_by(attempt):
    pid = os.fork()
    if not pid:
        attempt()
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
def x32():
    ctypes.CDLL(None).syscall(0x40000000 + 39)
def i386():
    memory = mmap.mmap(-1, 4096, prot=7)
    memory.write(bytes([0xB8, 20, 0, 0, 0, 0xCD, 0x80, 0xC3]))  # getpid through int 0x80
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
print(ended_by(x32), ended_by(i386))
"""


async def test_every_call_off_the_list_is_refused(backend: BubblewrapBackend) -> None:
    """What is on no list does not exist; what is refused says so."""
    allowed = set(numbers(ALLOWED).values())
    refused = set(numbers(REFUSED).values())
    swept = sorted(set(range(LAST)) - allowed - UNFILTERED)
    ran = await run(backend, SWEEP % swept)
    found = {int(number): code for number, code in json.loads(ran.out).items()}
    expected = {n: errno.EPERM if n in refused else errno.ENOSYS for n in swept}
    assert found == expected


async def test_calls_that_are_harmless_to_try_work_outside(backend: BubblewrapBackend) -> None:
    """The control: outside these are neither unknown nor forbidden; -1 is just nonsense."""
    names = ("setns", "open_tree", "fsopen", "memfd_create", "mq_open", "shmget", "keyctl", "bpf")
    tried = sorted(numbers(names).values())
    assert len(tried) == len(names)
    there = json.loads(outside(SWEEP % tried).out)
    inside = json.loads((await run(backend, SWEEP % tried)).out)
    for number in map(str, tried):
        assert inside[number] in (errno.EPERM, errno.ENOSYS)
    assert sum(there[n] not in (errno.EPERM, errno.ENOSYS) for n in map(str, tried)) >= 5


async def test_no_socket_but_a_local_one_can_be_made(backend: BubblewrapBackend) -> None:
    """Attack 30: packets, virtual machines, netlink, the kernel's ciphers, and the network."""
    found = json.loads((await run(backend, SOCKETS)).out)
    assert found.pop("1") == "open"
    assert set(found.values()) == {errno.EAFNOSUPPORT}
    there = json.loads(outside(SOCKETS).out)
    assert there["2"] == there["1"] == "open"


@pytest.mark.parametrize("number", sorted(UNFILTERED))
async def test_what_no_filter_sees_is_deadly_or_unknown(
    number: int, backend: BubblewrapBackend
) -> None:
    """The kernel's own exceptions are of no use to a program."""
    program = ENDED_BY.partition("def x32")[0] + (
        f"libc = ctypes.CDLL(None, use_errno=True)\n"
        f"def attempt(): os._exit(0 if libc.syscall({number}) == -1 else 9)\n"
        f"print(ended_by(attempt))\n"
    )
    assert (await run(backend, program)).out in ("4\n", "0\n")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other tables exist on x86 only")
async def test_another_architectures_calls_kill(backend: BubblewrapBackend) -> None:
    """Through x32 and i386 the same numbers mean other calls, so nobody gets to make any."""
    assert (await run(backend, ENDED_BY)).out == "31 31\n"
    # The control, as far as this kernel has those tables: nothing is killed outside.
    assert "31" not in outside(ENDED_BY).out


async def test_clone3_is_unknown_so_that_threads_work(backend: BubblewrapBackend) -> None:
    """EPERM would break the C library's threads (attack 26)."""
    program = (
        "import ctypes, threading\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.syscall(435, 0, 0), ctypes.get_errno())\n"
        "t = threading.Thread(target=print, args=('a thread',)); t.start(); t.join()\n"
    )
    assert (await run(backend, program)).out == f"-1 {errno.ENOSYS}\na thread\n"
