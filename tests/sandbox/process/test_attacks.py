"""What hostile code tries, really tried, inside and outside.

Each program prints ESCAPED when it got what it wanted. Outside it must: an attempt that fails
everywhere proves nothing about the sandbox.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from bridge.model import MEBIBYTE, Limits
from bridge.sandbox.process.backend import BubblewrapBackend
from tests.sandbox.process.rig import outside, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is for Linux")

CALLS = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, result):
    if result >= 0:
        print('ESCAPED', what)
    else:
        print('denied', what, os.strerror(ctypes.get_errno()))
"""

SHADOW = "canary-in-a-file"


@dataclass(frozen=True, kw_only=True)
class Target:
    """What is there to be reached outside."""

    directory: Path
    secret: Path
    port: int
    abstract: str


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Target]:
    """Plant a secret and two listeners."""
    secret = tmp_path / "shadow"
    secret.write_text(SHADOW)
    with listening(socket.AF_INET, ("127.0.0.1", 0)) as tcp:
        name = f"mcp-code-bridge-test-{id(tmp_path)}"
        with listening(socket.AF_UNIX, f"\0{name}"):
            yield Target(
                directory=tmp_path, secret=secret, port=tcp.getsockname()[1], abstract=name
            )


@contextmanager
def listening(family: int, address: object) -> Iterator[socket.socket]:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind(address)  # type: ignore[arg-type]  # of whichever family
        listener.listen(8)
        yield listener
    finally:
        listener.close()


ATTACKS = {
    # Outside it happens in a mount namespace of its own, so nothing is left of it.
    "mount": CALLS + "attempt('mount', libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None))\n",
    "unshare a user namespace": CALLS + "attempt('unshare', libc.unshare(0x10000000))\n",
    "clone into a user namespace": CALLS
    + "pid = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0)\n"
    + "if pid == 0: os._exit(0)\n"
    + "attempt('clone', pid)\n",
    "ptrace": CALLS + "attempt('ptrace', libc.ptrace(0, 0, 0, 0))\n",
    "read another process's memory": CALLS
    + "buffer = ctypes.create_string_buffer(b'secret')\n"
    + "class Vector(ctypes.Structure):\n"
    + "    _fields_ = [('a', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
    + "into = ctypes.create_string_buffer(6)\n"
    + "there, here = Vector(ctypes.addressof(buffer), 6), Vector(ctypes.addressof(into), 6)\n"
    + "attempt('process_vm_readv', libc.process_vm_readv(\n"
    + "    os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0))\n",
    "join another namespace": CALLS
    + "fd = os.open('/proc/self/ns/uts', os.O_RDONLY)\nattempt('setns', libc.setns(fd, 0))\n",
    "open a mount tree": CALLS + "attempt('open_tree', libc.syscall(428, -100, b'/', 0x8001))\n",
    "make an anonymous executable file": CALLS + "attempt('memfd', libc.memfd_create(b'x', 0))\n",
    "change the personality": CALLS + "attempt('personality', libc.personality(0x0040000))\n",
    "read a file of the host": "print('ESCAPED' if open({secret!r}).read() else '')",
    "find the host's files": "import os\nprint('ESCAPED' if os.listdir({directory!r}) else '')",
    "write a file of the host": "open({directory!r} + '/new', 'w').write('x')\nprint('ESCAPED')",
    "reach a port of the host": "import socket\n"
    "socket.create_connection(('127.0.0.1', {port}), 5)\nprint('ESCAPED')",
    "reach an abstract socket": "import socket\n"
    "s = socket.socket(socket.AF_UNIX)\ns.connect(chr(0) + {abstract!r})\nprint('ESCAPED')",
    "talk to the kernel's network": "import socket\n"
    "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\nprint('ESCAPED')",
    "execute what was written": "import os, shutil, subprocess, sys\n"
    "os.makedirs('/tmp/x-{port}', exist_ok=True)\n"
    "shutil.copy(sys.executable, '/tmp/x-{port}/python')\n"
    "try:\n"
    "    said = subprocess.run(['/tmp/x-{port}/python', '-c', 'print(7)'], check=True)\n"
    "    print('ESCAPED')\n"
    "finally:\n"
    "    shutil.rmtree('/tmp/x-{port}')\n",
    "see other processes": "import os\n"
    "pids = [int(n) for n in os.listdir('/proc') if n.isdigit()]\n"
    "print('ESCAPED' if len(pids) > 1 else 'alone')",
    "see the host's name": "import os\n"
    "print('ESCAPED' if os.uname().nodename == {host!r} else 'another')",
    "see the host's user": "import pwd\nprint('ESCAPED' if pwd.getpwnam('root') else '')",
}


