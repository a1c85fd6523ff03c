"""Finds the host files of an executable: the file, its interpreter and the loader.

Follows links, `#!` lines and ELF headers, once per profile. Every command's sandbox has the system
directories (see `command`); this adds files elsewhere, such as a virtual environment.
"""

from __future__ import annotations

import os
import shutil
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from bridge.errors import SettingsError
from bridge.sandbox.backend import Executable

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
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
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
    file = Path(path)
    directory = file.parent
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
