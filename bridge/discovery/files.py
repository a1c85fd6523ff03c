"""Reads configuration files within bounds, each once in a discovery; `parser.py` interprets them.

A pipe, a device or a directory in a file's place is never opened.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bridge.discovery.dialect import Format
from bridge.discovery.documents import MAX_FILE_BYTES, MalformedError, decode, kind, size_limit
from bridge.discovery.report import ConfigWarning
from bridge.discovery.writable_paths import EXPOSED, WritablePaths
from bridge.private_files import exposure_reason

MAX_FILES_PER_DIRECTORY = 256  # Read in one directory, which may be a repository's.

Fingerprint = tuple[str, int, int, int, int, int]
"""Path, mtime, size, inode, file type, ctime; or path, -1, error number and zeros. Unlike mtime,
which copying tools set back, ctime cannot be set."""


def read_regular(path: Path, *, limit: int, private: bool = False) -> bytes | str:
    """Return a regular file's bytes, or the reason why it was not read: `ABSENT` or a sentence.

    A `private` file is refused if other users may change it.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "it is not a regular file"
        # Not blocking, in case a pipe has replaced it since.
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
        descriptor = os.open(path, flags)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return "it is not a regular file"
            if private and (reason := exposure_reason(status)):
                return f"it is not used: {reason}"
            raw = file.read(limit + 1)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return ABSENT
        return _error_reason(error)
    except ValueError:
        return "its path holds a character that no path can have"
    return raw if len(raw) <= limit else f"it is larger than {limit} bytes"


def list_matching(directory: Path, suffix: str, prefix: str = "") -> tuple[tuple[Path, ...], str]:
    """Return what a directory has of such names, and why some are missing, if any are."""
    try:
        with os.scandir(directory) as found:
            names = [each.name for each in found if each.name.startswith(prefix)]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return (), ""
        return (), _error_reason(error)
    names = sorted(name for name in names if name.endswith(suffix) and name[0] != ".")
    said = ""
    if len(names) > MAX_FILES_PER_DIRECTORY:
        said = f"only the first {MAX_FILES_PER_DIRECTORY} of its {len(names)} files are read"
    return tuple(directory / name for name in names[:MAX_FILES_PER_DIRECTORY]), said


def read_own(path: Path, *, form: int, private: bool = False) -> Any:
    """Return a document that a bridge wrote, or None; each of its errors means a damaged file."""
    raw = read_regular(path, limit=MAX_FILE_BYTES, private=private)
    if raw == ABSENT:
        return None
    if isinstance(raw, str):
        raise ValueError(raw)
    document = json.loads(raw)
    if document["form"] != form:
        raise ValueError(f"its form is {document['form']!r:.40}; a newer bridge wrote it")
    return document


def fingerprint(path: Path) -> Fingerprint:
    name = str(path)
    try:
        status = os.stat(name)  # noqa: PTH116 - a Path takes twice as long, a hundred times
    except OSError as error:
        return (name, -1, error.errno or 0, 0, 0, 0)
    except ValueError:
        return (name, -1, 0, 0, 0, 0)
    return (
        name,
        status.st_mtime_ns,
        status.st_size,
        status.st_ino,
        stat.S_IFMT(status.st_mode),
        status.st_ctime_ns,
    )


def is_absent(found: Fingerprint) -> bool:
    return found[1] == -1 and found[2] in (errno.ENOENT, errno.ENOTDIR)


ABSENT = "there is no such file"


def _error_reason(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return "its symbolic links form a loop"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "permission to read it is denied"
    return f"it cannot be read: {error.strerror}"


MAX_PROJECT_FILE_BYTES = 1024 * 1024
"""Of one file of the working directory. A stranger may have written it, and the decoded value takes
thirty times its size."""


class FileReader:
    """Reads each file once, and collects warnings about files as a whole."""

    def __init__(self, exposed: WritablePaths) -> None:
        self._exposed = exposed
        self.warnings: list[ConfigWarning] = []
        self.references: dict[Path, str | None] = {}
        self.noted: dict[Path, None] = {}
        self._documents: dict[Path, Mapping[str, object] | None] = {}
        self._project_room = 4 * 1024 * 1024  # of all files of the working directory together
        self._absent: set[Path] = set()

    def skip_absent(self, absent: Iterable[Path]) -> None:
        """Treat files as absent without opening them: most clients are not installed."""
        unread: dict[Path, None] = dict.fromkeys(absent)
        self._absent.update(unread)
        self._documents.update(unread)

    def document(
        self, path: Path, format: Format = "json", *, in_project: bool = False
    ) -> Mapping[str, object] | None:
        if path not in self._documents:
            self._documents[path] = self._read(path, format, in_project)
        return self._documents[path]

    def reference(self, name: str) -> str | None:
        path = Path(name)
        if path not in self.references and len(self.references) < 64:
            if self._exposed.contains(path):
                self.warn(path, EXPOSED)
                raw: bytes | str = EXPOSED
            else:
                raw = read_regular(path, limit=256 * 1024)  # An environment holds less.
            self.references[path] = (
                None if isinstance(raw, str) else raw.decode("utf-8-sig", "replace")
            )
        return self.references.get(path)

    def is_absent(self, path: Path) -> bool:
        return path in self._absent

    def _read(self, path: Path, format: Format, in_project: bool) -> Mapping[str, object] | None:
        if self._exposed.contains(path):
            self.warn(path, EXPOSED)
            return None
        limit = size_limit(format)
        if in_project:
            limit = min(limit, MAX_PROJECT_FILE_BYTES, self._project_room)
        # A project's files need a person's approval; the user's own do not, so must be private.
        raw = read_regular(path, limit=limit, private=not in_project)
        if isinstance(raw, str):
            if raw == ABSENT:
                self._absent.add(path)
            else:
                self.warn(path, raw)
            return None
        if in_project:
            self._project_room -= len(raw)
        try:
            value = decode(raw, format)
        except MalformedError as error:
            self.warn(path, str(error))
            return None
        if not isinstance(value, Mapping):
            self.warn(path, f"the file must hold an object, not {kind(value)}")
            return None
        return value

    def warn(self, path: Path, reason: str) -> None:
        unread = reason != ABSENT
        self.warnings.append(ConfigWarning(path=str(path), key="", reason=reason, unread=unread))
