"""Reads the guest's own view of its isolation and packages, and attempts what must be refused.

A fact that the system does not report is omitted, not guessed. No attempt has a permanent effect or
can end the process: system calls of foreign architectures are not tried, because a filter may kill.
The host interprets the answers (`bridge.sandbox.layers`). Imports nothing of the guest: a backend's
probe sends this file alone.
"""

from __future__ import annotations

import _socket  # the core of `socket`, whose own import takes milliseconds
import errno
import os
import resource
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

    # Returns a file's text, empty for a missing file; a seam for tests.
    Reader = Callable[[str], str]

_STATUS_FIELDS = {
    "CapEff": "cap_eff",
    "NoNewPrivs": "no_new_privs",
    "Seccomp": "seccomp",
    "Seccomp_filters": "seccomp_filters",
}

_LIMITS = {"nofile": "RLIMIT_NOFILE", "nproc": "RLIMIT_NPROC", "core": "RLIMIT_CORE"}

_WRITABLE = ("/tmp", "/workspace")

_OPTIONS = {"ro": os.ST_RDONLY, "noexec": getattr(os, "ST_NOEXEC", 8)}

_MASKED = (
    "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/sched_debug",
    "/proc/scsi", "/proc/timer_list", "/sys/firmware",
)  # fmt: skip
"""Paths that engines mask: a file by the null device, a directory by an empty one."""


ALLOWED = "allowed"  # The answer for an attempt that was not refused.


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""


def isolation_facts() -> Dict[str, Any]:
    facts: Dict[str, Any] = {
        "platform": sys.platform,
        "implementation": sys.implementation.name,
        "kernel": os.uname().release,
        "kernel_version": os.uname().version,
        "machine": os.uname().machine,
        "python": "%d.%d.%d" % sys.version_info[:3],
        "free_threaded": "t" in getattr(sys, "abiflags", ""),
        "libc": libc(),
    }
    if boot := _read("/proc/sys/kernel/random/boot_id").strip():
        facts["boot_id"] = boot
    facts.update(cgroup_limits())
    facts["uid"] = os.getuid()
    facts.update(status_facts(_read("/proc/self/status")))
    if text := _read("/proc/self/uid_map"):
        facts["uid_map"] = [[int(word) for word in line.split()] for line in text.splitlines()]
    facts["namespaces"] = namespaces()
    facts.update(masks())
    if label := _read("/proc/self/attr/current").strip("\0\n "):
        facts["label"] = label
    facts["root_read_only"] = bool(_flags("/", os.statvfs("/")) & os.ST_RDONLY)
    facts["mounts"] = {path: _mount(path) for path in _WRITABLE if os.path.isdir(path)}
    names = sorted(_list_directory("/mnt") or ())[:64]
    paths = filter(os.path.isdir, ["/packages", *("/mnt/" + name for name in names)])
    facts["binds"] = {path: _mount(path) for path in paths}
    packages = _list_directory("/packages")
    if packages is not None:
        # If the engine's machine does not share the directory, it is empty here.
        facts["binds"]["/packages"]["empty"] = not packages
    rlimits = {name: getattr(resource, constant, None) for name, constant in _LIMITS.items()}
    limits = {name: resource.getrlimit(n)[0] for name, n in rlimits.items() if n is not None}
    facts["rlimits"] = {n: None if v == resource.RLIM_INFINITY else v for n, v in limits.items()}
    if (found := interfaces()) is not None:
        facts["interfaces"] = found
    return facts


def libc() -> str:
    """Return the C library, "glibc 2.36" or "musl"; empty if unknown."""
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, OSError, ValueError):
        # musl does not name itself; its loader shows it.
        names = _list_directory("/lib") or ()
        return "musl" if any(name.startswith("ld-musl-") for name in names) else ""


def _list_directory(path: str) -> Optional[List[str]]:
    try:
        return os.listdir(path)
    except OSError:
        return None


def interfaces(read: Reader = _read, listed: Any = _socket.if_nameindex) -> Optional[List[str]]:
    # The file comes first: the call needs a netlink socket, which a sandbox may refuse.
    names = [line.partition(":")[0].strip() for line in read("/proc/net/dev").splitlines()[2:]]
    if not names:
        try:
            names = [name for _, name in listed()]
        except OSError:
            return None
    return sorted(names) or None


