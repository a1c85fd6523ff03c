"""Places that programs may write to: nothing in them says what is started on this machine.

Owns which parts of a server's definition would let a program in a sandbox choose code that runs
outside it: the file that is executed, scripts among its arguments, and the directory it starts in.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bridge.discovery.report import ConfigWarning, SkippedServer, printable
from bridge.model import ServerSpec

EXPOSED = "it is not used: programs may write to the directory that it is in"


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """Servers, less those that a program in a sandbox could turn into other programs."""

    servers: tuple[ServerSpec, ...]
    skipped: tuple[SkippedServer, ...] = ()
    warnings: tuple[ConfigWarning, ...] = ()


class Exposed:
    """Places that programs may write to."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._tops = tuple({top: None for each in places for top in (each, each.resolve())})

    def holds(self, path: Path) -> bool:
        """Tell whether a path is in one of them, as it is written or where its links lead."""
        ways = (path, Path(os.path.realpath(path)))
        return any(way.is_relative_to(top) for way in ways for top in self._tops)


def guard(
    servers: tuple[ServerSpec, ...], exposed: Exposed, *, cwd: Path, home: Path, search: str
) -> Guarded:
    """Leave out servers whose code programs could change, and start the others somewhere safe.

    A server without a directory of its own starts where the bridge was started. Python, npm and
    others read code and settings from there; where programs may write to it, the server starts in
    the home directory.

    Args:
        cwd: Where the bridge was started.
        search: The `PATH` by which commands are found.
    """
    kept: list[ServerSpec] = []
    skipped: list[SkippedServer] = []
    moved: list[ConfigWarning] = []
    for spec in servers:
        place = next(filter(exposed.holds, _code(spec, cwd, search)), None)
        if place is not None:
            reason = f"programs may write to {printable(str(place))}, which it is started from"
            skipped.append(SkippedServer(name=spec.name, source=spec.source, reason=reason))
        elif spec.transport == "stdio" and spec.cwd is None and exposed.holds(cwd):
            kept.append(replace(spec, cwd=str(home)))
            reason = f"it starts in {home}: programs may write to the current directory"
            moved.append(ConfigWarning(path=spec.source.path, key=spec.source.key, reason=reason))
        else:
            kept.append(spec)
    return Guarded(servers=tuple(kept), skipped=tuple(skipped), warnings=tuple(moved))


def _code(spec: ServerSpec, cwd: Path, search: str) -> Iterator[Path]:
    """Yield what a server's process is made from: executable, scripts, directory.

    A directory among the arguments is data, such as a file server's, unless an option names it.
    """
    if spec.transport != "stdio":
        return
    if spec.cwd is not None:
        yield Path(spec.cwd)
    base = Path(spec.cwd) if spec.cwd is not None else cwd
    found: str | None = spec.command
    if "/" not in spec.command:
        found = shutil.which(spec.command, path=spec.env.get("PATH", search))
    if found:
        yield base / found
    before = ""
    for argument in spec.args:
        option, joined, value = argument.partition("=")
        if not (joined and option.startswith("-")):
            option, value = before, argument
        before = argument
        try:
            path = base / Path(value).expanduser()
            if path.is_file() or (path.is_dir() and option.startswith("-") and value):
                yield path
        except (OSError, ValueError, RuntimeError):
            continue
