"""Leaves out servers whose code is in directories that programs may write to.

Owns which parts of a server's definition would let a program in a sandbox choose code that runs
outside it: the executable, scripts among the arguments, the working directory, and variables with
paths of code. Files that a server reads by itself, such as a repository's hooks, are not covered.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.discovery.report import SkippedServer, printable
from bridge.model import ServerSpec

EXPOSED = "it is not used: programs may write to the directory that it is in"

_INTERPRETERS = re.compile(
    r"(?:python|pypy|node|bun|deno|ruby|perl|php|java|sh|bash|zsh|dash)[0-9.]*"
)
"""Commands whose first argument is code, even if it is a directory."""

_CODE_OPTIONS = ("-m", "-c", "-e", "--eval")
"""Options after which an interpreter runs something else than a file."""

_RUNNERS = frozenset(
    ("npm", "pnpm", "yarn", "bun", "bunx", "deno", "uv", "poetry", "pdm", "hatch", "pixi")
    + ("make", "just", "task", "rake", "cargo", "go")
)
"""Commands that take code or commands from their working directory. `npx` and `python -m` are not
among them, because the bridge starts them so that they do not."""

_NAMES_CODE = re.compile(
    r"PATH|(?:PYTHON|NODE_|LD_|DYLD_|PERL5|RUBY|GEM_|GIT_|JAVA|JDK_|BASH_|NPM_CONFIG_|UV_|PIP_|BUN_|DENO_)"
    r".*|ENV|CLASSPATH",
    re.IGNORECASE,
)
"""Variables with paths of code, or of settings that name code."""


@dataclass(frozen=True, kw_only=True)
class UsableServers:
    """The servers whose code no program in a sandbox can change, and the others as skipped."""

    servers: tuple[ServerSpec, ...]
    skipped: tuple[SkippedServer, ...] = ()


class WritablePaths:
    """The directories that programs may write to."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._tops = tuple({top: None for each in places for top in (each, each.resolve())})

    def contains(self, path: Path) -> bool:
        """Return whether a path is in one of them, as written or with links resolved."""
        ways = (path, Path(os.path.realpath(path)))
        return any(way.is_relative_to(top) for way in ways for top in self._tops)

    def mentioned_in(self, text: str) -> Path | None:
        """Return a directory whose path occurs anywhere in a text; None if none does."""
        return next((top for top in self._tops if str(top) in text), None)


def leave_out_writable(
    servers: tuple[ServerSpec, ...],
    exposed: WritablePaths,
    *,
    cwd: Path,
    environ: Mapping[str, str],
) -> UsableServers:
    """Leave out servers whose code programs could choose or change.

    Args:
        cwd: The bridge's working directory, also of servers without a `cwd`.
        environ: Variables that servers get besides their own.
    """
    kept: list[ServerSpec] = []
    skipped: list[SkippedServer] = []
    for spec in servers:
        place = _writable_code(spec, exposed, cwd, environ)
        if place is None:
            kept.append(spec)
            continue
        reason = f"programs may write to {printable(str(place))}, which it is started from"
        skipped.append(SkippedServer(name=spec.name, source=spec.source, reason=reason))
    return UsableServers(servers=tuple(kept), skipped=tuple(skipped))


def _writable_code(
    spec: ServerSpec, exposed: WritablePaths, cwd: Path, environ: Mapping[str, str]
) -> Path | None:
    """Return a writable path that a server's code comes from; None if there is none."""
    if spec.transport != "stdio":
        return None
    own = {**environ, **spec.env}
    for name, value in own.items():
        if _NAMES_CODE.fullmatch(name) and name != "PATH":
            place = exposed.mentioned_in(value)
            if place is not None:
                return place
    paths = (
        *_code_locations(spec, cwd, own.get("PATH") or os.defpath),
        *_argument_paths(spec, exposed, cwd),
    )
    return next(filter(exposed.contains, paths), None)


def _code_locations(spec: ServerSpec, cwd: Path, search: str) -> Iterator[Path]:
    """Yield a server's working directory, and the paths where its executable is or could be."""
    if spec.cwd is not None or Path(spec.command).name in _RUNNERS:
        yield Path(spec.cwd or cwd)
    base = Path(spec.cwd or cwd)
    if "/" in spec.command:
        yield base / spec.command
        return
    for directory in search.split(os.pathsep):
        yield base / directory / spec.command
        if shutil.which(spec.command, path=str(base / directory)):
            return


def _argument_paths(spec: ServerSpec, exposed: WritablePaths, cwd: Path) -> Iterator[Path]:
    """Yield the paths that arguments name, except existing directories, which are data.

    A directory is code if an option names it, or if it is the first argument of an interpreter. A
    path that does not exist yet counts: a program could create it.
    """
    base = Path(spec.cwd or cwd)
    runs_first = bool(_INTERPRETERS.fullmatch(Path(spec.command).name))
    before = ""
    for argument in spec.args:
        first = runs_first and "/" in argument and not argument.startswith("-")
        runs_first = runs_first and not first and argument not in _CODE_OPTIONS
        option, joined, value = argument.partition("=")
        if not (joined and option.startswith("-")):
            option, value = before, argument
        before = argument
        try:
            path = base / Path(value).expanduser()
            if path.is_dir() and not first and not option.startswith("-"):
                continue
            if path.is_file() or "/" in value or (path.is_dir() and value):
                yield path
        except (OSError, ValueError, RuntimeError):
            continue
        place = exposed.mentioned_in(argument)
        if place is not None:
            yield place
