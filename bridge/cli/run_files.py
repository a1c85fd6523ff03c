"""Reads the files that `run` gives to a program, and writes the files that the program left.

The sandbox chose the names of its files, so they are checked again. No link is followed below the
user's directory. A file is replaced only with --force.
"""

from __future__ import annotations

import os
import re
import secrets
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from bridge.cli.origin import path_of
from bridge.discovery.clients import LOCATIONS
from bridge.errors import BridgeError, UsageError
from bridge.model import Artifact, InputFile
from bridge.private_files import open_below
from bridge.runs.input_files import MAX_BYTES, check_names, name_problem, quote

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CONFIGURATIONS = tuple(
    row.template.partition("/")[2].casefold()
    for row in LOCATIONS
    if row.in_project or row.template.startswith("{home}/")
)
_OBEYED = Path(__file__).with_name("obeyed_files.txt").read_text(encoding="utf-8").split()
"""Names of files that agents and tools obey by default: instructions, settings, code."""
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
            with path_of(Path(path).expanduser()).open("rb") as file:
                data = file.read(left + 1)
        except OSError as error:
            raise UsageError(f"--file: {path} cannot be read: {error.strerror or error}.") from None
        left -= len(data)
        if left < 0:
            message = f"--file: {path} takes the files over {MAX_BYTES:,} bytes in total."
            remedy = "Give the program less data, or offer it a directory in config.toml."
            raise UsageError(message, remedy=remedy)
        files.append(InputFile(name=name, data=data))
    check_names(files)
    return tuple(files)


def check_out(directory: str) -> Path:
    path = Path(directory).expanduser()
    try:
        path_of(path).mkdir(parents=True, exist_ok=True)
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
    """Write files into a directory; return the names written, and a line about each other file.

    Files that other programs obey are refused even with `force`: a program must not configure git,
    a shell, a client or the bridge.
    """
    written, problems = [], []
    with closing(os.open(directory, DIRECTORY)) as root:
        for artifact in artifacts:
            if _is_obeyed(directory, artifact.name):
                problems.append(
                    f"{quote(artifact.name)} was not written: other programs may obey a file of "
                    f"that name. To get it: `mcp-code-bridge artifacts get {artifact.uri}`."
                )
                continue
            try:
                if problem := name_problem(artifact.name):
                    raise UsageError(f"Its name {problem}.")
                *above, name = artifact.name.split("/")
                with closing(open_below(root, above)) as parent:
                    write_file(parent, name, read(artifact), force=force)
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
def closing(fd: int) -> Iterator[int]:
    try:
        yield fd
    finally:
        os.close(fd)


def _is_obeyed(directory: Path, name: str) -> bool:
    """Return whether a client or a tool obeys a file of this name."""
    # The most lenient file systems ignore case, joiners, and dots and spaces at the end.
    folded = unicodedata.normalize("NFKC", name.translate({0x200C: None, 0x200D: None}))
    parts = [part.partition(":")[0].rstrip(". ") for part in folded.casefold().split("/")]
    # `git~1` is what Windows calls `.git` for short.
    if any(part[:1] in ("", ".") or _SHORT(part) for part in parts):
        return True
    # The directory matters too: `--out mcp-servers` would make `x.json` a server.
    whole = "/".join((*map(str.casefold, Path(os.path.realpath(directory)).parts), *parts))
    return any(fnmatchcase(whole, f"*/{each}") for each in (*_CONFIGURATIONS, *_OBEYED))


def write_file(parent: int, name: str, pieces: Iterable[bytes], *, force: bool = False) -> None:
    """Write a file into an open directory, whole or not at all.

    Raises:
        FileExistsError: The file exists, and `force` is not set.
    """
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not force:
            raise FileExistsError
    # Written under another name first, so that no reader sees half a file.
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
            # Unlike a rename, a link never replaces a file.
            os.link(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent)
        except FileExistsError:
            raise
        except OSError:
            # Some file systems lack hard links. The check above leaves only a short race.
            os.rename(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=parent)
