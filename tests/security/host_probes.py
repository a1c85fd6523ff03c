"""What is attempted against devices, files, secrets and networks: attacks 32, 33, 37, 38, 41 f."""

from __future__ import annotations

from collections.abc import Iterable

from tests.security.probing import Probe, apart, on_host


def _files() -> Iterable[tuple[str, Probe]]:
    ordinary = {"EPERM": "the tests run as an ordinary user"}
    for kind, mode, device in (("character", 0o020666, 259), ("block", 0o060666, 1793)):
        yield on_host(
            32,
            f"make a {kind} device",
            'place = HOST["directory"] if os.path.isdir(HOST["directory"]) else "/tmp"\n'
            f'os.mknod(place + "/{kind}", {mode}, {device})\n'
            f'try: return os.open(place + "/{kind}", os.O_RDONLY) >= 0\n'
            f'finally: os.unlink(place + "/{kind}")',
            {**ordinary, "ENXIO": "this kernel has no driver for it, but was asked"},
        )


def _privileges() -> Iterable[tuple[str, Probe]]:
    yield apart(32, "become root", "os.setuid(0)\nreturn os.getuid() == 0")
    yield apart(
        32,
        "execute a file with a set-user-id bit",
        "import glob, shutil, stat, subprocess, tempfile\n"
        "with tempfile.TemporaryDirectory() as place:\n"
        '    copy = place + "/python"\n'
        "    shutil.copy(sys.executable, copy)\n"
        "    os.chmod(copy, 0o4755)\n"
        '    done = subprocess.run([copy, "-I", "-S", "-c", "import os; os._exit(7)"])\n'
        "return done.returncode == 7",
    )
    yield on_host(32, "speak to a terminal", 'return open("/dev/tty", "r+b", 0).fileno() >= 0')


def _offers() -> Iterable[tuple[str, Probe]]:
    private = {"EACCES": "the tests run as an ordinary user", "ENOENT": "this kernel has none"}
    for path in (
        *("/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sysrq-trigger"),
        *("/sys/kernel/uevent_helper", "/sys/fs/cgroup/memory/release_agent"),
        "/sys/fs/cgroup/cgroup.procs",
    ):
        code = f"return os.open({path!r}, os.O_WRONLY) >= 0"
        yield on_host(33, f"open {path} to write", code, private)
    code = 'return open("/proc/kcore", "rb").read(4)'
    yield on_host(33, "read the kernel's memory", code, private)
    yield on_host(
        33,
        "read the kernel's addresses",
        'return any(int(line.split()[0], 16) for line in open("/proc/kallsyms"))',
        {**private, "nothing": "this machine's settings hide them"},
    )


def _secrets() -> Iterable[tuple[str, Probe]]:
    texts = {
        "read a file of the host": 'return open(HOST["secret"]).read()',
        "list a directory of the host": 'return os.listdir(HOST["directory"])',
        "write a file of the host": 'return open(HOST["directory"] + "/new", "w").write("x")',
        "see the host's name": 'return os.uname().nodename == HOST["name"]',
        "see where its files lie": 'return HOST["mount"] in open("/proc/self/mounts").read()',
    }
    for name, code in texts.items():
        yield on_host(41, name, code)
    yield on_host(
        41,
        "find the host's environment in a process",
        "def text(path):\n"
        "    try: return open(path, 'rb').read()\n"
        "    except OSError: return b''\n"
        "pids = [name for name in os.listdir('/proc') if name.isdigit()]\n"
        "return any(HOST['canary'].encode() in text('/proc/%s/environ' % p) for p in pids)",
    )


def _background_bridge() -> Iterable[tuple[str, Probe]]:
    texts = {
        "ask the background bridge": "with socket.socket(socket.AF_UNIX) as there:\n"
        "    there.settimeout(5)\n"
        '    there.connect(HOST["bridge"]["socket"])\n'
        '    there.sendall(b"{}\\n")\n'
        '    return b"clients" in there.recv(1000)',
        "list the bridge's directory": 'return os.listdir(HOST["bridge"]["directory"])',
        "read the bridge's record": 'return open(HOST["bridge"]["record"]).read()',
        "open the bridge's lock": 'return os.open(HOST["bridge"]["lock"], os.O_RDWR) >= 0',
        "see where the bridge listens": "return HOST['bridge']['socket'] in "
        "open('/proc/net/unix').read()",
    }
    for name, code in texts.items():
        yield on_host(42, name, code)


def _network() -> Iterable[tuple[str, Probe]]:
    here = {
        "this machine's loopback": ("INET", "127.0.0.1"),
        "another loopback address": ("INET", "127.8.8.8"),
        "any address": ("INET", "0.0.0.0"),
        "an address written as a number": ("INET", "2130706433"),
        "an address written in octal": ("INET", "0177.0.0.1"),
        "loopback of IPv6": ("INET6", "::1"),
        "a mapped address": ("INET6", "::ffff:127.0.0.1"),
    }
    for name, (family, address) in here.items():
        yield on_host(
            37,
            f"connect to {name}",
            f'return connected(socket.AF_{family}, ({address!r}, HOST["port"]))',
            {"EADDRNOTAVAIL": "this machine has no IPv6"} if family == "INET6" else None,
        )


def _ways() -> Iterable[tuple[str, Probe]]:
    # Connecting a datagram socket sends nothing: it asks whether there is a way.
    there = {
        "cloud metadata": ("INET", "169.254.169.254", 80),
        "a private network": ("INET", "10.0.0.1", 80),
        "another private network": ("INET", "192.168.0.1", 80),
        "the internet": ("INET", "198.51.100.1", 443),
        "a private network of IPv6": ("INET6", "fd00:ec2::254", 80),
    }
    for name, (family, address, port) in there.items():
        yield on_host(
            37,
            f"find a way to {name}",
            f"at = ({address!r}, {port})\n"
            f"return connected(socket.AF_{family}, at, socket.SOCK_DGRAM)",
            {"ENETUNREACH": "there is no network", "EADDRNOTAVAIL": "there is no IPv6"},
        )
    yield on_host(
        38,
        "ask somebody by datagram",
        "with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:\n"
        "    asker.settimeout(1)\n"
        '    asker.sendto(b"secret.example.", ("127.0.0.1", HOST["datagrams"]))\n'
        '    return asker.recv(100) == b"answer"',
    )
    yield on_host(
        38,
        "find a resolver",
        'return "nameserver" in open("/etc/resolv.conf").read()',
        {"nothing": "this machine has none", "ENOENT": "this machine has none"},
    )


GROUPS = (_files, _privileges, _offers, _secrets, _background_bridge, _network, _ways)
