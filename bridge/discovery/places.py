"""Where the `{places}` in a template are on this machine, for this user, in this directory.

Owns the lookups that need no file's contents but one: the repository's root, and for a worktree
the main repository's, which is how Claude Code names a project.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bridge.discovery.clients import Platform
from bridge.discovery.files import read_regular

MAX_GIT_FILE_BYTES = 64 * 1024
"""A worktree's `.git` is one line with one path."""

_PLACE = re.compile(r"\{([a-z_]+)\}")

Places = Mapping[str, tuple[Path, ...]]


@dataclass(frozen=True, kw_only=True)
class Project:
    """The working directory, as Claude Code sees it.

    Attributes:
        cwd: The working directory.
        root: The repository's root at or above it; None outside a repository.
        main: The main repository's root when `root` is a worktree, else `root`.
        keys: The names that Claude Code's state may keep it under, most current first.
    """

    cwd: Path
    root: Path | None
    main: Path | None
    keys: tuple[str, ...]


def find_project(cwd: Path) -> Project:
    """Look for the repository around a directory."""
    root = next((place for place in (cwd, *cwd.parents) if _exists(place / ".git")), None)
    main = None if root is None else _main_repository(root)
    keys = [path for path in (main, root, cwd) if path is not None]
    # Claude Code sees the directory with its symbolic links resolved.
    spelled = [text for key in keys for text in (os.path.realpath(key), str(key))]
    return Project(cwd=cwd, root=root, main=main, keys=tuple(dict.fromkeys(spelled)))


def places_for(
    *,
    platform: Platform,
    home: Path,
    environ: Mapping[str, str],
    system_root: Path,
    extra: Path | None,
    project: Project,
) -> Places:
    """The paths that each place of a template stands for; none when it does not apply."""
    claude = environ.get("CLAUDE_CONFIG_DIR", "")
    cwd = project.cwd
    program_files = environ.get("ProgramFiles", "") or "C:/Program Files"
    found: dict[str, tuple[Path, ...]] = {
        "home": (home,),
        "cwd": (cwd,),
        "system": (system_root,),
        "library": (home / "Library" / "Application Support",),
        "config": (_absolute(environ.get("XDG_CONFIG_HOME", "")) or home / ".config",),
        "appdata": (Path(environ.get("APPDATA", "") or home / "AppData" / "Roaming"),),
        "programs": (Path(program_files),) if platform == "win32" else (),
        "claude_state": (cwd / claude,) if claude else (home,),
        "claude_settings": (cwd / claude,) if claude else (home / ".claude",),
        "extra": () if extra is None else (_from_cwd(extra, home=home, cwd=cwd),),
        "upwards": _upwards(project, home),
        "project": tuple(dict.fromkeys((cwd, project.root or cwd, project.main or cwd))),
    }
    return found


def fill(template: str, places: Places) -> tuple[Path, ...]:
    """Every path that a template stands for."""
    match = _PLACE.match(template)
    if match is None:
        return (Path(template),)
    rest = template[match.end() :].lstrip("/")
    return tuple(place / rest if rest else place for place in places[match[1]])


def _upwards(project: Project, home: Path) -> tuple[Path, ...]:
    """Directories whose `.mcp.json` counts, nearest first.

    Claude Code walks to the root of the file system. This stops at home, and outside home at the
    repository's root: what lies above belongs to others, who could name commands for us to run.
    """
    cwd = project.cwd
    chain = (cwd, *cwd.parents)
    for last in (home, Path(os.path.realpath(home)), project.root):
        if last is not None and last in chain:
            return chain[: chain.index(last) + 1]
    return (cwd,)


def _from_cwd(path: Path, *, home: Path, cwd: Path) -> Path:
    if path.parts[:1] == ("~",):
        return home.joinpath(*path.parts[1:])
    return cwd / path


def _absolute(text: str) -> Path | None:
    # The XDG specification says to ignore a relative path.
    path = Path(text)
    return path if path.is_absolute() else None


def _main_repository(root: Path) -> Path:
    """The repository that a worktree belongs to; the root itself when it is none."""
    raw = read_regular(root / ".git", limit=MAX_GIT_FILE_BYTES)
    if isinstance(raw, str):
        return root
    line = os.fsdecode(raw).strip()
    if not line.startswith("gitdir:") or "\0" in line:
        return root
    git_dir = root / line.removeprefix("gitdir:").strip()
    if git_dir.parent.name == "worktrees" and git_dir.parent.parent.name == ".git":
        return git_dir.parent.parent.parent
    return root


def _exists(path: Path) -> bool:
    try:
        return stat.S_IFMT(path.stat().st_mode) in (stat.S_IFDIR, stat.S_IFREG)
    except (OSError, ValueError):
        return False
