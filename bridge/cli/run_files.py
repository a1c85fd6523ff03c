"""The files of `run`: those of the user's that a program gets, and where those it left are put.

Names of what comes back were chosen in a sandbox, so they are checked again. No link is followed
below the directory that the user named. A file is replaced only if the user asks.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from bridge.discovery.clients import LOCATIONS
from bridge.errors import BridgeError, UsageError
from bridge.model import Artifact, InputFile
from bridge.private_files import open_below
from bridge.runs.input_files import MAX_BYTES, check_names, name_problem, quote

_NAMED = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CONFIGURATIONS = tuple(
    row.template.partition("/")[2].casefold()
    for row in LOCATIONS
    if row.in_project or row.template.startswith("{home}/")
)
_OBEYED = Path(__file__).with_name("obeyed_files.txt").read_text(encoding="utf-8").split()
"""Names of files from which agents take instructions, and tools code, without being told to."""
_SHORT = re.compile(r"[^.]*~\d+(\..{0,3})?").fullmatch

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def read_files(wanted: Sequence[str]) -> tuple[InputFile, ...]:
    """Return the files that the flags name, as NAME=PATH or PATH."""
    files = []
    left = MAX_BYTES
    for flag in wanted:
        name, equals, path = flag.partition("=")
        if not equals:
            name, path = Path(flag).name, flag
        if not path:
            raise UsageError(f"--file: {flag!r} names no file; write NAME=PATH, or PATH alone.")
        try:
            with Path(path).expanduser().open("rb") as file:
                data = file.read(left + 1)
        except OSError as error:
            raise UsageError(f"--file: {path} cannot be read: {error.strerror or error}.") from None
        left -= len(data)
        if left < 0:
            message = f"--file: with {path} there are more than {MAX_BYTES:,} bytes."
            remedy = "Give a program less at a time, or mount a directory by the configuration."
            raise UsageError(message, remedy=remedy)
        files.append(InputFile(name=name, data=data))
    check_names(files)
    return tuple(files)


def check_out(directory: str) -> Path:
    path = Path(directory).expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out: {path} cannot be made: {error.strerror or error}.") from None
    return path


def write_files(
    artifacts: Sequence[Artifact],
    directory: Path,
    read: Callable[[Artifact], Iterator[bytes]],
    *,
    force: bool = False,
) -> tuple[list[str], list[str]]:
    """Put files into a directory; return the names of those written, and a line for each other.

    Files that other programs read as a directory's settings or code are refused, whatever `force`
    says: a program must not configure git, a shell, a client or the bridge by leaving files.
    """
    written, problems = [], []
    with open_directory(directory) as root:
        for artifact in artifacts:
            if _is_obeyed(directory, artifact.name):
                problems.append(
                    f"{quote(artifact.name)} is not put there: other programs may obey a file of "
                    f"that name. To have it: `mcp-code-bridge artifacts get {artifact.uri}`."
                )
                continue
            try:
                _write_artifact(root, artifact, read, force=force)
                written.append(artifact.name)
            except FileExistsError:
                problems.append(
                    f"{quote(artifact.name)} already exists and was kept; use --force to replace "
                    f"it. The run's copy: `mcp-code-bridge artifacts get {artifact.uri}`."
                )
            except OSError as error:
                why = error.strerror or error
                problems.append(f"{quote(artifact.name)} cannot be written: {why}.")
            except BridgeError as error:
                problems.append(f"{quote(artifact.name)} could not be read: {error}")
    return written, problems


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    fd = os.open(path, _NAMED)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_obeyed(directory: Path, name: str) -> bool:
    """Return whether a client or a tool takes settings, instructions or code from a file."""
    # As the most lenient file systems compare names: without blanks at the end, say, or joiners.
    folded = unicodedata.normalize("NFKC", name.translate({0x200C: None, 0x200D: None}))
    parts = [part.partition(":")[0].rstrip(". ") for part in folded.casefold().split("/")]
    # `git~1` is what Windows calls `.git` for short.
    if any(part[:1] in ("", ".") or part == "node_modules" or _SHORT(part) for part in parts):
        return True
    # The directory counts, too: `--out mcp-servers` makes `x.json` a server.
    whole = "/".join((*map(str.casefold, Path(os.path.realpath(directory)).parts), *parts))
    return any(fnmatchcase(whole, f"*/{each}") for each in (*_CONFIGURATIONS, *_OBEYED))


def _write_artifact(
    root: int, artifact: Artifact, read: Callable[[Artifact], Iterator[bytes]], *, force: bool
) -> None:
    problem = name_problem(artifact.name)
    if problem:
        raise UsageError(f"Its name {problem}.")
    *above, name = artifact.name.split("/")
    parent = open_below(root, above)
    try:
        write_file(parent, name, read(artifact), force=force)
    finally:
        os.close(parent)


def write_file(parent: int, name: str, pieces: Iterable[bytes], *, force: bool = False) -> None:
    """Write a file into an open directory, whole or not at all.

    Raises:
        FileExistsError: It is there, and is not to be replaced.
        OSError: It cannot be written.
    """
    with contextlib.suppress(FileNotFoundError):
        os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not force:
            raise FileExistsError
    # Under another name first, so that no reader finds half a file.
    unfinished = f".{secrets.token_hex(8)}.unfinished"
    fd = os.open(unfinished, _NEW, 0o666, dir_fd=parent)
    try:
        with os.fdopen(fd, "wb") as file:
            for piece in pieces:
                file.write(piece)
        if force:
            # Linux and macOS refuse to replace a directory.
            os.replace(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent)
            return
        try:
            # Unlike a renaming this replaces nothing that has come to be there.
            os.link(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent)
        except FileExistsError:
            raise
        except OSError:
            # Not every file system has hard links. It was looked a moment ago.
            os.rename(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=parent)
