"""Finds the Python for sandboxes, its command line, and the host files of executables.

Binds the Python, its standard library and each shared library of its extension modules, but no
library directories: they contain other software. The interpreter lists these files, once per
bridge. Nothing of a virtual environment is executed.

The command line is short, for people and endpoint scanners. The stage is compiled before, which
saves 8 ms per start. Bytecode fits one kind of interpreter; another kind compiles for itself.

A command's sandbox has the system directories (see `command`). For executables elsewhere, such as
in a virtual environment, this follows links, `#!` lines and ELF headers, once per profile.
"""

from __future__ import annotations

import base64
import json
import marshal
import os
import re
import shutil
import stat
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from bridge.errors import LaunchError, SandboxError, SettingsError
from bridge.sandbox.backend import Bind, Executable
from bridge.sandbox.bundle import INTERPRETER, MARSHAL_VERSION, guest_modules, own_tag

VARIABLE = "MCP_BRIDGE_PACKAGES"

_MAKER = "python3 -m venv"


class Packages(NamedTuple):
    """A directory of packages, links resolved, and their Python version, if known."""

    directory: str
    version: tuple[int, ...] | None


def read_packages(
    place: Path, *, as_nobody: bool, environment: bool = False, setting: str = VARIABLE
) -> Packages:
    """Return the packages of a virtual environment, or of a directory of packages.

    Args:
        as_nobody: Whether unprivileged users must be able to read them.
        environment: Whether `place` must be a virtual environment.
    """

    def unusable(problem: str, remedy: str = "") -> SettingsError:
        remedy = remedy or f"Make an environment with `{_MAKER} {place}`."
        return SettingsError(f"{setting}: {place} {problem}.", remedy=remedy)

    version, directory = None, place
    try:
        with (place / "pyvenv.cfg").open(encoding="utf-8", errors="replace") as file:
            # venv and virtualenv name the line differently.
            found = re.search(r"^version(?:_info)?\s*=\s*(\d+)\.(\d+)", file.read(65536), re.M)
    except (FileNotFoundError, NotADirectoryError) as error:
        if environment and place.is_dir():
            remedy = f"Make one with `{_MAKER} DIRECTORY` and name that."
            problem = "is no virtual environment: it has no pyvenv.cfg"
            raise unusable(problem, remedy) from error
    except OSError as error:
        raise unusable(f"has a pyvenv.cfg that cannot be read: {error.strerror}") from error
    else:
        if found is None:
            raise unusable("has a pyvenv.cfg that does not say which Python it is for")
        version = int(found[1]), int(found[2])
        directory = place / "lib" / f"python{found[1]}.{found[2]}" / "site-packages"
    real = Path(os.path.realpath(directory))
    if not real.is_dir():
        raise unusable(f"cannot be offered: there is no {directory}")
    if as_nobody and not open_to_all(real):
        remedy = "Make the environment where every user may read, such as below /opt or /srv."
        problem = "cannot be offered: as root, programs run as user nobody, who may not read it"
        raise unusable(problem, remedy)
    return Packages(str(real), version)


def open_to_all(path: Path) -> bool:
    """Return whether the modes of `path` and its parents let every user read it."""
    try:
        on_the_way = all(parent.stat().st_mode & stat.S_IXOTH for parent in path.parents)
        return on_the_way and bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False


OLDEST = (3, 9)  # The oldest Python that the guest runs on.

SYSTEM_PYTHON = "/usr/bin/python3"

INSTALL_REMEDY = (
    "Install Python 3.9 or newer for all users (Debian and Ubuntu: `apt install python3`)."
)

OWN_REMEDY = (
    " Or run the bridge as an ordinary user, who may read a Python below their own home; as root, "
    "programs run as user nobody. `UV_PYTHON_INSTALL_DIR=/opt/python uv python install` puts one "
    "of uv's where all may read it."
)
"""For a bridge as root with a Python that only root can read."""

_DATA = ("/usr/share/zoneinfo",)  # Public data that the standard library reads at a fixed path.

