"""Host directories that programs may access, from `[directories.NAME]` of `config.toml`.

Symbolic links are resolved once, when the settings are read, so that no one can redirect a
directory later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from bridge.errors import SettingsError
from bridge.model import Directory, Json
from bridge.settings import fields
from bridge.settings.policy import PRIVATE_DATA, UNTRUSTED_INPUT

INSIDE = "/mnt"  # Directory in the sandbox that contains the granted directories by name.

SYSTEM = ("/proc", "/sys", "/dev", "/run")
"""Directories of the kernel and of services, whose sockets control the machine."""

LABELS = (UNTRUSTED_INPUT, PRIVATE_DATA)
"""The labels that describe the data in a directory."""


def parse_directories(tables: Json, place: str) -> tuple[Directory, ...]:
    named = fields.named_tables(tables, place)
    return tuple(_directory(name, table, where) for name, table, where in named)


def _directory(name: str, table: Mapping[str, Json], place: str) -> Directory:
    found = fields.record(table, place, KEYS)
    if "path" not in found:
        fields.fail(place, "needs `path`: where the directory is")
    return Directory(
        name=name,
        path=str(found["path"]),
        inside=f"{INSIDE}/{name}",
        writable=found.get("mode") == "rw",
        labels=found.get("labels", frozenset()),
        used_by=frozenset(found.get("used_by", ())),
    )


KEYS: Mapping[str, fields.Parse] = {
    "path": fields.path,
    "mode": fields.choice(("ro", "rw")),
    "labels": fields.several(fields.choice(LABELS), frozenset, none=True),
    "used_by": fields.several(fields.line, none=True),
}


def resolve_directories(
    directories: Iterable[Directory],
    place: str,
    *,
    home: Path,
    private: Iterable[Path],
    trusted: Iterable[Path] = (),
) -> tuple[Directory, ...]:
    """Return the directories with their real paths, after checking them.

    A directory may be inside `home`, but must not contain it. It must not contain or be inside a
    `private` path. A writable one must not contain a `trusted` file, which the bridge executes.
    """
    directories = tuple(directories)
    found: list[Directory] = []
    for directory in directories:
        about = f"{place}.{directory.name}.path: {directory.path}"
        real = Path(os.path.realpath(directory.path))
        if str(real) != directory.path.rstrip("/"):
            about += f" (really {real})"
        exposed = trusted if directory.writable else ()
        why = refusal(real, home=home, private=private, exposed=exposed)
        remedy = "Name a directory that contains only data for programs."
        if not real.exists():
            why, remedy = "does not exist", "Create it, or remove the table."
        elif not real.is_dir():
            why, remedy = "is not a directory", ""
        elif why:
            why = f"may not be given to programs: {why}"
        elif ":" in str(real) or "," in str(real):
            why, remedy = "has a colon or a comma in it, which engines cannot mount", ""
        if why:
            raise SettingsError(f"{about} {why}.", remedy=remedy)
        found.append(replace(directory, path=str(real)))
    _check_separate(directories, found, place)
    return tuple(found)


def _check_separate(given: Iterable[Directory], found: Iterable[Directory], place: str) -> None:
    """Raise if a directory is inside a writable one, where a program could replace it."""
    found = tuple(found)
    for asked, real in zip(given, found, strict=True):
        for other in found:
            top = Path(other.path)
            ways = {Path(real.path), Path(os.path.normpath(asked.path))}
            if other.writable and any(top in way.parents for way in ways):
                message = (
                    f"{place}.{real.name}.path: {asked.path} lies below {top}, where programs may "
                    "write, and could be turned into a link to anything."
                )
                remedy = f"Keep the two apart, or leave it out: it is in {other.inside}."
                raise SettingsError(message, remedy=remedy)


def refusal(
    real: Path, *, home: Path, private: Iterable[Path], exposed: Iterable[Path] = ()
) -> str:
    """Return why programs and commands may not access a real path; empty if they may.

    A path that programs may write to must not contain an `exposed` file.
    """
    own = Path(os.path.realpath(home))
    if real == Path(real.anchor):
        return "it is the whole file system"
    if own.is_relative_to(real):
        return "it is or holds your home directory"
    reasons = dict.fromkeys(map(Path, SYSTEM), "the system's own")
    reasons |= dict.fromkeys(private, "where the bridge or an engine has its own files")
    for path, reason in reasons.items():
        # A missing path counts too: it may be created later.
        target = Path(os.path.realpath(path))
        if real.is_relative_to(target) or target.is_relative_to(real):
            return f"it is in or above {path}, {reason}"
    for path in exposed:
        if path.is_relative_to(real) or Path(os.path.realpath(path)).is_relative_to(real):
            return f"it could be written to, and holds {path}, which the bridge relies on"
    return ""


def engine_directories(environ: Mapping[str, str]) -> tuple[Path, ...]:
    found = [Path("/var/lib/docker"), Path("/var/lib/containers"), Path("/var/lib/containerd")]
    for variable in ("DOCKER_HOST", "CONTAINER_HOST"):
        scheme, _, path = environ.get(variable, "").partition("://")
        if scheme == "unix" and path.startswith("/"):
            found.append(Path(path))
    runtime = Path(environ.get("XDG_RUNTIME_DIR", ""))
    if runtime.is_absolute():
        found.append(runtime)
    if sys.platform == "darwin" and environ.get("HOME"):
        found.append(Path(environ["HOME"]) / ".docker")
    return tuple(found)
