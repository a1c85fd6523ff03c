"""What bubblewrap and the stage are told for a job of `run_command`, and which layers that makes.

Pure, like `command`, whose sandbox it varies: the same namespaces, filters, limits and Landlock,
and of the host's files besides the system's libraries only what the profile grants.

What may be executed is a rule of Landlock's: the executables named, their interpreters and the
loader. The system's directories of programs are not there at all. A program that may be executed
can still have the loader run any other that it can read or write: what it can do by that it could
do by itself as well.
"""

from __future__ import annotations

import base64
import errno
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bridge.model import Isolation, Json
from bridge.sandbox import syscalls
from bridge.sandbox.job import HOME, JobSpec
from bridge.sandbox.process import command, landlock
from bridge.sandbox.process.command import Descriptors, Surroundings
from bridge.sandbox.process.compiling import loaded
from bridge.sandbox.process.examination import examination
from bridge.sandbox.process.interpreter import Interpreter
from bridge.sandbox.syscalls import Refusal

SYSTEM = (
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/share",
    "/usr/local/lib",
    "/usr/local/share",
    "/lib",
    "/lib32",
    "/lib64",
)
"""Libraries and data of the system, the same for all its users. Not its programs."""

SYSTEM_FILES = (
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/protocols",
    "/etc/services",
)

NETWORK_FILES = (
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/pki/tls",
    "/etc/pki/ca-trust",
    "/etc/resolv.conf",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
)

PASSWD = f"sandbox:x:{command.UID}:{command.UID}::{HOME}:/nonexistent\n"

_BIND_TCP = 0b01
"""Of Landlock's network rights the one that stays refused with a network."""


def _refuse(call: str) -> Refusal:
    """Refuse a call whatever its arguments."""
    return Refusal(
        call=call, argument=0, comparison="masked_eq", value=0, mask=0, error=errno.EACCES
    )


def _no_datagrams(call: str) -> tuple[Refusal, ...]:
    """Refuse sockets that need no connection to send something (SOCK_DGRAM, SOCK_RAW)."""
    return tuple(
        Refusal(
            call=call,
            argument=1,
            comparison="masked_eq",
            value=kind,
            mask=_KIND,
            error=errno.EAFNOSUPPORT,
        )
        for kind in (2, 3)
    )


_KIND = 0xF
"""Of a socket's type: the bits that are no flags."""

NETWORK_ARGUMENTS: tuple[Refusal, ...] = (
    *syscalls.NETWORK_ARGUMENTS,
    _refuse("listen"),
    *_no_datagrams("socketpair"),
)
"""What is refused with a network."""

LOCAL_ARGUMENTS: tuple[Refusal, ...] = (
    *syscalls.ARGUMENTS,
    # A granted directory may hold sockets of the host; the mount being read-only does not matter.
    _refuse("connect"),
    *_no_datagrams("socket"),
    *_no_datagrams("socketpair"),
)
"""What is refused without one."""


def stage_input(
    spec: JobSpec,
    interpreter: Interpreter,
    around: Surroundings,
    descriptors: Descriptors,
    filters: Sequence[bytes],
    *,
    code: str,
    stage: str | bytes,
) -> bytes:
    """Make what bubblewrap's command reads: the stage, and what it is to do.

    Args:
        code: What the stage looks around with; see `examination`.
    """
    plan = stage_plan(spec, interpreter, around, filters)
    plan["examine"] = examination(
        code,
        isolation(spec, around),
        unnamed="" if interpreter.executable in _executes(spec) else interpreter.executable,
        leave=descriptors.leave,
    )
    return loaded(stage, json.dumps({**plan, "status": descriptors.status}))


def options(
    spec: JobSpec, interpreter: Interpreter, around: Surroundings, descriptors: Descriptors
) -> list[str]:
    """Make bubblewrap's options: a program's, with another tree, home and network."""
    words = command.options(spec, interpreter, around, descriptors)
    start = words.index("--json-status-fd")
    kept = [word for word in words[:start] if word != "--as-pid-1"]
    return [
        *kept,
        *(("--share-net",) if spec.network else ()),
        *words[start : start + 2],
        *_tree(spec, interpreter, around, descriptors),
        *("--remount-ro", "/"),
        *("--chdir", "/"),
    ]


def _tree(
    spec: JobSpec, interpreter: Interpreter, around: Surroundings, descriptors: Descriptors
) -> list[str]:
    made: list[str] = []
    bound = _bound(spec, interpreter)
    for source, place in bound:
        made += ["--ro-bind", source, place]
    shown = [*SYSTEM, *(path for tool in spec.executables for path in tool.needs)]
    for directory in interpreter.hidden:
        # A command may be made of what programs are not to import.
        if not _covered(directory, shown):
            made += ["--tmpfs", directory, "--remount-ro", directory]
    places = [place for _, place in bound]
    links = [*interpreter.links, *(link for tool in spec.executables for link in tool.links)]
    for target, place in dict.fromkeys(links):
        if not _covered(place, places):
            made += ["--symlink", target, place]
    made += ["--perms", "0444", "--file", str(descriptors.passwd), "/etc/passwd"]
    made += ["--perms", "0444", "--file", str(descriptors.group), "/etc/group"]
    made += command.pseudo_files(around)
    for directory in (command.SHM, command.TMP, command.WORKSPACE, HOME):
        made += ["--dir", directory]
    for mount in spec.mounts:
        made += ["--bind" if mount.writable else "--ro-bind", mount.source, mount.inside]
    for file, descriptor in zip(spec.files, descriptors.data, strict=True):
        made += ["--perms", "0444", "--file", str(descriptor), file.inside]
    for directory in spec.writable:
        made += ["--dir", directory]
    return made


