"""What is attempted against the kernel and other processes: attacks 26 to 31 and 36."""

from __future__ import annotations

from collections.abc import Iterable

from tests.security.probing import Probe, apart, on_host


def _mounts() -> Iterable[tuple[str, Probe]]:
    pivot = """
libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)
os.makedirs("/tmp/old", exist_ok=True)
return call("pivot_root", b"/tmp", b"/tmp/old")
"""
    texts = {
        "mount a file system": 'return ask(libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))',
        "bind the root elsewhere": 'return ask(libc.mount(b"/", b"/tmp", None, 20480, None))',
        "remount the root writable": 'return ask(libc.mount(None, b"/", None, 4096 | 32, None))',
        "take a mount away": 'libc.mount(b"none", b"/tmp", b"tmpfs", 0, None)\n'
        'return ask(libc.umount2(b"/tmp", 2))',
        "change the root": pivot,
        "open a mount tree": 'return call("open_tree", -100, b"/", 0x88001)',
        "prepare a file system": 'return call("fsopen", b"tmpfs", 0)',
        "change a mount's flags": 'return call("mount_setattr", -100, b"/", 0, bytes(32), 32)',
        "change the root directory": 'os.chroot("/tmp")\nreturn True',
    }
    for name, code in texts.items():
        yield apart(26, name, code)


def _namespaces() -> Iterable[tuple[str, Probe]]:
    kinds = {
        "a user": 0x10000000,
        "a mount": 0x20000,
        "a process id": 0x20000000,
        "a network": 0x40000000,
        "an ipc": 0x8000000,
        "a host name": 0x4000000,
        "a control group": 0x2000000,
    }
    for name, flag in kinds.items():
        yield apart(26, f"unshare {name} namespace", f"return ask(libc.unshare({flag}))")
    yield apart(26, "clone into a user namespace", "return new_process(0x10000000)")
    yield apart(
        26,
        "clone3 into a user namespace",
        'arguments = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)\n'
        'pid = libc.syscall(N["clone3"], arguments, 64)\n'
        "if pid == 0: os._exit(0)\n"
        "return ask(pid)",
    )
    join = 'fd = os.open("/proc/self/ns/uts", os.O_RDONLY)\nreturn call("setns", fd, 0)'
    yield apart(26, "join a namespace", join)


def _processes() -> Iterable[tuple[str, Probe]]:
    yield apart(27, "be traced", "return ask(libc.ptrace(0, 0, 0, 0))")
    yield apart(
        27,
        "trace a child",
        "pid = os.fork()\nif not pid: time.sleep(10)\n"
        "try: return ask(libc.ptrace(16, pid, 0, 0))\nfinally: os.kill(pid, 9)",
    )
    yield apart(
        27,
        "read memory through the kernel",
        'there = ctypes.create_string_buffer(b"secret")\n'
        "here = ctypes.create_string_buffer(6)\n"
        "a = (ctypes.c_size_t * 2)(ctypes.addressof(here), 6)\n"
        "b = (ctypes.c_size_t * 2)(ctypes.addressof(there), 6)\n"
        'return call("process_vm_readv", os.getpid(), a, 1, b, 1, 0)',
    )
    yield apart(
        27,
        "take a descriptor of another process",
        "pid = os.fork()\nif not pid: time.sleep(10)\n"
        "try:\n"
        "    ctypes.set_errno(0)\n"
        '    pidfd = libc.syscall(N["pidfd_open"], pid, 0)\n'
        '    return ask(pidfd) and call("pidfd_getfd", pidfd, 1, 0)\n'
        "finally: os.kill(pid, 9)",
    )
    for what in ("mem", "environ", "maps", "fd/0", "cwd"):
        code = f'os.stat("/proc/1/{what}")\nreturn open("/proc/1/{what}", "rb", 0).fileno() > 0'
        if what == "cwd":
            code = 'return os.listdir("/proc/1/cwd/")'
        if what == "fd/0":
            code = 'return os.readlink("/proc/1/fd/0")'
        yield apart(27, f"see the first process's {what}", code)


def _others() -> Iterable[tuple[str, Probe]]:
    memory = 'return open("/proc/1/mem", "r+b", 0).fileno() > 0'
    yield apart(28, "write the first process's memory", memory)
    file, busy = 'return open("/proc/self/exe", "r+b", 0)', "a file that runs cannot be written"
    yield on_host(28, "write the interpreter's file", file, {"ETXTBSY": busy})
    yield on_host(36, "signal a process of the host", 'os.kill(HOST["pid"], 0)\nreturn True')
    found = 'return os.path.exists("/proc/%d" % HOST["pid"])'
    yield on_host(36, "find a process of the host", found)


def _kernel() -> Iterable[tuple[str, Probe]]:
    gone = {"ENOSYS": "this kernel was built without it"}
    yield apart(29, "use a keyring", 'return call("keyctl", 0, -2, 1)')
    yield on_host(
        29,
        "load a program into the kernel",
        'return call("bpf", 0, struct.pack("4I", 2, 4, 4, 1) + bytes(112), 128)',
        gone,
    )
    yield on_host(
        29,
        "measure the kernel",
        'about = struct.pack("=IIQQQQQ", 1, 112, 0, 0, 0, 0, 0) + bytes(64)\n'
        'return call("perf_event_open", about, 0, -1, -1, 0)',
        gone,
    )
    yield on_host(29, "handle page faults", 'return call("userfaultfd", 0o2000000)', gone)
    yield on_host(
        29,
        "use an io ring",
        'return call("io_uring_setup", 8, bytes(120))',
        {**gone, "EPERM": "this machine's settings forbid it"},
    )
    # No segment: it asks for nothing to be loaded.
    yield on_host(29, "prepare another kernel", 'return call("kexec_load", 0, 0, 0, 0)', gone)


def _powers() -> Iterable[tuple[str, Probe]]:
    gone = {"ENOSYS": "this kernel was built without it"}
    yield on_host(
        29,
        "load a module",
        'try: return call("init_module", b"x" * 4096, 4096, b"")\n'
        "except OSError as error:\n"
        "    if error.errno == errno.ENOEXEC: return True  # it was let in, and is none\n"
        "    raise",
        gone,
    )
    yield apart(29, "change the personality", 'return call("personality", 0x40000)')
    yield apart(
        32,
        "make an executable file in memory",
        'fd = libc.syscall(N["memfd_create"], b"x", 0)\n'
        "ask(fd)\n"
        "os.write(fd, open(sys.executable, 'rb').read())\n"
        "pid = os.fork()\n"
        "if not pid:\n"
        "    os.execve(fd, ['python', '-I', '-S', '-c', 'import os; os._exit(7)'], {})\n"
        "return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7",
    )


def _sockets() -> Iterable[tuple[str, Probe]]:
    absent = {"EAFNOSUPPORT": "this kernel was built without it"}
    kinds = {
        "packets": "17, 3, 0x0300",
        "virtual machines": "40, 1, 0",
        "the kernel's network": "16, 3, 0",
        "the kernel's ciphers": "38, 5, 0",
        "raw packets": "2, 3, 1",
    }
    for name, arguments in kinds.items():
        code = f"return socket.socket({arguments}).fileno() >= 0"
        yield apart(30, f"make a socket for {name}", code, absent)
    for kind, address in (
        ("an abstract", 'chr(0) + HOST["abstract"]'),
        ("a named", 'HOST["socket"]'),
    ):
        code = f"return connected(socket.AF_UNIX, {address})"
        yield on_host(31, f"reach {kind} socket of the host", code)


GROUPS = (_mounts, _namespaces, _processes, _others, _kernel, _powers, _sockets)
