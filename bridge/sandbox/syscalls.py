"""Which system calls sandboxed code may make, and the same list as an OCI seccomp profile. Pure.

Enforces: an allow-list. A call that is not named returns ENOSYS, as on a kernel without it, so the
C library falls back to older calls. A call in `REFUSED` returns EPERM: the program should learn
that it is forbidden. Allowed calls with dangerous arguments are refused by `ARGUMENTS`.

Does not: look into memory that arguments point to (no seccomp filter can), or restrict paths;
mounts and Landlock do that. The list omits `clone3` because its flags lie in memory; ENOSYS makes
the C library use `clone`, whose flags are in a register.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from functools import partial
from typing import Literal

from bridge.model import Json

_FILES = """
access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat
faccessat2 fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fcntl fdatasync
fgetxattr flistxattr flock fremovexattr fsetxattr fstat fstatfs fsync ftruncate futimesat getcwd
getdents getdents64 getxattr lchown lgetxattr link linkat listxattr llistxattr lremovexattr lseek
lsetxattr lstat mkdir mkdirat mknod mknodat newfstatat open openat openat2 pread64 preadv preadv2
pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename renameat
renameat2 rmdir sendfile setxattr splice stat statfs statx symlink symlinkat sync sync_file_range
syncfs tee truncate umask unlink unlinkat utime utimensat utimes vmsplice write writev
ioctl
"""

_MEMORY = """
brk madvise membarrier mincore mlock mlock2 mlockall mmap mprotect mremap mseal msync munlock
munlockall munmap map_shadow_stack pkey_alloc pkey_free pkey_mprotect cachestat
"""

_PROCESSES = """
alarm arch_prctl capget clone execve execveat exit exit_group fork getcpu getegid geteuid getgid
getgroups getitimer getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid
getrlimit getrusage getsid gettid getuid kill pause pidfd_open pidfd_send_signal personality
prctl prlimit64 restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask
rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setparam sched_setscheduler
sched_yield set_robust_list get_robust_list set_tid_address setgid setgroups setitimer setpgid
setpriority setregid setresgid setresuid setreuid setrlimit setsid setuid sigaltstack sysinfo
tgkill time times tkill uname vfork wait4 waitid
"""

_WAITING = """
clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_pwait
epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_requeue futex_wait futex_waitv futex_wake
gettimeofday nanosleep pipe pipe2 poll ppoll pselect6 select signalfd signalfd4 timer_create
timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime
timerfd_settime
"""

_SOCKETS = """
accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg
sendmmsg sendmsg sendto setsockopt shutdown socket socketpair
"""

_SANDBOXING = """
landlock_add_rule landlock_create_ruleset landlock_restrict_self
"""
"""A program may confine itself further; none of these can lift a restriction."""

ALLOWED: tuple[str, ...] = tuple(
    sorted(" ".join((_FILES, _MEMORY, _PROCESSES, _WAITING, _SOCKETS, _SANDBOXING)).split())
)
"""The allowed calls. `ARGUMENTS` refuses dangerous arguments of some.

Programs may miss these calls: System V and POSIX message queues and shared memory (Python's own
uses files); `memfd_create`, whose files can be executed whatever the mounts say; and `inotify`. The
kernel counts its few instances per user of the whole host, so one sandbox could take all."""

_NAMESPACES_AND_MOUNTS = """
chroot fsconfig fsmount fsopen fspick mount mount_setattr move_mount open_tree open_tree_attr
pivot_root setns statmount listmount umount umount2 unshare
"""

_OTHER_PROCESSES = """
kcmp pidfd_getfd process_madvise process_mrelease process_vm_readv process_vm_writev ptrace
"""

_KERNEL = """
acct add_key bpf delete_module fanotify_init fanotify_mark finit_module init_module io_cancel
io_destroy io_getevents io_pgetevents io_setup io_submit io_uring_enter io_uring_register
io_uring_setup ioperm iopl kexec_file_load kexec_load keyctl lookup_dcookie memfd_secret
name_to_handle_at open_by_handle_at perf_event_open quotactl quotactl_fd reboot
request_key seccomp swapoff swapon syslog userfaultfd vhangup
"""

_SYSTEM_SETTINGS = """
adjtimex capset clock_adjtime clock_settime mbind migrate_pages move_pages nfsservctl
set_mempolicy set_mempolicy_home_node setdomainname sethostname settimeofday
"""

REFUSED: tuple[str, ...] = tuple(
    sorted(" ".join((_NAMESPACES_AND_MOUNTS, _OTHER_PROCESSES, _KERNEL, _SYSTEM_SETTINGS)).split())
)
"""These return EPERM, whatever the arguments."""

_NAMED_UNKNOWN = """
clone3 memfd_create mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend mq_unlink msgctl
msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
"""

UNKNOWN: tuple[str, ...] = tuple(sorted(_NAMED_UNKNOWN.split()))
"""These return ENOSYS, like calls on no list. Engines that return EPERM for other calls (Docker
before 23) need the names: the C library makes no threads if `clone3` returns EPERM."""

UNKNOWN_ERRNO = errno.ENOSYS
REFUSED_ERRNO = errno.EPERM

Comparison = Literal["ne", "masked_eq"]


@dataclass(frozen=True)
class SyscallRefusal:
    """An allowed call that is refused for one of its arguments; by default for any."""

    call: str
    argument: int = 0  # Which argument, from 0.
    value: int = 0
    mask: int = 0
    error: int = errno.EPERM  # The errno that the call returns.
    # "masked_eq" compares the bits of `mask`. "ne" compares all 64 bits with `value`, so a value
    # with garbage in its upper half is refused.
    comparison: Comparison = "masked_eq"

    @property
    def operands(self) -> tuple[int, int]:
        """The two operands of libseccomp's comparison."""
        return (self.mask, self.value) if self.comparison == "masked_eq" else (self.value, 0)


