"""macOS: the Seatbelt profile of a sandbox, and the command that applies it.

Pure: text and arguments. Owns no process; what is here is tested as text on any system, and its
behaviour is untested where there is no macOS.

The profile refuses everything and then names what an interpreter cannot start without. Paths enter
as parameters and never as text, so no path can end a string and write rules of its own. There is no
lookup of system services: through those a program reaches the keychain, the pasteboard and the
network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

SANDBOX_EXEC = "/usr/bin/sandbox-exec"

_SYSTEM = (
    "/usr/lib",
    "/System/Library/Frameworks",
    "/System/Library/PrivateFrameworks",
    "/System/Volumes/Preboot/Cryptexes/OS",
    "/usr/share/zoneinfo",
    "/private/var/db/timezone",
)
"""What the dynamic loader and the C library read; public and owned by the system."""

_READ_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_WRITE_DEVICES = ("/dev/null", "/dev/zero")

_LINKS = ("/", "/tmp", "/var", "/etc")
"""Only their metadata, so that paths through them resolve."""

_SYSCTLS = (
    "hw.activecpu",
    "hw.logicalcpu",
    "hw.logicalcpu_max",
    "hw.memsize",
    "hw.ncpu",
    "hw.pagesize",
    "kern.argmax",
    "kern.osrelease",
    "kern.ostype",
    "kern.osversion",
    "kern.version",
)


@dataclass(frozen=True, kw_only=True)
class Paths:
    """What a sandbox may touch; absolute, links resolved.

    Attributes:
        executable: The interpreter, the one thing that may be executed.
        readable: Its standard library and what else is offered.
        writable: The run's own directory, and nothing else.
    """

    executable: str
    readable: tuple[str, ...]
    writable: str


def resolved(paths: Paths, resolve: Callable[[str], str]) -> Paths:
    """Return the paths as the kernel will see them.

    Seatbelt compares what a path resolves to: /tmp is /private/tmp there, and a rule for the former
    never fits.
    """
    return Paths(
        executable=resolve(paths.executable),
        readable=tuple(dict.fromkeys(map(resolve, paths.readable))),
        writable=resolve(paths.writable),
    )


def profile(readable: int) -> str:
    """Return the profile's text for that many readable directories."""
    reads = "\n".join(f'  (subpath (param "READ_{n}"))' for n in range(readable))
    lines = [
        "(version 1)",
        "(deny default)",
        "(deny network*)",
        "(deny mach-lookup)",
        "(allow process-fork)",
        '(allow process-exec (literal (param "EXECUTABLE")))',
        "(allow signal (target same-sandbox))",
        "(allow process-info* (target same-sandbox))",
        f"(allow sysctl-read\n{_clauses('sysctl-name', _SYSCTLS)})",
        f"(allow file-read-metadata\n{_clauses('literal', _LINKS)})",
        f"(allow file-read* file-map-executable\n{_clauses('subpath', _SYSTEM)})",
        f"(allow file-read*\n{_clauses('literal', _READ_DEVICES)})",
        f"(allow file-write-data\n{_clauses('literal', _WRITE_DEVICES)})",
        '(allow file-read* file-map-executable (literal (param "EXECUTABLE")))',
    ]
    if readable:
        lines.append(f"(allow file-read* file-map-executable\n{reads})")
    lines += [
        '(allow file-read* file-write* (subpath (param "WRITABLE")))',
        # Not even there: neither links that lead out nor devices.
        '(deny file-write-create (require-all (subpath (param "WRITABLE"))',
        "  (require-any (vnode-type BLOCK-DEVICE) (vnode-type CHARACTER-DEVICE))))",
        # A file marked as immutable could not be removed after the run.
        "(deny file-write-flags)",
        '(deny process-exec (subpath (param "WRITABLE")))',
    ]
    return "\n".join(lines) + "\n"


def _clauses(kind: str, values: Sequence[str]) -> str:
    return "\n".join(f'  ({kind} "{value}")' for value in values)


def parameters(paths: Paths) -> Mapping[str, str]:
    """Return the profile's parameters."""
    reads = {f"READ_{n}": path for n, path in enumerate(paths.readable)}
    return {"EXECUTABLE": paths.executable, "WRITABLE": paths.writable, **reads}


def arguments(
    paths: Paths, command: Sequence[str], *, sandbox_exec: str = SANDBOX_EXEC
) -> list[str]:
    """Make the command line that runs `command` inside.

    Raises:
        ValueError: A path is relative or holds a character that no parameter can.
    """
    made = [sandbox_exec, "-p", profile(len(paths.readable))]
    for name, value in parameters(paths).items():
        if not value.startswith("/") or "\0" in value:
            message = f"{name} is no usable path: {value!r}"
            raise ValueError(message)
        made += ["-D", f"{name}={value}"]
    return [*made, *command]