def _bound(spec: JobSpec, interpreter: Interpreter) -> list[tuple[str, str]]:
    """Return what is bound read-only besides the profile's paths: source and place."""
    wanted = [(path, path) for path in SYSTEM if Path(path).is_dir() and not _is_link(path)]
    wanted += [(str(Path(path).resolve()), path) for path in SYSTEM_FILES if Path(path).exists()]
    if spec.network:
        files = [path for path in NETWORK_FILES if Path(path).exists()]
        wanted += [(str(Path(path).resolve()), path) for path in files]
    wanted += [(bind.source, bind.inside) for bind in interpreter.binds]
    for tool in spec.executables:
        wanted += [(path, path) for path in (*tool.needs, *tool.executes)]
    kept: dict[str, str] = {}
    for source, place in sorted(wanted, key=lambda item: (len(item[1]), item[1])):
        if not _covered(place, kept):
            kept[place] = source
    return [(source, place) for place, source in kept.items()]


def _is_link(path: str) -> bool:
    return Path(path).is_symlink()


def _covered(path: str, places: Sequence[str] | dict[str, str]) -> bool:
    return any(path == place or path.startswith(place + "/") for place in places)


def stage_plan(
    spec: JobSpec, interpreter: Interpreter, around: Surroundings, filters: Sequence[bytes]
) -> dict[str, Json]:
    """Make what the stage is to do; see `stage`."""
    rules = landlock.ruleset(_rules(spec, interpreter), around.landlock_abi)
    return {
        "argv": list(spec.argv),
        "file": spec.file,
        "text": None,
        "packages": [],
        "cwd": spec.cwd,
        "unset": [name for name in ("PWD",) if name not in spec.env],
        "mounts": [
            [path, command.tmpfs_options(size)]
            for path, size in (
                (command.TMP, spec.limits.tmp_bytes),
                (command.SHM, command.SHM_BYTES),
                *((path, spec.limits.workspace_bytes) for path in spec.writable),
            )
        ],
        "rlimits": _rlimits(spec, around),
        "landlock": rules
        and {
            "files": rules.files,
            "network": rules.network & _BIND_TCP if spec.network else rules.network,
            "scopes": rules.scopes,
            "rules": [list(rule) for rule in rules.rules],
        },
        "filters": [base64.b64encode(program).decode("ascii") for program in filters],
    }


def _rlimits(spec: JobSpec, around: Surroundings) -> list[tuple[str, int, int]]:
    own = {
        "RLIMIT_CPU": (spec.cpu_seconds, spec.cpu_seconds + command.CPU_KILL_SECONDS),
        "RLIMIT_FSIZE": (spec.file_bytes, spec.file_bytes),
    }
    return [
        (name, *own.get(name, (soft, hard)))
        for name, soft, hard in command.rlimits(spec.limits, around)
    ]


def _rules(spec: JobSpec, interpreter: Interpreter) -> list[landlock.Rule]:
    rules = [
        landlock.Rule(path=place, rights=landlock.READ, is_file=not Path(source).is_dir())
        for source, place in _bound(spec, interpreter)
    ]
    rules += [
        landlock.Rule(path=path, rights=landlock.RUN, is_file=True) for path in _executes(spec)
    ]
    rules += [
        landlock.Rule(
            path=mount.inside,
            rights=landlock.WRITE if mount.writable else landlock.READ,
            is_file=not Path(mount.source).is_dir(),
        )
        for mount in spec.mounts
    ]
    writable = (command.SHM, command.TMP, *spec.writable)
    rules += [landlock.Rule(path=path, rights=landlock.WRITE) for path in writable]
    rules += command.device_rules()
    rules += [landlock.Rule(path=path, rights=landlock.READ) for path in ("/etc", HOME)]
    return rules


def _executes(spec: JobSpec) -> dict[str, None]:
    """Return all files that may be executed."""
    return dict.fromkeys(path for tool in spec.executables for path in tool.executes)


def places(spec: JobSpec, interpreter: Interpreter) -> dict[str, bool]:
    """Return what is mounted inside, and whether it may be written to."""
    made = dict.fromkeys(("/", *(place for _, place in _bound(spec, interpreter))), False)
    made |= dict.fromkeys(("/proc", command.TMP, command.SHM, *spec.writable), True)
    made |= {rule.path: True for rule in command.device_rules()}
    return made | {mount.inside: mount.writable for mount in spec.mounts}


def isolation(spec: JobSpec, around: Surroundings) -> Isolation:
    """Say which layers a launch puts in force, and which it cannot."""
    made = command.isolation(spec, around)
    layers, weaker = list(made.layers), list(made.weaker)
    layers.append("granted-paths-only")
    if around.landlock_abi:
        layers.append("named-executables-only")
    else:
        weaker.append("named executables only: without Landlock whatever is there can be executed")
    if spec.network:
        layers.remove("no-network")
        weaker.append("no network: the profile grants the host's, with its loopback services")
    return replace(made, layers=tuple(layers), weaker=tuple(weaker))
