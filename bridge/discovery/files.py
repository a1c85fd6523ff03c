"""Reads each configuration file once and within bounds. `parser.py` interprets them.

Never opens a pipe, device or directory.
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

ABSENT = "there is no such file"

MAX_FILES_PER_DIRECTORY = 256  # The directory may be a repository's.

Fingerprint = tuple[str, int, int, int, int, int]
"""Path, mtime, size, inode, file type, ctime; or path, -1, error number and zeros. Copying tools
set mtime back, but cannot set ctime.
"""


def read_regular(path: Path, *, limit: int, private: bool = False) -> bytes | str:
    """Return a regular file's bytes, or the reason it cannot be read: `ABSENT` or a sentence.

    Refuses a `private` file that other users may change.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return "it is not a regular file"
        # Opening a pipe without O_NONBLOCK would wait for a writer.
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
        return f"it cannot be read: {error.strerror}"
    except ValueError:
        return "its path holds a character that no path can have"
    return raw if len(raw) <= limit else f"it is larger than {limit} bytes"


def list_matching(directory: Path, suffix: str, prefix: str = "") -> tuple[tuple[Path, ...], str]:
    """Return a directory's matching files, and why some are missing; empty if none is."""
    try:
        with os.scandir(directory) as found:
            names = [each.name for each in found if each.name.startswith(prefix)]
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return (), ""
        return (), f"it cannot be read: {error.strerror}"
    names = sorted(name for name in names if name.endswith(suffix) and name[0] != ".")
    said = ""
    if len(names) > MAX_FILES_PER_DIRECTORY:
        said = f"only the first {MAX_FILES_PER_DIRECTORY} of its {len(names)} files are read"
    return tuple(directory / name for name in names[:MAX_FILES_PER_DIRECTORY]), said


def read_own(path: Path, *, form: int, private: bool = False) -> Any:
    """Return a document that a bridge wrote, or None. Its errors mean a damaged file."""
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
        status = os.stat(name)  # noqa: PTH116 - a Path takes twice as long, for 100 files
    except (OSError, ValueError) as error:
        return (name, -1, getattr(error, "errno", None) or 0, 0, 0, 0)
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


MAX_PROJECT_FILE_BYTES = 1024 * 1024
"""Limit of a file in the working directory. A stranger may have written it, and the decoded value
takes 30 times its size.
"""


class FileReader:
    """Reads each file once, and collects warnings about whole files."""

    def __init__(self, exposed: WritablePaths) -> None:
        self._exposed = exposed
        self.warnings: list[ConfigWarning] = []
        self.references: dict[Path, str | None] = {}
        self.noted: dict[Path, None] = {}
        self._documents: dict[Path, Mapping[str, object] | None] = {}
        self._project_room = 4 * 1024 * 1024  # For all files of the working directory.
        self._absent: set[Path] = set()

    def skip_absent(self, absent: Iterable[Path]) -> None:
        """Mark files as absent, so that they are not opened: most clients are not installed."""
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
                raw = read_regular(path, limit=256 * 1024)  # The kernel's environments are smaller.
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
        # The user's own files need no approval, so they must be private.
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
