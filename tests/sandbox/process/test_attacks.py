"""What hostile code finds and tries in bubblewrap, beyond what `tests/security` tries everywhere.

Here is what only this backend promises: the very paths, limits and error numbers.
"""

from __future__ import annotations

import sys

import pytest

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


WRITTEN = "/x /usr/x /etc/passwd /dev/x /proc/sys/kernel/core_pattern /proc/sysrq-trigger"

HIDDEN = """
/etc/shadow /root /home /proc/kcore /proc/kallsyms /sys /run /var /dev/tty /dev/ptmx /proc/2
"""

LOOK = """
import os
def read(path):
    try:
        return len(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(64))
    except OSError:
        return 0
def write(path):
    try:
        return open(path, "w").write("0")
    except OSError:
        return 0
"""


async def test_nothing_but_the_two_directories_can_be_written_and_the_rest_is_not_there(
    backend: BubblewrapBackend,
) -> None:
    """The root is read-only, and so is what the kernel offers to be written."""
    program = (
        f"print(write('/tmp/fine'), write('/workspace/fine'))\n"
        f"print([path for path in {WRITTEN.split()!r} if write(path)])\n"
        f"print([path for path in {HIDDEN.split()!r} if read(path)])\n"
    )
    ran = await run(backend, LOOK + program)
    assert ran.out == "1 1\n[]\n[]\n", ran.err


async def test_limits_cannot_be_raised_again(backend: BubblewrapBackend) -> None:
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
