"""Places that programs may write to: nothing in them says what is started on this machine.

Owns which parts of a server's definition would let a program in a sandbox choose code that runs
outside it: what is executed, scripts among its arguments, where it starts, and variables that say
where code is. What a server reads by itself, such as hooks of a repository, no definition tells.
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
"""Commands whose first argument is code, be it a directory."""

_CODE_OPTIONS = ("-m", "-c", "-e", "--eval")
"""After these an interpreter runs something else than a file."""

_RUNNERS = frozenset(
    ("npm", "pnpm", "yarn", "bun", "bunx", "deno", "uv", "poetry", "pdm", "hatch", "pixi")
    + ("make", "just", "task", "rake", "cargo", "go")
)
"""Commands that take code or commands from the directory that they start in. Not among them are
`npx` and `python -m`, which the bridge starts so that they do not."""

_NAMES_CODE = re.compile(
    r"PATH|(?:PYTHON|NODE_|LD_|DYLD_|PERL5|RUBY|GEM_|GIT_|JAVA|JDK_|BASH_|NPM_CONFIG_|UV_|PIP_|BUN_|DENO_)"
    r".*|ENV|CLASSPATH",
    re.IGNORECASE,
)
"""Variables that say where code, or settings that name code, are read from."""


@dataclass(frozen=True, kw_only=True)
class UsableServers:
    """Servers, less those that a program in a sandbox could turn into other programs."""

    servers: tuple[ServerSpec, ...]
    skipped: tuple[SkippedServer, ...] = ()


class WritablePaths:
    """Places that programs may write to."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._tops = tuple({top: None for each in places for top in (each, each.resolve())})

    def contains(self, path: Path) -> bool:
        """Tell whether a path is in one of them, as it is written or where its links lead."""
        ways = (path, Path(os.path.realpath(path)))
        return any(way.is_relative_to(top) for way in ways for top in self._tops)

    def mentioned_in(self, text: str) -> Path | None:
        """Return the place whose path stands anywhere in a text; None if none does."""
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
        cwd: Where the bridge was started, and servers without a directory of their own are.
        environ: What servers get beside their own variables.
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
    """Return a place that programs may write to and that a server's code comes from."""
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
    """Yield the directory that a server starts in, and where its executable is or could be."""
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
    """Yield what arguments name, unless it is a directory that is there: that is data.

    It is code all the same where an option names it, or where it is the first argument of an
    interpreter. What is not there yet could be put there.
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
