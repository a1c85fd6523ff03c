"""The files of one discovery, each read once and decoded, within bounds for a project's.

Owns what is wrong with files as a whole. What their contents mean is `parse.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from bridge.discovery.clients import Format
from bridge.discovery.documents import MAX_ENV_FILE_BYTES, MalformedError, decode, kind, size_limit
from bridge.discovery.exposed import EXPOSED, Exposed
from bridge.discovery.files import ABSENT, read_regular
from bridge.discovery.report import ConfigWarning

MAX_REFERENCES = 64
"""Files that configurations name, such as `envFile`; a table that names more is no table."""

MAX_PROJECT_FILE_BYTES = 1024 * 1024
"""Of one file of the working directory. Anybody may have written it, and as a value it takes thirty
times its size."""

MAX_PROJECT_BYTES = 4 * 1024 * 1024
"""Of all files of the working directory together; strongest first, and what is beyond is left."""


class Reader:
    """Reads each file once, and gathers what is wrong with files as a whole."""

    def __init__(self, exposed: Exposed) -> None:
        self._exposed = exposed
        self.warnings: list[ConfigWarning] = []
        self.references: dict[Path, str | None] = {}
        self._documents: dict[Path, Mapping[str, object] | None] = {}
        self._project_room = MAX_PROJECT_BYTES
        self._absent: set[Path] = set()

    def leave_out(self, absent: Iterable[Path]) -> None:
        """Do not look for these again: most clients that are known are not installed."""
        self._absent.update(absent)
        self._documents.update(dict.fromkeys(absent))

    def document(
        self, path: Path, format: Format = "json", *, in_project: bool = False
    ) -> Mapping[str, object] | None:
        """A file's decoded value; None when there is none."""
        if path not in self._documents:
            self._documents[path] = self._read(path, format, in_project)
        return self._documents[path]

    def reference(self, name: str) -> str | None:
        """The text of a file that a configuration names; None when it cannot be had."""
        path = Path(name)
        if path not in self.references and len(self.references) < MAX_REFERENCES:
            if self._exposed.holds(path):
                self._warn(path, EXPOSED)
                raw: bytes | str = EXPOSED
            else:
                raw = read_regular(path, limit=MAX_ENV_FILE_BYTES)
            self.references[path] = (
                None if isinstance(raw, str) else raw.decode("utf-8-sig", "replace")
            )
        return self.references.get(path)

    def is_absent(self, path: Path) -> bool:
        """Whether a file was seen not to be there."""
        return path in self._absent

    def demand(self, path: Path) -> None:
        """Warn about a file that somebody named and that is not there."""
        if path in self._absent:
            self._warn(path, ABSENT)

    def _read(self, path: Path, format: Format, in_project: bool) -> Mapping[str, object] | None:
        if self._exposed.holds(path):
            self._warn(path, EXPOSED)
            return None
        limit = size_limit(format)
        if in_project:
            limit = min(limit, MAX_PROJECT_FILE_BYTES, self._project_room)
        # A project's files need the person's approval; the user's own are believed as they are.
        raw = read_regular(path, limit=limit, private=not in_project)
        if isinstance(raw, str):
            if raw == ABSENT:
                self._absent.add(path)
            else:
                self._warn(path, raw)
            return None
        if in_project:
            self._project_room -= len(raw)
        try:
            value = decode(raw, format)
        except MalformedError as error:
            self._warn(path, str(error))
            return None
        if not isinstance(value, Mapping):
            self._warn(path, f"the file must hold an object, not {kind(value)}")
            return None
        return value

    def _warn(self, path: Path, reason: str) -> None:
        unread = reason != ABSENT
        self.warnings.append(ConfigWarning(path=str(path), key="", reason=reason, unread=unread))
