"""What of the host a profile grants: paths and where the sandbox has them. Pure but for `realpath`.

Owns the rules of what may be granted at all, and the way from a path inside to what it leads to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from bridge.command.confine import WORKSPACE, is_within
from bridge.errors import SettingsError
from bridge.sandbox.backend import Bind
from bridge.settings.commands import CommandProfile

MAX_LINKS = 40
"""Symbolic links on the way of one path, as the kernel has it."""

NOWHERE = "/"
"""What a path leads to that cannot be followed; no profile can grant it."""

_NEVER = ("/dev", "/proc", "/run", "/sys", "/tmp")
"""The sandbox has its own of these."""

_NOT_WHOLE = ("/", "/bin", "/etc", "/home", "/lib", "/lib64", "/root", "/sbin", "/usr", "/var")
_NOT_WRITABLE = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr")

Realpath = Callable[[str], str]
Readlink = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """Paths of the host that no command may change.

    Attributes:
        private: The bridge's own files and the engines': nothing in or above them is granted.
        trusted: What the bridge executes or believes: nothing above it is granted to write to.
    """

    private: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()


def grants(
    profile: CommandProfile, *, home: str, realpath: Realpath, guarded: Guarded | None = None
) -> tuple[Bind, ...]:
    """Return what a profile grants, shortest path first.

    Raises:
        SettingsError: It grants what must not be granted.
    """
    workspace = realpath(str(profile.workspace))
    _check(workspace, home, realpath, f"{profile.place}.workspace", writable=False)
    guarded = guarded or Guarded()
    found = {WORKSPACE: _bind(workspace, WORKSPACE, writable=False)}
    _insist_unguarded(found[WORKSPACE], guarded, realpath, f"{profile.place}.workspace")
    entries = [(path, False) for path in profile.read] + [(path, True) for path in profile.write]
    for path, writable in entries:
        place = f"{profile.place}.{'write' if writable else 'read'}: {path}"
        grant = _grant(path, workspace, realpath, place, writable=writable)
        if not is_within(grant.inside, (WORKSPACE,)) or grant.inside == WORKSPACE:
            _check(grant.source, home, realpath, place, writable=writable)
        _insist_unguarded(grant, guarded, realpath, place)
        if grant.inside not in found or writable:
            found[grant.inside] = grant
    kept: dict[str, Bind] = {}
    for grant in sorted(found.values(), key=lambda each: (len(each.inside), each.inside)):
        above = [kept[p] for p in kept if is_within(grant.inside, (p,))]
        # What is below something writable could be turned into a link by what runs there.
        if not any(each.writable or not grant.writable for each in above):
            kept[grant.inside] = grant
    return tuple(kept.values())


def _grant(path: str, workspace: str, realpath: Realpath, place: str, *, writable: bool) -> Bind:
    pure = PurePosixPath(path)
    if pure.is_absolute() and not is_within(realpath(path), (workspace,)):
        if ".." in pure.parts:
            raise SettingsError(f"{place} has .. in it.")
        return _bind(realpath(path), str(pure), writable=writable)
    source = realpath(str(PurePosixPath(workspace) / pure))
    if not is_within(source, (workspace,)):
        message = f"{place} leads out of the workspace."
        raise SettingsError(message, remedy="Name what it leads to by its absolute path.")
    inside = str(PurePosixPath(WORKSPACE) / source[len(workspace) :].lstrip("/"))
    return _bind(source, inside, writable=writable)


def _check(source: str, home: str, realpath: Realpath, place: str, *, writable: bool) -> None:
    own = realpath(home)
    problem = ""
    if source in _NOT_WHOLE or is_within(own, (source,)):
        problem = "is or holds a home directory, or the system: name what is needed of it"
    elif is_within(source, _NEVER) and not place.endswith(".workspace"):
        problem = "lies where the sandbox has directories of its own"
    elif writable and is_within(source, _NOT_WRITABLE):
        problem = "belongs to the system and must not be written to"
    if problem:
        raise SettingsError(f"{place} ({source}) {problem}.")


def _insist_unguarded(grant: Bind, guarded: Guarded, realpath: Realpath, place: str) -> None:
    source = grant.source
    problem = ""
    for path in guarded.private:
        real = realpath(path)
        if is_within(real, (source,)) or is_within(source, (real,)):
            problem = f"is in or above {path}, where the bridge or an engine has its own files"
    for path in guarded.trusted:
        if grant.writable and (is_within(path, (source,)) or is_within(realpath(path), (source,))):
            problem = f"holds {path}, which the bridge relies on, and could be written to"
    if problem:
        message = f"{place} ({source}) {problem}."
        raise SettingsError(message, remedy="Grant a directory that holds only the command's data.")


class View:
    """Paths as the sandbox sees them."""

    def __init__(self, granted: Sequence[Bind], readlink: Readlink) -> None:
        self._granted = sorted(granted, key=lambda each: len(each.inside), reverse=True)
        self._readlink = readlink

    def host_path(self, inside: str) -> str | None:
        """Return the path of the host for one inside; None if it is not the host's."""
        for grant in self._granted:
            if is_within(inside, (grant.inside,)):
                return grant.source + inside[len(grant.inside) :]
        return None

    def resolve(self, path: str) -> str:
        """Return the path inside that an absolute path leads to, links followed."""
        return follow(path, self._read)[0]

    def _read(self, inside: str) -> str | None:
        host = self.host_path(inside)
        return self._readlink(host) if host is not None else None


def follow(path: str, readlink: Readlink) -> tuple[str, list[str]]:
    """Return what an absolute path leads to, and every place on the way, links included."""
    way: list[str] = []
    done, rest, links = PurePosixPath("/"), list(reversed(PurePosixPath(path).parts[1:])), 0
    while rest:
        part = rest.pop()
        if part == "..":
            done = done.parent
            continue
        way.append(str(done / part))
        target = readlink(way[-1])
        if target is None:
            done /= part
            continue
        links += 1
        if links > MAX_LINKS:
            return NOWHERE, way
        to = PurePosixPath(target)
        done = PurePosixPath("/") if to.is_absolute() else done
        rest += reversed(to.parts[1:] if to.is_absolute() else to.parts)
    return str(done), way


def _bind(source: str, inside: str, *, writable: bool) -> Bind:
    # Named executables may lie in it, which Landlock or the image's user decides on.
    return Bind(source=source, inside=inside, writable=writable, executable=True)
