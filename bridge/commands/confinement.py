"""The host paths that a profile grants, and the words that a stage may have. Pure.

Arguments are no boundary, since a program can make up paths. The mounts are the boundary, and
`View.explain_failure` only names an argument that leads outside.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from bridge.errors import InvalidRequestError, SettingsError
from bridge.sandbox.backend import Bind
from bridge.settings.commands import CommandProfile

WORKSPACE = "/workspace"  # The workspace's path in a sandbox.

MAX_STAGES = 8  # A client may send any number; each has a sandbox with the profile's memory limit.

MAX_COMMAND_BYTES = 16 * 1024
"""A client may send words of any size. A stage's words are part of one argument, which the kernel
limits to 128 KiB, and encoding takes up to six bytes for each."""

_NEVER = ("/dev", "/proc", "/run", "/sys", "/tmp")  # A sandbox has its own of these directories.
_OWN = ("/tmp", "/dev/null")  # The paths in them that every command may name.

_NOT_WHOLE = ("/", "/bin", "/etc", "/home", "/lib", "/lib64", "/root", "/sbin", "/usr", "/var")
_NOT_WRITABLE = ("/bin", "/boot", "/etc", "/lib", "/lib64", "/sbin", "/usr")

_GLUED = re.compile(r"^-[A-Za-z0-9]@?(?=/|~|\.\./|\.\.$)")
_PARTS = re.compile(r"[=,:;\s\"']+")

Realpath = Callable[[str], str]
Readlink = Callable[[str], str | None]


def check_stages(stages: Sequence[Sequence[str]], names: Collection[str]) -> None:
    if not stages:
        raise InvalidRequestError("There is no command.")
    if len(stages) > MAX_STAGES:
        message = f"The pipeline has {len(stages)} stages; at most {MAX_STAGES} are allowed."
        raise InvalidRequestError(message)
    for words in stages:
        if not words:
            raise InvalidRequestError("A stage of the pipeline has no words.")
        try:
            size = sum(len(word.encode()) + 1 for word in words)
        except UnicodeEncodeError:
            raise InvalidRequestError("A word of the command is no valid text.") from None
        if size > MAX_COMMAND_BYTES:
            message = f"The command has {size:,} bytes; at most {MAX_COMMAND_BYTES:,} are allowed."
            raise InvalidRequestError(message, remedy="Pass long texts as `stdin`.")
        if any("\0" in word for word in words):
            message = "A word of the command has a NUL character, which no argument can have."
            raise InvalidRequestError(message)
        if words[0] not in names:
            message = f"{words[0]!r:.100} is not among the executables of this profile."
            remedy = f"Start with one of {', '.join(sorted(names))}, without a path. Variables go "
            raise InvalidRequestError(message, remedy=f"{remedy}into `env`, if it is allowed.")


Judge = Callable[[str, bool], str]  # Returns why a (writable) path may not be granted, or "".


def grants(profile: CommandProfile, *, realpath: Realpath, refusal: Judge) -> tuple[Bind, ...]:
    """Return a profile's grants, shortest path first; `refusal` judges each path."""
    workspace = realpath(str(profile.workspace))
    granted = {WORKSPACE: _bind(workspace, WORKSPACE, writable=False)}
    _check_grantable(granted[WORKSPACE], refusal, f"{profile.place}.workspace")
    entries = [(path, False) for path in profile.read] + [(path, True) for path in profile.write]
    for path, writable in entries:
        place = f"{profile.place}.{'write' if writable else 'read'}: {path}"
        grant = _grant(path, workspace, realpath, place, writable=writable)
        _check_grantable(grant, refusal, place)
        if grant.inside not in granted or writable:
            granted[grant.inside] = grant
    needed: dict[str, Bind] = {}
    for grant in sorted(granted.values(), key=lambda each: (len(each.inside), each.inside)):
        above = [needed[p] for p in needed if is_within(grant.inside, (p,))]
        # Below a writable directory, a command could replace the path by a link.
        if not any(each.writable or not grant.writable for each in above):
            needed[grant.inside] = grant
    return tuple(needed.values())


def _grant(path: str, workspace: str, realpath: Realpath, place: str, *, writable: bool) -> Bind:
    pure = PurePosixPath(path)
    if pure.is_absolute() and not is_within(realpath(path), (workspace,)):
        if ".." in pure.parts:
            raise SettingsError(f"{place} has .. in it.")
        return _bind(realpath(path), str(pure), writable=writable)
    source = realpath(str(PurePosixPath(workspace) / pure))
    if not is_within(source, (workspace,)):
        message = f"{place} leads out of the workspace."
        raise SettingsError(message, remedy="Name the path that it leads to as an absolute path.")
    inside = str(PurePosixPath(WORKSPACE) / source[len(workspace) :].lstrip("/"))
    return _bind(source, inside, writable=writable)