_TOOLS = "cat cp date echo env head ls mkdir mv rm sh sleep sort tail touch uname wc"
"""A shell and the most used commands, as in the runtime image. Each mount costs time."""

_LOADER_CACHE = "/etc/ld.so.cache"

_OWNERS_ONLY = "is readable by its owner only"
_UNFIT = "is version"

_QUESTION = r"""
import ctypes, json, os, sys, sysconfig, warnings
warnings.simplefilter("ignore")
skip = ("_tkinter", "nis", "ossaudiodev", "readline", "_gdbm", "_dbm", "spwd")
dynload = [p for p in sys.path if p.endswith("lib-dynload") and os.path.isdir(p)]
for directory in dynload:
    for file in sorted(os.listdir(directory)):
        name = file.partition(".")[0]
        if name in skip or name.startswith(("_test", "xx", "_xx")):
            continue
        try:
            __import__(name)
        except BaseException:
            pass
# Libraries that others load when a thread ends, that compiled packages expect, …
for name in (
    "libgcc_s.so.1", "libstdc++.so.6", "libnss_files.so.2",
    "libpthread.so.0", "libdl.so.2", "librt.so.1", "libutil.so.1", "libm.so.6",
    # … and that the shell and its commands need.
    "libacl.so.1", "libattr.so.1", "libcap.so.2", "libselinux.so.1", "libtinfo.so.6",
):
    try:
        ctypes.CDLL(name)
    except OSError:
        pass
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
names = []
executable = sys.executable
process = ctypes.CDLL(None)
if sys.platform == "darwin":
    image = process._dyld_get_image_name
    image.restype = ctypes.c_char_p
    names = [os.fsdecode(image(n) or b"") for n in range(process._dyld_image_count())]
    # macOS's python3 starts another executable, of an application bundle.
    executable = names[0]
else:
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
    def note(info, size, data):
        names.append(os.fsdecode(info.contents.name or b""))
        return 0
    process.dl_iterate_phdr(kind(note), None)
magic = sys.modules["_frozen_importlib_external"].MAGIC_NUMBER
print(json.dumps({
    "tag": "%s-%x" % (sys.implementation.cache_tag, int.from_bytes(magic, "little")),
    "version": list(sys.version_info[:3]),
    "executable": os.path.realpath(executable),
    "stdlib": os.path.dirname(os.path.realpath(os.__file__)),
    "path": [p for p in sys.path if p],
    "libraries": names,
}))
"""


@dataclass(frozen=True, kw_only=True)
class Interpreter:
    """A Python and the host files that it needs."""

    executable: str
    version: str
    binds: tuple[Bind, ...]  # The mounts for it, shortest path first.
    links: tuple[tuple[str, str], ...]  # Symbolic links to make inside: target and path.
    hidden: tuple[str, ...] = ()  # Directories within `binds` to cover with empty ones.
    packages: tuple[str, ...] = ()
    tools: tuple[Bind, ...] = ()  # The mounts of a shell and its commands, for programs only.
    tag: str = ""  # The bytecode tag that code must be compiled for.


def candidates(base_prefix: str) -> list[str]:
    """Return the interpreters to try: the system's, the bridge's, others for all users."""
    own = str(PurePosixPath(base_prefix) / "bin" / "python3")
    # macOS's only asks to have developer tools installed; some other systems' is too old.
    system = () if sys.platform == "darwin" else (SYSTEM_PYTHON,)
    names = ("/usr/local/bin/python3", *(f"/usr/bin/python3.{n}" for n in range(14, 8, -1)))
    others = [path for path in names if os.access(path, os.X_OK)]
    found: dict[str, str] = {}
    for path in (*system, own, *others):
        found.setdefault(os.path.realpath(path), path)
    return list(found.values())


