"""The stage: the first process inside a sandbox, which confines itself and becomes the program.

It mounts the writable directories (bubblewrap has no "noexec") and drops the two capabilities that
mounting needed. It sets limits, Landlock and the system call filters, and reports on the status
pipe. Before a command starts, the stage reports what it sees of its isolation and waits for
permission. A program that is itself `python3 -I -S -c TEXT` runs in the stage's interpreter.

`interpreter.LOADER` runs it as `python3 -I -S -c`, so it imports only the standard library and
supports Python 3.9.

Enforces: any step that fails ends the process, so a program never runs half confined.
"""

from __future__ import annotations

# Every start pays for these imports. `typing`, `ctypes` and `json` cost 7 ms each, so functions
# import what is rarely needed.
import _ctypes
import _json
import binascii
import gc
import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

EXIT_FAILED = 71

CONFINED = b"ok"
"""The stage writes this to the status pipe once everything is in force. If the pipe then ends, the
program runs. Any other text is the reason why it does not."""

PERMISSION = b"go"  # The bridge's answer to the examination's report if the command may start.

_MOUNT_FLAGS = 2 | 4 | 8  # MS_NOSUID, MS_NODEV, MS_NOEXEC
_READ_ONLY = 1
_REMOUNT_BIND = 32 | 4096

_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_CLEAR_ALL = 4
_FILTER_MODE = 2
_CAPABILITY_VERSION_3 = 0x20080522

_LANDLOCK_CREATE = 444
_LANDLOCK_ADD = 445
_LANDLOCK_RESTRICT = 446
_BENEATH = 1


class _PlanReader:
    """The options of `json`'s C code, as attributes."""

    strict = True
    object_hook = object_pairs_hook = None
    parse_float, parse_int, parse_constant = float, int, float


def _simple_type(code: str) -> Any:
    """Return the C type with a type code of the module `struct`, as `ctypes` would."""
    return type(code, (_ctypes._SimpleCData,), {"_type_": code})


_INT, _SHORT, _WORD, _TEXT = map(_simple_type, ("i", "H", "L", "z"))


class _Program(_ctypes.Structure):
    _fields_ = [("length", _SHORT), ("instructions", _TEXT)]


class _Function(_ctypes.CFuncPtr):
    """A function of the C library that returns an int and sets `errno`."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _INT


_LIBRARY = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]


def function(name: str) -> Any:
    """Return a function of the C library, as `ctypes` would."""
    return _Function(_ctypes.dlsym(_LIBRARY, name))


def pack(size: int, *numbers: int) -> bytes:
    """Return unsigned numbers of `size` bytes each, in C's layout."""
    return b"".join(number.to_bytes(size, sys.byteorder) for number in numbers)


def check(result: int, what: str) -> int:
    """Return a call's result; raise OSError with `what` and the reason if it failed."""
    if result < 0:
        number = _ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, second: Any = 0, third: Any = 0) -> int:
    words = [_WORD(second), third if third else _WORD(0)]
    return int(function("prctl")(option, *words, _WORD(0), _WORD(0)))


def mount(what: str, path: str, flags: int, kind: bytes | None, options: bytes | None) -> None:
    """Mount a file system at `path`, always without execution; `what` is for errors."""
    words = kind, path.encode(), kind, _WORD(flags | _MOUNT_FLAGS), options
    check(function("mount")(*words), f"{what} {path}")


def drop_capabilities(bounded: bool) -> None:
    """Drop every capability of this process and of the programs that it executes.

    Emptying the bounding set needs a capability. Without one (`bounded` is false) the set stays. It
    has no effect: "no_new_privs" keeps executed programs from gaining capabilities.
    """
    for number in range(64):
        if prctl(_PR_CAPBSET_DROP, number) < 0:
            break  # This kernel has no more capabilities.
    check(prctl(_PR_CAP_AMBIENT, _CLEAR_ALL), "clearing ambient capabilities")
    header = pack(4, _CAPABILITY_VERSION_3, 0)
    check(function("capset")(header, b"\0" * 24), "dropping capabilities")
    place = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    lines = os.read(place, 1 << 16).splitlines()
    os.close(place)
    held = [line for line in lines if line.startswith(b"Cap")]
    if not bounded:
        held = [line for line in held if not line.startswith(b"CapBnd")]
    if not held or any(line.split()[1].strip(b"0") for line in held):
        raise OSError(f"capabilities are left: {held!r}")


def limit(name: str, soft: int, hard: int) -> None:
    """Set a resource limit, at most the present hard limit."""
    number = getattr(resource, name)
    ceiling = resource.getrlimit(number)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft, hard = min(soft, ceiling), min(hard, ceiling)
    resource.setrlimit(number, (soft, hard))