def refuse_unless(call: str, argument: int, value: int, error: int = errno.EPERM) -> SyscallRefusal:
    return SyscallRefusal(call, argument, value, error=error, comparison="ne")


_SOCKET_TYPES = 0xF  # The bits of a socket's type that are not flags.


def refuse_datagrams(call: str) -> tuple[SyscallRefusal, ...]:
    """Refuse sockets that can send without a connection, to any named socket."""
    # SOCK_DGRAM, and SOCK_RAW, which AF_UNIX treats as SOCK_DGRAM.
    refused = partial(SyscallRefusal, call, 1, mask=_SOCKET_TYPES, error=errno.EAFNOSUPPORT)
    return refused(value=2), refused(value=3)


_NAMESPACE_FLAGS = (
    0x00020000,  # CLONE_NEWNS
    0x02000000,  # CLONE_NEWCGROUP
    0x04000000,  # CLONE_NEWUTS
    0x08000000,  # CLONE_NEWIPC
    0x10000000,  # CLONE_NEWUSER
    0x20000000,  # CLONE_NEWPID
    0x40000000,  # CLONE_NEWNET
)
NAMESPACE_MASK = sum(_NAMESPACE_FLAGS)

DEVICE_BIT = 0o020000
"""The bit of a file's type that only character and block devices have."""

AF_UNIX = 1
ASK_PERSONALITY = 0xFFFFFFFF
_LOWER_HALF = 0xFFFFFFFF
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C

ARGUMENTS: tuple[SyscallRefusal, ...] = (
    *(SyscallRefusal("clone", 0, flag, flag) for flag in _NAMESPACE_FLAGS),
    # Without a network other families only expose more of the kernel; AF_PACKET, AF_VSOCK,
    # AF_NETLINK and AF_ALG have been used for escapes.
    refuse_unless("socket", 0, AF_UNIX, errno.EAFNOSUPPORT),
    refuse_unless("socketpair", 0, AF_UNIX, errno.EAFNOSUPPORT),
    SyscallRefusal("mknod", 1, DEVICE_BIT, DEVICE_BIT),
    SyscallRefusal("mknodat", 2, DEVICE_BIT, DEVICE_BIT),
    # A program may read its personality. A change can turn off address randomisation and more.
    refuse_unless("personality", 0, ASK_PERSONALITY),
    # These inject input into the controlling terminal. The kernel reads the lower half only.
    SyscallRefusal("ioctl", 1, _TIOCSTI, _LOWER_HALF),
    SyscallRefusal("ioctl", 1, _TIOCLINUX, _LOWER_HALF),
)

INTERNET = (2, 10)  # AF_INET and AF_INET6.


NETWORK_ARGUMENTS: tuple[SyscallRefusal, ...] = (
    *(rule for rule in ARGUMENTS if rule.call != "socket"),
    # Only internet sockets. The host's network has the names of its abstract AF_UNIX sockets. The
    # C library works without netlink.
    *(
        SyscallRefusal("socket", 0, family, _LOWER_HALF, errno.EAFNOSUPPORT)
        for family in range(16)
        if family not in INTERNET
    ),
    *(SyscallRefusal("socket", 0, 1 << bit, 1 << bit, errno.EAFNOSUPPORT) for bit in range(4, 32)),
)
"""Replaces `ARGUMENTS` for a command with a network."""