def find(*, packages: Path | None = None, only: str | None = None, as_nobody: bool) -> Interpreter:
    """Return the first usable interpreter. Blocks: it runs interpreters.

    Args:
        packages: A virtual environment or a directory of packages that it must be able to use.
        as_nobody: Whether unprivileged users must be able to read its files.
    """
    offered = read_packages(packages, as_nobody=as_nobody) if packages is not None else None
    problems: dict[str, str] = {}
    for executable in (only,) if only else candidates(sys.base_prefix):
        found = _usable(os.path.realpath(executable), offered, as_nobody=as_nobody)
        if isinstance(found, Interpreter):
            return found
        problems[executable] = found
    told = [f"{executable} {problem}" for executable, problem in problems.items()]
    others = [executable for executable, why in problems.items() if why.startswith(_UNFIT)]
    if offered is not None and others:
        version = ".".join(map(str, offered.version or ()))
        message = f"{packages} was made for Python {version}, and sandboxes have another"
        remedy = f"Make it again with `{others[0]} -m venv --clear {packages}`."
        raise SettingsError(f"{VARIABLE}: {message}: {'; '.join(told)}.", remedy=remedy)
    message = f"No Python was found to put into sandboxes: {'; '.join(told)}."
    own = OWN_REMEDY if any(_OWNERS_ONLY in why for why in problems.values()) else ""
    raise SandboxError(message, remedy=f"{INSTALL_REMEDY}{own}", code="engine_not_found")


def _usable(executable: str, offered: Packages | None, *, as_nobody: bool) -> Interpreter | str:
    if not os.access(executable, os.X_OK):
        return "is not there"
    if as_nobody and not open_to_all(Path(executable)):
        return _OWNERS_ONLY
    facts = _ask(executable)
    if isinstance(facts, str):
        return facts
    version = tuple(facts["version"])
    if version < OLDEST:
        return f"is too old: version {_version_text(version)}"
    if offered is not None and offered.version not in (None, version[:2]):
        return f"{_UNFIT} {_version_text(version)}"
    found = describe(facts, offered.directory if offered is not None else None)
    closed = closed_file(found) if as_nobody else ""
    return f"needs {closed}, which {_OWNERS_ONLY}" if closed else found


def closed_file(found: Interpreter) -> str:
    """Return an interpreter's first file that some users cannot read; empty for none."""
    sources = (bind.source for bind in found.binds)
    return next((source for source in sources if not open_to_all(Path(source))), "")


def describe(facts: Mapping[str, Any], packages: str | None = None) -> Interpreter:
    executable, stdlib = facts["executable"], facts["stdlib"]
    directories = [stdlib, *(p for p in facts["path"] if not p.startswith(stdlib + "/"))]
    binds = [_bind(executable)]
    binds += [_bind(path) for path in directories if Path(path).exists()]
    outside_defaults = False
    for name in facts["libraries"]:
        if not name.startswith("/") or any(name.startswith(d + "/") for d in directories):
            continue  # the executable itself, the kernel's own, an extension module
        binds.append(_bind(name))
        outside_defaults |= not name.startswith(("/lib/", "/lib64/", "/usr/lib/", "/usr/lib64/"))
    binds += [_bind(path) for path in _DATA if Path(path).is_dir()]
    if outside_defaults and Path(_LOADER_CACHE).exists():
        binds.append(_bind(_LOADER_CACHE))
    if packages is not None:
        binds.append(_bind(packages))
    hidden = [f"{d}/{name}" for d in directories for name in ("site-packages", "dist-packages")]
    tools = (f"{place}/{name}" for name in _TOOLS.split() for place in ("/usr/bin", "/bin"))
    mounts = (_bind(path) for path in tools if open_to_all(Path(path)))
    found = {bind.inside: bind for bind in mounts}
    # Distributions with a merged /usr have links at the root.
    roots = (Path("/", name) for name in ("bin", "lib", "lib32", "lib64", "sbin"))
    merged = [place for place in roots if place.is_symlink()]
    links = [] if executable == SYSTEM_PYTHON else [(executable, SYSTEM_PYTHON)]
    return Interpreter(
        executable=executable,
        version=_version_text(facts["version"]),
        binds=_without_nested(binds),
        links=(*links, *((str(place.readlink()), str(place)) for place in merged)),
        hidden=tuple(p for p in dict.fromkeys(hidden) if p != packages and Path(p).is_dir()),
        packages=(packages,) if packages is not None else (),
        tools=tuple(found.values()),
        tag=facts.get("tag", ""),
    )