@pytest.mark.parametrize("name", ATTACKS)
async def test_what_succeeds_outside_fails_inside(
    name: str, backend: BubblewrapBackend, target: Target
) -> None:
    """Attacks 26 to 37 of the reference's suite, with their controls."""
    program = ATTACKS[name].format(
        port=target.port,
        secret=str(target.secret),
        directory=str(target.directory),
        abstract=target.abstract,
        host=socket.gethostname(),
    )
    control = outside(program)
    assert "ESCAPED" in control.out, f"void: it fails outside as well: {control.err}"
    ran = await run(backend, program)
    assert "ESCAPED" not in ran.out
    assert ran.out or ran.err, "it did not even run"


@pytest.mark.parametrize(
    "path",
    [
        "/x",
        "/usr/x",
        "/etc/passwd",
        "/dev/x",
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
    ],
)
async def test_nothing_but_the_two_directories_can_be_written(
    path: str, backend: BubblewrapBackend
) -> None:
    """The root is read-only, and so is what the kernel offers to be written."""
    ran = await run(
        backend,
        f"open('/tmp/fine', 'w').write('x'); open('/workspace/fine', 'w').write('x')\n"
        f"print('fine')\nopen({path!r}, 'w').write('0')\nprint('ESCAPED')",
    )
    assert ran.out == "fine\n", ran.err


@pytest.mark.parametrize(
    "path",
    [
        "/etc/shadow",
        "/root",
        "/home",
        "/proc/kcore",
        "/proc/kallsyms",
        "/sys",
        "/run",
        "/var",
        "/dev/tty",
        "/dev/ptmx",
        "/proc/2",
    ],
)
async def test_what_is_not_needed_is_not_there_or_empty(
    path: str, backend: BubblewrapBackend
) -> None:
    """Nothing of the host is in the tree but the interpreter."""
    program = (
        "import os\n"
        f"path = {path!r}\n"
        "try:\n"
        "    found = os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(64)\n"
        "except OSError as error:\n"
        "    found = b''\n"
        "print(len(found))"
    )
    ran = await run(backend, program)
    assert ran.out == "0\n", ran.err


async def test_no_secret_of_the_host_is_in_the_environment(backend: BubblewrapBackend) -> None:
    """Neither in the process's own nor in the first process's (law 6)."""
    program = (
        "import os\nprint(sorted(os.environ))\n"
        "print(open('/proc/1/environ', 'rb').read(), open('/proc/self/mountinfo').read())\n"
    )
    ran = await run(backend, program)
    assert "canary" not in ran.out
    assert "CANARY" not in ran.out
    assert "mcp-code-bridge" not in ran.out


async def test_only_three_descriptors_are_inherited(backend: BubblewrapBackend) -> None:
    """Attack 35: no pipe of the bridge's, no directory of the host's."""
    ran = await run(backend, "import os\nprint(sorted(os.listdir('/proc/self/fd')))")
    assert ran.out == "['0', '1', '2', '3']\n"  # the last is the listing's own


async def test_every_child_is_bounded_by_the_process_limit(backend: BubblewrapBackend) -> None:
    """Attack 1: a fork bomb meets EAGAIN, and nobody else notices."""
    program = (
        "import os, time\n"
        "count = 1\n"
        "while True:\n"
        "    try:\n"
        "        if not os.fork(): time.sleep(3600)\n"
        "    except BlockingIOError:\n"
        "        break\n"
        "    count += 1\n"
        "print(count, flush=True)\n"
    )
    ran = await run(backend, program, limits=replace(Limits(), pids=20))
    assert ran.out == "20\n", ran.err
    assert (await run(backend, "print('fine')")).out == "fine\n"