NETWORKED_COMMAND: tuple[SyscallRefusal, ...] = (
    *NETWORK_ARGUMENTS,
    SyscallRefusal("listen", error=errno.EACCES),
    *refuse_datagrams("socketpair"),
)
"""Refused to commands with a network, outside of containers."""

LOCAL_COMMAND: tuple[SyscallRefusal, ...] = (
    *ARGUMENTS,
    # A directory of the command may hold the host's sockets, which a read-only mount leaves open.
    SyscallRefusal("connect", error=errno.EACCES),
    *refuse_datagrams("socket"),
    *refuse_datagrams("socketpair"),
)
"""Refused to commands without a network, outside of containers."""

Purpose = Literal["program", "command", "networked"]
"""A container's content: a program, a command, or a command with a network."""

_CONDITIONAL_IN_OCI: tuple[str, ...] = (
    "clone", "mknod", "mknodat", "personality", "socket", "socketpair",
)  # fmt: skip


def oci_profile(purpose: Purpose = "program") -> dict[str, Json]:
    """Return the list as an OCI seccomp profile, for podman and docker.

    A profile is a single filter, so it allows the complement of each refused argument. libseccomp
    cannot express the complement of the terminal `ioctl`s, but a container has no terminal.
    """
    refused, refusals = REFUSED, ARGUMENTS
    if purpose == "command":
        # A host directory may hold sockets, which a read-only mount leaves open.
        refused = (*REFUSED, "connect")
    elif purpose == "networked":
        refusals = NETWORK_ARGUMENTS
    unconditional = [n for n in ALLOWED if n not in _CONDITIONAL_IN_OCI and n not in refused]
    rules: list[dict[str, Json]] = [
        {"names": unconditional, "action": "SCMP_ACT_ALLOW"},
        {"names": list(refused), "action": "SCMP_ACT_ERRNO", "errnoRet": REFUSED_ERRNO},
        {"names": list(UNKNOWN), "action": "SCMP_ACT_ERRNO", "errnoRet": UNKNOWN_ERRNO},
        _allow_if("clone", (0, "SCMP_CMP_MASKED_EQ", NAMESPACE_MASK, 0)),
        _allow_if("mknod", (1, "SCMP_CMP_MASKED_EQ", DEVICE_BIT, 0)),
        _allow_if("mknodat", (2, "SCMP_CMP_MASKED_EQ", DEVICE_BIT, 0)),
        _allow_if("personality", (0, "SCMP_CMP_EQ", ASK_PERSONALITY, 0)),
        *_local_sockets("socketpair", purpose),
    ]
    if purpose == "networked":
        rules += [_allow_if("socket", (0, "SCMP_CMP_EQ", family, 0)) for family in INTERNET]
    else:
        rules += _local_sockets("socket", purpose)
    rules += [_refusal(rule) for rule in refusals if rule.call in _CONDITIONAL_IN_OCI]
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": UNKNOWN_ERRNO,
        # Without subarchitectures: a call of another architecture's table ends the process.
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": rules,
    }


def _local_sockets(call: str, purpose: Purpose) -> list[dict[str, Json]]:
    """Return the rules that allow a call to make local sockets, of the purpose's types."""
    family = (0, "SCMP_CMP_EQ", AF_UNIX, 0)
    if purpose == "program":
        return [_allow_if(call, family)]
    kinds = [
        _allow_if(call, family, (1, "SCMP_CMP_MASKED_EQ", _SOCKET_TYPES, kind))
        for kind in (1, 5)  # SOCK_STREAM and SOCK_SEQPACKET, whose pairs reach no other socket.
    ]
    return kinds + [_refusal(rule) for rule in refuse_datagrams(call)]


def _allow_if(name: str, *arguments: tuple[int, str, int, int]) -> dict[str, Json]:
    """Return the rule that allows a call if all arguments fit: index, comparison, two operands."""
    keys = ("index", "op", "value", "valueTwo")
    fits = [dict(zip(keys, argument, strict=True)) for argument in arguments]
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": fits}


def _refusal(rule: SyscallRefusal) -> dict[str, Json]:
    value, second = rule.operands
    comparison = f"SCMP_CMP_{rule.comparison.upper()}"
    return {
        "names": [rule.call],
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": rule.error,
        "args": [{"index": rule.argument, "value": value, "valueTwo": second, "op": comparison}],
    }