def _bind(path: str) -> Bind:
    """Return the mount of a path's real file, at the path with its parents' links resolved."""
    real = os.path.realpath(path)
    parent, name = os.path.split(path)
    inside = str(PurePosixPath(os.path.realpath(parent)) / name)
    return Bind(source=real, inside=inside, executable=True)


def _without_nested(binds: Iterable[Bind]) -> tuple[Bind, ...]:
    kept: dict[str, Bind] = {}
    for bind in sorted(binds, key=lambda b: (len(b.inside), b.inside)):
        above = map(str, PurePosixPath(bind.inside).parents)
        if bind.inside not in kept and not any(parent in kept for parent in above):
            kept[bind.inside] = bind
    return tuple(kept.values())


def _ask(executable: str) -> dict[str, Any] | str:
    try:
        done = subprocess.run(
            (executable, "-I", "-S", "-c", _QUESTION),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60.0,  # It imports its extension modules: a second, more from a cold disk.
            check=True,
            env={},
            cwd="/",
        )
        facts: dict[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return f"could not list the files that it needs: {error}"
    return facts


def _version_text(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


LOADER = """\
# mcp-code-bridge starts a sandbox: the code is on the descriptor that the next word numbers.
import gc, marshal, sys
gc.disable()
with open(int(sys.argv[1]), "rb") as given:
    step, *words = marshal.loads(given.read())
sys.argv[1:2] = words
exec(step if isinstance(step, str) else marshal.loads(step))
"""
"""Runs a payload of `stage_payload`, whose words replace the descriptor's number. The collector
would make loading modules a third slower, so it is off until the stage ends."""

_COMPILE = """
import json, marshal, sys
name, texts = json.load(sys.stdin)
for text in texts:
    print(marshal.dumps(compile(text, name, "exec", dont_inherit=True)).hex())
"""


@cache
def stage_text() -> str:
    return resources.files(__package__).joinpath("stage.py").read_text(encoding="utf-8")


def loader_command(interpreter: Interpreter, *words: str) -> list[str]:
    """Return the command that runs a descriptor's payload; its number is the first of `words`."""
    return [interpreter.executable, *INTERPRETER[1:], LOADER, *words]


def stage_payload(step: str | bytes, *words: str) -> bytes:
    return marshal.dumps([step, *words], MARSHAL_VERSION)


def compiled_stage(interpreter: Interpreter) -> bytes:
    """Return the stage as code for an interpreter. Blocks if the interpreter must compile it."""
    if interpreter.tag == own_tag():
        # The interpreter inside optimizes nothing, whatever the bridge's own options are.
        code = compile(stage_text(), "<string>", "exec", dont_inherit=True, optimize=0)
        return marshal.dumps(code)
    [compiled] = compile_with(interpreter.executable, [stage_text()], name="<string>")
    return compiled


@cache
def compiled_examination(executable: str) -> str:
    """Return the stage's examination, compiled by an interpreter, in base64. Blocks.

    Loading it costs a tenth of compiling it in each stage, which takes 8 ms.
    """
    text = guest_modules()["bridge.guest.isolation_facts"]
    [code] = compile_with(executable, [text], name="<examination>")
    return base64.b64encode(code).decode("ascii")


def compile_with(executable: str, texts: Sequence[str], *, name: str) -> list[bytes]:
    """Return texts as marshalled code, compiled by an interpreter. Blocks."""
    try:
        done = subprocess.run(
            [executable, *INTERPRETER[1:], _COMPILE],
            input=json.dumps([name, texts]).encode("ascii"),
            capture_output=True,
            env={},
            cwd="/",
            timeout=60.0,
            check=True,
        )
        # As hexadecimal text: the host never unmarshals it.
        return [bytes.fromhex(line) for line in done.stdout.decode("ascii").splitlines()]
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        message = f"{executable} cannot compile the sandbox's start-up code: {error}."
        raise LaunchError(message) from error


_ELF = b"\x7fELF"
_PROGRAM_INTERPRETER = 3
_PREFIX_PARTS = ("lib", "lib64", "pyvenv.cfg")
"""Siblings of a `bin` directory that its programs read."""


def find_executables(
    entries: Iterable[str], search_path: str, *, home: str, place: str
) -> tuple[Executable, ...]:
    """Return a profile's executables. Blocks.

    Args:
        home: The home directory; a directory that contains it is never mounted.
        place: The profile's place in the settings, for errors.
    """
    return tuple(_find(entry, search_path, home, place) for entry in entries)


def _find(entry: str, search_path: str, home: str, place: str) -> Executable:
    found = shutil.which(entry, path=search_path)
    if found is None:
        message = f"{place}: the executable {entry!r} is not on this machine."
        raise SettingsError(message, remedy="Install it, or name it by its absolute path.")
    executes: dict[str, None] = {}
    needs: dict[str, None] = {}
    links: dict[tuple[str, str], None] = {}
    for path in _chain(found, search_path, place):
        real = os.path.realpath(path)
        executes[real] = None
        own = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))  # noqa: PTH118, PTH119, PTH120
        if own != real:
            links[(real, own)] = None
        for way in (own, real):
            needs.update(dict.fromkeys(_surroundings(way, home)))
        loader = _loader(_head(Path(real)))
        if loader:
            executes[os.path.realpath(loader)] = None
    return Executable(
        name=entry.rpartition("/")[2],
        file=os.path.realpath(found),
        executes=tuple(executes),
        needs=tuple(needs),
        links=tuple(links),
    )