async def test_ten_thousand_children_are_no_problem(backend: BubblewrapBackend) -> None:
    """Attack 11: ended children do not pile up."""
    program = (
        "import os\n"
        "for _ in range(10_000):\n"
        "    pid = os.fork()\n"
        "    if not pid: os._exit(0)\n"
        "    os.waitpid(pid, 0)\n"
        "print('fine')\n"
    )
    # Each fork takes a millisecond or two, and the limit on CPU time follows the time limit.
    limits = replace(Limits(), pids=8, timeout=240.0)
    ran = await run(backend, program, limits=limits, patience=240.0)
    assert ran.out == "fine\n", ran.err


async def test_files_in_memory_are_bounded(backend: BubblewrapBackend) -> None:
    """Attacks 3 and 4: bytes and inodes, sparse and deleted files as well."""
    program = (
        "import os, errno\n"
        "def fill(path):\n"
        "    fd = os.open(path, os.O_CREAT | os.O_WRONLY)\n"
        "    os.unlink(path)\n"
        "    size = 0\n"
        "    try:\n"
        "        while True: size += os.write(fd, b'x' * (1 << 20))\n"
        "    except OSError as error:\n"
        "        return size >> 20, errno.errorcode[error.errno]\n"
        "print(fill('/tmp/f'), fill('/workspace/f'), fill('/dev/shm/f'))\n"
        "try:\n"
        "    for n in range(1 << 20): os.symlink('x', '/tmp/%d' % n)\n"
        "except OSError as error:\n"
        "    print(n < 20000, errno.errorcode[error.errno])\n"
    )
    limits = replace(Limits(), tmp_bytes=8 * MEBIBYTE, workspace_bytes=24 * MEBIBYTE)
    ran = await run(backend, program, limits=limits)
    assert ran.out == "(8, 'ENOSPC') (24, 'EFBIG') (16, 'ENOSPC')\nTrue ENOSPC\n", ran.err


async def test_limits_cannot_be_raised_again(backend: BubblewrapBackend) -> None:
    """The hard limits are the soft ones."""
    program = (
        "import resource as r\n"
        "for name in ('NOFILE', 'NPROC', 'FSIZE', 'AS', 'CORE', 'MEMLOCK'):\n"
        "    number = getattr(r, 'RLIMIT_' + name)\n"
        "    soft, hard = r.getrlimit(number)\n"
        "    try:\n"
        "        r.setrlimit(number, (hard, hard + 1))\n"
        "        print('ESCAPED', name)\n"
        "    except (ValueError, OSError):\n"
        "        print(soft == hard)\n"
    )
    assert (await run(backend, program)).out == "True\n" * 6


async def test_named_pipes_can_be_made_and_devices_cannot(backend: BubblewrapBackend) -> None:
    """Attack 32: the same call makes both."""
    program = (
        "import os, stat\n"
        "os.mkfifo('/tmp/pipe')\n"
        "print(stat.S_ISFIFO(os.stat('/tmp/pipe').st_mode))\n"
        "for kind in (stat.S_IFCHR, stat.S_IFBLK):\n"
        "    try:\n"
        "        os.mknod('/tmp/device', kind | 0o666, os.makedev(1, 3))\n"
        "        print('ESCAPED')\n"
        "    except PermissionError as error:\n"
        "        print(error.errno)\n"
    )
    assert (await run(backend, program)).out == "True\n1\n1\n"


async def test_a_filter_or_rule_cannot_be_lifted(backend: BubblewrapBackend) -> None:
    """What is in force stays: no privileges to regain, and no way to ask for them."""
    program = CALLS + (
        "attempt('no_new_privs', libc.prctl(38, 0, 0, 0, 0))\n"
        "attempt('setuid', libc.setuid(0))\n"
        "attempt('seccomp', libc.prctl(22, 0, 0, 0, 0))\n"
        "attempt('capset', libc.capset(b'\\x22\\x05\\x08\\x20' + bytes(4), bytes(24)))\n"
    )
    ran = await run(backend, program)
    assert ran.out.count("denied") == 4, ran.out + ran.err
