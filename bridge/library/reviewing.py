"""Which skills a person has approved of, by what stands in them.

Owns the file of digests. It is no part of the folder of skills, so that nothing that gets there,
such as by a `git pull`, brings its own approval along. All of it blocks, and belongs in threads.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from bridge.errors import LibraryError
from bridge.saving import read_regular, replace_file, turn

logger = logging.getLogger(__name__)

MAX_APPROVALS = 2000
"""Remembered; the oldest are forgotten, and asked for again."""

MAX_BYTES = 1024 * 1024
_FORM = 1


class Approvals:
    """The approvals that last."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def holds(self, name: str, digest: str) -> bool:
        """Tell whether a person approved of a skill as it is; what cannot be read approves none."""
        return (name, digest) in self.all()

    def of(self, name: str) -> set[str]:
        """Return the digests that a person approved of under a name."""
        return {digest for named, digest in self.all() if named == name}

    def all(self) -> set[tuple[str, str]]:
        """Return the names and digests that are approved."""
        try:
            return {(name, digest) for name, digest in self._read()}
        except (OSError, ValueError, RecursionError) as error:
            logger.warning("approvals of skills cannot be read, and do not count: %s", error)
            return set()

    def add(self, name: str, digest: str) -> None:
        """Remember a person's approval of a text.

        Raises:
            LibraryError: It cannot be written.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with turn(self._path.with_name(f"{self._path.name}.lock")):
                new = [name, digest]
                found = [each for each in self._read() if each != new]
                found = [*found, new][-MAX_APPROVALS:]
                document = {"form": _FORM, "approved": found}
                replace_file(self._path, json.dumps(document).encode(), durable=True)
        except (OSError, ValueError, RecursionError) as error:
            message = f"The approval of skill {name!r} cannot be written down: {error}."
            raise LibraryError(message) from None

    def _read(self) -> list[list[str]]:
        try:
            data = read_regular(self._path, MAX_BYTES)
        except FileNotFoundError:
            return []
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("form") != _FORM:
            raise ValueError(f"{self._path.name} is not what a bridge writes")
        listed = document.get("approved")
        return [
            [str(each[0]), str(each[1])]
            for each in (listed if isinstance(listed, list) else ())
            if isinstance(each, list) and len(each) == 2
        ]