def _chain(path: str, search_path: str, place: str) -> list[str]:
    chain = [path]
    for _ in range(4):  # as many as the kernel allows
        words = shebang(_head(Path(chain[-1])))
        if not words:
            return chain
        chain.append(words[0])
        if os.path.basename(words[0]) == "env":  # noqa: PTH119
            name = next((word for word in words[1:] if not word.startswith("-")), "")
            found = shutil.which(name, path=search_path) if name else None
            if found is None:
                message = f"{place}: {chain[0]} is run by {name!r}, which is not on this machine."
                raise SettingsError(message)
            chain.append(found)
    raise SettingsError(f"{place}: {path} is a script run by scripts run by scripts.")


def shebang(head: bytes) -> list[str]:
    if not head.startswith(b"#!"):
        return []
    return os.fsdecode(head[2:].partition(b"\n")[0]).split()


def _head(path: Path) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return b""
        with path.open("rb") as file:
            return file.read(4096)
    except OSError:
        return b""


def _loader(head: bytes) -> str:
    """Return the dynamic loader that an ELF header of this machine's kind names; empty if none."""
    if not head.startswith(_ELF) or len(head) < 64 or head[4] != 2 or head[5] != 1:
        return ""
    table = struct.unpack_from("<Q", head, 32)[0]
    size, count = struct.unpack_from("<2H", head, 54)
    for start in range(table, min(table + size * count, len(head) - 55), size or 1):
        if struct.unpack_from("<I", head, start)[0] == _PROGRAM_INTERPRETER:
            offset, length = (struct.unpack_from("<Q", head, start + at)[0] for at in (8, 32))
            return os.fsdecode(head[offset : offset + length].rstrip(b"\0"))
    return ""


def _surroundings(path: str, home: str) -> list[str]:
    """Return a program's data near its file: its prefix's libraries, or its directory."""
    directory = Path(path).parent
    if directory.name in ("bin", "sbin"):
        prefix = directory.parent
        if str(prefix) in ("/", "/usr", "/usr/local") or _holds(prefix, home):
            return []
        return [str(prefix / name) for name in _PREFIX_PARTS if (prefix / name).exists()]
    # A program in a directory of its own has its data there.
    if _holds(directory, home) or str(directory) in ("/", "/usr", "/opt", "/tmp", "/var/tmp"):
        return []
    return [str(directory)]


def _holds(directory: Path, home: str) -> bool:
    real = os.path.realpath(home)
    return (
        directory == Path(real, ".local")
        or real == str(directory)
        or (directory in Path(real).parents)
    )