def _check_grantable(grant: Bind, refusal: Judge, place: str) -> None:
    source, writable = grant.source, grant.writable
    problem = refusal(source, writable)
    if source in _NOT_WHOLE:
        problem = "it is a directory of the system: name the needed paths in it"
    elif is_within(source, _NEVER) and not is_within(grant.inside, (WORKSPACE,)):
        problem = "the sandbox has a directory of its own there"
    elif writable and is_within(source, _NOT_WRITABLE):
        problem = "it belongs to the system, and must not be writable"
    if problem:
        message = f"{place} ({source}) may not be granted: {problem}."
        raise SettingsError(message, remedy="Grant a directory that holds only the command's data.")


class View:
    """The paths that a profile's commands see, and the host's paths behind them.

    Args:
        visible: Paths of the system that every sandbox has.
        hosts: Further host directories and their paths inside, for messages.
    """

    def __init__(
        self,
        granted: Sequence[Bind],
        readlink: Readlink,
        *,
        visible: Sequence[str] = (),
        hosts: Mapping[str, str] | None = None,
    ) -> None:
        self._granted = sorted(granted, key=lambda each: len(each.inside), reverse=True)
        self._readlink = readlink
        self._hosts = {each.source: each.inside for each in granted} | dict(hosts or {})
        self._roots = (*(each.inside for each in granted), *_OWN)
        self._visible = (*self._roots, *visible)

    def host_path(self, inside: str) -> str | None:
        for grant in self._granted:
            if is_within(inside, (grant.inside,)):
                return grant.source + inside[len(grant.inside) :]
        return None

    def resolve(self, path: str) -> str:
        return follow(path, self._read)[0]

    def _read(self, inside: str) -> str | None:
        host = self.host_path(inside)
        return self._readlink(host) if host is not None else None

    def workdir(self, given: str) -> str:
        """Return the directory inside of a path below the workspace; refuse one outside."""
        if "\0" in given or given.startswith("~"):
            message = f"`workdir` must be a path below the workspace, not {given!r:.200}."
            raise InvalidRequestError(message)
        inside = given
        if not is_within(given, (WORKSPACE,)):
            inside = str(PurePosixPath(WORKSPACE) / given.lstrip("/"))
        real = self.resolve(inside)
        if not is_within(real, (WORKSPACE,)):
            message = f"`workdir` {given!r:.200} leads out of the workspace."
            remedy = "Give a path relative to the workspace's root."
            raise InvalidRequestError(message, remedy=remedy)
        return real

    def explain_failure(
        self, workdir: str, words: Sequence[str], exists: Callable[[str], bool]
    ) -> str:
        """Return which argument of a failed command leads outside; empty if none does."""
        for word in words[1:]:
            for piece in candidates(word):
                if re.match(r"~(?:[A-Za-z_][A-Za-z0-9_.-]*)?/", piece):
                    advice = "nothing here expands ~; give a path below the workspace."
                    return f"{word!r:.200}: {advice}"
                path = PurePosixPath(workdir) / piece
                real = self.resolve(str(path))
                # A pattern is rarely an existing path of the host.
                likely = exists(real) or not piece.startswith("/")
                if likely and real != "/" and not is_within(real, self._visible):
                    shown = f"{word!r:.200}" if piece == word else f"{word!r:.200}: {piece!r:.200}"
                    return f"{shown} {self._outside(path, real)}"
        return ""

    def _outside(self, path: PurePosixPath, real: str) -> str:
        plain = posixpath.normpath(path)
        for host, inside in self._hosts.items():
            if is_within(plain, (host,)):
                return f"is a path of the host; that is {inside + plain[len(host) :]} here."
        how = "is" if real == plain else f"leads by a link to {real}, which is"
        return f"{how} outside of what this profile grants ({', '.join(self._roots)})."


def candidates(word: str) -> list[str]:
    """Return the parts of a word that a program might read as a path."""
    # Without its scheme, only a `file:///` address leaves an absolute path.
    parts = [re.sub("^@+|^/+(?=/)", "", part) for part in (word, *_PARTS.split(word))]
    pieces = dict.fromkeys(piece for part in parts for piece in (part, _GLUED.sub("", part)))
    return [piece for piece in pieces if piece and not piece.startswith("-")]


def is_within(path: str, roots: Iterable[str]) -> bool:
    """Return whether a path without `..` or links is at or below one of `roots`."""
    return any(path == root or path.startswith(root.rstrip("/") + "/") for root in roots)


def follow(path: str, readlink: Readlink) -> tuple[str, list[str]]:
    """Return the target of an absolute path, and every path on the way, links included."""
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
        if links > 40:  # The kernel's limit.
            return "/", way  # No profile can grant it.
        to = PurePosixPath(target)
        done = PurePosixPath("/") if to.is_absolute() else done
        rest += reversed(to.parts[1:] if to.is_absolute() else to.parts)
    return str(done), way


def _bind(source: str, inside: str, *, writable: bool) -> Bind:
    # It may have named executables; Landlock or the image's user decides on execution.
    return Bind(source=source, inside=inside, writable=writable, executable=True)