def restrict_files(rules: dict[str, Any]) -> None:
    # An older kernel accepts the longer structure if the fields it lacks are zero.
    syscall = function("syscall")
    attributes = pack(8, rules["files"], rules["network"], rules["scopes"])
    ruleset = check(
        syscall(_LANDLOCK_CREATE, attributes, _WORD(len(attributes)), _WORD(0)),
        "making a Landlock ruleset",
    )
    for path, rights in rules["rules"]:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = pack(8, rights) + pack(4, place)
        added = syscall(_LANDLOCK_ADD, ruleset, _BENEATH, rule, _WORD(0))
        check(added, "a Landlock rule for " + path)
        os.close(place)
    check(syscall(_LANDLOCK_RESTRICT, ruleset, _WORD(0)), "Landlock")
    os.close(ruleset)


def confine(plan: dict[str, Any]) -> None:
    """Apply the plan, in the only order that works."""
    os.umask(0o022)
    if plan.get("oom_score"):
        # Out of memory, the kernel then kills the program before its monitor. Later steps close
        # /proc.
        with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123
            file.write("1000")
    for path, options in plan["mounts"]:
        mount("mounting", path, 0, b"tmpfs", options.encode())
    for path, writable in plan.get("noexec", ()):
        # A remount clears the flags that it does not repeat, as far as the kernel allows.
        mount("remounting", path, _REMOUNT_BIND | (0 if writable else _READ_ONLY), None, None)
    os.chdir(plan["cwd"])
    for name in plan["unset"]:
        os.environ.pop(name, None)
    if plan.get("privileges", True):
        drop_capabilities(plan.get("bounded", True))
        check(prctl(_PR_SET_NO_NEW_PRIVS, 1), "no_new_privs")
    for name, soft, hard in plan["rlimits"]:
        limit(name, soft, hard)
    if plan["landlock"]:
        restrict_files(plan["landlock"])
    # The allow-list comes last, since it refuses further filters.
    for text in plan["filters"]:
        instructions = binascii.a2b_base64(text)
        program = _Program(len(instructions) // 8, instructions)
        done = prctl(_PR_SET_SECCOMP, _FILTER_MODE, _ctypes.byref(program))
        check(done, "installing a system call filter")


def examine(wanted: dict[str, Any]) -> dict[str, Any]:
    """Return what this process sees of its isolation, and how the kernel refuses its attempts.

    The code is the guest's. The bridge compiled it, since compiling takes most of the time.
    """
    seen: dict[str, Any] = {"__name__": "facts"}
    exec(marshal.loads(binascii.a2b_base64(wanted["code"])), seen)
    facts: dict[str, Any] = seen["isolation_facts"]()
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
        words = [line.split() for line in file]
    facts["mount_table"] = [[line[4], "ro" in line[5].split(",")] for line in words]
    attempts = {key: call for key, call in seen["ATTEMPTS"].items() if key in wanted["attempts"]}
    unnamed = wanted["unnamed"]
    if unnamed:

        def start() -> None:
            os.waitpid(os.posix_spawn(unnamed, [unnamed, "--version"], {}), 0)

        attempts["named-executables-only"] = start
    facts["denials"] = seen["denials"](attempts)
    return facts


def await_permission(wanted: dict[str, Any], status: int) -> None:
    """Send the examination's report; return only with the bridge's permission."""
    import json

    answer = memoryview(json.dumps(examine(wanted)).encode("ascii") + b"\n")
    while answer:
        answer = answer[os.write(status, answer) :]
    permission = os.read(wanted["permission"], len(PERMISSION))
    os.close(wanted["permission"])
    if permission != PERMISSION:
        raise OSError("the bridge gave no permission to start")


def close_others(*kept: int) -> None:
    """Close all inherited descriptors but stdio and those `kept`."""
    try:
        names = os.listdir("/proc/self/fd")  # noqa: PTH208 - pathlib would cost 5 ms
    except OSError:
        # macOS has no such listing; the inherited descriptors have low numbers.
        names = [str(number) for number in range(256)]
    for name in names:
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # It belonged to the listing.


def main() -> NoReturn:
    read: Any = _json.make_scanner
    plan = read(_PlanReader)(sys.argv[1], 0)[0]
    status = int(plan["status"])
    os.set_inheritable(status, False)
    argv = plan["argv"]
    wanted = plan.get("examine")
    try:
        close_others(status, *([wanted["permission"]] if wanted else []))
        confine(plan)
        if wanted:
            await_permission(wanted, status)
        os.write(status, CONFINED)
        if plan["text"] is None:
            import signal

            # Python ignores these signals, which the executed program would inherit.
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            os.execvp(plan.get("file") or argv[0], argv)
        code = compile(plan["text"], "<string>", "exec", dont_inherit=True)
    except BaseException as error:
        problem = str(error) or repr(error)
        if isinstance(error, OSError) and plan["text"] is None:
            problem = f"{argv[0]}: {problem}"
        os.write(status, problem.encode("utf-8", "replace")[:4000])
        os._exit(EXIT_FAILED)
    sys.argv = ["-c"]
    sys.path += plan["packages"]
    # A new `__main__` hides the stage from the program.
    module = type(sys)("__main__")
    module.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    os.close(status)
    # The loader turned the collector off. Nothing so far is garbage.
    gc.freeze()
    gc.enable()
    exec(code, module.__dict__)
    sys.exit()


if __name__ == "__main__":
    main()
