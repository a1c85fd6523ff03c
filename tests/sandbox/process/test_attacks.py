"""What hostile code finds and tries in bubblewrap, beyond what `tests/security` tries everywhere.

Here is what only this backend promises: the very paths, limits and error numbers.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from bridge.model import MEBIBYTE, Limits
from bridge.sandbox.process.backend import BubblewrapBackend
from tests.sandbox.process.rig import run

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
