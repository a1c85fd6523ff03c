"""How probes are made into one program.

Each probe is the body of a function that is run in a process of its own. It returns something true
when it got what it wanted, and raises or returns something false when it was kept from it. The same
text is run outside, where it must succeed, and inside, where it must not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from bridge.sandbox.process.libseccomp import numbers

Where = Literal["host", "namespaces"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One attempt.

    Attributes:
        attack: Its number in the list of attacks.
        code: A function's body.
        outside: Where the control runs: as a plain process, or in namespaces of its own with all
            capabilities over them, so that what it does to them harms no one.
        absent: What the control may meet instead where this machine lacks the thing itself, and
            what that means.
    """

    attack: int
    code: str
    outside: Where = "namespaces"
    absent: Mapping[str, str] | None = None


Named = tuple[str, Probe]


def apart(attack: int, name: str, code: str, absent: Mapping[str, str] | None = None) -> Named:
    """Return a probe whose control runs in namespaces of its own."""
    return name, Probe(attack=attack, code=code, absent=absent)


def on_host(attack: int, name: str, code: str, absent: Mapping[str, str] | None = None) -> Named:
    """Return a probe whose control runs as a plain process."""
    return name, Probe(attack=attack, code=code, absent=absent, outside="host")


_CALLS = """
clone3 fsopen open_tree mount_setattr pivot_root setns pidfd_open pidfd_getfd process_vm_readv
keyctl bpf perf_event_open userfaultfd io_uring_setup kexec_load init_module personality
memfd_create
"""

HARNESS = """
import ctypes, errno, fcntl, json, mmap, os, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
N = json.loads({numbers!r})
HOST = json.loads({host!r})
def ask(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return True
def call(name, *arguments):
    ctypes.set_errno(0)
    return ask(libc.syscall(N[name], *arguments))
def new_process(flags):
    pid = libc.syscall(N["clone"], flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    return ask(pid)
def connected(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as there:
        there.settimeout(5)
        there.connect(address)
        return True
def tried(attempt):
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(20)
        if HOST["apart"]:
            libc.unshare(0x20000)  # no control finds what another did to mounts
        try:
            said = "ESCAPED" if attempt() else "nothing"
        except OSError as error:
            said = errno.errorcode.get(error.errno, type(error).__name__)
        except BaseException as error:
            said = type(error).__name__
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    said = os.read(reader, 100).decode()
    os.close(reader)
    status = os.waitpid(pid, 0)[1]
    return said or "killed by %d" % os.WTERMSIG(status)
found = {{}}
"""


def program(probes: Mapping[str, Probe], host: Mapping[str, object], *, apart: bool = False) -> str:
    """Make one program of many probes; it prints each one's outcome.

    Args:
        host: What there is to be reached.
        apart: Give each a mount namespace of its own, as controls need.
    """
    told = json.dumps({**host, "apart": apart})
    text = HARNESS.format(numbers=json.dumps(_numbers()), host=told)
    for name, probe in probes.items():
        body = "\n".join(f"    {line}" for line in probe.code.strip().splitlines())
        text += f"def attempt():\n{body}\nfound[{name!r}] = tried(attempt)\n"
    return text + "print(json.dumps(found))\n"


def _numbers() -> dict[str, int]:
    return dict(numbers([*_CALLS.split(), "clone"]))