def namespaces() -> Dict[str, str]:
    found = {}
    for name in ("ipc", "net", "pid", "user", "uts"):
        try:
            found[name] = os.readlink("/proc/self/ns/" + name)
        except OSError:
            continue
    return found


def masks(paths: Tuple[str, ...] = _MASKED, settings: str = "/proc/sys") -> Dict[str, Any]:
    facts: Dict[str, Any] = {"unmasked": [path for path in paths if _shows(path)]}
    try:
        facts["settings_read_only"] = bool(os.statvfs(settings).f_flag & os.ST_RDONLY)
    except OSError:  # gVisor's has no answer to statvfs.
        return facts
    return facts


def _shows(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return bool(_list_directory(path)) if stat.S_ISDIR(mode) else not stat.S_ISCHR(mode)


def cgroup_limits(read: Reader = _read) -> Dict[str, Any]:
    """Return the limits of this process's cgroup (v1 or v2); None is "no limit"."""
    facts: Dict[str, Any] = {}
    for key, controller, unified, legacy in (
        ("memory_limit_bytes", "memory", "memory.max", "memory.limit_in_bytes"),
        ("pids_limit", "pids", "pids.max", "pids.max"),
    ):
        texts = _cgroup(read, controller, unified, legacy)
        if texts:
            # Limits may be set on the group or on its parents; the smallest applies.
            numbers = [int(text) for text in texts if text.isdigit()]
            # cgroup v1 writes "no limit" as a number near 2**63.
            facts[key] = min((number for number in numbers if number < 1 << 60), default=None)
    pairs = [text.split() for text in _cgroup(read, "cpu", "cpu.max", "")]
    if not pairs:
        quotas = _cgroup(read, "cpu", "", "cpu.cfs_quota_us")
        periods = _cgroup(read, "cpu", "", "cpu.cfs_period_us")
        pairs = [[*pair] for pair in zip(quotas, periods)]  # noqa: B905 - not in 3.9
    if pairs:
        # A quota of "max" or -1 is "no limit".
        cpus = [int(quota) / int(period) for quota, period in pairs if quota.isdigit()]
        facts["cpu_limit"] = min(cpus, default=None)
    return facts


def oom_kills(read: Reader = _read) -> int:
    """Return the number of the kernel's out-of-memory kills in this cgroup."""
    texts = _cgroup(read, "memory", "memory.events", "memory.oom_control")
    for line in texts[0].splitlines() if texts else ():
        name, _, count = line.partition(" ")
        if name == "oom_kill" and count.isdigit():
            return int(count)
    return 0


def status_facts(text: str) -> Dict[str, Any]:
    facts: Dict[str, Any] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if key := _STATUS_FIELDS.get(name):
            facts[key] = value.strip() if key.startswith("cap") else int(value)
    return facts


def mount_options(path: str, read: Reader = _read) -> Set[str]:
    """Return the mount options of `path` from the mount table; empty if it is no mount."""
    found: Set[str] = set()
    for line in read("/proc/self/mountinfo").splitlines():
        words = line.split()
        if len(words) > 5 and words[4] == path:
            # A later line is mounted over an earlier one.
            found = set(words[5].split(","))
    return found


def _flags(path: str, found: os.statvfs_result) -> int:
    # ST_VALID: the only flag from glibc on a system that reports none, such as gVisor
    if found.f_flag & ~32:
        return found.f_flag
    return sum(_OPTIONS.get(option, 0) for option in mount_options(path))


def _mount(path: str) -> Dict[str, Any]:
    found = os.statvfs(path)
    flags = _flags(path, found)
    return {
        "bytes": found.f_blocks * found.f_frsize,
        "read_only": bool(flags & _OPTIONS["ro"]),
        "noexec": bool(flags & _OPTIONS["noexec"]),
    }


def _cgroup(read: Reader, controller: str, unified: str, legacy: str) -> List[str]:
    """Return the texts of a controller's file, of this process's cgroup and its parents."""
    paths = []
    root = "/sys/fs/cgroup"
    for line in read("/proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        group = group.rstrip("/")
        # The group's path may be the host's while only our own part is mounted here: then the
        # paths below are not there, except the last, which is ours.
        while True:
            if legacy and controller in controllers.split(","):
                paths.append("%s/%s%s/%s" % (root, controller, group, legacy))
            if unified and number == "0":
                paths.append("%s%s/%s" % (root, group, unified))
            if not group:
                break
            group = group.rpartition("/")[0]
    if legacy:
        paths.append("%s/%s/%s" % (root, controller, legacy))
    return [text for path in dict.fromkeys(paths) if (text := read(path).strip())]


def read_only_root() -> None:
    """Remove a missing directory: a read-only file system refuses before it looks for it."""
    try:
        os.rmdir("/mcp-code-bridge-denied")
    except FileNotFoundError:
        return


def unprivileged_user() -> None:
    before = os.geteuid()
    os.seteuid(0)
    os.seteuid(before)


def no_network() -> None:
    """Look up a route to an outside address, without sending anything."""
    made = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
    try:
        # An address for documentation; connecting a datagram socket sends nothing to it.
        made.connect(("192.0.2.1", 9))
    finally:
        made.close()


def tmpfs_noexec() -> None:
    """Execute a file that is not a program: without `noexec`, the kernel refuses its format."""
    for directory in ("/tmp", "/workspace"):
        if not os.path.isdir(directory):
            continue
        path = "%s/.denied-%d" % (directory, os.getpid())
        place = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700)
        try:
            # Printable text, so that the kernel does not load a module for the format.
            os.write(place, b"no program\n")
            os.close(place)
            os.execv(path, [path])
        except OSError as error:
            if error.errno != errno.ENOEXEC:
                continue
            return
        finally:
            os.unlink(path)
    # Refused in each directory.
    raise PermissionError(errno.EACCES, "not executed")


ATTEMPTS: Dict[str, Callable[[], object]] = {
    "read-only-root": read_only_root,
    "no-capabilities": lambda: os.setgroups(os.getgroups()),  # needs CAP_SETGID
    "unprivileged-user": unprivileged_user,
    "no-network": no_network,
    # Engines' own filters allow a file in memory, and ours refuses it.
    "own-seccomp": lambda: os.close(os.memfd_create("denied")),
    "sized-tmpfs-noexec": tmpfs_noexec,
    # File modes allow it, and bubblewrap's Landlock rules do not.
    "landlock": lambda: os.listdir("/dev"),
}


def denials(attempts: Dict[str, Callable[[], object]] = ATTEMPTS) -> Dict[str, str]:
    """Make every attempt that this Python supports; return layer to error name, or `ALLOWED`."""
    found = {}
    for layer, attempt in attempts.items():
        try:
            attempt()
            found[layer] = ALLOWED
        except OSError as error:
            if error.errno is not None:
                found[layer] = errno.errorcode.get(error.errno, str(error.errno))
        except (AttributeError, ValueError):
            continue  # This Python lacks the call.
    return found


def package_directories() -> List[str]:
    """Return the image's package directories, as `site` would find them."""
    version = "python%d.%d" % sys.version_info[:2]
    packages = []
    for prefix in dict.fromkeys((sys.prefix, sys.exec_prefix, "/usr/local", "/usr")):
        packages += [
            os.path.join(prefix, "lib", version, "site-packages"),
            os.path.join(prefix, "lib", version, "dist-packages"),
            os.path.join(prefix, "local", "lib", version, "dist-packages"),
        ]
    packages.append("/usr/lib/python3/dist-packages")
    return [entry for entry in dict.fromkeys(packages) if os.path.isdir(entry)]


def distributions() -> Dict[str, str]:
    """Return the versions of packages by the names of their directories; reads no file."""
    import re

    names = []
    for directory in dict.fromkeys([*sys.path, *package_directories()]):
        try:
            names += sorted(os.listdir(directory))[:9999]
        except OSError:
            continue  # an archive, or closed to programs
    found = map(re.compile(r"([^-]{1,60})-(\d[^-]{0,29})(-py3.*)?\.(dist|egg)-info$").match, names)
    # Imports find the first one.
    return {match[1].replace("_", "-"): match[2] for match in reversed([*found]) if match}
